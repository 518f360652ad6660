"""Frozen, validated settings of training, with a strict JSON form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from superres.config import Config, require

HEAD_LOSSES = ("all-heads", "random-head")
HEAD_TARGETS = ("p1", "tokens")
OPTIMIZERS = ("adamw", "adam", "muon")
STAGES = ("base", "heads", "distil")


@dataclass(frozen=True)
class TrainConfig(Config):
    """Settings of a training stage.

    Attributes:
        stage: "base" (teacher forcing of p1), "heads" (p2..pk on a warm-started base), or "distil" (as "heads", but
            half of each batch are images that the model decoded itself, on which p1 is not trained).
        batch_size: examples (images, sentence pairs) per step over all processes; even in the stage "distil". For text,
            it is the mean, since batches have similar numbers of tokens.
        optimizer: "adamw"; "adam" (betas 0.9, 0.98, as in the paper); or "muon", which gives the matrices of linear
            layers steps along orthogonal directions (Jordan et al. 2024, "Muon"), as long as AdamW's (Liu et al. 2025,
            "Muon is Scalable for LLM Training"), and leaves all other weights to AdamW.
        learning_rate: peak learning rate.
        warmup_steps: steps of linear warm-up before the cosine decay.
        weight_decay: weight decay of AdamW and Muon.
        clip: largest gradient norm.
        ema_decay: decay of the averaged weights, in [0, 1); the checkpoint holds the averaged weights.
        steps: length of the schedule in steps; None if `minutes` is given.
        minutes: length of the schedule in minutes of training time, summed over resumes; None if `steps` is given.
        endless: train until stopped; `steps` and `minutes` are None. The learning rate stays at its peak after the
            warm-up, and the averaged weights take the place of the decay (Haegele et al. 2024, "Scaling Laws and
            Compute-Optimal Training Beyond Fixed Training Durations").
        crop_share: share of random crops among the true images, in [0, 1]; the others are standard crops. Needs faces
            with larger pictures. None: half if the data has them, otherwise 0.
        flip: mirror half of the images.
        estimate_weight: weight of the estimate's mean absolute error, in nats per grey level.
        freeze_base: stages other than "base": train only the head layer, so that p1 stays exactly the base model.
        head_loss: the loss of a minibatch. "all-heads": p1's loss plus the mean loss of all heads in the layer at a
            random subset of positions. "random-head": the loss of one of p1..pk, drawn uniformly, which is an unbiased
            estimate of their mean (section 6 of the paper); of p2..pk if p1 is frozen. With a frozen base, p1's loss is
            left out.
        head_positions: number of positions in the random subset of "all-heads".
        head_target: what heads learn at a position: "p1", the distribution of p1 given all tokens before that position,
            which verification uses; or "tokens", the true token, as in the paper.
        head_weight: weight of the proposal heads' loss relative to p1's.
        distance_weight: weight of log(1 + |d|) in the loss of heads that learn from p1, d being the difference of the
            expected intensities of head and p1; not used for text. A head whose proposals are a grey level off fails
            exact acceptance, which the divergence of two wide distributions hardly notices.
        precision: "bf16" autocast or "no".
        gradient_checkpointing: recompute decoder layers in the backward pass, which saves memory.
        seed: seed of the weights, the order of examples and every random choice.
        label_smoothing: share of p1's target that is spread over all tokens, in [0, 1).
        teacher: checkpoint (name or folder) from whose p1 the new p1 learns the distributions at every position, as for
            draft models (Zhou et al. 2024, "DistillSpec"); None learns the true tokens. In the stage "distil", p1
            learns them on the model's own images only: where no token is true, nothing else keeps the heads' loss from
            changing p1.
    """

    retired: ClassVar[dict[str, Any]] = {"head_decay": 1.0}

    stage: Literal["base", "heads", "distil"] = "base"
    batch_size: int = 4
    optimizer: Literal["adamw", "adam", "muon"] = "adamw"
    learning_rate: float = 1.5e-3
    warmup_steps: int = 200
    weight_decay: float = 0.01
    clip: float = 1.0
    ema_decay: float = 0.999
    steps: int | None = None
    minutes: float | None = None
    endless: bool = False
    crop_share: float | None = None
    flip: bool = True
    estimate_weight: float = 0.02
    freeze_base: bool = False
    head_loss: Literal["all-heads", "random-head"] = "all-heads"
    head_positions: int = 192
    head_target: Literal["p1", "tokens"] = "p1"
    head_weight: float = 1.0
    distance_weight: float = 1.0
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
                f"batch_size must be even in stage distil, which halves it; not {self.batch_size}")
        require(0 <= self.ema_decay < 1, f"ema_decay must be in [0, 1), not {self.ema_decay!r}")
        require(0 <= self.label_smoothing < 1, f"label_smoothing must be in [0, 1), not {self.label_smoothing!r}")
        require(self.distance_weight >= 0, f"distance_weight must be at least 0, not {self.distance_weight!r}")
        lengths = [length for length in (self.steps, self.minutes) if length is not None]
        require(len(lengths) == (0 if self.endless else 1),
                "endless training has no length; leave steps and minutes out" if self.endless else
                "give the length of training as either steps or minutes")
        require(all(length > 0 for length in lengths), f"the length of training must be positive, not {lengths}")
        require(self.crop_share is None or 0 <= self.crop_share <= 1,
                f"crop_share must be in [0, 1], not {self.crop_share!r}")
        require(self.optimizer in OPTIMIZERS,
                f"optimizer must be one of {', '.join(OPTIMIZERS)}, not {self.optimizer!r}")
        require(self.head_loss in HEAD_LOSSES,
                f"head_loss must be one of {', '.join(HEAD_LOSSES)}, not {self.head_loss!r}")
        require(self.head_target in HEAD_TARGETS,
                f"head_target must be one of {', '.join(HEAD_TARGETS)}, not {self.head_target!r}")
        taught = self.stage in ("base", "distil") and self.trains_base and not self.label_smoothing
        require(self.teacher is None or taught, "a teacher is for the stages base and distil, without freeze_base and "
                                                f"label_smoothing, not for {self.stage}")
        require(self.precision in ("bf16", "no"), f"precision must be bf16 or no, not {self.precision!r}")

    @property
    def trains_heads(self) -> bool:
        """Whether the prediction heads p2..pk are trained."""
        return self.stage != "base"

    @property
    def trains_base(self) -> bool:
        """Whether p1 is trained."""
        return not (self.trains_heads and self.freeze_base)
