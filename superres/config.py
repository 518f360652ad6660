"""Frozen, validated settings of the network and of decoding, with a strict JSON form."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from superres.errors import ConfigError

ConfigT = TypeVar("ConfigT", bound="Config")

FORMAT_VERSION = 1
"""Version of the checkpoint folder's layout; raised when an older reader could misread a newer folder."""


def require(condition: bool, message: str) -> None:
    """Raise ConfigError with `message` unless `condition` holds."""
    if not condition:
        raise ConfigError(message)


@dataclass(frozen=True)
class Config:
    """Base of the settings classes: a dictionary form that refuses unknown and mistyped fields."""

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as JSON-ready values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls: type[ConfigT], values: dict[str, Any]) -> ConfigT:
        """Build the settings from `values`.

        Raises:
            ConfigError: a field is unknown, has the wrong type or is out of range.
        """
        known = {field.name: field for field in dataclasses.fields(cls)}
        unknown = sorted(set(values) - set(known))
        require(not unknown, f"unknown setting {', '.join(unknown)} in {cls.__name__}; known: {', '.join(known)}")
        cleaned = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
        try:
            return cls(**cleaned)
        except TypeError as error:
            raise ConfigError(f"{cls.__name__} cannot be built from {values}: {error}") from error


DEFAULT_CHECKPOINT, DEFAULT_TRANSLATOR = "celeba-8to32", "multi30k-en-de"
"""Bundled checkpoints that serve where none is named, for faces and for translation."""

ENGINES = ("auto", "plain", "native", "native-bf16", "graph", "graph-bf16")
"""Ways to compute the decoding step: with torch; in compiled code, for CPUs; as a captured CUDA graph, for GPUs. "auto"
takes the last two where it can. With bf16 weights are rounded, and tokens may differ from those of the others."""

SAMPLINGS = ("coupled", "speculative")
"""Ways to sample in blocks."""

HEAD_LAYERS = ("per-head", "dense", "adaptive", "sequential", "recurrent")


