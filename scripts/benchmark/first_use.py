"""What the first uses of superres take: commands and the page, in processes of their own."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil

from measurements import ROOT, Values

FACE = ROOT / "scripts" / "faces" / "face-1.png"
"""What the processes draw."""
WATCHER = """
import json, resource, subprocess, sys, time

started = time.perf_counter()
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
seconds, used = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps({"seconds": seconds, "cpu": used.ru_utime + used.ru_stime,
                  "memory": 1024 * used.ru_maxrss}))
"""
"""A process that measures another, which begins with the memory of the one that starts it."""


@contextmanager
def busy_cores() -> Iterator[None]:
    """Keep half of the cores busy with other processes."""
    with ExitStack() as stack:
        for _ in range(max(1, (os.cpu_count() or 1) // 2)):
            process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            stack.enter_context(process)
            stack.callback(process.kill)
        yield


def upscale(cache: Path, picture: Path, *options: str) -> Values:
    """Run `superres upscale` with a cache of its own; return what `command` does, and the steps."""
    with tempfile.TemporaryDirectory() as output:
        found = command(cache, "upscale", picture, "--output", output, *options)
        record = json.loads((Path(output) / "manifest.jsonl").read_text().splitlines()[0])
    return {**found, "steps": record["iterations"], "tokens": record["tokens"]}


def command(cache: Path, *words: str | Path) -> Values:
    """Run superres with a cache of its own; return its seconds from the start of its process, those
    of the processor, and the bytes of its memory."""
    done = subprocess.run([sys.executable, "-c", WATCHER, sys.executable, "-m", "superres", *words],
                          check=True, cwd=ROOT, stdout=subprocess.PIPE, env=with_cache(cache))
    found: Values = json.loads(done.stdout)
    return found


def page(cache: Path) -> Values:
    """Start the web demo; return what `command` does, until its first answer."""
    started, port = time.perf_counter(), free_port()
    with subprocess.Popen([sys.executable, "-m", "superres", "app", "--port", str(port)], cwd=ROOT,
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                          env=with_cache(cache)) as process:
        try:
            while True:
                with suppress(OSError):
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60).read()
                    break
                time.sleep(0.01)
            seconds, server = time.perf_counter() - started, psutil.Process(process.pid)
            used = server.cpu_times()
            return {"seconds": seconds, "cpu": used.user + used.system,
                    "memory": server.memory_info().rss}
        finally:
            process.terminate()


def with_cache(cache: Path) -> dict[str, str]:
    """Return the environment of a process of this checkout with a cache of its own."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(cache)}


def free_port() -> int:
    """Return the number of a port that nothing listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def first_use() -> Values:
    """Return what the first uses take: without a cache, with the library only (as in a wheel), and
    with all of it.

    The others are decodes of the astronaut, the default once more beside a busy process, each with
    a library only.
    """
    from PIL import Image
    from skimage.data import astronaut  # slow to import

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        photo, numbers = path / "astronaut.png", iter(range(99))
        Image.fromarray(astronaut()).save(photo)
        found = {"compiled": upscale(path / "first", FACE), "again": upscale(path / "first", FACE)}

        def with_library() -> Path:
            cache = path / str(next(numbers))
            for file in (path / "first").rglob("*.so"):
                target = cache / file.relative_to(path / "first")
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, target)
            return cache

        found["wheel"] = upscale(with_library(), FACE)
        found["small"] = upscale(path / "first", FACE, "--size", "32")
        found["help"] = command(path / "first", "--help")
        found["page"] = page(path / "first")
        ways = {"default": (), "exact": ("--block-size", "10"),
                "epsilon 2": ("--accept", "distance", "--epsilon", "2")}
        found |= {f"astronaut, {way}": upscale(with_library(), photo, *options)
                  for way, options in ways.items()}
        with busy_cores():
            found["astronaut, busy"] = upscale(with_library(), photo)
    return found
