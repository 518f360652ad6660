"""The weights of a network, packed for native.cpp."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from superres.nn.engines.native.abi import (
    LANES,
    PANEL,
    CHeads,
    CInt8Filter,
    CLayer,
    CLinear,
    CNeighbourhood,
    CWeights,
    value,
)
from superres.nn.heads import PredictionHeads
from superres.nn.image_priors import NumericNeighbourhood
from superres.nn.layers import DecoderLayer, TiedProjection
from superres.nn.model import EncoderDecoder
from superres.nn.recurrent import RecurrentHeads

PROPOSING = "int8"
"""The format of the prediction heads in all engines: proposals are verified, so that rounding costs no exactness."""

GROUPS = {"float32": 1, "bfloat16": 2, "int8": 4}
"""Inputs of an output that lie side by side, by the format of the weights."""


@dataclass
class Affine:
    """x @ weight + bias, the weight stored [in, out]."""

    weight: Tensor
    bias: Tensor


def fuse(linears: Sequence[nn.Linear | TiedProjection], norm: nn.LayerNorm | None = None, scale: float = 1.0) -> Affine:
    """Concatenate linear layers of the same input into one product.

    Args:
        linears: layers in the order of their outputs.
        norm: a layer norm before them, whose affine part is fused into the product.
        scale: factor on the first layer's output.

    Returns:
        The product, for inputs that are normalised without an affine part if there is a norm.
    """
    weights: list[Tensor] = [linear.weight.t() for linear in linears]
    biases: list[Tensor] = [linear.bias for linear in linears]
    weights[0], biases[0] = weights[0] * scale, biases[0] * scale
    weight, bias = torch.cat(weights, dim=1), torch.cat(biases)
    if norm is not None:
        weight, bias = norm.weight.unsqueeze(1) * weight, bias + norm.bias @ weight
    return Affine(weight.detach().contiguous(), bias.detach().contiguous())


def pack(affine: Affine, precision: str = "float32") -> tuple[CLinear, list[Tensor]]:
    """Return a product for native.cpp and the tensors that must stay alive as long as the product is used.

    Args:
        affine: weight [in, out] and bias [out].
        precision: format of the weight, in GROUPS; float32 unless `in` is a multiple of LANES.
    """
    inputs, outputs = affine.weight.shape
    panels, padding = -(-outputs // PANEL), (0, -outputs % PANEL)
    if inputs % LANES:
        precision = "float32"
    padded, scale = F.pad(affine.weight.float(), padding), torch.empty(0)
    if precision == "int8":
        scale = padded.abs().amax(0).div(127).clamp(min=1e-30)
        # The products in native.cpp take unsigned weights, 128 larger.
        padded = ((padded / scale).round() + 128).to(torch.uint8)
    elif precision == "bfloat16":
        padded = padded.bfloat16()
    group = GROUPS[precision]
    weight = padded.view(inputs // group, group, panels, PANEL).permute(2, 0, 3, 1).contiguous()
    bias = F.pad(affine.bias.float(), padding).contiguous()
    return CLinear(inputs, panels, value("Format", precision),
                   *(part.data_ptr() or None for part in (weight, bias, scale))), [weight, bias, scale]


def _transposed(weight: Tensor, bias: Tensor) -> Affine:
    return Affine(weight.detach().t(), bias.detach())


class PackedWeights:
    """The weights of a network, packed for native.cpp. The object owns the tensors whose addresses it holds.

    Attributes:
        bytes: size of the weights of all products.
        weights: the decoder. Its output projection has an int8 filter, except for ordinal outputs.
        known: the filter's weights, a row per token, uint8 [V rounded up, D].
        neighbourhood: the numeric neighbourhood without its state; empty if there is none.
        heads: prediction heads.
    """

    def __init__(self, model: EncoderDecoder, precision: str) -> None:
        """Pack the weights of `model`, with products in the format `precision`."""
        self.model, self.precision = model, precision
        self.exact = "float32" if precision == "int8" else precision
        self.tensors: list[Any] = []
        self.known = torch.empty(0, dtype=torch.uint8)
        self.bytes = 0
        self.pre = model.config.norm == "pre"
        self.scale = (model.config.width // model.config.attention_heads) ** -0.5  # of queries
        project = fuse([model.project])
        embedding = model.target_embedding
        layers = (CLayer * len(model.decoder))(*(self._layer(layer) for layer in model.decoder))  # type: ignore[arg-type]
        self.tensors.append(layers)
        self.weights = CWeights(
            layer=layers, pre=self.pre,
            # Scores are not rounded to int8, which would change the choice between close tokens.
            project=self.pack(project, self.exact),
            # The last row is zero and stands for the start of the sequence.
            token_table=self.keep(F.pad(embedding.table.weight.detach() * embedding.scale, (0, 0, 0, 1))),
        )
        # Ordinal scores are not a product, and there are too few intensities for a filter to pay.
        if not model.config.ordinal_output:
            self.weights.int8_filter = self._int8_filter(project)
        if isinstance(model.decoder_norm, nn.LayerNorm):
            self.weights.final_weight = self.keep(model.decoder_norm.weight)
            self.weights.final_bias = self.keep(model.decoder_norm.bias)
        self.neighbourhood = CNeighbourhood()
        if model.neighbourhood is not None:
            self.neighbourhood = self._neighbourhood(model.neighbourhood, model.config.source_length)
        self.heads = CHeads()
        if isinstance(model.heads, RecurrentHeads):
            self.heads = self._recurrence(model.heads)
        elif isinstance(model.heads, PredictionHeads):
            self.heads = self._heads(model.heads)

    def keep(self, tensor: Tensor) -> int:
        """Keep a contiguous copy (int64 as is, all else as float32) and return its address."""
        self.tensors.append(tensor.contiguous() if tensor.dtype == torch.int64 else tensor.float().contiguous())
        address: int = self.tensors[-1].data_ptr()
        return address

    def pack(self, affine: Affine, precision: str | None = None) -> CLinear:
        """Pack a product and keep it, in another format than the network's if a `precision` is given."""
        return self._packed(affine, precision or self.precision)[0]

    def _packed(self, affine: Affine, precision: str) -> tuple[CLinear, Tensor]:
        """Pack a product and keep it; return it with its packed weights."""
        linear, tensors = pack(affine, precision)
        self.bytes += tensors[0].nbytes
        self.tensors += tensors
        return linear, tensors[0]

    def _int8_filter(self, affine: Affine) -> CInt8Filter:
        """Return the int8 copy of a product."""
        half = self.precision == "bfloat16"
        weight = affine.weight.bfloat16().float() if half else affine.weight.float()
        padding = (0, -weight.shape[1] % PANEL)
        product, packed = self._packed(Affine(weight, affine.bias), "int8")  # packed: [panels, D / 4, PANEL, 4]
        self.known = packed.permute(0, 2, 1, 3).reshape(-1, len(weight))
        product.bias = self.keep(F.pad(affine.bias.float(), padding, value=-math.inf))
        # Half a unit for the rounding to int8, and half the last bit of bfloat16 (8 bits) at values up to 127. The
        # excess over these bounds covers the rounding errors of the sums.
        return CInt8Filter(product, self.keep(F.pad(weight.abs().sum(0), padding)), 0.51 + 0.25 * half)

    def _layer(self, layer: DecoderLayer) -> CLayer:
        attention, cross, transform = layer.attention, layer.cross_attention, layer.feed_forward
        residuals = layer.attention_residual, layer.cross_residual, layer.feed_forward_residual
        norms = [None if residual is None else residual.norm for residual in residuals]
        before = norms if self.pre else [None] * 3
        result = CLayer(
            projection=self.pack(fuse([attention.query, attention.key_value], before[0], self.scale)),
            output=self.pack(fuse([attention.output])),
            expand=self.pack(fuse([transform[0]], before[2])),  # type: ignore[list-item]
            contract=self.pack(fuse([transform[2]])),  # type: ignore[list-item]
        )
        if cross is not None:
            result.cross_query = self.pack(fuse([cross.query], before[1], self.scale))
            result.cross_output = self.pack(fuse([cross.output]))
            result.cross_source = self.pack(fuse([cross.key_value]))
        for place, norm in enumerate(norms):
            if norm is not None:
                result.norm_weight[place], result.norm_bias[place] = self.keep(norm.weight), self.keep(norm.bias)
        return result

    def _neighbourhood(self, near: NumericNeighbourhood, source_length: int) -> CNeighbourhood:
        # The features have very different sizes, so that one int8 scale does not serve them all.
        first = Affine(near.first.weight.detach().t(), torch.zeros(near.first.out_features))
        return CNeighbourhood(
            features=near.first.in_features, near=near.table.shape[1], source_length=source_length,
            cell_size=near.cell_positions.shape[1] if near.remainder else 0, near_table=self.keep(near.table),
            cell=self.keep(near.cell), cell_positions=self.keep(near.cell_positions),
            first=self.pack(first, self.exact), second=self.pack(fuse([near.second])),
            channel_bias=self.keep(near.channel.weight.detach() + near.first.bias.detach()),
            direct=self.keep(near.direct.detach()),
        )

    def _heads(self, heads: PredictionHeads) -> CHeads:
        weights = heads.contract.chunk(heads.count, dim=1) if heads.dense else heads.contract
        contract = (CLinear * heads.count)(*(
            self.pack(Affine(weight.detach(), torch.zeros(weight.shape[1])), PROPOSING) for weight in weights
        ))
        self.tensors.append(contract)
        result = CHeads(
            count=heads.count, size=heads.expand.out_features // heads.count, dense=heads.dense, contract=contract,
            expand=self.pack(_transposed(heads.expand.weight, heads.expand.bias), PROPOSING),
            bias=self.keep(heads.bias), norm_weight=self.keep(heads.norm.weight),
            norm_bias=self.keep(heads.norm.bias),
        )
        if heads.direct is not None:
            result.direct = self.keep(heads.direct)
        if heads.adapt is not None:
            result.earlier = heads.visible.shape[1]
            result.adapt = self.pack(_transposed(heads.adapt.weight, heads.adapt.bias), self.exact)
        return result

    def _recurrence(self, heads: RecurrentHeads) -> CHeads:
        expand = fuse([heads.expand], heads.state_norm)
        # One product reads the normalised state and the token's embedding, concatenated.
        expand = Affine(torch.cat([expand.weight, heads.read.weight.detach().t()]), expand.bias)
        contract = (CLinear * 1)(self.pack(fuse([heads.contract]), PROPOSING))
        self.tensors.append(contract)
        return CHeads(
            count=heads.count, size=heads.contract.in_features, recurrent=1, expand=self.pack(expand, PROPOSING),
            contract=contract, norm_weight=self.keep(heads.norm.weight), norm_bias=self.keep(heads.norm.bias),
            cross_query=self.pack(fuse([heads.attention.query], heads.attention_norm, self.scale), PROPOSING),
            cross_output=self.pack(fuse([heads.attention.output]), PROPOSING),
            cross_source=self.pack(fuse([heads.attention.key_value]), PROPOSING),
        )
