"""The encoder-decoder network, scoring whole sequences by teacher forcing; `superres.nn.engines` decodes with it."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, fields, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from superres.config import LONGEST, ModelConfig
from superres.nn.attention import hidden_mask
from superres.nn.heads import PredictionHeads
from superres.nn.image_priors import (
    RESIDUAL_SCALE,
    AlignedConditioning,
    NumericNeighbourhood,
    enlarge_source,
    extrapolate,
    ordinal_scores,
    to_raster,
)
from superres.nn.layers import DecoderLayer, EncoderLayer, TiedProjection, TokenEmbedding, position_signal
from superres.nn.recurrent import RecurrentHeads


@dataclass
class Memory:
    """The encoder's output for the decoder, one row per source.

    Attributes:
        states: encoder states [B, S, D].
        mask: added to cross-attention scores [B, 1, 1, S]; None if no source is padded.
        conditioning: vectors added to the decoder's input [B, T, D], or None.
        estimate: intensities expected before decoding [B, T] in grey levels, or None.
        residual_sum: what the deviations in each cell must add up to [B, S], in units of RESIDUAL_SCALE; or None.
        position_table: position signal plus conditioning [B, T, D], from an encoder that returns it in place of
            `conditioning`; or None.
        head_table: the head layer's conditioning vectors [B, T, D], from such an encoder; or None.
        longest: largest number of target tokens of a text that ends, int64 [B]; None for images.
        tokens: source tokens, int64 [B, S], from an encoder whose sessions make shortlists of them; or None.
    """

    states: Tensor
    mask: Tensor | None = None
    conditioning: Tensor | None = None
    estimate: Tensor | None = None
    residual_sum: Tensor | None = None
    position_table: Tensor | None = None
    head_table: Tensor | None = None
    longest: Tensor | None = None
    tokens: Tensor | None = None

    def hidden(self, dtype: torch.dtype) -> Tensor:
        """Return the mask added to cross-attention scores [B, 1, 1, S] as `dtype`; zeros if no source is padded."""
        added = self.states.new_zeros(len(self.states), 1, 1, self.states.shape[1], dtype=dtype)
        return added if self.mask is None else added.copy_(self.mask)

    def __getitem__(self, rows: Tensor) -> Memory:
        """Return a memory of the rows `rows`, int64 [R]; a row may occur several times."""
        parts = ((field.name, getattr(self, field.name)) for field in fields(self))
        return replace(self, **{name: part[rows] for name, part in parts if part is not None})

    def repeat(self, copies: int) -> Memory:
        """Return a memory with every row repeated `copies` times in succession."""
        if copies == 1:
            return self
        return self[torch.arange(len(self.states), device=self.states.device).repeat_interleave(copies)]

    def rounded_up(self, multiple: int) -> Memory:
        """Pad the source positions to a multiple of `multiple`; the mask hides the padding."""
        spare = -self.states.shape[1] % multiple
        if not spare:
            return self
        mask = self.mask if self.mask is not None else self.states.new_zeros(len(self.states), 1, 1, 1).expand(
            -1, -1, -1, self.states.shape[1])
        return replace(self, states=F.pad(self.states, (0, 0, 0, spare)),
                       mask=F.pad(mask, (0, spare), value=float("-inf")))


def longest_targets(source_tokens: Tensor, config: ModelConfig) -> Tensor:
    """Return `ModelConfig.longest_target` of the numbers of tokens `source_tokens` [B], int64 [B]."""
    return (source_tokens * LONGEST[0] + LONGEST[1]).clamp_(max=config.target_length)


@dataclass
class DecoderOutput:
    """Teacher-forced decoder output.

    Attributes:
        hidden: [B, T, D]; the state at t scores token t.
        tokens: the target [B, T].
        neighbours: neighbour features of each target [B, T, N], or None.
        deviation: target minus estimate [B, T + 1] in units of RESIDUAL_SCALE, entry T is 0; or None.
        memory: the encoder's output that the decoder attended to.
    """

    hidden: Tensor
    tokens: Tensor
    neighbours: Tensor | None
    deviation: Tensor | None
    memory: Memory


class EncoderDecoder(nn.Module):
    """Image Transformer with local 1-D attention and k prediction heads (Parmar et al. 2018; Stern et al. 2018)."""

    signal: Tensor
    source_signal: Tensor

    def __init__(self, config: ModelConfig) -> None:
        """Build the network with fresh weights from torch's global generator."""
        super().__init__()
        self.config = config
        self.gradient_checkpointing = False
        width = config.width
        source_channels = config.source_shape[-1] if len(config.source_shape) == 3 else 1
        tied = config.tied_embeddings
        self.source_embedding = None if tied else TokenEmbedding(config.vocabulary, source_channels, width)
        self.target_embedding = TokenEmbedding(config.vocabulary, config.channels, width)
        self.register_buffer("source_signal", position_signal(config.source_shape, width), persistent=False)
        self.register_buffer("signal", position_signal(config.target_shape, width), persistent=False)
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.decoder_layers))
        final = config.norm == "pre"
        self.encoder_norm = nn.LayerNorm(width) if final else nn.Identity()
        self.decoder_norm = nn.LayerNorm(width) if final else nn.Identity()
        self.dropout = nn.Dropout(config.dropout)
        self.conditioning = AlignedConditioning(config) if config.aligned_conditioning else None
        self.neighbourhood = NumericNeighbourhood(config) if config.numeric_neighbourhood else None
        self.project = TiedProjection(self.target_embedding.table) if tied else nn.Linear(width, config.outputs)
        if config.ordinal_output:
            nn.init.zeros_(self.project.weight)
            nn.init.zeros_(self.project.bias)
        has_layer = config.prediction_heads > 1 or (config.one_head_layer and not config.identity_p1)
        layer = RecurrentHeads if config.head_layer == "recurrent" else PredictionHeads
        self.heads: PredictionHeads | RecurrentHeads | None = layer(config) if has_layer else None

    @property
    def has_estimate(self) -> bool:
        """Whether the enlarged source estimates the target: both are images with the same number of channels."""
        source, target = self.config.source_shape, self.config.target_shape
        return len(source) == len(target) == 3 and source[-1] == target[-1]

    def encode(self, source: Tensor, padding: Tensor | None = None, half: bool = False) -> Memory:
        """Encode sources.

        Args:
            source: tokens [B, S], int64 in [0, V).
            padding: bool [B, S], True at padding; None without padding.
            half: compute the aligned conditioning, which takes most of the time, in bfloat16.

        Returns:
            The memory.
        """
        position = torch.arange(source.shape[1], device=source.device)
        mask = None if padding is None else hidden_mask(~padding)[:, None, None, :]
        embed = self.source_embedding or self.target_embedding
        x = self.dropout(embed(source, position) + self.source_signal[: source.shape[1]])  # [B, S, D]
        for layer in self.encoder:
            x = layer(x, mask)
        memory = Memory(self.encoder_norm(x), mask)
        if len(self.config.source_shape) == 1:
            tokens = torch.full_like(source[:, 0], source.shape[1]) if padding is None else (~padding).sum(1)
            memory.longest = longest_targets(tokens, self.config)
        if self.has_estimate:
            large = enlarge_source(source, self.config).to(self.signal.dtype)  # [B, channels, rows, columns]
            memory.estimate = to_raster(large)
            if self.conditioning is not None:
                # Without `half`, autocast is left as it is, since training may have enabled it.
                with torch.autocast(source.device.type, torch.bfloat16) if half else nullcontext():
                    memory.conditioning, memory.estimate = self.conditioning(memory.states, large)
                if half:
                    memory.conditioning = memory.conditioning.to(memory.states.dtype)
            if self.neighbourhood is not None:
                memory.residual_sum = self.neighbourhood.residual_sum(source, memory.estimate)
        return memory

    def forward(self, source: Tensor, target: Tensor, padding: Tensor | None = None) -> DecoderOutput:
        """Run the decoder over whole targets (teacher forcing).

        Args:
            source: tokens [B, S].
            target: tokens [B, T]; token t is only an input from position t + 1 on, so any suffix may be arbitrary.
            padding: as in `encode`.

        Returns:
            The decoder's output at every position.
        """
        memory = self.encode(source, padding)
        length = target.shape[1]
        position = torch.arange(length, device=target.device)
        x = self.target_embedding.read(F.pad(target[:, :-1], (1, 0)), position) + self.signal[:length]  # [B, T, D]
        neighbours = deviation = None
        if memory.conditioning is not None:
            x = x + memory.conditioning[:, :length]
        if self.neighbourhood is not None and memory.estimate is not None and memory.residual_sum is not None:
            deviation = F.pad((target - memory.estimate) / RESIDUAL_SCALE, (0, 1))
            buffer = self.neighbourhood.buffer(deviation, memory.residual_sum)
            neighbours = self.neighbourhood.features(buffer, position.expand(len(target), -1))  # [B, T, N]
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
        position = torch.arange(length, device=decoded.hidden.device).expand(batch, -1)
        return self.head_scores(decoded, position, 0)

    def head_scores(self, decoded: DecoderOutput, position: Tensor, head: int) -> Tensor:
        """Return one head's scores: head i (0-based) at position t scores token t + i.

        Args:
            decoded: output of `forward`.
            position: [B, P], positions t of p1's targets.
            head: index in [0, K).

        Returns:
            Scores [B, P, V] in at least float32. Scores of targets past the end are meaningless; mask them.
        """
        if head and isinstance(self.heads, RecurrentHeads):
            return self._recurrent_scores(self.heads, decoded, position, head)[:, :, -1]
        if head and isinstance(self.heads, PredictionHeads):
            return self._layer_scores(self.heads, decoded, position, head, 1).squeeze(2)
        hidden, near, vectors = take(decoded.hidden, position), None, None
        if decoded.neighbours is not None:
            near = take(decoded.neighbours, position)
        if self.heads is not None and self.heads.first == 0:
            vectors = self._head_conditioning(decoded.memory, position.unsqueeze(-1))
        return self.verify(hidden, position, near, decoded.memory.estimate, vectors)

    def verify(
        self, hidden: Tensor, position: Tensor, neighbours: Tensor | None, estimate: Tensor | None,
        vectors: Tensor | None = None,
    ) -> Tensor:
        """Return p1's scores [B, P, V] in at least float32.

        Args:
            hidden: decoder outputs [B, P, D].
            position: their targets [B, P].
            neighbours: neighbour features of the targets [B, P, N], or None.
            estimate: as `Memory.estimate`.
            vectors: the head layer's conditioning vectors of the targets [B, P, 1, D], or None; only read if the head
                layer holds p1.
        """
        deviation, heads = None, self.heads
        if isinstance(heads, PredictionHeads) and heads.first == 0:
            vectors = None if vectors is None else vectors.flatten(0, 1)
            hidden = heads(hidden.flatten(0, 1), 0, 1, vectors).view(*position.shape, 1, -1)
            if neighbours is not None:
                deviation = heads.linear_part(hidden, neighbours, position, 0)[0].squeeze(2)
            hidden = hidden.squeeze(2)
        elif self.neighbourhood is not None and neighbours is not None:
            deviation = extrapolate(self.neighbourhood.direct, neighbours, position)
        return self._finish(hidden, estimate, position, deviation)

    def block_scores(self, decoded: DecoderOutput, position: Tensor, chosen: Tensor | None = None) -> Tensor:
        """Return the scores of all heads in the head layer: p2..pk, and p1 where it is not the identity.

        Args:
            decoded: output of `forward`.
            position: [B, P], positions t of p1's targets.
            chosen: the scores to compute, bool [B, P, heads]; all if None.

        Returns:
            Scores [B, P, heads, V], equal to `head_scores` of each head; or [N, V] of the N chosen targets in order.

        Raises:
            ValueError: the model has no head layer.
        """
        if self.heads is None:
            raise ValueError("a model of one prediction head has no head layer")
        if isinstance(self.heads, RecurrentHeads):
            return self._recurrent_scores(self.heads, decoded, position, self.heads.count, chosen)
        return self._layer_scores(self.heads, decoded, position, self.heads.first, self.heads.count, chosen)

    def _recurrent_scores(
        self, heads: RecurrentHeads, decoded: DecoderOutput, position: Tensor, count: int, chosen: Tensor | None = None,
    ) -> Tensor:
        """Return the scores [B, P, count, V] of the first `count` recurrent heads, or [N, V] of the chosen targets."""
        place = position.unsqueeze(-1) + torch.arange(count, device=position.device)
        place = place.clamp(max=decoded.tokens.shape[1] - 1)  # [B, P, count]
        tokens = decoded.tokens.gather(1, place.flatten(1)).view(place.shape)
        hidden, memory = take(decoded.hidden, position), decoded.memory
        states = heads(hidden, self.target_embedding(tokens, place), memory.states, memory.mask)
        return self._finish(states, memory.estimate, place, None, chosen)

    def _layer_scores(
        self, heads: PredictionHeads, decoded: DecoderOutput, position: Tensor, head: int, count: int,
        chosen: Tensor | None = None,
    ) -> Tensor:
        """Return the scores [B, P, count, V] of `count` heads from `head` on, or [N, V] of the chosen targets."""
        target = position.unsqueeze(-1) + torch.arange(head, head + count, device=position.device)  # [B, P, count]
        vectors = self._head_conditioning(decoded.memory, target)
        vectors = None if vectors is None else vectors.flatten(0, 1)
        states = heads(take(decoded.hidden, position).flatten(0, 1), head, count, vectors).view(*target.shape, -1)
        deviation: Tensor | None = None
        if decoded.neighbours is not None and decoded.deviation is not None:
            near = take(decoded.neighbours, position)
            deviation, weights = heads.linear_part(states, near, position, head)
            if weights is not None:
                place = position.unsqueeze(-1) + torch.arange(weights.shape[-1], device=position.device)
                place = place.clamp(max=self.config.target_length)
                earlier = decoded.deviation.gather(1, place.flatten(1)).view(place.shape)  # [B, P, K - 1]
                deviation = deviation + (weights * earlier.unsqueeze(2)).sum(-1)
        return self._finish(states, decoded.memory.estimate, target, deviation, chosen)

    def _head_conditioning(self, memory: Memory, target: Tensor) -> Tensor | None:
        """Return the head layer's conditioning vectors [B, ..., D] of positions `target` [B, ...], or None."""
        if memory.conditioning is None or self.heads is None or self.heads.conditioning is None:
            return None
        index = target.clamp(max=self.config.target_length - 1).flatten(1)
        vectors: Tensor = self.heads.conditioning(take(memory.conditioning, index))
        return vectors.view(*target.shape, -1)

    def _finish(
        self, states: Tensor, estimate: Tensor | None, target: Tensor, deviation: Tensor | None,
        chosen: Tensor | None = None,
    ) -> Tensor:
        """Return the scores of states.

        Args:
            states: [B, ..., D].
            estimate: as `Memory.estimate`.
            target: positions that the states score [B, ...].
            deviation: shift of the ordinal term from the estimate [B, ...], in units of RESIDUAL_SCALE; or None.
            chosen: the states to score, bool [B, ...]; all if None.

        Returns:
            [B, ..., V], or [N, V] of the N chosen states.
        """
        projected: Tensor = self.project(states if chosen is None else states[chosen])
        projected = projected.to(torch.promote_types(projected.dtype, torch.float32))
        if not self.config.ordinal_output or estimate is None:
            return projected
        target = target.clamp(max=self.config.target_length - 1)
        centre = estimate.gather(1, target.flatten(1)).view(target.shape)  # [B, ...]
        if deviation is not None:
            centre = centre + deviation * RESIDUAL_SCALE
        centre = centre if chosen is None else centre[chosen]
        return ordinal_scores(projected, centre, self.config)


def take(states: Tensor, position: Tensor) -> Tensor:
    """Gather `states` [B, T, D] at `position` [B, P]: [B, P, D]."""
    return states.gather(1, position.unsqueeze(-1).expand(-1, -1, states.shape[-1]))
