"""Check long runs: kills, machines without a shared disc, memory, and what an object store costs.

    python scripts/check/runs.py kills    --faces 20000 --kills 20   # on a disc
    python scripts/check/runs.py nodes    --faces 5000   # as root: two Ray nodes and a failing
    store; one is killed python scripts/check/runs.py speed    --faces 700 --rows 25 --checkpoint
    celeba-8to64   # as root: one node, two python scripts/check/runs.py overhead --faces 300
    --checkpoint celeba-8to64   # through a store, and on a disc python scripts/check/runs.py memory
    --faces 10000000

The faces are in a tree, with unusual names, and one in a hundred is a broken file. The store is
moto's server behind `store_with_faults.py`. The nodes are network namespaces, each with a /tmp of
its own. With `--checkpoint tiny` a random network decodes. Every command exits with 1 if a check
fails.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from superres.batch.rows import latest_rows
from superres.config import ModelConfig
from superres.system.places import files_in, read_place, write_place
from superres.tasks.faces import FaceTask

RUN = [sys.executable, "-m", "superres", "upscale"]
HERE = Path(__file__).resolve().parent
BROKEN = ("empty", "text", "cut", "garbage", "header", "small", "huge", "float")
ADDRESSES = {"root": "10.77.0.254", "a": "10.77.0.1", "b": "10.77.0.2"}
PORT = 6399
KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true",
        "RAY_AUTH_MODE": "disabled"}



def make_faces(folder: Path, count: int, task: FaceTask, broken: float = 0.01) -> int:
    """Write inputs of the stages in a tree, with the kinds of files in BROKEN, and return the
    number of inputs."""
    draw, sides = np.random.default_rng(0), (task.source, *task.between)
    for number in range(count):
        place = folder / f"{number % 97:02d}" / f"ordner ä {number % 7}"
        if number % 1000 == 500:
            place = place.joinpath(*["tief"] * 40)
        place.mkdir(parents=True, exist_ok=True)
        name = f"{number:07d}"
        if number % 500 == 1:
            name = name + "ü" * 119 + "x"  # 246 bytes, 250 with the suffix
        elif number % 500 == 2:
            name += "日本語 'quoted' \\"
        shape = (side := sides[-1] if number % 10 == 3 else task.source), side, 3
        pixels = draw.integers(0, 256, shape, np.uint8) if number % 50 else np.full(shape, 90,
                                                                                    np.uint8)
        path = place / f"{name}.png"
        if draw.random() < broken:
            break_face(path, BROKEN[number % len(BROKEN)], pixels)
        else:
            Image.fromarray(pixels).save(path)
    return count


def break_face(path: Path, kind: str, pixels: np.ndarray) -> None:
    """Write a file of a kind in `BROKEN`, which cannot be upscaled."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    good = buffer.getvalue()
    content = {
        "empty": b"", "text": b"not a picture\n", "cut": good[: len(good) // 2],
        "garbage": os.urandom(200), "header": good[:8] + bytes(30), "huge": b"P6 30000 30000 255\n"
        + bytes(9),
    }
    if kind in content:
        path.write_bytes(content[kind])
    elif kind == "small":
        Image.new("RGB", (3, 3)).save(path)
    else:
        Image.fromarray(np.zeros(pixels.shape[:2], np.float32)).save(path, "TIFF")


def make_checkpoint(folder: Path) -> str:
    """Write a random network with 256 heads, which decodes in few steps, and return its folder."""
    import torch

    from superres.checkpoint import save_checkpoint
    from superres.nn.model import EncoderDecoder

    torch.manual_seed(0)
    config = ModelConfig(width=32, filter_size=32, attention_heads=2, encoder_layers=0,
                         decoder_layers=1, norm="pre", attention_block_length=16,
                         prediction_heads=256, head_filter_size=32, cross_attention=False,
                         aligned_conditioning=False, numeric_neighbourhood=False,
                         ordinal_output=False)
    save_checkpoint(EncoderDecoder(config), folder)
    return str(folder)


def prepare(work: Path, arguments: argparse.Namespace) -> tuple[Path, list[str], int]:
    """Make faces and return their folder, the options of decoding, and their number."""
    from superres.pipeline.auto import face_task  # torch, whose memory `memory` must not count

    folder, tiny = work / "in", arguments.checkpoint == "tiny"
    checkpoint = make_checkpoint(work / "tiny") if tiny else arguments.checkpoint
    inputs = make_faces(folder, arguments.faces, face_task(checkpoint))
    options = ["--recursive", "--checkpoint", checkpoint]
    if tiny:  # accepts all proposals, so that it decodes in 12 iterations; more threads are slower
        os.environ["OMP_NUM_THREADS"] = "1"
        options += ["--accept", "distance", "--epsilon", "255", "--engine", "plain"]
    return folder, options, inputs


@contextmanager
def store(host: str = "127.0.0.1", errors: float = 0.0, cuts: float = 0.0) -> Iterator[str]:
    """Serve a store and point the environment at it; yields its endpoint."""
    words = [sys.executable, str(HERE / "store_with_faults.py"), "--host", host, "--errors",
             str(errors), "--cuts", str(cuts)]
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


def upload(folder: Path, place: str) -> None:
    """Copy the files of a folder to a place, several at a time."""
    from concurrent.futures import ThreadPoolExecutor

    names = [str(path.relative_to(folder)) for path in folder.rglob("*.png")]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda name: write_place(f"{place}/{name}", (folder / name).read_bytes()),
                      names))


