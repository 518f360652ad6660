"""Frozen, validated settings of the network and of decoding, with a strict JSON form."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal

from superres.errors import ConfigError, shown
from superres.settings import LARGEST as LARGEST  # these five can be had from here, too
from superres.settings import Config as Config
from superres.settings import is_number as is_number
from superres.settings import is_whole, require_text, require_truth
from superres.settings import require as require
from superres.settings import require_whole as require_whole

FORMAT_VERSION = 1
"""Version of the checkpoint folder's layout; raised when an older reader could misread a newer folder."""


DEFAULT_CHECKPOINT, DEFAULT_TRANSLATOR = "celeba-8to32", "multi30k-en-de"
"""Bundled checkpoints that serve where none is named, for faces and for translation."""

ENGINES = ("auto", "plain", "native", "native-bf16", "graph", "graph-bf16")
"""Ways to compute the decoding step: with torch; in compiled code, for CPUs; as a captured CUDA graph, for GPUs. "auto"
takes the last two where it can. With bf16 weights are rounded, and tokens may differ from those of the others."""

LEAST_TEMPERATURE = 1e-9
"""Smallest temperature above 0. Scores are divided by it in float32, which overflows above 3e38: so scores up to 3e29,
far more than any network gives, stay finite. Sampling there takes what greedy decoding takes, but where two scores
are less than 1e-7 apart."""

SAMPLINGS = ("coupled", "speculative")
"""Ways to sample in blocks."""

SIZES: dict[str, tuple[int, int]] = {
    "vocabulary": (1, 2**20), "width": (1, 2**14), "filter_size": (1, 2**16), "attention_heads": (1, 2**10),
    "encoder_layers": (0, 2**8), "decoder_layers": (1, 2**8), "attention_block_length": (1, 2**20),
    "prediction_heads": (1, 2**10), "head_filter_size": (1, 2**16), "conditioning_blocks": (0, 2**8),
    "conditioning_width": (1, 2**14),
}
"""Least and largest value of each size of a network. The largest are far above what a picture or a sentence needs, and
keep a checkpoint from elsewhere from asking for more than a machine can build."""

MOST_SOURCE, MOST_TARGET, MOST_CHANNELS = 2**14, 256 * 256 * 3, 4
"""Largest number of source and of target positions, and of colour channels."""

