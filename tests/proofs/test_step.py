"""The cached step computes what the uncached network computes, wherever the rows stand and whatever
was rejected."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fakes import PLAIN, SMALL, VARIANTS, random_model, random_tokens
from hypothesis import given, settings
from hypothesis import strategies as st

from superres.config.tables import slot_count
from superres.nn.torch_model import StepModel
from tests.nn.helpers import assert_close, check_steps, proposal_scores

WIDE = replace(SMALL, source_shape=(2, 4, 3), target_shape=(4, 8, 3), attention_block_length=8)
LONG = replace(SMALL, source_shape=(4, 4, 3), target_shape=(8, 8, 3), attention_block_length=8)


@pytest.mark.parametrize("variant", VARIANTS)
def test_cached_step_equals_uncached_forward(variant):
    check_steps(random_model(VARIANTS[variant]), 4)


@pytest.mark.slow
@pytest.mark.parametrize("most", [2, None])
@pytest.mark.parametrize("width", [2, 7, 10])
@pytest.mark.parametrize("config", [WIDE, LONG, replace(WIDE, **PLAIN, norm="post"), replace(
    LONG, attention_keys="pixels", attention_block_length=4)],
                         ids=["aids", "long", "plain", "keys per pixel"])
def test_cached_step_equals_uncached_forward_when_steps_straddle_attention_blocks(config, width,
                                                                                  most):
    assert LONG.target_length > 7 * slot_count(LONG, 10)  # the ring wraps as many times
    check_steps(random_model(config), width, rows=2, most=most)


@pytest.mark.slow
@settings(max_examples=10)
@given(st.integers(0, 1000), st.integers(1, 9), st.integers(1, 4), st.integers(1, 9),
       st.sampled_from(sorted(VARIANTS)))
def test_cached_step_equals_uncached_forward_for_any_widths_and_rows(seed, width, rows,
                                                                     block_length, variant):
    config = replace(VARIANTS[variant], attention_block_length=block_length)
    check_steps(random_model(config, seed), width, rows, seed)


def test_cached_step_hides_padding_of_the_source():
    config = VARIANTS["text"]
    padding = torch.arange(config.source_length) >= torch.tensor([[7], [3], [5]])
    check_steps(random_model(config), 3, padding=padding)


@pytest.mark.parametrize("variant", VARIANTS)
def test_batch_of_sessions_equals_its_single_rows(variant):
    config = VARIANTS[variant]
    model = StepModel(random_model(config))
    source, target = random_tokens(config, 3)
    width, positions = 4, torch.tensor([[0, 0, 0], [1, 3, 2], [4, 7, 3], [6, 8, 4]])
    batch = model.session(source, width)
    alone = [model.session(source[row : row + 1], width) for row in range(3)]
    for position in positions:
        tokens = target.gather(1, (position.unsqueeze(1) + torch.arange(width) - 1).clamp(min=0))
        output = batch.step(tokens, position)
        proposals = proposal_scores(batch, output, torch.tensor([0, 3, 1]), target[:, 0],
                                    target[:, 1:4])
        for row, session in enumerate(alone):
            single = session.step(tokens[row : row + 1], position[row : row + 1])
            assert_close(output.scores[row], single.scores[0])
            index = torch.tensor([[0, 3, 1][row]])
            own = target[row : row + 1]
            assert_close(proposals[row], proposal_scores(session, single, index, own[:, 0],
                                                         own[:, 1:4])[0])
