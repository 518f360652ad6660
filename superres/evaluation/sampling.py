"""Scores of sampling: several samples per input, and blockwise sampling compared with sequential sampling."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm

from superres.config import DecodeConfig, require
from superres.evaluation.pictures import (
    SHEET_ROWS,
    decode_interleaved,
    equal_tokens,
    mean_squared_error,
    method_lines,
    picture_scores,
    pooled_psnr,
    psnr,
    ssim,
)
from superres.pipeline.options import resolve_options
from superres.system.output import markdown_table, number_text
from superres.tasks.face_data import FacePairs
from superres.tasks.faces import image_key
from superres.tasks.pictures import Pixels

if TYPE_CHECKING:
    from superres.pipeline.upscaler import Upscaler

EPSILONS = (0, 2, 4, 8)
"""Distances of acceptance in grey levels; 0 is exact."""


def diversity(samples: Pixels) -> float:
    """Return the mean RMSE between two samples of an input, over all pairs of samples and all inputs.

    Args:
        samples: uint8 [N,M,H,W,C], M >= 2 samples of each of N inputs.

    Returns:
        RMSE in grey levels; 0 if the samples of every input are equal.
    """
    pairs = itertools.combinations(range(samples.shape[1]), 2)
    return float(np.mean([np.sqrt(mean_squared_error(samples[:, i], samples[:, j])) for i, j in pairs]))


def local_diversity(samples: Pixels, truth: Pixels, cell: int) -> float:
    """Return how much better the best samples of each place are than the best whole sample, in per cent.

    This is the diversity score of Lugmayr et al. 2021, "NTIRE 2021 Learning the Super-Resolution Space Challenge":
    (global best - local best) / global best, averaged over inputs. The challenge measures distances with LPIPS at every
    pixel; here they are mean squared errors of square cells, so the figures cannot be compared with the challenge's.

    Args:
        samples: uint8 [N,M,H,W,C], M samples of each of N inputs.
        truth: uint8 [N,H,W,C], the true images.
        cell: side of a cell, which divides H and W.

    Returns:
        0 to 100; 0 if the samples of every input are equal. An input with a perfect sample counts 0.
    """
    count, drawn, height, width = samples.shape[:4]
    squares = np.square(samples.astype(np.float64) - truth[:, None])
    places = squares.reshape(count, drawn, height // cell, cell, width // cell, -1).mean((3, 5))  # [N, M, h, w]
    whole = places.mean((2, 3)).min(axis=1)  # [N]
    local = places.min(axis=1).mean((1, 2))
    return float(100 * np.divide(whole - local, whole, out=np.zeros(count), where=whole > 0).mean())


def sample_scores(samples: Pixels, pairs: FacePairs) -> dict[str, dict[str, float | None]]:
    """Return the scores of several samples per input, by method.

    "one sample" is the mean over all samples. "best of M" is the mean over inputs of the best sample by each measure.
    "mean of M" scores the rounded mean picture of each input's samples.

    Args:
        samples: uint8 [N,M,H,W,3], M samples of each of N inputs.
        pairs: the N inputs and true images.
    """
    count = samples.shape[1]
    every = FacePairs(pairs.hr.repeat(count, axis=0), pairs.lr.repeat(count, axis=0), pairs.ids.repeat(count))
    flat = samples.reshape(-1, *samples.shape[2:])
    best = {
        name: float(measure(flat, every.hr).reshape(-1, count).max(axis=1).mean())
        for name, measure in (("psnr", psnr), ("ssim", ssim))
    }
    mean = np.rint(samples.mean(axis=1)).astype(np.uint8)
    return {
        "one sample": picture_scores(flat, every),
        f"best of {count}": {name: value if np.isfinite(value) else None for name, value in best.items()},
        f"mean of {count}": picture_scores(mean, pairs),
    }


def draw_samples(
    sources: Pixels, upscaler: Upscaler, decode: DecodeConfig, numbers: Sequence[int], batch_size: int,
) -> Pixels:
    """Draw samples of each input.

    Args:
        sources: uint8 [N,h,w,3].
        upscaler: the loaded checkpoint.
        decode: decoding settings.
        numbers: numbers of the samples, from 1, which key their noise.
        batch_size: pictures per batch.

    Returns:
        uint8 [N,M,H,W,3], M samples of each input.
    """
    keys = [image_key(source, number) for source in sources for number in numbers]
    repeated = sources.repeat(len(numbers), axis=0)
    starts = tqdm(range(0, len(keys), batch_size), "samples", unit="batch", disable=None)
    drawn = [upscaler(repeated[i:i + batch_size], decode, keys=keys[i:i + batch_size]).images for i in starts]
    return np.concatenate(drawn).reshape(len(sources), len(numbers), *drawn[0].shape[1:])


def _greedy(sources: Pixels, upscaler: Upscaler, batch_size: int) -> Pixels:
    """Return the greedily decoded pictures, uint8 [N,H,W,3]."""
    return draw_samples(sources, upscaler, DecodeConfig(block_size=1), [1], batch_size)[:, 0]


def evaluate_samples(
    pairs: FacePairs, upscaler: Upscaler, decode: DecodeConfig, samples: int, batch_size: int, first: Pixels,
) -> dict[str, Any]:
    """Score several samples per input, and greedy decoding.

    Args:
        pairs: inputs and true images.
        upscaler: the loaded checkpoint.
        decode: settings of sampling.
        samples: M, number of samples per input, at least 2.
        batch_size: pictures per batch.
        first: sample 1 of each input, uint8 [N,H,W,3].

    Returns:
        The number of samples, their `diversity` and `local_diversity`, and the scores by method, serialisable as JSON.

    Raises:
        ConfigError: `decode` does not sample, or does not match the checkpoint.
    """
    decode = resolve_options(decode, upscaler, samples)
    others = draw_samples(pairs.lr, upscaler, decode, range(2, samples + 1), batch_size)
    drawn = np.concatenate([first[:, None], others], axis=1)
    methods = {
        "greedy": picture_scores(_greedy(pairs.lr, upscaler, batch_size), pairs),
        **sample_scores(drawn, pairs),
    }
    cell = pairs.task.target // pairs.task.source
    return {"samples": samples, "diversity_rmse": diversity(drawn), "cell": cell,
            "local_diversity": local_diversity(drawn, pairs.hr, cell), "methods": methods}


def samples_table(report: dict[str, Any]) -> str:
    """Return the report of `evaluate_samples` as text."""
    heading = (f"{report['samples']} samples per input, and greedy decoding; two samples of an input differ by "
               f"{report['diversity_rmse']:.2f} grey levels (RMSE); the best sample of each "
               f"{report['cell']}x{report['cell']} cell has {report['local_diversity']:.1f} % less squared error than "
               "the best whole sample")
    return "\n".join([heading, *method_lines(report["methods"])])


def evaluate_coupled_sampling(
    pairs: FacePairs, upscaler: Upscaler, sampling: DecodeConfig, batch_size: int = 16,
) -> tuple[dict[str, Any], dict[str, Pixels]]:
    """Compare blockwise sampling with acceptance by distance to sequential sampling with the same noise.

    The block size is the number of prediction heads. At epsilon 0 the samples equal those of sequential sampling, up to
    rounding in float32 kernels of another width.

    Args:
        pairs: inputs and true images.
        upscaler: the loaded checkpoint.
        sampling: settings of sampling, whose block size and acceptance are replaced.
        batch_size: images per batch.

    Returns:
        The report, serialisable as JSON, with one row per variant of sampling; and pictures of the first inputs for
        `superres.evaluation.pictures.contact_sheet`.

    Raises:
        ConfigError: the temperature is 0, or a number is out of range.
    """
    require(batch_size >= 1, f"--batch-size must be at least 1, not {batch_size}")
    sequential = sampling.sequential()
    require(sequential.is_sampling, "--temperature 0 is greedy decoding; give one above 0, such as 0.9")
    block_size = upscaler.model_config.prediction_heads
    blocks = dataclasses.replace(sequential, block_size=block_size, accept="distance")
    variants = {"sequential": sequential,
                **{f"epsilon {epsilon}": dataclasses.replace(blocks, epsilon=epsilon) for epsilon in EPSILONS}}
    decoded = decode_interleaved(pairs.lr, upscaler, variants, batch_size)
    reference = decoded["sequential"]
    rows = {
        variant: {
            **result.statistics(),
            "speed_up": reference.seconds_per_image / max(result.seconds_per_image, 1e-9),
            "equal_tokens": float(equal_tokens(result.images, reference.images).mean()),
            "psnr_to_sequential": pooled_psnr(result.images, reference.images),
            **picture_scores(result.images, pairs),
        }
        for variant, result in decoded.items()
    }
    report = {
        "images": len(pairs), "checkpoint": f"{upscaler.name}@{upscaler.revision}", "device": str(upscaler.device),
        "batch_size": min(batch_size, len(pairs)), "block_size": block_size,
        "temperature": sampling.temperature, "seed": sampling.seed, "ways": rows,
    }
    shown = pairs.lr[:SHEET_ROWS]
    pictures = {"input": pairs.task.enlarge(shown, "nearest"), "greedy": _greedy(shown, upscaler, batch_size)}
    # Epsilon 0 has the same samples as sequential sampling.
    pictures.update({name: result.images[:SHEET_ROWS] for name, result in decoded.items() if name != "epsilon 0"})
    return report, pictures


def coupled_sampling_markdown(report: dict[str, Any]) -> str:
    """Return the report of `evaluate_coupled_sampling` as a Markdown document."""
    columns = {
        "mean accepted block size": ("mean_accepted_block_size", 2), "model calls": ("model_calls_per_image", 1),
        "s/image": ("seconds_per_image", 3), "speed-up": ("speed_up", 2), "equal tokens": ("equal_tokens", 4),
        "PSNR to sequential, dB": ("psnr_to_sequential", 2), "PSNR, dB": ("psnr", 2), "SSIM": ("ssim", 3),
        "consistency": ("consistency_rmse", 2), "LR-PSNR, dB": ("lr_psnr", 2),
    }
    rows = [
        [variant, *(number_text(scores[name], digits) for name, digits in columns.values())]
        for variant, scores in report["ways"].items()
    ]
    heading = (f"Blockwise sampling with k = {report['block_size']}, and sequential sampling with the same noise: "
               f"temperature {report['temperature']}, seed {report['seed']}, "
               f"{report['images']} images, batches of {report['batch_size']}, {report['device']}, "
               f"{report['checkpoint']}.")
    return f"# Coupled sampling\n\n{heading}\n\n{markdown_table(['', *columns], rows)}\n"
