"""The cached step computes what the uncached network computes, wherever the rows stand and whatever was rejected."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fakes import PLAIN, SMALL, VARIANTS, random_model, random_tokens
from hypothesis import given, settings
from hypothesis import strategies as st
from stepping import assert_close, check_steps, proposal_scores

from superres.nn import cache as cache_module
from superres.nn.attention import local_visible, reach
from superres.nn.cache import KeyValueCache, slot_count
from superres.nn.engines import torch_step as step_module
from superres.nn.engines.torch_model import StepModel

WIDE = replace(SMALL, source_shape=(2, 4, 3), target_shape=(4, 8, 3), attention_block_length=8)
LONG = replace(SMALL, source_shape=(4, 4, 3), target_shape=(8, 8, 3), attention_block_length=8)


@pytest.mark.parametrize("width", [1, 3, 5])
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


def test_first_token_of_the_first_step_is_ignored():
    model = StepModel(random_model(SMALL))
    source, _ = random_tokens(SMALL, 2)
    start = torch.zeros(2, dtype=torch.int64)
    scores = [model.session(source, 1).step(torch.full((2, 1), token), start).scores for token in (0, 5)]
    assert torch.equal(*scores)


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


class StaleCache(KeyValueCache):
    """Forgets that a rejected proposal's slot has to be written again."""

    def locate(self, position, reach):
        high = getattr(self, "high", torch.full((self.batch, 1), -1))
        self.keep = (position <= high)[None, :, None, :].expand(2, -1, self.heads, -1).flatten()
        self.high = torch.maximum(high, position[:, -1:])
        return super().locate(position, reach)

    def write(self, layer, key, value, index):
        flat = self.store[layer].view(-1, self.size)
        before = flat[index]
        ring = super().write(layer, key, value, index)
        flat[index[self.keep]] = before[self.keep]
        return ring


class HighWaterCache(KeyValueCache):
    """Labels its slots by the furthest position ever written, not by where the row stands now."""

    def locate(self, position, reach):
        self.high = torch.maximum(getattr(self, "high", position[:, -1:]), position[:, -1:])
        index, _ = super().locate(position, reach)
        key = self.high - (self.high - self.slot) % self.slots + position.shape[1]
        visible = local_visible(position.unsqueeze(-1), key.unsqueeze(1), WIDE.attention_block_length)
        return index, torch.where(visible, self.zero, self.hidden).unsqueeze(1)


class AdvancingSession:
    """Moves on by the whole step, whatever was accepted."""

    def __init__(self, session):
        self.session, self.next = session, None

    def step(self, tokens, position):
        position = position if self.next is None else self.next
        self.next = position + self.session.width if self.next is not None else position + 1
        return self.session.step(tokens, position)

    def propose(self, *arguments):
        return self.session.propose(*arguments)


@pytest.mark.parametrize("missing", [1, 4])
def test_a_ring_that_is_too_small_is_noticed(missing, monkeypatch):
    model = random_model(WIDE)
    check_steps(model, 5, most=2)
    monkeypatch.setattr(cache_module, "slot_count", lambda config, width: slot_count(config, width) - missing)
    with pytest.raises(AssertionError):
        check_steps(model, 5, most=2)


@pytest.mark.parametrize("broken", [StaleCache, HighWaterCache])
def test_a_cache_that_forgets_the_rollback_is_noticed(broken, monkeypatch):
    model = random_model(WIDE)
    monkeypatch.setattr(step_module, "KeyValueCache", broken)
    with pytest.raises(AssertionError):
        check_steps(model, 5)


def test_a_session_that_advances_by_the_whole_step_is_noticed():
    model = random_model(WIDE)
    source, _ = random_tokens(WIDE, 3)
    with pytest.raises(AssertionError):
        check_steps(model, 5, session=AdvancingSession(StepModel(model).session(source, 5)))


def test_neighbours_that_keep_rejected_tokens_are_noticed(monkeypatch):
    model = random_model(replace(WIDE, aligned_conditioning=False))
    source, _ = random_tokens(WIDE, 3)
    session = StepModel(model).session(source, 5)
    plain = session._features

    def without_rewriting(*arguments):
        before = session.deviation.clone()
        result = plain(*arguments)
        session.deviation.copy_(torch.where(before != 0, before, session.deviation))
        return result

    monkeypatch.setattr(session, "_features", without_rewriting)
    with pytest.raises(AssertionError):
        check_steps(model, 5, session=session)
