"""The statistics of a decode."""

from __future__ import annotations

import numpy as np
import pytest

from superres.decoding.trace import RowTrace, mean_accepted_block_size, survival_curve


def trace(accepted, block_size=4):
    return RowTrace([sum(accepted[:i]) for i in range(len(accepted))], accepted, np.zeros((len(accepted), block_size)))


def test_mean_over_sequences_weighs_iterations_and_not_sequences():
    assert mean_accepted_block_size([trace([4, 4]), trace([1] * 6)]) == 14 / 8


def test_the_survival_curve_counts_whole_blocks_and_sums_to_their_mean():
    traces = [trace([3, 1, 2, 2]), trace([1, 1, 4])]
    curve = survival_curve(traces, 4)
    assert curve == [1.0, 2 / 5, 1 / 5, 0.0]
    assert sum(curve) == pytest.approx(np.mean([3, 1, 2, 1, 1]))
    assert survival_curve([], 2) == [0.0, 0.0]
