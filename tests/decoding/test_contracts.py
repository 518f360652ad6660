"""What every entry of a registry has to keep: newcomers are tested on arrival."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from fakes import (
    CHAINS,
    SMALL,
    VARIANTS,
    criterion_options,
    proposer_for,
    random_model,
    random_tokens,
)
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from textual import vocabulary

import superres
from decodes import decode
from superres.config import PRESETS, DecodeConfig
from superres.decoding.acceptance import CRITERIA, Distance, TopK
from superres.decoding.proposers import PROPOSERS
from superres.errors import InvalidInputError
from superres.nn.torch_model import StepModel
from superres.nn.weights import network_of
from superres.pipeline.choose import ENGINES, engine_of
from superres.sessions import Session
from superres.tasks.registry import TASK_FILES, TASKS
from tests.proofs.test_refill import refilled

# Few different values, so that ties are common.
SCORES = hnp.arrays(float, (2, 3, 7), elements=st.integers(-3, 3).map(float)).map(torch.from_numpy)
PROPOSED = hnp.arrays("int64", (2, 3), elements=st.integers(0, 6)).map(torch.from_numpy)
PLACE = torch.tensor([[1, 2, 3], [6, 7, 8]])


@pytest.mark.parametrize("name", CRITERIA)
@given(PROPOSED, SCORES, hnp.arrays(bool, (2, 3, 7)).map(torch.from_numpy))
def test_criterion_judges_possible_tokens_by_their_row_the_block_before_them_and_its_settings(
        name, proposed, scores, left_out):
    possible = ~left_out | (torch.arange(7) == 3)  # a filter leaves one token at least
    scores = scores.masked_fill(~possible, float("-inf"))
    options = criterion_options(name, epsilon=6, top_k=5)
    criterion = CRITERIA[name](options)
    verdicts = criterion.accept(proposed, scores, PLACE)
    assert (verdicts.dtype, verdicts.shape) == (torch.bool, proposed.shape)
    assert not bool((verdicts & ~possible.gather(2, proposed.unsqueeze(2)).squeeze(2)).any())
    assert bool(criterion.accept(scores.argmax(-1), scores, PLACE).all())
    for row in range(2):
        part = (slice(row, row + 1), slice(2))
        assert torch.equal(criterion.accept(proposed[part], scores[part], PLACE[part]),
                           verdicts[part])
    others = {setting: value for setting, value in {"epsilon": 3, "top_k": 7}.items()
              if setting not in CRITERIA[name].settings}
    assert torch.equal(CRITERIA[name](replace(options, **others)).accept(proposed, scores, PLACE),
                       verdicts)


@pytest.mark.parametrize("epsilon", [0, 2])
def test_distance_is_symmetric_and_includes_epsilon(epsilon):
    scores = torch.zeros(1, 256)
    scores[0, 100] = 1
    proposed = torch.arange(256).unsqueeze(0)
    accepted = Distance(DecodeConfig(epsilon=epsilon)).accept(proposed, scores.expand(1, 256, 256),
                                                              proposed)
    assert accepted[0].nonzero().flatten().tolist() == list(range(100 - epsilon, 100 + epsilon + 1))


@given(PROPOSED, SCORES, st.integers(1, 9))
def test_top_k_accepts_by_rank(proposed, scores, k):
    accepted = TopK(DecodeConfig(top_k=k)).accept(proposed, scores, PLACE)
    better = (scores > scores.gather(-1, proposed.unsqueeze(-1))).sum(-1)
    assert torch.equal(accepted, better < k)


@pytest.mark.parametrize("proposer", CHAINS)
def test_proposer_leaves_float32_decoding_of_the_same_width_as_it_is_bit_for_bit(proposer):
    config = VARIANTS["sequential heads"]
    model = StepModel(random_model(config, dtype=torch.float32))
    source, made = random_tokens(config, 3)[0], proposer_for(proposer, model)
    for temperature in (0.0, 0.9):
        alone = decode(model, source, DecodeConfig(block_size=1, temperature=temperature),
                       width=5).tokens
        options = DecodeConfig(block_size=4, temperature=temperature)
        assert torch.equal(decode(model, source, options, width=5, proposer=made).tokens, alone)


class OwnSession:
    """The session of another engine: only the names of the interface, of a plain session."""

    def __init__(self, session):
        self._session = session

    def __getattr__(self, name):
        assert name in {*vars(Session), *Session.__annotations__}
        return getattr(self._session, name)

    def copy_rows(self, rows, other, chosen, cache=True):
        self._session.copy_rows(rows, other._session, chosen, cache)


class OwnEngine(superres.StepModel):
    def session(self, *arguments, **more):
        return OwnSession(super().session(*arguments, **more))


@pytest.fixture
def engine():
    """The name of a registered engine."""
    superres.register_engine("own")(OwnEngine)
    yield "own"
    del ENGINES["own"]


@pytest.mark.slow
@pytest.mark.parametrize("options", [
    *(DecodeConfig(3, proposer=name) for name in PROPOSERS), DecodeConfig(accept="top-k"),
    DecodeConfig(sampling="speculative", temperature=0.9),
], ids=lambda one: f"{one.proposer} {one.accept} {one.sampling}")
def test_an_engine_needs_no_more_than_a_session(engine, options):
    """In a batch, and in a stream whose rows are refilled and become fewer."""
    network, source = random_model(SMALL, dtype=torch.float32), random_tokens(SMALL, 5)[0]
    own, plain = (engine_of(network_of(network), engine=name) for name in (engine, "plain"))
    assert (type(own.model), own.name, own.code) == (OwnEngine, "own", "own")
    made = proposer_for(options.proposer, plain.model)
    assert torch.equal(*(decode(model, source, options, proposer=made).tokens for model in (own,
                                                                                            plain)))
    for mine, theirs in zip(*(refilled(model, source, options, 2, proposer=made)[0]
                              for model in (own, plain)),
                            strict=True):
        assert np.array_equal(mine.tokens, theirs.tokens)
        assert mine.trace.accepted == theirs.trace.accepted


@pytest.mark.parametrize("name", TASKS)
def test_task_is_registered_by_its_own_name_and_encodes_to_tokens(name, tmp_path):
    for file in TASK_FILES[name]:
        (tmp_path / file).write_bytes(vocabulary())
    task = TASKS[name](PRESETS["tiny" if name == "faces" else "text"], tmp_path)
    assert task.name == name
    inputs, length, targets = {
        "faces": (np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3), np.uint8), 192,
                  (2, 3072)),
        "translation": (["dog", "a man"], 3, (2, 5)),
    }[name]
    tokens = task.encode(inputs)
    assert tokens.shape[0] == 2
    assert tokens.shape[1] >= length
    assert tokens.dtype == np.int64
    assert len(task.decode(np.zeros(targets, np.int64))) == 2
    with pytest.raises(InvalidInputError):
        task.decode(np.full(targets, 10_000))
