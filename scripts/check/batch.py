"""Stress batch upscaling: thousands of faces with broken files, unusual names and loops; kills, Ray, full disks.

    python scripts/check/batch.py kills  --faces 20000 --kills 20 --checkpoint tiny
    python scripts/check/batch.py ray    --faces 20000 --checkpoint tiny
    python scripts/check/batch.py kills  --faces 1000 --checkpoint celeba-8to64 --start 10
    python scripts/check/batch.py disc                     # as root: mounts a small tmpfs
    python scripts/check/batch.py memory --faces 100000    # decoding replaced by enlarging

The script creates the checkpoint "tiny", a random network. For a cascade, every tenth face has the size of the last
stage's input. Every command exits with 1 if a check fails.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from PIL import Image

from superres.config import ModelConfig
from superres.tasks.faces import FaceTask

RUN = [sys.executable, "-c", "from superres.cli.main import main; main()", "upscale"]
TESTS = str(Path(__file__).resolve().parents[2] / "tests")
TASK = FaceTask.of(ModelConfig())
BROKEN = ("empty", "text", "cut", "garbage", "header", "small", "huge", "link", "circle", "float")


def make_faces(folder: Path, count: int, task: FaceTask = TASK, broken: float = 0.01, seed: int = 0) -> int:
    """Write inputs of the stages in a tree, with ten kinds of broken files, and return the number of inputs."""
    draw, sides = np.random.default_rng(seed), (task.source, *task.between)
    for number in range(count):
        place = folder / f"{number % 97:02d}" / f"ordner ä {number % 7}"
        if number % 1000 == 500:
            place = place.joinpath(*["tief"] * 40)
        place.mkdir(parents=True, exist_ok=True)
        if number == 7:
            (place / "device.png").symlink_to("/dev/zero")  # infinite; not an input
        name = f"{number:07d}"
        if number % 500 == 1:
            name = name + "ü" * 119 + "x"  # 246 bytes, 250 with the suffix
        elif number % 500 == 2:
            name += "日本語 'quoted' \\"
        shape = (side := sides[-1] if number % 10 == 3 else task.source), side, 3
        pixels = draw.integers(0, 256, shape, np.uint8) if number % 50 else np.full(shape, 90, np.uint8)
        path = place / f"{name}.png"
        if draw.random() < broken:
            break_face(path, BROKEN[number % len(BROKEN)], pixels)
        else:
            Image.fromarray(pixels).save(path)
    (folder / "loop").symlink_to(folder, target_is_directory=True)
    (folder / "00" / "up").symlink_to("..", target_is_directory=True)
    return sum(1 for _ in inputs_below(folder))


def inputs_below(folder: Path) -> Iterator[str]:
    """Yield every file below a folder with the name of a picture, found independently of superres."""
    for parent, _, names in os.walk(folder):
        for name in names:
            if name.endswith(".png") and name != "device.png":
                yield os.path.join(parent, name)


def break_face(path: Path, kind: str, pixels: np.ndarray) -> None:
    """Write a file of a kind in `BROKEN`, which cannot be upscaled."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    good = buffer.getvalue()
    content = {
        "empty": b"", "text": b"not a picture\n", "cut": good[: len(good) // 2], "garbage": os.urandom(200),
        "header": good[:8] + bytes(30), "huge": b"P6 30000 30000 255\n" + bytes(9),
    }
    if kind in content:
        path.write_bytes(content[kind])
    elif kind == "small":
        Image.new("RGB", (3, 3)).save(path)
    elif kind == "float":
        Image.fromarray(np.zeros(pixels.shape[:2], np.float32)).save(path, "TIFF")
    elif kind == "link":
        path.symlink_to(path.parent / "nowhere.png")
    else:
        path.symlink_to(path.name)  # points to itself


def make_checkpoint(folder: Path) -> str:
    """Write a random network with 256 heads, which decodes in few steps, and return its folder."""
    import torch

    from superres.checkpoint import save_checkpoint
    from superres.nn.model import EncoderDecoder

    torch.manual_seed(0)
    config = ModelConfig(width=32, filter_size=32, attention_heads=2, encoder_layers=0, decoder_layers=1, norm="pre",
                         attention_block_length=16, prediction_heads=256, head_filter_size=32, cross_attention=False,
                         aligned_conditioning=False, numeric_neighbourhood=False, ordinal_output=False)
    save_checkpoint(EncoderDecoder(config), folder)
    return str(folder)


def command(folder: Path, output: Path, checkpoint: str, *more: str) -> list[str]:
    """Return the command of a run; "tiny" accepts all proposals, so that it decodes in 12 iterations."""
    accept = ["--accept", "distance", "--epsilon", "255"] if Path(checkpoint).name == "tiny" else []
    return [*RUN, str(folder), "--recursive", "--keep-tree", "--output", str(output), "--checkpoint", checkpoint,
            *accept, *more]


def fingerprint(output: Path) -> dict[str, Any]:
    """Return the digests of all outputs, and the rows of the manifest without times and folders."""
    files = {}
    for path in output.rglob("*"):
        if path.is_file() and not path.name.startswith("manifest"):
            files[str(path.relative_to(output))] = hashlib.sha256(path.read_bytes()).hexdigest()
    rows = [json.loads(line) for line in (output / "manifest.jsonl").read_text().splitlines()]
    for row in rows:
        row["seconds"], row["output"] = None, row["output"].removeprefix(f"{output}/")
    return {"files": files, "rows": rows}


def compare(wanted: dict[str, Any], found: dict[str, Any], inputs: int, what: str) -> bool:
    """Print and return whether two runs have the same result, with one row per input."""
    same = wanted["files"] == found["files"]
    rows = wanted["rows"] == found["rows"]
    once = len({row["input"] for row in found["rows"]}) == len(found["rows"]) == inputs
    counts = dict(Counter(row["status"] for row in found["rows"]))
    print(f"{what}: outputs identical {same} ({len(found['files'])}), manifest identical {rows}, "
          f"one row per input {once} ({inputs}), {counts}", flush=True)
    if not rows:
        differing = [pair for pair in zip(wanted["rows"], found["rows"], strict=False) if pair[0] != pair[1]][:3]
        print(f"  {len(wanted['rows'])} and {len(found['rows'])} rows; first differing: {differing}")
    return same and rows and once


def count_rows(manifest: Path) -> int:
    """Return the number of rows of a manifest, 0 if there is none yet."""
    return manifest.read_bytes().count(b"\n") if manifest.exists() else 0


def watch(words: list[str], seconds: float | None = None, quiet: bool = True) -> tuple[int | None, list[float]]:
    """Run a command, kill it after `seconds` if given, and return its exit code and its memory over time."""
    with subprocess.Popen(words, stderr=subprocess.DEVNULL if quiet else None) as process:
        memory, started = [], time.monotonic()
        while process.poll() is None:
            if seconds is not None and time.monotonic() - started > seconds:
                process.send_signal(signal.SIGKILL)
                process.wait()
                return None, memory
            with suppress(psutil.Error):
                memory.append(psutil.Process(process.pid).memory_info().rss / 2**20)
            time.sleep(0.1)
    return process.returncode, memory


def describe_memory(memory: list[float]) -> str:
    """Return the memory after a quarter of the run, at its end, and at its peak, as text."""
    quarter, last = memory[len(memory) // 4], max(memory[-10:])
    return f"{quarter:.0f} MB after a quarter of the run, {last:.0f} MB at its end, {max(memory):.0f} MB at its peak"


def undisturbed(work: Path, arguments: argparse.Namespace) -> tuple[int, str, dict[str, Any], float]:
    """Make the faces and upscale them once without interruption."""
    from superres.pipeline.auto import face_task

    checkpoint = make_checkpoint(work / "tiny") if arguments.checkpoint == "tiny" else arguments.checkpoint
    inputs = make_faces(work / "faces", arguments.faces, face_task(checkpoint))
    started = time.monotonic()
    code, memory = watch(command(work / "faces", work / "whole", checkpoint))
    seconds = time.monotonic() - started
    print(f"undisturbed: code {code}, {inputs} inputs in {seconds:.0f} s, {describe_memory(memory)}", flush=True)
    return inputs, checkpoint, fingerprint(work / "whole"), seconds


def kills(work: Path, arguments: argparse.Namespace) -> bool:
    """Kill and resume a run at random moments, and compare its result with the undisturbed run."""
    inputs, checkpoint, wanted, seconds = undisturbed(work, arguments)
    draw, done = random.Random(arguments.seed), 0
    words = command(work / "faces", work / "out", checkpoint)
    piece = seconds / arguments.kills
    while done < arguments.kills:
        code, _ = watch(words, draw.uniform(0.3, 1.2 * piece + arguments.start))
        if code is not None:
            print(f"the run ended with code {code} after {done} kills; starting again", flush=True)
            shutil.rmtree(work / "out")
            continue
        done += 1
        print(f"kill {done}: {count_rows(work / 'out' / 'manifest.jsonl')} rows", flush=True)
    code, memory = watch(words, quiet=False)
    print(f"the last run: code {code}, {describe_memory(memory)}")
    return compare(wanted, fingerprint(work / "out"), inputs, f"{done} kills")


def ray(work: Path, arguments: argparse.Namespace) -> bool:
    """Upscale with two Ray actors, one of which is killed."""
    inputs, checkpoint, wanted, _ = undisturbed(work, arguments)
    words = command(work / "faces", work / "out", checkpoint, "--ray", "local", "--workers", "2")
    with subprocess.Popen(words) as process:
        killed = None
        while process.poll() is None:
            manifest = work / "out" / "manifest.jsonl"
            if killed is None and count_rows(manifest) > inputs // 20:
                killed = kill_actor(process.pid)
                print(f"killed actor {killed}", flush=True)
            time.sleep(0.2)
    print(f"code {process.returncode}")
    return compare(wanted, fingerprint(work / "out"), inputs, "ray") and killed is not None


def kill_actor(parent: int) -> int | None:
    """Kill an actor among the descendants of a process, and return its process id."""
    for process in psutil.Process(parent).children(recursive=True):
        with suppress(psutil.Error):
            if "MapWorker" in " ".join(process.cmdline()):
                process.kill()
                return process.pid
    return None


def disc(work: Path, arguments: argparse.Namespace) -> bool:
    """Fill a small disk during a run, enlarge the disk and resume; this needs root for mounting."""
    inputs, checkpoint, wanted, _ = undisturbed(work, arguments)
    small = work / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(small)], check=True)
    good = True
    try:
        words = command(work / "faces", small / "out", checkpoint)
        full = subprocess.run(words, capture_output=True, text=True, check=False)
        lines = [line for line in full.stderr.splitlines() if "No space left on device" in line]
        print(f"full disk: code {full.returncode}, lines {lines}", flush=True)
        good &= len(lines) == full.returncode == 1
        subprocess.run(["mount", "-o", "remount,size=500m", str(small)], check=True)
        watch(words)
        good &= compare(wanted, fingerprint(small / "out"), inputs, "after a full disk")
    finally:
        subprocess.run(["umount", "-l", str(small)], check=False)
    return good


