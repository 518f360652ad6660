"""Scores of pictures against the true pictures, their inputs and one another: pure functions of uint8 arrays."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from superres.evaluation.intervals import half_width, with_interval
from superres.evaluation.perceptual import Scores, fsim
from superres.tasks.face_data import FacePairs
from superres.tasks.faces import area_reduce
from superres.tasks.pictures import Pixels

BASELINE = "lanczos"
"""The enlargement from which the differences of the other methods are given."""


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


def consistency_scores(images: Pixels, sources: Pixels, count: int = 1) -> dict[str, float | None]:
    """Return scores of all images' `consistency`, with the same arguments, and `with_interval`.

    "consistency_rmse" is its mean. "lr_psnr" is the PSNR of the reduced images to the inputs in dB, as of Lugmayr et
    al. 2021, "NTIRE 2021 Learning the Super-Resolution Space Challenge", from the mean squared error over all images;
    None if all are equal. The challenge averages the PSNRs of the images, which are infinite for consistent images. Its
    interval is that of the mean squared error, to first order in dB.
    "consistent_images" is the share of images that reduce to exactly their input.

    `count` successive images have the same input; see `picture_scores`.
    """
    error = consistency(images, sources)
    squares = _per_input(np.square(error), count)
    half = half_width(squares) if squares.any() else None
    return {**with_interval("consistency_rmse", _per_input(error, count)), "lr_psnr": _pooled_psnr(squares),
            "lr_psnr_half_width": None if half is None else 10 / math.log(10) * half / float(squares.mean()),
            "consistent_images": float((error == 0).mean())}


def _per_input(scores: Scores, count: int) -> Scores:
    """Return the means of each `count` successive scores, which are not independent of each other."""
    means: Scores = scores.reshape(-1, count).mean(axis=1)
    return means


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

    `psnr_to_greedy` is a `pooled_psnr`. `psnr_difference` is the mean PSNR to the truth minus that of greedy decoding,
    `with_interval`.
    """
    equal = equal_tokens(images, greedy)
    return {"psnr_to_greedy": pooled_psnr(images, greedy),
            **with_interval("psnr_difference", _difference(psnr(images, truth), psnr(greedy, truth))),
            "equal_tokens": float(equal.mean()), "identical_images": float((equal == 1).mean())}


def quality(images: Pixels, references: Pixels) -> dict[str, Scores]:
    """Return each image's PSNR, SSIM and, with the `scores` extra, FSIM, float64 [N] each, from uint8 [N,H,W,3]."""
    measures = {"psnr": psnr, "ssim": ssim, "fsim": fsim()}
    return {name: measure(images, references) for name, measure in measures.items() if measure is not None}


def picture_scores(images: Pixels, pairs: FacePairs, count: int = 1) -> dict[str, float | None]:
    """Return the means of `quality`, `with_interval`, and `consistency_scores`.

    Args:
        images: uint8 [N,H,W,3].
        pairs: the truth and the input of each image.
        count: successive images with the same truth. Their scores are averaged before the interval, which is that of
            the mean over inputs.
    """
    scores = {name: _per_input(values, count) for name, values in quality(images, pairs.hr).items()}
    return mean_scores(scores) | consistency_scores(images, pairs.lr, count)


def compared_scores(pictures: dict[str, Pixels], pairs: FacePairs) -> dict[str, dict[str, float | None]]:
    """Return `picture_scores` by method, and the mean differences of `quality` from that of `BASELINE`.

    `pictures` are uint8 [N,H,W,3] by method. The difference of a score has the name "<score>_above_lanczos". Its
    interval is computed from the pictures' differences, so it is narrower than the scores' intervals.
    """
    scores = {method: quality(images, pairs.hr) for method, images in pictures.items()}
    compared = {}
    for method, own in scores.items():
        compared[method] = mean_scores(own) | consistency_scores(pictures[method], pairs.lr)
        if method != BASELINE:
            compared[method] |= mean_scores({
                f"{name}_above_{BASELINE}": _difference(values, scores[BASELINE][name])
                for name, values in own.items()})
    return compared


def mean_scores(scores: dict[str, Scores]) -> dict[str, float | None]:
    """Return the means of `scores` by name, `with_interval`."""
    means: dict[str, float | None] = {}
    for name, values in scores.items():
        means |= with_interval(name, values)
    return means


def _difference(scores: Scores, others: Scores) -> Scores:
    """Return the difference; NaN where both are infinite."""
    with np.errstate(invalid="ignore"):
        return scores - others
