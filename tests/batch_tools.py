"""Runs of a batch with decoding replaced by enlarging, and what they leave on the disk."""

from __future__ import annotations

import json
import os

import numpy as np
from fakes import FakeUpscaler
from PIL import Image

from superres.batch.commit import GROUP
from superres.batch.plan import BatchOptions, plan
from superres.batch.upscaling import upscale_files
from superres.config import DecodeConfig


def write_image(path, value=0, size=(8, 8)):
    """Write a picture whose first value is `value`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.arange(size[0] * size[1] * 3, dtype=np.uint8).reshape(size[1], size[0], 3)
    pixels[0, 0, 0] = value
    Image.fromarray(pixels).save(path)
    return path


def upscale(inputs, output, upscaler=None, decode=None, group=GROUP, **options):
    """Upscale one input or several, and return the summary."""
    settings = BatchOptions(output, **options)
    found = plan(inputs if isinstance(inputs, list) else [inputs], settings)
    return upscale_files(found, upscaler or FakeUpscaler(), settings, decode or DecodeConfig(), group)


def rows_of(folder, name="manifest.jsonl"):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def outputs(folder):
    """Return the names of the files of the manifest's rows."""
    return [os.path.basename(row["output"]) for row in rows_of(folder)]


def contents(folder):
    """Return all files below a folder, the manifest without times and folders."""
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    rows = [{**row, "seconds": None, "output": os.path.relpath(row["output"], folder)} for row in rows_of(folder)]
    return {**files, "manifest.jsonl": rows}
