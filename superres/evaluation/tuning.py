"""Search for the fastest decoding settings on this machine, within a bound on the loss of quality,
and save them.

Settings are compared by the quality that each acceptance loses, and by its gain in block size and
time.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from superres.checkpoint import (
    CONFIDENCE,
    CONFIG,
    DECODE,
    read_checkpoint,
    save_entries,
    weights_digest,
)
from superres.config import Confidence, CostRecord, DecodeConfig, QualityBound, require
from superres.decoding.acceptance import CRITERIA
from superres.evaluation.drawing import Way
from superres.evaluation.images import decode_interleaved, mean_bits_per_dim
from superres.evaluation.picture_scores import agreement
from superres.evaluation.text import decode_text
from superres.pipeline.recorded_costs import save_costs
from superres.pipeline.translator import Translator
from superres.pipeline.upscaler import Upscaler
from superres.system.output import markdown_table, number_text, prepare_folder
from superres.tasks.face_data import FacePairs
from superres.tasks.translation import TextPairs

Scores = dict[str, float | None]

GREEDY = DecodeConfig(block_size=1)
ACCEPTANCE: tuple[DecodeConfig, ...] = (
    DecodeConfig(),  # equivalent to epsilon 0
    *(DecodeConfig(accept="distance", epsilon=epsilon) for epsilon in (1, 2, 3, 4, 6, 8)),
)
"""Settings of acceptance to compare, without block sizes."""
BLOCK_SIZES = (2, 4, 6, 8)
"""Block sizes to try, in addition to the number of prediction heads."""
TEXT_BLOCK_SIZES = (1, 2, 3, 4, 5, 6, 8)
FEW = 8
"""Minimum number of images in the first passes."""
KEPT = 2
"""Number of the fastest settings that a pass keeps, within the bound and within a tighter bound."""
COLUMNS = {
    "mean_accepted_block_size": ("mean accepted block size", 2),
    "model_calls_per_image": ("model calls", 0), "seconds_per_image": ("s/image", 3),
    "speed_up": ("speed-up", 2), "psnr_to_greedy": ("PSNR to greedy, dB", 2),
    "psnr_difference": ("PSNR to the truth over greedy's, dB", 3), "bits_per_dim": ("bits/dim", 3),
    "bits_loss": ("bits/dim over greedy's", 3),
}
"""Heading and number of decimals of the table's columns, by score."""


def label(options: DecodeConfig) -> str:
    """Return a short name of the settings in a comparison, such as "k 10, distance, epsilon 2"."""
    parts = [] if options.block_size is None else [f"k {options.block_size}"]
    parts += (["adaptive"] * options.adaptive + ["consistent"] * options.consistent
              + [options.accept])
    parts += [f"{setting} {getattr(options, setting)}"
              for setting in CRITERIA[options.accept].settings]
    return ", ".join(parts + [f"min-block {options.min_block}"] * (options.min_block > 1))


def compare(
    pairs: FacePairs, upscaler: Upscaler, settings: Sequence[DecodeConfig], batch_size: int,
    with_bits: bool = True,
) -> dict[DecodeConfig, Scores]:
    """Decode the same images greedily (consistently if the first of `settings` does) and with each
    of `settings`.

    Returns:
        Scores by settings, greedy first: the entries of `DecodedPictures.statistics` and
        `agreement` (picture_scores), and `speed_up` over greedy. `with_bits` adds `bits_per_dim` of
        the decoded images under p1, which takes one model call per image, and `bits_loss`, the
        difference to the bits/dim of the greedy images.

    Raises:
        ConfigError: a setting does not fit the checkpoint.
    """
    base = dataclasses.replace(GREEDY,
                               consistent=any(options.consistent for options in settings[:1]))
    ways = {repr(options): options for options in (base, *settings)}
    decoded = decode_interleaved(pairs.lr, upscaler, ways, batch_size)
    greedy = decoded[repr(base)]
    own = mean_bits_per_dim(pairs.lr, greedy.images, upscaler, batch_size) if with_bits else 0.0
    rows: dict[DecodeConfig, Scores] = {}

    # scores beside the greedy images
    for way, result in decoded.items():
        scores: Scores = {
            **result.statistics(),
            "speed_up": greedy.seconds_per_image / max(result.seconds_per_image, 1e-9),
            **agreement(result.images, greedy.images, pairs.hr)}
        if with_bits:
            bits = own
            if result is not greedy:
                bits = mean_bits_per_dim(pairs.lr, result.images, upscaler, batch_size)
            scores.update(bits_per_dim=bits, bits_loss=bits - own)
        rows[ways[way]] = scores
    return rows


