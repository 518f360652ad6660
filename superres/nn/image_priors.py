"""Image priors: conditioning inputs that the `base` network adds to the paper's network, so that it
trains in minutes.

`ModelConfig` has their switches: aligned conditioning, the numeric neighbourhood and the ordinal
output. All three share one *estimate*: an intensity for every target position, known before
decoding starts. It is the bicubic enlargement of the source, refined by the convolutions of the
aligned conditioning if the network has it.
"""

from __future__ import annotations

import math
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from superres.config import ModelConfig
from superres.config.tables import (
    INITIAL_SHARPNESS,
    RESIDUAL_SCALE,
    SHARPNESS,
    cell_tables,
    feature_count,
    neighbour_table,
)

AnyLayer = TypeVar("AnyLayer", bound=nn.Module)


def enlarge_source(source: Tensor, config: ModelConfig) -> Tensor:
    """Return the bicubic enlargement of source tokens [B, S] as float [B, channels, rows, columns]
    in [0, 255]."""
    # [B, channels, rows, columns]
    image = source.view(-1, *config.source_shape).permute(0, 3, 1, 2).float()
    large = F.interpolate(image, size=config.target_shape[:2], mode="bicubic", align_corners=False)
    return large.clamp(0, config.vocabulary - 1)


def to_raster(image: Tensor) -> Tensor:
    """Reorder images [B, channels, rows, columns] to raster order [B, T]."""
    return image.permute(0, 2, 3, 1).flatten(1)


def zeroed(layer: AnyLayer) -> AnyLayer:
    """Set all weights of `layer` to 0 and return it, so that a residual sum with it starts as the
    identity."""
    for weights in layer.parameters():
        nn.init.zeros_(weights)
    return layer