def fingerprint(place: str) -> tuple[dict[str, bytes], list[dict[str, Any]]]:
    """Return the files of a run, without its manifests, and the rows without times and places."""
    from concurrent.futures import ThreadPoolExecutor

    names = [name for name, _, _ in files_in(place, recursive=True) if not name.endswith(".jsonl")]
    with ThreadPoolExecutor(16) as pool:
        files = dict(zip(names, pool.map(lambda name: read_place(f"{place}/{name}", 1 << 30),
                                         names), strict=True))
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
    print(f"{what}: files identical {same} ({len(found[0])}), rows identical {rows}, one row per "
          f"input {once} ({inputs}), {dict(Counter(row['status'] for row in found[1]))}",
          flush=True)
    return same and rows and once


def timed(words: list[str], output: Path) -> float:
    """Run a command whose messages go to a file, and return its seconds."""
    started = time.monotonic()
    with open(output, "w") as file:
        code = subprocess.run(words, stderr=file, check=False).returncode
    seconds = time.monotonic() - started
    print(f"code {code}, {seconds:.1f} s: {output.read_text().strip().splitlines()[-1]}",
          flush=True)
    return seconds


def named_once(output: Path, rows: list[dict[str, Any]]) -> bool:
    """Return whether the messages of a run name each failed input once."""
    lines = output.read_text().splitlines()
    failed = [row["input"] for row in rows if row["status"] == "failed"]
    good = all(sum(f"/{name} " in line or f"/{name}:" in line for line in lines) == 1
               for name in failed)
    print(f"each of {len(failed)} failures named once: {good}")
    return good


def kills(work: Path, arguments: argparse.Namespace) -> bool:
    """Kill and continue a run at random moments, and compare its result with an undisturbed run."""
    folder, options, inputs = prepare(work, arguments)
    draw, done, log = random.Random(0), 0, work / "out.log"
    piece = timed([*RUN, str(folder), "--keep-tree", "--output", str(work / "whole"), *options],
                  log) / arguments.kills
    words = [*RUN, str(folder), "--keep-tree", "--output", str(work / "out"), *options]
    while done < arguments.kills:
        try:
            subprocess.run(words, stderr=subprocess.DEVNULL,
                           timeout=draw.uniform(0.3, 1.2 * piece + arguments.start), check=False)
        except subprocess.TimeoutExpired:  # it was killed
            done += 1
            continue
        print(f"the run ended after {done} kills; starting again", flush=True)
        shutil.rmtree(work / "out")
    timed(words, log)
    return compare(fingerprint(str(work / "whole")), fingerprint(str(work / "out")), inputs,
                   f"{done} kills")


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
    done = subprocess.run(inside(node, work, words, "ab".index(node)), env=environment,
                          capture_output=True, text=True, check=False)
    print(f"node {node}: "
          f"{'started' if done.returncode == 0 else done.stdout[-800:] + done.stderr[-800:]}",
          flush=True)


