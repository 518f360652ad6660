"""Tree attention: a cached step verifies several continuations of a row in one pass, of which one
is committed.

For every query, its latest L keys are gathered, where L is the longest path of the tree; they are
columns of the step or committed positions. All older keys are read from the cache's ring. The
result for a path is therefore bit for bit independent of its place in the tree, of the other paths,
and of how much of the path was committed before.

Shapes: M columns of the tree, L columns of its longest path, R slots of the ring.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from superres.config import ModelConfig
from superres.nn.cache import KeyValueCache
from superres.nn.image_priors import NumericNeighbourhood
from superres.nn.model import EncoderDecoder, Memory
from superres.nn.torch_step import StepSession
from superres.sessions import StepOutput, Tree


class TreeCache(KeyValueCache):
    """A ring cache with M extra slots for the columns of one step; `commit` copies up to `kept` of
    them into the ring."""

    def __init__(self, config: ModelConfig, batch: int, tree: Tree, kept: int,
                 like: Tensor) -> None:
        super().__init__(config, batch, kept, like, beside=tree.size)
        self.ancestors = torch.from_numpy(tree.ancestors).to(like.device)
        self.offset = torch.arange(tree.ancestors.shape[1], device=like.device)

    def locate(self, position: Tensor, reach: Tensor) -> tuple[Tensor, Tensor]:
        """See `KeyValueCache.locate`.

        The index is that of each column's latest L keys and values; the mask [B, 1, M, R + L] is
        for the keys of the ring, then the latest keys.
        """
        place, last = position.unsqueeze(-1), position[:, :1] - 1  # [B, M, 1], [B, 1]
        recent = place - self.offset  # [B, M, L]
        own = self.ancestors >= 0
        number, last = recent // self.key_distance, last // self.key_distance  # of keys
        slot = torch.where(own, self.slots + self.ancestors, number % self.slots).unsqueeze(1)
        older = (last - (last - self.slot) % self.slots).unsqueeze(1)  # [B, 1, R]
        first = (number[..., :1] - reach.unsqueeze(-1)).clamp(min=0)
        # Columns before the start of the sequence are unused. They see themselves, since a softmax
        # over no key is NaN.
        visible = torch.cat([
            (older >= first) & (older * self.key_distance <= place - len(self.offset)),
            (recent % self.key_distance == 0) & (number >= first) | (place < 0)
            & (self.offset == 0),
        ], dim=-1)
        index = (self.row_starts.unsqueeze(-1) + slot).flatten()  # [2, B, H, M, L], flat
        return index, torch.where(visible, self.zero, self.hidden).unsqueeze(1)

    def write(self, layer: int, key: Tensor, value: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """Store a step's keys and values [B, H, M, D / H] of a layer in the extra slots.

        Returns the keys and values of the ring [2, B, H, R, D / H] and the latest of each column
        [2, B, H, M, L, D / H], for `index` from `locate`.
        """
        store = self.store[layer]
        store[0, :, :, self.slots :], store[1, :, :, self.slots :] = key, value
        recent = store.view(-1, self.size).index_select(0, index)
        paths = recent.view(*store.shape[:3], *self.ancestors.shape, self.size)
        return store[..., : self.slots, :], paths

    def commit(self, columns: Tensor, position: Tensor) -> None:
        """Move columns [B, P] into the ring, to decoder positions `position` [B, P]."""
        shape = *self.store.shape[:4], columns.shape[1], self.size
        slots = self.slots + columns, self.written(position)
        source, target = (slot[:, None, :, None].expand(shape) for slot in slots)
        self.store.scatter_(4, target, self.store.gather(4, source))


def require_width(tree: Tree, width: int) -> None:
    """Raise a ValueError if `width` is not the number of columns of `tree`."""
    if width != tree.size:
        raise ValueError(f"a session over a tree of {tree.size} columns cannot read {width}")


class TreeSession(StepSession):
    """A batch being decoded by steps over a tree: a `superres.sessions.TreeSession`.

    For one decode at a time. `commit` takes at most `kept` columns.
    """

    cache: TreeCache

    def __init__(self, model: EncoderDecoder, layers: nn.ModuleList, memory: Memory, tree: Tree,
                 kept: int) -> None:
        self.tree, self.kept = tree, kept
        super().__init__(model, layers, memory, tree.size)
        self.columns = torch.from_numpy(tree.depth).to(memory.states.device)
        self.start = self.columns.new_zeros(self.batch)
        self.step_deviation = memory.states.new_zeros(self.batch, tree.size)

    def _make_cache(self, like: Tensor) -> TreeCache:
        return TreeCache(self.config, self.batch, self.tree, self.kept, like)

    def step(self, tokens: Tensor, position: Tensor) -> StepOutput:
        self.start = position - self.tree.root
        return super().step(tokens, position)

    def commit(self, columns: Tensor) -> None:
        place = self.start.unsqueeze(1) + torch.arange(columns.shape[1], device=columns.device)
        self.cache.commit(columns, place)
        if self.neighbourhood is not None:
            self.read.scatter_(1, self._inside(place), self.step_deviation.gather(1, columns))

    def resize(self, width: int) -> None:
        """Raise a ValueError for any width but the tree's."""
        require_width(self.tree, width)

    def _inside(self, place: Tensor) -> Tensor:
        """Clamp decoder positions to those in the buffers; values at the first and the last
        position are never used."""
        return place.clamp(0, self.expected.shape[1] - 1)

    def _attend(self, layer: int, index: Tensor, mask: Tensor, query: Tensor, key: Tensor,
                value: Tensor) -> Tensor:
        """See `StepSession._attend`; a column attends to its latest keys and to the ring's older
        ones."""
        (old_key, old_value), (key, value) = self.cache.write(layer, key, value, index)
        query = query * query.shape[-1] ** -0.5
        recent = (key * query.unsqueeze(3)).sum(-1)  # [B, H, M, L]
        scores = torch.cat([query @ old_key.transpose(2, 3), recent], dim=-1)  # [B, H, M, R + L]
        weights = (scores + mask).softmax(-1)
        old, recent = weights.tensor_split((old_key.shape[2],), dim=-1)
        result: Tensor = old @ old_value + (value * recent.unsqueeze(-1)).sum(3)
        return result

    def _features(self, near: NumericNeighbourhood, tokens: Tensor, place: Tensor, inside: Tensor,
                  places: Tensor) -> Tensor:
        """See `StepSession._features`; a column also reads the tokens of its ancestors in the
        tree."""
        self.step_deviation = self._deviation(tokens, self._inside(place))
        ancestors, beside = self.cache.ancestors, self.deviation.shape[1]
        # decoder positions of the tokens at these places
        read = places - (beside - self.read.shape[1])
        back = place.unsqueeze(-1) - read
        nearest = back.clamp(0, ancestors.shape[1] - 1)
        column = ancestors.expand(self.batch, -1, -1).gather(2, nearest)
        own = (read > 0) & (back == nearest) & (column >= 0)
        buffer = torch.cat([self.deviation, self.step_deviation], dim=1)
        return near.features(buffer, inside, torch.where(own, beside + column, places))

    def _verify(self, hidden: Tensor, inside: Tensor, neighbours: Tensor | None) -> Tensor:
        """Return p1's scores of the tree's scored columns [B, tree.scored, V]."""
        scored = slice(self.tree.scored)
        neighbours = None if neighbours is None else neighbours[:, scored]
        return super()._verify(hidden[:, scored], inside[:, scored], neighbours)
