"""Compare proposers: train every variant of the heads on one frozen base, then decode with every proposer.

The folder OUTPUT then has results.json, results.md and survival.png (S_i, the share of iterations that accept at least
i tokens), and a run folder per variant. The same command resumes a comparison that was killed.

    python scripts/train/compare_heads.py --data train.npz --dev dev.npz --start runs/base/checkpoint --minutes 10 \
        --output runs/proposals
"""

from __future__ import annotations

import dataclasses
import itertools
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from superres.checkpoint import load_checkpoint, load_weights, save_checkpoint
from superres.config import DecodeConfig, require
from superres.decoding.proposers import PROPOSERS
from superres.decoding.trace import survival_curve
from superres.errors import SuperresError
from superres.evaluation.pictures import agreement, decode_interleaved
from superres.nn.model import EncoderDecoder
from superres.pipeline.auto import face_task
from superres.pipeline.upscaler import Upscaler
from superres.system.output import figure_png, markdown_table, number_text, prepare_folder, write_results
from superres.tasks.face_data import FacePairs, read_faces
from superres.training.recipes import train_stage
from superres.training.stage import Stage

Row = dict[str, Any]

VARIANTS: dict[str, dict[str, Any]] = {
    "per-head": {"head_layer": "per-head"},
    "tokens": {"head_layer": "per-head", "head_target": "tokens"},
    "one-random-head": {"head_layer": "per-head", "head_loss": "random-head"},
    "dense": {"head_layer": "dense"},
    "sequential": {"head_layer": "sequential"},
    "sequential-narrow": {"head_layer": "sequential", "hidden": "width"},
    "sequential-wide": {"head_layer": "sequential", "hidden": "filter_size"},
}
"""Settings of each variant that differ from the defaults: all heads, on a subset of positions, learning from p1.
`hidden` names the setting of the network whose value is the size of a head's hidden layer."""

CRITERIA = {"exact": DecodeConfig(), "epsilon 2": DecodeConfig(accept="distance", epsilon=2)}


def bare_base(start: Path, folder: Path, hidden: str = "head_filter_size") -> Path:
    """Write the checkpoint `start` without its heads, the common start of all variants, and return its folder."""
    trained = load_checkpoint(start)
    size = getattr(trained.config, hidden)
    base = EncoderDecoder(dataclasses.replace(
        trained.config, prediction_heads=1, one_head_layer=False, head_layer="per-head", head_filter_size=size))
    weights = {name: weight for name, weight in trained.state_dict().items() if not name.startswith("heads.")}
    load_weights(base, weights, str(start))
    save_checkpoint(base, folder)
    return folder


def train_variant(
    name: str, start: Path, data: Path, folder: Path, heads: int, minutes: float, batch_size: int,
) -> Path:
    """Train a variant on the frozen base, or resume its training, and return the folder of its checkpoint."""
    options = dict(VARIANTS[name])
    base = bare_base(start, folder / "base", options.pop("hidden", "head_filter_size"))
    stage = Stage(stage="heads", freeze_base=True, minutes=minutes, batch_size=batch_size, data=data, output=folder,
                  start=str(base), prediction_heads=heads, **options)
    train_stage(stage, lambda: False, lambda record: print(f"{name}: {record}", file=sys.stderr))
    return folder / "checkpoint"


def measure(name: str, folder: Path, pairs: FacePairs, heads: int, batch_size: int, device: str) -> list[Row]:
    """Decode with each proposer that uses heads, or without heads with each proposer that needs no resource.

    Returns:
        One row per proposer and criterion, without proposers of trees.
    """
    upscaler = Upscaler.load(folder, device)
    layer = upscaler.model.heads
    proposers = [name for name, kind in PROPOSERS.items()
                 if kind.uses_heads == (layer is not None) and kind.resource is None and not kind.proposes_tree]
    variants = {f"{proposer} {criterion}": dataclasses.replace(options, block_size=heads, proposer=proposer)
                for proposer in proposers for criterion, options in CRITERIA.items()}
    decoded = decode_interleaved(pairs.lr, upscaler, variants, batch_size)
    parameters = 0 if layer is None else sum(weight.numel() for weight in layer.parameters())
    rows = []
    for proposer, criterion in itertools.product(proposers, CRITERIA):
        result = decoded[f"{proposer} {criterion}"]
        scores = agreement(result.images, decoded[f"{proposer} exact"].images, pairs.hr)
        rows.append({
            "heads": name, "proposer": proposer, "accept": criterion, "head_parameters": parameters,
            **result.statistics(), "psnr_to_greedy": scores["psnr_to_greedy"],
            "survival": survival_curve(result.traces, heads),
        })
    return rows


