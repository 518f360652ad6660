"""Compare proposers: train every variant of the heads on one frozen base, then decode with every proposer.

The folder OUTPUT then has compare_heads.json, compare_heads.md, survival.png (S_i, the share of iterations that accept
at least i tokens), and a run folder per variant. The same command resumes a comparison that was killed.

    python scripts/train/compare_heads.py --data train.npz --dev dev.npz --start runs/base/checkpoint --minutes 10 \
        --output runs/proposals
"""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

sys.path.append(str(Path(__file__).resolve().parents[1]))

from measurements import (
    Columns,
    Device,
    Document,
    Faces,
    Line,
    Panel,
    Row,
    Table,
    Values,
    columns_table,
    draw,
    run,
)
from measurements import values as values_of
from superres.checkpoint import load_checkpoint, load_weights, save_checkpoint, weights_digest
from superres.config import DecodeConfig, require
from superres.decoding.proposers import PROPOSERS
from superres.decoding.trace import survival_curve
from superres.evaluation.images import decode_interleaved
from superres.evaluation.picture_scores import agreement
from superres.nn.model import EncoderDecoder
from superres.pipeline.auto import face_task
from superres.pipeline.upscaler import Upscaler
from superres.tasks.face_data import FacePairs, read_faces
from superres.training.recipes import train_stage
from superres.training.stage import Stage

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


def measure(folder: Path, pairs: FacePairs, heads: int, batch_size: int, device: str) -> Values:
    """Decode with each proposer that uses heads, or without heads with each proposer that needs no resource.

    Returns:
        `cells`, one per proposer and criterion, without proposers of trees.
    """
    upscaler = Upscaler.load(folder, device)
    layer = upscaler.model.heads
    proposers = [name for name, kind in PROPOSERS.items()
                 if kind.uses_heads == (layer is not None) and kind.resource is None and not kind.proposes_tree]
    variants = {f"{proposer} {criterion}": dataclasses.replace(options, block_size=heads, proposer=proposer)
                for proposer in proposers for criterion, options in CRITERIA.items()}
    decoded = decode_interleaved(pairs.lr, upscaler, variants, batch_size)
    parameters = 0 if layer is None else sum(weight.numel() for weight in layer.parameters())
    cells = []
    for proposer, criterion in itertools.product(proposers, CRITERIA):
        result = decoded[f"{proposer} {criterion}"]
        scores = agreement(result.images, decoded[f"{proposer} exact"].images, pairs.hr)
        cells.append({
            "proposer": proposer, "accept": criterion, "head_parameters": parameters,
            **result.statistics(), "psnr_to_greedy": scores["psnr_to_greedy"],
            "survival": survival_curve(result.traces, heads),
        })
    return {"cells": cells}


def cells_of(document: Document) -> list[Values]:
    """Return the cells of all variants."""
    return [{"heads": name, **cell} for name, found in values_of(document).items() for cell in found["cells"]]


def survival(number: int) -> Any:  # noqa: ANN401 -- a function of a cell
    """Return the function that gives the share of iterations that accept at least `number` tokens."""
    return lambda cell: cell["survival"][number - 1] if number <= len(cell["survival"]) else None


COLUMNS: Columns = {
    "heads": ("heads", 0), "proposer": ("proposer", 0), "accept": ("accept", 0),
    "mean accepted": ("mean_accepted_block_size", 3), "calls/image": ("model_calls_per_image", 0),
    "s/image": ("seconds_per_image", 3), "head weights": (lambda cell: f"{cell['head_parameters']:,}", 0),
    "PSNR to greedy, dB": ("psnr_to_greedy", 1), **{f"S{i}": (survival(i), 3) for i in (2, 3, 4, 6, 8, 10)}}


def views(document: Document) -> dict[str, str]:
    """Return a line per variant of the heads, proposer and criterion."""
    return {"heads": columns_table(cells_of(document), COLUMNS)}


def plots(document: Document) -> dict[str, bytes]:
    """Return a plot of the survival curves with a panel per criterion; dots show proposals without heads."""
    colours = {name: f"C{number}" for number, name in enumerate([*VARIANTS, *PROPOSERS])}

    def lines(criterion: str) -> Iterator[Line]:
        for cell in (cell for cell in cells_of(document) if cell["accept"] == criterion):
            free = not cell["head_parameters"]
            label = cell["proposer"] if free else f"{cell['heads']}, {cell['proposer']}"
            yield Line([*enumerate(cell["survival"], 1)], label, colours[cell["proposer"] if free else cell["heads"]],
                       ".:" if free else ".-")

    settings = {"xlabel": "i", "ylabel": "S_i: share of iterations that accept at least i tokens", "ylim": (0, 1.02)}
    panels = [Panel([*lines(criterion)], {"title": criterion, **settings}) for criterion in CRITERIA]
    return {"survival.png": draw(panels, len(panels), (12, 5))}


def main(
    data: Annotated[Path, typer.Option(help="Faces to train on: .npz, folder of images or CelebA root.")],
    dev: Faces,
    start: Annotated[Path, typer.Option(help="Checkpoint folder of a trained base; heads in it are dropped.")],
    minutes: Annotated[float, typer.Option(help="Training time of each variant.")],
    output: Annotated[Path, typer.Option(help="Folder for runs and results.")],
    limit: Annotated[int, typer.Option(help="Dev images to decode.")] = 64,
    heads: Annotated[int, typer.Option(min=2, help="Prediction heads, and block size of all proposers.")] = 10,
    train_batch: Annotated[int, typer.Option(help="Images per training step.")] = 4,
    batch_size: Annotated[int, typer.Option(help="Images per batch of decoding.")] = 16,
    device: Device = "auto",
    variants: Annotated[str, typer.Option(help="Comma-separated variants of the heads.")] = ",".join(VARIANTS),
) -> None:
    """Train variants of the heads, decode with all variants, and write the measurements."""
    names = variants.split(",")
    for name in names:
        require(name in VARIANTS, f"unknown variant {name!r}; known: {', '.join(VARIANTS)}")
    pairs = read_faces(dev, face_task(start), "valid", limit)
    table = Table("compare_heads", output, {"images": len(pairs), "block_size": heads, "minutes": minutes,
                                            "start": start.name, "weights": weights_digest(start)})

    def measured(name: str) -> Values:
        folder = bare_base(start, output / "base") if name == "none" else train_variant(
            name, start, data, output / name, heads, minutes, train_batch)
        return measure(folder, pairs, heads, batch_size, device)

    table.measure(Row(name, lambda name=name: measured(name), {"batch_size": train_batch}) for name in (*names, "none"))
    table.finish()


if __name__ == "__main__":
    run(main)
