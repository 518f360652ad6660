"""The weights of a network for the decoding step: fused, transposed and concatenated once for all decodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from superres.nn.attention import reach
from superres.nn.heads import PredictionHeads
from superres.nn.image_priors import INITIAL_SHARPNESS, RESIDUAL_SCALE, NumericNeighbourhood, feature_count
from superres.nn.layers import DecoderLayer, TiedProjection
from superres.nn.model import EncoderDecoder
from superres.nn.recurrent import RecurrentHeads


@dataclass
class Affine:
    """x @ weight + bias, the weight stored [in, out]."""

    weight: Tensor
    bias: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Apply to [N, in]."""
        return torch.addmm(self.bias, x, self.weight)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """Return residual + x @ weight + bias."""
        return torch.addmm(residual, x, self.weight).add_(self.bias)

    def half(self) -> HalfAffine:
        """Return the product with weight and bias in bfloat16."""
        return HalfAffine(self.weight.bfloat16(), self.bias.bfloat16())


@dataclass
class HalfAffine(Affine):
    """x @ weight + bias in bfloat16; a residual that the product is added to keeps its own type."""

    def __call__(self, x: Tensor) -> Tensor:
        """Apply to [N, in] of any type; the result is bfloat16."""
        return torch.addmm(self.bias, x.bfloat16(), self.weight)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """Return residual + x @ weight + bias in the type of `residual`."""
        return residual + self(x)


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


class FusedLayer:
    """The fused weights of a decoder layer."""

    def __init__(self, layer: DecoderLayer, half: bool = False) -> None:
        """Fuse the weights of `layer`; products are in bfloat16 if `half`."""
        self.heads, self.pre = layer.attention.heads, layer.attention_residual.pre
        self.norms = [layer.attention_residual.norm, layer.feed_forward_residual.norm]
        attention, feed_forward = layer.attention, layer.feed_forward
        attention_norm, feed_norm = self.norms if self.pre else (None, None)
        scale = attention.scale
        self.projection = fuse([attention.query, attention.key_value], attention_norm, scale)
        self.output = fuse([attention.output])
        self.expand = fuse([feed_forward[0]], feed_norm)  # type: ignore[list-item]
        self.contract = fuse([feed_forward[2]])  # type: ignore[list-item]
        self.cross_attention, self.cross_norm = layer.cross_attention, None
        if layer.cross_attention is not None and layer.cross_residual is not None:
            self.cross_norm = layer.cross_residual.norm
            self.cross_query = fuse([layer.cross_attention.query], self.cross_norm if self.pre else None, scale)
            self.cross_output = fuse([layer.cross_attention.output])
        if half:
            for name, value in list(vars(self).items()):
                if isinstance(value, Affine):
                    setattr(self, name, value.half())


