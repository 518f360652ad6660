"""What every entry of a registry has to keep: newcomers are tested on arrival."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fakes import SMALL, VARIANTS, random_model, random_tokens

from superres.config import DecodeConfig
from superres.decoding.acceptance import CRITERIA
from superres.decoding.blockwise import decode
from superres.decoding.proposal import PROPOSERS
from superres.nn.step import StepModel
from superres.tasks import TASKS

CONFIG = DecodeConfig(epsilon=1, top_k=2)


@pytest.fixture
def judged():
    generator = torch.Generator().manual_seed(0)
    return torch.randint(9, (4, 5), generator=generator), torch.randn(4, 5, 9, generator=generator)


@pytest.mark.parametrize("name", CRITERIA)
def test_criterion_gives_one_verdict_a_token(name, judged):
    verdicts = CRITERIA[name](CONFIG).accept(*judged)
    assert verdicts.dtype == torch.bool
    assert verdicts.shape == judged[0].shape


@pytest.mark.parametrize("name", CRITERIA)
def test_criterion_accepts_the_choice_of_the_verifier(name, judged):
    _, scores = judged
    assert bool(CRITERIA[name](CONFIG).accept(scores.argmax(-1), scores).all())


@pytest.mark.parametrize("name", CRITERIA)
def test_criterion_judges_each_token_by_itself(name, judged):
    proposed, scores = judged
    criterion = CRITERIA[name](CONFIG)
    whole = criterion.accept(proposed, scores)
    for row in range(proposed.shape[0]):
        for place in range(proposed.shape[1]):
            part = (slice(row, row + 1), slice(place, place + 1))
            assert torch.equal(criterion.accept(proposed[part], scores[part]), whole[part])
    assert criterion.accept(proposed[:, :0], scores[:, :0]).shape == (len(proposed), 0)


@pytest.mark.parametrize("name", CRITERIA)
@pytest.mark.parametrize("proposer", PROPOSERS)
def test_decode_gives_all_tokens_in_blocks_of_1_to_k(name, proposer):
    model = StepModel(random_model(SMALL))
    options = DecodeConfig(accept=name, epsilon=1, proposer=proposer)
    decoded = decode(model, random_tokens(SMALL, 2)[0], options)
    assert decoded.tokens.shape == (2, SMALL.target_length)
    assert bool(((decoded.tokens >= 0) & (decoded.tokens < SMALL.vocabulary)).all())
    for trace in decoded.traces:
        assert all(1 <= accepted <= SMALL.prediction_heads for accepted in trace.accepted)
        assert trace.tokens == SMALL.target_length


@pytest.mark.parametrize("proposer", PROPOSERS)
def test_proposer_makes_tokens_for_the_offsets_it_is_asked_for(proposer):
    seen = []

    class Watched:
        def propose(self, context, offsets):
            proposals = PROPOSERS[proposer]().propose(context, offsets)
            seen.append((proposals, offsets.tolist()))
            return proposals

    decode(StepModel(random_model(SMALL)), random_tokens(SMALL, 3)[0], DecodeConfig(block_size=4), proposer=Watched())
    assert seen
    for proposals, offsets in seen:
        assert offsets == [1, 2, 3]
        assert proposals.shape == (3, 3)
        assert proposals.dtype == torch.int64
        assert bool(((proposals >= 0) & (proposals < SMALL.vocabulary)).all())


def block_sizes(proposer):
    return (2, 5) if PROPOSERS[proposer].uses_heads else (2, 9)


@pytest.mark.parametrize(("variant", "temperature"), [("base aids", 0.0), ("sequential heads", 0.9)])
@pytest.mark.parametrize(("proposer", "k"), [(name, k) for name in PROPOSERS for k in block_sizes(name)])
def test_proposer_leaves_exact_decoding_as_it_is(proposer, k, variant, temperature):
    model, source = StepModel(random_model(VARIANTS[variant])), random_tokens(VARIANTS[variant], 3)[0]
    alone = decode(model, source, DecodeConfig(block_size=1, temperature=temperature)).tokens
    decoded = decode(model, source, DecodeConfig(block_size=k, temperature=temperature, proposer=proposer))
    assert torch.equal(decoded.tokens, alone)
    assert len({tuple(trace.accepted) for trace in decoded.traces}) > 1  # the rows are ragged
    for row, trace in enumerate(decoded.traces):
        assert all(1 <= accepted <= k for accepted in trace.accepted)
        assert trace.positions == [0, *np.cumsum(trace.accepted)[:-1].tolist()]
        kept = [p[:a] for p, a in zip(trace.proposed, trace.accepted, strict=True)]
        assert np.concatenate(kept).tolist() == decoded.tokens[row].tolist()


@pytest.mark.parametrize("name", TASKS)
def test_task_is_registered_by_its_own_name_and_encodes_to_tokens(name):
    task = TASKS[name]
    assert task.name == name
    if name == "faces":
        pictures = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3), np.uint8)
        tokens = task.encode(pictures)
        assert tokens.shape == (2, 192)
        assert tokens.dtype == np.int64
        assert task.decode(np.zeros((2, 3072), np.int64)).shape == (2, 32, 32, 3)
