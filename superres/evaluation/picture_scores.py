"""Scores of pictures against the true pictures, their inputs and one another: pure functions of
uint8 arrays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from superres.evaluation.detail import detail_scores
from superres.evaluation.intervals import Entries, Estimate
from superres.evaluation.perceptual import LEAST_SIDE, Scores, st_lpips
from superres.pictures.read import Pixels
from superres.tasks.face_data import FacePairs
from superres.tasks.faces import area_reduce

BASELINE, GREEDY = "lanczos", "greedy"
REFERENCES = (BASELINE, GREEDY)
"""The enlargement and the decoding from which the differences of the other methods are given."""


def mean_squared_error(images: Pixels, references: Pixels) -> Scores:
    """Return each image's mean squared error in squared grey levels, float64 [N], from uint8
    [N,H,W,C]."""
    difference = images.astype(np.float64) - references.astype(np.float64)
    error: Scores = np.square(difference).reshape(len(images), -1).mean(axis=1)
    return error


def psnr(images: Pixels, references: Pixels) -> Scores:
    """Return each image's PSNR in dB for a peak of 255, float64 [N], infinite if equal, from uint8
    [N,H,W,C]."""
    with np.errstate(divide="ignore"):
        return 10 * np.log10(255.0**2 / mean_squared_error(images, references))


def ssim(images: Pixels, references: Pixels) -> Scores:
    """Return each image's structural similarity as Wang et al. (2004), float64 [N], from uint8
    [N,H,W,C] from 11x11."""
    from skimage import metrics  # slow to import

    score: Callable[..., float] = metrics.structural_similarity
    return np.array([
        score(*pair, gaussian_weights=True, sigma=1.5, use_sample_covariance=False, data_range=255,
              channel_axis=-1)
        for pair in zip(images, references, strict=True)], dtype=np.float64)


def consistency(images: Pixels, sources: Pixels) -> Scores:
    """Return the RMSE in grey levels between each image, reduced to the rounded means of its cells,
    and its input.

    True images score slightly above 0 if they and the inputs were reduced separately from the
    photographs, each with truncation. `images` are uint8 [N,H,W,C], `sources` uint8 [N,h,w,C]; the
    result is float64 [N].
    """
    return np.sqrt(mean_squared_error(area_reduce(images, *sources.shape[1:3], is_reduced=True),
                                      sources))


def consistency_scores(images: Pixels, sources: Pixels) -> dict[str, Estimate]:
    """Return scores of all images' `consistency`, with the same arguments.

    "consistency_rmse" is its mean. "lr_psnr" is the PSNR of the reduced images to the inputs in dB,
    as of Lugmayr et al. 2021, "NTIRE 2021 Learning the Super-Resolution Space Challenge", from the
    mean squared error over all images; infinite if all are equal. The challenge averages the PSNRs
    of the images, which are infinite for consistent images. "consistent_images" is the share of
    images that reduce to exactly their input.
    """
    error = consistency(images, sources)
    return {"consistency_rmse": Estimate.mean(error), "lr_psnr": _pooled_psnr(np.square(error)),
            "consistent_images": Estimate.mean((error == 0).astype(np.float64))}


def equal_tokens(images: Pixels, others: Pixels) -> Scores:
    """Return the share of equal tokens (intensities) in each pair of images, float64 [N], from
    uint8 [N,H,W,C]."""
    share: Scores = (images == others).reshape(len(images), -1).mean(axis=1, dtype=np.float64)
    return share


def pooled_psnr(images: Pixels, references: Pixels) -> float | None:
    """Return the PSNR in dB of the mean squared error over all images (uint8 [N,H,W,C]); None if
    all are identical.

    A mean of PSNRs would be infinite as soon as one pair of images is identical.
    """
    return _pooled_psnr(mean_squared_error(images, references)).entries("psnr")["psnr"]


def _pooled_psnr(errors: Scores) -> Estimate:
    return Estimate.ratio(np.full(len(errors), 255.0**2), errors).decibels()


def agreement(images: Pixels, greedy: Pixels, truth: Pixels) -> Entries:
    """Return the agreement of `images` with the greedily decoded images; all arguments are uint8
    [N,H,W,C].

    `psnr_to_greedy` is a `pooled_psnr`. `psnr_difference` is the mean PSNR to the truth minus that
    of greedy decoding.
    """
    equal = equal_tokens(images, greedy)
    difference = Estimate.mean(psnr(images, truth)).minus(Estimate.mean(psnr(greedy, truth)))
    return {"psnr_to_greedy": pooled_psnr(images, greedy), **difference.entries("psnr_difference"),
            "equal_tokens": float(equal.mean()), "identical_images": float((equal == 1).mean())}


def quality(images: Pixels, pairs: FacePairs) -> dict[str, Estimate]:
    """Return PSNR, SSIM, ST-LPIPS, `detail_scores` and `consistency_scores` of images, with
    intervals over inputs.

    ST-LPIPS needs the `scores` extra and sides of at least `LEAST_SIDE`. `images` are uint8 [N *
    M,H,W,3], M successive ones of each of the N pairs.
    """
    count = len(images) // len(pairs)
    truth, sources = pairs.hr.repeat(count, axis=0), pairs.lr.repeat(count, axis=0)
    distance = st_lpips() if pairs.task.target >= LEAST_SIDE else None
    measures = {"psnr": psnr, "ssim": ssim,
                **({"st_lpips": distance} if distance is not None else {})}
    scores = {name: Estimate.mean(measure(images, truth)) for name, measure in measures.items()}
    scores |= detail_scores(images, truth, pairs.task) | consistency_scores(images, sources)
    return {name: score.by_input(count) for name, score in scores.items()}


def picture_scores(images: Pixels, pairs: FacePairs) -> Entries:
    """Return the entries of `quality`."""
    return all_entries(quality(images, pairs))


def compared_scores(pictures: dict[str, Pixels], pairs: FacePairs) -> dict[str, Entries]:
    """Return `picture_scores` by method, and the differences from those of the `REFERENCES` among
    the methods.

    `pictures` are those of `quality` by method. The difference of a score has the name
    "<score>_above_lanczos" or "<score>_above_greedy". Its interval is that of the difference on the
    same inputs.
    """
    scores = {method: quality(images, pairs) for method, images in pictures.items()}
    compared = {}
    for method, own in scores.items():
        compared[method] = all_entries(own)
        for reference in REFERENCES:
            if reference in scores and reference != method:
                compared[method] |= all_entries(
                    {f"{name}_above_{reference}": score.minus(scores[reference][name])
                     for name, score in own.items()})
    return compared


def all_entries(scores: dict[str, Estimate]) -> Entries:
    """Return the entries of `scores` by name."""
    return {key: value for name, score in scores.items()
            for key, value in score.entries(name).items()}
