"""Rolling back: whatever is accepted and whoever enters, verifier and proposer go on from what is
committed alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from fakes import VARIANTS, draft_of, drafted, ngram_rows, ngrams_of, random_model, random_tokens
from hypothesis import given, settings
from hypothesis import strategies as st

from decodes import algorithm_of
from superres.config import DecodeConfig
from superres.decoding.loop import Loop
from superres.decoding.proposers.lookup import LookupProposer
from superres.decoding.proposers.ngrams import NgramProposer
from superres.nn.torch_model import StepModel
from tests.decoding.test_proposal import lookup_by_hand, ngram_by_hand


class Fickle:
    """Accepts at random, in runs of any length."""

    def __init__(self, generator):
        self.generator, self.share = generator, torch.rand((), generator=generator)

    def accept(self, proposed, scores, position):
        return torch.rand(proposed.shape, generator=self.generator) < self.share


@dataclass
class Decoding:
    """A loop that accepts at random, in which rows begin anew now and then, and what it is at."""

    model: StepModel
    proposer: object
    block_size: int
    seed: int

    def __post_init__(self):
        self.generator = torch.Generator().manual_seed(self.seed)
        self.sources = random_tokens(self.model.model.config, 9, self.seed)[0]
        self.source = self.sources[:3].clone()
        self.algorithm = algorithm_of(self.model, DecodeConfig(), self.proposer,
                                      Fickle(self.generator))
        self.loop = Loop(self.algorithm.start(self.source.numpy(), self.block_size))

    def encoded(self, sources):
        return self.algorithm.engine.encode(sources.numpy(), None, self.algorithm)

    def steps(self, count):
        """Go on, and yield (row, committed tokens, first token, proposals) of the rows under
        way."""
        for number in range(count):
            if number % 4 == 3:
                self.restart()
            if number == count - 3:
                self.shrink()
            self.loop.run(1)
            state = self.loop.decoder.plain.state
            for row, place in enumerate(state.position.tolist()):
                if place + self.block_size < self.model.length:
                    first, *proposals = state.proposals[row, : self.block_size].tolist()
                    yield row, state.tokens[row, :place].tolist(), first, proposals

    def restart(self):
        row, new = (int(torch.randint(size, (), generator=self.generator))
                    for size in (len(self.source), 9))
        self.source[row] = self.sources[new]
        fresh = self.encoded(self.sources[[0, new]])[np.array([1])]
        self.loop.replace(np.array([row]), fresh, np.array([new]))

    def shrink(self):
        kept = np.array([2, 0])
        self.source = self.source[kept]
        self.loop.keep(kept)


def greedy_after(model, source, tokens, count):
    """Return the `count` tokens that `model` chooses after `tokens`, without a cache."""
    target = torch.zeros(1, model.length, dtype=torch.int64)
    target[0, : len(tokens)] = torch.tensor(tokens, dtype=torch.int64)
    for place in range(len(tokens), len(tokens) + count):
        target[0, place] = model.uncached_scores(source.unsqueeze(0), target,
                                                 torch.tensor([place]))[0, 0].argmax()
    return target[0, len(tokens) : len(tokens) + count].tolist()


@settings(max_examples=6)
@given(st.sampled_from(["base aids", "causal attention", "plain", "sequential heads", "text"]),
       st.integers(2, 9), st.integers(0, 1000))
def test_a_draft_goes_on_from_the_committed_tokens(variant, block_size, seed):
    model = StepModel(random_model(VARIANTS[variant]))
    draft = draft_of(model, 0.3, prediction_heads=1)
    decoding = Decoding(model, drafted(draft), block_size, seed)
    for number, (row, tokens, first, proposals) in enumerate(decoding.steps(9)):
        if number % 2:
            continue
        assert [first] == greedy_after(model, decoding.source[row], tokens, 1)
        assert proposals == greedy_after(draft, decoding.source[row], [*tokens, first],
                                         len(proposals))


@settings(max_examples=6)
@given(st.sampled_from(["base aids", "text"]), st.integers(2, 9), st.integers(0, 1000))
def test_lookup_and_ngrams_go_on_from_the_committed_tokens(variant, block_size, seed):
    model = StepModel(random_model(VARIANTS[variant]))
    decoding = Decoding(model, LookupProposer(), block_size, seed)
    for row, tokens, first, proposals in decoding.steps(12):
        assert proposals == lookup_by_hand(decoding.source[row].tolist(), [*tokens, first],
                                           len(proposals))
    rows = ngram_rows(model).tolist()
    for _, tokens, first, proposals in Decoding(model, NgramProposer(ngrams_of(model)), block_size,
                                                seed).steps(12):
        so_far = [*tokens, first]
        for proposal in proposals:
            assert proposal == ngram_by_hand(rows, so_far)
            so_far.append(proposal)
