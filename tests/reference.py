"""Reference decoders for tests: slow, without a cache, and for one sequence at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from superres.config import DecodeConfig
from superres.decoding.acceptance import CRITERIA
from superres.decoding.sampling import Samplers
from superres.decoding.state import NanCheck
from superres.interfaces import ScoringModel


def require_finite(scores: Tensor) -> None:
    """Raise ScoresError if `scores` [B, W, V] are not finite."""
    check = NanCheck(*scores.shape[:2], scores.device)
    check.note(scores)
    check.check()


def sequential_reference(model: ScoringModel, source: Tensor, options: DecodeConfig, key: int = 0) -> list[int]:
    """Return the tokens of one source [1, S] by p1 alone: greedy (section 2 of the paper), or at a temperature.

    The last token may be the end token. Settings besides the sampling are ignored.
    """
    samplers = Samplers(options, torch.tensor([key], device=source.device), model.vocabulary)
    target = torch.zeros(1, model.length, dtype=torch.int64, device=source.device)
    tokens: list[int] = []
    longest = _longest(model, source)
    while len(tokens) < longest and (not tokens or tokens[-1] != model.end_token):
        position = torch.tensor([len(tokens)], device=source.device)
        scores = model.uncached_scores(source, target, position)[:, :1]
        require_finite(scores)
        tokens.append(int(samplers.at(position.unsqueeze(1))(scores)))
        target[0, len(tokens) - 1] = tokens[-1]
    return tokens


def separate_reference(
    model: ScoringModel, source: Tensor, options: DecodeConfig, block_size: int, key: int = 0
) -> tuple[list[int], list[int]]:
    """Return the tokens of one source [1, S], and the number of accepted tokens of each iteration.

    It decodes blockwise with the heads, with separate predict and verify substeps (section 3), token by token.
    """
    samplers = Samplers(options, torch.tensor([key], device=source.device), model.vocabulary)
    criterion = CRITERIA[options.accept](options)
    tokens: list[int] = []
    accepted: list[int] = []
    longest = _longest(model, source)
    while len(tokens) < longest and (not tokens or tokens[-1] != model.end_token):
        place = torch.arange(len(tokens), len(tokens) + block_size, device=source.device).unsqueeze(0)
        block: list[int] = []
        for head in range(block_size):
            heads = model.uncached_scores(source, _padded(model, source, tokens + block), place[:, 0])
            require_finite(heads[:, :1])
            block.append(int(samplers.at(place[:, head : head + 1])(heads[:, head : head + 1])))
        length, failed, barred, scored = 1, False, False, []
        while length < min(block_size, longest - len(tokens)) and block[length - 1] != model.end_token:
            position = place[:, length]
            scores = model.uncached_scores(source, _padded(model, source, tokens + block[:length]), position)[:, :1]
            require_finite(scores)
            scored.append(samplers.at(position.unsqueeze(1)).adjust(scores))
            proposed = torch.tensor([block[1 : length + 1]], device=source.device)
            # The result may depend on the whole block up to this token.
            passed = criterion.accept(proposed, torch.cat(scored, dim=1), place[:, 1 : length + 1])
            failed = failed or not passed[0, -1]
            barred = barred or bool(scored[-1][0, 0, block[length]].isneginf())
            if failed and (barred or length >= options.min_block):
                break
            length += 1
        tokens += block[:length]
        accepted.append(length)
    return tokens, accepted


def _longest(model: ScoringModel, source: Tensor) -> int:
    """Return the largest number of target tokens of one source [1, S]."""
    longest = model.session(source, 1).longest
    return model.length if longest is None or model.end_token is None else int(longest[0])


def _padded(model: ScoringModel, source: Tensor, tokens: list[int]) -> Tensor:
    target = torch.zeros(1, model.length, dtype=torch.int64, device=source.device)
    target[0, : len(tokens)] = torch.tensor(tokens, dtype=torch.int64)[: model.length]
    return target
