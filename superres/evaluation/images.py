"""Evaluation of a checkpoint for faces: its pictures beside enlargements, its likelihood, and its
decoding.

`evaluate_images` computes all scores of a checkpoint on a data set; the measures are those of
`picture_scores`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from superres.config import DecodeConfig, require
from superres.decoding.trace import RowTrace
from superres.evaluation.compression import picture_bytes
from superres.evaluation.detail import swings
from superres.evaluation.drawing import in_turns
from superres.evaluation.intervals import Entries, Estimate, accepted_block_size, with_interval
from superres.evaluation.perceptual import Scores
from superres.evaluation.picture_scores import (
    BASELINE,
    GREEDY,
    REFERENCES,
    agreement,
    all_entries,
    compared_scores,
)
from superres.evaluation.recognition import Recogniser, recognition_scores
from superres.evaluation.score_tables import Methods, score_text, table_lines
from superres.pictures.read import Pixels
from superres.pipeline.resolved_options import resolve_options
from superres.system.output import number_text
from superres.system.progress import track
from superres.tasks.face_data import FacePairs
from superres.tasks.faces import ENLARGEMENTS, image_key

if TYPE_CHECKING:
    from superres.pipeline.upscaled import Upscaled
    from superres.pipeline.upscaler import Upscaler

SEQUENTIAL = "sequential"
"""The sample that is decoded with one token per step."""


@dataclass(frozen=True)
class DecodedPictures:
    """The results of one way to decode a data set: images, uint8 [N,H,W,3], and a trace of each.

    `seconds_per_image` is the wall-clock time of the timed batches / number of their images. In a
    cascade it is that of all stages, and `earlier` is the result of the stages before the last one.
    """

    images: Pixels
    traces: list[RowTrace]
    seconds_per_image: float
    earlier: DecodedPictures | None = None

    @classmethod
    def of(cls, results: Sequence[Upscaled], timed: int) -> DecodedPictures:
        """Join the results of batches, of which the first `timed` are timed."""
        earlier = [result.stages[-2] for result in results if len(result.stages) > 1]
        seconds = sum(result.seconds for result in results[:timed])
        return cls(np.concatenate([result.images for result in results]),
                   [trace for result in results for trace in result.traces],
                   seconds / sum(len(result.images) for result in results[:timed]),
                   cls.of(earlier, timed) if earlier else None)

    @property
    def stages(self) -> list[DecodedPictures]:
        """The results of the stages of a cascade, the first stage first, each by itself; otherwise
        this result."""
        if self.earlier is None:
            return [self]
        seconds = self.seconds_per_image - self.earlier.seconds_per_image
        return [*self.earlier.stages, dataclasses.replace(self, seconds_per_image=seconds,
                                                          earlier=None)]

    @property
    def size(self) -> str:
        """The size of the images, such as "18x18"."""
        height, width = self.images.shape[1:3]
        return f"{width}x{height}"

    def statistics(self) -> Entries:
        """Return the decoding statistics over all images and stages."""
        traces = [trace for stage in self.stages for trace in stage.traces]
        return {**accepted_block_size(traces),
                "model_calls_per_image": sum(trace.model_calls for trace in traces)
                / len(self.images),
                "seconds_per_image": self.seconds_per_image}


def decode_interleaved(
    sources: Pixels, upscaler: Upscaler, ways: dict[str, DecodeConfig], batch_size: int,
) -> dict[str, DecodedPictures]:
    """Decode every batch of `sources`, uint8 [N,h,w,3], `in_turns`.

    A shorter last batch is not timed unless it is the only batch.
    """
    keys = [image_key(source, 1) for source in sources]
    batches = [slice(start, start + batch_size) for start in range(0, len(sources), batch_size)]
    results = in_turns(batches, ways, lambda batch, options: upscaler.decode(
        sources[batch], options, keys=keys[batch]), "decoding")
    timed = max(len(sources) // batch_size, 1)
    return {way: DecodedPictures.of(made, timed) for way, made in results.items()}


def bits_per_dim(sources: Pixels, targets: Pixels, upscaler: Upscaler, batch_size: int) -> Scores:
    """Return the bits/dim of `targets` (uint8 [N,H,W,3]) given `sources` (uint8 [N,h,w,3]), float64
    [N]."""
    starts = track(range(0, len(sources), batch_size), "scoring bits/dim", "batches")
    return np.concatenate([upscaler.bits_per_dim(sources[i:i + batch_size],
                                                 targets[i:i + batch_size]) for i in starts])


def mean_bits_per_dim(sources: Pixels, targets: Pixels, upscaler: Upscaler,
                      batch_size: int) -> float:
    """Return the mean of `bits_per_dim`."""
    return float(bits_per_dim(sources, targets, upscaler, batch_size).mean())


def evaluate_likelihood(pairs: FacePairs, upscaler: Upscaler,
                        batch_size: int = 16) -> dict[str, Any]:
    """Return the bits/dim of the true images under p1, and `picture_bytes`, as a report
    serialisable as JSON.

    All are means `with_interval`.

    Raises:
        ConfigError: the batch size is not positive.
    """
    require(batch_size >= 1, f"--batch-size must be at least 1, not {batch_size}")
    bits = bits_per_dim(pairs.lr, pairs.hr, upscaler, batch_size)
    return {"images": len(pairs), "checkpoint": f"{upscaler.name}@{upscaler.revision}",
            "batch_size": min(batch_size, len(pairs)), **with_interval("bits_per_dim", bits),
            "bytes_per_picture": all_entries({
                name: Estimate.mean(sizes) for name, sizes in picture_bytes(pairs, bits).items()})}


def likelihood_text(report: dict[str, Any]) -> str:
    """Return the bits/dim and interval in a report of `evaluate_likelihood` or `evaluate_images` as
    text."""
    half = report["bits_per_dim_half_width"]
    return f"bits/dim {report['bits_per_dim']:.3f}" + ("" if half is None else " (95 % interval "
                                                       f"+-{half:.3f})")


def bytes_text(report: dict[str, Any]) -> str:
    """Return the bytes per picture in a report of `evaluate_likelihood` or `evaluate_images` as
    text."""
    code, whole, png, webp = (score_text(report["bytes_per_picture"], name, ",.0f")
                              for name in ("p1", "p1_and_input", "png", "webp"))
    return (f"bytes per picture: p1 {code}, and its input as WebP {whole}; lossless WebP {webp}, "
            f"PNG {png}")


def stage_options(decode: DecodeConfig, upscaler: Upscaler, samples: int = 1) -> DecodeConfig:
    """Return `decode` with the block size filled in, but in a cascade, whose stages have block
    sizes of their own.

    Raises ConfigError if it cannot be used.
    """
    resolved = resolve_options(decode, upscaler, samples)
    return decode if upscaler.face_task.between else resolved


def evaluate_images(
    pairs: FacePairs, upscaler: Upscaler, decode: DecodeConfig, batch_size: int = 16,
    greedy: bool = True, same_person: bool = False,
) -> tuple[dict[str, Any], dict[str, Pixels]]:
    """Score blockwise decoding with the settings `decode`, and the ENLARGEMENTS of the same images.

    With `greedy`, block size 1 is decoded as well, for agreement and speed-up; at a positive
    temperature with the same noise, as the method "sequential", beside "greedy" pictures. With
    `same_person`, `recognition_scores` are added.

    Returns:
        The report, serialisable as JSON; and the pictures by method, each uint8 [N,H,W,3]. The
        pictures of a cascade's earlier stages are methods, too, enlarged by `BASELINE`.

    Raises:
        ConfigError: `decode` does not match the checkpoint, the batch size is not positive, or a
            package is missing.
        InvalidInputError: see `recognition_scores`.
    """
    decode, recogniser = stage_options(decode, upscaler), Recogniser() if same_person else None
    report = {**evaluate_likelihood(pairs, upscaler, batch_size), "config": decode.to_dict()}
    # With inputs shifted by one image, only a network that ignores its input has the same bits/dim.
    report["bits_per_dim_wrong_input"] = None if len(pairs) == 1 else mean_bits_per_dim(
        np.roll(pairs.lr, 1, axis=0), pairs.hr, upscaler, batch_size)
    ways = {GREEDY: decode.greedy(),
            **({SEQUENTIAL: decode.sequential()} if decode.is_sampling else {})}
    decoded = decode_interleaved(pairs.lr, upscaler,
                                 {**(ways if greedy else {}), "blockwise": decode}, batch_size)

    # pictures by method, and their scores
    pictures = {method: pairs.task.enlarge(pairs.lr, method) for method in ENLARGEMENTS}
    pictures.update({way: result.images for way, result in decoded.items()})
    pictures.update({f"{stage.size} by {BASELINE}": pairs.task.enlarge(stage.images, BASELINE)
                     for stage in decoded["blockwise"].stages[:-1]})
    report |= {"truth": all_entries(swings(pairs.hr, pairs.task)),
               "methods": compared_scores(pictures, pairs)}
    if recogniser is not None:
        found, report["recognition"] = recognition_scores(recogniser, pictures, pairs.hr)
        report["faces_found"] = found

    # what decoding cost, by way and by stage
    for way, result in decoded.items():
        report["methods"][way].update(result.statistics())
    if upscaler.face_task.between:
        report["stages"] = {way: {stage.size: stage.statistics() for stage in result.stages}
                            for way, result in decoded.items()}
    if greedy:
        *_, alone = ways
        report["agreement"] = agreement(pictures["blockwise"], pictures[alone], pairs.hr)
        report["speed_up"] = (decoded[alone].seconds_per_image
                              / max(decoded["blockwise"].seconds_per_image, 1e-9))
    return report, pictures


def report_table(report: dict[str, Any]) -> str:
    """Return the report of `evaluate_images` as text."""
    config, methods = report["config"], report["methods"]
    lines = [f"{report['images']} images, {report['checkpoint']}, block size "
             f"{config['block_size'] or 'of all heads'}, {config['accept']}, temperature "
             f"{config['temperature']}, batches of {report['batch_size']}",
             *method_lines(methods), "", *detail_lines(methods, report["truth"]), ""]
    if "recognition" in report:
        lines += [*recognition_lines(report), ""]
    # beside one method, and what decoding cost
    for reference in REFERENCES:
        if reference in methods:
            lines += [*difference_lines(methods, reference), ""]
    lines += [*decoding_lines(report), "",
              f"{likelihood_text(report)}, with a wrong input "
              f"{number_text(report['bits_per_dim_wrong_input'], 3)}",
              bytes_text(report)]
    if "agreement" in report:
        scores, alone = report["agreement"], SEQUENTIAL if SEQUENTIAL in methods else GREEDY
        lines += [f"speed-up over {alone} {report['speed_up']:.2f}; "
                  f"equal tokens {scores['equal_tokens']:.2%}, identical images "
                  f"{scores['identical_images']:.1%}, PSNR to {alone} "
                  f"{number_text(scores['psnr_to_greedy'], 2)} dB"]
    return "\n".join(lines)


SIMILARITY = {"psnr": ("PSNR dB", ".2f"), "ssim": ("SSIM", ".3f"), "st_lpips": ("ST-LPIPS", ".3f"),
              "lr_psnr": ("LR-PSNR dB", ".2f")}
DETAIL = {"detail": ("detail", ".2f"), "swing_across": ("swing x %", ".0f"),
          "swing_down": ("swing y %", ".0f")}
"""Titles and forms of the scores of `quality`; the bands' are made of their names."""


