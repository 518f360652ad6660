"""Check on real data that consistent pictures reduce to exactly their input, and measure what that
costs.

Every way of decoding runs with and without `consistent`: exact acceptance, epsilon 2, samples of a
seed and speculative samples.

    python scripts/check/consistency.py --data dev.npz --limit 200 --engine native
"""

from __future__ import annotations

import dataclasses
import sys
import time
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

sys.path.append(str(Path(__file__).resolve().parents[1]))

from measurements import (
    Checkpoint,
    Columns,
    Device,
    Document,
    Faces,
    Limit,
    Output,
    Row,
    Table,
    Values,
    columns_table,
    run,
    values,
)
from superres import DecodeConfig
from superres.config import require
from superres.decoding.trace import mean_accepted_block_size
from superres.evaluation.picture_scores import psnr
from superres.pipeline.upscaler import Upscaler
from superres.system.output import short_digest
from superres.tasks.face_data import FacePairs, read_faces
from superres.tasks.faces import area_reduce, image_key

WAYS = {
    "exact": DecodeConfig(), "epsilon 2": DecodeConfig(accept="distance", epsilon=2),
    "sampled": DecodeConfig(temperature=0.9), "speculative": DecodeConfig(temperature=0.9,
                                                                          sampling="speculative"),
}


def measure(upscaler: Upscaler, pairs: FacePairs, options: DecodeConfig, batch_size: int) -> Values:
    """Decode all pictures, and return how many reduce to their input, and the scores."""
    keys = [image_key(source, 1) for source in pairs.lr]
    batches = [slice(first, first + batch_size) for first in range(0, len(pairs), batch_size)]
    started = time.process_time()
    results = [upscaler.decode(pairs.lr[batch], options, keys=keys[batch])
               for batch in batches]
    seconds = time.process_time() - started
    images, traces = (np.concatenate([one.images for one in results]),
                      [row for one in results for row in one.traces])
    side = pairs.task.source
    # [N, side, side, 3]
    error = np.abs(area_reduce(images, side, side, is_reduced=True).astype(int) - pairs.lr)
    return {
        "consistent": options.consistent, "images": len(images),
        "equal_images": int((error == 0).all((1, 2, 3)).sum()),
        "equal_intensities": round(float((error == 0).mean()), 4),
        "largest_difference": int(error.max()), "psnr": round(float(psnr(images, pairs.hr).mean()),
                                                              3),
        "mean_accepted_block_size": round(mean_accepted_block_size(traces), 4),
        "cpu_milliseconds_per_iteration": round(1000 * seconds
                                                / sum(trace.iterations for trace in traces), 4),
    }


COLUMNS: Columns = {
    "decoding": ("way", 0), "PSNR, dB": ("psnr", 2), "equal pictures": ("equal_images", 0),
    "equal intensities": ("equal_intensities", 4), "largest difference": ("largest_difference", 0),
    "tokens per step": ("mean_accepted_block_size", 2),
    "CPU ms per iteration": ("cpu_milliseconds_per_iteration", 4),
}


def views(document: Document) -> dict[str, str]:
    """Return a line per way of decoding, without limits and with them."""
    return {"cost": columns_table(({"way": way, **found} for way,
                                   found in values(document).items()), COLUMNS)}


def main(
    data: Faces, output: Output = Path("consistency"), limit: Limit = None,
    batch_size: Annotated[int, typer.Option(help="Images per batch.")] = 32,
    checkpoint: Checkpoint = "celeba-8to32", device: Device = "auto",
    engine: Annotated[str, typer.Option(help="Engine of the decoding step.")] = "auto",
    ways: Annotated[str, typer.Option(help=f"Comma-separated: {', '.join(WAYS)}.")] = ",".join(
        WAYS), compare: Annotated[bool, typer.Option(help="Also decode without limits.")] = True,
) -> None:
    """Measure each way of decoding; exit 1 if any consistent picture does not reduce to its
    input."""
    upscaler = Upscaler.load(checkpoint, device, engine)
    pairs = read_faces(data, upscaler.face_task, "valid", limit)
    table = Table("consistency", output, {
        "checkpoint": f"{upscaler.name}@{upscaler.revision}", "code": upscaler.scoring.code,
        "images": len(pairs), "data": short_digest(pairs.lr.tobytes())}, upscaler.device)
    for way in ways.split(","):
        require(way in WAYS, f"unknown way {way!r}; known: {', '.join(WAYS)}")
        for consistent in (False, True)[not compare :]:
            options = dataclasses.replace(WAYS[way], consistent=consistent)
            table.measure([Row(f"{way}, consistent" if consistent else way,
                               partial(measure, upscaler, pairs, options, batch_size),
                               options.to_dict())])
    table.finish()
    raise typer.Exit(any(row["consistent"] and row["equal_images"] != len(pairs)
                         for row in values(table.document).values()))


if __name__ == "__main__":
    run(main)
