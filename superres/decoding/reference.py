"""Blockwise parallel decoding (Stern et al. 2018, section 4) of one sequence, without a cache and
without a batch.

Read this file first. `superres.decoding.plain.blockwise` and the engines compute the same, faster;
the tests compare them with this file, token for token. `blockwise` is the algorithm, and `decode`
runs it on a network.

Six tokens as an example. p1 spells "banana", and the proposer guesses that the last two letters
repeat:

>>> steps = blockwise(
...     6, p1=lambda tokens: "banana..."[len(tokens)],
...     propose=lambda tokens, first: ([*tokens, first][-2:] * 2)[:2],
...     accept=lambda proposals, verified: leading(map(str.__eq__, proposals, verified)),
...     choose=lambda scores, tokens, accepted: scores)
>>> for step in steps:
...     following = step.verified[step.accepted - 1]
...     print(*step.block, "|", *step.verified, "|", step.accepted, "|", following)
b b b | a n a | 1 | a
a b a | n a n | 1 | n
n a n | a n a | 3 | a
a n a | . . . | 1 | .

A line is one model call: the proposals, what p1 chooses after each of them, how many proposals are
accepted, and the next first proposal. In the third line, both guesses are p1's own choices ("a"
after "n", and "n" after "na").
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import takewhile
from typing import Any, NamedTuple

import torch
from torch import Tensor

from superres.config import DecodeConfig
from superres.decoding.acceptance import CRITERIA, possible
from superres.decoding.plain.sampling import GREEDY, Samplers
from superres.sessions import ScoringModel


class Step(NamedTuple):
    """One iteration of the algorithm."""

    block: list[Any]  # k proposals, the first of which is p1's own choice
    verified: list[Any]  # p1's scores after each proposal
    accepted: int  # number of accepted proposals


def blockwise(
    length: int, p1: Callable[..., Any], propose: Callable[..., Any], accept: Callable[..., int],
    choose: Callable[..., Any], end_token: Any = None,  # noqa: ANN401 -- tokens and scores may be anything
) -> list[Step]:
    """Decode at most `length` tokens, up to an `end_token`, and return the iterations."""
    tokens: list[Any] = []
    steps: list[Step] = []
    first = choose(p1(tokens), tokens, 0)  # the call before the first iteration
    while len(tokens) < length and tokens[-1:] != [end_token]:
        # Propose a block: p1's own choice, and k - 1 guesses from the states of the previous call.
        block = [first, *propose(tokens, first)]
        # Verify it: the scores after each proposal, which a single model call can compute.
        verified = [p1(tokens + block[: i + 1]) for i in range(len(block))]
        # Accept the longest prefix that passes; the first token needs no verification.
        accepted = min(1 + accept(block[1:], verified), length - len(tokens))
        if end_token in block[:accepted]:
            accepted = block.index(end_token) + 1
        # Commit it. p1 has already scored what follows: the first token of the next block.
        steps.append(Step(block, verified, accepted))
        tokens = tokens + block[:accepted]
        first = choose(verified[accepted - 1], tokens, accepted)
    return steps


def leading(passed: Iterable[object]) -> int:
    """Return how many values are true before the first false one."""
    return sum(1 for _ in takewhile(bool, passed))


def tokens_of(steps: list[Step]) -> list[int]:
    """Return the decoded tokens, with the end token if there is one."""
    return [token for step in steps for token in step.block[: step.accepted]]


def decode(
    model: ScoringModel, source: Tensor, options: DecodeConfig, block_size: int = 1, key: int = 0,
    *, p1: Callable[[list[int]], Tensor] | None = None, length: int | None = None,
    propose: Callable[[list[int], int], list[int]] | None = None,
    draft: Callable[[list[int]], Tensor] | None = None,
) -> list[Step]:
    """Decode one source [1, S] in blocks of `block_size`; 1 is greedy decoding, or sampling from p1
    token by token.

    `key` is that of the sampling noise. `p1` returns p1's scores [1, 1, V] after given tokens, by
    default those of the network without a cache. Proposals are those of the prediction heads; or
    chosen one after another by the scores of `draft`, which is as `p1`; or those that `propose`
    returns for tokens and p1's next choice. `length` is the largest number of tokens, by default
    the model's for this source.
    """
    longest = (model.session(source, 1).longest if model.end_token is not None and length is None
               else None)
    most = length or (model.length if longest is None else int(longest[0]))
    # [1, k]: targets of a block at position 0
    place = torch.arange(block_size, device=source.device).unsqueeze(0)
    samplers = Samplers(options, torch.tensor([key], device=source.device), model.vocabulary)
    criterion, sampler, committed = CRITERIA[options.accept](options), GREEDY, 0

    def scores(tokens: list[int], head: int = 0) -> Tensor:
        target = torch.zeros(1, model.length, dtype=torch.int64, device=source.device)  # [1, T]
        target[0, : len(tokens)] = torch.tensor(tokens, dtype=torch.int64)[: model.length]
        position = torch.tensor([min(len(tokens) - head, model.length - 1)], device=source.device)
        return model.uncached_scores(source, target, position)[:, head : head + 1]

    def proposals_for(tokens: list[int], first: int) -> list[int]:
        if propose is not None:
            made = propose(tokens, first)
            sampler.record(torch.tensor([made], dtype=torch.int64))
            return made
        block = [first]
        # a sequential head reads the tokens of the heads before it
        for head in range(1, block_size):
            # [1, 1, V]
            own = scores(tokens + block, head) if draft is None else draft(tokens + block)
            block.append(int(sampler(own, torch.tensor([head]))))
        return block[1:]

    def accept(proposals: list[int], verified: list[Tensor]) -> int:
        if not proposals:
            return 0
        # [1, k - 1], [1, k - 1, V]
        proposed, own = torch.tensor([proposals]), torch.cat(verified[:-1], dim=1)
        target, missing = (committed + place[:, 1 : len(proposals) + 1],
                           torch.tensor([most - committed]))
        passed = sampler.accept(criterion, proposed, own, target, missing)
        # The minimum block ends before a token of probability 0.
        allowed = possible(
            proposed, sampler.adjust(own, slice(1, len(proposals) + 1))
        )[0, : options.min_block - 1]
        return max(leading(passed[0]), leading(allowed))

    def choose(verified: Tensor, tokens: list[int], accepted: int) -> int:
        nonlocal sampler, committed
        before, committed = sampler, len(tokens)
        sampler = samplers.at(committed + place)
        return int(sampler.first(verified, before, torch.tensor([accepted - 1])))

    return blockwise(most, p1 or scores, proposals_for, accept, choose, model.end_token)
