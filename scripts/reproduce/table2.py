"""Reproduce Table 2 of Stern et al. (2018): mean accepted block size by block size, with quality and time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ladder import claims_parts, conditions, costs_parts, draw_curves, snapshots
from series import ACCEPTED, BLOCK_SIZES, EXACT, Cell, Claim, Series, Table, with_half
from superres.config import DecodeConfig
from superres.decoding.trace import survival_curve
from superres.evaluation.pictures import agreement, decode_interleaved, mean_bits_per_dim, picture_scores
from superres.pipeline.upscaler import Upscaler
from superres.system.output import figure_png, markdown_table, number_text, short_digest
from superres.tasks.face_data import FacePairs
from superres.tasks.pictures import Pixels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FIGURE_4 = (5.3, 4.0)
"""Mean accepted block size and wall-clock speed-up of the paper's fastest setting, k = 6 (section 7.3)."""
SCORED = 100
"""Number of images whose bits/dim are measured, the first; scoring an image takes longer than decoding it."""
CURVE_IMAGES = 64
"""Number of images that every snapshot decodes, the first."""
APPROXIMATE = DecodeConfig(accept="distance", epsilon=2)


def _paper(sizes: dict[int, float]) -> dict[int, dict[str, float]]:
    return {k: {ACCEPTED: size} for k, size in sizes.items()}


SERIES: dict[str, Series] = {
    "regular": Series("regular", EXACT, _paper({1: 1.00, 2: 1.07, 4: 1.08, 6: 1.09, 8: 1.09, 10: 1.10})),
    "approximate": Series("regular", APPROXIMATE, _paper({2: 1.24, 4: 1.36, 6: 1.38, 8: 1.49, 10: 1.40})),
    "fine-tuned": Series("fine-tuned", EXACT, _paper({2: 1.59, 4: 2.11, 6: 2.23, 8: 2.17, 10: 2.04})),
    "both": Series("fine-tuned", APPROXIMATE, _paper({2: 1.96, 4: 3.75, 6: 5.25, 8: 6.36, 10: 6.79})),
    "regular, sequential heads": Series("sequential-regular", EXACT),
    "approximate, sequential heads": Series("sequential-regular", APPROXIMATE),
    "fine-tuned, sequential heads": Series("sequential-fine-tuned", EXACT),
    "both, sequential heads": Series("sequential-fine-tuned", APPROXIMATE),
}
"""The paper's four columns with its heads, and the same with sequential heads that learn from p1.

The paper's figures are mean accepted block sizes (1,000,000 training steps, 250,000 for heads, a network per k)."""

CLAIMS = (
    Claim("on a frozen base, approximate acceptance accepts more than exact acceptance", "approximate", "regular", 10),
    Claim("with exact acceptance, fine-tuning accepts more than a frozen base", "fine-tuned", "regular", 10),
    Claim("fine-tuning with exact acceptance accepts more than a frozen base with approximate acceptance",
          "fine-tuned", "approximate", 10),
    Claim("both accept more than fine-tuning alone", "both", "fine-tuned", 10, 2),
    Claim("both accept more than approximate acceptance alone", "both", "approximate", 10, 2),
    Claim("with both, k = 10 accepts more than k = 6", "both", "both", 10, other_block_size=6),
)
"""What section 7.2 of the paper concludes from its table."""

CHECKPOINTS = tuple(dict.fromkeys(series.checkpoint for series in SERIES.values()))
"""Roles of the networks."""
COLOURS = {name: f"C{number}" for number, name in enumerate(SERIES)}
ROLE_COLOURS = {series.checkpoint: COLOURS[name] for name, series in SERIES.items() if series.decode == EXACT}


def measure(series: Series, pairs: FacePairs, upscaler: Upscaler, batch_size: int) -> list[dict[str, Any]]:
    """Decode with all block sizes of `series` in alternation, and return one cell per block size, serialisable as JSON.

    Speed-up and agreement are relative to greedy decoding with the same network in the same run. bits/dim is under the
    p1 of this network.
    """
    variants = series.variants(upscaler.model_config.prediction_heads)
    decoded = decode_interleaved(pairs.lr, upscaler, {str(k): variant for k, variant in variants.items()}, batch_size)
    scored = dict[bytes, float]()  # exact acceptance makes the same images with every block size

    def bits(images: Pixels) -> float:
        first = images[:SCORED]
        key = first.tobytes()
        if key not in scored:
            scored[key] = mean_bits_per_dim(pairs.lr[:SCORED], first, upscaler, batch_size)
        return scored[key]

    greedy = decoded["1"]
    return [{
        "block_size": k, "config": variants[k].to_dict(), **result.statistics(),
        "speed_up": greedy.seconds_per_image / max(result.seconds_per_image, 1e-9),
        **picture_scores(result.images, pairs), **agreement(result.images, greedy.images, pairs.hr),
        "bits_per_dim_truth": bits(pairs.hr), "bits_per_dim_decoded": bits(result.images),
        "survival": survival_curve(result.traces, k),
        "paper_mean_accepted_block_size": series.paper.get(k, {}).get(ACCEPTED),
    } for k, result in zip(variants, decoded.values(), strict=True)]


