"""Iterations that are captured once and replayed: on a GPU, launching its kernels one by one takes most of a step."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from torch import Tensor

from superres.decoding.trace import TraceRecorder, entry
from superres.interfaces import Replaying

BURST = 16
"""Iterations whose record is kept on the device before it is taken away."""

KEPT_ROWS = 1024
"""Rows of loops that are kept for the next decode, all together; every loop holds the caches of its rows."""


class Replays:
    """The captured iterations of one loop, one for each block size, and the room for what they record.

    What is captured writes to the same memory whenever it is replayed, so the record of an iteration goes to a place
    that is counted on the device.
    """

    def __init__(self, capture: Callable[[Callable[[], None]], Callable[[], None]], proposals: Tensor) -> None:
        """Prepare for a loop whose pending proposals are `proposals` [B, W]."""
        self._capture = capture
        self._works: dict[int, Callable[[], None]] = {}
        batch, width = proposals.shape
        self._record = proposals.new_zeros(BURST, batch, 2 + width)
        self._turn = proposals.new_zeros(1)

    def record(self, position: Tensor, proposed: Tensor, accepted: Tensor) -> None:
        """Keep one iteration, as `TraceRecorder.record` does; `proposed` [B, N] may be narrower than the loop's."""
        made = entry(position, proposed, accepted)
        self._record[..., : made.shape[1]].index_copy_(0, self._turn, made.unsqueeze(0))
        self._turn.add_(1)

    def run(self, iteration: Callable[[], None], block_size: int, count: int, recorder: TraceRecorder) -> None:
        """Do at most BURST iterations of `block_size`, and hand what they recorded to `recorder`.

        Args:
            iteration: changes nothing but tensors, in place.
            block_size: k before and after.
            count: how many.
            recorder: takes the record.
        """
        if block_size not in self._works:
            self._works[block_size] = self._capture(iteration)
        for _ in range(count):
            self._works[block_size]()
        self.hand_over(block_size, count, recorder)

    def hand_over(self, block_size: int, count: int, recorder: TraceRecorder) -> None:
        """Give the record of the last `count` iterations to `recorder`, and make room for the next."""
        recorder.extend(self._record[:count].clone(), block_size)
        self._turn.zero_()


def take(replaying: Replaying, kind: Hashable) -> Any:  # noqa: ANN401 -- what was kept
    """Take out the loop that was kept as one of `kind`, or return None."""
    return replaying.kept.pop(kind, None)


def keep(replaying: Replaying, kind: Hashable, loop: Any, most: int = KEPT_ROWS) -> None:  # noqa: ANN401
    """Keep a loop for the next decode of its kind; the oldest make room where there are more than `most` rows."""
    replaying.kept.pop(kind, None)
    replaying.kept[kind] = loop
    while len(replaying.kept) > 1 and sum(len(one.keys) for one in replaying.kept.values()) > most:
        del replaying.kept[next(iter(replaying.kept))]
