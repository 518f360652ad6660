"""Search for the fastest settings of decoding on this machine, within a bound on the loss of quality."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from superres.checkpoint import CONFIG, DECODE, read_config
from superres.config import DecodeConfig, QualityBound, require
from superres.errors import OutputError
from superres.evaluation.comparison import ACCEPTANCE, Scores, as_rows, compare, comparison_table, psnr_to_greedy
from superres.pipeline.upscaler import Upscaler
from superres.system.output import write_atomically
from superres.tasks.faces import FacePairs

BLOCK_SIZES = (2, 4, 6, 8)
"""Block sizes tried beside all prediction heads."""

FEW = 8
"""Images of the first passes at the least."""

KEPT = 2
"""How many of the fastest settings a pass keeps, for the bound itself and for a tighter one."""


def within(bound: QualityBound, scores: Scores) -> bool:
    """Return whether a variant of decoding loses at most the quality that `bound` allows."""
    if bound.min_psnr_to_greedy is not None:
        return psnr_to_greedy(scores) >= bound.min_psnr_to_greedy
    return (scores["bits_loss"] or 0.0) <= (bound.max_bits_loss or 0.0)


def tighter(bound: QualityBound) -> QualityBound:
    """Return a bound that few images must keep for it to be likely that all keep `bound`: 1 dB or a quarter less."""
    psnr, bits = bound.min_psnr_to_greedy, bound.max_bits_loss
    return QualityBound(None if psnr is None else psnr + 1, None if bits is None else 0.75 * bits)


def shortlist(rows: dict[DecodeConfig, Scores], bound: QualityBound) -> list[DecodeConfig]:
    """Return the settings that are worth another pass; `rows` are sorted by time.

    They are the fastest within the bound, the fastest within a tighter one (few images may flatter a setting), and the
    fastest exact one, which is always safe.
    """
    kept = [options for b in (bound, tighter(bound)) for options in
            [options for options, scores in rows.items() if within(b, scores)][:KEPT]]
    exact = [options for options in rows if options.accept == "exact" and options.min_block == 1]
    return list(dict.fromkeys([*kept, *exact[:1]]))


def block_variants(options: DecodeConfig, heads: int) -> Iterator[DecodeConfig]:
    """Yield `options` with every block size up to `heads`, and with a minimum block of 2."""
    for block_size in (*(k for k in BLOCK_SIZES if k < heads), heads):
        yield dataclasses.replace(options, block_size=block_size)
    if heads > 1:
        yield dataclasses.replace(options, block_size=heads, min_block=2)


def tune(
    pairs: FacePairs, upscaler: Upscaler, bound: QualityBound, batch_size: int = 16,
) -> tuple[dict[str, Any], str, DecodeConfig]:
    """Find the fastest settings within `bound` on this machine.

    The settings of a pass are measured batch by batch in turn, so that a busy machine slows all alike. The first pass
    compares the criteria on few images, the second the block sizes of the best, the last the best of these on all.

    Args:
        pairs: images to tune on.
        upscaler: the checkpoint.
        bound: how much quality may be lost against greedy decoding, over all images together.
        batch_size: images decoded together; the fastest settings depend on it.

    Returns:
        the report, ready for JSON, with the settings of the last pass ranked by time; the same as a table; and the
        fastest settings within the bound, which are greedy decoding if nothing else is.

    Raises:
        ConfigError: the batch size is not positive.
    """
    require(batch_size >= 1, f"--batch-size must be at least 1, not {batch_size}")
    heads = upscaler.model_config.prediction_heads
    few = max(FEW, batch_size)
    first = FacePairs(pairs.hr[:few], pairs.lr[:few], pairs.ids[:few])

    def measure(images: FacePairs, settings: list[DecodeConfig]) -> dict[DecodeConfig, Scores]:
        rows = compare(images, upscaler, settings, batch_size, with_bits=bound.max_bits_loss is not None)
        return dict(sorted(rows.items(), key=lambda row: row[1]["seconds_per_image"] or 0.0))

    settings = [dataclasses.replace(options, block_size=heads) for options in ACCEPTANCE]
    settings = shortlist(measure(first, settings), bound)
    settings = [variant for options in settings for variant in block_variants(options, heads)]
    settings = shortlist(measure(first, settings), bound)
    rows = measure(pairs, settings)

    kept = [options for options, scores in rows.items() if within(bound, scores)]
    marks = {options: "within" for options in kept} | {kept[0]: "fastest"}
    report = {
        "checkpoint": f"{upscaler.name}@{upscaler.revision}", "images": len(pairs),
        "batch_size": min(batch_size, len(pairs)), "bound": bound.to_dict(), "fastest": kept[0].to_dict(),
        "settings": [{**row, "within_bound": options in kept}
                     for row, options in zip(as_rows(rows), rows, strict=True)],
    }
    return report, comparison_table(rows, marks), kept[0]


def save_default(folder: Path, kind: str, options: DecodeConfig) -> None:
    """Make `options` the default of the checkpoint in `folder` on devices of `kind` ("cpu", "cuda").

    The rest of its config.json stays as it is.

    Raises:
        CheckpointError: there is no checkpoint, or it is damaged.
        OutputError: the file cannot be written; it is left as it was.
    """
    document = read_config(folder)
    document[DECODE] = {**document.get(DECODE, {}), kind: options.to_dict()}
    try:
        write_atomically(folder / CONFIG, (json.dumps(document, indent=2) + "\n").encode())
    except OSError as error:
        raise OutputError(f"cannot save the default in {folder / CONFIG}: {error.strerror}; tune a copy of the "
                          "checkpoint, or give --no-save") from error