def comparison_table(rows: dict[DecodeConfig, Scores], marks: dict[DecodeConfig, str]) -> str:
    """Return the scores of `compare` as a Markdown table, whose first column has the `marks` of
    settings."""
    shown = [name for name in COLUMNS if all(name in scores for scores in rows.values())]
    lines = [
        [marks.get(options, ""), label(options),
         *(number_text(scores[name], COLUMNS[name][1]) for name in shown)]
        for options, scores in rows.items()
    ]
    return markdown_table(["", "settings", *(COLUMNS[name][0] for name in shown)], lines)


def as_rows(rows: dict[DecodeConfig, Scores]) -> list[dict[str, object]]:
    """Return scores by settings as rows with name and settings, serialisable as JSON."""
    return [{"name": label(options), "config": options.to_dict(), **scores}
            for options, scores in rows.items()]


def within(bound: QualityBound, scores: Scores) -> bool:
    """Return whether the scores of decoding are within `bound`."""
    if bound.min_psnr_to_greedy is not None:
        psnr = scores["psnr_to_greedy"]  # None if all images are identical
        return psnr is None or psnr >= bound.min_psnr_to_greedy
    return (scores["bits_loss"] or 0.0) <= (bound.max_bits_loss or 0.0)


def tighter(bound: QualityBound) -> QualityBound:
    """Return a bound tighter by 1 dB or a quarter of the bits; few images within it make `bound`
    likely for all."""
    psnr, bits = bound.min_psnr_to_greedy, bound.max_bits_loss
    return QualityBound(None if psnr is None else psnr + 1, None if bits is None else 0.75 * bits)


def shortlist(rows: dict[DecodeConfig, Scores], bound: QualityBound) -> list[DecodeConfig]:
    """Return the settings for the next pass, given scores by settings sorted by time.

    These are the fastest settings within the bound and within a tighter bound, since few images may
    overrate a setting. The fastest exact setting is added; it is always within the bound.
    """
    kept = list[DecodeConfig]()
    for one in (bound, tighter(bound)):
        kept += [options for options, scores in rows.items() if within(one, scores)][:KEPT]
    exact = [options for options in rows if options.is_exact]
    return list(dict.fromkeys([*kept, *exact[:1]]))


def with_block_sizes(options: DecodeConfig, heads: int) -> list[DecodeConfig]:
    """Return `options` with every block size up to `heads`, adaptively, and with a minimum block of
    2."""
    whole = dataclasses.replace(options, block_size=heads)
    smaller = [dataclasses.replace(options, block_size=k) for k in BLOCK_SIZES if k < heads]
    more = ([dataclasses.replace(whole, adaptive=True), dataclasses.replace(whole, min_block=2)]
            if heads > 1 else [])
    return [*smaller, whole, *more]


def tune_faces(
    pairs: FacePairs, upscaler: Upscaler, bound: QualityBound, batch_size: int = 16,
) -> tuple[dict[str, Any], str, DecodeConfig]:
    """Find the fastest settings within `bound` on this machine; `consistent` and `nucleus` stay as
    in the default.

    The settings of a pass alternate batch by batch, so that other load slows all settings alike.
    The first pass compares criteria on few images. The second pass compares block sizes of the best
    criteria. The last pass compares the best settings of the second pass on all images.

    Returns:
        The report, serialisable as JSON, with the settings of the last pass sorted by time; these
        settings as a table; and the fastest settings within the bound (the largest loss of quality
        relative to greedy decoding, over all images), for this batch size. Greedy decoding is
        always within the bound.

    Raises:
        ConfigError: the batch size is not positive.
    """
    require(batch_size >= 1, f"--batch-size must be at least 1, not {batch_size}")
    heads, few = upscaler.model_config.prediction_heads, max(FEW, batch_size)
    first = FacePairs(pairs.hr[:few], pairs.lr[:few], pairs.ids[:few])

    def measure(images: FacePairs, settings: list[DecodeConfig]) -> dict[DecodeConfig, Scores]:
        rows = compare(images, upscaler, settings, batch_size,
                       with_bits=bound.max_bits_loss is not None)
        return dict(sorted(rows.items(), key=lambda row: row[1]["seconds_per_image"] or 0.0))

    # criteria on few images, then block sizes of the best, and the best of these on all
    own = upscaler.default
    settings = [dataclasses.replace(options, block_size=heads, consistent=own.consistent,
                                    nucleus=own.nucleus)
                for options in ACCEPTANCE]
    settings = shortlist(measure(first, settings), bound)
    settings = [sized for options in settings for sized in with_block_sizes(options, heads)]
    settings = shortlist(measure(first, settings), bound)
    rows = measure(pairs, settings)

    # the report
    kept = [options for options, scores in rows.items() if within(bound, scores)]
    marks = {options: "within" for options in kept} | {kept[0]: "fastest"}
    report = {
        "checkpoint": f"{upscaler.name}@{upscaler.revision}", "images": len(pairs),
        "batch_size": min(batch_size, len(pairs)), "bound": bound.to_dict(),
        "fastest": kept[0].to_dict(),
        "settings": [{**row, "within_bound": options in kept}
                     for row, options in zip(as_rows(rows), rows, strict=True)],
    }
    return report, comparison_table(rows, marks), kept[0]


