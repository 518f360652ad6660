"""The decoder for CPUs: native.cpp does whole iterations, the twin of `superres.decoding.plain` in
`cpp/decode`."""

from __future__ import annotations

from ctypes import byref, pointer
from typing import Any

import numpy as np

from superres.decoding.algorithm import Algorithm
from superres.decoding.confidence import ConfidentBlockSize
from superres.decoding.proposers.draft import READ
from superres.decoding.proposers.lookahead.layout import Layout
from superres.decoding.proposers.proposer import ProposerData
from superres.errors import ConfigError, ScoresError
from superres.interfaces import NO_DRAFTS, Bool, Int64
from superres.native import abi
from superres.native.arrays import address, aligned, empty, zeros
from superres.native.build import library
from superres.native.memory import NativeMemory
from superres.native.session import NativeSession, kept_rows

POOL = 1024
"""Number of n-grams per row in the pool of lookahead decoding, as in
`superres.decoding.plain.lookahead.pool`."""
UNUSED = -1  # First token of an empty entry of the pool


class NativeDecoder:
    """Rows whose iterations native.cpp does: a `superres.interfaces.Decoder`.

    Attributes:
        session: the network's session.
        draft: the draft model's; None without one.
        rows: the arrays whose first axis is the batch, by name: B rows of `store` (the start of the
            sequence, then committed tokens), `position`, `limit` (where the row ends), `proposals`,
            `keys` of the noise, `bounds` of the limits, and what single settings need. Sums
            `q_total` of the weights that pending proposals were drawn from belong to speculative
            sampling; 0 says that there is no proposal, so the weights `q` need no zeros.
        loop: the form in which native.cpp reads them.
        largest: the most tokens of a block.
    """

    compiled = True

    def __init__(
        self, engine: Any, encoded: NativeMemory,  # noqa: ANN401 -- a `superres.native.engine.NativeEngine`
        keys: Int64, algorithm: Algorithm,
        block_size: int, confident: ConfidentBlockSize | None = None,
    ) -> None:
        """Begin the sequences of `encoded`; see `superres.interfaces.Engine.start`.

        Raises ValueError if steps of the algorithm's width cannot verify blocks of `block_size`.
        """
        self.engine, self.algorithm, self.confident = engine, algorithm, confident
        self.data = algorithm.proposer.as_data() or ProposerData("none")
        options = algorithm.options
        self.layout = (Layout.of(options, block_size)
                       if self.data.kind == "lookahead" and block_size > 1 else None)
        self._width = algorithm.width or block_size
        self.block_size = self.following = block_size
        self.end_token = -1 if engine.end_token is None else engine.end_token
        self.resizable = confident is not None
        self.session, self.draft = self._sessions(encoded)
        widest = self.session.widest
        self.largest = min(widest, 1 + self.session.most_proposals) if (
            self.data.uses_heads) else widest
        if not 1 <= block_size <= self.largest or not 0 <= options.min_block <= widest:
            raise ValueError(f"steps of {widest} cannot verify blocks of {block_size}, at least "
                             f"{options.min_block}")
        self.rows = self._new_rows(len(encoded))
        self._begin(slice(None), encoded, keys)
        self._bind()

    def _sessions(self, encoded: NativeMemory) -> tuple[NativeSession, NativeSession | None]:
        """Return empty sessions of the network and of the draft model."""
        tree = None if self.layout is None else self.layout.tree
        session = self.engine.session(encoded, self._width, tree)
        if self.data.draft is None or encoded.draft is None:
            return session, None
        # The cache is as wide as a block, so that a rejected block can be rolled back; a step reads
        # only READ tokens.
        engine: Any = self.data.draft  # which is native
        draft = engine.session(encoded.draft, max(session.widest, READ))
        draft.resize(READ)
        return session, draft

    def _new_rows(self, batch: int) -> dict[str, Any]:
        """Allocate the arrays of rows."""
        options, widest, length = self.algorithm.options, self.session.widest, self.engine.length
        rows: dict[str, Any] = {
            "store": zeros((batch, 1 + length + widest), np.int64),
            "proposals": empty((batch, widest), np.int64),
            **{name: empty((batch,), np.int64) for name in ("position", "limit", "keys")}}
        if self.algorithm.limits is not None:
            rows["bounds"] = empty((batch, 2, length + 1), np.int64)
        if options.is_speculative:
            rows["q"] = empty((batch, widest, self.engine.vocabulary), np.int32)
            rows["q_total"] = zeros((batch, widest), np.int64)
        if self.confident is not None:
            self.costs = self.confident.block_costs(batch, self.engine.network.config.target_shape)
            rows["sizes"], rows["rate"] = (aligned(part, part.dtype)
                                           for part in (self.costs.sizes, self.costs.rate))
        if self.layout is not None:
            size, columns = self.layout.paths.shape[1], len(self.layout.guesses)
            rows["window"] = zeros((batch, size - 1, columns), np.int64)
            rows["grams"] = empty((batch, POOL, size), np.int64)
            rows["oldest"], rows["found"] = (zeros((batch,), np.int64) for _ in range(2))
        return rows

    def _begin(self, chosen: Int64 | slice, encoded: NativeMemory, keys: Int64) -> None:
        """Let the rows `chosen` begin the sequences of `encoded`."""
        rows = self.rows
        # The filler must not be the end token, or a row would end where it starts.
        start = {"position": -1, "limit": self.engine.length, "window": 0, "grams": UNUSED,
                 "found": 0, "proposals": int(self.end_token == 0)}
        for name in start.keys() & rows.keys():
            rows[name][chosen] = start[name]
        if self.end_token >= 0 and (longest := self.session.longest) is not None:
            rows["limit"][chosen] = longest[chosen]
        rows["keys"][chosen] = keys
        if "bounds" in rows:
            rows["bounds"][chosen] = encoded.bounds

    def replace(self, rows: Int64, encoded: NativeMemory, keys: Int64) -> None:
        fresh, draft = self._sessions(encoded)
        self.session.write(rows, fresh)
        if self.draft is not None and draft is not None:
            self.draft.write(rows, draft)
        self._begin(rows, encoded, keys)

    def keep(self, rows: Int64) -> None:
        for session in (self.session, self.draft):
            if session is not None:
                session.keep(rows)
        self.rows = kept_rows(self.rows, rows)
        self._bind()

    @property
    def width(self) -> int:
        return self.session.width

    def advance(self, count: int) -> Int64:
        """See `superres.interfaces.Decoder.advance`; stops early when all rows are complete."""
        session, size, following = self.session, self.block_size, self.following
        # The last iteration of a call proposes blocks of another size.
        count = count if following == size else 1
        if not 1 <= following <= self.largest or session.width < max(
                size, self.algorithm.options.min_block):
            raise ValueError(f"iterations in blocks of {size} have no memory for steps of "
                             f"{session.width} that propose blocks of {following}")
        self.loop.block_size, self.loop.end_token = size, self.end_token
        record = empty((count, session.batch, 2 + session.widest), np.int64)
        made: int = library().superres_iterate(
            byref(session.session), byref(self.loop), count, following, record.ctypes.data)
        if session.not_finite[0]:
            session.not_finite[0] = 0
            raise ScoresError
        self.block_size = following
        if self.resizable and session.width != following:
            session.resize(following)
        return record[:made]

    def resize(self, block_size: int) -> None:
        self.resizable, self.following = True, block_size

    def pending(self) -> Int64:
        return np.array(self.rows["proposals"][:, : self.block_size])

    def offer(self, tokens: Int64) -> None:
        if self.confident is not None or self.layout is not None or "q" in self.rows:
            raise ConfigError(NO_DRAFTS)
        self.block_size = tokens.shape[1]
        self.rows["proposals"][:, : self.block_size] = tokens

    def accept(self, epsilon: int) -> None:
        self.loop.rule, self.loop.bound = abi.value("Rule", "distance"), epsilon

    def complete(self) -> Bool:
        return np.asarray(self.rows["position"] >= self.rows["limit"])

    def positions(self) -> Int64:
        return np.array(self.rows["position"])

    def results(self, rows: Int64) -> tuple[Int64, Int64]:
        count, places = self.rows["position"][rows].clip(0), np.arange(self.engine.length)
        tokens = self.rows["store"][rows, 1 : 1 + len(places)]
        return np.where(places < count[:, None], tokens, 0), count

    def seek(self, position: int) -> None:
        self.end_token = -1
        self.rows["position"][:], self.rows["limit"][:] = position, self.engine.length

    def _bind(self) -> None:
        """Make the form in which native.cpp reads the rows."""
        session, options, rows = self.session, self.algorithm.options, self.rows
        size, width = session.session.size, session.widest
        batch, vocabulary = session.batch, size.vocabulary
        kind, bound = self.algorithm.criterion.rule or ("distance", 0)
        # Scratch, which one iteration leaves to the next.
        integers = empty((3 * width + 3, batch), np.int64)
        scratch = {
            "tokens": integers[:width], "best_tokens": integers[width : 2 * width],
            "next": integers[2 * width :], "place": integers[-3], "index": integers[-2],
            "first": integers[-1], "hidden": empty((batch, width, size.d), np.float32),
            "scores": empty((batch, width, vocabulary), np.float32),
            "scratch": session.scratch.get("heads"),
        }
        self.loop = loop = abi.CLoopState(
            block_size=self.block_size, capacity=width, stride=rows["store"].shape[1],
            minimum=options.min_block, rule=abi.value("Rule", kind),
            bound=min(bound, vocabulary) if kind == "rank" else bound, end_token=self.end_token,
            **{name: rows[name].ctypes.data for name in ("position", "limit", "store",
                                                         "proposals")},
            **{name: None if array is None else array.ctypes.data
               for name, array in scratch.items()},
        )
        # the copies in `loop` keep nothing alive
        self.kept: list[Any] = [integers, scratch]
        self._add_settings(loop, batch)

    def _add_settings(self, loop: abi.CLoopState, batch: int) -> None:
        """Add what only some decodes have: a draft, sampling, block costs, limits, a lookahead."""
        rows, limits = self.rows, self.algorithm.limits
        if self.draft is not None:
            loop.draft = self._draft(self.draft, batch)
        if self.algorithm.options.is_sampling:
            loop.sampling = pointer(self._sampling(batch))
        if self.confident is not None:
            costs = aligned(self.costs.costs, np.float64)
            self.kept.append(costs)
            loop.block_costs = abi.CBlockCosts(
                count=len(costs), costs=costs.ctypes.data, offset=self.costs.offset,
                exponent=self.costs.exponent, reach=self.costs.reach,
                sizes=address(rows["sizes"], np.int64, batch),
                rate=address(rows["rate"], np.float64, batch, 2 + self.engine.channels))
        if limits is not None:
            earlier = limits.earlier
            loop.limits = abi.CLimits(
                count=earlier.shape[1], earlier=address(earlier, np.int64, *earlier.shape),
                bounds=address(rows["bounds"], np.int64, batch, 2, len(earlier)))
        if self.layout is not None:
            loop.lookahead = self._lookahead(self.layout)

    def _draft(self, session: NativeSession, batch: int) -> abi.CDraft:
        """Return the form in which native.cpp reads a draft model's session."""
        size, width = session.session.size, session.width
        integers = empty((2 * width + 1, batch), np.int64)
        hidden = empty((batch, width, size.d), np.float32)
        scores = empty((batch, width, size.vocabulary), np.float32)
        self.kept += [integers, hidden, scores]
        parts = integers[:width], integers[-1], integers[width:-1], hidden, scores
        return abi.CDraft(pointer(session.session), *(part.ctypes.data for part in parts))

    def _sampling(self, batch: int) -> abi.CSampling:
        """Return the form in which native.cpp reads the sampling."""
        options, vocabulary, rows = self.algorithm.options, self.engine.vocabulary, self.rows
        temperatures = aligned(np.array(options.temperatures), np.float32)
        widest = self.session.widest
        made = abi.CSampling(
            kind=abi.value("SamplingKind", "speculative" if "q" in rows else "gumbel"),
            seed=options.seed, channels=len(temperatures),
            top_k=min(options.sample_top_k or vocabulary, vocabulary), nucleus=options.nucleus,
            keys=address(rows["keys"], np.int64, batch), temperature=temperatures.ctypes.data,
            q=address(rows.get("q"), np.int32, batch, widest, vocabulary),
            q_total=address(rows.get("q_total"), np.int64, batch, widest))
        self.kept += [made, temperatures]
        return made

    def _lookahead(self, layout: Layout) -> abi.CLookahead:
        """Return the form in which native.cpp reads the columns of a step and the n-grams."""
        candidates, size = layout.paths.shape
        parts = [aligned(part, np.int64) for part in (layout.paths, layout.guesses, *layout.cells)]
        self.kept += parts
        return abi.CLookahead(
            size, len(layout.guesses), candidates, len(layout.cells[0]), POOL,
            *(part.ctypes.data for part in parts),
            *(self.rows[name].ctypes.data for name in ("window", "grams", "oldest", "found")))
