"""The encoder in compiled code: the weights that cpp/model/encoder.h reads, and its call."""

from __future__ import annotations

import math
from ctypes import byref

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from superres.nn.attention import hidden_mask
from superres.nn.engines.native.abi import FAR, LANES, NEAR, PANEL, CEncoded, CEncoder, CLinear
from superres.nn.engines.native.build import library
from superres.nn.engines.native.weights import PackedWeights, fuse, without_bias
from superres.nn.engines.torch_model import SOURCE_MULTIPLE
from superres.nn.image_priors import RESIDUAL_SCALE, AlignedConditioning
from superres.nn.model import EncoderDecoder, Memory, longest_targets

POINTS = (0.0, NEAR / 8, -NEAR / 8, FAR / 8, -FAR / 8)
"""The finite points at which Winograd's convolution multiplies polynomials; a sixth point is infinity."""

PARTS = "states", "position_table", "head_table", "estimate", "residual_sum"
"""The parts of the memory that cpp/model/encoder.h writes."""


def supports(model: EncoderDecoder) -> bool:
    """Return whether the compiled encoder computes the memory of `model`, which the native engine supports."""
    if model.signal.dtype != torch.float32:
        return False
    if model.conditioning is None:
        return not model.has_estimate and len(model.config.source_shape) == 1
    return model.config.conditioning_width % PANEL == 0


def packed_encoder(packed: PackedWeights) -> CEncoder:
    """Pack the encoder of the network of `packed`, which `supports` accepts."""
    model, config = packed.model, packed.model.config
    embedding = model.source_embedding or model.target_embedding
    encoder = CEncoder(
        source_length=config.source_length, length=config.target_length, size_d=config.width,
        attention_heads=config.attention_heads, filter=config.filter_size, layers=config.encoder_layers,
        vocabulary=config.vocabulary, channels=config.channels, pre=config.norm == "pre",
        layer=packed.layers(model.encoder), token_table=packed.keep(embedding.table.weight * embedding.scale),
        source_signal=packed.keep(model.source_signal),
    )
    if isinstance(model.encoder_norm, nn.LayerNorm):
        encoder.final_weight = packed.keep(model.encoder_norm.weight)
        encoder.final_bias = packed.keep(model.encoder_norm.bias)
    if model.conditioning is not None:
        _add_conditioning(encoder, packed, model.conditioning)
    encoder.packed = packed  # which owns the memory
    return encoder


def encode(
    encoder: CEncoder, model: EncoderDecoder, source: Tensor, threads: int, padding: Tensor | None = None,
) -> Memory:
    """Encode tokens [B, S] on at most `threads` threads, bit for bit alike in every batch.

    `padding` [B, S] is True after the end of shorter texts. Raises ValueError if `source` has another shape, or a value
    that is no token; or padding is not at the end.
    """
    config, (batch, length) = model.config, source.shape
    text = model.conditioning is None
    if length > config.source_length or (length != config.source_length and not text):
        raise ValueError(f"sources must have {config.source_length} tokens, not {length}")
    if batch and not 0 <= int(source.min()) <= int(source.max()) < config.vocabulary:
        raise ValueError(f"tokens must be in [0, {config.vocabulary}), not {source.min()} to {source.max()}")
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
    else:
        table = batch, config.target_length, config.width
        memory.position_table, memory.estimate = torch.empty(table), torch.empty(table[:2])
        memory.head_table = torch.empty(table) if encoder.head_vectors.inputs else None
        memory.residual_sum = None if model.neighbourhood is None else torch.empty(batch, config.source_length)
    parts = {name: getattr(memory, name) for name in PARTS}
    encoded = CEncoded(**{name: None if part is None else part.data_ptr() for name, part in parts.items()},
                       stride=length, positions=positions, lengths=lengths.data_ptr())
    library().superres_encode(byref(encoder), byref(encoded), batch, threads, source.data_ptr())
    return memory


def _add_conditioning(encoder: CEncoder, packed: PackedWeights, conditioning: AlignedConditioning) -> None:
    """Pack the aligned conditioning and the products that make the position tables."""
    config, heads, refinement = conditioning.config, packed.model.heads, conditioning.refinement
    (rows, columns, _), (height, width) = config.source_shape, config.enlargement
    encoder.rows, encoder.columns, encoder.height, encoder.width = rows, columns, height, width
    encoder.maps, encoder.blocks = config.conditioning_width, config.conditioning_blocks
    encoder.row_weights, encoder.column_weights = (
        packed.keep(enlargement(cells, factor)) for cells, factor in ((rows, height), (columns, width)))
    encoder.signal, encoder.residual_scale = packed.keep(packed.model.signal), RESIDUAL_SCALE
    convolutions = [conditioning.mix, *(one for block in conditioning.blocks for one in block.children())]
    encoder.products = packed.array([
        linear for convolution in convolutions for linear in _convolution(packed, convolution)])  # type: ignore[arg-type]
    encoder.biases = packed.keep(torch.stack([convolution.bias for convolution in convolutions]))  # type: ignore[misc]
    encoder.shuffle = packed.pack(fuse([conditioning.shuffle]))
    encoder.refinement = packed.pack(without_bias(refinement.weight.permute(1, 2, 3, 0).flatten(1)))
    encoder.refinement_bias = packed.keep(refinement.bias)  # type: ignore[arg-type]
    weight, bias = conditioning.vectors.weight.detach().flatten(1).t(), conditioning.vectors.bias.detach()  # type: ignore[union-attr]
    encoder.vectors = packed.pack((weight, bias))
    if heads is not None and heads.conditioning is not None:
        # The head layer's vectors are linear in the conditioning vectors of each channel.
        each = torch.kron(torch.eye(config.channels), heads.conditioning.weight.detach().t().contiguous())
        encoder.head_vectors = packed.pack((weight @ each, bias @ each))


def _convolution(packed: PackedWeights, convolution: nn.Conv2d) -> list[CLinear]:
    """Return the 36 products of a 3x3 convolution, for inputs padded to whole vectors."""
    powers = torch.tensor([[point**power for power in range(3)] for point in POINTS], dtype=torch.float64)
    scales = [math.prod(point - other for other in POINTS if other != point) for point in POINTS]
    transform = torch.cat([powers / torch.tensor(scales).unsqueeze(1), powers.new_tensor([[0.0, 0.0, 1.0]])])
    weight = F.pad(convolution.weight.detach().double(), (0, 0, 0, 0, 0, -convolution.in_channels % LANES))
    weights = torch.einsum("ay,oiyx,bx->abio", transform, weight, transform)
    # The product adds no bias: the inverse transform does.
    return [packed.pack(without_bias(part)) for part in weights.flatten(0, 1)]


def enlargement(cells: int, factor: int) -> Tensor:
    """Return the weights of a bicubic enlargement of a row by a whole factor, float64 [cells * factor, cells]."""
    rows = torch.eye(cells, dtype=torch.float64).view(cells, 1, cells, 1)
    large = F.interpolate(rows, size=(cells * factor, 1), mode="bicubic", align_corners=False)
    return large[:, 0, :, 0].t()
