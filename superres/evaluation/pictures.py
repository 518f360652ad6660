"""Scores of decoded faces: picture quality, likelihood, decoding statistics and agreement with greedy decoding.

The measures are pure functions of uint8 arrays. `evaluate_images` computes all scores of a checkpoint on a data set.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont
from tqdm import tqdm

from superres.config import DecodeConfig, require
from superres.decoding.trace import RowTrace, mean_accepted_block_size
from superres.pipeline.options import resolve_options
from superres.system.output import number_text
from superres.tasks.face_data import FacePairs
from superres.tasks.faces import area_reduce, image_key
from superres.tasks.pictures import Pixels

if TYPE_CHECKING:
    from superres.pipeline.upscaler import Upscaler

Scores = npt.NDArray[np.float64]

SHEET_ROWS = 12
"""Largest number of images on a contact sheet."""


def mean_squared_error(images: Pixels, references: Pixels) -> Scores:
    """Return each image's mean squared error in squared grey levels, float64 [N], from uint8 [N,H,W,C]."""
    difference = images.astype(np.float64) - references.astype(np.float64)
    error: Scores = np.square(difference).reshape(len(images), -1).mean(axis=1)
    return error


def psnr(images: Pixels, references: Pixels) -> Scores:
    """Return each image's PSNR in dB for a peak of 255, float64 [N], infinite if equal, from uint8 [N,H,W,C]."""
    with np.errstate(divide="ignore"):
        return 10 * np.log10(255.0**2 / mean_squared_error(images, references))


def ssim(images: Pixels, references: Pixels) -> Scores:
    """Return each image's structural similarity as Wang et al. (2004), float64 [N], from uint8 [N,H,W,C] from 11x11."""
    from skimage import metrics  # slow to import

    score: Callable[..., float] = metrics.structural_similarity
    return np.array([
        score(*pair, gaussian_weights=True, sigma=1.5, use_sample_covariance=False, data_range=255, channel_axis=-1)
        for pair in zip(images, references, strict=True)], dtype=np.float64)


def consistency(images: Pixels, sources: Pixels) -> Scores:
    """Return the RMSE in grey levels between each image, reduced to the rounded means of its cells, and its input.

    True images score slightly above 0 if they and the inputs were reduced separately from the photographs, each with
    truncation. `images` are uint8 [N,H,W,C], `sources` uint8 [N,h,w,C]; the result is float64 [N].
    """
    return np.sqrt(mean_squared_error(area_reduce(images, *sources.shape[1:3], is_reduced=True), sources))


def consistency_scores(images: Pixels, sources: Pixels) -> dict[str, float | None]:
    """Return scores of all images' `consistency`, with the same arguments.

    "consistency_rmse" is its mean. "lr_psnr" is the PSNR of the reduced images to the inputs in dB, as of Lugmayr et
    al. 2021, "NTIRE 2021 Learning the Super-Resolution Space Challenge", from the mean squared error over all images;
    None if all are equal. The challenge averages the PSNRs of the images, which are infinite for consistent images.
    "consistent_images" is the share of images that reduce to exactly their input.
    """
    error = consistency(images, sources)
    return {"consistency_rmse": float(error.mean()), "lr_psnr": _pooled_psnr(np.square(error)),
            "consistent_images": float((error == 0).mean())}


def equal_tokens(images: Pixels, others: Pixels) -> Scores:
    """Return the share of equal tokens (intensities) in each pair of images, float64 [N], from uint8 [N,H,W,C]."""
    share: Scores = (images == others).reshape(len(images), -1).mean(axis=1, dtype=np.float64)
    return share


def pooled_psnr(images: Pixels, references: Pixels) -> float | None:
    """Return the PSNR in dB of the mean squared error over all images (uint8 [N,H,W,C]); None if all are identical.

    A mean of PSNRs would be infinite as soon as one pair of images is identical.
    """
    return _pooled_psnr(mean_squared_error(images, references))


def _pooled_psnr(errors: Scores) -> float | None:
    error = float(errors.mean())
    return 10 * math.log10(255.0**2 / error) if error else None


def agreement(images: Pixels, greedy: Pixels, truth: Pixels) -> dict[str, float | None]:
    """Return the agreement of `images` with the greedily decoded images; all arguments are uint8 [N,H,W,C].

    `psnr_to_greedy` is a `pooled_psnr`. `psnr_difference` is the mean PSNR to the truth minus that of greedy decoding.
    """
    equal = equal_tokens(images, greedy)
    return {"psnr_to_greedy": pooled_psnr(images, greedy),
            "psnr_difference": _finite(psnr(images, truth).mean() - psnr(greedy, truth).mean()),
            "equal_tokens": float(equal.mean()), "identical_images": float((equal == 1).mean())}