@dataclass(frozen=True)
class ModelConfig(Config):
    """The network; `PRESETS` holds the named ones.

    Attributes:
        task: name of the task that turns inputs into tokens, "faces" or "translation".
        languages: of source and target of a translation; empty for other tasks.
        vocabulary: number of token values V.
        source_shape: shape of the encoder's input; (rows, columns, channels) for an image, (S,) for text.
        target_shape: shape of the decoder's output; its product is the number of target positions T.
        width: D, the size of a state vector.
        filter_size: hidden size of each feed-forward layer.
        attention_heads: H; must divide `width`.
        encoder_layers: number of encoder layers.
        decoder_layers: number of decoder layers.
        attention: decoder self-attention: "local_1d" (own attention block causally and the whole previous one) or
            "causal".
        attention_block_length: length of the local attention's blocks (not the decoding block size).
        cross_attention: whether decoder layers attend to the memory.
        norm: "pre" (normalise before a sub-layer) or "post" (after the residual sum, as published).
        dropout: probability of dropping a sub-layer's output while training.
        prediction_heads: K, heads p1..pk; 1 is a plain autoregressive model.
        head_layer: "per-head" (block-diagonal), "dense" (the paper's, fully connected across heads), "adaptive"
            (per-head, and its state weighs the numbers of the neighbourhood), "sequential" (adaptive, and a head sees
            the tokens proposed before its own) or "recurrent" (each head is a step of one layer, which sees the token
            proposed before its own, and the memory). Adaptive and sequential ones need `numeric_neighbourhood` and
            `ordinal_output`; recurrent ones need text, `cross_attention` and `identity_p1`.
        head_filter_size: hidden size of one prediction head's layer.
        identity_p1: head 1 is the base model's own output; False sends it through the head layer, as published.
        aligned_conditioning: add an enlargement of the memory to the decoder input, position by position.
        conditioning_blocks: residual convolution blocks that refine the aligned conditioning at target resolution.
        conditioning_width: channels of those blocks.
        numeric_neighbourhood: feed already decoded intensities near the target as numbers.
        cell_remainder: with `numeric_neighbourhood`, feed what the cell over the target still has to add up to.
        ordinal_output: add -|v - mu(h)| / s(h) to the score of intensity v.
        free_scores: keep a free score (W h)_v beside the ordinal one. Without it the likeliest intensity is the
            conditional median, so that greedy pictures cannot fall for the point masses at black and white.
        tied_embeddings: one table embeds source and target tokens and scores the output (a joint vocabulary).
    """

    task: str = "faces"
    vocabulary: int = 256
    source_shape: tuple[int, ...] = (8, 8, 3)
    target_shape: tuple[int, ...] = (32, 32, 3)
    width: int = 32
    filter_size: int = 64
    attention_heads: int = 2
    encoder_layers: int = 1
    decoder_layers: int = 2
    attention: Literal["local_1d", "causal"] = "local_1d"
    attention_block_length: int = 128
    cross_attention: bool = True
    norm: Literal["pre", "post"] = "pre"
    dropout: float = 0.0
    prediction_heads: int = 1
    head_layer: Literal["per-head", "dense", "adaptive", "sequential", "recurrent"] = "per-head"
    head_filter_size: int = 64
    identity_p1: bool = True
    aligned_conditioning: bool = True
    conditioning_blocks: int = 1
    conditioning_width: int = 32
    numeric_neighbourhood: bool = True
    cell_remainder: bool = False
    ordinal_output: bool = True
    free_scores: bool = True
    languages: tuple[str, ...] = ()
    tied_embeddings: bool = False

    def __post_init__(self) -> None:
        sizes = ("vocabulary", "width", "filter_size", "attention_heads", "decoder_layers", "attention_block_length",
                 "prediction_heads", "head_filter_size", "conditioning_width")
        for name in sizes:
            value = getattr(self, name)
            require(isinstance(value, int) and value >= 1,
                    f"{name} must be a whole number of at least 1, not {value!r}")
        for name in ("encoder_layers", "conditioning_blocks"):
            value = getattr(self, name)
            require(isinstance(value, int) and value >= 0,
                    f"{name} must be a whole number of at least 0, not {value!r}")
        for name in ("source_shape", "target_shape"):
            shape = getattr(self, name)
            valid = isinstance(shape, tuple) and shape and all(isinstance(n, int) and n >= 1 for n in shape)
            require(bool(valid), f"{name} must be a list of positive whole numbers, not {shape!r}")
        require(self.width % self.attention_heads == 0,
                f"attention_heads {self.attention_heads} must divide width {self.width}")
        require(self.width % 4 == 0, f"width must be a multiple of 4 for the position signal, not {self.width}")
        require(self.attention in ("local_1d", "causal"),
                f"attention must be local_1d or causal, not {self.attention!r}")
        require(self.norm in ("pre", "post"), f"norm must be pre or post, not {self.norm!r}")
        require(self.head_layer in HEAD_LAYERS,
                f"head_layer must be one of {', '.join(HEAD_LAYERS)}, not {self.head_layer!r}")
        aided = self.aligned_conditioning or self.numeric_neighbourhood or self.ordinal_output
        numeric = self.numeric_neighbourhood and self.ordinal_output
        require(self.head_layer not in ("adaptive", "sequential") or numeric,
                f"head_layer {self.head_layer} needs numeric_neighbourhood and ordinal_output")
        is_text = len(self.target_shape) == 1
        require(self.head_layer != "recurrent" or (is_text and self.cross_attention and self.identity_p1),
                "head_layer recurrent needs a target_shape of one number, cross_attention and identity_p1")
        require(0.0 <= self.dropout < 1.0, f"dropout must be in [0, 1), not {self.dropout!r}")
        require(self.free_scores or self.ordinal_output, "a model without free_scores needs ordinal_output")
        require(self.numeric_neighbourhood or not self.cell_remainder, "cell_remainder needs numeric_neighbourhood")
        if aided:
            self._check_image_aids()
        require(len(self.languages) == (2 if self.task == "translation" else 0),
                f"a translation, and nothing else, has two languages, not {self.languages!r}")
        same = len(self.source_shape) == len(self.target_shape) == 1
        require(same or not self.tied_embeddings, "tied_embeddings need source_shape and target_shape of one number")

    def _check_image_aids(self) -> None:
        aids = "aligned_conditioning, numeric_neighbourhood and ordinal_output"
        require(len(self.source_shape) == len(self.target_shape) == 3,
                f"{aids} need image shapes (rows, columns, channels), not {self.source_shape} and {self.target_shape}")
        rows, columns, channels = self.target_shape
        source_rows, source_columns, source_channels = self.source_shape
        require(rows % source_rows == columns % source_columns == 0 and channels == source_channels,
                f"{aids} need a target {self.target_shape} that is a whole multiple of the source {self.source_shape}")

    @property
    def source_length(self) -> int:
        """S, the number of source positions."""
        return math.prod(self.source_shape)

    @property
    def target_length(self) -> int:
        """T, the number of target positions."""
        return math.prod(self.target_shape)

    @property
    def outputs(self) -> int:
        """Outputs of the projection at a position: free scores, and the ordinal output's centre and sharpness."""
        return (self.vocabulary if self.free_scores else 0) + (2 if self.ordinal_output else 0)

    @property
    def enlargement(self) -> tuple[int, int]:
        """Target rows and columns that a cell (source pixel) covers."""
        return self.target_shape[0] // self.source_shape[0], self.target_shape[1] // self.source_shape[1]

    @property
    def channels(self) -> int:
        """Colour channels of a target position; 1 for text."""
        return self.target_shape[-1] if len(self.target_shape) == 3 else 1


