"""What decoding in blocks costs: measured on this machine, and predicted by the literature's formulas.

The formulas are those of Leviathan et al. (2023), "Fast Inference from Transformers via Speculative Decoding", section
3, and Fu et al. (2024), "Break the Sequential Dependency of LLM Inference Using Lookahead Decoding", section 4. In
their words: alpha is the acceptance rate E[min(p, q)], gamma the proposals a step (our block size is gamma + 1), c the
cost of a proposal in calls of the verifier. They take every proposal to pass with the same probability, whatever went
before.
"""

from __future__ import annotations

import math
import time

import numpy as np
import torch
from torch import Tensor

from superres.config import DecodeConfig, require
from superres.decoding.loop import BlockwiseLoop
from superres.decoding.sampling import SpeculativeChoice
from superres.decoding.trace import RowTrace
from superres.interfaces import ScoringModel

TIMED = (1, 2, 3, 4, 6, 8, 10, 12, 16)
"""Block sizes whose cost is measured; those between are interpolated."""

TIMED_SECONDS = 0.05
"""Time given to one block size, at least three iterations."""


def expected_tokens(alpha: float, gamma: int, branches: int = 1) -> float:
    """Return the tokens that a step is expected to yield.

    One sequence of proposals: (1 - alpha**(gamma + 1)) / (1 - alpha). Several, of which the best counts (Fu et al.,
    equation 5): gamma + 1 minus the sum of (1 - alpha**i)**branches for i = 1..gamma, which is the same for one.

    Args:
        alpha: acceptance rate in [0, 1].
        gamma: proposals in a row, at least 0.
        branches: b, sequences of proposals verified at once.

    Raises:
        ConfigError: a number is out of range.
    """
    require(0 <= alpha <= 1, f"the acceptance rate must be in [0, 1], not {alpha}")
    require(gamma >= 0, f"gamma must be at least 0, not {gamma}")
    require(branches >= 1, f"there must be at least 1 branch, not {branches}")
    return gamma + 1 - math.fsum((1 - alpha**i) ** branches for i in range(1, gamma + 1))


def improvement_factor(alpha: float, gamma: int, c: float, verify: float = 1.0, branches: int = 1) -> float:
    """Return how many times as fast decoding in blocks is: expected tokens / (gamma * c + verify).

    Args:
        alpha: acceptance rate.
        gamma: proposals a step.
        c: cost of a proposal, in verifier calls for one token.
        verify: cost of a verifier call for gamma + 1 tokens in the same unit; the paper takes it to be 1, which it is
            where reading the weights is what takes time.
        branches: see `expected_tokens`.

    Raises:
        ConfigError: a number is out of range.
    """
    require(c >= 0 and verify > 0, f"costs must be positive, not c {c} and {verify}")
    return expected_tokens(alpha, gamma, branches) / (gamma * c + verify)


def operations_factor(alpha: float, gamma: int, c: float, columns: int | None = None, branches: int = 1) -> float:
    """Return how many times as many arithmetic operations a token takes: (gamma * c + columns) / expected tokens.

    Args:
        alpha: acceptance rate.
        gamma: proposals a step.
        c: operations of a proposal over those of the verifier for a token.
        columns: tokens that the verifier reads per step; gamma + 1 if None, as in the paper.
        branches: see `expected_tokens`.

    Raises:
        ConfigError: a number is out of range.
    """
    require(c >= 0, f"the cost of a proposal must be at least 0, not {c}")
    read = gamma + 1 if columns is None else columns
    return (gamma * c + read) / expected_tokens(alpha, gamma, branches)


def best_gamma(alpha: float, c: float, most: int, more: float = 0.0, branches: int = 1) -> int:
    """Return the proposals a step, 0..`most`, that make decoding fastest; the fewest of several.

    Args:
        alpha: acceptance rate.
        c: cost of a proposal, in verifier calls for one token.
        most: the largest gamma.
        more: how much more a verifier call costs for each proposal, in the same unit; 0 in the paper.
        branches: see `expected_tokens`.

    Raises:
        ConfigError: a number is out of range.
    """
    return max(range(most + 1), key=lambda gamma: improvement_factor(alpha, gamma, c, 1 + more * gamma, branches))