class Table2(Table):
    """Measurements of faces."""

    name = "table2"

    def __init__(self, folder: Path, pairs: FacePairs, batch_size: int, device: str) -> None:
        """See `Table`."""
        self.pairs, self.batch_size, self.device = pairs, batch_size, device
        digest = short_digest(pairs.hr.tobytes() + pairs.lr.tobytes())
        run = {"data": digest, "images": len(pairs), "batch_size": batch_size, "device": device}
        super().__init__(folder, run, list(SERIES), torch.device(device))

    def add(self, name: str, upscaler: Upscaler) -> None:
        """Measure the series `name` with its network; see `Table.measure`."""
        self.measure(name, upscaler, SERIES[name].variants(upscaler.model_config.prediction_heads),
                     lambda: measure(SERIES[name], self.pairs, upscaler, self.batch_size))

    def add_curve(self, role: str, ladder: Path) -> None:
        """Measure what the snapshots of the network `role` accept at its largest block size; see `Table`."""
        inputs = self.pairs.lr[:CURVE_IMAGES]

        def scores(folder: Path) -> Cell:
            upscaler = Upscaler.load(folder, self.device)
            variants = {name: dataclasses.replace(options, block_size=upscaler.model_config.prediction_heads)
                        for name, options in (("exact", EXACT), ("approximate", APPROXIMATE))}
            decoded = decode_interleaved(inputs, upscaler, variants, self.batch_size)
            return {name: result.statistics()[ACCEPTED] for name, result in decoded.items()}

        self.measure_curve(role, snapshots(ladder, role), scores)

    def views(self) -> dict[str, str | bytes]:
        """See `Table.views`."""
        return {"table2.md": table2_markdown(self.document),
                **{name: _png(draw, self.document) for name, draw in PLOTS.items()}}


COLUMNS = {
    "mean accepted block size": ("mean_accepted_block_size", 2), "model calls": ("model_calls_per_image", 1),
    "s/image": ("seconds_per_image", 3), "speed-up": ("speed_up", 2), "PSNR, dB": ("psnr", 2), "SSIM": ("ssim", 3),
    "consistency": ("consistency_rmse", 2), "LR-PSNR, dB": ("lr_psnr", 2), "PSNR to greedy, dB": ("psnr_to_greedy", 2),
    "equal tokens": ("equal_tokens", 4), "bits/dim, truth": ("bits_per_dim_truth", 3),
    "bits/dim, decoded": ("bits_per_dim_decoded", 3),
}
"""Entry of a cell and number of decimals, by heading of the detailed table."""


def table2_markdown(document: dict[str, Any]) -> str:
    """Return Table 2 as Markdown, with the paper's figures below ours, and a table of all scores."""
    series, run = document["series"], document["run"]
    accepted: list[list[str]] = []
    details: list[list[str]] = []
    for name, entry in series.items():
        cells = {cell["block_size"]: cell for cell in entry["cells"]}
        accepted.append([f"**{name}**", *(with_half(cells.get(k, {}), ACCEPTED, 2) for k in BLOCK_SIZES)])
        if paper := SERIES[name].paper:
            accepted.append([f"{name}, paper", *(number_text(paper.get(k, {}).get(ACCEPTED), 2) for k in BLOCK_SIZES)])
        for k, cell in cells.items():
            details.append([name, str(k), *(number_text(cell[key], digits) for key, digits in COLUMNS.values())])
    networks = {SERIES[name].checkpoint: f"{entry['checkpoint']}@{entry['revision']}" for name, entry in series.items()}
    missing = [f"{name} (rung {SERIES[name].checkpoint})" for name in SERIES if name not in series]
    parts = [
        "# Table 2: mean accepted block size",
        f"{run['images']} images (data {run['data']}), batches of {run['batch_size']}, {run['device']}. "
        f"Networks: {', '.join(f'{role} {network}' for role, network in networks.items())}. {conditions(document)}",
        *([f"Missing: {', '.join(missing)}."] if missing else []),
        markdown_table(["k", *map(str, BLOCK_SIZES)], accepted),
        f"The paper's figures: {document['paper']}, Table 2; CelebA development set, one network per k. "
        "Our figures: one base; from it, each network was trained for as many steps on the same data, and serves all "
        "k with its first k prediction heads. The paper's heads, one dense layer, learn the true tokens, one random "
        "head of p1..pk per minibatch (p2..pk on the frozen base). Sequential heads learn the distributions of p1, all "
        "at once, beside p1's own loss. The networks differ in nothing else. "
        "After +- is half the width of a 95 % interval over images.",
        *claims_parts(CLAIMS, SERIES, series, document["differences"]),
        *costs_parts(document),
        "## Quality and cost",
        markdown_table(["series", "k", *COLUMNS], details),
        "PSNR and SSIM compare with the true image. Consistency is the RMSE to the input after reduction, in grey "
        "levels. Greedy decoding, for PSNR and speed-up, is the same network at k = 1 in the same run. bits/dim is "
        f"under the p1 of this network, on the first {min(SCORED, run['images'])} images.",
    ]
    return "\n\n".join(parts) + "\n"


