"""The loop around a decoder: it runs the iterations, and records them."""

from __future__ import annotations

from superres.decoding.trace import TraceRecorder
from superres.interfaces import Decoder, Encoded, Int64


class Loop:
    """Runs the iterations of a decoder's rows, and records them.

    `recorder` has the trace of all rows. `ended` says which rows were complete at the last call of
    `done`, and `complete` whether all were.
    """

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.recorder, self.ended, self.complete = TraceRecorder(), list[bool](), False

    def run(self, count: int) -> None:
        """Do `count` iterations; fewer if the decoder ends with the last row."""
        decoder = self.decoder
        while count > 0:
            size = decoder.block_size
            trace = decoder.advance(count)
            if not len(trace):  # all rows are complete
                break
            self.recorder.extend(trace, size)
            count -= len(trace)
            if count > 0 and decoder.compiled and self.done():
                break

    def replace(self, rows: Int64, encoded: Encoded, keys: Int64) -> None:
        """See `superres.interfaces.Decoder.replace`."""
        self.decoder.replace(rows, encoded, keys)
        self.complete = False

    def keep(self, rows: Int64) -> None:
        """See `superres.interfaces.Decoder.keep`."""
        self.decoder.keep(rows)
        self.recorder.keep(rows)

    def done(self) -> bool:
        """Return whether every row is complete; raises ScoresError if scores are not finite."""
        self.ended = self.decoder.complete().tolist()
        self.complete = all(self.ended)
        return self.complete
