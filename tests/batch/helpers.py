"""Runs of a batch with decoding replaced by enlarging, what they read and leave, and kills of them
at a chosen call that touches files."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import signal
import sys
import tarfile
import tempfile
import threading
import zipfile

import numpy as np
from fakes import FakeUpscaler
from PIL import Image

from superres.batch import archives, containers, run
from superres.batch.opening import open_inputs
from superres.batch.parts import Plan
from superres.batch.reading import read_requests
from superres.batch.record import Request, RunSettings
from superres.batch.run_options import BatchOptions
from superres.config import DecodeConfig
from superres.pictures import untrusted
from superres.tasks.faces import FaceTask


def write_image(path, value=0, size=(8, 8)):
    """Write a picture whose first value is `value`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.arange(size[0] * size[1] * 3, dtype=np.uint8).reshape(size[1], size[0], 3)
    pixels[0, 0, 0] = value
    Image.fromarray(pixels).save(path)
    return path


def upscale(inputs, output, upscaler=None, decode=None, listed=None, cluster=None, **options):
    """Upscale one input or several, and return the summary."""
    settings = BatchOptions(str(output), **options)
    plan = Plan(settings, [str(one) for one in (inputs if isinstance(inputs, list) else [inputs])],
                listed)
    return run.upscale(plan, upscaler or FakeUpscaler(), decode or DecodeConfig(),
                       None if cluster is None else cluster.decode)


def plan(inputs, options, listed=(), **allowed):
    """Return the planned inputs of a run; `listed` are the lines of a list."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(listed))
        file.flush()
        made = Plan(options, [str(one) for one in inputs], file.name if listed else None, **allowed)
    return [entry for part in made.parts() for entry in part.entries]


def made_from(entries, settings):
    """Return the requests of inputs, and the failed outputs, without decoding them."""
    samples = list(range(1, settings.options.samples + 1))
    opened = ((turn, entry, samples, content) for turn,
              (entry, content) in enumerate(open_inputs(iter(entries))))
    return [one for _, made in read_requests(opened, settings, lambda line: None) for one in made]


def rows_of(folder, name="manifest.jsonl"):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def outputs(folder):
    """Return the names of the files of the manifest's rows."""
    return [os.path.basename(row["output"]) for row in rows_of(folder)]


def contents(folder):
    """Return all files below a folder, the manifest without times and folders."""
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*")
             if path.is_file()}
    rows = [{**row, "seconds": None, "output": os.path.relpath(row["output"], folder)}
            for row in rows_of(folder)]
    return {**files, "manifest.jsonl": rows}


def png(value):
    """Return a PNG file: of the picture's pixels, or of a size of 8x8 and one value."""
    pixels = np.full((8, 8, 3), value, np.uint8) if np.isscalar(value) else value
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def pack(path, members):
    """Pack files, or for .npz and .parquet pictures, as the suffix says, and return the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in members.items():
                archive.writestr(name, content)
    elif path.suffix == ".npz":
        np.savez(path, np.array([Image.open(io.BytesIO(content)) for content in members.values()]))
    elif path.suffix == ".parquet":
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.table({"image": list(members.values()), "key": list(members)}),
                            path)
    else:
        mode = {".gz": "w:gz", ".tgz": "w:gz", ".xz": "w:xz"}.get(path.suffix, "w")
        with tarfile.open(path, mode) as archive:
            for name, content in members.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return str(path)


def read(found, **options):
    """Read planned inputs; return each one's name, and the first value of its picture or what is
    wrong."""
    settings = RunSettings("toy@0123", DecodeConfig(), BatchOptions("out", **options),
                           FaceTask(8, 32))
    return [(item.entry.input, int(item.source[0, 0, 0])) if isinstance(item, Request)
            else (item.row.input, item.row.error) for item in made_from(found, settings)]


FILE_CALLS = {"open", "write", "writelines", "flush", "close", "fsync", "flock", "ftruncate",
              "truncate", "replace", "rename", "unlink", "mkdir", "rmdir", "scandir"}
"""Names of the built-in functions that touch files."""
CALLERS = ("/superres/", "/pathlib", "/shutil.py")
"""Parts of the paths of the modules whose calls count."""
FORK = multiprocessing.get_context("fork") if sys.platform != "win32" else multiprocessing


def die(*_):
    """Kill this process (SIGKILL)."""
    os.kill(os.getpid(), signal.SIGKILL)


CHANGES = {"writelines", "write", "fsync", "truncate", "replace", "rename", "unlink", "mkdir",
           "rmdir"}
"""Those that change what is on the disk."""


def die_at(moment, calls=FILE_CALLS):
    """Let this process kill itself just before one of `calls`: moment 1 is the first, over all
    threads that start.

    What a call has done is on the disk before the next one.
    """
    count = 0

    def hook(frame, event, function):
        nonlocal count
        if event == "c_call" and function.__name__ in calls and any(
                part in frame.f_code.co_filename for part in CALLERS):
            count += 1
            if count == moment:
                die()

    threading.setprofile(hook)
    sys.setprofile(hook)


def killed(call, moment=None, calls=FILE_CALLS):
    """Do a call in a forked process, which dies at `moment` if given, and return whether it was
    killed."""
    def child():
        # Files are read here: to start a process that reads them would take most of the time.
        untrusted.READER = lambda seconds, **values: untrusted.decode(**values)
        archives.READER = lambda seconds, **values: containers.read(**values)
        for limited in (untrusted, containers):
            limited.limit_memory = lambda *_: None
        containers.limit_time = lambda *_: None
        if moment is not None:
            die_at(moment, calls)
        call()

    process = FORK.Process(target=child)
    process.start()
    process.join(1800)
    if process.is_alive():
        process.terminate()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0
