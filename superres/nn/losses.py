"""Training losses of the network, in nats a token."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from superres.nn.model import Decoded, EncoderDecoder, take
from superres.train_config import TrainConfig

IGNORED = -100
"""Target token that does not count."""


class TeacherForcingLoss(nn.Module):
    """Cross-entropy of p1, the proposal heads' loss where they are trained, and the estimate's error beside them.

    A module, so that every weight is used inside one forward call (which distributed training requires).
    """

    def __init__(self, model: EncoderDecoder, settings: TrainConfig, teacher: EncoderDecoder | None = None) -> None:
        """Wrap `model`, whose weights are this module's only ones; p1 learns from `teacher` if there is one."""
        super().__init__()
        self.model = model
        self.settings = settings
        self.teachers = (teacher,)  # in a tuple it is no part of the module

    def forward(
        self, source: Tensor, target: Tensor, draw: int, true_count: int | None = None,
        padding: Tensor | None = None, lengths: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Return the losses of a batch.

        Args:
            source: tokens [B, S].
            target: tokens [B, T].
            draw: key of the random choice of positions or head.
            true_count: the first so many targets are true pictures, the rest the model's own, from which p1 could learn
                nothing but to be surer of itself. None: all are true.
            padding: bool [B, S], True where a source is padding; None where nothing is.
            lengths: tokens of each target [B], what follows being padding, which does not count; None where nothing is.

        Returns:
            "total" (to minimise) and its parts: "p1", "heads", "estimate" (grey levels).
        """
        decoded = self.model(source, target, padding)
        settings, losses = self.settings, {}
        true = slice(true_count)
        scores = None
        if settings.trains_base or settings.head_target == "p1":
            scores = self.model.scores(decoded)
        if settings.trains_base and scores is not None:
            losses["p1"] = self._first(scores[true], source[true], target[true], *(
                part if part is None else part[true] for part in (padding, lengths)))
        total = losses.get("p1", decoded.hidden.new_zeros(()))
        if settings.trains_heads:
            random_head = settings.head_loss == "random-head"
            heads = self._one_head if random_head else self._all_heads
            wanted = scores.detach() if scores is not None and settings.head_target == "p1" else target
            losses["heads"] = heads(decoded, wanted, torch.Generator().manual_seed(draw), lengths)
            total = total + settings.head_weight * losses["heads"]
        if decoded.memory.estimate is not None and self.model.conditioning is not None and "p1" in losses:
            losses["estimate"] = (decoded.memory.estimate - target)[true].abs().mean()
            total = total + settings.estimate_weight * losses["estimate"]
        return losses | {"total": total}

    def _first(
        self, scores: Tensor, source: Tensor, target: Tensor, padding: Tensor | None, lengths: Tensor | None
    ) -> Tensor:
        """Return p1's loss: its cross-entropy, or its divergence from the teacher's distributions."""
        teacher = self.teachers[0]
        if teacher is not None:
            with torch.no_grad():
                wanted = teacher.scores(teacher(source, target, padding))
            position = torch.arange(target.shape[1], device=target.device).expand(len(target), -1)
            return masked_loss(scores, position, wanted, lengths=lengths)
        wanted = target if lengths is None else mark_padding(target, lengths)
        return F.cross_entropy(scores.flatten(0, 1), wanted.flatten(), ignore_index=IGNORED,
                               label_smoothing=self.settings.label_smoothing)

    def _all_heads(
        self, decoded: Decoded, wanted: Tensor, generator: torch.Generator, lengths: Tensor | None
    ) -> Tensor:
        """Mean loss of all proposal heads on a random subset of positions; `wanted` as in `masked_loss`."""
        batch, length = wanted.shape[:2]
        count = min(self.settings.head_positions, length)
        position = torch.arange(length, device=wanted.device)
        if count < length:
            position = torch.randperm(length, generator=generator)[:count].to(wanted.device)
        position = position.expand(batch, -1)
        scores = self.model.block_scores(decoded, position)
        first = self.model.config.prediction_heads - scores.shape[2]
        offsets = torch.arange(first, self.model.config.prediction_heads, device=wanted.device)
        weight = self._head_weights(wanted.device)
        return masked_loss(scores, position.unsqueeze(-1) + offsets, wanted, weight, lengths)

    def _one_head(
        self, decoded: Decoded, wanted: Tensor, generator: torch.Generator, lengths: Tensor | None
    ) -> Tensor:
        """Loss of one random head at all positions (section 6 of the paper)."""
        first = 1 if self.model.config.identity_p1 else 0
        head = int(torch.randint(first, self.model.config.prediction_heads, (), generator=generator))
        position = torch.arange(wanted.shape[1], device=wanted.device).expand(len(wanted), -1)
        weight = self._head_weights(wanted.device)[head - first]
        scores = self.model.head_scores(decoded, position, head)
        return weight * masked_loss(scores, position + head, wanted, lengths=lengths)

    def _head_weights(self, device: torch.device) -> Tensor:
        """Return what each head in the layer counts: decay**(i - 2) for head i, p1 in it as p2; the mean is 1."""
        first = 1 if self.model.config.identity_p1 else 0
        distance = torch.arange(first - 1, self.model.config.prediction_heads - 1, device=device).clamp(min=0)
        weights = self.settings.head_decay**distance
        return weights / weights.mean()


def mark_padding(target: Tensor, lengths: Tensor) -> Tensor:
    """Return `target` [B, T] with IGNORED past the `lengths` [B]."""
    return target.masked_fill(torch.arange(target.shape[1], device=target.device) >= lengths.unsqueeze(1), IGNORED)


def masked_loss(
    scores: Tensor, position: Tensor, wanted: Tensor, weight: Tensor | None = None, lengths: Tensor | None = None
) -> Tensor:
    """Return the mean loss of `scores` [..., V] at `position` [B, ...], of which those past the end do not count.

    Args:
        scores: of the tokens at `position`.
        position: target positions.
        wanted: tokens [B, T], for the cross-entropy; or scores [B, T, V] of the distributions to learn, for the
            Kullback-Leibler divergence from them.
        weight: how much each counts in the mean, broadcastable to `position`; alike if None.
        lengths: where each row of `wanted` ends [B]; T if None.
    """
    length = wanted.shape[1]
    end = length if lengths is None else lengths.view(-1, *[1] * (position.dim() - 1))
    inside = (position < end) * (1 if weight is None else weight)
    place = position.clamp(max=length - 1).flatten(1)
    if wanted.dim() == 2:
        tokens = wanted.gather(1, place).flatten()
        loss = F.cross_entropy(scores.flatten(0, -2), tokens, reduction="none").view(position.shape)
    else:
        expected = take(wanted, place).view(scores.shape).log_softmax(-1)
        loss = F.kl_div(scores.log_softmax(-1), expected, reduction="none", log_target=True).sum(-1)
    return (loss * inside).sum() / inside.sum().clamp(min=torch.finfo(loss.dtype).tiny)