def picture_scores(images: Pixels, pairs: FacePairs) -> dict[str, float | None]:
    """Return the mean PSNR and SSIM of `images` (uint8 [N,H,W,3]), None if not finite, and `consistency_scores`."""
    return {"psnr": _finite(psnr(images, pairs.hr).mean()), "ssim": _finite(ssim(images, pairs.hr).mean()),
            **consistency_scores(images, pairs.lr)}


def _finite(value: float) -> float | None:
    """Return `value`, or None for infinity and NaN, which JSON does not support."""
    return float(value) if math.isfinite(value) else None


@dataclass(frozen=True)
class DecodedPictures:
    """The results of one variant of decoding on a data set: images, uint8 [N,H,W,3], and a trace of each.

    `seconds_per_image` is the wall-clock time of the timed batches / number of their images.
    """

    images: Pixels
    traces: list[RowTrace]
    seconds_per_image: float

    def statistics(self) -> dict[str, float]:
        """Return the decoding statistics over all images."""
        return {"mean_accepted_block_size": mean_accepted_block_size(self.traces),
                "model_calls_per_image": sum(trace.model_calls for trace in self.traces) / len(self.traces),
                "seconds_per_image": self.seconds_per_image}


def decode_interleaved(
    sources: Pixels, upscaler: Upscaler, variants: dict[str, DecodeConfig], batch_size: int,
) -> dict[str, DecodedPictures]:
    """Decode every batch of `sources`, uint8 [N,h,w,3], with each variant in turn: other load slows all alike.

    An untimed decoding of the first batch warms up (compilation, graph capture, caches). A shorter last batch is not
    timed unless it is the only batch.
    """
    keys = [image_key(source, 1) for source in sources]
    images: dict[str, list[Pixels]] = {variant: [] for variant in variants}
    traces: dict[str, list[RowTrace]] = {variant: [] for variant in variants}
    seconds, timed = dict.fromkeys(variants, 0.0), 0
    for options in variants.values():
        upscaler(sources[:batch_size], options, keys=keys[:batch_size])
    for start in tqdm(range(0, len(sources), batch_size), "decoding", unit="batch", disable=None):
        batch = sources[start:start + batch_size]
        is_timed = start == 0 or len(batch) == batch_size
        timed += is_timed * len(batch)
        for variant, options in variants.items():
            result = upscaler(batch, options, keys=keys[start:start + batch_size])
            images[variant].append(result.images)
            traces[variant].extend(result.traces)
            seconds[variant] += is_timed * result.seconds
    return {name: DecodedPictures(
        np.concatenate(images[name]), traces[name], seconds[name] / timed) for name in variants}


def bits_per_dim(sources: Pixels, targets: Pixels, upscaler: Upscaler, batch_size: int) -> Scores:
    """Return the bits/dim of `targets` (uint8 [N,H,W,3]) given `sources` (uint8 [N,h,w,3]), float64 [N]."""
    starts = tqdm(range(0, len(sources), batch_size), "bits/dim", unit="batch", disable=None)
    return np.concatenate([upscaler.bits_per_dim(sources[i:i + batch_size], targets[i:i + batch_size]) for i in starts])


def mean_bits_per_dim(sources: Pixels, targets: Pixels, upscaler: Upscaler, batch_size: int) -> float:
    """Return the mean of `bits_per_dim`."""
    return float(bits_per_dim(sources, targets, upscaler, batch_size).mean())


def half_width(scores: Scores) -> float | None:
    """Return half the width of Student's 95 % confidence interval of the mean of `scores`; None for a single image."""
    from scipy import stats  # slow to import

    return float(stats.t.ppf(0.975, len(scores) - 1) * stats.sem(scores)) if len(scores) > 1 else None


def evaluate_likelihood(pairs: FacePairs, upscaler: Upscaler, batch_size: int = 16) -> dict[str, Any]:
    """Return the mean bits/dim of the true images under p1 and its `half_width`, as a report serialisable as JSON.

    Raises:
        ConfigError: the batch size is not positive.
    """
    require(batch_size >= 1, f"--batch-size must be at least 1, not {batch_size}")
    bits = bits_per_dim(pairs.lr, pairs.hr, upscaler, batch_size)
    return {"images": len(pairs), "checkpoint": f"{upscaler.name}@{upscaler.revision}",
            "batch_size": min(batch_size, len(pairs)),
            "bits_per_dim": float(bits.mean()), "bits_per_dim_half_width": half_width(bits)}


def likelihood_text(report: dict[str, Any]) -> str:
    """Return the bits/dim and interval in a report of `evaluate_likelihood` or `evaluate_images` as text."""
    half = report["bits_per_dim_half_width"]
    return f"bits/dim {report['bits_per_dim']:.3f}" + ("" if half is None else f" (95 % interval +-{half:.3f})")