PRESETS: dict[str, ModelConfig] = {
    "tiny": ModelConfig(cell_remainder=True),
    "base": ModelConfig(
        width=128, filter_size=512, attention_heads=4, encoder_layers=3, decoder_layers=4, cross_attention=False,
        head_layer="sequential", head_filter_size=256, conditioning_blocks=6, conditioning_width=96,
        cell_remainder=True, free_scores=False,
    ),
    "paper": ModelConfig(
        width=512, filter_size=2048, attention_heads=8, encoder_layers=4, decoder_layers=8, norm="post", dropout=0.1,
        head_layer="dense", head_filter_size=2048, identity_p1=False, aligned_conditioning=False, conditioning_blocks=0,
        numeric_neighbourhood=False, ordinal_output=False,
    ),
    "text": ModelConfig(
        task="translation", languages=("en", "de"), vocabulary=8000, source_shape=(128,), target_shape=(128,),
        width=256, filter_size=512, attention_heads=4, encoder_layers=3, decoder_layers=3, attention="causal",
        dropout=0.3, head_layer="recurrent", head_filter_size=512, aligned_conditioning=False, conditioning_blocks=0,
        numeric_neighbourhood=False, ordinal_output=False, tied_embeddings=True,
    ),
    "draft": ModelConfig(
        width=64, filter_size=128, decoder_layers=1, cross_attention=False, conditioning_blocks=4,
        conditioning_width=64, cell_remainder=True, free_scores=False,
    ),
    "text-draft": ModelConfig(
        task="translation", languages=("en", "de"), vocabulary=8000, source_shape=(128,), target_shape=(128,),
        width=128, filter_size=256, attention_heads=4, encoder_layers=2, decoder_layers=1, attention="causal",
        dropout=0.1, aligned_conditioning=False, conditioning_blocks=0, numeric_neighbourhood=False,
        ordinal_output=False, tied_embeddings=True,
    ),
}
"""Named networks: `tiny` for tests, `base` as bundled, `paper` as published (img2img_transformer_b3); `text`, a small
Transformer for translation; and `draft` and `text-draft`, draft models for `base` and `text`."""


LARGEST_BRANCHING = 128
"""Largest window and number of candidates of Lookahead, whose steps read (window + candidates) * (k - 1) columns."""


