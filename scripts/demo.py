"""Upscale a few freely licensed faces with the bundled checkpoint and print the speed: `make demo`.

The inputs are scikit-image's astronaut, reduced to 8x8, and 8x8 faces in `scripts/faces` that the model sampled.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from skimage import data

from superres import DecodeConfig, SuperresError, load
from superres.batch.image_files import encode_png
from superres.decoding.trace import mean_accepted_block_size
from superres.evaluation.pictures import contact_sheet, decode_interleaved
from superres.system.output import prepare_folder, write_result
from superres.tasks.faces import area_reduce, enlarge, to_source
from superres.tasks.pictures import Picture, read_image

ASTRONAUT_FACE = np.s_[20:190, 140:310]
"""Rows and columns of the face in scikit-image's astronaut, cropped similarly to the training faces."""

VARIANTS = {
    "greedy": DecodeConfig(block_size=1),
    "exact": DecodeConfig(),
    "epsilon 2": DecodeConfig(accept="distance", epsilon=2),
    "sample": DecodeConfig(temperature=0.7),
}


def read_inputs() -> dict[str, np.ndarray]:
    """Return the 8x8 inputs by name, each uint8 [8, 8, 3]."""
    folder = Path(__file__).parent / "faces"
    inputs = {path.stem: to_source(read_image(path), "lowres") for path in sorted(folder.glob("*.png"))}
    return {"astronaut": area_reduce(data.astronaut()[ASTRONAUT_FACE], 8, 8), **inputs}


def main(
    output: Annotated[Path, typer.Option(help="Folder for the pictures.")] = Path("demo"),
    checkpoint: Annotated[str, typer.Option(help="Checkpoint name, folder or hub id.")] = "celeba-8to32",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Upscale with four variants of decoding, one image at a time; write the pictures and print the speed."""
    prepare_folder(output)
    inputs = read_inputs()
    sources = np.stack(list(inputs.values()))
    upscaler = load(checkpoint, device)
    decoded = decode_interleaved(sources, upscaler, VARIANTS, batch_size=1)
    for variant in ("epsilon 2", "sample"):
        for name, image in zip(inputs, decoded[variant].images, strict=True):
            path = output / f"{name}-{variant.replace(' ', '-')}.png"
            write_result(path, encode_png(Picture(image), VARIANTS[variant].to_dict()))
    columns = {"input": enlarge(sources, "nearest"), "bicubic": enlarge(sources, "bicubic")}
    columns.update({variant: result.images for variant, result in decoded.items() if variant != "exact"})
    write_result(output / "sheet.png", encode_png(Picture(contact_sheet(columns)), {"checkpoint": upscaler.name}))

    print(f"{len(sources)} faces, one at a time, checkpoint {upscaler.name}@{upscaler.revision}, {upscaler.device}")
    print(f"{'':10}  s/image  mean accepted block size  speed-up over greedy")
    greedy = decoded["greedy"].seconds_per_image
    for variant, result in decoded.items():
        mean, seconds = mean_accepted_block_size(result.traces), result.seconds_per_image
        print(f"{variant:10}  {seconds:7.3f}  {mean:24.2f}  {greedy / seconds:20.2f}")
    print(f"Pictures: {output}/*.png; all side by side: {output / 'sheet.png'}")


if __name__ == "__main__":
    try:
        typer.run(main)
    except SuperresError as error:
        sys.exit(f"demo: {error}")
