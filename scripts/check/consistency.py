"""Check on real data that consistent pictures reduce to exactly their input, and measure what that costs.

Every way of decoding runs with and without `consistent`: exact acceptance, epsilon 2, samples of a seed and speculative
samples.

    python scripts/check/consistency.py --data dev.npz --limit 200 --engine native
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from superres import DecodeConfig, SuperresError
from superres.decoding.trace import mean_accepted_block_size
from superres.evaluation.pictures import psnr
from superres.pipeline.upscaler import Upscaler
from superres.tasks.face_data import FacePairs, read_faces
from superres.tasks.faces import area_reduce, image_key

WAYS = {
    "exact": DecodeConfig(), "epsilon 2": DecodeConfig(accept="distance", epsilon=2),
    "sampled": DecodeConfig(temperature=0.9), "speculative": DecodeConfig(temperature=0.9, sampling="speculative"),
}


def measure(upscaler: Upscaler, pairs: FacePairs, options: DecodeConfig, batch_size: int) -> dict[str, object]:
    """Decode all pictures, and return how many reduce to their input, and the scores."""
    keys = [image_key(source, 1) for source in pairs.lr]
    batches = [slice(first, first + batch_size) for first in range(0, len(pairs), batch_size)]
    started = time.process_time()
    results = [upscaler(pairs.lr[batch], options, keys=keys[batch]) for batch in batches]
    seconds = time.process_time() - started
    images, traces = np.concatenate([one.images for one in results]), [row for one in results for row in one.traces]
    side = pairs.task.source
    error = np.abs(area_reduce(images, side, side, is_reduced=True).astype(int) - pairs.lr)  # [N, side, side, 3]
    return {
        "consistent": options.consistent, "images": len(images), "equal_images": int((error == 0).all((1, 2, 3)).sum()),
        "equal_intensities": round(float((error == 0).mean()), 4), "largest_difference": int(error.max()),
        "psnr": round(float(psnr(images, pairs.hr).mean()), 3),
        "mean_accepted_block_size": round(mean_accepted_block_size(traces), 4),
        "cpu_milliseconds_per_iteration": round(1000 * seconds / sum(trace.iterations for trace in traces), 4),
    }


def main(
    data: Annotated[Path, typer.Option(help="Faces: .npz, folder of images or CelebA root.")],
    limit: Annotated[int | None, typer.Option(help="Images to check. [default: all]", show_default=False)] = None,
    batch_size: Annotated[int, typer.Option(help="Images per batch.")] = 32,
    checkpoint: Annotated[str, typer.Option(help="Checkpoint name, folder or hub id.")] = "celeba-8to32",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    engine: Annotated[str, typer.Option(help="Engine of the decoding step.")] = "auto",
    ways: Annotated[str, typer.Option(help=f"Comma-separated: {', '.join(WAYS)}.")] = ",".join(WAYS),
    compare: Annotated[bool, typer.Option(help="Also decode without limits.")] = True,
) -> None:
    """Print a JSON line per way of decoding; exit 1 if any consistent picture does not reduce to its input."""
    upscaler, failed = Upscaler.load(checkpoint, device, engine), False
    pairs = read_faces(data, upscaler.face_task, "valid", limit)
    for way in ways.split(","):
        if way not in WAYS:
            raise typer.BadParameter(f"unknown way {way!r}; known: {', '.join(WAYS)}")
        for consistent in (False, True)[not compare :]:
            record = measure(upscaler, pairs, dataclasses.replace(WAYS[way], consistent=consistent), batch_size)
            print(json.dumps({"way": way, **record}), flush=True)
            failed |= consistent and record["equal_images"] != len(pairs)
    raise typer.Exit(failed)


if __name__ == "__main__":
    try:
        typer.run(main)
    except SuperresError as error:
        sys.exit(f"consistency: {error}")
