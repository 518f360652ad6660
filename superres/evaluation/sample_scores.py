"""Scores of several samples per input."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from superres.config import DecodeConfig
from superres.evaluation.detail import swings
from superres.evaluation.drawing import draw_samples
from superres.evaluation.images import detail_lines, difference_lines, method_lines, stage_options
from superres.evaluation.intervals import Entries, with_interval
from superres.evaluation.picture_scores import (
    GREEDY,
    all_entries,
    compared_scores,
    mean_squared_error,
    psnr,
    ssim,
)
from superres.pictures.read import Pixels
from superres.system.progress import track
from superres.tasks.face_data import FacePairs

if TYPE_CHECKING:
    from superres.pipeline.upscaled import Upscaled
    from superres.pipeline.upscaler import Upscaler


def diversity(samples: Pixels) -> float:
    """Return the mean RMSE in grey levels between two samples of an input, over all pairs of
    samples and all inputs.

    `samples` is uint8 [N,M,H,W,C], M >= 2 samples of each of N inputs.
    """
    pairs = itertools.combinations(range(samples.shape[1]), 2)
    return float(np.mean([np.sqrt(mean_squared_error(samples[:, i], samples[:, j]))
                          for i, j in pairs]))


def local_diversity(samples: Pixels, truth: Pixels, cell: int) -> float:
    """Return how much better the best samples of each place are than the best whole sample, in per
    cent.

    This is the diversity score of Lugmayr et al. 2021, "NTIRE 2021 Learning the Super-Resolution
    Space Challenge": (global best - local best) / global best, averaged over inputs. The challenge
    measures distances with LPIPS at every pixel; here they are mean squared errors of square cells,
    so the figures cannot be compared with the challenge's.

    `samples` is uint8 [N,M,H,W,C] and `truth` uint8 [N,H,W,C]; `cell`, the side of a cell, divides
    H and W.

    Returns:
        0 to 100; 0 if the samples of every input are equal. An input with a perfect sample counts
        0.
    """
    count, drawn, height, width = samples.shape[:4]
    squares = np.square(samples.astype(np.float64) - truth[:, None])
    # [N, M, h, w]
    places = squares.reshape(count, drawn, height // cell, cell, width // cell, -1).mean((3, 5))
    whole = places.mean((2, 3)).min(axis=1)  # [N]
    local = places.min(axis=1).mean((1, 2))
    return float(100 * np.divide(whole - local, whole, out=np.zeros(count), where=whole > 0).mean())


def sample_scores(samples: Pixels, likeliest: Pixels, greedy: Pixels,
                  pairs: FacePairs) -> dict[str, Entries]:
    """Return the scores by method of `samples`, uint8 [N,M,H,W,3], and of greedy decoding, uint8
    [N,H,W,3].

    "one sample" is the mean over all samples. "best of M" is the mean over inputs of the best
    sample by each measure. "mean of M" scores the rounded mean picture of each input's samples, and
    "likeliest of M" the pictures `likeliest`, uint8 [N,H,W,3].
    """
    count = samples.shape[1]
    flat, truth = samples.reshape(-1, *samples.shape[2:]), pairs.hr.repeat(count, axis=0)
    psnrs, ssims = (measure(flat, truth).reshape(-1, count).max(axis=1) for measure in (psnr, ssim))
    mean = np.rint(samples.mean(axis=1)).astype(np.uint8)
    scores = compared_scores({GREEDY: greedy, "one sample": flat,
                              f"likeliest of {count}": likeliest, f"mean of {count}": mean}, pairs)
    scores[f"best of {count}"] = with_interval("psnr", psnrs) | with_interval("ssim", ssims)
    return scores


def pictures_of(drawn: Sequence[Upscaled], count: int) -> Pixels:
    """Return the pictures of batches that have `count` samples per input, uint8 [N,M,H,W,3]."""
    images = np.concatenate([batch.images for batch in drawn])
    return images.reshape(-1, count, *images.shape[1:])


def likeliest_of(drawn: Sequence[Upscaled], count: int) -> Pixels:
    """Return the picture of each input that p1 finds likeliest, uint8 [N,H,W,3]; the arguments are
    as above."""
    bits = np.concatenate([batch.bits_per_dim
                           for batch in track(drawn, "judging samples", "batches")])
    best = bits.reshape(-1, count).argmin(axis=1)
    likeliest: Pixels = pictures_of(drawn, count)[np.arange(len(best)), best]
    return likeliest


def evaluate_samples(
    pairs: FacePairs, upscaler: Upscaler, decode: DecodeConfig, samples: int, batch_size: int,
    greedy: Pixels | None,
) -> dict[str, Any]:
    """Score several samples per input (at least 2) and greedy decoding.

    `greedy` are the pictures of greedy decoding, which are decoded if they are None.

    Raises:
        ConfigError: `decode` does not sample, or does not match the checkpoint.
    """
    decode = stage_options(decode, upscaler, samples)
    drawn = draw_samples(pairs.lr, upscaler, decode, range(1, samples + 1), batch_size)
    pictures, likeliest = pictures_of(drawn, samples), likeliest_of(drawn, samples)
    if greedy is None:
        greedy = pictures_of(draw_samples(pairs.lr, upscaler, decode.greedy(), [1], batch_size),
                             1)[:, 0]
    cell = pairs.task.target // pairs.task.source
    return {"samples": samples, "diversity_rmse": diversity(pictures), "cell": cell,
            "local_diversity": local_diversity(pictures, pairs.hr, cell),
            "truth": all_entries(swings(pairs.hr, pairs.task)),
            "methods": sample_scores(pictures, likeliest, greedy, pairs)}


def samples_table(report: dict[str, Any]) -> str:
    """Return the report of `evaluate_samples` as text."""
    heading = (f"{report['samples']} samples per input, and greedy decoding; two samples of an "
               f"input differ by {report['diversity_rmse']:.2f} grey levels (RMSE); the best "
               f"sample of each {report['cell']}x{report['cell']} cell has "
               f"{report['local_diversity']:.1f} % less squared error than the best whole sample")
    methods = report["methods"]
    return "\n".join([heading, *method_lines(methods), "", *detail_lines(methods, report["truth"]),
                      "", *difference_lines(methods, GREEDY)])