def table(rows: list[Row]) -> str:
    """Return the rows as a Markdown table, with the survival at a few offsets."""
    shown = [i for i in (2, 3, 4, 6, 8, 10) if i <= len(rows[0]["survival"])]
    head = ["heads", "proposer", "accept", "mean accepted", "calls/image", "s/image", "head weights",
            "PSNR to greedy, dB", *(f"S{i}" for i in shown)]
    lines = [
        [row["heads"], row["proposer"], row["accept"], number_text(row["mean_accepted_block_size"], 3),
         number_text(row["model_calls_per_image"], 0), number_text(row["seconds_per_image"], 3),
         f"{row['head_parameters']:,}", number_text(row["psnr_to_greedy"], 1),
         *(number_text(row["survival"][i - 1], 3) for i in shown)]
        for row in rows
    ]
    return markdown_table(head, lines) + "\n"


def plot(rows: list[Row]) -> bytes:
    """Return a PNG of the survival curves with a panel per criterion; dots show proposals without heads."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 5), layout="constrained")
    panels = figure.subplots(1, len(CRITERIA), sharey=True)
    colours = {name: f"C{number}" for number, name in enumerate([*VARIANTS, *PROPOSERS])}
    for axes, criterion in zip(panels, CRITERIA, strict=True):
        for row in (row for row in rows if row["accept"] == criterion):
            free = not row["head_parameters"]
            label = row["proposer"] if free else f"{row['heads']}, {row['proposer']}"
            axes.plot(range(1, len(row["survival"]) + 1), row["survival"], label=label, marker=".", linewidth=1,
                      color=colours[row["proposer"] if free else row["heads"]], linestyle=":" if free else "-")
        axes.set(title=criterion, xlabel="i", ylim=(0, 1.02))
    panels[0].set_ylabel("S_i: share of iterations that accept at least i tokens")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", fontsize="small")
    return figure_png(figure)


def main(
    data: Annotated[Path, typer.Option(help="Faces to train on: .npz, folder of images or CelebA root.")],
    dev: Annotated[Path, typer.Option(help="Faces to decode.")],
    start: Annotated[Path, typer.Option(help="Checkpoint folder of a trained base; heads in it are dropped.")],
    minutes: Annotated[float, typer.Option(help="Training time of each variant.")],
    output: Annotated[Path, typer.Option(help="Folder for runs and results.")],
    limit: Annotated[int, typer.Option(help="Dev images to decode.")] = 64,
    heads: Annotated[int, typer.Option(min=2, help="Prediction heads, and block size of all proposers.")] = 10,
    train_batch: Annotated[int, typer.Option(help="Images per training step.")] = 4,
    batch_size: Annotated[int, typer.Option(help="Images per batch of decoding.")] = 16,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda, for decoding.")] = "auto",
    variants: Annotated[str, typer.Option(help="Comma-separated variants of the heads.")] = ",".join(VARIANTS),
) -> None:
    """Train variants of the heads, decode with all variants, and write the measurements."""
    names = variants.split(",")
    for name in names:
        require(name in VARIANTS, f"unknown variant {name!r}; known: {', '.join(VARIANTS)}")
    prepare_folder(output)
    pairs = read_faces(dev, face_task(start), "valid", limit)
    folders = {name: train_variant(name, start, data, output / name, heads, minutes, train_batch) for name in names}
    folders["none"] = bare_base(start, output / "base")
    rows = [row for name, folder in folders.items() for row in measure(name, folder, pairs, heads, batch_size, device)]
    report = {"images": len(pairs), "block_size": heads, "minutes": minutes, "start": start.name, "rows": rows}
    write_results(output, {"results.json": report, "results.md": table(rows), "survival.png": plot(rows)})
    print(table(rows), end="")


if __name__ == "__main__":
    try:
        typer.run(main)
    except SuperresError as error:
        sys.exit(f"compare_heads: {error}")
