"""The native engine: the model whose sessions run in compiled code, its sessions over trees, and
its threads.

`NativeModel` replaces `superres.nn.torch_model.StepModel` if a C++ compiler is installed and the
code supports the network. Otherwise `superres.pipeline.choose` logs a warning and uses the plain
step.
"""

from __future__ import annotations

import copy
import logging
from ctypes import byref
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from superres.config import general_costs
from superres.decoding.blockwise import PlainDecoder
from superres.interfaces import Decoder, Sources, StepOutput, Tree, TreeSession
from superres.native.abi import LANES, MAX_HEAD, PANEL, CTree
from superres.native.build import NativeUnavailable, chosen, library
from superres.native.decoder import native_decoder
from superres.native.encoder import encode, packed_encoder
from superres.native.session import NativeSession, address
from superres.native.weights import PackedWeights
from superres.nn.model import EncoderDecoder, Memory
from superres.nn.torch_model import StepModel
from superres.nn.tree_attention import require_width
from superres.system.threads import most_threads
from superres.system.torch_threads import TorchThreads

LOG = logging.getLogger(__name__)

BY_PRECISION = {"float32": "native", "int8": "native-int8"}
"""Name of the engine by the format of its weights."""

AnySession = TypeVar("AnySession", bound=NativeSession)


class NativeTreeSession(NativeSession):
    """A batch being decoded by native steps over a tree with root 0:
    `superres.interfaces.TreeSession`."""

    def __init__(self, packed: PackedWeights, memory: Memory, tree: Tree, threads: int) -> None:
        super().__init__(packed, memory, tree.size, threads)
        self.tree, self.start = tree, torch.zeros(self.batch, dtype=torch.int64)
        self.tensors += [tree.depth, tree.ancestors.contiguous()]
        self.session.tree = CTree(tree.scored, tree.ancestors.shape[1],
                                  *(part.data_ptr() for part in self.tensors[-2:]))
        shape = self.batch, self.width, 2 * self.config.width
        for layer in self.layer_caches:
            layer.columns = self._keep(torch.zeros(shape))
        if self.deviation is not None:
            self.session.neighbourhood.column_deviation = self._keep(torch.zeros(shape[:2]))

    @property
    def scored(self) -> int:
        """Number of columns of a step that get scores."""
        return self.tree.scored

    def step(self, tokens: Tensor, position: Tensor) -> StepOutput:
        self.start = position.clone()
        return super().step(tokens, position)

    def commit(self, columns: Tensor) -> None:
        columns = columns.contiguous()
        library().superres_keep(byref(self.session), address(columns, torch.int64, self.batch,
                                                             columns.shape[1]),
                                columns.shape[1], address(self.start, torch.int64, self.batch))

    def resize(self, width: int) -> None:
        """Raise a ValueError for any width but the tree's."""
        require_width(self.tree, width)


