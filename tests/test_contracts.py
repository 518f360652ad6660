"""What every entry of a registry has to keep: newcomers are tested on arrival."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from fakes import CHAINS, NATIVE, SMALL, VARIANTS, criterion_options, proposer_for, random_model, random_tokens
from textual import vocabulary

from superres.config import PRESETS, DecodeConfig
from superres.decoding.acceptance import CRITERIA
from superres.decoding.decode import decode
from superres.decoding.proposers import PROPOSERS
from superres.errors import InvalidInputError
from superres.nn.engines import step_model
from superres.nn.engines.native import build
from superres.nn.engines.torch_model import StepModel
from superres.tasks import TASK_FILES, TASKS


@pytest.fixture
def judged():
    generator = torch.Generator().manual_seed(0)
    position = torch.tensor([[0], [7], [2], [31]]) + torch.arange(1, 6)
    return torch.randint(9, (4, 5), generator=generator), torch.randn(4, 5, 9, generator=generator), position


@pytest.mark.parametrize("name", CRITERIA)
def test_criterion_gives_one_verdict_a_token(name, judged):
    verdicts = CRITERIA[name](criterion_options(name)).accept(*judged)
    assert verdicts.dtype == torch.bool
    assert verdicts.shape == judged[0].shape


@pytest.mark.parametrize("name", CRITERIA)
def test_criterion_accepts_the_choice_of_the_verifier(name, judged):
    _, scores, position = judged
    assert bool(CRITERIA[name](criterion_options(name)).accept(scores.argmax(-1), scores, position).all())


@pytest.mark.parametrize("name", CRITERIA)
def test_criterion_judges_a_token_by_its_own_row_and_the_block_before_it(name, judged):
    criterion = CRITERIA[name](criterion_options(name))
    whole = criterion.accept(*judged)
    for row in range(whole.shape[0]):
        for length in range(whole.shape[1] + 1):
            part = (slice(row, row + 1), slice(length))
            assert torch.equal(criterion.accept(*(values[part] for values in judged)), whole[part])


@pytest.mark.parametrize("name", CRITERIA)
def test_criterion_reads_the_settings_that_it_names_and_no_other(name, judged):
    options = criterion_options(name)
    others = {"epsilon": 3, "top_k": 7}
    assert set(CRITERIA[name].settings) <= set(others)
    changed = {setting: value for setting, value in others.items() if setting not in CRITERIA[name].settings}
    verdicts = CRITERIA[name](replace(options, **changed)).accept(*judged)
    assert torch.equal(verdicts, CRITERIA[name](options).accept(*judged))


@pytest.mark.parametrize("proposer", CHAINS)
def test_proposer_makes_tokens_for_the_offsets_it_is_asked_for(proposer):
    seen, model = [], StepModel(random_model(SMALL))
    watched = proposer_for(proposer, model)
    plain = watched.propose

    def propose(context, offsets):
        proposals = plain(context, offsets)
        seen.append((proposals, offsets.tolist()))
        return proposals

    watched.propose = propose
    decode(model, random_tokens(SMALL, 3)[0], DecodeConfig(block_size=4), proposer=watched)
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
    options = DecodeConfig(block_size=k, temperature=temperature)
    decoded = decode(model, source, options, proposer=proposer_for(proposer, model))
    assert torch.equal(decoded.tokens, alone)
    assert len({tuple(trace.accepted) for trace in decoded.traces}) > 1  # the rows are ragged
    for row, trace in enumerate(decoded.traces):
        assert all(1 <= accepted <= k for accepted in trace.accepted)
        assert trace.positions == [0, *np.cumsum(trace.accepted)[:-1].tolist()]
        assert trace.sequence.tolist() == decoded.tokens[row].tolist()


@pytest.mark.parametrize("engine", ["plain", pytest.param("native", marks=pytest.mark.skipif(
    build.compiler() is None, reason="no C++ compiler on this machine"))])
@pytest.mark.parametrize("proposer", CHAINS)
def test_proposer_leaves_float32_decoding_of_the_same_width_as_it_is_bit_for_bit(proposer, engine):
    config = replace(VARIANTS["sequential heads"], **NATIVE)
    model = step_model(random_model(config, dtype=torch.float32), None, engine)
    source, made = random_tokens(config, 3)[0], proposer_for(proposer, model)
    for temperature in (0.0, 0.9):
        alone = decode(model, source, DecodeConfig(block_size=1, temperature=temperature), width=5).tokens
        options = DecodeConfig(block_size=4, temperature=temperature)
        assert torch.equal(decode(model, source, options, width=5, proposer=made).tokens, alone)


@pytest.mark.parametrize("name", TASKS)
def test_task_is_registered_by_its_own_name_and_encodes_to_tokens(name, tmp_path):
    for file in TASK_FILES[name]:
        (tmp_path / file).write_bytes(vocabulary())
    task = TASKS[name](PRESETS["tiny" if name == "faces" else "text"], tmp_path)
    assert task.name == name
    inputs, length, targets = {
        "faces": (np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3), np.uint8), 192, (2, 3072)),
        "translation": (["dog", "a man"], 3, (2, 5)),
    }[name]
    tokens = task.encode(inputs)
    assert tokens.shape[0] == 2
    assert tokens.shape[1] >= length
    assert tokens.dtype == np.int64
    assert len(task.decode(np.zeros(targets, np.int64))) == 2
    with pytest.raises(InvalidInputError):
        task.decode(np.full(targets, 10_000))
