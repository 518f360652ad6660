"""The encoder in compiled code: the weights that cpp/model/encoder.h reads, and its call."""

from __future__ import annotations

import math
from ctypes import byref

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from superres.config import ModelConfig
from superres.config.tables import RESIDUAL_SCALE, SOURCE_MULTIPLE, longest_targets
from superres.native.abi import FAR, LANES, NEAR, PANEL, CEncoded, CEncoder, CLinear
from superres.native.build import library
from superres.native.weights import PackedWeights, product, without_bias
from superres.nn.attention import hidden_mask
from superres.nn.image_priors import AlignedConditioning
from superres.nn.model import EncoderDecoder, Memory

POINTS = (0.0, NEAR / 8, -NEAR / 8, FAR / 8, -FAR / 8)
"""The finite points at which Winograd's convolution multiplies polynomials; a sixth point is
infinity."""

PARTS = "states", "position_table", "head_table", "estimate", "residual_sum"
"""The parts of the memory that cpp/model/encoder.h writes."""


def packed_encoder(packed: PackedWeights) -> CEncoder:
    """Pack the encoder of the network of `packed`."""
    model, config = packed.model, packed.model.config
    embedding = model.source_embedding or model.target_embedding
    encoder = CEncoder(
        source_length=config.source_length, length=config.target_length, size_d=config.width,
        attention_heads=config.attention_heads, filter=config.filter_size,
        layers=config.encoder_layers, vocabulary=config.vocabulary, channels=embedding.channels,
        pre=config.norm == "pre", layer=packed.layers(model.encoder),
        token_table=packed.keep(embedding.table.weight * embedding.scale),
        source_signal=packed.keep(model.source_signal),
    )
    if isinstance(model.encoder_norm, nn.LayerNorm):
        encoder.final_weight = packed.keep(model.encoder_norm.weight)
        encoder.final_bias = packed.keep(model.encoder_norm.bias)
    if _has_priors(config):
        encoder.rows, encoder.columns, _ = config.source_shape
        encoder.height, encoder.width = config.enlargement
        encoder.row_weights = packed.keep(enlargement(encoder.rows, encoder.height))
        encoder.column_weights = packed.keep(enlargement(encoder.columns, encoder.width))
        encoder.residual_scale = RESIDUAL_SCALE
    if model.conditioning is not None:
        _add_conditioning(encoder, packed, model.conditioning)
    encoder.packed = packed  # which owns the memory
    return encoder


def encode(
    encoder: CEncoder, model: EncoderDecoder, source: Tensor, threads: int,
    padding: Tensor | None = None,
) -> Memory:
    """Encode tokens [B, S] on at most `threads` threads, bit for bit alike in every batch.

    `padding` [B, S] is True after the end of shorter texts. Raises ValueError if `source` has
    another shape, or a value that is no token; or padding is not at the end.
    """
    config, (batch, length) = model.config, source.shape
    # What the compiled code would read past.
    text = len(config.source_shape) == 1
    if length > config.source_length or (length != config.source_length and not text):
        raise ValueError(f"sources must have {config.source_length} tokens, not {length}")
    if batch and not 0 <= int(source.min()) <= int(source.max()) < config.vocabulary:
        raise ValueError(f"tokens must be in [0, {config.vocabulary}), not {source.min()} to "
                         f"{source.max()}")
    # Positions of each row, and of all rows with their padding.
    source, lengths = source.long().contiguous(), torch.full((batch,), length)
    positions = length + -length % SOURCE_MULTIPLE
    if padding is not None:
        lengths -= padding.sum(1)
        if not torch.equal(padding, torch.arange(length) >= lengths.unsqueeze(1)):
            raise ValueError("padding must be at the end of every source")
    memory = Memory(torch.zeros(batch, positions, config.width))
    if padding is not None or positions > length:
        memory.mask = hidden_mask(torch.arange(positions) < lengths.unsqueeze(1))[:, None, None, :]
    if text:
        memory.longest = longest_targets(lengths, config)
    # Memory for what this network's encoder computes; the other parts stay None.
    table = batch, config.target_length, config.width
    if _has_priors(config):
        memory.estimate = torch.empty(table[:2])
    if model.conditioning is not None:
        memory.position_table = torch.empty(table)
        memory.head_table = torch.empty(table) if encoder.head_vectors.inputs else None
    if model.neighbourhood is not None:
        memory.residual_sum = torch.empty(batch, config.source_length)
    parts = {name: getattr(memory, name) for name in PARTS}
    addresses = {name: None if part is None else part.data_ptr() for name, part in parts.items()}
    encoded = CEncoded(**addresses, stride=length, positions=positions, lengths=lengths.data_ptr())
    library().superres_encode(byref(encoder), byref(encoded), batch, threads, source.data_ptr())
    return memory


def _has_priors(config: ModelConfig) -> bool:
    """Return whether a network reads the estimate."""
    return config.aligned_conditioning or config.numeric_neighbourhood or config.ordinal_output


