"""Check on real images that exact acceptance changes nothing: every token equals that of one-at-a-time decoding.

All runs share one step width and so run the same kernels (float32 results differ between shapes): greedy decoding and
sequential sampling accept one token a step, the blockwise runs a block.

    python scripts/check_exactness.py --data dev.npz --limit 32
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from tqdm import tqdm

from superres import DecodeConfig, SuperresError, load
from superres.batch_work import image_key
from superres.decoding.trace import mean_accepted_block_size
from superres.pipeline import Upscaled
from superres.tasks.faces import read_faces

BLOCK_SIZES = (2, 4, 6, 8, 10)


def main(
    data: Annotated[Path, typer.Option(help="Prepared .npz, folder of images or CelebA root.")],
    limit: Annotated[int, typer.Option(help="Images to check.")] = 32,
    batch_size: Annotated[int, typer.Option(help="Images decoded together.")] = 32,
    checkpoint: Annotated[str, typer.Option(help="Checkpoint name, folder or hub id.")] = "celeba-8to32",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Print a JSON line for each setting; exit 1 if any token differs."""
    sources = read_faces(data, "valid", limit).lr
    upscaler = load(checkpoint, device)
    width = upscaler.model_config.prediction_heads
    keys = [image_key(source, 1) for source in sources]

    def decode(options: DecodeConfig) -> Upscaled:
        starts = range(0, len(sources), batch_size)
        parts = [
            upscaler(sources[i : i + batch_size], options, keys=keys[i : i + batch_size], width=width) for i in starts
        ]
        images = np.concatenate([part.images for part in parts])
        return Upscaled(images, [trace for part in parts for trace in part.traces], sum(part.seconds for part in parts))

    different = 0
    for temperature in (0.0, 0.9):
        reference = decode(DecodeConfig(block_size=1, temperature=temperature))
        sizes = [k for k in BLOCK_SIZES if k <= width] if temperature == 0 else [width]
        for k in tqdm(sizes, disable=None):
            result = decode(DecodeConfig(block_size=k, temperature=temperature))
            unequal = int((result.images != reference.images).sum())
            different += unequal
            print(json.dumps({
                "temperature": temperature, "block_size": k, "width": width, "images": len(sources),
                "tokens": int(result.images.size), "different_tokens": unequal,
                "mean_accepted_block_size": round(mean_accepted_block_size(result.traces), 4),
                "seconds": round(result.seconds, 1), "seconds_one_at_a_time": round(reference.seconds, 1),
            }), flush=True)
    raise typer.Exit(1 if different else 0)


if __name__ == "__main__":
    try:
        typer.run(main)
    except SuperresError as error:
        sys.exit(f"check_exactness: {error}")
