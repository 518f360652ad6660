"""Attention over whole sequences against a loop over queries."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from superres.nn.attention import attend, causal_attention, hidden_mask, local_attention, local_visible


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


def test_causal_attention_equals_a_loop_over_queries():
    expected = by_query(*inputs(9), lambda position: list(range(position + 1)))
    torch.testing.assert_close(causal_attention(*inputs(9)), expected)


@given(st.integers(0, 200), st.integers(1, 20))
def test_a_query_sees_1_to_2_blocks_of_keys_that_end_with_itself(position, block_length):
    keys = torch.arange(-5, 300)
    seen = keys[local_visible(torch.tensor(position), keys, block_length)].tolist()
    assert 1 <= len(seen) <= 2 * block_length
    assert seen == own_and_previous_block(position, block_length)


def test_hidden_keys_have_no_weight():
    query, key, value = inputs(5)
    visible = torch.tensor([True, False, True, False, True])
    masked = attend(query, key, value, hidden_mask(visible))
    torch.testing.assert_close(masked, attend(query, key[:, :, visible], value[:, :, visible]))
