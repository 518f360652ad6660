"""Check runs between object stores: faults, machines without a shared disc, memory, and what a store costs.

    python scripts/check/bucket.py faults   --faces 5000     # bucket to bucket, with failing requests
    python scripts/check/bucket.py nodes    --faces 5000     # as root: two Ray nodes, one of which is killed
    python scripts/check/bucket.py speed    --faces 700 --rows 25 --checkpoint celeba-8to64   # as root: one node, two
    python scripts/check/bucket.py overhead --faces 300 --checkpoint celeba-8to64   # through a store, and on a disc
    python scripts/check/bucket.py memory   --faces 10000000

The store is moto's server behind `store_with_faults.py`. The nodes are network namespaces, each with a /tmp of its own.
With `--checkpoint tiny` a random network decodes. Every command exits with 1 if a check fails.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from batch import make_checkpoint, make_faces
from superres.batch.rows import latest_rows
from superres.system.places import files_in, read_place, write_place

RUN = [sys.executable, "-m", "superres", "upscale"]
HERE = Path(__file__).resolve().parent
ADDRESSES = {"root": "10.77.0.254", "a": "10.77.0.1", "b": "10.77.0.2"}
PORT = 6399
KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true", "RAY_AUTH_MODE": "disabled"}


@contextmanager
def store(host: str = "127.0.0.1", errors: float = 0.0, cuts: float = 0.0) -> Iterator[str]:
    """Serve a store and point the environment at it; yields its endpoint."""
    words = [sys.executable, str(HERE / "store_with_faults.py"), "--host", host, "--errors", str(errors), "--cuts",
             str(cuts)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        endpoint = json.loads(process.stdout.readline())["endpoint"] if process.stdout else ""
        os.environ.update(KEYS, AWS_ENDPOINT_URL=endpoint)
        try:
            yield endpoint
        finally:
            process.terminate()


def counts(endpoint: str) -> Counter[str]:
    """Return the requests and bytes that the store has counted."""
    with urllib.request.urlopen(f"{endpoint}/-/counts") as answer:  # noqa: S310 -- of this script
        return Counter(json.load(answer))


def prepare(work: Path, arguments: argparse.Namespace) -> tuple[Path, list[str], int]:
    """Make faces, a hundredth of them broken, and return their folder, the options of decoding, and their number."""
    inputs = make_faces(work / "in", arguments.faces)
    for link in [path for path in (work / "in").rglob("*") if path.is_symlink()]:
        link.unlink()  # a store has no links
    inputs = sum(1 for path in (work / "in").rglob("*.png") if path.is_file())
    if arguments.checkpoint != "tiny":
        return work / "in", ["--checkpoint", arguments.checkpoint], inputs
    os.environ["OMP_NUM_THREADS"] = "1"  # more threads are slower for this network
    tiny = make_checkpoint(work / "tiny")
    return work / "in", ["--checkpoint", tiny, "--accept", "distance", "--epsilon", "255", "--engine", "plain"], inputs


def upload(folder: Path, place: str) -> None:
    """Copy the files of a folder to a place, several at a time."""
    from concurrent.futures import ThreadPoolExecutor

    names = [str(path.relative_to(folder)) for path in folder.rglob("*.png")]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda name: write_place(f"{place}/{name}", (folder / name).read_bytes()), names))


def fingerprint(place: str) -> tuple[dict[str, bytes], list[dict[str, Any]]]:
    """Return the files of a run, without its manifests, and the rows without times and places."""
    from concurrent.futures import ThreadPoolExecutor

    names = [name for name, _, _ in files_in(place, recursive=True) if not name.endswith(".jsonl")]
    with ThreadPoolExecutor(16) as pool:
        files = dict(zip(names, pool.map(lambda name: read_place(f"{place}/{name}", 1 << 30), names), strict=True))
    rows = [json.loads(row.line()) for row in latest_rows(f"{place}/")]
    for row in rows:
        row["seconds"] = row["version"] = None  # a version is a time here and an ETag there
        row["output"] = row["output"].removeprefix(place)
        row["input"] = row["input"].partition("/in/")[2]
        row["error"] = row["error"] and row["error"].partition(".png")[2]
    return files, rows


def compare(wanted: Any, found: Any, inputs: int, what: str) -> bool:  # noqa: ANN401 -- of `fingerprint`
    """Print and return whether two runs have the same files and rows, with one row per input."""
    same, rows = wanted[0] == found[0], wanted[1] == found[1]
    once = len({row["input"] for row in found[1]}) == len(found[1]) == inputs
    print(f"{what}: files identical {same} ({len(found[0])}), rows identical {rows}, one row per input {once} "
          f"({inputs}), {dict(Counter(row['status'] for row in found[1]))}", flush=True)
    return same and rows and once


def timed(words: list[str], output: Path) -> float:
    """Run a command whose messages go to a file, and return its seconds."""
    started = time.monotonic()
    with open(output, "w") as file:
        code = subprocess.run(words, stderr=file, check=False).returncode
    seconds = time.monotonic() - started
    print(f"code {code}, {seconds:.1f} s: {output.read_text().strip().splitlines()[-1]}", flush=True)
    return seconds


def named_once(output: Path, rows: list[dict[str, Any]]) -> bool:
    """Return whether the messages of a run name each failed input once."""
    lines = output.read_text().splitlines()
    failed = [row["input"] for row in rows if row["status"] == "failed"]
    good = all(sum(f"/{name} " in line or f"/{name}:" in line for line in lines) == 1 for name in failed)
    print(f"each of {len(failed)} failures named once: {good}")
    return good


def faults(work: Path, arguments: argparse.Namespace) -> bool:
    """Upscale from bucket to bucket, in files and in shards, through a store that fails."""
    folder, options, inputs = prepare(work, arguments)
    good = True
    with store(errors=0.05, cuts=0.01) as endpoint:
        upload(folder, "s3://faces/in")
        for layout in ("webdataset", "parquet", "png"):
            more = ["--recursive", "--format", layout, *options]
            rows = ["--rows", str(arguments.rows)]
            own = ["--keep-tree"] if layout == "png" else rows
            timed([*RUN, str(folder), "--output", str(work / f"whole-{layout}"), *more, *own], work / "whole.log")
            before = counts(endpoint)
            timed([*RUN, "s3://faces/in/", "--output", f"s3://faces/{layout}", *more, *rows], work / "out.log")
            print({name: number for name, number in (counts(endpoint) - before).items()})
            found = fingerprint(f"s3://faces/{layout}")
            if layout == "png":
                whole = {str(path.relative_to(work / "whole-png")): path.read_bytes()
                         for path in (work / "whole-png").rglob("*.png")}
                good &= compare((whole, found[1]), found, inputs, layout)
            else:
                wanted = fingerprint(str(work / f"whole-{layout}"))
                good &= compare(without_input(wanted), without_input(found), inputs, layout)
            good &= named_once(work / "out.log", found[1])
    return good


def without_input(found: tuple[dict[str, bytes], list[dict[str, Any]]]) -> tuple[dict[str, bytes], Any]:
    """Leave out the shards' own bytes, which have the inputs' places in them, but keep the pictures' digests."""
    return {name: b"" for name in found[0]}, [{**row, "size": None, "shard_sha256": None} for row in found[1]]


