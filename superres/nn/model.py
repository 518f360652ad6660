"""The encoder-decoder network, scoring whole sequences by teacher forcing; `torch_model` decodes
with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from superres.config import ModelConfig
from superres.config.tables import RESIDUAL_SCALE, longest_targets, position_signal
from superres.nn import image_priors
from superres.nn.attention import hidden_mask
from superres.nn.heads import PredictionHeads, RecurrentHeads
from superres.nn.image_priors import AlignedConditioning, NumericNeighbourhood
from superres.nn.layers import Layer, TiedProjection, TokenEmbedding
from superres.system.precision import float32_products


@dataclass
class Memory:
    """The encoder's output for the decoder, one row per source; parts that a network lacks are
    None.

    The compiled encoder returns `position_table` and `head_table` in place of `conditioning`.
    """

    states: Tensor  # [B, S, D]
    # added to cross-attention scores [B, 1, 1, S]; None if no source is padded
    mask: Tensor | None = None
    conditioning: Tensor | None = None  # vectors added to the decoder's input [B, T, D]
    estimate: Tensor | None = None  # intensities expected before decoding [B, T], in grey levels
    # sums of the deviations in each cell [B, S], in units of RESIDUAL_SCALE
    residual_sum: Tensor | None = None
    position_table: Tensor | None = None  # position signal plus conditioning [B, T, D]
    head_table: Tensor | None = None  # the head layer's conditioning vectors [B, T, D]
    # largest number of target tokens of a text that ends, int64 [B]; None for images
    longest: Tensor | None = None
    # source tokens, int64 [B, S], for sessions that make shortlists of them
    tokens: Tensor | None = None

    def hidden(self, dtype: torch.dtype) -> Tensor:
        """Return the mask added to cross-attention scores [B, 1, 1, S] as `dtype`; zeros if no
        source is padded."""
        added = self.states.new_zeros(len(self.states), 1, 1, self.states.shape[1], dtype=dtype)
        return added if self.mask is None else added.copy_(self.mask)

    def __getitem__(self, rows: Tensor) -> Memory:
        """Return a memory of the rows `rows`, int64 [R]; a row may occur several times."""
        parts = ((field.name, getattr(self, field.name)) for field in fields(self))
        return replace(self, **{name: part[rows] for name, part in parts if part is not None})

    @staticmethod
    def joined(parts: Sequence[Memory]) -> Memory:
        """Return the rows of all parts, one part after another; they are of sources of one
        length."""
        first, kind = parts[0], parts[0].states.dtype
        own = {field.name: torch.cat([getattr(part, field.name) for part in parts])
               for field in fields(first) if getattr(first, field.name) is not None}
        if any(part.mask is not None for part in parts):
            own["mask"] = torch.cat([part.hidden(kind) for part in parts])
        return replace(first, **own)

    def repeat(self, copies: int) -> Memory:
        """Return a memory with every row repeated `copies` times in succession."""
        if copies == 1:
            return self
        return self[torch.arange(len(self.states),
                                 device=self.states.device).repeat_interleave(copies)]

    def rounded_up(self, multiple: int) -> Memory:
        """Pad the source positions to a multiple of `multiple`; the mask hides the padding."""
        spare = -self.states.shape[1] % multiple
        if not spare:
            return self
        mask = self.hidden(self.states.dtype) if self.mask is None else self.mask
        return replace(self, states=F.pad(self.states, (0, 0, 0, spare)),
                       mask=F.pad(mask, (0, spare), value=float("-inf")))


@dataclass
class DecoderOutput:
    """Decoder output over whole targets (teacher forcing)."""

    hidden: Tensor  # [B, T, D]; the state at t scores token t
    tokens: Tensor  # the target [B, T]
    neighbours: Tensor | None  # neighbour features of each target [B, T, N]
    # target minus estimate [B, T + 1], in units of RESIDUAL_SCALE; entry T is 0
    deviation: Tensor | None
    memory: Memory


class EncoderDecoder(nn.Module):
    """Image Transformer with local 1-D attention and k prediction heads (Parmar et al. 2018; Stern
    et al. 2018).

    Its first weights are drawn from torch's global generator.
    """

    signal: Tensor
    source_signal: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.gradient_checkpointing = False
        width, tied = config.width, config.tied_embeddings
        source_channels = config.source_shape[-1] if len(config.source_shape) == 3 else 1
        self.source_embedding = (
            None if tied else TokenEmbedding(config.vocabulary, source_channels, width))
        self.target_embedding = TokenEmbedding(config.vocabulary, config.channels, width)
        for name, shape in (("source_signal", config.source_shape),
                            ("signal", config.target_shape)):
            self.register_buffer(name, torch.from_numpy(position_signal(shape, width)),
                                 persistent=False)
        self.encoder = nn.ModuleList(Layer(config) for _ in range(config.encoder_layers))
        self.decoder = nn.ModuleList(Layer(config, config.cross_attention)
                                     for _ in range(config.decoder_layers))
        final = config.norm == "pre"
        self.encoder_norm = nn.LayerNorm(width) if final else nn.Identity()
        self.decoder_norm = nn.LayerNorm(width) if final else nn.Identity()
        self.dropout = nn.Dropout(config.dropout)
        self.conditioning = AlignedConditioning(config) if config.aligned_conditioning else None
        self.neighbourhood = NumericNeighbourhood(config) if config.numeric_neighbourhood else None
        self.project = (TiedProjection(self.target_embedding.table) if tied
                        else nn.Linear(width, config.outputs))
        if config.ordinal_output:
            nn.init.zeros_(self.project.weight)
            nn.init.zeros_(self.project.bias)
        has_layer = config.prediction_heads > 1 or (config.one_head_layer
                                                    and not config.identity_p1)
        layer = RecurrentHeads if config.head_layer == "recurrent" else PredictionHeads
        self.heads: PredictionHeads | RecurrentHeads | None = layer(config) if has_layer else None

    def fuse_attention(self) -> None:
        """Compute the attention of whole sequences by torch's fused kernel, for training on a
        GPU."""
        for layer in (*self.encoder, *self.decoder):
            layer.fuse_attention()

    @property
    def has_estimate(self) -> bool:
        """Whether the enlarged source estimates the target: both are images with the same number of
        channels."""
        source, target = self.config.source_shape, self.config.target_shape
        return len(source) == len(target) == 3 and source[-1] == target[-1]

    def encode(self, source: Tensor, padding: Tensor | None = None, half: bool = False) -> Memory:
        """Encode source tokens, int64 [B, S] in [0, V); `padding` is bool [B, S], True at padding.

        With `half`, the aligned conditioning, which takes most of the time, is computed in
        bfloat16.
        """
        position = torch.arange(source.shape[1], device=source.device)
        mask = None if padding is None else hidden_mask(~padding)[:, None, None, :]
        embed = self.source_embedding or self.target_embedding
        # [B, S, D]
        x = self.dropout(embed(source, position) + self.source_signal[: source.shape[1]])
        for layer in self.encoder:
            x = layer(x, None, mask)
        memory = Memory(self.encoder_norm(x), mask)
        if len(self.config.source_shape) == 1:
            tokens = (torch.full_like(source[:, 0], source.shape[1]) if padding is None
                      else (~padding).sum(1))
            memory.longest = longest_targets(tokens, self.config)
        if self.has_estimate:
            large = image_priors.enlarge_source(source, self.config).to(self.signal.dtype)
            memory.estimate = image_priors.to_raster(large)
            if self.conditioning is not None:
                # TF32 would change the estimate by hundredths of a grey level; training keeps
                # torch's setting.
                precision = nullcontext() if self.training else float32_products()
                # Without `half`, autocast is left as it is, since training may have enabled it.
                with precision, torch.autocast(source.device.type,
                                               torch.bfloat16) if half else nullcontext():
                    memory.conditioning, memory.estimate = self.conditioning(memory.states, large)
                if half:
                    memory.conditioning = memory.conditioning.to(memory.states.dtype)
            if self.neighbourhood is not None:
                memory.residual_sum = self.neighbourhood.residual_sum(source, memory.estimate)
        return memory

    def forward(self, source: Tensor, target: Tensor,
                padding: Tensor | None = None) -> DecoderOutput:
        """Run the decoder over whole targets [B, T] of sources [B, S]; `padding` as for `encode`.

        Token t is only an input from position t + 1 on, so any suffix of a target may be arbitrary.
        """
        memory, length = self.encode(source, padding), target.shape[1]
        position = torch.arange(length, device=target.device)
        # [B, T, D]
        x = self.target_embedding.read(F.pad(target[:, :-1], (1, 0)),
                                       position) + self.signal[:length]
        neighbours = deviation = None
        if memory.conditioning is not None:
            x = x + memory.conditioning[:, :length]
        if (self.neighbourhood is not None and memory.estimate is not None and memory.residual_sum
            is not None):
            deviation = F.pad((target - memory.estimate) / RESIDUAL_SCALE, (0, 1))
            buffer = self.neighbourhood.buffer(deviation, memory.residual_sum)
            # [B, T, N]
            neighbours = self.neighbourhood.features(buffer, position.expand(len(target), -1))
            x = x + self.neighbourhood(neighbours, position)
        x = self.dropout(x)
        for layer in self.decoder:
            if self.gradient_checkpointing and self.training:
                x = checkpoint(layer, x, memory.states, memory.mask, use_reentrant=False)
            else:
                x = layer(x, memory.states, memory.mask)
        return DecoderOutput(self.decoder_norm(x), target, neighbours, deviation, memory)

    def scores(self, decoded: DecoderOutput) -> Tensor:
        """Return p1's scores (logits) at every position, [B, T, V] in at least float32."""
        batch, length = decoded.hidden.shape[:2]
        return self.head_scores(
            decoded, torch.arange(length, device=decoded.hidden.device).expand(batch, -1), 0
        )

    def head_scores(self, decoded: DecoderOutput, position: Tensor, head: int) -> Tensor:
        """Return the scores [B, P, V] of head i in [0, K), in at least float32.

        At position t in `position` [B, P], it scores token t + i. Scores of tokens past the end are
        meaningless.
        """
        if head and isinstance(self.heads, RecurrentHeads):
            return self._recurrent_scores(self.heads, decoded, position, head)[:, :, -1]
        if head and isinstance(self.heads, PredictionHeads):
            return self._layer_scores(self.heads, decoded, position, head, 1).squeeze(2)
        near = None if decoded.neighbours is None else take(decoded.neighbours, position)
        vectors = None
        if self.heads is not None and self.heads.first == 0:
            vectors = self._head_conditioning(decoded.memory, position.unsqueeze(-1))
        return self.verify(take(decoded.hidden, position), position, near, decoded.memory.estimate,
                           vectors)

    def verify(
        self, hidden: Tensor, position: Tensor, neighbours: Tensor | None, estimate: Tensor | None,
        vectors: Tensor | None = None,
    ) -> Tensor:
        """Return p1's scores [B, P, V] in at least float32, of decoder outputs [B, P, D] at targets
        [B, P].

        `neighbours` are the neighbour features of the targets [B, P, N], `estimate` is that of the
        memory, and `vectors` [B, P, 1, D] are the head layer's conditioning vectors, only read if
        it holds p1.
        """
        deviation, heads = None, self.heads
        if isinstance(heads, PredictionHeads) and heads.first == 0:
            vectors = None if vectors is None else vectors.flatten(0, 1)
            hidden = heads(hidden.flatten(0, 1), 0, 1, vectors).view(*position.shape, 1, -1)
            if neighbours is not None:
                deviation = heads.linear_part(hidden, neighbours, position, 0)[0].squeeze(2)
            hidden = hidden.squeeze(2)
        elif self.neighbourhood is not None and neighbours is not None:
            deviation = image_priors.extrapolate(self.neighbourhood.direct, neighbours, position)
        return self._finish(hidden, estimate, position, deviation)

    def block_scores(
        self, decoded: DecoderOutput, position: Tensor, chosen: tuple[Tensor, ...] | None = None,
    ) -> Tensor:
        """Return the scores [B, P, heads, V] of all heads in the head layer: p2..pk, and p1 unless
        it is the identity.

        They equal `head_scores` of each head at `position` [B, P]. With `chosen`, indices [N] of
        rows, places and heads, only these scores are computed and returned, [N, V]. Raises
        ValueError if the model has no head layer.
        """
        if self.heads is None:
            raise ValueError("a model of one prediction head has no head layer")
        if isinstance(self.heads, RecurrentHeads):
            return self._recurrent_scores(self.heads, decoded, position, self.heads.count, chosen)
        return self._layer_scores(self.heads, decoded, position, self.heads.first, self.heads.count,
                                  chosen)

    def _recurrent_scores(
        self, heads: RecurrentHeads, decoded: DecoderOutput, position: Tensor, count: int,
        chosen: tuple[Tensor, ...] | None = None,
    ) -> Tensor:
        """Return the scores [B, P, count, V] of the first `count` recurrent heads, or [N, V] of the
        chosen targets."""
        place = position.unsqueeze(-1) + torch.arange(count, device=position.device)
        place = place.clamp(max=decoded.tokens.shape[1] - 1)  # [B, P, count]
        tokens = decoded.tokens.gather(1, place.flatten(1)).view(place.shape)
        hidden, memory = take(decoded.hidden, position), decoded.memory
        states = heads(hidden, self.target_embedding(tokens, place), memory.states, memory.mask)
        return self._finish(states, memory.estimate, place, None, chosen)

    def _layer_scores(
        self, heads: PredictionHeads, decoded: DecoderOutput, position: Tensor, head: int,
        count: int, chosen: tuple[Tensor, ...] | None = None,
    ) -> Tensor:
        """Return the scores [B, P, count, V] of `count` heads from `head` on, or [N, V] of the
        chosen targets."""
        # [B, P, count]
        target = position.unsqueeze(-1) + torch.arange(head, head + count, device=position.device)
        vectors = self._head_conditioning(decoded.memory, target)
        vectors = None if vectors is None else vectors.flatten(0, 1)
        states = heads(take(decoded.hidden, position).flatten(0, 1), head, count,
                       vectors).view(*target.shape, -1)
        deviation: Tensor | None = None
        if decoded.neighbours is not None and decoded.deviation is not None:
            near = take(decoded.neighbours, position)
            deviation, weights = heads.linear_part(states, near, position, head)
            if weights is not None:
                place = position.unsqueeze(-1) + torch.arange(
                    weights.shape[-1], device=position.device)
                place = place.clamp(max=self.config.target_length)
                # [B, P, K - 1]
                earlier = decoded.deviation.gather(1, place.flatten(1)).view(place.shape)
                deviation = deviation + (weights * earlier.unsqueeze(2)).sum(-1)
        return self._finish(states, decoded.memory.estimate, target, deviation, chosen)

    def _head_conditioning(self, memory: Memory, target: Tensor) -> Tensor | None:
        """Return the head layer's conditioning vectors [B, ..., D] of positions `target` [B, ...],
        or None."""
        if memory.conditioning is None or self.heads is None or self.heads.conditioning is None:
            return None
        index = target.clamp(max=self.config.target_length - 1).flatten(1)
        vectors: Tensor = self.heads.conditioning(take(memory.conditioning, index))
        return vectors.view(*target.shape, -1)

    def _finish(
        self, states: Tensor, estimate: Tensor | None, target: Tensor, deviation: Tensor | None,
        chosen: tuple[Tensor, ...] | None = None,
    ) -> Tensor:
        """Return the scores [B, ..., V] of states [B, ..., D], or [N, V] of the N `chosen` states.

        `chosen` has their indices [N]. The states score positions `target`; `deviation` shifts the
        ordinal term from the estimate, in units of RESIDUAL_SCALE. Both are [B, ...].
        """
        projected: Tensor = self.project(states if chosen is None else states[chosen])
        projected = projected.to(torch.promote_types(projected.dtype, torch.float32))
        if not self.config.ordinal_output or estimate is None:
            return projected
        target = target.clamp(max=self.config.target_length - 1)
        centre = estimate.gather(1, target.flatten(1)).view(target.shape)  # [B, ...]
        if deviation is not None:
            centre = centre + deviation * RESIDUAL_SCALE
        mu, slope = image_priors.ordinal_term(projected,
                                              centre if chosen is None else centre[chosen])
        return image_priors.scores_around(mu, slope, projected, self.config)


def take(states: Tensor, position: Tensor) -> Tensor:
    """Gather `states` [B, T, D] at `position` [B, P]: [B, P, D]."""
    return states.gather(1, position.unsqueeze(-1).expand(-1, -1, states.shape[-1]))


class _NoWeights(TorchFunctionMode):
    """Creates weights on the meta device and skips their random initialisation.

    All other tensors are created as usual: on the meta device, the arithmetic of position tables
    would import torch's compiler, which takes seconds.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (),  # noqa: ANN401 -- torch's own
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        kwargs = kwargs or {}
        if func in (torch.empty, torch.zeros):
            kwargs = {**kwargs, "device": "meta"}
        if func in (nn.init.normal_, Tensor.normal_):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def meta_network(config: ModelConfig) -> EncoderDecoder:
    """Return the network of `config` with its weights on the meta device; its other tensors are on
    the CPU."""
    with _NoWeights():
        return EncoderDecoder(config)