@dataclass(frozen=True)
class DecodeConfig(Config):
    """How tokens are decoded.

    Attributes:
        block_size: k, tokens proposed a step; 1 is greedy (or sequential sampling); None takes all prediction heads, or
            what suits the proposer.
        accept: acceptance criterion, a name in `superres.decoding.acceptance.CRITERIA`, such as "exact" or "distance".
        epsilon: largest |proposal - verified token| that is accepted, in grey levels; several values where the
            criterion says how it reads them.
        top_k: rank within which "top-k" accepts.
        min_block: l, tokens accepted a step whatever the criterion says (section 5.3 of the paper); 1 is off.
        temperature: T; 0 is greedy, T > 0 samples from softmax(scores / T). Three numbers are those of red, green and
            blue.
        seed: key of the sampling noise.
        budget: largest sum of |proposal - verified token| along a block that "drift-budget" accepts, in grey levels.
        noise: how samples are drawn, a name in `superres.decoding.noise.NOISES`: "gumbel" for any tokens, "quantile"
            for intensities, whose proposals it keeps close to the verifier's samples.
        proposer: source of proposals, a name in `superres.decoding.proposal.PROPOSERS`, such as "heads", "draft" or
            "lookahead".
        window: W, tokens that "lookahead" looks ahead at each stage of its Jacobi iteration; N, the size of its
            n-grams, is its block size.
        candidates: G, n-grams that "lookahead" verifies in a step, at most.
        adaptive: choose the block size while decoding, up to `block_size`, by what steps cost on this machine and how
            far blocks get. Only exact acceptance gives the same tokens whatever the block sizes.
        draft: checkpoint (name or folder) of the draft model that the proposer "draft" asks.
        ngrams: file of counts that the proposer "ngram" looks up.
        sampling: "coupled", proposals and verifier sharing their noise, so that the sample is that of sequential
            sampling with the same seed; or "speculative", accepting with min(1, p / q), which gives samples of the same
            distribution.
        sample_top_k: sample from the so many likeliest tokens; None from all.
        nucleus: then from the likeliest whose probabilities add up to at least this; 1 is off.
    """

    block_size: int | None = None
    accept: str = "exact"
    epsilon: int | tuple[int, ...] = 2
    top_k: int = 2
    min_block: int = 1
    temperature: float | tuple[float, ...] = 0.0
    seed: int = 0
    budget: int = 8
    noise: str = "gumbel"
    proposer: str = "heads"
    adaptive: bool = False
    window: int = 10
    candidates: int = 10
    draft: str | None = None
    ngrams: str | None = None
    sampling: str = "coupled"
    sample_top_k: int | None = None
    nucleus: float = 1.0

    def __post_init__(self) -> None:
        k = self.block_size
        require(k is None or (isinstance(k, int) and k >= 1), f"block size must be at least 1, not {k!r}")
        valid = isinstance(self.epsilons, tuple) and all(isinstance(e, int) and e >= 0 for e in self.epsilons)
        require(valid and bool(self.epsilons), f"epsilon must be at least 0, not {self.epsilon!r}; "
                                               "give a whole number or a tuple of them")
        require(isinstance(self.budget, int) and self.budget >= 0, f"budget must be at least 0, not {self.budget!r}")
        require(isinstance(self.top_k, int) and self.top_k >= 1, f"top-k must be at least 1, not {self.top_k!r}")
        require(isinstance(self.min_block, int) and self.min_block >= 1,
                f"min-block must be at least 1, not {self.min_block!r}")
        require(k is None or self.min_block <= k, f"min-block {self.min_block} is larger than the block size {k}")
        require(self.temperature == 0 or (len(self.temperatures) in (1, 3) and all(
            isinstance(t, (int, float)) and math.isfinite(t) and t > 0 for t in self.temperatures)),
                f"temperature must be 0 (greedy) or positive, one number or one a colour, not {self.temperature!r}")
        require(isinstance(self.seed, int) and 0 <= self.seed < 2**63, f"seed must be in [0, 2**63), not {self.seed!r}")
        for name in ("window", "candidates"):
            value = getattr(self, name)
            require(isinstance(value, int) and 1 <= value <= LARGEST_BRANCHING,
                    f"{name} must be in 1..{LARGEST_BRANCHING}, not {value!r}")
        self._check_sampling()

    def _check_sampling(self) -> None:
        require(isinstance(self.nucleus, (int, float)) and 0 < self.nucleus <= 1,
                f"nucleus must be above 0 and at most 1, not {self.nucleus!r}")
        require(self.sample_top_k is None or (isinstance(self.sample_top_k, int) and self.sample_top_k >= 1),
                f"sample-top-k must be at least 1, not {self.sample_top_k!r}")
        require(self.sampling in SAMPLINGS, f"unknown sampling {self.sampling!r}; choose one of {', '.join(SAMPLINGS)}")
        if self.sampling == "speculative":
            require(self.is_sampling, "speculative sampling needs a temperature above 0; give one such as 0.9")
            require(self.accept == "exact" and self.min_block == 1 and self.noise == "gumbel",
                    f"speculative sampling has its own rule of acceptance and its own noise; leave out accept "
                    f"{self.accept}, min-block {self.min_block} and noise {self.noise}, or sample coupled")

    @property
    def epsilons(self) -> tuple[int, ...]:
        """The values of `epsilon`, one if it is a number."""
        return self.epsilon if isinstance(self.epsilon, tuple) else (self.epsilon,)

    @property
    def temperatures(self) -> tuple[float, ...]:
        """T of each colour channel in turn; a single one serves all."""
        return self.temperature if isinstance(self.temperature, tuple) else (self.temperature,)

    @property
    def is_sampling(self) -> bool:
        """Whether tokens are sampled, not chosen greedily."""
        return self.temperature != 0

    def changed(self, given: dict[str, Any]) -> DecodeConfig:
        """Return these settings with those in `given` instead, as a user's options change a checkpoint's default.

        What was set for another criterion than the given one returns to its plain default, and the minimum block gives
        way to a smaller block size.

        Raises:
            ConfigError: the result contradicts itself.
        """
        changes: dict[str, Any] = {"min_block": min(self.min_block, given.get("block_size") or self.min_block)}
        if given.get("accept", self.accept) != self.accept:
            plain = DecodeConfig()
            changes.update(epsilon=plain.epsilon, top_k=plain.top_k, budget=plain.budget)
        return dataclasses.replace(self, **{**changes, **given})