def kill_node(node: str) -> None:
    """Kill all processes of a node."""
    found = subprocess.run(["ip", "netns", "pids", f"sr{node}"], capture_output=True, text=True,
                           check=False)
    for process in found.stdout.split():
        subprocess.run(["kill", "-9", process], check=False)


def on_nodes(work: Path, output: str, options: list[str], workers: int,
             arguments: argparse.Namespace) -> list[str]:
    """Return the command of a run on the nodes, whose own process is in node a."""
    words = [*RUN, "s3://faces/in/", "--output", output, "--format", "webdataset", "--rows",
             str(arguments.rows), "--ray", f"{ADDRESSES['a']}:{PORT}", "--workers", str(workers),
             *options]
    return inside("a", work, words, 0)


def nodes(work: Path, arguments: argparse.Namespace) -> bool:
    """Upscale on two nodes without a shared disc through a store that fails, and kill one of
    them."""
    folder, options, inputs = prepare(work, arguments)
    with namespaces(work), store(ADDRESSES["root"], 0.05, 0.01) as endpoint:
        upload(folder, "s3://faces/in")
        timed([*RUN, "s3://faces/in/", "--output", "s3://faces/whole", "--format", "webdataset",
               "--rows", str(arguments.rows), *options], work / "whole.log")
        start_node("a", work)
        start_node("b", work)
        before, started = counts(endpoint), time.monotonic()
        with open(work / "out.log", "w") as log, subprocess.Popen(
                on_nodes(work, "s3://faces/out", options, 2, arguments), stderr=log) as process:
            killed = False
            while process.poll() is None:
                done = sum(found.name.endswith(".jsonl") for found in files_in("s3://faces/out",
                                                                               "part-"))
                if not killed and done >= inputs // arguments.rows // 4:
                    kill_node("b")
                    killed = True
                    print(f"killed node b after {done} parts, {time.monotonic() - started:.0f} s",
                          flush=True)
                time.sleep(0.5)
        print(f"code {process.returncode}, {time.monotonic() - started:.0f} s")
        print((work / "out.log").read_text()[-1500:])
        print(dict(counts(endpoint) - before))
        found = fingerprint("s3://faces/out")
        return (compare(fingerprint("s3://faces/whole"), found, inputs, "nodes") and killed
                and named_once(work / "out.log", found[1]))


def speed(work: Path, arguments: argparse.Namespace) -> bool:
    """Time runs on one node and on two, in turns."""
    folder, options, _ = prepare(work, arguments)
    with namespaces(work), store(ADDRESSES["root"]):
        upload(folder, "s3://faces/in")
        start_node("a", work)
        start_node("b", work)
        for turn in range(arguments.rounds):
            taken = [timed(on_nodes(work, f"s3://faces/{turn}-{workers}", options, workers,
                                    arguments),
                           work / "out.log") for workers in (1, 2)]
            print(f"two nodes over one: {taken[0] / taken[1]:.2f}", flush=True)
    return True


def overhead(work: Path, arguments: argparse.Namespace) -> bool:
    """Time runs from disc to disc and from bucket to bucket, in turns."""
    folder, options, _ = prepare(work, arguments)
    with store() as endpoint:
        upload(folder, "s3://faces/in")
        for layout in ("webdataset", "png"):
            for turn in range(arguments.rounds):
                more = ["--format", layout, *options]
                rows = ["--rows", str(arguments.rows)]
                own = ["--keep-tree"] if layout == "png" else rows
                here = timed([*RUN, str(folder), "--output", str(work / f"{layout}{turn}"), *more,
                              *own],
                             work / "a.log")
                before = counts(endpoint)
                there = timed([*RUN, "s3://faces/in/", "--output", f"s3://faces/{layout}{turn}",
                               *more, *rows],
                              work / "b.log")
                print(f"{layout}: the store takes {100 * (there / here - 1):.1f} % more; "
                      f"{dict(counts(endpoint) - before)}", flush=True)
    return True


