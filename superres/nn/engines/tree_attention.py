"""The cached step over a tree of columns: several continuations of a row in one pass, of which one is kept.

A query's latest keys, as many as the longest path has columns, are gathered for it, be they columns of the step or
committed long ago; the older ones are those of the cache's ring. So what a path computes does not depend, not by a bit,
on where it stands in the tree, on what else is read beside it, or on how much of it was committed before.
"""

from __future__ import annotations

import torch
from torch import Tensor

from superres.config import ModelConfig
from superres.interfaces import StepOutput, Tree
from superres.nn.cache import KeyValueCache
from superres.nn.engines.fused_weights import FusedNeighbourhood, FusedWeights
from superres.nn.engines.torch_step import LayerStep, StepSession
from superres.nn.model import Memory


class TreeCache(KeyValueCache):
    """A ring with slots beside it for the columns of one step, until a path of them is kept."""

    def __init__(self, config: ModelConfig, batch: int, tree: Tree, kept: int, like: Tensor) -> None:
        """Allocate for `batch` rows, of whose steps `kept` columns at most are kept; dtype and device are `like`'s."""
        super().__init__(config, batch, kept, like, beside=tree.size)
        self.ancestors = tree.ancestors.to(like.device)
        self.offset = torch.arange(tree.ancestors.shape[1], device=like.device)

    def locate(self, position: Tensor, reach: Tensor) -> tuple[Tensor, Tensor]:
        """Return what a step sees, the same for every layer.

        Args:
            position: decoder positions of the columns [B, M].
            reach: how many positions back each may see, [B, M].

        Returns:
            Index of each column's latest keys and values for `write`, and the mask to add to scores: the ring's, then
            the latest keys', [B, M, R + L].
        """
        place, last = position.unsqueeze(-1), position[:, :1] - 1
        recent = place - self.offset
        own = self.ancestors >= 0
        slot = torch.where(own, self.slots + self.ancestors, recent % self.slots).unsqueeze(1)
        older = (last - (last - self.slot) % self.slots).unsqueeze(1)
        first = (place - reach.unsqueeze(-1)).clamp(min=0)
        # A column before the start of the sequence, read for nothing, sees itself: without a key it would be NaN.
        visible = torch.cat([
            (older >= first) & (older <= place - len(self.offset)), (recent >= first) | (self.offset == 0),
        ], dim=-1)
        return (self.row_starts.unsqueeze(-1) + slot).flatten(), torch.where(visible, self.zero, self.hidden)

    def write(self, layer: int, key_value: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """Store a step's keys and values beside the ring; return the ring and the latest ones of each column.

        Args:
            layer: number of the decoder layer.
            key_value: [B * M, 2 * D], keys before values.
            index: from `locate`.

        Returns:
            [2, B * H, R, D / H] and [2, B * H, M, L, D / H], keys before values.
        """
        store = self.store[layer]
        shaped = key_value.view(self.batch, -1, 2, self.heads, self.size).permute(2, 0, 3, 1, 4)
        store[:, :, self.slots :] = shaped.reshape(2, self.batch * self.heads, -1, self.size)
        recent = store.view(-1, self.size).index_select(0, index)
        return store[:, :, : self.slots], recent.view(*store.shape[:2], *self.ancestors.shape, self.size)

    def keep(self, columns: Tensor, position: Tensor) -> None:
        """Move columns [B, P] into the ring, to decoder positions `position` [B, P]."""
        count = 2 * len(self.store)
        starts = torch.arange(count * self.batch * self.heads, device=columns.device) * self.store.shape[3]
        starts = starts.view(count, self.batch, self.heads, 1)
        source, target = (
            (starts + slot[:, None]).flatten() for slot in (self.slots + columns, position % self.slots))
        flat = self.store.view(-1, self.size)
        flat.index_copy_(0, target, flat.index_select(0, source))


class TreeLayerStep(LayerStep):
    """One decoder layer of a step over a tree."""

    def attend(self, x: Tensor, cache: KeyValueCache, layer: int, index: Tensor, mask: Tensor) -> Tensor:
        """See `LayerStep.attend`; `cache` is a `TreeCache`."""
        width = x.shape[1]
        projected = self.fused.projection(self._before(x))
        (old_key, old_value), (key, value) = cache.write(layer, projected[:, width:], index)
        query = self.split(projected[:, :width])
        scores = torch.cat([torch.bmm(query, old_key.transpose(1, 2)), (key * query.unsqueeze(2)).sum(-1)], dim=-1)
        weights = (scores + mask).softmax(-1)
        old, recent = weights[..., : old_key.shape[1]], weights[..., old_key.shape[1] :]
        attended = torch.bmm(old, old_value) + (value * recent.unsqueeze(-1)).sum(2)
        x = self._after(self.fused.output.add_to(x, self.merge(attended)), 0)
        return x if self.cross is None else self.cross(x)


class TreeSession(StepSession):
    """A batch being decoded by steps over a tree: `superres.interfaces.TreeSession`. For one decode, in one thread."""

    layer_step = TreeLayerStep
    cache: TreeCache

    def __init__(self, fused: FusedWeights, memory: Memory, tree: Tree, kept: int) -> None:
        """Prepare for the sources of `memory` and steps over `tree`, of which `kept` columns at most are kept."""
        self.tree, self.kept = tree, kept
        super().__init__(fused, memory, tree.size)
        self.columns = tree.depth.to(memory.states.device)
        self.start = self.columns.new_zeros(self.batch)
        self.step_deviation = memory.states.new_zeros(self.batch, tree.size)

    def _make_cache(self, like: Tensor, fused_attention: bool) -> TreeCache:
        """See `StepSession._make_cache`."""
        return TreeCache(self.config, self.batch, self.tree, self.kept, like)

    def step(self, tokens: Tensor, position: Tensor) -> StepOutput:
        """See `superres.interfaces.TreeSession`."""
        self.start = position - self.tree.root
        return super().step(tokens, position)

    def keep(self, columns: Tensor) -> None:
        """See `superres.interfaces.TreeSession.keep`."""
        place = self.start.unsqueeze(1) + torch.arange(columns.shape[1], device=columns.device)
        self.cache.keep(columns, place)
        if self.neighbourhood is not None:
            self.read.scatter_(1, self._inside(place), self.step_deviation.gather(1, columns))

    def resize(self, width: int) -> None:
        """Refuse any width but that of the tree.

        Raises:
            ValueError: it differs.
        """
        if width != self.width:
            raise ValueError(f"a session over a tree of {self.width} columns cannot read {width}")

    def _inside(self, place: Tensor) -> Tensor:
        """Return decoder positions for which there is room; nobody looks at what is read at the first and last."""
        return place.clamp(0, self.expected.shape[1] - 1)

    def _features(self, near: FusedNeighbourhood, tokens: Tensor, place: Tensor, inside: Tensor) -> Tensor:
        """See `StepSession._features`; tokens of the step count for the columns that see them."""
        self.step_deviation = self._deviation(tokens, self._inside(place))
        ancestors, beside = self.cache.ancestors, self.deviation.shape[1]
        before_first = beside - self.read.shape[1]  # the place in the buffer of what is read at position 0

        def find(places: Tensor) -> Tensor:
            read = places.view(*place.shape, -1) - before_first
            back = place.unsqueeze(-1) - read
            near = back.clamp(0, ancestors.shape[1] - 1)
            column = ancestors.expand(self.batch, -1, -1).gather(2, near)
            own = (read > 0) & (back == near) & (column >= 0)
            return torch.where(own, beside + column, places.view(own.shape)).view(places.shape)

        return near.features(torch.cat([self.deviation, self.step_deviation], dim=1), inside, find)

    def _verify(self, hidden: Tensor, inside: Tensor, neighbours: Tensor | None, channel: Tensor) -> Tensor:
        """Return p1's scores of the scored columns, [B, S, V]."""
        scored = slice(self.tree.scored)
        channel = channel.view(inside.shape)[:, scored].flatten()
        hidden = hidden.view(*inside.shape, -1)[:, scored].flatten(0, 1)
        return super()._verify(
            hidden, inside[:, scored], None if neighbours is None else neighbours[:, scored], channel)