def tune_text(
    pairs: TextPairs, translator: Translator, batch_size: int = 1,
) -> tuple[dict[str, Any], str, DecodeConfig]:
    """Search as `tune_faces` for the block size that translates the sources fastest; acceptance is
    exact."""
    heads = translator.model_config.prediction_heads
    settings = [DecodeConfig(block_size=size)
                for size in (*(k for k in TEXT_BLOCK_SIZES if k < heads), heads)]
    if heads > 1:
        settings.append(DecodeConfig(block_size=heads, adaptive=True))
    ways: dict[str, Way] = {label(options): options for options in settings}
    found = decode_text(pairs.source, translator, ways, batch_size)

    # the fastest first
    order = sorted(settings, key=lambda options: found[label(options)].seconds)
    rows = {options: found[label(options)].statistics() for options in order}
    lines = [[label(options), number_text(scores["mean_accepted_block_size"], 2),
              number_text(1000 * (scores["seconds_per_sentence"] or 0), 2)]
             for options, scores in rows.items()]
    report = {
        "checkpoint": f"{translator.name}@{translator.revision}", "sentences": len(pairs),
        "batch_size": min(batch_size, len(pairs)), "fastest": order[0].to_dict(),
        "settings": as_rows(dict(rows)),
    }
    return (report, markdown_table(["settings", "tokens per step", "ms per sentence"], lines),
            order[0])


def tuned_folder(folder: Path, target: Path) -> Path:
    """Return the folder to save in: the checkpoint's own, or `target`, which becomes a copy with
    all its stages.

    Raises:
        ConfigError: there is something else than such a copy at `target`.
        OutputError: the folder cannot be written.
    """
    stages = read_checkpoint(folder).stages
    if target.exists() and any(target.iterdir() if target.is_dir() else [target]):
        own, found = ([weights_digest(stage.folder) for stage in read_checkpoint(one).networks]
                      if (one / CONFIG).exists() else []
                      for one in (folder, target))
        require(own == found, f"{target} is no copy of {folder}; choose a new folder for --save")
        for stage in read_checkpoint(target).networks:
            prepare_folder(stage.folder, "--save DIR, or give --no-save")
        return target
    prepare_folder(target, "--save DIR, or give --no-save")
    for one in (folder, *(stage.folder for stage in stages)):
        shutil.copytree(one, target if one == folder else target / one.name, dirs_exist_ok=True)
    return target


def save_costs_of(engine: str, variant: str, folder: Path, records: Sequence[CostRecord]) -> None:
    """Save the records of an engine and variant in a checkpoint, or in the stages of a cascade in
    their order."""
    for stage, record in zip(read_checkpoint(folder).networks, records, strict=True):
        save_costs(stage.folder, engine, variant, record)


def save_default(folder: Path, kind: str, options: DecodeConfig,
                 confidence: Confidence | None = None) -> None:
    """Make `options` the default of the checkpoint in `folder` on devices of `kind` ("cpu",
    "cuda").

    Other entries of its config.json are unchanged; its coefficients too, if `confidence` is None.
    Errors are those of `superres.checkpoint.save_entries`.
    """
    entries = {DECODE: {**read_checkpoint(folder).config.get(DECODE, {}), kind: options.to_dict()}}
    if confidence is not None:
        entries[CONFIDENCE] = confidence.to_dict()
    save_entries(folder, entries)