@contextmanager
def namespaces(work: Path) -> Iterator[None]:
    """Make two network namespaces that reach each other and this one over a bridge."""
    with ExitStack() as stack:
        def run(line: str) -> None:
            subprocess.run(line.split(), check=True)

        run("ip link add srbr type bridge")
        stack.callback(subprocess.run, ["ip", "link", "del", "srbr"], check=False)
        run(f"ip addr add {ADDRESSES['root']}/24 dev srbr")
        run("ip link set srbr up")
        for node in "ab":
            run(f"ip netns add sr{node}")
            stack.callback(subprocess.run, f"ip netns del sr{node}".split(), check=False)
            stack.callback(kill_node, node)
            run(f"ip link add sr{node}0 type veth peer name sr{node}1")
            run(f"ip link set sr{node}0 master srbr up")
            run(f"ip link set sr{node}1 netns sr{node}")
            run(f"ip netns exec sr{node} ip addr add {ADDRESSES[node]}/24 dev sr{node}1")
            run(f"ip netns exec sr{node} ip link set sr{node}1 up")
            run(f"ip netns exec sr{node} ip link set lo up")
            (work / f"tmp-{node}").mkdir(exist_ok=True)
        yield


def inside(node: str, work: Path, words: list[str], core: int) -> list[str]:
    """Return a command that runs in a node: its network, a /tmp of its own, and one core."""
    line = f"mount --bind {work}/tmp-{node} /tmp && exec taskset -c {core} {' '.join(words)}"  # noqa: S108
    return ["ip", "netns", "exec", f"sr{node}", "unshare", "-m", "sh", "-c", line]


