"""Tree attention: a cached step verifies several continuations of a row in one pass, of which one is committed.

For every query, its latest L keys are gathered, where L is the longest path of the tree; they are columns of the step
or committed positions. All older keys are read from the cache's ring. The result for a path is therefore bit for bit
independent of its place in the tree, of the other paths, and of how much of the path was committed before.

Shapes: M columns of the tree, L columns of its longest path, R slots of the ring.
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
    """A ring cache with M extra slots for the columns of one step; `keep` copies a path of them into the ring."""

    def __init__(self, config: ModelConfig, batch: int, tree: Tree, kept: int, like: Tensor) -> None:
        """Allocate for `batch` rows and at most `kept` kept columns per step, with dtype and device of `like`."""
        super().__init__(config, batch, kept, like, beside=tree.size)
        self.ancestors = tree.ancestors.to(like.device)
        self.offset = torch.arange(tree.ancestors.shape[1], device=like.device)

    def locate(self, position: Tensor, reach: Tensor) -> tuple[Tensor, Tensor]:
        """Return the index and the mask of a step's keys, the same for every layer.

        Args:
            position: decoder positions of the columns [B, M].
            reach: how many positions back each column may see [B, M].

        Returns:
            The index of each column's latest L keys and values for `write`, and the mask to add to scores
            [B, M, R + L]: the keys of the ring, then the latest keys.
        """
        place, last = position.unsqueeze(-1), position[:, :1] - 1
        recent = place - self.offset
        own = self.ancestors >= 0
        slot = torch.where(own, self.slots + self.ancestors, recent % self.slots).unsqueeze(1)
        older = (last - (last - self.slot) % self.slots).unsqueeze(1)
        first = (place - reach.unsqueeze(-1)).clamp(min=0)
        # Columns before the start of the sequence are unused. They see themselves, since a softmax over no key is NaN.
        visible = torch.cat([
            (older >= first) & (older <= place - len(self.offset)), (recent >= first) | (self.offset == 0),
        ], dim=-1)
        return (self.row_starts.unsqueeze(-1) + slot).flatten(), torch.where(visible, self.zero, self.hidden)

    def write(self, layer: int, key_value: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """Store a step's keys and values in the extra slots; return the ring and each column's latest keys and values.

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
    """A batch being decoded by steps over a tree: `superres.interfaces.TreeSession`. For one decode at a time."""

    layer_step = TreeLayerStep
    cache: TreeCache

    def __init__(self, fused: FusedWeights, memory: Memory, tree: Tree, kept: int) -> None:
        """Prepare for the sources of `memory` and steps over `tree`; `keep` takes at most `kept` columns."""
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
        """Accept only the width of the tree.

        Raises:
            ValueError: `width` is another one.
        """
        if width != self.width:
            raise ValueError(f"a session over a tree of {self.width} columns cannot read {width}")

    def _inside(self, place: Tensor) -> Tensor:
        """Clamp decoder positions to those in the buffers; values at the first and the last position are never used."""
        return place.clamp(0, self.expected.shape[1] - 1)

    def _features(self, near: FusedNeighbourhood, tokens: Tensor, place: Tensor, inside: Tensor) -> Tensor:
        """See `StepSession._features`; a column also reads the tokens of its ancestors in the tree."""
        self.step_deviation = self._deviation(tokens, self._inside(place))
        ancestors, beside = self.cache.ancestors, self.deviation.shape[1]
        before_first = beside - self.read.shape[1]  # the buffer's place of the token read at position 0

        def find(places: Tensor) -> Tensor:
            read = places.view(*place.shape, -1) - before_first
            back = place.unsqueeze(-1) - read
            near = back.clamp(0, ancestors.shape[1] - 1)
            column = ancestors.expand(self.batch, -1, -1).gather(2, near)
            own = (read > 0) & (back == near) & (column >= 0)
            return torch.where(own, beside + column, places.view(own.shape)).view(places.shape)

        return near.features(torch.cat([self.deviation, self.step_deviation], dim=1), inside, find)

    def _verify(self, hidden: Tensor, inside: Tensor, neighbours: Tensor | None, channel: Tensor) -> Tensor:
        """Return p1's scores of the tree's scored columns [B, tree.scored, V]."""
        scored = slice(self.tree.scored)
        channel = channel.view(inside.shape)[:, scored].flatten()
        hidden = hidden.view(*inside.shape, -1)[:, scored].flatten(0, 1)
        return super()._verify(
            hidden, inside[:, scored], None if neighbours is None else neighbours[:, scored], channel)
