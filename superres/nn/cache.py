"""The key-value cache of decoder self-attention: bounded, written by position, rolled back by
moving the position."""

from __future__ import annotations

import torch
from torch import Tensor

from superres.config import ModelConfig
from superres.config.tables import slot_count


class KeyValueCache:
    """Keys and values of all layers in rings: key n, that of position n * `key_distance`, lives in
    slot n mod R.

    A step overwrites its keys before it attends, and a slot holds the latest key n with that
    remainder. Keys of a rejected proposal are therefore either overwritten or hidden by the mask,
    which absolute positions determine. The R slots are `slot_count` for steps of `width`, rounded
    up to a multiple of `multiple`; `beside` extra slots follow. States of positions without a key
    are written to the first of them. Dtype and device are those of `like`.
    """

    def __init__(
        self, config: ModelConfig, batch: int, width: int, like: Tensor, multiple: int = 1,
        beside: int = 0,
    ) -> None:
        self.batch, self.heads = batch, config.attention_heads
        self.size, self.key_distance = config.width // config.attention_heads, config.key_distance
        slots = slot_count(config, width)
        self.slots = slots + -slots % multiple
        # Zeros instead of uninitialised memory: a hidden slot has weight 0, and 0 times NaN would
        # be NaN.
        extra = max(beside, int(self.key_distance > 1))
        self.store = like.new_zeros(config.decoder_layers, 2, batch, self.heads, self.slots + extra,
                                    self.size)
        self.slot = torch.arange(self.slots, device=like.device)
        rows = torch.arange(2 * batch * self.heads, device=like.device) * self.store.shape[4]
        self.row_starts = rows.view(2, batch, self.heads, 1)
        self.zero = like.new_zeros(())
        self.hidden = like.new_full((), float("-inf"))

    def locate(self, position: Tensor, reach: Tensor) -> tuple[Tensor, Tensor]:
        """Return the slots that a step writes and the mask of the keys it sees, the same for every
        layer.

        The slot d places behind that of a query's latest key, around the ring, holds the key d
        before it if d is within the query's reach. Later keys of this step, and leftovers of wider
        steps, are further around the ring than the reach of any query.

        `position` are the decoder positions of the step [B, W]; `reach` is how many keys back each
        query sees [B, W]. Returns the index [2 * B * H * W] for `write`, and the mask to add to
        scores, [B, 1, W, R].
        """
        place = position // self.key_distance % self.slots
        index = self.row_starts + self.written(position)[None, :, None, :]  # [2, B, H, W]
        visible = self.distance(place) <= reach.unsqueeze(-1)
        return index.flatten(), torch.where(visible, self.zero, self.hidden).unsqueeze(1)

    def distance(self, place: Tensor) -> Tensor:
        """Return how many keys before the key numbered `place` [B, W] each slot lies, [B, W, R]."""
        return (place.unsqueeze(-1) - self.slot).remainder_(self.slots)

    def unseen(self, position: Tensor, seen: Tensor) -> Tensor:
        """Return a mask [B, 1, W, R] to add to that of `locate`, which hides the keys of positions
        where `seen` [B, 1 or W, T] is False."""
        place = position // self.key_distance
        key = (place.unsqueeze(-1) - self.distance(place)).clamp(min=0)  # [B, W, R]
        visible = seen.expand(-1, place.shape[1], -1).gather(2, key * self.key_distance)
        return torch.where(visible, self.zero, self.hidden).unsqueeze(1)

    def written(self, position: Tensor) -> Tensor:
        """Return the slots to which keys of decoder positions `position` are written."""
        place = position // self.key_distance % self.slots
        if self.key_distance == 1:
            return place
        return torch.where(position % self.key_distance == 0, place, self.slots)

    def write(self, layer: int, key: Tensor, value: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """Store a step's keys and values [B, H, W, D / H] at `index`; return views of the layer's
        [B, H, R, D / H]."""
        store = self.store[layer]
        store.view(-1, self.size).index_copy_(0, index,
                                              torch.stack([key, value]).view(-1, self.size))
        return store[0, :, :, : self.slots], store[1, :, :, : self.slots]

    def select(self, rows: Tensor, length: int) -> None:
        """Copy positions 0 .. `length` - 1 of row `rows[i]` to row i; `rows` is int64 [B]."""
        used = min(-(-length // self.key_distance), self.slots)
        self.store[..., :used, :] = self.store[:, :, rows, :, :used]
