"""The weights of a network, packed for native.cpp."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from superres.native import abi
from superres.nn.heads import PredictionHeads, RecurrentHeads
from superres.nn.image_priors import NumericNeighbourhood
from superres.nn.layers import Layer, TiedProjection
from superres.nn.model import EncoderDecoder

PROPOSING = "int8"
"""The format of the prediction heads in all engines: proposals are verified, so rounding changes no
token."""

GROUPS = {"float32": 1, "bfloat16": 2, "int8": 4}
"""Inputs of an output that lie side by side, by the format of the weights."""

Affine: TypeAlias = tuple[Tensor, Tensor]
"""The weight [in, out] and bias [out] of a product x @ weight + bias."""


def fused(*linears: nn.Linear | TiedProjection) -> Affine:
    """Concatenate linear layers of the same input into one product, in the order of their
    outputs."""
    weight = torch.cat([linear.weight.t() for linear in linears], dim=1)
    return (weight.detach().contiguous(),
            torch.cat([linear.bias for linear in linears]).detach().contiguous())


def summed(terms: Tensor) -> Tensor:
    """Return the sum of `terms` [N, ...], which it overwrites, over the first axis.

    Only elementwise additions have the same order, and so the same bits, on every processor.
    """
    while (count := len(terms)) > 1:
        terms[: count // 2] += terms[count - count // 2 :]
        terms = terms[: count - count // 2]
    return terms[0]


def product(x: Tensor, weight: Tensor) -> Tensor:
    """Return x [N, inputs] @ weight [inputs, outputs] by exact products in float64, added in order
    and rounded once."""
    total = torch.zeros(len(x), weight.shape[1], dtype=torch.float64)
    for column, row in zip(x.double().t(), weight.double(), strict=True):
        total.addcmul_(column.unsqueeze(1), row)
    return total.float()


def without_bias(weight: Tensor) -> Affine:
    """Return the product of a weight [in, out] alone."""
    return weight.detach(), torch.zeros(weight.shape[1])


class PackedWeights:
    """The weights of a network, packed for native.cpp, with products in the format `precision`.

    The object owns the tensors whose addresses it holds. The output projection in `weights`, the
    decoder, has an int8 filter, except for ordinal outputs; `known` are the filter's weights, a row
    per token, uint8 [V rounded up, D]. `neighbourhood` (without its state) and `heads` are empty if
    there are none. `bytes` is the size of the weights of all products of the decoder.
    """

    def __init__(self, model: EncoderDecoder, precision: str) -> None:
        config, embedding = model.config, model.target_embedding
        self.model, self.precision = model, precision
        self.tensors: list[Any] = []
        self.products: list[Tensor] = []
        self.known = torch.empty(0, dtype=torch.uint8)
        project = fused(model.project)
        self.weights = abi.CWeights(
            layer=self.layers(model.decoder), pre=config.norm == "pre",
            # Scores are not rounded to int8, which would change the choice between close tokens.
            project=self.pack(project, "float32"),
            # The last row is zero and stands for the start of the sequence.
            token_table=self.keep(F.pad(embedding.table.weight.detach() * embedding.scale,
                                        (0, 0, 0, 1))),
        )
        # Ordinal scores are not a product, and with so few intensities a filter saves no time.
        if not config.ordinal_output:
            self.weights.int8_filter = self._int8_filter(*project)
        if isinstance(model.decoder_norm, nn.LayerNorm):
            self.weights.final_weight = self.keep(model.decoder_norm.weight)
            self.weights.final_bias = self.keep(model.decoder_norm.bias)
        self.neighbourhood, self.heads = abi.CNeighbourhood(), abi.CHeads()
        if model.neighbourhood is not None:
            self.neighbourhood = self._neighbourhood(model.neighbourhood, config.source_length)
        if isinstance(model.heads, RecurrentHeads):
            self.heads = self._recurrence(model.heads)
        elif isinstance(model.heads, PredictionHeads):
            self.heads = self._heads(model.heads)
        self.bytes = sum(product.nbytes for product in self.products)

    def keep(self, tensor: Tensor) -> int:
        """Keep a contiguous copy (int64 as is, all else as float32) and return its address."""
        tensor = tensor.detach()
        self.tensors.append(tensor.contiguous() if tensor.dtype == torch.int64
                            else tensor.float().contiguous())
        address: int = self.tensors[-1].data_ptr()
        return address

    def pack(self, affine: Affine, precision: str | None = None) -> abi.CLinear:
        """Pack a product and keep it; in the format of the network if `precision` is None.

        Weights of float32 that are all bfloat16 numbers, as in a checkpoint, are stored as
        bfloat16: a step reads half as many bytes, and its sums are the same. The format is float32
        unless the number of inputs is a multiple of abi.LANES.
        """
        # Choose the format, and pad the outputs to whole panels.
        precision = precision or self.precision
        weight, bias = affine
        inputs, outputs = weight.shape
        panels, padding = -(-outputs // abi.PANEL), (0, -outputs % abi.PANEL)
        padded, scale = F.pad(weight.float(), padding), torch.empty(0)
        if inputs % abi.LANES:
            precision = "float32"
        elif precision == "float32" and torch.equal(padded, padded.bfloat16().float()):
            precision = "bfloat16"
        if precision == "int8":
            scale = padded.abs().amax(0).div(127).clamp(min=1e-30)
            # The products in native.cpp take unsigned weights, 128 larger.
            padded = ((padded / scale).round() + 128).to(torch.uint8)
        elif precision == "bfloat16":
            padded = padded.bfloat16()
        # Bring each group of inputs together.
        group = GROUPS[precision]
        packed = padded.view(inputs // group, group, panels, abi.PANEL)
        packed = packed.permute(2, 0, 3, 1).contiguous()  # [panels, inputs / group, PANEL, group]
        parts = packed, F.pad(bias.float(), padding).contiguous(), scale
        self.products.append(packed)
        self.tensors += parts
        return abi.CLinear(inputs, panels, abi.value("Format", precision),
                           *(part.data_ptr() or None for part in parts))

    def array(self, linears: Sequence[abi.CLinear]) -> Any:  # noqa: ANN401 - an array of ctypes
        """Keep an array of packed products and return it."""
        self.tensors.append((abi.CLinear * len(linears))(*linears))
        return self.tensors[-1]

    def layers(self, layers: nn.ModuleList) -> Any:  # noqa: ANN401 - an array of ctypes
        """Pack the layers of an encoder or a decoder and keep them."""
        self.tensors.append((abi.CLayer * len(layers))(*map(self._layer, layers)))  # type: ignore[arg-type]
        return self.tensors[-1]

    def _layer(self, layer: Layer) -> abi.CLayer:
        attention, cross, transform = layer.attention, layer.cross_attention, layer.feed_forward
        result = abi.CLayer(
            projection=self.pack(fused(attention.query, attention.key_value)),
            output=self.pack(fused(attention.output)),
            expand=self.pack(fused(transform[0])),  # type: ignore[arg-type]
            contract=self.pack(fused(transform[2])),  # type: ignore[arg-type]
        )
        if cross is not None:
            result.cross_query = self.pack(fused(cross.query))
            result.cross_output = self.pack(fused(cross.output))
            result.cross_source = self.pack(fused(cross.key_value))
        residuals = layer.attention_residual, layer.cross_residual, layer.feed_forward_residual
        for place, residual in enumerate(residuals):
            if residual is not None:
                norm = residual.norm
                result.norm_weight[place] = self.keep(norm.weight)
                result.norm_bias[place] = self.keep(norm.bias)
        return result

    def _int8_filter(self, weight: Tensor, bias: Tensor) -> abi.CInt8Filter:
        """Return the int8 copy of a product."""
        weight = weight.float()
        padding = (0, -weight.shape[1] % abi.PANEL)
        product = self.pack((weight, bias), "int8")
        # from [panels, D / 4, 32, 4]
        self.known = self.products[-1].permute(0, 2, 1, 3).reshape(-1, len(weight))
        product.bias = self.keep(F.pad(bias.float(), padding, value=-math.inf))
        return abi.CInt8Filter(product, self.keep(F.pad(summed(weight.abs()), padding)))

    def _neighbourhood(self, near: NumericNeighbourhood, source_length: int) -> abi.CNeighbourhood:
        return abi.CNeighbourhood(
            features=near.first.in_features, near=near.table.shape[1], source_length=source_length,
            cell_size=near.cell_positions.shape[1] if near.remainder else 0,
            near_table=self.keep(near.table), cell=self.keep(near.cell),
            cell_positions=self.keep(near.cell_positions),
            # The features have very different sizes, so that one int8 scale does not serve them
            # all.
            first=self.pack(without_bias(near.first.weight.t()), "float32"),
            second=self.pack(fused(near.second)),
            channel_bias=self.keep(near.channel.weight + near.first.bias),
            direct=self.keep(near.direct),
        )

    def _heads(self, heads: PredictionHeads) -> abi.CHeads:
        contract = heads.contract.chunk(heads.count, dim=1) if heads.dense else heads.contract
        result = abi.CHeads(
            count=heads.count, size=heads.expand.out_features // heads.count, dense=heads.dense,
            contract=self.array([self.pack(without_bias(weight), PROPOSING)
                                 for weight in contract]),
            expand=self.pack(fused(heads.expand), PROPOSING), bias=self.keep(heads.bias),
            norm_weight=self.keep(heads.norm.weight), norm_bias=self.keep(heads.norm.bias),
        )
        if heads.direct is not None:
            result.direct = self.keep(heads.direct)
        if heads.adapt is not None:
            result.earlier = heads.visible.shape[1]
            result.adapt = self.pack(fused(heads.adapt), "float32")
        return result

    def _recurrence(self, heads: RecurrentHeads) -> abi.CHeads:
        weight, bias = fused(heads.expand)
        # One product reads the normalised state and the token's embedding, concatenated.
        expand = torch.cat([weight, heads.read.weight.detach().t()]), bias
        state, attention = heads.state_norm, heads.attention_norm
        return abi.CHeads(
            count=heads.count, size=heads.contract.in_features, recurrent=1,
            expand=self.pack(expand, PROPOSING),
            contract=self.array([self.pack(fused(heads.contract), PROPOSING)]),
            state_weight=self.keep(state.weight), state_bias=self.keep(state.bias),
            attention_weight=self.keep(attention.weight), attention_bias=self.keep(attention.bias),
            norm_weight=self.keep(heads.norm.weight), norm_bias=self.keep(heads.norm.bias),
            cross_query=self.pack(fused(heads.attention.query), PROPOSING),
            cross_output=self.pack(fused(heads.attention.output), PROPOSING),
            cross_source=self.pack(fused(heads.attention.key_value), PROPOSING),
        )
