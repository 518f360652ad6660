"""Reproduce Table 2 of Stern et al. (2018): mean accepted block size by block size, with quality
and time."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path

from ladder import (
    ACCEPTED,
    BLOCK_SIZES,
    EXACT,
    Cell,
    Claim,
    Series,
    cells_of,
    common_views,
    curve_rows,
    curves_plot,
    measured,
    series_row,
    training_row,
)
from measurements import Columns, Document, Line, Panel, Row, Values, cell_text, draw
from superres.config import DecodeConfig
from superres.decoding.trace import survival_curve
from superres.evaluation.images import decode_interleaved, mean_bits_per_dim
from superres.evaluation.picture_scores import agreement, picture_scores
from superres.pictures.read import Pixels
from superres.pipeline.upscaler import Upscaler
from superres.system.output import markdown_table, short_digest
from superres.tasks.face_data import FacePairs

FIGURE_4 = (5.3, 4.0)
"""Mean accepted block size and wall-clock speed-up of the paper's fastest setting, k = 6 (section
7.3)."""
SCORED = 100
"""Number of images whose bits/dim are measured, the first; scoring an image takes longer than
decoding it."""
CURVE_IMAGES = 64
"""Number of images that every snapshot decodes, the first."""
APPROXIMATE = DecodeConfig(accept="distance", epsilon=2)


def _paper(sizes: dict[int, float]) -> dict[int, dict[str, float]]:
    return {k: {ACCEPTED: size} for k, size in sizes.items()}


SERIES: dict[str, Series] = {
    "regular": Series("dense heads on the frozen base, exact", "regular", EXACT, _paper({
        1: 1.00, 2: 1.07, 4: 1.08, 6: 1.09, 8: 1.09, 10: 1.10})),
    "approximate": Series("the same, epsilon 2", "regular", APPROXIMATE, _paper({
        2: 1.24, 4: 1.36, 6: 1.38, 8: 1.49, 10: 1.40})),
    "fine-tuned": Series("dense heads with the base, exact", "fine-tuned", EXACT, _paper({
        2: 1.59, 4: 2.11, 6: 2.23, 8: 2.17, 10: 2.04})),
    "both": Series("the same, epsilon 2", "fine-tuned", APPROXIMATE, _paper({
        2: 1.96, 4: 3.75, 6: 5.25, 8: 6.36, 10: 6.79})),
    "regular, sequential heads": Series("", "sequential-regular", EXACT),
    "approximate, sequential heads": Series("", "sequential-regular", APPROXIMATE),
    "fine-tuned, sequential heads": Series("", "sequential-fine-tuned", EXACT),
    "both, sequential heads": Series("", "sequential-fine-tuned", APPROXIMATE),
}
"""The paper's four columns with its heads, and the same with sequential heads that learn from p1.

