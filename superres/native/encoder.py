"""The encoder in compiled code: the weights that cpp/model/encoder.h reads, and its call."""

from __future__ import annotations

import math
from collections.abc import Callable
from ctypes import byref

import numpy as np

from superres.config import ModelConfig
from superres.config.tables import (
    RESIDUAL_SCALE,
    SOURCE_MULTIPLE,
    longest_targets,
    position_signal,
)
from superres.interfaces import Bool, Float32, Float64, Int64
from superres.native import arrays
from superres.native.abi import FAR, LANES, NEAR, PANEL, CEncoded, CEncoder, CLinear
from superres.native.build import library
from superres.native.memory import NativeMemory, hidden_after
from superres.native.weights import PackedWeights, product, widened, without_bias

POINTS = (0.0, NEAR / 8, -NEAR / 8, FAR / 8, -FAR / 8)
"""The finite points at which Winograd's convolution multiplies polynomials; a sixth point is
infinity."""

PARTS = "states", "position_table", "head_table", "estimate", "residual_sum"
"""The parts of the memory that cpp/model/encoder.h writes."""


def packed_encoder(packed: PackedWeights) -> CEncoder:
    """Pack the encoder of the network of `packed`; a ValueError if an array of the network is left
    then."""
    config = packed.config
    encoder = CEncoder(
        source_length=config.source_length, length=config.target_length, size_d=config.width,
        attention_heads=config.attention_heads, filter=config.filter_size,
        layers=config.encoder_layers, vocabulary=config.vocabulary,
        channels=config.source_shape[-1] if len(config.source_shape) == 3 else 1,
        pre=config.norm == "pre", layer=packed.layers("encoder", config.encoder_layers),
        token_table=(packed.weights.token_table if config.tied_embeddings else
                     packed.keep(packed.scaled(packed.take("source_embedding.table.weight")))),
        source_signal=packed.keep(position_signal(config.source_shape, config.width)),
    )
    if config.norm == "pre":
        encoder.final_weight, encoder.final_bias = packed.norm("encoder_norm")
    if _has_priors(config):
        encoder.rows, encoder.columns, _ = config.source_shape
        encoder.height, encoder.width = config.enlargement
        encoder.row_weights = packed.keep(enlargement(encoder.rows, encoder.height))
        encoder.column_weights = packed.keep(enlargement(encoder.columns, encoder.width))
        encoder.residual_scale = RESIDUAL_SCALE
    if config.aligned_conditioning:
        _add_conditioning(encoder, packed)
    if packed.left:
        raise ValueError(f"the native engine knows no array {min(packed.left)} of a network")
    encoder.packed = packed  # which owns the memory
    return encoder


def encode(
    encoder: CEncoder, config: ModelConfig, tokens: Int64, threads: int,
    padding: Bool | None = None,
) -> NativeMemory:
    """Encode tokens [B, S] on at most `threads` threads, bit for bit alike in every batch.

    `padding` [B, S] is True after the end of shorter texts. Raises ValueError if `tokens` has
    another shape, or a value that is no token; or padding is not at the end.
    """
    lengths = _lengths(config, tokens, padding)
    # Positions of each row, and of all rows with their padding.
    (batch, length), tokens = tokens.shape, np.ascontiguousarray(tokens, np.int64)
    positions = length + -length % SOURCE_MULTIPLE
    memory = NativeMemory(arrays.zeros((batch, positions, config.width), np.float32))
    if padding is not None or positions > length:
        memory.mask = hidden_after(lengths, positions)
    if len(config.source_shape) == 1:
        memory.longest = longest_targets(lengths, config)
    # Memory for what this network's encoder computes; the other parts stay None.
    table = batch, config.target_length, config.width
    if _has_priors(config):
        memory.estimate = arrays.empty(table[:2], np.float32)
    if config.aligned_conditioning:
        memory.position_table = arrays.empty(table, np.float32)
        if encoder.head_vectors.inputs:
            memory.head_table = arrays.empty(table, np.float32)
    if config.numeric_neighbourhood:
        memory.residual_sum = arrays.empty((batch, config.source_length), np.float32)
    parts = {name: getattr(memory, name) for name in PARTS}
    addresses = {name: None if part is None else arrays.address(part, np.float32, *part.shape)
                 for name, part in parts.items()}
    encoded = CEncoded(**addresses, stride=length, positions=positions,
                       lengths=arrays.address(lengths, np.int64, batch))
    library().superres_encode(byref(encoder), byref(encoded), batch, threads,
                              arrays.address(tokens, np.int64, batch, length))
    return memory