class FusedHeads:
    """The fused weights of heads p2..pK; the output projection and the weights on features are one product.

    The features are the neighbour features and, for sequential heads, the estimates of the targets from p1's on.

    Attributes:
        outputs: maps states, normalised without an affine part, to the outputs of `FusedWeights.project`, then to the
            weights on neighbour features.
    """

    def __init__(self, heads: PredictionHeads, outputs: Affine) -> None:
        """Fuse the weights of `heads`, except those after their norm, which `outputs` holds."""
        own = 1 - heads.first  # index of p2 in the layer
        self.dense, self.outputs = heads.dense, outputs
        expand, contract = heads.expand.weight.detach(), heads.contract.detach()
        self.bias = heads.bias.detach()[own:]
        if heads.dense:
            self.expand = fuse([heads.expand])
            self.contract = contract[:, own * expand.shape[1] :]
        else:
            size = contract.shape[1]
            self.expand = Affine(expand[own * size :].t().contiguous(), heads.expand.bias.detach()[own * size :])
            self.contract = contract[own:].transpose(1, 2).contiguous()
        self.earlier = 0 if heads.adapt is None else heads.visible.shape[1]
        if heads.direct is not None:
            self.direct = F.pad(heads.direct.detach()[:, own:] * RESIDUAL_SCALE, (0, self.earlier))
            self.adapted = torch.ones_like(self.direct[0])
            if self.earlier:
                self.adapted[:, -self.earlier :] = heads.visible[own:]
        self.adaptive = heads.adapt is not None

    def states(self, hidden: Tensor, vectors: Tensor | None, count: int) -> Tensor:
        """Compute the states of the first `count` heads.

        Args:
            hidden: decoder outputs [B, D].
            vectors: conditioning as in `PredictionHeads.forward` [B, count, D], or None.
            count: number of heads from p2 on.

        Returns:
            [B, count, D], normalised without the norm's affine part.
        """
        states = hidden.unsqueeze(1) + self.bias[:count]
        if vectors is not None:
            states = states.add_(vectors)
        if self.dense:
            inner = self.expand(hidden).relu_()
            product = inner @ self.contract[:, : count * hidden.shape[1]]
            states = states.add_(product.view(states.shape))
        else:
            # For one row, torch is fastest with [in, out] for concatenated weights and [out, in] for weights per head.
            size = self.contract.shape[2]
            inner = torch.addmm(self.expand.bias[: count * size], hidden, self.expand.weight[:, : count * size]).relu_()
            inner = inner.view(-1, count, size).permute(1, 2, 0)
            states = torch.baddbmm(states.permute(1, 2, 0), self.contract[:count], inner).permute(2, 0, 1)
        return F.layer_norm(states, states.shape[2:])

    def weights(self, chosen: Tensor, channel: Tensor) -> Tensor:
        """Return the weights [B, count, N] on features, in grey levels.

        Args:
            chosen: the state-dependent part of the weights [B, count, N]; N = 0 for heads that are not adaptive.
            channel: colour channel of p1's target [B].
        """
        count = chosen.shape[1]
        direct = self.direct[:, :count].index_select(0, channel)
        return torch.addcmul(direct, chosen, self.adapted[:count]) if self.adaptive else direct


class FusedRecurrence:
    """The fused weights of recurrent heads; `expand` reads the state and the token embedding, concatenated."""

    def __init__(self, heads: RecurrentHeads) -> None:
        """Fuse the weights of `heads`."""
        self.attention, self.norm = heads.attention, heads.norm
        expand = fuse([heads.expand], heads.state_norm)
        self.expand = Affine(torch.cat([expand.weight, heads.read.weight.detach().t()]), expand.bias)
        self.contract = fuse([heads.contract])
        self.query = fuse([self.attention.query], heads.attention_norm, self.attention.scale)
        self.output = fuse([self.attention.output])


class FusedNeighbourhood:
    """The numeric neighbourhood, gathered from one buffer per row by one index table over target positions.

    The buffer of a row holds, in order: 0, for absent neighbours; minus the residual sum of each cell; one unused
    place; the deviations of the tokens in raster order. What a cell still has to add up to is then also a sum over
    places of the buffer.
    """

    def __init__(self, near: NumericNeighbourhood, cells: int) -> None:
        """Fuse the weights of `near`, whose source has `cells` positions."""
        first = 2 + cells  # index of token 0's deviation in the buffer
        length = len(near.table)
        self.near = near.table.shape[1]
        table = [torch.where(near.table < length, near.table + first, 0)]
        if near.remainder:
            position = torch.arange(length, device=near.table.device).unsqueeze(1)
            decoded = near.cell_positions < position
            table += [torch.where(decoded, near.cell_positions + first, 0), 1 + near.cell.unsqueeze(1)]
            left = near.cell_positions.shape[1] - decoded.sum(1, keepdim=True)
            shares = near.direct.new_zeros(near.cell_positions.shape)
            self.shares = shares.scatter_(1, left - 1, -1.0 / left.to(shares.dtype))
        self.remainder = near.remainder
        self.table = torch.cat(table, dim=1)
        self.first = near.first.weight.detach().t().contiguous()
        self.channel_bias = (near.channel.weight + near.first.bias).detach()
        self.second = fuse([near.second])
        self.direct = (near.direct * RESIDUAL_SCALE).detach().t().contiguous()

    def features(
        self, buffer: Tensor, inside: Tensor, find: Callable[[Tensor], Tensor] = lambda places: places,
    ) -> Tensor:
        """Return the neighbour features [B * W, N] of target positions.

        Args:
            buffer: the buffer of each row [B, ...].
            inside: target positions [B, W] in [0, T).
            find: maps places [B * W, P] of the buffer to the places that are read in their stead.
        """
        places = find(self.table.index_select(0, inside.flatten()))
        found = buffer.gather(1, places.view(len(inside), -1)).view(places.shape)
        if not self.remainder:
            return found
        missing = found[:, self.near :].sum(1, keepdim=True)
        return torch.cat([found[:, : self.near], missing * self.shares.index_select(0, inside.flatten())], dim=1)


