"""Check on real data that exact acceptance gives the same tokens as decoding with one token per step.

All runs have the same step width, and so the same kernels, since float32 results differ between shapes. A compiled
engine gives the same bits at every width, so adaptive block sizes are checked with it, too. Greedy decoding and
sequential sampling accept one token per step, blockwise decoding accepts a block.

    python scripts/check/exactness.py --data dev.npz --limit 32 --engine native-int8
    python scripts/check/exactness.py --checkpoint multi30k-en-de --data test_2017_flickr
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from superres import DecodeConfig, SuperresError, load
from superres.decoding.proposers import PROPOSERS
from superres.decoding.trace import RowTrace, mean_accepted_block_size
from superres.pipeline.base import Pipeline
from superres.pipeline.translator import Translator
from superres.system.progress import track
from superres.tasks.face_data import read_faces
from superres.tasks.faces import image_key
from superres.tasks.translation import read_pairs

BLOCK_SIZES = (2, 4, 6, 8, 10, 16, 24)

Decode = Callable[[DecodeConfig], list[RowTrace]]


def decoder(pipeline: Pipeline, data: str, limit: int | None, batch_size: int, width: int) -> Decode:
    """Return a function that decodes the faces, or translates the source lines, of `data`."""
    if isinstance(pipeline, Translator):
        lines = read_pairs(data, pipeline.languages, limit).source
        return lambda options: [trace for line in pipeline(
            lines, options, batch_size=batch_size, width=None if options.adaptive else width).traces for trace in line]
    sources = read_faces(Path(data), pipeline.face_task, "valid", limit).lr
    keys = [image_key(source, 1) for source in sources]
    batches = [slice(first, first + batch_size) for first in range(0, len(sources), batch_size)]
    return lambda options: [trace for part in batches for trace in pipeline(
        sources[part], options, keys=keys[part], width=None if options.adaptive else width).traces]


def check(decode: Decode, reference: list[RowTrace], options: DecodeConfig) -> dict[str, object]:
    """Decode, and return a record with the number of rows that differ from `reference`."""
    traces = decode(options)
    different = sum(not np.array_equal(mine.sequence, theirs.sequence)
                    for mine, theirs in zip(traces, reference, strict=True))
    return {
        "proposer": options.proposer, "temperature": options.temperature,
        "block_size": "adaptive" if options.adaptive else options.block_size,
        "rows": len(traces), "tokens": sum(trace.tokens for trace in traces), "different_rows": different,
        "mean_accepted_block_size": round(mean_accepted_block_size(traces), 4),
    }


def plans(pipeline: Pipeline, proposers: list[str]) -> list[DecodeConfig]:
    """Return the settings to check: every block size for prediction heads, one block size for other proposers."""
    largest = pipeline.model_config.prediction_heads
    sizes = {"heads": [k for k in BLOCK_SIZES if k <= largest]}
    found = [DecodeConfig(k, proposer=name) for name in proposers for k in sizes.get(name, [min(largest, 6)])]
    if pipeline.engine.startswith("native") and "heads" in proposers:
        found.append(DecodeConfig(adaptive=True))
    return found


def main(
    data: Annotated[str, typer.Option(help="Faces: .npz, folder of images or CelebA root; or parallel text.")],
    limit: Annotated[int | None, typer.Option(help="Rows to check. [default: all]", show_default=False)] = None,
    batch_size: Annotated[int, typer.Option(help="Rows per batch.")] = 32,
    checkpoint: Annotated[str, typer.Option(help="Checkpoint name, folder or hub id.")] = "celeba-8to32",
    proposers: Annotated[str, typer.Option(help="Comma-separated names.")] = "heads",
    temperature: Annotated[float, typer.Option(help="Temperature of sampling.")] = 0.9,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    engine: Annotated[str, typer.Option(help="Engine of the decoding step.")] = "auto",
    consistent: Annotated[bool, typer.Option("--consistent", help="Limit faces to their input.")] = False,
) -> None:
    """Check greedy decoding and sampling, and print a JSON line per setting; exit 1 if any token differs."""
    pipeline = type(load(checkpoint, device)).load(checkpoint, device, engine)
    names = proposers.split(",")
    for name in names:
        if name not in PROPOSERS or PROPOSERS[name].proposes_tree:
            raise typer.BadParameter(f"{name!r} is not a proposer whose steps can have a fixed width")
    width = max(pipeline.model_config.prediction_heads, 6)
    if consistent and isinstance(pipeline, Translator):
        raise typer.BadParameter("--consistent is for faces, not for text; leave it out")
    decode = decoder(pipeline, data, limit, batch_size, width)
    different = False
    for heat in (0.0, temperature):
        reference = decode(DecodeConfig(block_size=1, temperature=heat, consistent=consistent))
        for options in track(plans(pipeline, names), "comparing", "settings"):
            record = check(decode, reference, dataclasses.replace(options, temperature=heat, consistent=consistent))
            different |= record["different_rows"] != 0
            print(json.dumps(record), flush=True)
    raise typer.Exit(1 if different else 0)


if __name__ == "__main__":
    try:
        typer.run(main)
    except SuperresError as error:
        sys.exit(f"exactness: {error}")
