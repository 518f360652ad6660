"""The key-value cache of decoder self-attention: bounded, written by position, rolled back by moving it."""

from __future__ import annotations

import torch
from torch import Tensor

from superres.config import ModelConfig
from superres.nn.attention import local_visible


def slot_count(config: ModelConfig, width: int) -> int:
    """Return the slots a layer needs for steps of `width` positions.

    Local attention looks back at most two attention blocks from a step's first position, and the step itself must fit
    too, since it may straddle a block boundary: 2 * attention_block_length + width - 1. Full causal attention keeps
    every position.
    """
    full = config.target_length + width
    if config.attention == "causal":
        return full
    return min(full, 2 * config.attention_block_length + width - 1)


class KeyValueCache:
    """Keys and values of all layers in rings: position p lives in slot p mod R.

    A step overwrites its positions before it attends, and a slot holds the latest position that fits it. So what a
    rejected proposal left behind is either overwritten or hidden by the mask, which comes from absolute positions.
    """

    def __init__(self, config: ModelConfig, batch: int, width: int, like: Tensor, beside: int = 0) -> None:
        """Allocate for `batch` rows and steps of `width`, and `beside` slots more, with dtype and device of `like`."""
        self.batch, self.width, self.heads = batch, width, config.attention_heads
        self.size = config.width // config.attention_heads
        self.slots = slot_count(config, width)
        # Causal attention is local attention whose block nobody ever leaves.
        self.block_length = config.attention_block_length if config.attention == "local_1d" else self.slots
        # Zeros, not empty memory: a hidden slot has weight 0, and 0 times NaN would be NaN.
        self.store = like.new_zeros(config.decoder_layers, 2, batch * self.heads, self.slots + beside, self.size)
        self.slot = torch.arange(self.slots, device=like.device)
        rows = torch.arange(2 * batch * self.heads, device=like.device) * self.slots
        self.row_starts = rows.view(2, batch, self.heads, 1)
        self.zero = like.new_zeros(())
        self.hidden = like.new_full((), float("-inf"))

    def locate(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """Return where a step writes and what it sees, the same for every layer.

        Args:
            position: decoder positions of the step [B, W].

        Returns:
            Write index [2 * B * H * W] for `write`, and the mask to add to scores, [B * H, W, R] ([1, W, R] for one
            row).
        """
        index = self.row_starts + (position % self.slots)[None, :, None, :]
        last = position[:, -1:]
        key = last - (last - self.slot) % self.slots
        visible = local_visible(position.unsqueeze(-1), key.unsqueeze(1), self.block_length)
        mask = torch.where(visible, self.zero, self.hidden)
        if self.batch > 1:
            mask = mask.repeat_interleave(self.heads, dim=0)
        return index.flatten(), mask

    def write(self, layer: int, key_value: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """Store a step's keys and values and return the layer's whole rings.

        Args:
            layer: number of the decoder layer.
            key_value: [B * W, 2 * D], keys before values.
            index: from `locate`.

        Returns:
            Keys and values, each [B * H, R, D / H]: views of the store.
        """
        ring = self.store[layer]
        shaped = key_value.view(self.batch, self.width, 2, self.heads, self.size).permute(2, 0, 3, 1, 4)
        ring.view(-1, self.size).index_copy_(0, index, shaped.reshape(-1, self.size))
        return ring[0], ring[1]

    def select(self, rows: Tensor, length: int) -> None:
        """Let row i hold what row `rows[i]` [B] holds of positions 0 .. `length` - 1."""
        used = min(length, self.slots)
        heads = (rows.unsqueeze(1) * self.heads + torch.arange(self.heads, device=rows.device)).flatten()
        self.store[:, :, :, :used] = self.store[:, :, heads, :used]

    def by_row(self) -> Tensor:
        """Return a view of all that is cached, [B, layers, 2, H, R, D / H]."""
        return self.store.view(len(self.store), 2, self.batch, self.heads, -1, self.size).movedim(2, 0)
