"""Attention over whole sequences against a loop over queries."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from superres.nn.attention import Attention, attend, causal_attention, hidden_mask, local_attention, local_visible


def by_query(query, key, value, shown):
    """Attend query by query to the keys that `shown(position)` names."""
    rows = []
    for position in range(query.shape[2]):
        keys = shown(position)
        weights = (key[:, :, keys] @ query[:, :, position].unsqueeze(-1)).squeeze(-1) / query.shape[-1] ** 0.5
        rows.append((weights.softmax(-1).unsqueeze(-1) * value[:, :, keys]).sum(2))
    return torch.stack(rows, dim=2)


def own_and_previous_block(position, block_length):
    return list(range(max(0, (position // block_length - 1) * block_length), position + 1))


def inputs(length, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(2, 2, length, 4, generator=generator, dtype=torch.float64) for _ in range(3)]


@settings(max_examples=30)
@given(st.integers(1, 25), st.integers(1, 10))
def test_local_attention_equals_a_loop_over_queries(length, block_length):
    expected = by_query(*inputs(length), lambda position: own_and_previous_block(position, block_length))
    torch.testing.assert_close(local_attention(*inputs(length), block_length), expected)


def test_first_block_is_causal_and_the_first_query_sees_itself():
    query, key, value = inputs(8)
    out = local_attention(query, key, value, 4)
    torch.testing.assert_close(out[:, :, 0], value[:, :, 0])
    torch.testing.assert_close(out[:, :, :8], causal_attention(query, key, value))


def test_padding_of_the_last_block_changes_nothing():
    query, key, value = inputs(12)
    whole = local_attention(query, key, value, 4)
    for length in (9, 10, 11):
        part = local_attention(*(x[:, :, :length] for x in (query, key, value)), 4)
        torch.testing.assert_close(part, whole[:, :, :length])


def test_causal_attention_equals_a_loop_over_queries():
    expected = by_query(*inputs(9), lambda position: list(range(position + 1)))
    torch.testing.assert_close(causal_attention(*inputs(9)), expected)


@given(st.integers(0, 200), st.integers(1, 20))
def test_a_query_sees_1_to_2_blocks_of_keys_that_end_with_itself(position, block_length):
    keys = torch.arange(-5, 300)
    seen = keys[local_visible(torch.tensor(position), keys, block_length)].tolist()
    assert 1 <= len(seen) <= 2 * block_length
    assert seen == own_and_previous_block(position, block_length)


@given(st.integers(0, 200), st.integers(1, 20))
def test_empty_slots_are_never_visible(position, block_length):
    assert not bool(local_visible(torch.tensor(position), torch.arange(-50, 0), block_length).any())


def test_hidden_keys_have_no_weight():
    query, key, value = inputs(5)
    visible = torch.tensor([True, False, True, False, True])
    masked = attend(query, key, value, hidden_mask(visible))
    torch.testing.assert_close(masked, attend(query, key[:, :, visible], value[:, :, visible]))


@pytest.mark.parametrize("changed", range(12))
def test_a_later_token_changes_no_earlier_output(changed):
    attention = Attention(8, 2).double()
    x = torch.randn(1, 12, 8, dtype=torch.float64)
    other = x.clone()
    other[:, changed] += 1
    for function in (partial(local_attention, block_length=4), causal_attention):
        before, after = (attention(y, attention.keys_and_values(y), function) for y in (x, other))
        assert torch.equal(before[:, :changed], after[:, :changed])
        assert not torch.equal(before[:, changed], after[:, changed])
