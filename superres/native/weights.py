"""The weights of a network, packed for native.cpp."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from superres.config.tables import cell_tables, neighbour_table
from superres.interfaces import Float32, Float64, Network
from superres.native import abi, arrays
from superres.native.arrays import AnyArray

PROPOSING = "int8"
"""The format of the prediction heads in all engines: proposals are verified, so rounding changes no
token."""

GROUPS = {"float32": 1, "bfloat16": 2, "int8": 4}
"""Inputs of an output that lie side by side, by the format of the weights."""

Affine: TypeAlias = tuple[Float32 | Float64, Float32]
"""The weight [in, out] and bias [out] of a product x @ weight + bias."""


def summed(terms: Float32) -> Float32:
    """Return the sum of `terms` [N, ...], which it overwrites, over the first axis.

    Only elementwise additions have the same order, and so the same bits, on every processor.
    """
    while (count := len(terms)) > 1:
        terms[: count // 2] += terms[count - count // 2 :]
        terms = terms[: count - count // 2]
    first: Float32 = terms[0]
    return first


def product(x: Float32, weight: Float32) -> Float32:
    """Return x [N, inputs] @ weight [inputs, outputs] by exact products in float64, added in order
    and rounded once."""
    total = np.zeros((len(x), weight.shape[1]))
    for column, row in zip(x.T.astype(np.float64), weight.astype(np.float64), strict=True):
        total += column[:, None] * row
    return total.astype(np.float32)


def without_bias(weight: Float32 | Float64) -> Affine:
    """Return the product of a weight [in, out] alone."""
    return weight, np.zeros(weight.shape[1], np.float32)


def widened(array: Float32, axis: int, value: float = 0.0, multiple: int = abi.PANEL) -> Float32:
    """Add `value` to the end of an axis, up to a multiple: whole panels, unless another is
    given."""
    shape = list(array.shape)
    shape[axis] = -shape[axis] % multiple
    return np.concatenate([array, np.full(shape, value, array.dtype)], axis) if shape[axis] else (
        array)


class PackedWeights:
    """The weights of a network, packed for native.cpp, with products in the format `precision`.

    The object owns the arrays whose addresses it holds. The output projection in `weights`, the
    decoder, has an int8 filter, except for ordinal outputs; `known` are the filter's weights, a row
    per token, uint8 [V rounded up, D]. `neighbourhood` (without its state) and `heads` are empty if
    there are none. `bytes` is the size of the weights of all products of the decoder.

    Every array of the network is taken once: here, or by `superres.native.encoder.packed_encoder`,
    which checks that none is left. A ValueError says which is missing.
    """

    def __init__(self, network: Network, precision: str) -> None:
        self.network, self.config, self.precision = network, network.config, precision
        self.left = dict(network.arrays)
        self.tensors: list[Any] = []
        self.products: list[AnyArray] = []
        self.known: npt.NDArray[np.uint8] = np.empty((0, 0), np.uint8)
        config, embedding = self.config, self.take("target_embedding.table.weight")
        project = (embedding.T if config.tied_embeddings else self.take("project.weight").T,
                   self.take("project.bias"))
        self.weights = abi.CWeights(
            layer=self.layers("decoder", config.decoder_layers, config.cross_attention),
            pre=config.norm == "pre",
            # Scores are not rounded to int8, which would change the choice between close tokens.
            project=self.pack(project, "float32"),
            # The last row is zero and stands for the start of the sequence.
            token_table=self.keep(np.pad(self.scaled(embedding), ((0, 1), (0, 0)))),
        )
        # Ordinal scores are not a product, and with so few intensities a filter saves no time.
        if not config.ordinal_output:
            self.weights.int8_filter = self._int8_filter(*project)
        if config.norm == "pre":
            self.weights.final_weight, self.weights.final_bias = self.norm("decoder_norm")
        self.neighbourhood, self.heads = abi.CNeighbourhood(), abi.CHeads()
        if config.numeric_neighbourhood:
            self.neighbourhood = self._neighbourhood()
        if "heads.norm.weight" in self.left:
            self.heads = (self._recurrence() if config.head_layer == "recurrent"
                          else self._heads())
        self.bytes = sum(product.nbytes for product in self.products)

    def take(self, name: str) -> Float32:
        """Return an array of the network, which nothing else may take."""
        if name not in self.left:
            raise ValueError(f"the network has no array {name}, or it is packed already")
        return self.left.pop(name)

    def fused(self, *names: str) -> Affine:
        """Concatenate linear layers of the same input into one product, in the order of their
        outputs."""
        return (np.concatenate([self.take(f"{name}.weight").T for name in names], axis=1),
                np.concatenate([self.take(f"{name}.bias") for name in names]))

    def norm(self, name: str) -> tuple[int | None, int | None]:
        """Keep the weight and bias of a layer norm and return their addresses."""
        return self.keep(self.take(f"{name}.weight")), self.keep(self.take(f"{name}.bias"))

    def scaled(self, embedding: Float32) -> Float32:
        """Return the table [V, D] of an embedding as the network reads it."""
        return np.asarray(embedding * np.float32(math.sqrt(self.config.width)))

    def keep(self, array: AnyArray) -> int | None:
        """Keep a contiguous form (int64 as is, all else as float32) and return its address."""
        return self._hold(array, np.int64 if array.dtype == np.int64 else np.float32)

    def _hold(self, array: AnyArray, dtype: npt.DTypeLike) -> int | None:
        held = arrays.aligned(array, dtype)
        self.tensors.append(held)
        return arrays.address(held, dtype, *held.shape)

    def pack(self, affine: Affine, precision: str | None = None) -> abi.CLinear:
        """Pack a product and keep it; in the format of the network if `precision` is None.

        Weights of float32 that are all bfloat16 numbers, as in a checkpoint, are stored as
        bfloat16: a step reads half as many bytes, and its sums are the same. The format is float32
        unless the number of inputs is a multiple of abi.LANES.
        """
        # Choose the format, and pad the outputs to whole panels.
        precision = precision or self.precision
        weight, bias = affine
        padded, scale = widened(weight.astype(np.float32, copy=False), 1), None
        inputs, panels = len(padded), padded.shape[1] // abi.PANEL
        stored: AnyArray = padded
        if inputs % abi.LANES:
            precision = "float32"
        elif precision == "float32" and not (padded.view(np.uint32) & 0xFFFF).any():
            precision = "bfloat16"
        if precision == "int8":
            scale = np.maximum(np.abs(padded).max(0) / 127, np.float32(1e-30))
            # The products in native.cpp take unsigned weights, 128 larger.
            stored = (np.rint(padded / scale) + 128).astype(np.uint8)
        elif precision == "bfloat16":
            stored = (padded.view(np.uint32) >> 16).astype(np.uint16)
        # Bring each group of inputs together.
        group = GROUPS[precision]
        grouped = stored.reshape(inputs // group, group, panels, abi.PANEL)
        # [panels, inputs / group, PANEL, group]
        place = self._hold(grouped.transpose(2, 0, 3, 1), stored.dtype)
        self.products.append(self.tensors[-1])
        return abi.CLinear(inputs, panels, abi.value("Format", precision), place,
                           self.keep(widened(bias, 0)), None if scale is None else self.keep(scale))

    def array(self, linears: Sequence[abi.CLinear]) -> Any:  # noqa: ANN401 - an array of ctypes
        """Keep an array of packed products and return it."""
        self.tensors.append((abi.CLinear * len(linears))(*linears))
        return self.tensors[-1]

    def layers(self, name: str, count: int, cross: bool = False) -> Any:  # noqa: ANN401 - an array of ctypes
        """Pack the layers of an encoder or a decoder and keep them."""
        packed = [self._layer(f"{name}.{number}", cross) for number in range(count)]
        self.tensors.append((abi.CLayer * count)(*packed))
        return self.tensors[-1]

    def _layer(self, name: str, cross: bool) -> abi.CLayer:
        own, other = f"{name}.attention", f"{name}.cross_attention"
        result = abi.CLayer(
            projection=self.pack(self.fused(f"{own}.query", f"{own}.key_value")),
            output=self.pack(self.fused(f"{own}.output")),
            expand=self.pack(self.fused(f"{name}.feed_forward.0")),
            contract=self.pack(self.fused(f"{name}.feed_forward.2")),
        )
        if cross:
            result.cross_query = self.pack(self.fused(f"{other}.query"))
            result.cross_output = self.pack(self.fused(f"{other}.output"))
            result.cross_source = self.pack(self.fused(f"{other}.key_value"))
        for place, part in enumerate(("attention", "cross", "feed_forward")):
            if cross or part != "cross":
                result.norm_weight[place], result.norm_bias[place] = self.norm(
                    f"{name}.{part}_residual.norm")
        return result

    def _int8_filter(self, weight: Float32, bias: Float32) -> abi.CInt8Filter:
        """Return the int8 copy of a product."""
        product = self.pack((weight, bias), "int8")
        # from [panels, D / 4, 32, 4]
        rows = self.products[-1].transpose(0, 2, 1, 3).reshape(-1, len(weight))
        self.known = arrays.aligned(rows, np.uint8)
        product.bias = self.keep(widened(bias, 0, -math.inf))
        return abi.CInt8Filter(product, self.keep(widened(summed(np.abs(weight)), 0)))

    def _neighbourhood(self) -> abi.CNeighbourhood:
        first, first_bias = self.fused("neighbourhood.first")
        table = neighbour_table(self.config.target_shape)
        cell, cell_positions = cell_tables(self.config)
        return abi.CNeighbourhood(
            features=len(first), near=table.shape[1], source_length=self.config.source_length,
            cell_size=cell_positions.shape[1] if self.config.cell_remainder else 0,
            near_table=self.keep(table), cell=self.keep(cell),
            cell_positions=self.keep(cell_positions),
            # The features have very different sizes, so that one int8 scale does not serve them
            # all.
            first=self.pack(without_bias(first), "float32"),
            second=self.pack(self.fused("neighbourhood.second")),
            channel_bias=self.keep(self.take("neighbourhood.channel.weight") + first_bias),
            direct=self.keep(self.take("neighbourhood.direct")),
        )

    def _heads(self) -> abi.CHeads:
        config, contract = self.config, self.take("heads.contract")
        count, dense = config.prediction_heads - config.identity_p1, config.head_layer == "dense"
        result = abi.CHeads(
            count=count, size=config.head_filter_size, dense=dense,
            contract=self.array([
                self.pack(without_bias(weight), PROPOSING)
                for weight in (np.split(contract, count, axis=1) if dense else contract)]),
            expand=self.pack(self.fused("heads.expand"), PROPOSING),
            bias=self.keep(self.take("heads.bias")),
        )
        result.norm_weight, result.norm_bias = self.norm("heads.norm")
        if config.numeric_neighbourhood:
            result.direct = self.keep(self.take("heads.direct"))
        if config.head_layer == "sequential":
            result.earlier = config.prediction_heads - 1
            result.adapt = self.pack(self.fused("heads.adapt"), "float32")
        return result

    def _recurrence(self) -> abi.CHeads:
        weight, bias = self.fused("heads.expand")
        # One product reads the normalised state and the token's embedding, concatenated.
        expand = np.concatenate([weight, self.take("heads.read.weight").T]), bias
        result = abi.CHeads(
            count=self.config.prediction_heads - 1, size=self.config.head_filter_size, recurrent=1,
            expand=self.pack(expand, PROPOSING),
            contract=self.array([self.pack(self.fused("heads.contract"), PROPOSING)]),
            cross_query=self.pack(self.fused("heads.attention.query"), PROPOSING),
            cross_output=self.pack(self.fused("heads.attention.output"), PROPOSING),
            cross_source=self.pack(self.fused("heads.attention.key_value"), PROPOSING),
        )
        result.state_weight, result.state_bias = self.norm("heads.state_norm")
        result.attention_weight, result.attention_bias = self.norm("heads.attention_norm")
        result.norm_weight, result.norm_bias = self.norm("heads.norm")
        return result