MOST_TABLE = 2**26
"""Most entries of a table that has a row for each position and is not stored in a checkpoint; 256 MiB in float32."""

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
        identity_p1: head 1 is the base model's own output; False sends it through the head layer, as published, so
            that inserting the layer changes p1 even where the base is frozen.
        one_head_layer: with one prediction head and without `identity_p1`, whether there is a head layer. False is a
            base into which the layer is still to be inserted: p1 is then the base model's own output.
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
    one_head_layer: bool = True
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
        for name, (least, most) in SIZES.items():
            require_whole(name, getattr(self, name), least, most)
        require_text("task", self.task)
        for name in ("cross_attention", "identity_p1", "aligned_conditioning", "numeric_neighbourhood",
                     "cell_remainder", "ordinal_output", "free_scores", "tied_embeddings"):
            require_truth(name, getattr(self, name))
        self._check_shapes()
        require(self.width % self.attention_heads == 0,
                f"attention_heads {self.attention_heads} must divide width {self.width}")
        require(self.width % 4 == 0, f"width must be a multiple of 4 for the position signal, not {self.width}")
        require(self.attention in ("local_1d", "causal"),
                f"attention must be local_1d or causal, not {shown(self.attention)}")
        require(self.norm in ("pre", "post"), f"norm must be pre or post, not {shown(self.norm)}")
        require(is_number(self.dropout) and 0.0 <= self.dropout < 1.0,
                f"dropout must be in [0, 1), not {shown(self.dropout)}")
        self._check_heads()
        require(self.free_scores or self.ordinal_output, "a model without free_scores needs ordinal_output")
        require(self.numeric_neighbourhood or not self.cell_remainder, "cell_remainder needs numeric_neighbourhood")
        if self.aligned_conditioning or self.numeric_neighbourhood or self.ordinal_output:
            self._check_image_aids()
        self._check_text()

    def _check_shapes(self) -> None:
        for name, most in (("source_shape", MOST_SOURCE), ("target_shape", MOST_TARGET)):
            shape = getattr(self, name)
            valid = isinstance(shape, tuple) and len(shape) in (1, 3) and all(is_whole(n) and n >= 1 for n in shape)
            require(valid, f"{name} must be a list of positive whole numbers, one or three, not {shown(shape)}")
            require(max(shape) <= most and math.prod(shape) <= most,
                    f"{name} must have at most {most} positions, not {shown(shape)}")
            require(math.prod(shape) * self.width <= MOST_TABLE, f"positions of {name} times width must be at most "
                    f"{MOST_TABLE}, not {math.prod(shape)} * {self.width}")

    def _check_heads(self) -> None:
        require(self.head_layer in HEAD_LAYERS,
                f"head_layer must be one of {', '.join(HEAD_LAYERS)}, not {shown(self.head_layer)}")
        numeric = self.numeric_neighbourhood and self.ordinal_output
        require(self.head_layer not in ("adaptive", "sequential") or numeric,
                f"head_layer {self.head_layer} needs numeric_neighbourhood and ordinal_output")
        is_text = len(self.target_shape) == 1
        require(self.head_layer != "recurrent" or (is_text and self.cross_attention and self.identity_p1),
                "head_layer recurrent needs a target_shape of one number, cross_attention and identity_p1")

    def _check_text(self) -> None:
        named = isinstance(self.languages, tuple) and all(isinstance(name, str) for name in self.languages)
        require(named and len(self.languages) == (2 if self.task == "translation" else 0),
                f"a translation, and nothing else, has two languages, not {shown(self.languages)}")
        same = len(self.source_shape) == len(self.target_shape) == 1
        require(same or self.task != "translation", "a translation needs source_shape and target_shape of one number")
        require(same or not self.tied_embeddings, "tied_embeddings need source_shape and target_shape of one number")

    def _check_image_aids(self) -> None:
        aids = "aligned_conditioning, numeric_neighbourhood and ordinal_output"
        require(len(self.source_shape) == len(self.target_shape) == 3,
                f"{aids} need image shapes (rows, columns, channels), not {self.source_shape} and {self.target_shape}")
        rows, columns, channels = self.target_shape
        source_rows, source_columns, source_channels = self.source_shape
        require(rows % source_rows == columns % source_columns == 0 and channels == source_channels,
                f"{aids} need a target {self.target_shape} that is a whole multiple of the source {self.source_shape}")
        require(channels <= MOST_CHANNELS, f"{aids} need at most {MOST_CHANNELS} colour channels, not {channels}")
        covered = math.prod(self.enlargement)
        require(self.target_length * covered <= MOST_TABLE,
                f"{aids} need target positions times those over a source pixel of at most {MOST_TABLE}, "
                f"not {self.target_length} * {covered}")

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
        temperature: T; 0 is greedy, T >= `LEAST_TEMPERATURE` samples from softmax(scores / T). Three numbers are those
            of red, green and blue.
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
        require_whole("block size", 1 if k is None else k)
        require_whole("budget", self.budget, 0)
        require_whole("top-k", self.top_k)
        require_whole("min-block", self.min_block)
        require_whole("sample-top-k", 1 if self.sample_top_k is None else self.sample_top_k)
        self._check_epsilon()
        require(k is None or self.min_block <= k, f"min-block {self.min_block} is larger than the block size {k}")
        require(all(map(is_number, self.temperatures)) and (self.temperature == 0 or (
            len(self.temperatures) in (1, 3) and all(t >= LEAST_TEMPERATURE for t in self.temperatures))),
                f"temperature must be 0 (greedy) or at least {LEAST_TEMPERATURE:g}, one number or one a colour, "
                f"not {shown(self.temperature)}")
        require(is_whole(self.seed) and 0 <= self.seed < 2**63, f"seed must be in [0, 2**63), not {shown(self.seed)}")
        for name in ("window", "candidates"):
            value = getattr(self, name)
            require(is_whole(value) and 1 <= value <= LARGEST_BRANCHING,
                    f"{name} must be in 1..{LARGEST_BRANCHING}, not {shown(value)}")
        require_truth("adaptive", self.adaptive)
        for name in ("accept", "noise", "proposer", "sampling"):
            require_text(name, getattr(self, name))
        for name in ("draft", "ngrams"):
            value = getattr(self, name)
            require_text(name, "" if value is None else value)
        self._check_sampling()

    def _check_epsilon(self) -> None:
        valid = isinstance(self.epsilons, tuple) and all(is_whole(e) and e >= 0 for e in self.epsilons)
        require(valid and bool(self.epsilons), f"epsilon must be at least 0, not {shown(self.epsilon)}; "
                                               "give a whole number or a tuple of them")
        require(max(self.epsilons) <= LARGEST, f"epsilon must be at most {LARGEST}, not {shown(self.epsilon)}")

    def _check_sampling(self) -> None:
        require(is_number(self.nucleus) and 0 < self.nucleus <= 1,
                f"nucleus must be above 0 and at most 1, not {shown(self.nucleus)}")
        require(self.sampling in SAMPLINGS,
                f"unknown sampling {shown(self.sampling)}; choose one of {', '.join(SAMPLINGS)}")
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

        What was set for another criterion than the given one returns to its plain default, and so does what a given way
        of sampling, a given proposer or a smaller block size could not go with.

        Raises:
            ConfigError: the result contradicts itself.
        """
        plain = DecodeConfig()
        changes: dict[str, Any] = {"min_block": min(self.min_block, given.get("block_size") or self.min_block)}
        if given.get("accept", self.accept) != self.accept:
            changes.update(epsilon=plain.epsilon, top_k=plain.top_k, budget=plain.budget)
        if given.get("sampling") == "speculative":
            changes.update(accept=plain.accept, min_block=plain.min_block, noise=plain.noise)
        if given.get("temperature") == 0:
            changes.update(sampling=plain.sampling)
        if given.get("proposer", "heads") != "heads":
            changes.update(adaptive=plain.adaptive)
        return dataclasses.replace(self, **{**changes, **given})


def parse_epsilon(text: str) -> int | tuple[int, ...]:
    """Return the number or the numbers in "2" or "4,3,2"; the range is checked by `DecodeConfig`.

    Raises:
        ConfigError: the text is anything else.
    """
    try:
        values = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"--epsilon must be a whole number, or several such as 4,3,2, not {shown(text)}") from None
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
                          f"not {shown(text)}") from None
    return values if len(values) > 1 else values[0]


LARGEST_BEAM, LARGEST_PENALTY = 1024, 10
"""Most hypotheses of a sequence, and largest exponent of the length penalty, of which powers are taken."""


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
        require_whole("beam", self.size, 1, LARGEST_BEAM)
        require(is_number(self.length_penalty) and 0 <= self.length_penalty <= LARGEST_PENALTY,
                f"length-penalty must be at least 0, not {shown(self.length_penalty)}, and at most {LARGEST_PENALTY}")


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
        require(psnr is None or (is_number(psnr) and psnr > 0),
                f"min-psnr-to-greedy must be positive, not {shown(psnr)}")
        require(bits is None or (is_number(bits) and bits >= 0),
                f"max-bits-loss must be at least 0, not {shown(bits)}")
