"""The weights of a network in the order in which the kernel reads them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from superres.config.tables import feature_count
from superres.errors import ConfigError
from superres.nn.heads import PredictionHeads
from superres.nn.image_priors import NumericNeighbourhood
from superres.nn.model import EncoderDecoder

COLUMNS = 16
"""Columns of a tile: the largest block."""


def power(number: int, least: int = 16) -> int:
    """Return the smallest power of two that is at least `number` and `least`."""
    return max(least, 1 << (number - 1).bit_length())


def padded(weight: Tensor, *sizes: int) -> Tensor:
    """Return the weight with zeros at the end of its last axes, up to `sizes`."""
    wanted = zip(reversed(sizes), reversed(weight.shape), strict=False)
    return F.pad(weight, [part for size, have in wanted for part in (0, size - have)])


def refusal(model: EncoderDecoder) -> str | None:
    """Return why the kernel does not decode with a network; None if it does."""
    config = model.config
    if (not isinstance(model.neighbourhood, NumericNeighbourhood) or not config.ordinal_output
        or config.free_scores):
        return "it decodes faces with ordinal output only"
    if config.attention != "local_1d" or config.cross_attention or config.norm != "pre":
        return "it computes local attention with norms before the layers only"
    if model.heads is not None and (not isinstance(model.heads, PredictionHeads)
                                    or model.heads.dense
                                    or model.heads.first != 1):
        return "it computes prediction heads with hidden layers of their own only"
    if power(config.width) != power(config.attention_heads,
                                    1) * (config.width // config.attention_heads):
        return "it computes attention heads whose size is a power of two only"
    if model.signal.dtype != torch.float32:
        return "it computes networks in float32 only"
    return None


@dataclass(frozen=True)
class Tuning:
    """How the kernel is compiled; which tokens it decodes does not depend on it but for the
    rounding of sums."""

    rows: int = 1  # of the batch, decoded by one program
    warps: int = 8
    chunk: int = 64  # positions whose keys are read together; a ring has a multiple of them
    part: int = 128  # hidden units computed together
    stages: int = 2  # parts that are being loaded or computed at a time
    # the same of loops over keys and over few parts; more make registers spill
    short_stages: int = 1
    precision: str = "tf32x3"  # of products in float32

    def for_batch(self, batch: int, device: torch.device) -> Tuning:
        """Return how a batch is decoded: as HALF, by two rows per program once one row per program
        fills the GPU."""
        return (HALF_PAIRS if self == HALF and device.type == "cuda" and batch > filling(device)
                else self)


FLOAT, HALF = Tuning(chunk=32, part=64), Tuning(warps=4, part=64, stages=3)
"""The fastest on an H200 with matrices in float32 and in bfloat16."""
HALF_PAIRS = replace(HALF, rows=2, stages=2)
"""The fastest with two rows per program, of those whose sums have the order of HALF."""


def filling(device: torch.device) -> int:
    """Return the number of programs that fill a device."""
    return (torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda"
            else 1)


@dataclass
class Weights:
    """Weights on the device, and the sizes that the kernel is compiled for."""

    tensors: list[Tensor]  # in the order of the kernel's arguments from `table` on
    sizes: dict[str, Any]  # constants of the kernel
    kind: torch.dtype  # of matrices, keys and values
    tuning: Tuning


class Packer:
    """Writes the weights of `model` for products in `kind`."""

    def __init__(self, model: EncoderDecoder, kind: torch.dtype, part: int) -> None:
        if (reason := refusal(model)) is not None or model.neighbourhood is None:
            raise ConfigError(f"engine triton does not decode with this network: {reason}; choose "
                              "plain")
        config = self.config = model.config
        self.model, self.kind, self.near = model, kind, model.neighbourhood
        self.width = power(config.width)
        self.attention_heads = power(config.attention_heads, 1)
        count = feature_count(config)
        self.neighbours = self.near.table.shape[1]
        self.wide, self.cell = power(self.neighbours), power(1 + self.near.divisors.shape[1])
        self.extra = count - self.neighbours
        self.part = min(part, power(config.filter_size), power(config.head_filter_size))
        self.filter, self.units = (size + -size % self.part
                                   for size in (config.filter_size, config.head_filter_size))

    def matrix(self, weight: Tensor, rows: int, columns: int) -> Tensor:
        """Return a matrix [in, out] of the layer's weight [out, in]."""
        return padded(weight.t(), rows, columns).to(self.kind).contiguous()

    def parts(self, matrix: Tensor) -> Tensor:
        """Divide the columns of a padded matrix [..., in, out] into parts in succession: [...,
        parts, in, part]."""
        parts = matrix.reshape(*matrix.shape[:-1], -1, self.part).transpose(-3, -2)
        return parts.to(self.kind).contiguous()

    def features(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Divide the last axis, that of the features, into those of neighbours and those of the
        cell."""
        near, cell = (weight[..., : self.neighbours],
                      weight[..., self.neighbours : self.neighbours + self.extra])
        return padded(near, self.wide), padded(cell, self.cell)

    def tables(self) -> tuple[Tensor, Tensor]:
        """Return the places of the features of each target, int32 [T, N + P], and the undecoded
        pixels of its cell."""
        near, cell = self.near.places[:, : self.neighbours], self.near.places[:, self.neighbours :]
        places = torch.cat([padded(near, self.wide), padded(cell, self.cell)], dim=1)
        left = (-self.near.divisors).masked_fill(self.near.divisors.isinf(), 0).sum(1)
        return places.int().contiguous(), left.int() * self.config.cell_remainder

    def layers(self) -> tuple[Tensor, Tensor]:
        """Return the matrices and the vectors of all layers, one layer after another."""
        matrices, vectors, D, wide = list[Tensor](), list[Tensor](), self.width, self.filter
        for layer in list[Any](self.model.decoder):
            own, forward = layer.attention, layer.feed_forward
            key, value = own.key_value.weight.chunk(2)
            square = own.query.weight, key, value, own.output.weight
            matrices += [self.matrix(weight, D, D).flatten() for weight in square]
            matrices.append(self.parts(self.matrix(forward[0].weight, D, wide)).flatten())
            matrices.append(self.matrix(forward[2].weight, wide, D).flatten())
            norms = layer.attention_residual.norm, layer.feed_forward_residual.norm
            vectors += [padded(part, D) for one in norms for part in (one.weight, one.bias)]
            vectors += [padded(part, D) for part in (own.query.bias, *own.key_value.bias.chunk(2),
                                                     own.output.bias)]
            vectors += [padded(forward[2].bias, D), padded(forward[0].bias, wide)]
        return torch.cat(matrices), torch.cat(vectors).float()

    def neighbourhood(self) -> list[Tensor]:
        """Return the weights of the numeric neighbourhood."""
        near, wide, D = self.near, self.filter, self.width
        first = [self.parts(padded(part.t(), rows, wide))
                 for part, rows in zip(self.features(near.first.weight), (self.wide, self.cell),
                                       strict=True)]
        channels = padded(near.channel.weight + near.first.bias, wide).flatten()
        direct = [part.float().contiguous() for part in self.features(near.direct)]
        return [*first, torch.cat([channels, padded(near.second.bias, D)]).float(),
                self.matrix(near.second.weight, wide, D), *direct]

    def heads(self) -> list[Tensor]:
        """Return the weights after the layers: norms and the output, and those of the prediction
        heads."""
        heads, D, M = self.model.heads, self.width, COLUMNS
        norm: Any = self.model.decoder_norm
        weight, bias = self.model.project.weight, self.model.project.bias
        final = [padded(part, D) for part in (norm.weight, norm.bias)]
        # centre, 1 / s, d
        for output in (-2, -1, -3 if self.config.ordinal_shape == "hyperbolic" else -1):
            final += [padded(weight[output], D), bias[output].unsqueeze(0)]
        if not isinstance(heads, PredictionHeads) or heads.direct is None:
            empty = final[0].new_zeros(2 * D)
            return [torch.cat([*final, empty]).float(), *[empty.to(self.kind)] * 2, empty.float(),
                    empty.to(self.kind), *[empty.float()] * 2]
        count, size = min(heads.count, M - 1), self.config.head_filter_size
        expand = heads.expand.weight.view(heads.count, size, -1)[:count].transpose(1, 2)
        contract = heads.contract[:count]
        units = padded(heads.expand.bias.view(heads.count, size)[:count], self.units)
        vectors = torch.cat([padded(heads.bias[:count], M, D).flatten(), units.flatten()])
        final += [padded(heads.norm.weight, D), padded(heads.norm.bias, D)]
        adapt = heads.direct.new_zeros(self.neighbours + self.extra + heads.count,
                                       1 + self.config.width)
        if heads.adapt is not None:
            adapt = torch.cat([heads.adapt.bias.unsqueeze(1), heads.adapt.weight], dim=1)
        known = padded(adapt[self.neighbours + self.extra :][:M].t(), M)  # [1 + width, M]
        parts = [*self.features(adapt.t()), known]
        final += [part[0] for part in parts]
        matrices = [padded(part[1:], D, part.shape[1]).flatten() for part in parts]
        direct = [padded(part[:, :count], M, part.shape[2]).float().contiguous()
                  for part in self.features(heads.direct)]
        return [torch.cat(final).float(), self.parts(padded(expand, D, self.units)),
                padded(contract, self.units, D).to(self.kind).contiguous(), vectors.float(),
                torch.cat(matrices).to(self.kind), *direct]


@torch.no_grad()
def pack(model: EncoderDecoder, kind: torch.dtype, tuning: Tuning) -> Weights:
    """Return the weights of `model` for products in `kind`.

    Raises ConfigError if the kernel does not decode with the network.
    """
    packer, config = Packer(model, kind, tuning.part), model.config
    embedding = model.target_embedding
    table = padded(embedding.table.weight.float() * embedding.scale, packer.width).contiguous()
    sizes = {
        "T": config.target_length, "SOURCE": config.source_length, "CHANNELS": config.channels,
        "V": config.vocabulary, "BLOCK": config.attention_block_length,
        "DISTANCE": config.key_distance, "WIDTH": config.width, "D": packer.width,
        "HEADS": config.attention_heads, "H": packer.attention_heads,
        "S": packer.width // packer.attention_heads, "F": packer.filter,
        "LAYERS": config.decoder_layers, "N": packer.wide, "P": packer.cell, "G": packer.units,
        "W": COLUMNS, "HYPERBOLIC": config.ordinal_shape == "hyperbolic", "FC": packer.part,
    }
    tensors = [table, *packer.tables(), *packer.layers(), *packer.neighbourhood(), *packer.heads()]
    return Weights(tensors, sizes, kind, tuning)
