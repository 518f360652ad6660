"""Predictions of the literature's formulas for blockwise decoding.

The formulas are from Leviathan et al. (2023), "Fast Inference from Transformers via Speculative
Decoding", section 3, and Fu et al. (2024), "Break the Sequential Dependency of LLM Inference Using
Lookahead Decoding", section 4. In their notation, alpha is the acceptance rate E[min(p, q)], in [0,
1]. gamma is the number of proposals per step, so our block size is gamma + 1. c is the cost of a
proposal in calls of the verifier for one token, at least 0. candidates is the number b of
candidates verified per step. The formulas assume that every proposal passes with the same
probability, independently of the other proposals. A number out of range is a ConfigError.
"""

from __future__ import annotations

import math
from typing import cast

import numpy as np
import torch

from superres.config import require
from superres.decoding.loop import Loop
from superres.decoding.plain.engine import PlainRows
from superres.decoding.plain.sampling import SpeculativeSampler
from superres.decoding.trace import RowTrace


def expected_tokens(alpha: float, gamma: int, candidates: int = 1) -> float:
    """Return the expected number of tokens per step.

    For the best of several candidates it is gamma + 1 minus the sum of (1 - alpha**i)**candidates
    for i = 1..gamma (Fu et al., equation 5). For one candidate this equals (1 - alpha**(gamma + 1))
    / (1 - alpha).
    """
    require(0 <= alpha <= 1, f"the acceptance rate must be in [0, 1], not {alpha}")
    require(gamma >= 0, f"gamma must be at least 0, not {gamma}")
    require(candidates >= 1, f"there must be at least 1 candidate, not {candidates}")
    return gamma + 1 - math.fsum((1 - alpha**i) ** candidates for i in range(1, gamma + 1))


def improvement_factor(alpha: float, gamma: int, c: float, verify: float = 1.0,
                       candidates: int = 1) -> float:
    """Return the predicted speed-up of blockwise decoding: expected tokens / (gamma * c + verify).

    `verify` is the cost of a verifier call for gamma + 1 tokens in the unit of c. The paper assumes
    1, which holds if reading the weights dominates.
    """
    require(c >= 0 and verify > 0, f"costs must be positive, not c {c} and {verify}")
    return expected_tokens(alpha, gamma, candidates) / (gamma * c + verify)


def best_gamma(alpha: float, c: float, most: int, more: float = 0.0, candidates: int = 1) -> int:
    """Return the number of proposals per step, 0..`most`, with the best predicted speed-up; the
    smallest of equals.

    `more` is the additional cost of a verifier call per proposal, in the unit of c; 0 in the paper.
    """
    return max(range(most + 1), key=lambda gamma: improvement_factor(alpha, gamma, c,
                                                                     1 + more * gamma, candidates))


def acceptance_rate(traces: list[RowTrace], block_size: int, candidates: int = 1) -> float:
    """Estimate alpha from the traces of decoding with block size k; 0.0 if no proposal was
    accepted.

    For one candidate, alpha is the share of verified proposals that were accepted. The proposals of
    a block are verified up to the first rejection; the last block of a sequence ends without a
    rejection. Block verification (`SpeculativeSampler`) accepts more, so that the share is larger
    than E[min(p, q)] from two proposals per step on. For several candidates,
    the traces record only the best candidate of each step. alpha is then the maximum-likelihood
    value in steps of 0.001: the best of b candidates reaches i proposals with probability 1 - (1 -
    alpha**i)**b, as in `expected_tokens`.
    """
    passed = [count - 1 for trace in traces for count in trace.accepted]
    failed = [count - 1 for trace in traces for count in trace.accepted[:-1] if count < block_size]
    if candidates == 1:
        return sum(passed) / (sum(passed) + len(failed)) if any(passed) else 0.0
    reached, stopped = (np.bincount(counts, minlength=block_size) for counts in (passed, failed))
    alphas = np.linspace(0, 1, 1001)
    survival = 1 - (1 - alphas[:, None] ** np.arange(block_size + 1)) ** candidates  # [1001, k + 1]
    ends = survival[:, :-1] - survival[:, 1:]  # [1001, k]
    likelihood = np.zeros(len(alphas))
    for counts, probability in ((stopped, ends), (reached - stopped, survival[:, :-1])):
        seen = counts > 0
        with np.errstate(divide="ignore"):  # impossible counts have log probability -inf
            likelihood += np.log(probability[:, seen]) @ counts[seen]
    return float(alphas[likelihood.argmax()])


@torch.inference_mode()
def mean_overlap(loop: Loop) -> float:
    """Run a loop on torch with speculative sampling to its end, and return the mean of sum(min(p,
    q)) over verified proposals; 0.0 without any.

    It estimates alpha without the sampling noise of the verdicts.
    """
    rows = cast(PlainRows, loop.decoder)
    state, total, count = rows.plain.state, 0.0, 0
    while not loop.done():
        sampler, before = rows.plain.sampler, state.position.clone()
        loop.run(1)
        if not isinstance(sampler, SpeculativeSampler) or sampler.draws is None:
            continue
        # The proposal after the last accepted token was verified too, unless the sequence ends
        # there or has just begun.
        verified = state.position - before - (state.position >= state.limit).long()
        verified = verified.masked_fill(before < 0, 0)  # [B]
        p, q = sampler.draws.p, sampler.draws.q  # [B, gamma, V]
        tested = state.columns[: p.shape[1]] < verified.unsqueeze(1)  # [B, gamma]
        overlap = torch.minimum(p, q).sum(-1)  # [B, gamma]
        total, count = total + float((overlap * tested).sum()), count + int(tested.sum())
    return total / count if count else 0.0
