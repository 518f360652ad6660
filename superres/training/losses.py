"""Training losses of the network, in nats per token."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from superres.nn.model import DecoderOutput, EncoderDecoder
from superres.training.stage import Stage

IGNORED = -100
"""Target token that the loss ignores."""


class TeacherForcingLoss(nn.Module):
    """The sum of p1's cross-entropy, the loss of the proposal heads if they are trained, and the
    estimate's error.

    It is a module because distributed training requires that every weight is used inside one
    forward call. The weights of `model` are its only ones. p1 learns from `teacher`
    (`Stage.teacher`).
    """

    def __init__(self, model: EncoderDecoder, settings: Stage,
                 teacher: EncoderDecoder | None = None) -> None:
        super().__init__()
        self.model, self.settings = model, settings
        self.teachers = (teacher,)  # in a tuple, so that the teacher is not a submodule
        self.distance_weight = settings.distance_weight if model.config.ordinal_output else 0.0
        # As published, p1 and the heads of its layer have the same loss.
        self.head_smoothing = 0.0 if model.config.identity_p1 else settings.label_smoothing

    def train(self, mode: bool = True) -> TeacherForcingLoss:
        """Set the mode. A frozen base has no dropout, so that heads train on the states that
        decoding computes."""
        super().train(mode)
        self.model.train(mode and self.settings.trains_base)
        return self

    def forward(
        self, source: Tensor, target: Tensor, draw: int, true_count: int | None = None,
        padding: Tensor | None = None, lengths: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Return "total", the loss of a `TokenBatch` to minimise, and its parts: "p1", "own",
        "heads", "estimate".

        "own" is p1's divergence from the teacher on targets that the model decoded itself. p1 does
        not learn their tokens, which would only make its distributions narrower. "estimate" is in
        grey levels. `draw` is the key of the random choice of positions or head.
        """
        decoded = self.model(source, target, padding)
        settings, losses, head = self.settings, {}, self.drawn_head(draw)
        with_p1, with_heads = ((settings.trains_base, settings.trains_heads) if head is None
                               else (head == 0, head > 0))
        from_p1 = with_heads and settings.head_target == "p1"
        scores = self.model.scores(decoded) if with_p1 or from_p1 else None
        if with_p1 and scores is not None:
            for name, rows, teacher in self._lessons(true_count):
                parts = (part if part is None else part[rows] for part in (padding, lengths))
                losses[name] = self._first(teacher, scores[rows], source[rows], target[rows],
                                           *parts)
        total = sum(losses.values(), decoded.hidden.new_zeros(()))

        # the heads', of p1's distributions or of the tokens; and the estimate's
        if with_heads:
            wanted = scores.detach() if from_p1 and scores is not None else target
            losses["heads"] = self._all_heads(decoded, wanted, draw, lengths) if head is None else \
                self._one_head(decoded, wanted, head, lengths)
            total = total + settings.head_weight * losses["heads"]
        if (decoded.memory.estimate is not None and self.model.conditioning is not None
            and settings.trains_base):
            losses["estimate"] = (decoded.memory.estimate - target)[:true_count].abs().mean()
            total = total + settings.estimate_weight * losses["estimate"]
        return losses | {"total": total}

    def drawn_head(self, draw: int) -> int | None:
        """Return the head (0-based) drawn uniformly with the key `draw`; None if all heads are
        trained.

        Head 0 is only drawn if p1 is trained.
        """
        settings, network = self.settings, self.model.config
        if not settings.trains_heads or settings.head_loss == "all-heads":
            return None
        first = 0 if settings.trains_base or not network.identity_p1 else 1
        return int(torch.randint(first, network.prediction_heads, (),
                                 generator=torch.Generator().manual_seed(draw)))

    def _lessons(self, true_count: int | None) -> list[tuple[str, slice, EncoderDecoder | None]]:
        """Return the parts of p1's loss: name, rows of the batch, and the teacher of these rows or
        None."""
        teacher, = self.teachers
        true, own = slice(true_count), slice(true_count, None)
        if self.settings.stage != "distil":
            return [("p1", true, teacher)]
        return [("p1", true, None), *([] if teacher is None else [("own", own, teacher)])]

    def _first(
        self, teacher: EncoderDecoder | None, scores: Tensor, source: Tensor, target: Tensor,
        padding: Tensor | None, lengths: Tensor | None,
    ) -> Tensor:
        """Return p1's loss: the cross-entropy, or the divergence from the teacher's
        distributions."""
        if teacher is not None:
            position, inside = inside_rows(torch.arange(target.shape[1]), target, lengths)
            with torch.no_grad():
                wanted = teacher.scores(teacher(source, target, padding))
            return mean_loss(scores[inside], position, inside, wanted)
        if lengths is not None:
            place = torch.arange(target.shape[1], device=target.device)
            target = target.masked_fill(place >= lengths.unsqueeze(1), IGNORED)
        return F.cross_entropy(scores.flatten(0, 1), target.flatten(), ignore_index=IGNORED,
                               label_smoothing=self.settings.label_smoothing)

    def _all_heads(self, decoded: DecoderOutput, wanted: Tensor, draw: int,
                   lengths: Tensor | None) -> Tensor:
        """Return the mean loss of all proposal heads at a random subset of positions; `wanted` as
        in `mean_loss`."""
        length = wanted.shape[1]
        position = torch.arange(length)
        if self.settings.head_positions < length:
            order = torch.randperm(length, generator=torch.Generator().manual_seed(draw))
            position = order[: self.settings.head_positions]
        first = 1 if self.model.config.identity_p1 else 0  # p1 may be a head of the layer
        target = position.unsqueeze(-1) + torch.arange(first, self.model.config.prediction_heads)
        target, inside = inside_rows(target, wanted, lengths)
        scores = self.model.block_scores(decoded, target[:, :, 0] - first, inside)
        return mean_loss(scores, target, inside, wanted, self.distance_weight, self.head_smoothing)

    def _one_head(self, decoded: DecoderOutput, wanted: Tensor, head: int,
                  lengths: Tensor | None) -> Tensor:
        """Return the loss of one head at all positions; `wanted` as in `mean_loss`."""
        target, inside = inside_rows(torch.arange(wanted.shape[1]) + head, wanted, lengths)
        scores = self.model.head_scores(decoded, target - head, head)
        return mean_loss(scores[inside], target, inside, wanted, self.distance_weight,
                         self.head_smoothing)