def _lengths(config: ModelConfig, tokens: Int64, padding: Bool | None) -> Int64:
    """Return the number of tokens of each source [B]; ValueError for what the compiled code would
    read past."""
    batch, length = tokens.shape
    text = len(config.source_shape) == 1
    if length > config.source_length or (length != config.source_length and not text):
        raise ValueError(f"sources must have {config.source_length} tokens, not {length}")
    if batch and not 0 <= tokens.min() <= tokens.max() < config.vocabulary:
        raise ValueError(f"tokens must be in [0, {config.vocabulary}), not {tokens.min()} to "
                         f"{tokens.max()}")
    lengths = np.full(batch, length, np.int64)
    if padding is not None:
        lengths -= padding.sum(1)
        if not np.array_equal(padding, np.arange(length) >= lengths[:, None]):
            raise ValueError("padding must be at the end of every source")
    return lengths


def _has_priors(config: ModelConfig) -> bool:
    """Return whether a network reads the estimate."""
    return config.aligned_conditioning or config.numeric_neighbourhood or config.ordinal_output


def _add_conditioning(encoder: CEncoder, packed: PackedWeights) -> None:
    """Pack the aligned conditioning and the products that make the position tables."""
    config, maps = packed.config, packed.config.conditioning_width
    encoder.maps, encoder.blocks = maps + -maps % PANEL, config.conditioning_blocks
    encoder.signal = packed.keep(position_signal(config.target_shape, config.width))
    encoder.products = packed.array([
        linear for weight in convolutions_of(packed.take, config)
        for linear in _convolution(packed, weight)])
    biases = np.stack([packed.take(f"conditioning.{name}.bias") for name in _names(config)])
    encoder.biases = packed.keep(widened(biases, 1))
    weight, bias = packed.fused("conditioning.shuffle")
    shuffle = np.concatenate([weight, bias[None]])  # [inputs + 1, outputs]
    shuffle = widened(shuffle.reshape(len(shuffle), -1, maps), 2).reshape(len(shuffle), -1)
    encoder.shuffle = packed.pack((shuffle[:-1], shuffle[-1]))
    taps = packed.take("conditioning.refinement.weight").transpose(1, 2, 3, 0).reshape(maps, -1)
    encoder.refinement = packed.pack(without_bias(widened(taps, 0)))
    encoder.refinement_bias = packed.keep(packed.take("conditioning.refinement.bias"))
    weight = widened(packed.take("conditioning.vectors.weight").reshape(-1, maps).T, 0)
    bias = packed.take("conditioning.vectors.bias")
    encoder.vectors = packed.pack((weight, bias))
    if "heads.conditioning.weight" in packed.left:
        # The head layer's vectors are linear in the conditioning vectors of each channel.
        vectors = np.concatenate([weight, bias[None]]).reshape(-1, config.width)
        mapped = product(vectors, packed.take("heads.conditioning.weight").T).reshape(
            len(weight) + 1, -1)
        encoder.head_vectors = packed.pack((mapped[:-1], mapped[-1]))


def _names(config: ModelConfig) -> list[str]:
    """Return the names of the convolutions."""
    return ["mix", *(f"blocks.{number}.{name}" for number in range(config.conditioning_blocks)
                     for name in ("first", "second"))]


def convolutions_of(array: Callable[[str], Float32], config: ModelConfig) -> list[Float32]:
    """Return the weights [out, in, 3, 3] of the convolutions, whose maps are padded to whole panels
    or vectors.

    `array` returns the array of a name of the network.
    """
    maps = config.conditioning_width
    mix, *others = (array(f"conditioning.{name}.weight") for name in _names(config))
    mix = np.concatenate([widened(mix[:, :maps], 1), mix[:, maps:]], axis=1)
    return [widened(weight, 1, multiple=LANES)
            for weight in (mix, *(widened(other, 1) for other in others))]


def transform() -> Float64:
    """Return the transform of a row of three weights of a convolution [6, 3]."""
    powers = np.array([[point**power for power in range(3)] for point in POINTS])
    scales = [math.prod(point - other for other in POINTS if other != point) for point in POINTS]
    return np.concatenate([powers / np.array(scales)[:, None], [[0.0, 0.0, 1.0]]])


def _convolution(packed: PackedWeights, weight: Float32) -> list[CLinear]:
    """Return the 36 products of a 3x3 convolution, a weight of `convolutions_of`."""
    # [3, 3, in, out], [6, 3]
    taps, factors = weight.astype(np.float64).transpose(2, 3, 1, 0), transform()
    # Single operations: a product of matrices adds in the processor's order.
    zero = np.zeros(())
    # [6, 3, in, out]
    rows = sum((factors[:, y, None, None, None] * taps[y] for y in range(3)), zero)
    # [6, 6, in, out]
    weights = sum((factors[:, x, None, None] * rows[:, None, x] for x in range(3)), zero)
    # The product adds no bias: the inverse transform does.
    return [packed.pack(without_bias(part)) for part in weights.reshape(36, *weights.shape[2:])]


def enlargement(cells: int, factor: int) -> Float64:
    """Return the weights of a bicubic enlargement of a row by a whole factor, as torch's, [cells *
    factor, cells]."""
    weights = np.zeros((cells * factor, cells))
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