def start_node(node: str, work: Path) -> None:
    """Start Ray in a node; `a` has the head."""
    ray = str(Path(sys.executable).parent / "ray")
    own = ["--head", f"--port={PORT}", "--include-dashboard=false"] if node == "a" else [
        f"--address={ADDRESSES['a']}:{PORT}"]
    words = [ray, "start", *own, f"--node-ip-address={ADDRESSES[node]}", "--num-cpus=1",
             "--object-store-memory=500000000", "--disable-usage-stats"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(inside(node, work, words, "ab".index(node)), env=environment, capture_output=True, text=True,
                          check=False)
    print(f"node {node}: {'started' if done.returncode == 0 else done.stdout[-800:] + done.stderr[-800:]}", flush=True)


def kill_node(node: str) -> None:
    """Kill all processes of a node."""
    found = subprocess.run(["ip", "netns", "pids", f"sr{node}"], capture_output=True, text=True, check=False)
    for process in found.stdout.split():
        subprocess.run(["kill", "-9", process], check=False)


def on_nodes(work: Path, output: str, options: list[str], workers: int, arguments: argparse.Namespace) -> list[str]:
    """Return the command of a run on the nodes, whose own process is in node a."""
    words = [*RUN, "s3://faces/in/", "--recursive", "--output", output, "--format", "webdataset", "--rows",
             str(arguments.rows), "--ray", f"{ADDRESSES['a']}:{PORT}", "--workers", str(workers), *options]
    return inside("a", work, words, 0)


def nodes(work: Path, arguments: argparse.Namespace) -> bool:
    """Upscale on two nodes without a shared disc through a store that fails, and kill one of them."""
    folder, options, inputs = prepare(work, arguments)
    with namespaces(work), store(ADDRESSES["root"], 0.05, 0.01) as endpoint:
        upload(folder, "s3://faces/in")
        timed([*RUN, "s3://faces/in/", "--recursive", "--output", "s3://faces/whole", "--format", "webdataset",
               "--rows", str(arguments.rows), *options], work / "whole.log")
        start_node("a", work)
        start_node("b", work)
        before, started = counts(endpoint), time.monotonic()
        with open(work / "out.log", "w") as log, subprocess.Popen(
                on_nodes(work, "s3://faces/out", options, 2, arguments), stderr=log) as process:
            killed = False
            while process.poll() is None:
                done = sum(found.name.endswith(".jsonl") for found in files_in("s3://faces/out", "part-"))
                if not killed and done >= inputs // arguments.rows // 4:
                    kill_node("b")
                    killed = True
                    print(f"killed node b after {done} parts, {time.monotonic() - started:.0f} s", flush=True)
                time.sleep(0.5)
        print(f"code {process.returncode}, {time.monotonic() - started:.0f} s")
        print((work / "out.log").read_text()[-1500:])
        print(dict(counts(endpoint) - before))
        found = fingerprint("s3://faces/out")
        return (compare(fingerprint("s3://faces/whole"), found, inputs, "nodes") and killed
                and named_once(work / "out.log", found[1]))


class Watcher(threading.Thread):
    """Looks every second how much memory Ray's actors have."""

    def __init__(self) -> None:
        """Start to look."""
        super().__init__(daemon=True)
        self.most, self.ended = 0.0, threading.Event()
        self.start()

    def run(self) -> None:
        """Look until it is stopped."""
        while not self.ended.wait(1.0):
            for process in psutil.process_iter():
                with suppress(psutil.Error):
                    if "MapWorker" in " ".join(process.cmdline()):
                        self.most = max(self.most, process.memory_info().rss / 2**20)

    def stop(self) -> int:
        """Stop, and return the megabytes of the largest actor."""
        self.ended.set()
        self.join()
        return round(self.most)


def rates(place: str) -> str:
    """Return images per second of decoding over the parts of a run: the lowest, the median and the highest."""
    found = []
    for name, _, _ in files_in(place, "part-"):
        if name.endswith(".jsonl"):
            rows = [json.loads(line) for line in read_place(f"{place}/{name}", 1 << 30).splitlines()]
            seconds = [row["seconds"] for row in rows if row["seconds"]]
            found.append(len(seconds) / sum(seconds))
    return f"{min(found):.2f} to {max(found):.2f}, median {statistics.median(found):.2f}, over {len(found)} parts"


def speed(work: Path, arguments: argparse.Namespace) -> bool:
    """Time runs on one node and on two, in turns."""
    folder, options, _ = prepare(work, arguments)
    with namespaces(work), store(ADDRESSES["root"]) as endpoint:
        upload(folder, "s3://faces/in")
        start_node("a", work)
        start_node("b", work)
        for turn in range(arguments.rounds):
            before, taken = counts(endpoint), []
            for workers in (1, 2):
                place = f"s3://faces/{turn}-{workers}"
                watcher = Watcher()
                taken.append(timed(on_nodes(work, place, options, workers, arguments), work / "out.log"))
                print(f"{workers} nodes: {dict(counts(endpoint) - before)}; actors had {watcher.stop()} MB at most; "
                      f"images per second of a core: {rates(place)}")
                before = counts(endpoint)
            print(f"two nodes over one: {taken[0] / taken[1]:.2f}", flush=True)
    return True


def overhead(work: Path, arguments: argparse.Namespace) -> bool:
    """Time runs from disc to disc and from bucket to bucket, in turns."""
    folder, options, _ = prepare(work, arguments)
    with store() as endpoint:
        upload(folder, "s3://faces/in")
        for layout in ("webdataset", "png"):
            for turn in range(arguments.rounds):
                more = ["--recursive", "--format", layout, *options]
                rows = ["--rows", str(arguments.rows)]
                own = ["--keep-tree"] if layout == "png" else rows
                here = timed([*RUN, str(folder), "--output", str(work / f"{layout}{turn}"), *more, *own],
                             work / "a.log")
                before = counts(endpoint)
                there = timed([*RUN, "s3://faces/in/", "--output", f"s3://faces/{layout}{turn}", *more, *rows],
                              work / "b.log")
                print(f"{layout}: the store takes {100 * (there / here - 1):.1f} % more; "
                      f"{dict(counts(endpoint) - before)}", flush=True)
    return True


PLAN = """
import resource, sys
from superres.batch.inputs import LOCAL
from superres.batch.options import BatchOptions
from superres.batch.parts import Plan
plan = Plan(BatchOptions(sys.argv[1], "webdataset"), [], sys.argv[2], frozenset({LOCAL, ("s3", "faces")}))
for part in plan.parts():
    last = part.entries[-1].input
print(plan.part_count, plan.count, last, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def memory(work: Path, arguments: argparse.Namespace) -> bool:
    """Plan a run of a made-up list, and summarise and merge as many made-up rows; print the most memory of each."""
    good, peaks = True, []
    for faces in (arguments.faces // 100, arguments.faces):
        out, listed = work / f"out-{faces}", work / "list"
        with open(listed, "w") as file:
            file.writelines(f"s3://faces/{number % 997:03d}/{number:09d}.png\n" for number in range(faces))
        started = time.monotonic()
        done = subprocess.run([sys.executable, "-c", PLAN, str(out), str(listed)], capture_output=True, text=True,
                              check=False)
        listed.unlink()
        print(f"plan of {faces} inputs: {done.stdout.strip() or done.stderr[-500:]} MB at most, "
              f"{time.monotonic() - started:.0f} s", flush=True)
        peaks.append(int(done.stdout.split()[-1]))
        row = ('{{"input": "s3://faces/{0}.png", "output": "s3://out/{0}.png", "status": "ok", "tokens": 1000, '
               '"iterations": 1031}}\n')
        for part in range(faces // 1000):
            lines = "".join(row.format(1000 * part + number) for number in range(1000))
            out.mkdir(exist_ok=True)
            (out / f"part-{part:06d}.jsonl").write_text(lines)
        for words in (["summary", f"{out}"], ["merge", f"{out}", "--output", f"{work}/merged"],
                      ["summary", f"{work}/merged"]):
            peaks.append(peak([sys.executable, "-m", "superres", "manifest", *words]))
        shutil.rmtree(out)
    half = len(peaks) // 2
    good &= all(large <= max(600, 1.2 * small) for small, large in zip(peaks[:half], peaks[half:], strict=True))
    return good


def peak(words: list[str]) -> int:
    """Run a command and return the MB that it used at most."""
    started = time.monotonic()
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        told = process.stdout.read() if process.stdout else ""
        _, _, usage = os.wait4(process.pid, 0)
    megabytes = usage.ru_maxrss // 1024
    print(f"{' '.join(words[3:6])}: {megabytes} MB at most, {time.monotonic() - started:.0f} s; {told.strip()[:100]}",
          flush=True)
    return megabytes


COMMANDS = {"faults": faults, "nodes": nodes, "speed": speed, "overhead": overhead, "memory": memory}


def main() -> None:
    """Run one of the checks in a temporary folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--faces", type=int, default=5000)
    parser.add_argument("--checkpoint", default="tiny")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--work", type=Path, default=Path("/var/tmp"),  # noqa: S108 -- /tmp is the nodes' own
                        help="parent of the temporary folder")
    parser.add_argument("--rows", type=int, default=100, help="inputs per part")
    arguments = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (8192, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    work = Path(tempfile.mkdtemp(prefix="superres-bucket-", dir=arguments.work))
    try:
        good = COMMANDS[arguments.command](work, arguments)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print("passed" if good else "FAILED")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