PLAN = """
import resource, sys
from superres.batch.inputs import LOCAL
from superres.batch.run_options import BatchOptions
from superres.batch.parts import Plan
plan = Plan(BatchOptions(sys.argv[1], "webdataset"), [], sys.argv[2], frozenset({LOCAL, ("s3", "faces")}))
for part in plan.parts():
    last = part.entries[-1].input
print(plan.part_count, plan.count, last, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def memory(work: Path, arguments: argparse.Namespace) -> bool:
    """Plan a run of a made-up list, and summarise and merge as many made-up rows; print the most
    memory of each."""
    good, peaks = True, []
    for faces in (arguments.faces // 100, arguments.faces):
        out, listed = work / f"out-{faces}", work / "list"
        with open(listed, "w") as file:
            file.writelines(f"s3://faces/{number % 997:03d}/{number:09d}.png\n"
                            for number in range(faces))
        started = time.monotonic()
        done = subprocess.run([sys.executable, "-c", PLAN, str(out), str(listed)],
                              capture_output=True, text=True, check=False)
        listed.unlink()
        print(f"plan of {faces} inputs: {done.stdout.strip() or done.stderr[-500:]} MB at most, "
              f"{time.monotonic() - started:.0f} s", flush=True)
        peaks.append(int(done.stdout.split()[-1]))
        row = ('{{"input": "s3://faces/{0}.png", "output": "s3://out/{0}.png", "status": "ok", '
               '"tokens": 1000, "iterations": 1031}}\n')
        for part in range(faces // 1000):
            lines = "".join(row.format(1000 * part + number) for number in range(1000))
            out.mkdir(exist_ok=True)
            (out / f"part-{part:06d}.jsonl").write_text(lines)
        for words in (["summary", f"{out}"], ["merge", f"{out}", "--output", f"{work}/merged"],
                      ["summary", f"{work}/merged"]):
            peaks.append(peak([sys.executable, "-m", "superres", "manifest", *words]))
        shutil.rmtree(out)
    half = len(peaks) // 2
    good &= all(large <= max(600, 1.2 * small) for small,
                large in zip(peaks[:half], peaks[half:], strict=True))
    return good


def peak(words: list[str]) -> int:
    """Run a command and return the MB that it used at most."""
    started = time.monotonic()
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True) as process:
        told = process.stdout.read() if process.stdout else ""
        _, _, usage = os.wait4(process.pid, 0)
    megabytes = usage.ru_maxrss // 1024
    print(f"{' '.join(words[3:6])}: {megabytes} MB at most, {time.monotonic() - started:.0f} s; "
          f"{told.strip()[:100]}",
          flush=True)
    return megabytes


COMMANDS = {"kills": kills, "nodes": nodes, "speed": speed, "overhead": overhead, "memory": memory}


def main() -> None:
    """Run one of the checks in a temporary folder."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--faces", type=int, default=5000)
    parser.add_argument("--checkpoint", default="tiny")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--start", type=float, default=5.0, help="seconds until a run starts "
                        "decoding")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--work", type=Path, default=Path("/var/tmp"),  # noqa: S108 -- /tmp is the nodes' own
                        help="parent of the temporary folder")
    parser.add_argument("--rows", type=int, default=100, help="inputs per part")
    arguments = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE,
                       (8192, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    work = Path(tempfile.mkdtemp(prefix="superres-runs-", dir=arguments.work))
    try:
        good = COMMANDS[arguments.command](work, arguments)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print("passed" if good else "FAILED")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