def acceptance_rate(traces: list[RowTrace], block_size: int, branches: int = 1) -> float:
    """Return the acceptance rate alpha that decoding with `block_size` k has seen.

    For one sequence of proposals it is the share of verified proposals that were accepted: proposals of a block are
    verified until one fails; in the last block of a sequence, the end comes before that. Of several sequences, only the
    best one of each step is recorded: alpha is then the value in steps of 0.001 that makes the record most likely, the
    best one of b reaching i proposals with probability 1 - (1 - alpha**i)**b, as in `expected_tokens`.

    Args:
        traces: acceptance trace of each sequence.
        block_size: k.
        branches: b, sequences of proposals verified at once.

    Returns:
        alpha in [0, 1]; 0.0 where nothing was verified.
    """
    passed = [count - 1 for trace in traces for count in trace.accepted]
    failed = [count - 1 for trace in traces for count in trace.accepted[:-1] if count < block_size]
    if branches == 1:
        return sum(passed) / (sum(passed) + len(failed)) if any(passed) else 0.0
    reached, stopped = (np.bincount(counts, minlength=block_size) for counts in (passed, failed))
    alphas = np.linspace(0, 1, 1001)
    survival = 1 - (1 - alphas[:, None] ** np.arange(block_size + 1)) ** branches
    ends = survival[:, :-1] - survival[:, 1:]
    likelihood = np.zeros(len(alphas))
    for counts, probability in ((stopped, ends), (reached - stopped, survival[:, :-1])):
        seen = counts > 0
        with np.errstate(divide="ignore"):  # what cannot happen has log probability -inf
            likelihood += np.log(probability[:, seen]) @ counts[seen]
    return float(alphas[likelihood.argmax()])


@torch.inference_mode()
def mean_overlap(loop: BlockwiseLoop) -> float:
    """Decode with a loop to its end by speculative sampling, and return the mean of sum(min(p, q)) of its verdicts.

    That is alpha without the chance of the verdicts themselves. 0.0 where nothing was verified.
    """
    total, count = 0.0, 0
    while not loop.done():
        choice, before = loop.decoding.choice, loop.state.position.clone()
        loop.iterate()
        if not isinstance(choice, SpeculativeChoice) or choice.p is None:
            continue
        # What follows the last accepted token was verified, too, unless the sequence ends there or has just begun.
        verified = loop.state.position - before - (loop.state.position >= loop.state.limit).long()
        verified = verified.masked_fill(before < 0, 0)
        tested = loop.state.columns[: choice.p.shape[1]] < verified.unsqueeze(1)
        total += float((torch.minimum(choice.p, choice.q[:, :-1]).sum(-1) * tested).sum())
        count += int(tested.sum())
    return total / count if count else 0.0


def measured_costs(
    model: ScoringModel, source: Tensor, options: DecodeConfig, largest: int, padding: Tensor | None = None,
) -> list[float]:
    """Time iterations of decoding and return their seconds at block sizes 1..`largest`.

    Args:
        model: the model.
        source: source tokens [B, S] of as many rows as will be decoded.
        options: acceptance and sampling.
        largest: largest block size.
        padding: bool [B, S], as for `superres.decoding.decode.decode`.
    """
    sizes = sorted({*(size for size in TIMED if size < largest), largest})
    seconds = []
    with torch.inference_mode():
        keys = torch.arange(len(source), device=source.device)
        session = model.session(source, largest, padding)
        loop = BlockwiseLoop(model, session, options, keys, largest, fitted=True)
        for size in sizes:
            loop.resize(size)
            seconds.append(_least_seconds(loop, source.device))
    # A larger block never costs less: where it seems to, something else slowed the smaller one.
    least = np.minimum.accumulate(seconds[::-1])[::-1]
    return [float(np.interp(size, sizes, least)) for size in range(1, largest + 1)]


def _least_seconds(loop: BlockwiseLoop, device: torch.device) -> float:
    """Return the least seconds of an iteration: whatever else the machine does only ever adds to them."""
    least, spent, count = float("inf"), 0.0, 0
    while count < 4 or spent < TIMED_SECONDS:
        started = time.perf_counter()
        # Always at one place in the middle of a target, however much is accepted.
        turns = loop.burst(loop.state.length // 2)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        took = (time.perf_counter() - started) / turns
        spent += took
        count += 1
        if count > 1:  # the first still finishes a block of the size before
            least = min(least, took)
    return least
