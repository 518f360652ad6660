"""Fit the coefficients of `superres.decoding.confidence` to a checkpoint, and measure the
calibration error."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.stats import rankdata

from superres.config import Confidence, DecodeConfig
from superres.config.decode_settings import LARGEST_COEFFICIENT
from superres.decoding.algorithm import Algorithm
from superres.decoding.confidence import passing, passing_by_odds
from superres.decoding.loop import Loop
from superres.decoding.plain.confidence import HeadConfidence
from superres.decoding.plain.engine import PlainEngine
from superres.interfaces import Bool, Int64
from superres.nn.heads import RecurrentHeads
from superres.nn.model import EncoderDecoder
from superres.nn.torch_model import StepModel
from superres.pipeline.translator import Translator
from superres.pipeline.upscaler import Upscaler
from superres.tasks import translation
from superres.tasks.face_data import FacePairs
from superres.tasks.translation import TextPairs

EXACT_REACH = 0.5
"""Reach of exact acceptance. The coefficients fitted to it serve every reach."""
SENTENCES = 128
"""Number of sentences to fit to and to measure on."""
IMAGES = 16
"""Number of images to fit to and to measure on."""
BINS = 15
"""Number of equal intervals of the probability for the calibration error."""
PRECISION = 0.005
"""Smallest step of the search for the coefficients."""

Calibration = tuple[Confidence | None, dict[str, Any] | None]


@dataclass(frozen=True)
class VerifiedProposals:
    """N proposals of heads that p1 has verified: the number of their source, and whether p1
    accepted them.

    `known` has what their probability depends on: centre, slope and token of ordinal heads [3, N],
    or log-odds [1, N].
    """

    row: np.ndarray
    accepted: np.ndarray
    known: np.ndarray
    vocabulary: int

    def of(self, chosen: np.ndarray) -> VerifiedProposals:
        """Return the proposals where `chosen` is true."""
        return VerifiedProposals(self.row[chosen], self.accepted[chosen], self.known[:, chosen],
                                 self.vocabulary)

    def chance(self, confidence: Confidence) -> np.ndarray:
        """Return the probability that each is accepted [N]."""
        if len(self.known) == 1:
            return passing_by_odds(confidence, self.known[0])
        centre, slope, token = self.known
        return passing(confidence, centre, slope, token, EXACT_REACH, self.vocabulary - 1)


@torch.inference_mode()
def verified_proposals(
    model: EncoderDecoder, source: Int64, padding: Bool | None = None,
    end_token: int | None = None,
) -> VerifiedProposals | None:
    """Decode source tokens [B, S] exactly with all heads, and return the proposals that were
    verified.

    `padding` is bool [B, S], and `end_token` None if all targets have the same length.

    Returns:
        None if the network has heads that are neither ordinal nor recurrent, or no free choice of
        its proposals.
    """
    engine, count = PlainEngine(StepModel(model, end_token)), model.config.prediction_heads
    ordinal = model.config.ordinal_output and not model.config.free_scores
    if count == 1 or not (ordinal or isinstance(model.heads, RecurrentHeads)):
        return None
    decoder: Any = Algorithm(engine, DecodeConfig()).start(source, count, padding)
    loop, plain = Loop(decoder), decoder.plain
    parts, offset = [], np.arange(1, count)
    while not loop.done():
        heads = plain.head_confidence
        plain.head_confidence = HeadConfidence(plain.sampler)
        loop.run(1)
        if heads is None:
            continue
        seen = heads.seen or (torch.cat(heads.log_odds, dim=1),)
        _, accepted, _ = loop.recorder.since(len(loop.recorder) - 1)
        # [B, K - 1]
        reached = (offset <= accepted.T) & (plain.state.missing().cpu().numpy()[:, None] > 0)
        row = np.broadcast_to(np.arange(len(source))[:, None], reached.shape)
        parts.append(np.stack([row, offset < accepted.T,
                               *(part.cpu().double().numpy() for part in seen)])[:, reached])
    row, verdict, *known = np.concatenate(parts, axis=1)
    return VerifiedProposals(row, verdict > 0, np.stack(known), model.config.vocabulary)


def fit_confidence(proposals: VerifiedProposals) -> Confidence:
    """Return the coefficients with the largest likelihood of the verdicts of `proposals`."""

    def loss(values: tuple[float, float]) -> float:
        chance = proposals.chance(Confidence(*values))
        return float(-np.log(np.clip(np.where(proposals.accepted, chance, 1 - chance), 1e-6,
                                     1)).sum())

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
    """Return the probability that an accepted proposal has a larger `chance` than a rejected one
    (AUC)."""
    positive, negative = int(accepted.sum()), int((~accepted).sum())
    if not positive or not negative:
        return None
    return float((rankdata(chance)[accepted].sum() - positive * (positive + 1) / 2)
                 / (positive * negative))


def calibration_error(chance: np.ndarray, accepted: np.ndarray) -> float:
    """Return the mean difference between the `chance` and the accepted share, over `BINS` intervals
    of the chance."""
    interval = np.minimum((chance * BINS).astype(int), BINS - 1)
    return float(np.abs(np.bincount(interval, chance - accepted, BINS)).sum() / max(len(chance), 1))


def calibrate(
    model: EncoderDecoder, source: Int64, padding: Bool | None = None,
    end_token: int | None = None,
) -> Calibration:
    """Fit the coefficients on every other source, and report on the rest; (None, None) if `model`
    has no such heads."""
    proposals = verified_proposals(model, source, padding, end_token) if len(source) > 1 else None
    if proposals is None:
        return None, None
    held_out = proposals.row % 2 == 1
    rest = proposals.of(held_out)
    accepted = rest.accepted
    confidence = replace(fit_confidence(proposals.of(~held_out)),
                         accepted=round(float(accepted.mean()), 4))
    chance = rest.chance(confidence)
    report = {**confidence.to_dict(), "proposals": len(accepted),
              "auc": ranking_quality(chance, accepted),
              "calibration_error": calibration_error(chance, accepted)}
    return confidence, report


def calibrate_faces(upscaler: Upscaler, pairs: FacePairs) -> Calibration:
    """Calibrate a pipeline on the first images, and let its adaptive block sizes use the result;
    see `calibrate`."""
    found = calibrate(upscaler.model, upscaler.source_tokens(pairs.lr[:IMAGES]))
    upscaler.block_sizes.confidence = found[0] or upscaler.block_sizes.confidence
    return found


def calibrate_text(translator: Translator, pairs: TextPairs) -> Calibration:
    """Calibrate a pipeline on the first sentences as `calibrate_faces`; InvalidInputError if one is
    too long."""
    source = translator.codec.encode(pairs.source[:SENTENCES])
    found = calibrate(translator.model, source, source == translation.PADDING, translation.END)
    translator.block_sizes.confidence = found[0] or translator.block_sizes.confidence
    return found


def confidence_line(report: dict[str, Any]) -> str:
    """Return the report of `calibrate` as a line of text."""
    auc = "" if report["auc"] is None else f"AUC {report['auc']:.2f}, "
    return (f"confidence: {auc}calibration error {report['calibration_error']:.3f} on "
            f"{report['proposals']} proposals, of which {report['accepted']:.0%} were accepted")