def evaluate_images(
    pairs: FacePairs, upscaler: Upscaler, decode: DecodeConfig, batch_size: int = 16, greedy: bool = True,
) -> tuple[dict[str, Any], dict[str, Pixels]]:
    """Score blockwise decoding with the settings `decode`, and nearest and bicubic enlargement of the same images.

    With `greedy`, block size 1 is decoded as well, for agreement and speed-up; at a positive temperature it samples
    with the same noise.

    Returns:
        The report, serialisable as JSON; and the pictures by method, each uint8 [N,H,W,3].

    Raises:
        ConfigError: `decode` does not match the checkpoint, or the batch size is not positive.
    """
    decode = resolve_options(decode, upscaler)
    report = {**evaluate_likelihood(pairs, upscaler, batch_size), "config": decode.to_dict()}
    # With inputs shifted by one image, only a network that ignores its input has the same bits/dim.
    report["bits_per_dim_wrong_input"] = None if len(pairs) == 1 else mean_bits_per_dim(
        np.roll(pairs.lr, 1, axis=0), pairs.hr, upscaler, batch_size)
    variants = {"greedy": decode.sequential()} if greedy else {}
    decoded = decode_interleaved(pairs.lr, upscaler, {**variants, "blockwise": decode}, batch_size)
    pictures = {method: pairs.task.enlarge(pairs.lr, method) for method in ("nearest", "bicubic")}
    pictures.update({variant: result.images for variant, result in decoded.items()})
    report["methods"] = {method: picture_scores(images, pairs) for method, images in pictures.items()}
    for variant, result in decoded.items():
        report["methods"][variant].update(result.statistics())
    if greedy:
        report["agreement"] = agreement(pictures["blockwise"], pictures["greedy"], pairs.hr)
        report["speed_up"] = decoded["greedy"].seconds_per_image / max(decoded["blockwise"].seconds_per_image, 1e-9)
    return report, pictures


def report_table(report: dict[str, Any]) -> str:
    """Return the report of `evaluate_images` as text."""
    config = report["config"]
    lines = [f"{report['images']} images, {report['checkpoint']}, block size {config['block_size']}, "
             f"{config['accept']}, temperature {config['temperature']}, batches of {report['batch_size']}",
             *method_lines(report["methods"])]
    lines.append(f"{likelihood_text(report)}, with a wrong input {number_text(report['bits_per_dim_wrong_input'], 3)}")
    if "agreement" in report:
        scores = report["agreement"]
        lines.append(f"speed-up over greedy {report['speed_up']:.2f}; "
                     f"PSNR {number_text(scores['psnr_difference'], 3)} dB above greedy's, "
                     f"PSNR to greedy {number_text(scores['psnr_to_greedy'], 2)} dB, "
                     f"equal tokens {scores['equal_tokens']:.2%}, identical images {scores['identical_images']:.1%}")
    return "\n".join(lines)


def method_lines(methods: dict[str, dict[str, float | None]]) -> list[str]:
    """Return the scores by method as the lines of a text table, with "-" for a score that a method lacks."""
    columns = {
        "psnr": ("PSNR dB", ".2f"), "ssim": ("SSIM", ".3f"), "consistency_rmse": ("consistency", ".2f"),
        "lr_psnr": ("LR-PSNR dB", ".2f"), "consistent_images": ("consistent", ".1%"),
        "mean_accepted_block_size": ("mean accepted", ".2f"), "model_calls_per_image": ("model calls", ".1f"),
        "seconds_per_image": ("s/image", ".3f"),
    }
    rows = {"": [title for title, _ in columns.values()]}
    for method, scores in methods.items():
        values = ((scores.get(name), form) for name, (_, form) in columns.items())
        rows[method] = ["-" if value is None else format(value, form) for value, form in values]
    first, widths = max(map(len, rows)), [max(map(len, cells)) + 2 for cells in zip(*rows.values(), strict=True)]
    return [method.ljust(first) + "".join(map(str.rjust, cells, widths)) for method, cells in rows.items()]


def contact_sheet(columns: dict[str, Pixels], scale: int = 4, caption_height: int = 16) -> Pixels:
    """Return a sheet with one captioned column per method and one row per image, the first `SHEET_ROWS`.

    `columns` has pictures by caption, each uint8 [N,H,W,3]. The sheet is uint8 [caption_height + rows * H * scale,
    columns * W * scale, 3].
    """
    strips = [np.concatenate(list(images[:SHEET_ROWS])) for images in columns.values()]
    body = np.concatenate(strips, axis=1).repeat(scale, axis=0).repeat(scale, axis=1)
    sheet = Image.new("RGB", (body.shape[1], body.shape[0] + caption_height), "white")
    sheet.paste(Image.fromarray(body), (0, caption_height))
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default()
    for index, caption in enumerate(columns):
        draw.text((index * body.shape[1] // len(columns) + 3, 2), caption, fill="black", font=font)
    return np.asarray(sheet)
