"""The settings of a stage of training: the options of a command, and an entry of a recipe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from superres.config import DEVICES, HEAD_LAYERS, PRESETS, Config, documented, require, setting
from superres.errors import shown

HEAD_LOSSES = ("all-heads", "random-head")
HEAD_TARGETS = ("p1", "tokens")
OPTIMIZERS = ("adamw", "adam", "muon")
PRECISIONS = ("auto", "bf16", "no")
SCHEDULES = ("cosine", "noam")
GPU_DEFAULTS = {"batch_size": 128, "learning_rate": 2e-3}
"""Defaults of settings on a GPU, which is hardly faster for fewer images per step."""

Stop = Callable[[], bool]
"""Whether training is to end; asked after every step, or before every batch that is decoded."""
Report = Callable[[dict[str, float]], None]
"""What gets each record of a stage."""


@documented
@dataclass(frozen=True)
class Stage(Config):
    """A stage of training. Settings with a help text are options of commands of `superres train`.

    Muon gives the matrices of linear layers steps along orthogonal directions (Jordan et al. 2024,
    "Muon"), as long as AdamW's (Liu et al. 2025, "Muon is Scalable for LLM Training"), and leaves
    all other weights to AdamW. An endless run keeps its learning rate after the warm-up, and the
    averaged weights take the place of the decay (Haegele et al. 2024, "Scaling Laws and
    Compute-Optimal Training Beyond Fixed Training Durations").

    With the loss "random-head", an unbiased estimate of the heads' mean (section 6 of the paper), a
    frozen base leaves p1's loss out. A teacher is as for draft models (Zhou et al. 2024,
    "DistillSpec"). In the stage "distil", p1 learns from it on the model's own images only: where
    no token is true, nothing else keeps the heads' loss from changing p1.

    These settings have no option:

    - stage: "base" (teacher forcing of p1), "heads" (p2..pk on a trained base), or "distil" (as
      "heads", but half of each batch are images that the model decoded itself, on which p1 is not
      trained).
    - clip: largest gradient norm; None does not clip.
    - ema_decay: decay of the averaged weights, in [0, 1); the checkpoint holds the averaged
      weights.
    - endless: train until stopped; `steps` and `minutes` are None.
    - flip: mirror half of the images.
    - estimate_weight: weight of the estimate's mean absolute error, in nats per grey level.
    - head_weight: weight of the proposal heads' loss relative to p1's.
    - snapshots: number of checkpoints of the averaged weights to keep, at equal distances of steps
      up to the last.
    - distance_weight: weight of log(1 + |d|) in the loss of heads that learn from p1, d being the
      difference of the expected intensities of head and p1; not used for text. A head whose
      proposals are a grey level off fails exact acceptance, which the divergence of two wide
      distributions hardly notices.
    - name: name of the stage in its recipe, and of its folder in `output`; "" for the only stage,
      which is in `output`.
    - network: fields of the network that differ from the preset's; of those of `start`, only its
      sizes can.
    - keep_heads: stage "base": keep the heads of `start`, untrained.
    - own_images: stage "distil" of a recipe: number of training inputs that `start` decodes itself.
    - decode_batch: number of images that a model decodes together, or of sentences translated
      together.
    - translated_by: text: name of an earlier stage, the teacher, on whose translations of all texts
      of this stage to train, by beam search.
    - reverse: text: learn to translate the target language into the source language.
    - back_translated_by: text: name of an earlier stage with `reverse`, which translates the target
      sentences back. Its translations are read as further sources of these targets (Sennrich et al.
      2016, "Improving Neural Machine Translation Models with Monolingual Data").
    - back_translations: text: number of different back-translations of every target sentence, which
      are sampled (Edunov et al. 2018, "Understanding Back-Translation at Scale").
    - copies: text: copies of `data` to read beside back-translations or else the further text; 0
      reads neither.
    - earlier: checkpoints of earlier stages by name, which `start` and `teacher` may name.
    """

    stage: Literal["base", "heads", "distil"] = "base"
    minutes: float | None = setting(None, "Minutes of training in all, over all resumed runs.", "M")
    steps: int | None = setting(None, "Steps of training in all.", "N", least=1, most=10**12)
    batch_size: int = setting(4, "Images or sentence pairs per step, over all processes; even in "
                              "distil. For text, it is the mean, since batches have similar "
                              "numbers of tokens.", "N", least=1, unset="4, or "
                              f"{GPU_DEFAULTS['batch_size']} on a GPU")
    learning_rate: float = setting(1.5e-3, "Peak learning rate.", "R",
                                   unset=f"0.0015, or {GPU_DEFAULTS['learning_rate']} on a GPU")
    optimizer: str = setting(
        "adamw", "AdamW; Adam, as in the paper; or Muon for the matrices of the layers and AdamW "
        "for all else.", choices=OPTIMIZERS)
    precision: str = setting("auto", "Autocast to bf16, or no autocast; auto is bf16 on a GPU and "
                             "on a processor with bf16 arithmetic.", choices=PRECISIONS)
    threads: int | None = setting(None, "Threads of training on a CPU, at most the usable cores. "
                                  "Leave this at 1 where other processes compute.", "N",
                                  unset="those of the run that is resumed, or 1", least=1)
    seed: int = setting(0, "Seed of the weights, the order of the data and every random choice, 0 "
                        "to 2**63 - 1.", "S", least=0, most=2**63 - 1)
    gradient_checkpointing: bool = setting(False, "Use less memory and more computation.")
    warmup_steps: int = setting(200, "Steps of linear warm-up to the peak learning rate, 0 or "
                                "more.", "N", least=0)
    schedule: str = setting("cosine", "After the warm-up, a cosine decay to 0; or noam, the "
                            "inverse square root of the step, as in the paper.", choices=SCHEDULES)
    label_smoothing: float = setting(0.0, "Share of p1's target that is spread over all tokens, in "
                                     "[0, 1); try 0.1 for text. Where p1 passes through the head "
                                     "layer, also of the other heads.", "S")
    freeze_base: bool = setting(False, "Train the head layer only. p1 stays the base's p1, except "
                                "in the paper preset, where p1 passes through the head layer.")
    head_loss: str = setting(
        "all-heads", "Loss of a minibatch: p1's plus the mean of all heads at some positions; or "
        "that of one random head of p1..pk, as in the paper.", choices=HEAD_LOSSES)
    head_positions: int = setting(192, "Target positions per step at which the heads are trained.",
                                  "N", least=1)
    head_target: str = setting(
        "p1", "Target of a head: p1's distribution at the head's position, or the true token as in "
        "the paper.", choices=HEAD_TARGETS)
    teacher: str | None = setting(None, "Checkpoint whose p1 gives the target distributions "
                                  "instead of the true tokens, for example to train a draft model.",
                                  "NAME|DIR", unset="the true tokens")
    crop_share: float | None = setting(
        None, "Share of random crops among the images, in [0, 1], for --data with larger pictures, "
        "or --crops.", "S", unset="0.5 with larger pictures, otherwise 0", least=0, most=1)
    turned_share: float = setting(
        0.0, "Faces: share of the images that are turned by up to 4 degrees and scaled by up to 5 "
        "%, in [0, 1]; try 0.25 for photographs.", "S", least=0, most=1)
    doubled_share: float = setting(
        0.0, "Faces: share of the faces that are trained on twice per epoch, in [0, 1]: those that "
        "the aligner would move farthest, such as turned heads and hair across the face; try 0.25.",
        "S", least=0, most=1)
    input_noise: float = setting(0.0, "Faces: largest standard deviation of noise on half of the "
                                 "inputs, in grey levels; try 6 for a later stage of a cascade.",
                                 "L", least=0)
    weight_decay: float = setting(0.01, least=0)
    clip: float | None = 1.0
    ema_decay: float = 0.999
    endless: bool = False
    flip: bool = True
    estimate_weight: float = setting(0.02, least=0)
    head_weight: float = setting(1.0, least=0)
    distance_weight: float = setting(1.0, least=0)
    snapshots: int = setting(0, least=0)
    _: KW_ONLY  # a checkpoint does not record the following
    data: Path = setting(Path(), "Training faces (.npz, folder or CelebA root), or parallel text "
                         "PATH.en and PATH.de.", "PATH")
    output: Path = setting(Path(), "Folder of the run; a run in it is resumed.", "DIR")
    dev: Path | None = setting(None, "Faces or text to score during training.", "PATH")
    own: Path | None = setting(None, "Pictures decoded by the model itself, from 'train decode'.",
                               "PATH")
    more: tuple[Path, ...] = setting((), "Text: more pairs PATH.en and PATH.de, for the stages "
                                     "that use them.", "PATH")
    start: str | None = setting(None, "Checkpoint whose weights training starts from.",
                                "NAME|DIR")
    preset: str = setting("base", "Network to train without --start.", choices=tuple(PRESETS))
    prediction_heads: int | None = setting(None, "Prediction heads p1..pk.", "K",
                                           unset="as in --start, or 10", least=1, most=2**10)
    head_layer: str | None = setting(None, "Layer of the prediction heads.",
                                     f"[{'|'.join(HEAD_LAYERS)}]", unset="as in --start")
    device: str = setting("auto", "Device to train on; auto uses a GPU if there is one.",
                          choices=DEVICES)
    compiled: bool = setting(False, "Compile the layers, for faces: steps on a GPU are faster, "
                             "after a minute or two.")
    limit: int | None = setting(None, "Use only the first N images or sentence pairs of --data.",
                                "N")
    languages: str | None = setting(None, "Text: languages, such as en-de.", "SOURCE-TARGET",
                                    unset="those of the preset")
    vocabulary: Path | None = setting(None, "Text: SentencePiece model to use instead of training "
                                      "one.", "FILE")
    crops: Path | None = setting(None, "Faces with larger pictures, for random crops.", "PATH",
                                 unset="--data")
    drawn: tuple[Path, ...] = setting((), "Pictures that an earlier stage of a cascade drew, from "
                                      "'train decode' with the same --data, which half of the "
                                      "inputs come close to; may be repeated.",
                                      "PATH")
    name: str = ""
    network: dict[str, Any] = field(default_factory=dict)
    keep_heads: bool = False
    own_images: int = setting(0, least=0)
    decode_batch: int = setting(64, least=1, most=2**16)
    translated_by: str | None = None
    reverse: bool = False
    back_translated_by: str | None = None
    back_translations: int = setting(0, least=0, most=100)
    copies: int = setting(0, least=0, most=1000)
    earlier: dict[str, Path] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.learning_rate > 0, "learning_rate must be positive, not "
                f"{self.learning_rate!r}")
        require(self.clip is None or self.clip > 0, "clip must be positive, or null for none, not "
                f"{self.clip!r}")
        for name in ("ema_decay", "label_smoothing"):
            require(0 <= getattr(self, name) < 1, f"{name} must be in [0, 1), not "
                    f"{getattr(self, name)!r}")
        require(self.stage != "distil" or self.batch_size % 2 == 0,
                f"batch_size must be even in stage distil, which halves it; not {self.batch_size}")

        # its length, and what depends on it
        lengths = [length for length in (self.steps, self.minutes) if length is not None]
        require(len(lengths) == (0 if self.endless else 1),
                "endless training has no length; leave steps and minutes out" if self.endless else
                "give the length of training as either steps or minutes")
        require(all(length > 0 for length in lengths), "the length of training must be positive, "
                f"not {lengths}")
        require(self.snapshots <= (self.steps or 0),
                f"snapshots must be 0, or at most the number of steps, not {self.snapshots!r}")

        # what only some stages have
        taught = self.stage in ("base", "distil") and self.trains_base and not self.label_smoothing
        require(self.teacher is None or taught, "a teacher is for the stages base and distil, "
                f"without freeze_base and label_smoothing, not for {self.stage}")
        require(self.head_layer is None or (self.head_layer in HEAD_LAYERS and self.trains_heads),
                f"head_layer must be one of {', '.join(HEAD_LAYERS)}, in a stage that trains "
                f"heads, not {shown(self.head_layer)}")

    @property
    def trains_heads(self) -> bool:
        """Whether p2..pk are trained."""
        return self.stage != "base"

    @property
    def trains_base(self) -> bool:
        """Whether p1 is trained."""
        return not (self.trains_heads and self.freeze_base)

    @property
    def reads_more(self) -> bool:
        """Whether the stage reads the further text."""
        return self.copies > 0 and self.back_translated_by is None

    def to_dict(self) -> dict[str, Any]:
        """Return the settings that a checkpoint records: no name or path of this run."""
        return {about.name: getattr(self, about.name) for about in fields(self)
                if not about.kw_only}
