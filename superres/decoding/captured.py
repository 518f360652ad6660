"""CUDA graph capture of iterations, since launching kernels one by one takes most of a step's time on a GPU."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from superres.decoding.blockwise import PlainDecoder, PlainRows
from superres.decoding.trace import trace_entry
from superres.interfaces import Session

BURST = 16  # Number of iterations whose record fits into the buffer on the device


class CapturedDecoder(PlainRows):
    """Replays the iterations of a `PlainDecoder`, captured once per block size: a `superres.interfaces.Decoder`.

    Captured work writes to the same memory at every replay, so a counter on the device selects the entry of the trace.
    """

    def __init__(self, plain: PlainDecoder, capture: Callable[[Callable[[], None]], Callable[[], None]]) -> None:
        super().__init__(plain)
        self._capture = capture
        self._captured: dict[int, Callable[[], None]] = {}
        batch, width = plain.state.proposals.shape
        self._record = plain.state.proposals.new_zeros(BURST, batch, 2 + width)
        self._count = plain.state.proposals.new_zeros(1)

    def advance(self, count: int) -> Tensor:
        """See `superres.interfaces.Decoder.advance`; does at most BURST iterations."""
        size, count = self.plain.state.block_size, min(count, BURST)
        if self.plain.block_size != size:
            count = 1
            self._iterate()
        else:
            if size not in self._captured:
                self._captured[size] = self._capture(self._iterate)
            for _ in range(count):
                self._captured[size]()
        self.plain.nan_check.is_noted = True  # captured work sets no flag of the host
        self._count.zero_()
        return self._record[:count].clone()

    def keep(self, rows: Tensor, session: Session) -> None:
        """Raise a ValueError: captured iterations have a fixed number of rows."""
        raise ValueError("captured iterations have a fixed number of rows")

    def _iterate(self) -> None:
        """Do one iteration and record it on the device."""
        block, accepted = self.plain.iterate(self.plain.state)
        entry = trace_entry(self.plain.state.position - accepted, block, accepted)  # [B, 2 + N]
        self._record[..., : entry.shape[1]].index_copy_(0, self._count, entry.unsqueeze(0))
        self._count.add_(1)
