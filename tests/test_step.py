"""The cached step computes what the uncached network computes, wherever the rows stand and whatever was rejected."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fakes import PLAIN, SMALL, VARIANTS, random_model, random_tokens
from hypothesis import given, settings
from hypothesis import strategies as st
from stepping import assert_close, check_steps, proposal_scores

from superres.nn.attention import local_visible, reach
from superres.nn.cache import KeyValueCache, slot_count
from superres.nn.engines.torch_model import StepModel

WIDE = replace(SMALL, source_shape=(2, 4, 3), target_shape=(4, 8, 3), attention_block_length=8)
LONG = replace(SMALL, source_shape=(4, 4, 3), target_shape=(8, 8, 3), attention_block_length=8)


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("variant", VARIANTS)
def test_cached_step_equals_uncached_forward(variant, width):
    check_steps(random_model(VARIANTS[variant]), width)


@pytest.mark.parametrize("most", [2, None])
@pytest.mark.parametrize("width", [2, 7, 10])
@pytest.mark.parametrize("config", [WIDE, replace(WIDE, **PLAIN, norm="post")], ids=["aids", "plain"])
def test_cached_step_equals_uncached_forward_when_steps_straddle_attention_blocks(config, width, most):
    check_steps(random_model(config), width, rows=2, most=most)


@pytest.mark.parametrize("width", [4, 10])
def test_cached_step_equals_uncached_forward_over_many_wraps_of_the_ring(width):
    assert LONG.target_length > 7 * slot_count(LONG, width)
    check_steps(random_model(LONG), width, rows=2)


@settings(max_examples=10)
@given(st.integers(0, 1000), st.integers(1, 9), st.integers(1, 4), st.integers(1, 9), st.sampled_from(sorted(VARIANTS)))
def test_cached_step_equals_uncached_forward_for_any_widths_and_rows(seed, width, rows, block_length, variant):
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
    together = model.session(source, width)
    alone = [model.session(source[row : row + 1], width) for row in range(3)]
    for position in positions:
        tokens = target.gather(1, (position.unsqueeze(1) + torch.arange(width) - 1).clamp(min=0))
        output = together.step(tokens, position)
        proposals = proposal_scores(together, output, torch.tensor([0, 3, 1]), target[:, 0], target[:, 1:4])
        for row, session in enumerate(alone):
            single = session.step(tokens[row : row + 1], position[row : row + 1])
            assert_close(output.scores[row], single.scores[0])
            index = torch.tensor([[0, 3, 1][row]])
            own = target[row : row + 1]
            assert_close(proposals[row], proposal_scores(session, single, index, own[:, 0], own[:, 1:4])[0])


def test_steps_past_the_end_of_the_image_are_harmless():
    config = WIDE
    model = StepModel(random_model(config))
    source, target = random_tokens(config, 2)
    width, length = 5, config.target_length
    plain, disturbed = model.session(source, width), model.session(source, width)
    for start in range(0, length, width):
        place = (torch.arange(start, start + width) - 1).clamp(0, length - 1)
        tokens = target[:, place]
        # The second row of one session is done and writes past the end all the time.
        late = torch.tensor([start, length + 1])
        expected = plain.step(tokens, torch.tensor([start, start])).scores[0]
        assert_close(disturbed.step(tokens, late).scores[0], expected)
        assert bool(torch.isfinite(disturbed.step(tokens, late).scores).all())


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 40))
def test_ring_holds_a_step_and_what_it_may_look_at_and_no_more(block_length, width, length):
    config = replace(SMALL, **PLAIN, source_shape=(4,), target_shape=(length,), attention_block_length=block_length)
    slots = slot_count(config, width)
    assert slots <= 2 * block_length + width - 1
    assert slots <= length + width
    assert slot_count(replace(config, attention="causal"), width) == length + width
    for start in range(length + 1):
        first_seen = max(0, (start // block_length - 1) * block_length)
        assert start + width - first_seen <= slots


@settings(max_examples=50)
@given(st.integers(1, 9), st.integers(1, 9), st.lists(st.integers(0, 49), min_size=1, max_size=3))
def test_mask_shows_the_slots_that_local_visible_says(block_length, width, starts):
    config = replace(SMALL, **PLAIN, source_shape=(4,), target_shape=(50,), attention_block_length=block_length)
    cache = KeyValueCache(config, len(starts), width, torch.zeros(1))
    place = torch.tensor(starts).unsqueeze(1) + torch.arange(width)
    index, mask = cache.locate(place, reach(place.clamp(max=49), block_length))
    for row, start in enumerate(starts):
        holds = {p % cache.slots: p for p in range(start + width)}  # the latest position of each slot
        key = torch.tensor([holds.get(slot, -1) for slot in range(cache.slots)])
        visible = local_visible(place[row].unsqueeze(1), key, block_length)
        inside = place[row] < 50
        assert torch.equal((mask[row, 0] == 0)[inside], visible[inside])
        assert bool(torch.isin(mask[row, 0], torch.tensor([0.0, float("-inf")])).all())
        assert bool((mask[row, 0] == 0).any(1).all())
    written = index.view(2, len(starts), config.attention_heads, width)
    assert torch.equal(written % cache.slots, (place % cache.slots)[None, :, None].expand_as(written))
    assert written.unique().numel() >= min(width, cache.slots) * 2 * len(starts) * config.attention_heads
