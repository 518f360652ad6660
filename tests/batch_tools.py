"""Runs of a batch with decoding replaced by enlarging, and what they leave on the disk."""

from __future__ import annotations

import json
import os
import tempfile

import numpy as np
from fakes import FakeUpscaler
from PIL import Image

from superres.batch import run
from superres.batch.opening import open_inputs
from superres.batch.parts import Plan
from superres.batch.reading import read_requests
from superres.batch.run_options import BatchOptions
from superres.config import DecodeConfig


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
