"""What a run of training has gained: its losses and scores beside those of its start, and their
curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import torch

from superres.system.progress import Progress
from superres.training.data import Batches
from superres.training.losses import TeacherForcingLoss
from superres.training.stage import Stage

SCORES = ("bits_per_dim", "dev_images", "bits_per_token", "bleu", "dev_pairs")
"""Names of the scores on development data in the history."""
COMPARED = {"bits_per_dim": "bits/dim", "bits_per_token": "bits/token", "bleu": "BLEU"}
"""Scores that a finished run is compared with its start by. Of the first, a smaller one is
better."""
GAUGED = 2
"""Number of training batches on which the losses of the start and of the result are compared."""


def mean_losses(loss: TeacherForcingLoss, batches: Batches,
                device: torch.device) -> dict[str, float]:
    """Return the mean losses, by name, of the first GAUGED batches: the same batches and draws at
    every call."""
    loss.eval()
    with torch.inference_mode(), Progress("scoring"):
        found = [loss(batch.source, batch.target, step, batch.true_count, batch.padding,
                      batch.lengths)
                 for step in range(GAUGED) for batch in [batches.batch(step).to(device)]]
    names = {name for losses in found for name in losses}
    values = {name: [float(losses[name]) for losses in found if name in losses] for name in names}
    return {name: sum(own) / len(own) for name, own in values.items()}


def outcome(
    settings: Stage, step: int, history: Sequence[Mapping[str, float]],
    losses: Mapping[str, Sequence[float]],
) -> list[str]:
    """Return lines that compare a finished run with its start, and warn if it was too short or
    gained nothing.

    `history` is that of the run, and `losses` has the losses of the start and of the result by
    name.
    """
    scored = [record for record in history if any(name in record for name in SCORES)]
    figures = {label: (scored[0][name], scored[-1][name]) for name, label in COMPARED.items()
               if len(scored) > 1 and scored[0]["step"] == 0 and name in scored[0]
               and name in scored[-1]}
    trained = {"heads": "loss of the heads"} if settings.trains_heads else {"p1": "loss of p1"}
    figures |= {label: (losses[name][0], losses[name][-1])
                for name, label in trained.items() if name in losses}

    # what they say
    lines = ["start and result: "
             f"{', '.join(f'{label} {a:.4g} and {b:.4g}' for label, (a, b) in figures.items())}"]
    if step < settings.warmup_steps:
        lines.append(f"warning: {step} steps are fewer than the {settings.warmup_steps} of the "
                     "warm-up, so the learning rate never reached its peak; train longer, or give "
                     "a smaller --warmup-steps")
    first, last = next(iter(figures.values()), (1.0, 0.0)) if settings.trains_base else (
        figures.get("loss of the heads", (1.0, 0.0)))
    if last >= first:
        lines.append("warning: the result is no better than its start; keep the start, or train "
                     "longer")
    return lines if figures else lines[1:]


def plot_history(history: list[dict[str, float]], file: Path | BinaryIO,
                 unit: str = "images") -> None:
    """Plot the losses (nats per token) and development scores of a run against `unit` seen, as a
    PNG in `file`."""
    from matplotlib.figure import Figure  # a slow import that only training needs

    # no layout is computed: that takes longer than a step of a small network
    figure = Figure(figsize=(8, 4))
    axes = figure.subplots()
    for name in ("p1", "own", "heads", "bits_per_dim", "bits_per_token", "bleu"):
        points = [(record[unit], record[name]) for record in history if name in record]
        if not points:
            continue
        panel = axes
        if name == "bleu":  # it has an axis of its own
            panel = axes.twinx()
            panel.set_ylabel("BLEU on dev (black)")
        panel.plot(*zip(*points, strict=True), label=name, linewidth=1,
                   marker="o" if name in SCORES else None,
                   color="black" if name == "bleu" else None)
    axes.set_xlabel(f"{unit} seen")
    axes.set_ylabel("nats per token; bits on dev")
    if axes.lines:
        axes.legend()
    figure.savefig(file, dpi=100)
