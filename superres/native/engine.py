"""The native engine: a network whose encoder, steps and iterations run in compiled code.

It serves if a C++ compiler is installed, or the package has the compiled code, and the code
supports the network. Otherwise `superres.pipeline.choose` logs a warning and uses the plain engine.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from superres.config import ModelConfig, general_costs
from superres.decoding.algorithm import Algorithm
from superres.decoding.confidence import ConfidentBlockSize
from superres.decoding.proposers import PROPOSERS
from superres.errors import torch_needed
from superres.interfaces import Bool, Decoder, Engine, Float32, Float64, Int64, Network
from superres.native.abi import LANES, MAX_HEAD, PANEL, CThreads
from superres.native.build import NativeUnavailable, chosen, library
from superres.native.decoder import NativeDecoder
from superres.native.encoder import encode, packed_encoder
from superres.native.memory import NativeMemory
from superres.native.session import LEAST_COLUMNS, NativeSession
from superres.native.weights import PackedWeights
from superres.sessions import EngineModel, Tree
from superres.system.threads import most_threads

BY_PRECISION = {"float32": "native", "int8": "native-int8"}
"""Name of the engine by the format of its weights."""

JUDGED = 64
"""Columns of the steps by which targets are judged."""


class NativeEngine:
    """A `superres.interfaces.Engine` that computes in native.cpp.

    Args:
        network: the network.
        end_token: token that ends a sequence early.
        threads: number of threads per step; None takes as many as gain by the recorded costs, up to
            `superres.system.threads.most_threads`.
        precision: "float32" computes with the weights as they are. "int8" stores weights, keys and
            values in a byte each, and rounds the inputs of products: every column with a scale of
            its own, so that no result depends on the step width. The sums are exact integers. The
            encoder of images has the same format.

    Attributes:
        shortlists: returns the tokens from which recurrent heads choose, for sources int64 [B, S],
            as int64 [B, N]: a multiple of 32 tokens, -1 past the last; None if they choose from
            all.
        peers: see `superres.sessions.ScoringModel.peers`; several processes compute on torch.

    Raises:
        NativeUnavailable: the code cannot be built on this machine, or does not support the
            network.
    """

    device = "cpu"
    adaptive = True
    costs = general_costs(0.4)
    shortlists: Callable[[Int64], Int64] | None = None
    peers: Any = None

    def __init__(
        self, network: Network, end_token: int | None = None, *, threads: int | None = None,
        precision: str = "float32",
    ) -> None:
        config = network.config
        self.network, self.end_token, self.precision = network, end_token, precision
        self.name, self.threads = BY_PRECISION[precision], threads
        self.vocabulary, self.length = config.vocabulary, config.target_length
        self.prediction_heads, self.channels = config.prediction_heads, config.channels
        _check(config, precision)
        library()
        self.packed = PackedWeights(network, precision)
        self.encoder = packed_encoder(self.packed)
        # The centres of ordinal heads alone must determine their proposals.
        self.confident = bool(self.packed.heads.recurrent
                              or config.outputs == config.ordinal_outputs)

    @property
    def code(self) -> str:
        return f"{self.name} {chosen().identity}"

    @property
    def variant(self) -> str:
        return chosen().variant.name

    @property
    def weight_bytes(self) -> int:
        return sum(array.nbytes for array in self.network.arrays.values())

    def row_bytes(self, width: int, by_heads: bool) -> int:
        # The scores and the sampling noise of every column, and intermediate results.
        return 16 * 8 * width * self.vocabulary

    def supporting(self, algorithm: Algorithm) -> Engine:
        """See `superres.interfaces.Engine.supporting`.

        Compiled code knows the package's own criteria, and the proposers heads, draft and
        lookahead. All others, and classes that derive from these, run on torch, whose steps are
        native all the same; ConfigError without torch.
        """
        if self._supports(algorithm):
            return self
        options = algorithm.options
        sampled = " and a temperature" if options.is_sampling else ""
        with torch_needed(f"decoding with proposer {options.proposer}, accept {options.accept}"
                          f"{sampled}"):
            return self._plain

    def _supports(self, algorithm: Algorithm) -> bool:
        if algorithm.is_own or getattr(algorithm.criterion, "rule", None) is None:
            return False
        is_built_in = type(algorithm.proposer) in PROPOSERS.data.values()
        data = algorithm.proposer.as_data() if is_built_in else None
        if data is None:
            return False
        if data.draft is not None:
            same = (data.limits is None) == (algorithm.limits is None)
            return same and isinstance(data.draft, NativeEngine)
        # sampled tokens are chosen in single steps, as are those of several processes
        is_tree = data.kind == "lookahead" and algorithm.block_size > 1
        return not (is_tree and (algorithm.options.is_sampling or self.peers is not None))

    @cached_property
    def _plain(self) -> Engine:
        from superres.decoding.plain.engine import PlainEngine

        return PlainEngine(self.on_torch())

    def on_torch(self) -> EngineModel:
        from superres.native.on_torch import ModelOnTorch

        return ModelOnTorch(self)

    def side_by_side(self, decodes: int) -> list[NativeEngine]:
        """See `superres.interfaces.Engine.side_by_side`: every decode has threads of its own, and
        does not wait for others."""
        threads = self._most_threads()
        count = max(1, min(decodes, threads))
        if count == 1:
            return [self]
        own = copy.copy(self)
        for name in ("_plain", "_float32"):  # engines of as many threads as this one
            vars(own).pop(name, None)
        own.threads = threads // count
        return [own] * count

    def encode(self, tokens: Int64, padding: Bool | None = None,
               algorithm: Algorithm | None = None) -> NativeMemory:
        memory = encode(self.encoder, self.network.config, tokens, self._most_threads(), padding)
        memory.tokens = None if self.shortlists is None else tokens
        if algorithm is not None:
            if algorithm.limits is not None:
                memory.bounds = algorithm.limits.bounds(tokens)
            data = algorithm.proposer.as_data()
            if data is not None and isinstance(data.draft, NativeEngine):
                memory.draft = data.draft.encode(tokens, padding)
        return memory

    def joined(self, parts: Sequence[NativeMemory]) -> NativeMemory:
        return NativeMemory.joined(parts)

    def start(
        self, encoded: NativeMemory, keys: Int64, algorithm: Algorithm, block_size: int,
        confident: ConfidentBlockSize | None = None,
    ) -> Decoder:
        return NativeDecoder(self, encoded, keys, algorithm, block_size, confident)

    def session(self, memory: NativeMemory, width: int, tree: Tree | None = None) -> NativeSession:
        """Make an empty session of steps of `width`, or over a tree whose root is column 0."""
        width, shortlist = width if tree is None else tree.size, None
        if (self.shortlists is not None and memory.tokens is not None and width > 1
                and self.packed.heads.recurrent):
            shortlist = self.shortlists(memory.tokens)
        return NativeSession(self.packed, memory, width, self._planned(len(memory), width),
                             shortlist, tree)

    def likelihood(self, sources: Int64, targets: Int64) -> tuple[Float64, Float32]:
        """See `superres.interfaces.Engine.likelihood`: by steps of many columns, a row at a time,
        so that memory does not grow with the batch."""
        rows = [self._float32._judged(sources[row : row + 1], targets[row : row + 1])
                for row in range(len(targets))]
        if not rows:
            return np.zeros(0), np.zeros(targets.shape, np.float32)
        bits, variance = map(np.concatenate, zip(*rows, strict=True))
        return bits, variance

    def _judged(self, sources: Int64, targets: Int64) -> tuple[Float64, Float32]:
        """Return the likelihood of targets [B, T] by steps of all rows."""
        session = self.session(self.encode(sources), min(JUDGED, self.length))
        # A step reads the tokens before those that it scores.
        read = np.pad(targets[:, :-1], ((0, 0), (1, 0)))
        bits, variance = np.zeros(len(targets)), np.empty(targets.shape, np.float32)
        values = np.arange(self.vocabulary, dtype=np.float64)
        for start in range(0, targets.shape[1], session.widest):
            part = slice(start, start + session.widest)
            own = targets[:, part, None]  # [B, W, 1]
            session.resize(own.shape[1])
            scores, _ = session.step(np.ascontiguousarray(read[:, part]),
                                     np.full(len(targets), start))
            log_p = scores - scores.max(-1, keepdims=True).astype(np.float64)  # [B, W, V]
            log_p -= np.log(np.exp(log_p).sum(-1, keepdims=True))
            bits -= np.take_along_axis(log_p, own, axis=-1).sum((1, 2)) / math.log(2)
            p = np.exp(log_p)
            mean = (p * values).sum(-1)
            variance[:, part] = ((p * values**2).sum(-1) - mean**2).clip(0)
        return bits / targets.shape[1], variance

    @cached_property
    def _float32(self) -> NativeEngine:
        """The engine that judges, whatever the format of the weights."""
        if self.precision == "float32":
            return self
        return NativeEngine(self.network, self.end_token, threads=self.threads)

    def _planned(self, rows: int, width: int) -> CThreads:
        """Return the recorded numbers of threads, of columns per thread and of rows together."""
        threads, costs = self._most_threads(), self.costs.of(rows)
        if self.threads is None:
            threads = min(threads, self.costs.threads_of(rows, width))
        return CThreads(count=threads, rows_at_once=costs.together,
                        least_columns=costs.least_columns or LEAST_COLUMNS)

    def _most_threads(self) -> int:
        return self.threads or most_threads()


def _check(config: ModelConfig, precision: str) -> None:
    """Raise NativeUnavailable if the code does not support a network."""
    head = config.width // config.attention_heads
    if not config.identity_p1:
        raise NativeUnavailable("the native step knows no p1 but the base model itself")
    if any(size % PANEL for size in (config.width, config.filter_size, config.head_filter_size)):
        raise NativeUnavailable(f"width and filter sizes must be multiples of {PANEL}")
    if head % LANES:
        raise NativeUnavailable(f"the width of an attention head must be a multiple of {LANES}")
    if precision == "int8" and head > MAX_HEAD:
        raise NativeUnavailable("with int8, the width of an attention head must be at most "
                                f"{MAX_HEAD}, not {head}; choose native")
