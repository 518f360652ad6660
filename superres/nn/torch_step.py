"""The cached decoding step in torch: the network's own modules at W new positions per row, over a
key-value cache."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from superres.config.tables import RESIDUAL_SCALE
from superres.nn.attention import attend, reach
from superres.nn.cache import KeyValueCache
from superres.nn.image_priors import NumericNeighbourhood
from superres.nn.layers import Layer
from superres.nn.model import EncoderDecoder, Memory
from superres.nn.proposing import ProposingSession, StepState
from superres.sessions import StepOutput

PARTS = ("input", "attention", "feed-forward", "scores")
"""Parts of a step that are timed separately."""


class StepSession(ProposingSession):
    """A batch being decoded: `superres.sessions.Session` for `EncoderDecoder`. For one decode at
    a time.

    It decodes the sources of `memory` in steps of up to `width` tokens by the decoder layers
    `layers`; the cache has the type of their weights.
    """

    def __init__(self, model: EncoderDecoder, layers: nn.ModuleList, memory: Memory,
                 width: int) -> None:
        super().__init__(model, memory, width)
        self.layers: list[Layer] = list(layers)  # type: ignore[arg-type]
        dtype, device = self.layers[0].attention.query.weight.dtype, memory.states.device
        self.cache = self._make_cache(memory.states.to(dtype))
        self.cross = [layer.keys_and_values(memory.states) for layer in self.layers]
        self.cross_mask = memory.hidden(dtype) if self.config.cross_attention else None
        self.widest = self.columns = torch.arange(width, device=device)
        block = (self.config.attention_block_length if self.config.attention == "local_1d" else 1
                 + len(model.signal))
        # the latest one
        key = torch.arange(self.config.target_length, device=device) // self.config.key_distance
        self.reach = reach(key, block)  # [T]
        self.neighbourhood = model.neighbourhood
        if (self.neighbourhood is not None and self.estimate is not None and self.residual_sum
            is not None):
            # Minus the estimate of the token read at each decoder position, in units of
            # RESIDUAL_SCALE.
            self.expected = F.pad(self.estimate / -RESIDUAL_SCALE, (1, width))  # [B, 1 + T + W]
            unread = self.estimate.new_zeros(self.batch, self.config.target_length + width)
            self.deviation = self.neighbourhood.buffer(unread, self.residual_sum)
            # by the decoder position of the token
            self.read = self.deviation[:, 1 + self.config.source_length :]

    def _make_cache(self, like: Tensor) -> KeyValueCache:
        return KeyValueCache(self.config, self.batch, self.width, like)

    def row_state(self, cache: bool = True) -> list[Tensor]:
        views = [*super().row_state(), *([self.cache.store.movedim(2, 0)] if cache else [])]
        if self.neighbourhood is not None:
            views += [self.expected, self.deviation]
        if self.cross_mask is not None:
            views += [self.cross_mask, *(part for source in self.cross for part in source or ())]
        return views

    def step(self, tokens: Tensor, position: Tensor) -> StepOutput:
        scores, hidden, inside, neighbours = self.compute(tokens, position.unsqueeze(1)
                                                          + self.columns)
        return StepOutput(scores, StepState(hidden, inside, neighbours))

    def read_at(self, tokens: Tensor, place: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Read `tokens` [B, N] at any decoder positions `place` [B, N], in another order than the
        raster's; return p1's scores [B, N, V] of the targets there, and the decoder's outputs [B,
        N, D].

        Of the keys that a column would see in the raster's order, it sees those at positions where
        `seen` is True, [B, T] or by columns [B, N, T]. That holds for this call's own keys, too, so
        `seen` must be True at `place`. The decoder inputs of unseen neighbours are those of absent
        ones. The session must be as wide as the positions in use are apart: the cache has 2 L + its
        width - 1 slots, where L is the attention block length.
        """
        return self.compute(tokens, place, seen=seen if seen.dim() == 3 else seen.unsqueeze(1))[:2]

    def compute(
        self, tokens: Tensor, place: Tensor, lap: Callable[[str], None] = lambda part: None,
        seen: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Read tokens at decoder positions `place` [B, W], and call `lap` with the name of each
        part of the step when it has ended; `seen` [B, 1 or W, T] is as for `read_at`.

        Returns the scores [B, W, V] and the fields of a `StepState`.
        """
        inside = place.clamp(0, self.config.target_length - 1)  # [B, W]
        # [B, W, D]
        x = (self.model.target_embedding.read(tokens, place)
             + self.look_up(self.position_table, inside))
        neighbours = None
        if self.neighbourhood is not None:
            places = self._places(self.neighbourhood.places[inside], seen)
            # [B, W, N]
            neighbours = self._features(self.neighbourhood, tokens, place, inside, places)
            x = x + self.neighbourhood(neighbours, inside)
        index, mask = self.cache.locate(place, self.reach[inside])
        if seen is not None:
            mask = mask + self.cache.unseen(inside, seen)
        lap("input")
        for number, layer in enumerate(self.layers):
            attention = partial(self._attend, number, index, mask)
            x = layer.attend(x, attention, self.cross[number], self.cross_mask)
            lap("attention")
            x = layer.transform(x)
            lap("feed-forward")
        hidden = self.model.decoder_norm(x)
        scores = self._verify(hidden, inside, neighbours)
        lap("scores")
        return scores, hidden, inside, neighbours

    def part_seconds(self, tokens: Tensor, position: Tensor, repeats: int) -> dict[str, float]:
        """Return the mean seconds of each part of a step (PARTS) over `repeats` steps; arguments as
        for `step`."""
        seconds = dict.fromkeys(PARTS, 0.0)
        last = time.perf_counter()

        def lap(part: str) -> None:
            nonlocal last
            if tokens.is_cuda:
                torch.cuda.synchronize()
            now = time.perf_counter()
            seconds[part] += (now - last) / repeats
            last = now

        for _ in range(repeats):
            self.compute(tokens, position.unsqueeze(1) + self.columns, lap)
        return seconds

    def resize(self, width: int) -> None:
        # Slots past the end of a narrower step hold values of wider steps, which lie beyond the
        # reach of any query.
        self.width, self.columns = width, self.widest[:width]

    def select(self, rows: Tensor, length: int) -> None:
        self.cache.select(rows, length)
        if self.neighbourhood is not None:
            self.deviation.copy_(self.deviation[rows])

    def _attend(self, layer: int, index: Tensor, mask: Tensor, query: Tensor, key: Tensor,
                value: Tensor) -> Tensor:
        """Store a layer's keys and values and attend over its ring; `index` and `mask` are from
        `cache.locate`."""
        keys, values = self.cache.write(layer, key, value, index)  # [B, H, R, size]
        return attend(query, keys, values, mask)

    def _places(self, places: Tensor, seen: Tensor | None) -> Tensor:
        """Return the places [B, W, N'] of the buffer of deviations that a step reads, those of
        unseen tokens as the place of absent neighbours."""
        if seen is None:
            return places
        # decoder positions of the tokens at these places; no token is at those up to 0
        read = places - (self.deviation.shape[1] - self.read.shape[1])
        seen = seen.expand(-1, read.shape[1], -1).gather(2, read.clamp(min=0))
        return places.masked_fill((read > 0) & ~seen, 0)

    def _features(self, near: NumericNeighbourhood, tokens: Tensor, place: Tensor, inside: Tensor,
                  places: Tensor) -> Tensor:
        """Store the deviations of `tokens` read at `place`; return the neighbour features [B, W, N]
        of `inside`, which are at `places` of the buffer."""
        self.read.scatter_(1, place, self._deviation(tokens, place))
        return near.features(self.deviation, inside, places)

    def _deviation(self, tokens: Tensor, place: Tensor) -> Tensor:
        """Return token minus estimate [B, N] for `tokens` read at `place`, in units of
        RESIDUAL_SCALE."""
        return torch.add(self.expected.gather(1, place), tokens, alpha=1 / RESIDUAL_SCALE)

    def _verify(self, hidden: Tensor, inside: Tensor, neighbours: Tensor | None) -> Tensor:
        """Return p1's scores [B, W, V] of targets `inside`, from decoder outputs [B, W, D]."""
        vectors = None
        if self.head_table is not None and self.heads is not None and self.heads.first == 0:
            vectors = self.look_up(self.head_table, inside).unsqueeze(2)
        return self.model.verify(hidden, inside, neighbours, self.estimate, vectors)
