"""Frozen, validated settings of training, with a strict JSON form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from superres.config import Config, require

HEAD_LOSSES = ("all-heads", "random-head", "p1-and-random-head")
HEAD_TARGETS = ("p1", "tokens")
STAGES = ("base", "heads", "distil")


@dataclass(frozen=True)
class TrainConfig(Config):
    """How a stage of training runs.

    Attributes:
        stage: "base" (teacher forcing of p1), "heads" (p2..pk on a warm-started base), or "distil" (as "heads", half of
            each batch being pictures that the model decoded itself, on which p1 is not trained).
        batch_size: examples (images, pairs of sentences) a step over all processes; even in the stage "distil". Text
            makes batches of equal numbers of tokens, of which this is the mean.
        optimizer: "adamw" or "adam" (betas 0.9, 0.98, as published).
        learning_rate: peak rate.
        warmup_steps: steps of linear warm-up before the cosine decay.
        weight_decay: of AdamW.
        clip: largest gradient norm.
        ema_decay: decay of the averaged weights, which are the ones kept.
        steps: where the schedule ends; None if `minutes` decides.
        minutes: training time where the schedule ends, summed over resumes; None if `steps` decides.
        flip: mirror half of the images.
        estimate_weight: weight of the estimate's absolute error, nats a grey level.
        freeze_base: not in "base": train the head layer alone, so that p1 stays exactly the base.
        head_loss: what is minimised in a minibatch. "all-heads": p1's loss plus the mean loss of all heads in the layer
            on a random subset of positions. "random-head": the loss of one of p1..pk, drawn uniformly, which is an
            unbiased estimate of their mean (section 6 of the paper); where p1 is frozen, of p2..pk.
            "p1-and-random-head": p1's loss in every minibatch plus that of one head in the layer, which weighs p1 as
            much as all other heads together. Both sums lack p1's loss on a frozen base.
        head_positions: size of that subset.
        head_target: what heads learn at a position: "p1", the distribution that p1 itself has there once it knows all
            tokens before (what they are verified against), or "tokens", the true token (as published).
        head_weight: weight of the proposal heads' loss beside p1's.
        head_decay: head i counts head_decay**(i - 2) in that mean: a far head matters only if all nearer ones are
            right. 1 weighs all alike.
        precision: "bf16" autocast or "no".
        gradient_checkpointing: compute decoder layers again in the backward pass, for large networks on little memory.
        seed: of the weights, the order of examples and every random choice.
        label_smoothing: share of p1's target that is spread over all tokens.
        teacher: checkpoint (name or folder) whose p1 it is that p1 learns from, by its distributions at every position;
            None learns the true tokens. So is a draft model made (Zhou et al. 2024, "DistillSpec").
    """

    stage: Literal["base", "heads", "distil"] = "base"
    batch_size: int = 4
    optimizer: Literal["adamw", "adam"] = "adamw"
    learning_rate: float = 1.5e-3
    warmup_steps: int = 200
    weight_decay: float = 0.01
    clip: float = 1.0
    ema_decay: float = 0.999
    steps: int | None = None
    minutes: float | None = None
    flip: bool = True
    estimate_weight: float = 0.02
    freeze_base: bool = False
    head_loss: Literal["all-heads", "random-head", "p1-and-random-head"] = "all-heads"
    head_positions: int = 192
    head_target: Literal["p1", "tokens"] = "p1"
    head_weight: float = 1.0
    head_decay: float = 1.0
    precision: Literal["bf16", "no"] = "bf16"
    gradient_checkpointing: bool = False
    seed: int = 0
    label_smoothing: float = 0.0
    teacher: str | None = None

    def __post_init__(self) -> None:
        for name in ("batch_size", "head_positions"):
            require(getattr(self, name) >= 1, f"{name} must be at least 1, not {getattr(self, name)!r}")
        for name in ("learning_rate", "clip"):
            require(getattr(self, name) > 0, f"{name} must be positive, not {getattr(self, name)!r}")
        require(self.stage in STAGES, f"stage must be one of {', '.join(STAGES)}, not {self.stage!r}")
        require(self.stage != "distil" or self.batch_size % 2 == 0,
                f"batch_size must be even in stage distil, half of it own pictures; not {self.batch_size}")
        require(0 <= self.ema_decay < 1, f"ema_decay must be in [0, 1), not {self.ema_decay!r}")
        require(0 <= self.label_smoothing < 1, f"label_smoothing must be in [0, 1), not {self.label_smoothing!r}")
        require(0 < self.head_decay <= 1, f"head_decay must be in (0, 1], not {self.head_decay!r}")
        limit = self.steps if self.minutes is None else self.minutes
        require((self.steps is None) != (self.minutes is None),
                "give the length of training as either steps or minutes")
        require(limit is not None and limit > 0, f"the length of training must be positive, not {limit!r}")
        require(self.head_loss in HEAD_LOSSES,
                f"head_loss must be one of {', '.join(HEAD_LOSSES)}, not {self.head_loss!r}")
        require(self.head_target in HEAD_TARGETS,
                f"head_target must be one of {', '.join(HEAD_TARGETS)}, not {self.head_target!r}")
        require(self.teacher is None or (self.stage == "base" and not self.label_smoothing),
                f"a teacher is for the stage base, without label_smoothing, not for {self.stage}")
        require(self.precision in ("bf16", "no"), f"precision must be bf16 or no, not {self.precision!r}")

    @property
    def trains_heads(self) -> bool:
        """Whether the prediction heads p2..pk are trained."""
        return self.stage != "base"

    @property
    def trains_base(self) -> bool:
        """Whether p1 is trained."""
        return not (self.trains_heads and self.freeze_base)