The paper's figures are mean accepted block sizes (1,000,000 training steps, 250,000 for heads, a
network per k)."""

CLAIMS = (
    Claim("on a frozen base, approximate acceptance accepts more than exact acceptance",
          "approximate", "regular", 10),
    Claim("with exact acceptance, fine-tuning accepts more than a frozen base", "fine-tuned",
          "regular", 10),
    Claim("fine-tuning with exact acceptance accepts more than a frozen base with approximate "
          "acceptance",
          "fine-tuned", "approximate", 10),
    Claim("both accept more than fine-tuning alone", "both", "fine-tuned", 10, 2),
    Claim("both accept more than approximate acceptance alone", "both", "approximate", 10, 2),
    Claim("with both, k = 10 accepts more than k = 6", "both", "both", 10, other_block_size=6),
)
"""What section 7.2 of the paper concludes from its table."""

CHECKPOINTS = tuple(dict.fromkeys(series.checkpoint for series in SERIES.values()))
"""Roles of the networks."""
COLOURS = {name: f"C{number}" for number, name in enumerate(SERIES)}
ROLE_COLOURS = {series.checkpoint: COLOURS[name] for name, series in SERIES.items() if series.decode
                == EXACT}


def conditions(pairs: FacePairs, batch_size: int, device: str) -> Values:
    """Return what all rows have in common."""
    digest = short_digest(pairs.hr.tobytes() + pairs.lr.tobytes())
    return {"data": digest, "images": len(pairs), "batch_size": batch_size, "device": device}


def rows(pairs: FacePairs, upscalers: Mapping[str, Upscaler], ladder: Path,
         batch_size: int) -> Iterator[Row]:
    """Return the rows of the networks given: their series, and the curves of their training."""
    for name, series in SERIES.items():
        if (upscaler := upscalers.get(series.checkpoint)) is not None:
            ways = series.ways(upscaler.model_config.prediction_heads)
            yield series_row(name, upscaler, ways,
                             lambda one=upscaler, ways=ways: cells(
                                 pairs, one, ways, batch_size))

    def widest(folder: Path) -> Cell:
        upscaler = Upscaler.load(folder, next(iter(upscalers.values())).device)
        ways = {name: dataclasses.replace(options,
                                              block_size=upscaler.model_config.prediction_heads)
                    for name, options in (("exact", EXACT), ("approximate", APPROXIMATE))}
        decoded = decode_interleaved(pairs.lr[:CURVE_IMAGES], upscaler, ways, batch_size)
        return {name: result.statistics()[ACCEPTED] for name, result in decoded.items()}

    yield from curve_rows(ladder, list(upscalers), widest)
    yield training_row(ladder)


def cells(
    pairs: FacePairs, upscaler: Upscaler, ways: Mapping[int, DecodeConfig], batch_size: int,
) -> list[Cell]:
    """Decode with all block sizes in turns, and return one cell per block size.

    Speed-up and agreement are relative to greedy decoding with the same network in the same run.
    bits/dim is under the p1 of this network.
    """
    decoded = decode_interleaved(pairs.lr, upscaler,
                                 {str(k): way for k, way in ways.items()}, batch_size)
    scored = dict[bytes, float]()  # exact acceptance makes the same images with every block size

    def bits(images: Pixels) -> float:
        first = images[:SCORED]
        key = first.tobytes()
        if key not in scored:
            scored[key] = mean_bits_per_dim(pairs.lr[:SCORED], first, upscaler, batch_size)
        return scored[key]

    greedy = decoded["1"]
    return [{
        "block_size": k, **result.statistics(),
        "speed_up": greedy.seconds_per_image / max(result.seconds_per_image, 1e-9),
        **picture_scores(result.images, pairs), **agreement(result.images, greedy.images, pairs.hr),
        "bits_per_dim_truth": bits(pairs.hr), "bits_per_dim_decoded": bits(result.images),
        "survival": survival_curve(result.traces, k),
    } for k, result in zip(ways, decoded.values(), strict=True)]


SCORES: Columns = {
    "mean accepted block size": (ACCEPTED, 2), "model calls": ("model_calls_per_image", 1),
    "s per image": ("seconds_per_image", 3), "speed-up": ("speed_up", 2), "PSNR, dB": ("psnr", 2),
    "SSIM": ("ssim", 3), "consistency": ("consistency_rmse", 2), "LR-PSNR, dB": ("lr_psnr", 2),
    "PSNR to greedy, dB": ("psnr_to_greedy", 2), "equal tokens": ("equal_tokens", 4),
    "bits/dim, truth": ("bits_per_dim_truth", 3), "bits/dim, decoded": ("bits_per_dim_decoded", 3),
}


def views(document: Document) -> dict[str, str]:
    """Return Table 2 with the paper's figures below ours, the conclusions, all scores, and the
    training."""
    sizes, table = BLOCK_SIZES[1:], list[list[str]]()
    for name, series in measured(SERIES, document).items():
        found = cells_of(document, name)
        title = f"{name}: {series.title}" if series.title else name
        accepted = [cell_text(found.get(k, {}).get(ACCEPTED), 2) for k in sizes]
        table.append([title, *accepted, cell_text(found[max(found)]["psnr"], 2)])
        if series.paper:
            table.append(["paper", *(cell_text(series.paper[k][ACCEPTED], 2) for k in sizes), "-"])
    return {"accepted": markdown_table(["k", *map(str, sizes), "PSNR, dB"], table),
            **common_views(CLAIMS, SERIES, document, SCORES)}


def plots(document: Document) -> dict[str, bytes]:
    """Return the paper's Figure 4, the speed-up by mean accepted block size and by k, and the
    curves of training."""
    found = {name: list(cells_of(document, name).values()) for name in measured(SERIES, document)}
    paper = {ACCEPTED: FIGURE_4[0], "block_size": 6}
    panels = [Panel([*(Line([(cell[key], cell["speed_up"]) for cell in own], name, COLOURS[name])
                       for name, own in found.items()),
                     Line([(paper[key], FIGURE_4[1])], "paper, both, k = 6", "black", "*")],
                    {"xlabel": label, "ylabel": "speed-up over greedy decoding"})
              for key, label in ((ACCEPTED, "mean accepted block size"),
                                 ("block_size", "block size k"))]
    titles = {"exact": "exact, k = 10", "approximate": "approximate (epsilon 2), k = 10"}
    return {"table2-figure4.png": draw(panels, 2, (9, 6)),
            "table2-curves.png": curves_plot(document, titles, ROLE_COLOURS)}
