"""Compare variants of decoding: the quality that each acceptance loses, and its gain in block size and time."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from superres.config import DecodeConfig
from superres.decoding.acceptance import CRITERIA
from superres.evaluation.pictures import agreement, decode_interleaved, mean_bits_per_dim
from superres.pipeline.upscaler import Upscaler
from superres.system.output import markdown_table, number_text
from superres.tasks.face_data import FacePairs

Scores = dict[str, float | None]

GREEDY = DecodeConfig(block_size=1)

ACCEPTANCE: tuple[DecodeConfig, ...] = (
    DecodeConfig(),  # equivalent to epsilon 0
    *(DecodeConfig(accept="distance", epsilon=epsilon) for epsilon in (1, 2, 3, 4, 6, 8)),
)
"""Settings of acceptance to compare, without block sizes."""


def label(options: DecodeConfig) -> str:
    """Return a short name of the settings in a comparison, such as "k 10, distance, epsilon 2"."""
    parts = [] if options.block_size is None else [f"k {options.block_size}"]
    parts += ["adaptive"] * options.adaptive + ["consistent"] * options.consistent
    parts.append(options.accept)
    for setting in CRITERIA[options.accept].settings:
        parts.append(f"{setting} {getattr(options, setting)}")
    return ", ".join(parts + [f"min-block {options.min_block}"] * (options.min_block > 1))


def compare(
    pairs: FacePairs, upscaler: Upscaler, settings: Sequence[DecodeConfig], batch_size: int, with_bits: bool = True,
) -> dict[DecodeConfig, Scores]:
    """Decode the same images greedily and with each of `settings`, in alternation.

    Args:
        pairs: inputs and true images.
        upscaler: the loaded checkpoint.
        settings: variants of decoding; `GREEDY` is added, consistent if the first of them is.
        batch_size: images per batch.
        with_bits: whether to compute the bits/dim of the decoded images, which takes one model call per image.

    Returns:
        Scores by settings, greedy first: the entries of `superres.evaluation.pictures.Decoded.statistics` and
        `agreement`, and `speed_up` over greedy. `with_bits` adds `bits_per_dim` of the decoded images under p1, and
        `bits_loss`, the difference to the bits/dim of the greedy images.

    Raises:
        ConfigError: a setting does not fit the checkpoint.
    """
    base = dataclasses.replace(GREEDY, consistent=any(options.consistent for options in settings[:1]))
    variants = {repr(options): options for options in (base, *settings)}
    decoded = decode_interleaved(pairs.lr, upscaler, variants, batch_size)
    greedy = decoded[repr(base)]
    rows: dict[DecodeConfig, Scores] = {}
    for variant, result in decoded.items():
        speed_up = greedy.seconds_per_image / max(result.seconds_per_image, 1e-9)
        close = agreement(result.images, greedy.images, pairs.hr)
        rows[variants[variant]] = {**result.statistics(), "speed_up": speed_up, **close}
    if with_bits:
        own = mean_bits_per_dim(pairs.lr, greedy.images, upscaler, batch_size)
        for variant, result in decoded.items():
            bits = own if result is greedy else mean_bits_per_dim(pairs.lr, result.images, upscaler, batch_size)
            rows[variants[variant]].update(bits_per_dim=bits, bits_loss=bits - own)
    return rows


def psnr_to_greedy(scores: Scores) -> float:
    """Return the PSNR to the greedy images in dB; infinite if all images are identical."""
    value = scores["psnr_to_greedy"]
    return math.inf if value is None else value


COLUMNS = {
    "mean_accepted_block_size": ("mean accepted block size", 2), "model_calls_per_image": ("model calls", 0),
    "seconds_per_image": ("s/image", 3), "speed_up": ("speed-up", 2),
    "psnr_to_greedy": ("PSNR to greedy, dB", 2), "psnr_difference": ("PSNR to the truth over greedy's, dB", 3),
    "bits_per_dim": ("bits/dim", 3), "bits_loss": ("bits/dim over greedy's", 3),
}
"""Heading and number of decimals of the table's columns, by score."""


def comparison_table(rows: dict[DecodeConfig, Scores], marks: dict[DecodeConfig, str]) -> str:
    """Return the scores of `compare` as a Markdown table.

    Args:
        rows: scores by settings, in the order of the table.
        marks: text of the first column by settings; empty for other settings.
    """
    shown = [name for name in COLUMNS if all(name in scores for scores in rows.values())]
    lines = [
        [marks.get(options, ""), label(options), *(number_text(scores[name], COLUMNS[name][1]) for name in shown)]
        for options, scores in rows.items()
    ]
    return markdown_table(["", "settings", *(COLUMNS[name][0] for name in shown)], lines)


def as_rows(rows: dict[DecodeConfig, Scores]) -> list[dict[str, object]]:
    """Return the scores of `compare` as rows with name and settings, serialisable as JSON."""
    return [{"name": label(options), "config": options.to_dict(), **scores} for options, scores in rows.items()]