def _add_conditioning(encoder: CEncoder, packed: PackedWeights,
                      conditioning: AlignedConditioning) -> None:
    """Pack the aligned conditioning and the products that make the position tables."""
    config, heads = conditioning.config, packed.model.heads
    maps = config.conditioning_width
    encoder.maps, encoder.blocks = maps + -maps % PANEL, config.conditioning_blocks
    encoder.signal = packed.keep(packed.model.signal)
    parts = {name: weight.detach() for name, weight in conditioning.named_parameters()}
    encoder.products = packed.array([
        linear for weight in convolutions_of(conditioning)
        for linear in _convolution(packed, weight)])
    names = ["mix", *_names(conditioning)]
    encoder.biases = packed.keep(widened(torch.stack([parts[f"{name}.bias"] for name in names]), 1))
    shuffle = torch.cat([parts["shuffle.weight"].t(), parts["shuffle.bias"].unsqueeze(0)])
    shuffle = widened(shuffle.view(len(shuffle), -1, maps), 2).flatten(1)
    encoder.shuffle = packed.pack((shuffle[:-1], shuffle[-1]))
    taps = parts["refinement.weight"].permute(1, 2, 3, 0).flatten(1)
    encoder.refinement = packed.pack(without_bias(widened(taps, 0)))
    encoder.refinement_bias = packed.keep(parts["refinement.bias"])
    weight, bias = widened(parts["vectors.weight"].flatten(1).t(), 0), parts["vectors.bias"]
    encoder.vectors = packed.pack((weight, bias))
    if heads is not None and heads.conditioning is not None:
        # The head layer's vectors are linear in the conditioning vectors of each channel.
        vectors = torch.cat([weight, bias.unsqueeze(0)]).view(-1, config.width)
        mapped = product(vectors, heads.conditioning.weight.detach().t()).view(len(weight) + 1, -1)
        encoder.head_vectors = packed.pack((mapped[:-1], mapped[-1]))


def _names(conditioning: AlignedConditioning) -> list[str]:
    """Return the names of the convolutions after the first one."""
    return [f"blocks.{number}.{name}" for number in range(conditioning.config.conditioning_blocks)
            for name in ("first", "second")]


def convolutions_of(conditioning: AlignedConditioning) -> list[Tensor]:
    """Return the weights [out, in, 3, 3] of the convolutions, whose maps are padded to whole panels
    or vectors."""
    parts, maps = dict(conditioning.named_parameters()), conditioning.config.conditioning_width
    mix = parts["mix.weight"].detach()
    mix = torch.cat([widened(mix[:, :maps], 1), mix[:, maps:]], dim=1)
    weights = [mix,
               *(widened(parts[f"{name}.weight"].detach(), 1) for name in _names(conditioning))]
    return [F.pad(weight, (0, 0, 0, 0, 0, -weight.shape[1] % LANES)) for weight in weights]


def transform() -> Tensor:
    """Return the transform of a row of three weights of a convolution, float64 [6, 3]."""
    powers = torch.tensor([[point**power for power in range(3)] for point in POINTS],
                          dtype=torch.float64)
    scales = [math.prod(point - other for other in POINTS if other != point) for point in POINTS]
    return torch.cat([powers / torch.tensor(scales).unsqueeze(1),
                      powers.new_tensor([[0.0, 0.0, 1.0]])])


def widened(weight: Tensor, axis: int) -> Tensor:
    """Add zeros to an axis of maps, up to whole panels."""
    shape = list(weight.shape)
    shape[axis] = -shape[axis] % PANEL
    return torch.cat([weight, weight.new_zeros(shape)], dim=axis)


def _convolution(packed: PackedWeights, weight: Tensor) -> list[CLinear]:
    """Return the 36 products of a 3x3 convolution, a weight of `convolutions_of`."""
    # [3, 3, in, out], [6, 3]
    taps, factors = weight.double().permute(2, 3, 1, 0).contiguous(), transform()
    # Single operations: a product of matrices adds in the processor's order.
    zero = torch.zeros(())
    # [6, 3, in, out]
    rows = sum((factors[:, y, None, None, None] * taps[y] for y in range(3)), zero)
    # [6, 6, in, out]
    weights = sum((factors[:, x, None, None] * rows[:, x].unsqueeze(1) for x in range(3)), zero)
    # The product adds no bias: the inverse transform does.
    return [packed.pack(without_bias(part)) for part in weights.flatten(0, 1)]


def enlargement(cells: int, factor: int) -> Tensor:
    """Return the weights of a bicubic enlargement of a row by a whole factor, as torch's, [cells *
    factor, cells]."""
    weights = torch.zeros(cells * factor, cells, dtype=torch.float64)
    for place, row in enumerate(weights):
        centre = (place + 0.5) / factor - 0.5
        for cell in range(math.floor(centre) - 1, math.floor(centre) + 3):
            row[min(max(cell, 0), cells - 1)] += _cubic(abs(centre - cell))
    return weights


def _cubic(distance: float) -> float:
    """Return the weight of a cell at a distance below 2 (Keys 1981, with a = -0.75)."""
    if distance <= 1:
        return (1.25 * distance - 2.25) * distance * distance + 1
    return ((-0.75 * distance + 3.75) * distance - 6) * distance + 3
