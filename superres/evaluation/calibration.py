"""Fit the coefficients of `superres.decoding.confidence` to a checkpoint, and measure the calibration error."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from superres.config import Confidence, DecodeConfig
from superres.config.decoding import LARGEST_COEFFICIENT
from superres.decoding.confidence import Judged, passing
from superres.decoding.loop import BlockwiseLoop
from superres.nn.engines.torch_model import StepModel
from superres.nn.model import EncoderDecoder

EXACT_REACH = 0.5
"""Reach of exact acceptance. The coefficients fitted to it serve every reach."""

IMAGES = 16
"""Number of images to fit to and to measure on."""

BINS = 15
"""Number of equal intervals of the probability for the calibration error."""

PRECISION = 0.005
"""Smallest step of the search for the coefficients."""


@torch.inference_mode()
def verified_proposals(model: EncoderDecoder, source: torch.Tensor) -> np.ndarray | None:
    """Decode exactly with all heads, and return the proposals that were verified.

    Args:
        model: the network.
        source: source tokens [B, S].

    Returns:
        Row, centre, slope, token and verdict (1 if accepted) of each proposal, float64 [N, 5]; None if the network has
        no ordinal heads, or no free choice of its proposals.
    """
    engine, count = StepModel(model), model.config.prediction_heads
    if not model.config.ordinal_output or model.config.free_scores or count == 1:
        return None
    rows = torch.arange(len(source), device=source.device)
    loop = BlockwiseLoop(engine, engine.session(source, count), DecodeConfig(), rows, count)
    parts, offset = [], np.arange(1, count)
    while not loop.done():
        judged = loop.decoding.judged
        loop.decoding.judged = Judged(loop.decoding.choice)
        loop.iterate()
        if judged is None or judged.seen is None:
            continue
        position, accepted, _ = loop.recorder.since(len(loop.recorder) - 1)
        reached = (offset <= accepted.T) & (position + accepted < loop.state.length).T  # [B, K - 1]
        seen = np.stack([tensor.cpu().double().numpy() for tensor in judged.seen])  # [3, B, K - 1]
        row = np.broadcast_to(np.arange(len(source))[:, None], reached.shape)
        verdict = offset < accepted.T
        parts.append(np.stack([row, *seen, verdict])[:, reached].T)
    return np.concatenate(parts)


def probabilities(confidence: Confidence, proposals: np.ndarray, vocabulary: int) -> np.ndarray:
    """Return the probability of acceptance of `proposals`, from `verified_proposals`."""
    return passing(confidence, proposals[:, 1], proposals[:, 2], proposals[:, 3], EXACT_REACH, vocabulary - 1)


def fit_confidence(proposals: np.ndarray, vocabulary: int) -> Confidence:
    """Return the coefficients with the largest likelihood of the verdicts of `proposals`."""
    accepted = proposals[:, 4] > 0

    def loss(values: tuple[float, float]) -> float:
        chance = probabilities(Confidence(*values), proposals, vocabulary)
        return float(-np.log(np.clip(np.where(accepted, chance, 1 - chance), 1e-6, 1)).sum())

    best, step = (0.0, 1.0), 1.0
    least = loss(best)
    while step >= PRECISION:
        tries = [(best[0] + x * step, best[1] + y * step) for x in (-1, 0, 1) for y in (-1, 0, 1)]
        losses = {one: loss(one) for one in tries if max(map(abs, one)) <= LARGEST_COEFFICIENT}
        nearest = min(losses, key=losses.__getitem__)
        if losses[nearest] < least:
            best, least = nearest, losses[nearest]
        else:
            step /= 2
    return Confidence(round(best[0], 4), round(best[1], 4))


def ranking_quality(chance: np.ndarray, accepted: np.ndarray) -> float | None:
    """Return the probability that an accepted proposal has a larger `chance` than a rejected one (AUC)."""
    positive = int(accepted.sum())
    if positive in (0, len(accepted)):
        return None
    _, place, count = np.unique(chance, return_inverse=True, return_counts=True)
    rank = (np.cumsum(count) - (count - 1) / 2)[place]  # equal chances share their mean rank
    return float((rank[accepted].sum() - positive * (positive + 1) / 2) / (positive * (len(accepted) - positive)))


def calibration_error(chance: np.ndarray, accepted: np.ndarray) -> float:
    """Return the mean difference between the `chance` and the accepted share, over `BINS` intervals of the chance."""
    interval = np.minimum((chance * BINS).astype(int), BINS - 1)
    return float(np.abs(np.bincount(interval, chance - accepted, BINS)).sum() / max(len(chance), 1))


def calibrate(model: EncoderDecoder, source: torch.Tensor) -> tuple[Confidence | None, dict[str, Any] | None]:
    """Fit the coefficients on every other source, and report on the rest; (None, None) if `model` has no such heads.

    Args:
        model: the network.
        source: source tokens [B, S], at least two.
    """
    proposals = verified_proposals(model, source) if len(source) > 1 else None
    if proposals is None:
        return None, None
    held_out, vocabulary = proposals[:, 0] % 2 == 1, model.config.vocabulary
    confidence = fit_confidence(proposals[~held_out], vocabulary)
    rest = proposals[held_out]
    chance, accepted = probabilities(confidence, rest, vocabulary), rest[:, 4] > 0
    report = {**confidence.to_dict(), "proposals": len(rest), "accepted": float(accepted.mean()),
              "auc": ranking_quality(chance, accepted), "calibration_error": calibration_error(chance, accepted)}
    return confidence, report


def confidence_line(report: dict[str, Any]) -> str:
    """Return the report of `calibrate` as a line of text."""
    auc = "" if report["auc"] is None else f"AUC {report['auc']:.2f}, "
    return (f"confidence: {auc}calibration error {report['calibration_error']:.3f} on {report['proposals']} proposals, "
            f"of which {report['accepted']:.0%} were accepted")