class FusedWeights:
    """The weights of a network; each part is fused on its first access."""

    def __init__(self, model: EncoderDecoder, half: bool = False) -> None:
        """Fuse the weights of `model`; products of the decoder's layers are in bfloat16 if `half`."""
        self.model, self.config, self.half = model, model.config, half

    @cached_property
    def project(self) -> Affine:
        """The output projection; the shift of ordinal outputs is in grey levels, and their sharpness is complete."""
        project = fuse([self.model.project])
        return self._complete(project) if self.config.ordinal_output else project

    @cached_property
    def heads(self) -> FusedHeads | None:
        """The head layer, or None if there is none or it is recurrent."""
        heads = self.model.heads
        if not isinstance(heads, PredictionHeads):
            return None
        outputs = fuse([self.model.project, *([] if heads.adapt is None else [heads.adapt])], heads.norm)
        return FusedHeads(heads, self._complete(outputs) if self.config.ordinal_output else outputs)

    def _complete(self, outputs: Affine) -> Affine:
        """Scale outputs, the ordinal projection's and then the weights on features, to grey levels."""
        scale, shift = torch.ones_like(outputs.bias), torch.zeros_like(outputs.bias)
        last = self.config.outputs - 1
        scale[last - 1], shift[last] = RESIDUAL_SCALE, INITIAL_SHARPNESS
        # The weights on earlier tokens, which come last, multiply grey levels already.
        scale[last + 1 : last + 1 + feature_count(self.config)] = RESIDUAL_SCALE
        return Affine(outputs.weight * scale, outputs.bias * scale + shift)

    @property
    def dtype(self) -> torch.dtype:
        """The type of the decoder's products, keys and values."""
        return self.layers[0].projection.weight.dtype

    @cached_property
    def layers(self) -> list[FusedLayer]:
        """The decoder's layers."""
        return [FusedLayer(layer, self.half) for layer in self.model.decoder]  # type: ignore[arg-type]

    @cached_property
    def token_table(self) -> Tensor:
        """Scaled embeddings of all tokens; the last row is zero and stands for the start of the sequence."""
        embedding = self.model.target_embedding
        table = embedding.table.weight.detach() * embedding.scale
        return torch.cat([table, table.new_zeros(1, table.shape[1])])

    @cached_property
    def neighbourhood(self) -> FusedNeighbourhood | None:
        """The numeric neighbourhood, or None."""
        near = self.model.neighbourhood
        return None if near is None else FusedNeighbourhood(near, self.config.source_length)

    @cached_property
    def recurrence(self) -> FusedRecurrence | None:
        """The layer of recurrent heads, or None."""
        heads = self.model.heads
        return FusedRecurrence(heads) if isinstance(heads, RecurrentHeads) else None

    @cached_property
    def position_attributes(self) -> Tensor:
        """Integers that a step looks up by decoder position, int64 [T, 3].

        The columns: the offset from the token read there to its row in `token_table` (at position 0 large enough that
        clamping selects the last row); how many positions back attention sees; the colour channel of the target.
        """
        config = self.config
        position = torch.arange(config.target_length, device=self.model.signal.device)
        offset = (position - 1) % config.channels * config.vocabulary
        offset = torch.where(position > 0, offset, config.channels * config.vocabulary)
        block_length = config.attention_block_length if config.attention == "local_1d" else config.target_length + 1
        return torch.stack([offset, reach(position, block_length), position % config.channels], dim=1)

    @cached_property
    def values(self) -> Tensor:
        """Intensities 0..V-1 as a float tensor [V]."""
        signal = self.model.signal
        return torch.arange(self.config.vocabulary, device=signal.device, dtype=signal.dtype)