def _draw_survival(figure: Figure, document: dict[str, Any]) -> None:
    axes = figure.subplots()
    for name, entry in document["series"].items():
        cell = entry["cells"][-1]
        places = range(1, cell["block_size"] + 1)
        axes.plot(places, cell["survival"], marker="o", label=f"{name}, k = {cell['block_size']}", color=COLOURS[name])
    axes.set(xlabel="i", ylabel="share of iterations that accept at least i tokens", ylim=(0, 1.05))
    axes.grid(alpha=0.3)
    axes.legend()


def _draw_quality(figure: Figure, document: dict[str, Any]) -> None:
    panels = {"psnr": "PSNR to the truth, dB", "ssim": "SSIM", "psnr_to_greedy": "PSNR to its own greedy output, dB",
              "bits_per_dim_decoded": "bits/dim of the decoded image"}
    grid = figure.subplots(2, 2)
    for axes, (key, title) in zip(grid.flat, panels.items(), strict=True):
        _draw_cells(axes, document["series"], key, title)
    figure.legend(*grid.flat[0].get_legend_handles_labels(), loc="outside upper center", ncols=4)


def _draw_figure_4(figure: Figure, document: dict[str, Any]) -> None:
    by_accepted, by_size = figure.subplots(1, 2, sharey=True)
    series = {name: entry for name, entry in document["series"].items()}
    _draw_cells(by_accepted, series, "speed_up", "wall-clock speed-up over greedy")
    by_accepted.plot(*FIGURE_4, marker="*", markersize=12, color="black", linestyle="none", label="paper, both, k = 6")
    for name, entry in series.items():
        x, y = ([cell[key] for cell in entry["cells"]] for key in ("block_size", "speed_up"))
        by_size.plot(x, y, marker="o", color=COLOURS[name])
    by_size.plot(6, FIGURE_4[1], marker="*", markersize=12, color="black", linestyle="none")
    by_size.set(xlabel="block size k", xticks=BLOCK_SIZES)
    by_size.grid(alpha=0.3)
    figure.legend(*by_accepted.get_legend_handles_labels(), loc="outside lower center", ncols=3)


def _draw_curves(figure: Figure, document: dict[str, Any]) -> None:
    panels = figure.subplots(1, 2)
    for axes, name in zip(panels, ("exact", "approximate"), strict=True):
        draw_curves(axes, document["curves"], name, ROLE_COLOURS)
        axes.set(title=f"{name}, k = 10" if name == "exact" else "approximate (epsilon 2), k = 10", ylim=(0, None))
    if panels[0].lines:
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)


def _draw_cells(axes: Axes, series: dict[str, Any], key: str, title: str) -> None:
    """Plot the entry `key` of all cells against mean accepted block size; cells without a value are omitted."""
    for name, entry in series.items():
        known = [cell for cell in entry["cells"] if cell[key] is not None]
        x, y = ([cell[column] for cell in known] for column in ("mean_accepted_block_size", key))
        axes.plot(x, y, marker="o", label=name, color=COLOURS[name])
    axes.set(xlabel="mean accepted block size", ylabel=title)
    axes.grid(alpha=0.3)


PLOTS: dict[str, Callable[[Figure, dict[str, Any]], None]] = {
    "survival.png": _draw_survival, "quality.png": _draw_quality, "figure4.png": _draw_figure_4,
    "curves.png": _draw_curves,
}
"""Functions that draw the plots, by file name; `figure4.png` is Figure 4 of the paper."""


def _png(draw: Callable[[Figure, dict[str, Any]], None], document: dict[str, Any]) -> bytes:
    from matplotlib.figure import Figure  # an optional dependency, slow to import

    figure = Figure(figsize=(9, 6), layout="constrained")
    draw(figure, document)
    return figure_png(figure)
