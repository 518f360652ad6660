"""The statistics of a decode."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from superres.decoding.trace import RowTrace, TraceRecorder, mean_accepted_block_size, survival_curve


def trace(accepted, block_size=4):
    return RowTrace([sum(accepted[:i]) for i in range(len(accepted))], accepted, np.zeros((len(accepted), block_size)))


@given(st.lists(st.integers(1, 9), min_size=1))
def test_mean_accepted_block_size_is_tokens_over_iterations(accepted):
    row = trace(accepted)
    assert row.tokens == sum(accepted)
    assert row.iterations == len(accepted)
    assert row.model_calls == len(accepted) + 1
    assert row.mean_accepted_block_size == pytest.approx(sum(accepted) / len(accepted))


def test_mean_over_sequences_weighs_iterations_and_not_sequences():
    assert mean_accepted_block_size([trace([4, 4]), trace([1] * 6)]) == 14 / 8


def test_recorder_leaves_out_the_iterations_of_rows_that_were_done():
    recorder = TraceRecorder()
    position = torch.tensor([0, 0])
    for step, accepted in enumerate([[2, 1], [1, 3], [0, 1]]):
        proposed = torch.tensor([[step, 0, 0], [step + 10, 0, 0]])
        recorder.record(position, proposed, torch.tensor(accepted))
        position = position + torch.tensor(accepted)
    first, second = recorder.rows()
    assert (first.positions, first.accepted, first.proposed[:, 0].tolist()) == ([0, 2], [2, 1], [0, 1])
    assert (second.positions, second.accepted, second.proposed[:, 0].tolist()) == ([0, 1, 4], [1, 3, 1], [10, 11, 12])
    assert first.sequence.tolist() == [0, 0, 1]
    assert second.sequence.tolist() == [10, 11, 0, 0, 12]
    assert first.model_calls == 3


def test_the_survival_curve_counts_whole_blocks_and_sums_to_their_mean():
    traces = [trace([3, 1, 2, 2]), trace([1, 1, 4])]
    curve = survival_curve(traces, 4)
    assert curve == [1.0, 2 / 5, 1 / 5, 0.0]
    assert sum(curve) == pytest.approx(np.mean([3, 1, 2, 1, 1]))
    assert survival_curve([], 2) == [0.0, 0.0]