def parse_epsilon(text: str) -> int | tuple[int, ...]:
    """Return the number or the numbers in "2" or "4,3,2"; the range is checked by `DecodeConfig`.

    Raises:
        ConfigError: the text is anything else.
    """
    try:
        values = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"--epsilon must be a whole number, or several such as 4,3,2, not {text!r}") from None
    return values if len(values) > 1 else values[0]


def parse_temperature(text: str) -> float | tuple[float, ...]:
    """Return the temperature that "0.9" or "0.9,0.7,0.7" stands for; the range is checked by `DecodeConfig`.

    Raises:
        ConfigError: a part is not a number.
    """
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError("--temperature must be a number, or three with commas between such as 0.9,0.7,0.7, "
                          f"not {text!r}") from None
    return values if len(values) > 1 else values[0]


@dataclass(frozen=True)
class BeamConfig(Config):
    """How beam search decodes.

    Attributes:
        size: hypotheses kept a sequence.
        length_penalty: alpha; hypotheses are ranked by log p / ((5 + length) / 6)**alpha (Wu et al. 2016).
    """

    size: int = 4
    length_penalty: float = 0.6

    def __post_init__(self) -> None:
        require(isinstance(self.size, int) and self.size >= 1, f"beam must be at least 1, not {self.size!r}")
        require(math.isfinite(self.length_penalty) and self.length_penalty >= 0,
                f"length-penalty must be at least 0, not {self.length_penalty!r}")


@dataclass(frozen=True)
class QualityBound(Config):
    """How much quality decoding may lose against greedy decoding: one of two measures.

    Attributes:
        min_psnr_to_greedy: smallest PSNR to the greedily decoded images, in dB.
        max_bits_loss: largest excess of the decoded images' bits/dim under p1 over that of the greedy ones.
    """

    min_psnr_to_greedy: float | None = None
    max_bits_loss: float | None = None

    def __post_init__(self) -> None:
        psnr, bits = self.min_psnr_to_greedy, self.max_bits_loss
        require((psnr is None) != (bits is None), "give the bound on quality as either --min-psnr-to-greedy (dB) or "
                                                  "--max-bits-loss (bits/dim)")
        require(psnr is None or (math.isfinite(psnr) and psnr > 0), f"min-psnr-to-greedy must be positive, not {psnr}")
        require(bits is None or (math.isfinite(bits) and bits >= 0), f"max-bits-loss must be at least 0, not {bits}")
