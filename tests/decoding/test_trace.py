"""The statistics of a decode."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from superres.decoding.trace import (
    LONGEST,
    RowTrace,
    TraceRecorder,
    mean_accepted_block_size,
    survival_curve,
)


def trace(accepted, block_size=4):
    return RowTrace([sum(accepted[:i]) for i in range(len(accepted))], accepted,
                    np.zeros((len(accepted), block_size)))


def test_mean_over_sequences_weighs_iterations_and_not_sequences():
    assert mean_accepted_block_size([trace([4, 4]), trace([1] * 6)]) == 14 / 8


def test_the_survival_curve_counts_whole_blocks_and_sums_to_their_mean():
    traces = [trace([3, 1, 2, 2]), trace([1, 1, 4])]
    curve = survival_curve(traces, 4)
    assert curve == [1.0, 2 / 5, 1 / 5, 0.0]
    assert sum(curve) == pytest.approx(np.mean([3, 1, 2, 1, 1]))
    assert survival_curve([], 2) == [0.0, 0.0]


def test_only_the_rows_that_are_read_are_copied_from_the_record():
    rows, iterations, size = 64, 3 * LONGEST + 5, 3
    entries = np.random.default_rng(0).integers(1, 4, (iterations, rows, 2 + size))
    whole, parts, iteration = TraceRecorder(), TraceRecorder(), 0
    whole.extend(entries, size)
    for number in range(iterations):
        length = 1 + number % 5
        parts.extend(entries[iteration : iteration + length], size)
        iteration += length
        if iteration >= iterations:
            break
    tracemalloc.start()
    found = parts.rows([5, 60], [0, 7])
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 10 * iterations * 2 * (2 + size) * 8 < entries.nbytes / 2
    expected = whole.rows()
    assert found[0].accepted == expected[5].accepted
    assert found[1].accepted == expected[60].accepted[7:]
    assert (found[1].proposed == expected[60].proposed[7:]).all()
    assert len(parts) == iterations
