"""A second definition of verification, token by token: it decodes again what the trace of a decode proposes."""

from __future__ import annotations

import torch

from superres.decoding.acceptance import CRITERIA
from superres.decoding.sampling import Samplers


class UncachedScorer:
    """p1's scores by the network without a cache."""

    def __init__(self, model, source):
        self.model, self.source = model, source

    def __call__(self, tokens):
        """Return p1's scores of the token that follows `tokens`, [1, 1, V]."""
        target = torch.zeros(1, self.model.length, dtype=torch.int64)
        target[0, : len(tokens)] = torch.tensor(tokens, dtype=torch.int64)
        return self.model.uncached_scores(self.source, target, torch.tensor([len(tokens)]))[:, :1]


class SingleScorer:
    """p1's scores by steps of one token: other kernels than torch's have the same bits at any width."""

    def __init__(self, model, source, padding=None):
        self.session, self.read, self.scores = model.session(source, 1, padding), [], []

    def __call__(self, tokens):
        """See `UncachedScorer`."""
        same = next((at for at, pair in enumerate(zip(self.read, tokens)) if pair[0] != pair[1]),  # noqa: B905
                    min(len(self.read), len(tokens)))
        # The step at position p reads token p - 1; position 0 reads the start of the sequence.
        del self.scores[same + 1 :]
        for position in range(len(self.scores), len(tokens) + 1):
            token = torch.tensor([[tokens[position - 1] if position else 0]])
            self.scores.append(self.session.step(token, torch.tensor([position])).scores)
        self.read = list(tokens)
        return self.scores[-1]


def check_replay(scorer, options, trace, key, vocabulary, longest, end_token=None, one_of_many=False):
    """Verify the blocks of a trace again by the scores of p1, and return the tokens that they make.

    Sampling must be greedy or coupled. `longest` is the largest number of tokens of the row. If `one_of_many`, the
    block of an iteration is one of several candidates, or none.
    """
    samplers, criterion = Samplers(options, torch.tensor([key]), vocabulary), CRITERIA[options.accept](options)
    tokens = []
    for position, accepted, row in zip(trace.positions, trace.accepted, trace.proposed.tolist(), strict=True):
        assert position == len(tokens) < longest
        assert not tokens or tokens[-1] != end_token
        block = [token for token in row if token != -1]
        place = torch.arange(position, position + len(block)).unsqueeze(0)
        assert block[0] == int(samplers.at(place[:, :1])(scorer(tokens)))
        passed, possible, adjusted = [], [], []
        for length in range(1, min(len(block), longest - position)):
            scores, target = scorer(tokens + block[:length]), place[:, length : length + 1]
            adjusted.append(samplers.at(target).adjust(scores))
            verdicts = criterion.accept(
                torch.tensor([block[1 : length + 1]]), torch.cat(adjusted, dim=1), place[:, 1 : length + 1])
            passed.append(bool(verdicts[0, -1]))
            possible.append(bool(adjusted[-1][0, 0, block[length]] > -torch.inf))
            if not passed[-1] and length >= options.min_block:
                break
        most = 1 + max(leading(passed), leading(possible[: options.min_block - 1]))
        if end_token in block[:most]:
            most = block.index(end_token) + 1
        assert accepted == most or (one_of_many and accepted == 1)
        tokens += block[:accepted]
    assert len(tokens) == longest or tokens[-1] == end_token
    return tokens


def leading(values):
    """Return how many of `values` are true before the first false one."""
    return values.index(False) if False in values else len(values)
