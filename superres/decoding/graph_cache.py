"""CUDA graph capture of iterations, since launching kernels one by one takes most of a step's time on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from torch import Tensor

from superres.decoding.trace import TraceRecorder, trace_entry
from superres.interfaces import GraphCapture

BURST = 16  # Number of iterations whose record fits into the buffer on the device
KEPT_ROWS = 1024  # Largest total number of rows of cached loops; every loop holds the attention caches of its rows


class CapturedIterations:
    """The captured iterations of one loop, one per block size, and the buffer of their records.

    Captured work writes to the same memory at every replay, so a counter on the device selects the entry of the buffer.
    """

    def __init__(self, capture: Callable[[Callable[[], None]], Callable[[], None]], proposals: Tensor) -> None:
        """Prepare for a loop whose pending proposals are `proposals` [B, W]."""
        self._capture = capture
        self._captured: dict[int, Callable[[], None]] = {}
        batch, width = proposals.shape
        self._record = proposals.new_zeros(BURST, batch, 2 + width)
        self._count = proposals.new_zeros(1)

    def record(self, position: Tensor, proposed: Tensor, accepted: Tensor) -> None:
        """Record one iteration as `TraceRecorder.record` does; `proposed` [B, N] may be narrower than the buffer."""
        entry = trace_entry(position, proposed, accepted)  # [B, 2 + N]
        self._record[..., : entry.shape[1]].index_copy_(0, self._count, entry.unsqueeze(0))
        self._count.add_(1)

    def run(self, iteration: Callable[[], None], block_size: int, count: int, recorder: TraceRecorder) -> None:
        """Do `count` iterations of `block_size`, at most BURST, and append their records to `recorder`.

        An `iteration` changes tensors in place and has no other effect.
        """
        if block_size not in self._captured:
            self._captured[block_size] = self._capture(iteration)
        for _ in range(count):
            self._captured[block_size]()
        self.flush(block_size, count, recorder)

    def flush(self, block_size: int, count: int, recorder: TraceRecorder) -> None:
        """Append the records of the last `count` iterations to `recorder`, and empty the buffer."""
        recorder.extend(self._record[:count].clone(), block_size)
        self._count.zero_()


def keep(
    graph_capture: GraphCapture, key: Hashable, loop: Any, rows: int = KEPT_ROWS,  # noqa: ANN401 -- an import circle
) -> None:
    """Add a loop to the cache, and drop the oldest loops if the cache has more than `rows` rows."""
    graph_capture.loops.pop(key, None)
    graph_capture.loops[key] = loop
    while len(graph_capture.loops) > 1 and sum(len(one.keys) for one in graph_capture.loops.values()) > rows:
        del graph_capture.loops[next(iter(graph_capture.loops))]