def inside_rows(
    position: Tensor, wanted: Tensor, lengths: Tensor | None = None,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return target positions for the rows of `wanted` [B, T, ...], and indices [N] of those before
    the rows' ends.

    `position` [...] on the CPU has the positions of one row; the result [B, ...] is on the device
    of `wanted`. The rows end at `lengths` [B], or at T. In the latter case no value is read from a
    GPU, which would have to be waited for.
    """
    device, (batch, length) = wanted.device, wanted.shape[:2]
    every = position.to(device, non_blocking=True).expand(batch, *position.shape)
    if lengths is not None:
        return every, (every < lengths.view(-1, *[1] * position.dim())).nonzero(as_tuple=True)
    inside = [index.to(device, non_blocking=True)
              for index in (position < length).nonzero(as_tuple=True)]
    row = torch.arange(batch, device=device).unsqueeze(1).expand(-1, len(inside[0]))  # [B, N / B]
    return every, (row.flatten(), *(index.expand(batch, -1).flatten() for index in inside))


def mean_loss(
    scores: Tensor, position: Tensor, inside: tuple[Tensor, ...], wanted: Tensor,
    distance_weight: float = 0.0, label_smoothing: float = 0.0,
) -> Tensor:
    """Return the mean loss over targets; 0 without any target.

    Args:
        scores: scores of the N targets inside their rows, in order [N, V].
        position: target positions [B, ...].
        inside: indices [N] of the scored targets.
        wanted: tokens [B, T] for the cross-entropy; or scores [B, T, V] of the distributions to
            learn, for the Kullback-Leibler divergence from them.
        distance_weight: weight of log(1 + |difference of the expected intensities|) beside the
            divergence.
        label_smoothing: share of a token that is spread over all tokens, in [0, 1).
    """
    found = wanted[inside[0], position[inside]]
    if wanted.dim() == 2:
        loss = F.cross_entropy(scores, found, reduction="none", label_smoothing=label_smoothing)
    else:
        given, known = scores.log_softmax(-1), found.log_softmax(-1)
        loss = F.kl_div(given, known, reduction="none", log_target=True).sum(-1)
        if distance_weight:
            intensity = torch.arange(scores.shape[-1], dtype=scores.dtype, device=scores.device)
            loss = loss + distance_weight * ((given.exp() - known.exp())
                                             * intensity).sum(-1).abs().log1p()
    return loss.sum() / max(len(loss), 1)
