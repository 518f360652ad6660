"""The encoder in compiled code: the weights that cpp/model/encoder.h reads, and its call."""

from __future__ import annotations

import math
from ctypes import byref
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from superres.nn.attention import hidden_mask
from superres.nn.engines.native.abi import FAR, LANES, NEAR, PANEL, CEncoded, CEncoder, CLayer, CLinear
from superres.nn.engines.native.build import library
from superres.nn.engines.native.weights import Affine, fuse, pack
from superres.nn.engines.torch_model import SOURCE_MULTIPLE
from superres.nn.image_priors import RESIDUAL_SCALE, AlignedConditioning
from superres.nn.layers import EncoderLayer
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


class NativeEncoder:
    """The encoder of a network, packed for cpp/model/encoder.h. It encodes bit for bit alike in every batch."""

    def __init__(self, model: EncoderDecoder, precision: str) -> None:
        """Pack the weights of `model`, for which `supports` holds, with products in the format `precision`."""
        self.model, self.precision, self.tensors = model, precision, list[Any]()
        config, embedding = model.config, model.source_embedding or model.target_embedding
        layers = (CLayer * config.encoder_layers)(*(self._layer(layer) for layer in model.encoder))  # type: ignore[arg-type]
        self.tensors.append(layers)
        self.encoder = CEncoder(
            source_length=config.source_length, length=config.target_length, size_d=config.width,
            attention_heads=config.attention_heads, filter=config.filter_size, layers=config.encoder_layers,
            vocabulary=config.vocabulary, channels=config.channels, pre=config.norm == "pre", layer=layers,
            token_table=self._keep(embedding.table.weight * embedding.scale),
            source_signal=self._keep(model.source_signal),
        )
        if isinstance(model.encoder_norm, nn.LayerNorm):
            self.encoder.final_weight = self._keep(model.encoder_norm.weight)
            self.encoder.final_bias = self._keep(model.encoder_norm.bias)
        if model.conditioning is not None:
            self._conditioning(model.conditioning)

    def __call__(self, source: Tensor, threads: int, padding: Tensor | None = None) -> Memory:
        """Encode tokens [B, S] on at most `threads` threads; `padding` [B, S] is True after the end of shorter texts.

        Raises:
            ValueError: `source` has another shape, or a value that is no token; or padding is not at the end.
        """
        config, (batch, length) = self.model.config, source.shape
        text = self.model.conditioning is None
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
            self._allocate(memory)
        parts = {name: getattr(memory, name) for name in PARTS}
        encoded = CEncoded(**{name: None if part is None else part.data_ptr() for name, part in parts.items()},
                           stride=length, positions=positions, lengths=lengths.data_ptr())
        library().superres_encode(byref(self.encoder), byref(encoded), batch, threads, source.data_ptr())
        return memory

    def _allocate(self, memory: Memory) -> None:
        """Allocate what the aligned conditioning adds to `memory`."""
        config, batch = self.model.config, len(memory.states)
        table = batch, config.target_length, config.width
        memory.position_table, memory.estimate = torch.empty(table), torch.empty(table[:2])
        if self.encoder.head_vectors.inputs:
            memory.head_table = torch.empty(table)
        if self.model.neighbourhood is not None:
            memory.residual_sum = torch.empty(batch, config.source_length)

    def _keep(self, tensor: Tensor) -> int:
        """Keep a contiguous copy as float32 and return its address."""
        self.tensors.append(tensor.detach().float().contiguous())
        address: int = self.tensors[-1].data_ptr()
        return address

    def _pack(self, affine: Affine) -> CLinear:
        linear, tensors = pack(affine, self.precision)
        self.tensors += tensors
        return linear

    def _layer(self, layer: EncoderLayer) -> CLayer:
        attention, transform = layer.attention, layer.feed_forward
        norms = layer.attention_residual.norm, layer.feed_forward_residual.norm
        before = norms if layer.attention_residual.pre else (None, None)
        scale = (attention.query.in_features // attention.heads) ** -0.5
        result = CLayer(
            projection=self._pack(fuse([attention.query, attention.key_value], before[0], scale)),
            output=self._pack(fuse([attention.output])),
            expand=self._pack(fuse([transform[0]], before[1])),  # type: ignore[list-item]
            contract=self._pack(fuse([transform[2]])),  # type: ignore[list-item]
        )
        for place, norm in zip((0, 2), norms, strict=True):
            result.norm_weight[place], result.norm_bias[place] = self._keep(norm.weight), self._keep(norm.bias)
        return result

    def _conditioning(self, conditioning: AlignedConditioning) -> None:
        """Pack the aligned conditioning and the products that make the position tables."""
        encoder, refinement, heads, config = self.encoder, conditioning.refinement, self.model.heads, self.model.config
        (rows, columns, _), (height, width) = config.source_shape, config.enlargement
        encoder.rows, encoder.columns, encoder.height, encoder.width = rows, columns, height, width
        encoder.maps, encoder.blocks = config.conditioning_width, config.conditioning_blocks
        encoder.row_weights, encoder.column_weights = (
            self._keep(enlargement(cells, factor)) for cells, factor in ((rows, height), (columns, width)))
        encoder.signal, encoder.residual_scale = self._keep(self.model.signal), RESIDUAL_SCALE
        convolutions = [conditioning.mix]
        for block in conditioning.blocks:
            convolutions += [block.first, block.second]  # type: ignore[list-item]
        products = (CLinear * (36 * len(convolutions)))(*(
            linear for convolution in convolutions for linear in self._convolution(convolution)
        ))
        self.tensors.append(products)
        encoder.products = products
        encoder.biases = self._keep(torch.stack([convolution.bias for convolution in convolutions]))  # type: ignore[misc]
        encoder.shuffle = self._pack(fuse([conditioning.shuffle]))
        taps = refinement.weight.detach().permute(1, 2, 3, 0).flatten(1)  # [maps, 9 * channels]
        encoder.refinement = self._pack(Affine(taps, torch.zeros(taps.shape[1])))
        encoder.refinement_bias = self._keep(refinement.bias)  # type: ignore[arg-type]
        vectors = Affine(conditioning.vectors.weight.detach().flatten(1).t(), conditioning.vectors.bias.detach())  # type: ignore[union-attr]
        encoder.vectors = self._pack(vectors)
        if heads is not None and heads.conditioning is not None:
            # The head layer's vectors are linear in the conditioning vectors of each channel.
            weight = heads.conditioning.weight.detach().t().contiguous()
            weight = torch.kron(torch.eye(self.model.config.channels), weight)
            encoder.head_vectors = self._pack(Affine(vectors.weight @ weight, vectors.bias @ weight))

    def _convolution(self, convolution: nn.Conv2d) -> list[CLinear]:
        """Return the 36 products of a 3x3 convolution, for inputs padded to whole vectors."""
        powers = torch.tensor([[point**power for power in range(3)] for point in POINTS], dtype=torch.float64)
        scales = [math.prod(point - other for other in POINTS if other != point) for point in POINTS]
        transform = torch.cat([powers / torch.tensor(scales).unsqueeze(1), powers.new_tensor([[0.0, 0.0, 1.0]])])
        weight = F.pad(convolution.weight.detach().double(), (0, 0, 0, 0, 0, -convolution.in_channels % LANES))
        weights = torch.einsum("ay,oiyx,bx->abio", transform, weight, transform)
        # The product adds no bias: the inverse transform does.
        return [self._pack(Affine(part, torch.zeros(part.shape[1]))) for part in weights.flatten(0, 1)]


def enlargement(cells: int, factor: int) -> Tensor:
    """Return the weights of a bicubic enlargement of a row by a whole factor, float64 [cells * factor, cells]."""
    rows = torch.eye(cells, dtype=torch.float64).view(cells, 1, cells, 1)
    large = F.interpolate(rows, size=(cells * factor, 1), mode="bicubic", align_corners=False)
    return large[:, 0, :, 0].t()