class AlignedConditioning(nn.Module):
    """Enlarges the memory to one vector per target position, which is added to the decoder's input
    there.

    The memory of the source cell that covers a position is brought to target resolution by
    sub-pixel shuffling and refined by residual blocks of two convolutions. The same feature maps
    give the refined estimate.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        channels, maps = config.channels, config.conditioning_width
        self.shuffle = nn.Linear(channels * config.width, math.prod(config.enlargement) * maps)
        self.mix = nn.Conv2d(maps + channels, maps, 3, padding=1)
        self.blocks = nn.ModuleList(nn.ModuleDict({
            "first": nn.Conv2d(maps, maps, 3, padding=1),
            "second": zeroed(nn.Conv2d(maps, maps, 3, padding=1)),
        }) for _ in range(config.conditioning_blocks))
        self.vectors = nn.Conv2d(maps, channels * config.width, 1)
        self.refinement = zeroed(nn.Conv2d(maps, channels, 3, padding=1))
        for weights in self.parameters():
            if weights.dim() == 4:  # convolutions are faster in this memory format
                weights.data = weights.data.contiguous(memory_format=torch.channels_last)

    def forward(self, memory: Tensor, large: Tensor) -> tuple[Tensor, Tensor]:
        """Return conditioning vectors [B, T, D] and the estimate [B, T] in grey levels.

        `memory` [B, S, D] are the encoder states; `large` [B, channels, rows, columns] in [0, 255]
        is the bicubic enlargement of the source.
        """
        batch, (rows, columns, channels) = memory.shape[0], self.config.source_shape
        cells = self.shuffle(memory.view(batch, rows, columns, channels * self.config.width))
        maps = cells.view(batch, rows, columns, *self.config.enlargement, -1).transpose(2, 3)
        # [B, rows, columns, maps] of the target
        maps = maps.reshape(batch, *self.config.target_shape[:2], -1)
        known = (large / 128 - 1).permute(0, 2, 3, 1).to(maps.dtype)
        # [B, maps, rows, columns]
        x = self.mix(torch.cat([maps, known], dim=3).permute(0, 3, 1, 2))
        for block in self.blocks:
            first, second = block.children()
            x = x + second(F.relu(first(x)))
        # [B, T, D]
        vectors = self.vectors(F.relu(x)).permute(0, 2, 3, 1).reshape(
            batch, self.config.target_length, -1)
        # [B, channels, rows, columns]
        estimate = large + self.refinement(x).float() * RESIDUAL_SCALE
        return vectors, to_raster(estimate)


class NumericNeighbourhood(nn.Module):
    """Feeds decoded intensities to the decoder as real numbers: the deviation of each neighbour
    from its estimate.

    With `cell_remainder`, the network also reads the mean deviation that the undecoded pixels of
    the source cell must have. It is known from the residual sum, since a source intensity is the
    mean of the target intensities that it covers. Without it, the decoder has no input that shows
    that an image has drifted away from its source.

    The features of a target are gathered from one buffer per row by one index table: see `buffer`.
    """

    table: Tensor
    cell: Tensor
    cell_positions: Tensor
    places: Tensor
    divisors: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.channels, self.remainder = config.channels, config.cell_remainder
        tables = neighbour_table(config.target_shape), *cell_tables(config)
        for name, table in zip(("table", "cell", "cell_positions"), tables, strict=True):
            self.register_buffer(name, torch.from_numpy(table), persistent=False)
        self._index_tables(config.source_length)
        count = feature_count(config)
        self.first = nn.Linear(count, config.filter_size)
        self.channel = nn.Embedding(config.channels, config.filter_size)
        nn.init.zeros_(self.channel.weight)
        self.second = nn.Linear(config.filter_size, config.width)
        self.direct = nn.Parameter(torch.zeros(config.channels, count))

    def residual_sum(self, source: Tensor, estimate: Tensor) -> Tensor:
        """Return what the deviations of each cell must add up to [B, S], in units of
        RESIDUAL_SCALE.

        `source` [B, S] are tokens; `estimate` [B, T] are the expected intensities, in grey levels.
        """
        covered = torch.empty_like(self.cell_positions[: source.shape[1]])
        covered[self.cell] = self.cell_positions
        covered = covered.flatten().expand(len(source), -1)
        estimates = estimate.gather(1, covered).view(*source.shape, -1)  # [B, S, P]
        return (source.unsqueeze(-1) - estimates).sum(-1) / RESIDUAL_SCALE

    def _index_tables(self, cells: int) -> None:
        """Register the tables of `features`, for sources of `cells` positions.

        `places` [T, N'] holds the places in the buffer of all neighbours and, with
        `cell_remainder`, of the decoded pixels of the cell and of its residual sum. `divisors` [T,
        P] holds minus the number of undecoded pixels of the cell, in the column of that number; all
        other columns are infinite.
        """
        # `first`: place of token 0
        first, position = 2 + cells, torch.arange(len(self.table)).unsqueeze(1)
        places = [torch.where(self.table < len(position), self.table + first, 0)]
        decoded = self.cell_positions < position  # [T, P]
        if self.remainder:
            places += [torch.where(decoded, self.cell_positions + first, 0),
                       1 + self.cell.unsqueeze(1)]
        left = decoded.shape[1] - decoded.sum(1, keepdim=True)
        divisors = torch.full(decoded.shape, math.inf).scatter_(1, left - 1, -left.float())
        self.register_buffer("places", torch.cat(places, dim=1), persistent=False)
        self.register_buffer("divisors", divisors, persistent=False)

    def buffer(self, deviation: Tensor, residual_sum: Tensor) -> Tensor:
        """Return the buffer of each row that `features` gathers from, [B, 2 + S + N].

        It holds 0, for absent neighbours; minus the residual sum [B, S] of each cell; one unused
        place, for the token that decoder position 0 reads; and `deviation` [B, N], intensity minus
        estimate of the tokens in raster order, in units of RESIDUAL_SCALE.
        """
        return torch.cat([F.pad(-residual_sum, (1, 1)), deviation], dim=1)

    def features(self, buffer: Tensor, position: Tensor, places: Tensor | None = None) -> Tensor:
        """Gather the neighbour features [B, W, N] of target positions [B, W] in [0, T).

        They are the deviations of the neighbours; with `cell_remainder` then one entry per possible
        number of undecoded pixels in the cell. The entry of the actual number holds their mean
        deviation; the others are 0. `places` [B, W, N'] are the places of `buffer` to read, by
        default those of `position`.
        """
        places = self.places[position] if places is None else places
        found = buffer.gather(1, places.flatten(1)).view(places.shape)  # [B, W, N']
        if not self.remainder:
            return found
        near, cell = found.tensor_split((self.table.shape[1],), dim=-1)
        return torch.cat([near, cell.sum(-1, keepdim=True) / self.divisors[position]], dim=-1)

    def forward(self, neighbours: Tensor, position: Tensor) -> Tensor:
        """Map neighbour features [B, W, N] of `position` (broadcastable to [B, W]) to vectors [B,
        W, D]."""
        # [B, W, filter]
        hidden = F.relu(self.first(neighbours) + self.channel(position % self.channels))
        result: Tensor = self.second(hidden)
        return result


def extrapolate(weights: Tensor, neighbours: Tensor, position: Tensor) -> Tensor:
    """Predict the deviations of targets from their estimates, linearly in the neighbour features.

    `weights` are [channels, N] for one prediction head, whose result is [...], or [channels, heads,
    N] for several, whose result is [..., heads], in units of RESIDUAL_SCALE. The channel of
    `position` of p1's target (broadcastable to [...]) selects them. Of the features, `neighbours`
    [..., M] are the first M <= N; the others count as 0.
    """
    # Indexing has a slow gradient on a GPU, which adds up the many targets of a channel one after
    # the other.
    chosen = F.embedding(position % len(weights), weights.flatten(1)).view(
        *position.shape, *weights.shape[1:])
    chosen = chosen[..., : neighbours.shape[-1]].to(neighbours.dtype)  # [..., M]
    if weights.dim() == 3:
        return (chosen @ neighbours.unsqueeze(-1)).squeeze(-1)
    return (neighbours * chosen).sum(-1)


def ordinal_term(projected: Tensor, centre: Tensor) -> tuple[Tensor, Tensor]:
    """Return the centre mu, in grey levels, and the slope 1 / s of the ordinal term, both [...].

    `projected` [..., outputs] holds the free scores if any, log d if the shape is "hyperbolic", the
    shift of mu in units of RESIDUAL_SCALE, and log(1 / s) minus INITIAL_SHARPNESS. `centre` [...]
    is mu before the shift.
    """
    mu = centre + projected[..., -2] * RESIDUAL_SCALE
    return mu, (projected[..., -1] + INITIAL_SHARPNESS).clamp(*SHARPNESS).exp()


def scores_around(mu: Tensor, slope: Tensor, projected: Tensor, config: ModelConfig) -> Tensor:
    """Return the scores [..., V] of intensities: the ordinal term of `ordinal_term`, plus the free
    scores if any."""
    value = torch.arange(config.vocabulary, device=mu.device, dtype=mu.dtype)
    ordinal = (value - mu.unsqueeze(-1)).abs() * -slope.unsqueeze(-1)  # [..., V]
    if config.ordinal_shape == "hyperbolic":
        d = projected[..., -3, None].clamp(*SHARPNESS).exp()  # [..., 1]
        ordinal = d - (d * d + ordinal * ordinal).sqrt()
    return ordinal + projected[..., : config.vocabulary] if config.free_scores else ordinal
