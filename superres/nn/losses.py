"""Training losses of the network, in nats a token."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from superres.config import TrainConfig
from superres.nn.model import Decoded, EncoderDecoder


class TeacherForcingLoss(nn.Module):
    """Cross-entropy of p1 and, where heads are trained, of the proposal heads; the estimate's error beside it.

    A module, so that every weight is used inside one forward call (which distributed training requires).
    """

    def __init__(self, model: EncoderDecoder, settings: TrainConfig) -> None:
        """Wrap `model`, whose weights are this module's only ones."""
        super().__init__()
        self.model = model
        self.settings = settings

    def forward(self, source: Tensor, target: Tensor, draw: int, true_count: int | None = None) -> dict[str, Tensor]:
        """Return the losses of a batch.

        Args:
            source: tokens [B, S].
            target: tokens [B, T].
            draw: key of the random choice of positions or head.
            true_count: the first so many targets are true pictures, the rest the model's own, from which p1 could learn
                nothing but to be surer of itself. None: all are true.

        Returns:
            "total" (to minimise) and its parts: "p1", "heads", "estimate" (grey levels).
        """
        decoded = self.model(source, target)
        settings, losses = self.settings, {}
        true = slice(true_count)
        if settings.trains_base:
            losses["p1"] = F.cross_entropy(self.model.scores(decoded)[true].flatten(0, 1), target[true].flatten())
        total = losses.get("p1", decoded.hidden.new_zeros(()))
        if settings.trains_heads:
            random_head = settings.head_loss == "random-head"
            heads = self._one_head if random_head else self._all_heads
            losses["heads"] = heads(decoded, target, torch.Generator().manual_seed(draw))
            total = total + settings.head_weight * losses["heads"]
        if decoded.memory.estimate is not None and self.model.conditioning is not None and "p1" in losses:
            losses["estimate"] = (decoded.memory.estimate - target)[true].abs().mean()
            total = total + settings.estimate_weight * losses["estimate"]
        return losses | {"total": total}

    def _all_heads(self, decoded: Decoded, target: Tensor, generator: torch.Generator) -> Tensor:
        """Mean loss of all proposal heads on a random subset of positions."""
        length = target.shape[1]
        count = min(self.settings.head_positions, length)
        chosen = torch.randperm(length, generator=generator)[:count].to(target.device)
        position = chosen.expand(len(target), -1).contiguous()
        if count == length:
            position = torch.arange(length, device=target.device).expand(len(target), -1)
        scores = self.model.block_scores(decoded, position)
        first = self.model.config.prediction_heads - scores.shape[2]
        offsets = torch.arange(first, self.model.config.prediction_heads, device=target.device)
        return masked_loss(scores, position.unsqueeze(-1) + offsets, target, self._head_weights(target.device))

    def _one_head(self, decoded: Decoded, target: Tensor, generator: torch.Generator) -> Tensor:
        """Loss of one random head at all positions (section 6 of the paper)."""
        first = 1 if self.model.config.identity_p1 else 0
        head = int(torch.randint(first, self.model.config.prediction_heads, (), generator=generator))
        position = torch.arange(target.shape[1], device=target.device).expand(len(target), -1)
        weight = self._head_weights(target.device)[head - first]
        return weight * masked_loss(self.model.head_scores(decoded, position, head), position + head, target)

    def _head_weights(self, device: torch.device) -> Tensor:
        """Return what each head in the layer counts: decay**(i - 2) for head i, p1 in it as p2; the mean is 1."""
        first = 1 if self.model.config.identity_p1 else 0
        distance = torch.arange(first - 1, self.model.config.prediction_heads - 1, device=device).clamp(min=0)
        weights = self.settings.head_decay**distance
        return weights / weights.mean()


def masked_loss(scores: Tensor, position: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return the mean cross-entropy of `scores` [..., V] for the tokens at `position` [B, ...], if any.

    `weight` (broadcastable to `position`) says how much each counts in the mean; alike if None.
    """
    inside = (position < target.shape[1]) * (1 if weight is None else weight)
    wanted = target.gather(1, position.clamp(max=target.shape[1] - 1).flatten(1)).view(position.shape)
    loss = F.cross_entropy(scores.flatten(0, -2), wanted.flatten(), reduction="none").view(position.shape)
    return (loss * inside).sum() / inside.sum().clamp(min=torch.finfo(loss.dtype).tiny)