MEMORY_RUN = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from batch_tools import upscale
print(upscale(Path(sys.argv[2]), Path(sys.argv[3]), recursive=True, keep_tree=True).line(), flush=True)
"""


def memory(work: Path, arguments: argparse.Namespace) -> bool:
    """Upscale many faces with decoding replaced by enlarging, and check that memory stays constant."""
    inputs = make_faces(work / "faces", arguments.faces)
    words, good = [sys.executable, "-c", MEMORY_RUN, TESTS, str(work / "faces"), str(work / "out")], True
    for what in ("new outputs", "finished outputs"):
        started = time.monotonic()
        code, held = watch(words)
        print(f"{what}: code {code}, {inputs} inputs in {time.monotonic() - started:.0f} s, {describe_memory(held)}",
              flush=True)
        good &= code == 0 and max(held[-10:]) < 1.2 * held[len(held) // 4] + 20
    return good


COMMANDS = {"kills": kills, "ray": ray, "disc": disc, "memory": memory}


def main() -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--faces", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--checkpoint", default="tiny")
    parser.add_argument("--start", type=float, default=5.0, help="seconds until a run starts decoding")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, help="parent of the temporary folder")
    arguments = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="superres-batch-", dir=arguments.work))
    try:
        good = COMMANDS[arguments.command](work, arguments)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print("passed" if good else "FAILED")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
