"""Compare blockwise sampling at several epsilons with sequential sampling with the same noise.

The contact sheet shows how much each epsilon changes a picture.

    python scripts/evaluate_sampling.py --data dev.npz --limit 64 --output sampling
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from superres import SuperresError, load
from superres.batch.image_files import encode_png
from superres.config import DecodeConfig, parse_temperature
from superres.evaluation.pictures import contact_sheet
from superres.evaluation.sampling import coupled_sampling_markdown, evaluate_coupled_sampling
from superres.system.idle import training_paused
from superres.system.output import prepare_folder, write_results
from superres.tasks.face_data import read_faces
from superres.tasks.pictures import Picture


@training_paused()
def main(
    data: Annotated[Path, typer.Option(help="Prepared .npz, folder of images or CelebA root.")],
    output: Annotated[Path, typer.Option(help="Folder for sampling.json, sampling.md and sampling.png.")],
    limit: Annotated[int | None, typer.Option(help="Use the first N images only.")] = None,
    temperature: Annotated[str, typer.Option(help="A number, or three comma-separated ones, one per colour.")] = "0.9",
    batch_size: Annotated[int, typer.Option(help="Images per batch.")] = 16,
    seed: Annotated[int, typer.Option(help="Seed of the sampling noise.")] = 0,
    checkpoint: Annotated[str, typer.Option(help="Checkpoint name, folder or hub id.")] = "celeba-8to32",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Write the scores as JSON and Markdown, and a contact sheet of the first images."""
    sampling = DecodeConfig(temperature=parse_temperature(temperature), seed=seed)
    prepare_folder(output)
    upscaler = load(checkpoint, device)
    pairs = read_faces(data, upscaler.face_task, "valid", limit)
    report, pictures = evaluate_coupled_sampling(pairs, upscaler, sampling, batch_size)
    markdown = coupled_sampling_markdown(report)
    sheet = encode_png(Picture(contact_sheet(pictures)), {"checkpoint": report["checkpoint"]})
    write_results(output, {"sampling.json": report, "sampling.md": markdown, "sampling.png": sheet})
    print(markdown)


if __name__ == "__main__":
    try:
        typer.run(main)
    except SuperresError as error:
        sys.exit(f"evaluate_sampling: {error}")