def method_lines(methods: Methods) -> list[str]:
    """Return similarity and consistency in the `picture_scores` by method as the lines of a text
    table."""
    return table_lines("", methods, {
        **SIMILARITY, "consistency_rmse": ("consistency", ".2f"),
        "consistent_images": ("consistent", ".1%")})


def detail_lines(methods: Methods, truth: Entries) -> list[str]:
    """Return the `detail_scores` by method, and those of the truth, as the lines of a text
    table."""
    titles = {name: name.removeprefix("power_").replace("_to_", "-").replace("over_", ">")
              for name in next(iter(methods.values()))
              if re.fullmatch(r"power_(\S+_to|over)_[\d.]+", name)}
    bands = {name: (f"{title} dB", ".1f") for name, title in titles.items()}
    return table_lines("detail", {"truth": truth, **methods}, DETAIL | bands)


def recognition_lines(report: dict[str, Any]) -> list[str]:
    """Return the `recognition_scores` in a report as the lines of a text table."""
    return table_lines(f"taken for, of {report['faces_found']} faces", report["recognition"], {
        "same_person": ("same person", ".1%"), "stranger": ("a stranger", ".1%")})


def difference_lines(methods: Methods, reference: str) -> list[str]:
    """Return the differences from a method in `compared_scores` as the lines of a text table."""
    return table_lines(f"above {reference}",
                       {name: scores for name, scores in methods.items() if name != reference},
                       {f"{name}_above_{reference}": (title, f"+{form}")
                        for name, (title, form) in (SIMILARITY | DETAIL).items()})


def decoding_lines(report: dict[str, Any]) -> list[str]:
    """Return the decoding statistics in a report of `evaluate_images` as the lines of a text
    table."""
    rows: Methods = {}
    for name, scores in report["methods"].items():
        if "seconds_per_image" in scores:
            stages = report.get("stages", {}).get(name, {})
            rows |= {name: scores, **{f"{name}, {size}": stage for size, stage in stages.items()}}
    return table_lines("decoding", rows, {
        "mean_accepted_block_size": ("mean accepted", ".2f"),
        "model_calls_per_image": ("model calls", ",.1f"), "seconds_per_image": ("s/image", ".3f")})
