"""Compare blockwise sampling at several epsilons with sequential sampling with the same noise.

The contact sheet shows how much each epsilon changes a picture.

    python scripts/benchmark/sampling.py --data dev.npz --limit 64 --output sampling
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from superres import SuperresError, load
from superres.config import DecodeConfig, parse_temperature, require
from superres.evaluation import pictures as scores
from superres.evaluation.sampling import draw_samples
from superres.pipeline.upscaler import Upscaler
from superres.system.output import markdown_table, number_text, prepare_folder, write_results
from superres.tasks.face_data import FacePairs, read_faces
from superres.tasks.image_files import encode_png
from superres.tasks.pictures import Picture, Pixels
from superres.tasks.sheets import SHEET_ROWS, contact_sheet

EPSILONS = (0, 2, 4, 8)
"""Distances of acceptance in grey levels; 0 is exact."""


def evaluate_coupled_sampling(
    pairs: FacePairs, upscaler: Upscaler, sampling: DecodeConfig, batch_size: int = 16,
) -> tuple[dict[str, Any], dict[str, Pixels]]:
    """Compare blockwise sampling with acceptance by distance to sequential sampling with the same noise.

    The block size is the number of prediction heads. At epsilon 0 the samples equal those of sequential sampling, up to
    rounding in float32 kernels of another width.

    Returns:
        The report, serialisable as JSON, with one row per variant of sampling; and pictures of the first inputs for
        `superres.tasks.sheets.contact_sheet`.

    Raises:
        ConfigError: the temperature is 0, or a number is out of range.
    """
    require(batch_size >= 1, f"--batch-size must be at least 1, not {batch_size}")
    sequential = sampling.sequential()
    require(sequential.is_sampling, "--temperature 0 is greedy decoding; give one above 0, such as 0.9")
    block_size = upscaler.model_config.prediction_heads
    blocks = dataclasses.replace(sequential, block_size=block_size, accept="distance")
    variants = {"sequential": sequential,
                **{f"epsilon {epsilon}": dataclasses.replace(blocks, epsilon=epsilon) for epsilon in EPSILONS}}
    decoded = scores.decode_interleaved(pairs.lr, upscaler, variants, batch_size)
    reference = decoded["sequential"]
    rows = {
        variant: {
            **result.statistics(),
            "speed_up": reference.seconds_per_image / max(result.seconds_per_image, 1e-9),
            "equal_tokens": float(scores.equal_tokens(result.images, reference.images).mean()),
            "psnr_to_sequential": scores.pooled_psnr(result.images, reference.images),
            **scores.picture_scores(result.images, pairs),
        } for variant, result in decoded.items()}
    report = {
        "images": len(pairs), "checkpoint": f"{upscaler.name}@{upscaler.revision}", "device": str(upscaler.device),
        "batch_size": min(batch_size, len(pairs)), "block_size": block_size,
        "temperature": sampling.temperature, "seed": sampling.seed, "ways": rows,
    }
    shown = pairs.lr[:SHEET_ROWS]
    greedy = draw_samples(shown, upscaler, DecodeConfig(block_size=1), [1], batch_size)[:, 0]
    pictures = {"input": pairs.task.enlarge(shown, "nearest"), "greedy": greedy}
    # Epsilon 0 has the same samples as sequential sampling.
    pictures.update({name: result.images[:len(shown)] for name, result in decoded.items() if name != "epsilon 0"})
    return report, pictures


def coupled_sampling_markdown(report: dict[str, Any]) -> str:
    """Return the report of `evaluate_coupled_sampling` as a Markdown document."""
    columns = {
        "mean accepted block size": ("mean_accepted_block_size", 2), "model calls": ("model_calls_per_image", 1),
        "s/image": ("seconds_per_image", 3), "speed-up": ("speed_up", 2), "equal tokens": ("equal_tokens", 4),
        "PSNR to sequential, dB": ("psnr_to_sequential", 2), "PSNR, dB": ("psnr", 2), "SSIM": ("ssim", 3),
        "consistency": ("consistency_rmse", 2), "LR-PSNR, dB": ("lr_psnr", 2),
    }
    rows = [
        [variant, *(number_text(own[name], digits) for name, digits in columns.values())]
        for variant, own in report["ways"].items()
    ]
    heading = (f"Blockwise sampling with k = {report['block_size']}, and sequential sampling with the same noise: "
               f"temperature {report['temperature']}, seed {report['seed']}, "
               f"{report['images']} images, batches of {report['batch_size']}, {report['device']}, "
               f"{report['checkpoint']}.")
    return f"# Coupled sampling\n\n{heading}\n\n{markdown_table(['', *columns], rows)}\n"


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
        sys.exit(f"sampling: {error}")
