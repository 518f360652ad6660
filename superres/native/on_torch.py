"""The native engine for criteria and proposers on torch: sessions whose tensors share the memory of
compiled code. The only module of this package that imports torch."""

from __future__ import annotations

import logging
import math
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from superres.native import abi
from superres.native.memory import NativeMemory
from superres.native.session import COPIED, NativeSession
from superres.nn.heads import RecurrentHeads
from superres.nn.model import EncoderDecoder, Memory
from superres.nn.proposing import ProposingSession, StepState
from superres.nn.torch_model import StepModel
from superres.nn.torch_step import PARTS
from superres.nn.tree_attention import require_width
from superres.nn.weights import module_of
from superres.sessions import Sampler, Session, Sources, StepOutput, Tree, TreeSession

LOG = logging.getLogger(__name__)


class SessionOnTorch(ProposingSession):
    """A `superres.sessions.Session` whose steps are those of a native session."""

    def __init__(self, model: EncoderDecoder, memory: Memory, native: NativeSession) -> None:
        shared = {name: torch.from_numpy(native.rows[name]) for name in COPIED
                  if name in native.rows}
        super().__init__(model, Memory(memory.states, memory.mask, **shared), native.width)
        self.native = native

    def _source_of(self, memory: Memory) -> tuple[Tensor, ...]:
        """Return the states and the mask, from which `_keys` computes keys and values."""
        return ((memory.states, memory.hidden(memory.states.dtype))
                if isinstance(self.heads, RecurrentHeads) else ())

    def _keys(self) -> tuple[Tensor, ...]:
        return super()._source_of(Memory(*self.source))

    def step(self, tokens: Tensor, position: Tensor) -> StepOutput:
        """See `superres.sessions.Session.step`; the state is the decoder outputs [B, W, D] and
        `position`."""
        position = position.contiguous()
        scores, hidden = self.native.step(tokens.contiguous().numpy(), position.numpy())
        return StepOutput(torch.from_numpy(scores), (torch.from_numpy(hidden), position))

    def propose(self, output: StepOutput, index: Tensor, first: Tensor, offsets: Tensor,
                sampler: Sampler) -> Tensor:
        hidden, position = output.state
        rule = None if sampler.limit is not None else sampler.additive(offsets)
        if rule is None:  # by the heads on torch
            place = (position.unsqueeze(1) + torch.arange(self.width)).clamp(
                max=self.config.target_length - 1)
            shape = self.batch, self.width, self.native.session.neighbourhood.features
            near = torch.from_numpy(self.native.scratch["gathered"])[: math.prod(shape)]
            state = StepState(hidden, place, near.view(shape) if shape[-1] else None)
            return super().propose(StepOutput(output.scores, state), index, first, offsets, sampler)
        temperature, noise = (None if part is None else part.float().contiguous().numpy()
                              for part in rule)
        return torch.from_numpy(self.native.propose(
            hidden.numpy(), position.numpy(), index.contiguous().numpy(),
            first.contiguous().numpy(), len(offsets),
            None if temperature is None else temperature[..., 0], noise))

    def part_seconds(self, tokens: Tensor, position: Tensor, repeats: int) -> dict[str, float]:
        seconds = self.native.part_seconds(tokens.numpy(), position.numpy(), repeats)
        return {part: float(seconds[abi.value("Part", part)]) for part in PARTS}

    def resize(self, width: int) -> None:
        """See `superres.sessions.Session.resize`; a ValueError if there is no memory for steps of
        `width`."""
        self.native.resize(width)
        self.width = width

    def select(self, rows: Tensor, length: int) -> None:
        self.native.select(rows.numpy(), length)

    def row_state(self, cache: bool = True) -> list[Tensor]:
        """See `superres.sessions.Session.row_state`; adds the arrays that native.cpp reads."""
        own = [torch.from_numpy(array) for name, array in self.native.rows.items()
               if cache or name not in self.native.caches]
        return list({tensor.data_ptr(): tensor for tensor in (*super().row_state(), *own)}.values())


class TreeSessionOnTorch(SessionOnTorch):
    """A `superres.sessions.TreeSession` whose steps are those of a native session."""

    def __init__(self, model: EncoderDecoder, memory: Memory, native: NativeSession,
                 tree: Tree) -> None:
        super().__init__(model, memory, native)
        self.tree, self.start = tree, torch.zeros(self.batch, dtype=torch.int64)

    def step(self, tokens: Tensor, position: Tensor) -> StepOutput:
        self.start = position.clone()
        return super().step(tokens, position)

    def commit(self, columns: Tensor) -> None:
        self.native.commit(columns.contiguous().numpy(), self.start.numpy())

    def resize(self, width: int) -> None:
        """Raise a ValueError for any width but the tree's."""
        require_width(self.tree, width)


class ModelOnTorch(StepModel):
    """A native engine as a `superres.sessions.ScoringModel`; `native` is the engine."""

    own_threads = True
    adaptive = True

    def __init__(self, native: Any) -> None:  # noqa: ANN401 -- a `superres.native.engine.NativeEngine`
        super().__init__(module_of(native.network), native.end_token)
        self.native, self.engine, self.costs = native, native.name, native.costs
        self.peers = native.peers
        self.warned = False

    @property
    def code(self) -> str:
        return str(self.native.code)

    @property
    def variant(self) -> str:
        return str(self.native.variant)

    def _encoded(self, source: Tensor, padding: Tensor | None) -> Memory:
        memory = self.native.encode(source.numpy(), None if padding is None else padding.numpy())
        parts = {name: torch.from_numpy(part) for name, part in vars(memory).items()
                 if part is not None}
        if memory.mask is not None:
            parts["mask"] = parts["mask"][:, None, None, :]
        return Memory(**parts)

    def session(  # type: ignore[override]
        self, source: Sources, width: int, padding: Tensor | None = None, copies: int = 1,
    ) -> Session:
        memory = self.encode(source, padding, copies)
        return SessionOnTorch(self.model, memory, self.native.session(_native(memory), width))

    def tree_session(  # type: ignore[override]
        self, source: Sources, tree: Tree, kept: int, padding: Tensor | None = None,
    ) -> TreeSession:
        """See `superres.sessions.ScoringModel.tree_session`; trees with a trunk get the plain
        step."""
        if tree.root:
            if not self.warned:
                LOG.warning("decoding with the plain step in float32, which is slower: the %s step "
                            "does not support trees with a trunk", self.engine)
                self.warned = True
            return super().tree_session(source, tree, kept, padding)
        memory = self.encode(source, padding)
        native = self.native.session(_native(memory), tree.size, tree)
        return TreeSessionOnTorch(self.model, memory, native, tree)


def _native(memory: Memory) -> NativeMemory:
    """Return the parts of a memory that sessions read, in the same memory."""
    names = [field.name for field in fields(NativeMemory)]
    parts: dict[str, Any] = {name: part.contiguous().numpy() for name in names
                             if isinstance(part := getattr(memory, name, None), Tensor)}
    if memory.mask is not None:
        parts["mask"] = np.ascontiguousarray(parts["mask"][:, 0, 0])
    return NativeMemory(**parts)