class NativeModel(StepModel):
    """`EncoderDecoder` as a `superres.interfaces.ScoringModel` whose steps run in native.cpp.

    Args:
        model: the network in evaluation mode, on the CPU.
        end_token: token that ends a sequence early.
        threads: number of threads per step; None takes as many as gain by the recorded costs, up to
            torch's limit.
        precision: "float32" computes with the weights as they are. "int8" stores weights, keys and
            values in a byte each, and rounds the inputs of products: every column with a scale of
            its own, so that no result depends on the step width. The sums are exact integers. The
            encoder of images has the same format.

    Attributes:
        shortlists: returns the tokens from which recurrent heads choose, for sources int64 [B, S],
            as int64 [B, N]: a multiple of 32 tokens, -1 past the last; None if they choose from
            all.

    Raises:
        NativeUnavailable: the code cannot be built on this machine, or does not support the
            network.
    """

    engine = "native"
    own_threads = True
    adaptive = True
    costs = general_costs(0.4)

    def __init__(
        self, model: EncoderDecoder, end_token: int | None = None, *, threads: int | None = None,
        precision: str = "float32",
    ) -> None:
        super().__init__(model, end_token)
        self.engine = BY_PRECISION[precision]
        config = model.config
        head = config.width // config.attention_heads
        if model.signal.device.type != "cpu":
            raise NativeUnavailable("the native step runs on the CPU, not on "
                                    f"{model.signal.device.type}; choose plain")
        if not config.identity_p1:
            raise NativeUnavailable("the native step knows no p1 but the base model itself")
        if any(size % PANEL for size in (config.width, config.filter_size,
                                         config.head_filter_size)):
            raise NativeUnavailable(f"width and filter sizes must be multiples of {PANEL}")
        if head % LANES:
            raise NativeUnavailable(f"the width of an attention head must be a multiple of {LANES}")
        if precision == "int8" and head > MAX_HEAD:
            raise NativeUnavailable("with int8, the width of an attention head must be at most "
                                    f"{MAX_HEAD}, not {head}; choose native")
        library()
        self.threads, self.warned = threads, False
        # Hundreds of small operations: further threads would wait for one another, above all on a
        # busy machine.
        with torch.inference_mode(), TorchThreads(1):
            self.packed = PackedWeights(model, precision)
            self.encoder = partial(encode, packed_encoder(self.packed), model)

    @property
    def code(self) -> str:
        return f"{self.engine} {chosen().identity}"

    @property
    def variant(self) -> str:
        return chosen().variant.name

    def side_by_side(self, decodes: int) -> list[StepModel]:
        """See `StepModel.side_by_side`: every decode has threads of its own, and does not wait for
        others."""
        threads = self._most_threads()
        count = max(1, min(decodes, threads))
        if count == 1:
            return [self]
        own = copy.copy(self)
        own.threads = threads // count
        return [own] * count

    def _encoded(self, source: Tensor, padding: Tensor | None) -> Memory:
        with TorchThreads(1):
            memory = self.encoder(source, self._most_threads(), padding)
        memory.tokens = None if self.shortlists is None else source
        return memory

    def decoder(self, plain: PlainDecoder) -> Decoder | None:
        return native_decoder(plain)

    def session(  # type: ignore[override]
        self, source: Sources, width: int, padding: Tensor | None = None, copies: int = 1,
    ) -> NativeSession:
        threads, shortlist = self._most_threads(), None
        with TorchThreads(1):
            memory = self.encode(source, padding, copies)
            if (self.shortlists is not None and memory.tokens is not None and width > 1
                and self.packed.heads.recurrent):
                shortlist = torch.from_numpy(self.shortlists(memory.tokens.numpy()))
            return self._planned(NativeSession(self.packed, memory, width, threads, shortlist))

    def tree_session(  # type: ignore[override]
        self, source: Sources, tree: Tree, kept: int, padding: Tensor | None = None,
    ) -> TreeSession:
        """See `superres.interfaces.ScoringModel.tree_session`; trees with a trunk get the plain
        step."""
        if tree.root:
            if not self.warned:
                LOG.warning("decoding with the plain step in float32, which is slower: the %s step "
                            "does not support trees with a trunk", self.engine)
                self.warned = True
            return super().tree_session(source, tree, kept, padding)
        threads = self._most_threads()
        with TorchThreads(1):
            memory = self.encode(source, padding)
            return self._planned(NativeTreeSession(self.packed, memory, tree, threads))

    def _planned(self, session: AnySession) -> AnySession:
        """Let `session` use the recorded numbers of threads, of columns per thread and of rows
        together."""
        threads = session.session.threads
        if self.threads is None:
            threads.count = min(threads.count, self.costs.threads_of(session.batch, session.width))
        costs = self.costs.of(session.batch)
        threads.rows_at_once = costs.together
        if costs.least_columns is not None:
            threads.least_columns = costs.least_columns
        return session

    def _most_threads(self) -> int:
        return self.threads or most_threads()
