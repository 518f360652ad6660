"""Settings of the network, and named networks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from superres.config.names import file_name
from superres.config.setting import Config, require, require_probability, setting
from superres.errors import ConfigError, shown

FORMAT_VERSION = 1
"""Version of the checkpoint folder's layout; increased when an older reader could misread a newer
folder."""

LONGEST = 2, 10
"""Factor and excess of the largest number of target tokens over that of source tokens, with the
ends of both. It ends translations that repeat themselves. All translations of Multi30k, and of
40,000 sentences of Tatoeba and 3,000 of newstest2013, are shorter in the vocabulary of
`multi30k-en-de`."""

HEAD_LAYERS = ("per-head", "dense", "sequential", "recurrent")

MOST_SOURCE, MOST_TARGET = 2**14, 256 * 256 * 3  # positions
MOST_CHANNELS = 4
MOST_TABLE = 2**26  # entries in a table with one row per position; 256 MiB in float32
MOST_ATTENDED = 16 * 16 * 3
"""Largest number of positions of an image that encoder layers attend to; larger images use
convolution blocks alone.

Attention among S positions takes 2 S D multiplications per position and layer, and the rest of the
layer 12 D^2 (with a feed-forward layer of 4 D). From this number on, at the width D of 128 of
`base`, attention takes more than the rest.
"""


@dataclass(frozen=True)
class ModelConfig(Config):
    """Settings of a network; `PRESETS` has the named networks.

    The largest sizes are far above the needs of a picture or a sentence; an untrusted checkpoint
    with them cannot request more memory than a machine has.

    Attributes:
        task: name of the task that turns inputs into tokens, "faces" or "translation".
        languages: source and target language of a translation; empty for other tasks.
        vocabulary: V, the number of token values.
        source_shape: shape of the encoder's input; (rows, columns, channels) for an image, (S,) for
            text.
        target_shape: shape of the decoder's output; its product is the number of target positions
            T.
        width: D, the size of a state vector; a multiple of `attention_heads`.
        filter_size: hidden size of each feed-forward layer, as `head_filter_size` is of one
            prediction head's layer.
        encoder_layers: number of encoder layers; 0 for an image of over MOST_ATTENDED source
            positions.
        attention: decoder self-attention: "causal", or "local_1d" (causal within the attention
            block, and all of the previous block).
        attention_block_length: keys per block of local attention (not the decoding block size).
        attention_keys: "tokens", every position has a key, as in the paper; or "pixels", the first
            colour of each pixel has one, which knows all tokens of the pixels before. The same keys
            then reach three times as far.
        cross_attention: whether decoder layers attend to the memory.
        norm: "pre" (normalise before a sub-layer) or "post" (after the residual sum, as in the
            paper).
        dropout: of a sub-layer's output while training.
        prediction_heads: K, the number of heads p1..pk; 1 is an autoregressive model.
        head_layer: "per-head" (block-diagonal), "dense" (fully connected across heads, as in the
            paper), "sequential" (per-head, and its state weights the neighbour features and the
            tokens proposed before its own) or "recurrent" (each head is a step of one layer, which
            reads the token proposed before its own and the memory).
        identity_p1: head 1 is the base model's own output. False passes it through the head layer,
            as in the paper, so inserting the layer changes p1 even if the base is frozen.
        one_head_layer: with one prediction head and without `identity_p1`, whether the network has
            a head layer. False is a base model before the layer is inserted: p1 is then the base
            model's own output.
        aligned_conditioning: add the enlarged memory to the decoder input, position by position.
        conditioning_blocks: residual convolution blocks, of `conditioning_width` channels, that
            refine the aligned conditioning at target resolution.
        numeric_neighbourhood: feed the decoded intensities near the target position as neighbour
            features.
        cell_remainder: with `numeric_neighbourhood`, feed the residual sum: what the rest of the
            cell must add up to.
        ordinal_output: add an ordinal term, which falls with the distance |v - mu(h)|, to the score
            of intensity v.
        ordinal_shape: the ordinal term at the distance z = |v - mu(h)| / s(h): "laplace", -z; or
            "hyperbolic", d - sqrt(d^2 + z^2) with d(h) from the network as well (Barndorff-Nielsen
            1977, hyperbolic distribution).
        free_scores: add a free score (W h)_v to the ordinal score. Without it, the likeliest
            intensity is the conditional median, so greedy pictures avoid the point masses at black
            and white.
        tied_embeddings: one table embeds source and target tokens and scores the output (a joint
            vocabulary).
        consistent: whether pictures are decoded consistently (see `DecodeConfig`) unless a call
            asks otherwise.
        nucleus: `DecodeConfig.nucleus` with which tokens are sampled unless a call asks otherwise.
    """

    task: str = "faces"
    vocabulary: int = setting(256, least=1, most=2**20)
    source_shape: tuple[int, ...] = (8, 8, 3)
    target_shape: tuple[int, ...] = (32, 32, 3)
    width: int = setting(32, least=1, most=2**14)
    filter_size: int = setting(64, least=1, most=2**16)
    attention_heads: int = setting(2, least=1, most=2**10)
    encoder_layers: int = setting(1, least=0, most=2**8)
    decoder_layers: int = setting(2, least=1, most=2**8)
    attention: Literal["local_1d", "causal"] = "local_1d"
    attention_block_length: int = setting(128, least=1, most=2**20)
    attention_keys: Literal["tokens", "pixels"] = "tokens"
    cross_attention: bool = True
    norm: Literal["pre", "post"] = "pre"
    dropout: float = 0.0
    prediction_heads: int = setting(1, least=1, most=2**10)
    head_layer: Literal["per-head", "dense", "sequential", "recurrent"] = "per-head"
    head_filter_size: int = setting(64, least=1, most=2**16)
    identity_p1: bool = True
    one_head_layer: bool = True
    aligned_conditioning: bool = True
    conditioning_blocks: int = setting(1, least=0, most=2**8)
    conditioning_width: int = setting(32, least=1, most=2**14)
    numeric_neighbourhood: bool = True
    cell_remainder: bool = False
    ordinal_output: bool = True
    ordinal_shape: Literal["laplace", "hyperbolic"] = "laplace"
    free_scores: bool = True
    languages: tuple[str, ...] = ()
    tied_embeddings: bool = False
    consistent: bool = False
    nucleus: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_shapes()
        if self.width % self.attention_heads:
            raise ConfigError(f"attention_heads {self.attention_heads} must divide width "
                              f"{self.width}")
        if self.width % 4:
            raise ConfigError("width must be a multiple of 4 for the position signal, not "
                              f"{self.width}")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout must be in [0, 1), not {shown(self.dropout)}")
        require_probability("nucleus", self.nucleus)
        require(self.head_layer != "sequential"
                or (self.numeric_neighbourhood and self.ordinal_output),
                "head_layer sequential needs numeric_neighbourhood and ordinal_output")
        is_text = len(self.target_shape) == 1
        require(self.head_layer != "recurrent"
                or (is_text and self.cross_attention and self.identity_p1),
                "head_layer recurrent needs a target_shape of one number, cross_attention and "
                "identity_p1")
        require(self.free_scores or self.ordinal_output, "a model without free_scores needs "
                "ordinal_output")
        require(self.numeric_neighbourhood or not self.cell_remainder, "cell_remainder needs "
                "numeric_neighbourhood")
        if (self.aligned_conditioning or self.numeric_neighbourhood or self.ordinal_output
            or self.consistent):
            self._check_image_priors()
        self._check_text()
        require(self.attention_keys == "tokens" or (self.attention == "local_1d" and not is_text),
                "attention_keys pixels needs attention local_1d and a target_shape of (rows, "
                "columns, channels)")

    def _check_shapes(self) -> None:
        for name, most in (("source_shape", MOST_SOURCE), ("target_shape", MOST_TARGET)):
            shape = getattr(self, name)
            if len(shape) not in (1, 3) or min(shape) < 1:
                raise ConfigError(f"{name} must be a list of positive whole numbers, one or three, "
                                  f"not {shown(shape)}")
            if max(shape) > most or math.prod(shape) > most:
                raise ConfigError(f"{name} must have at most {most} positions, not {shown(shape)}")
            if math.prod(shape) * self.width > MOST_TABLE:
                raise ConfigError(f"positions of {name} times width must be at most {MOST_TABLE}, "
                                  f"not {math.prod(shape)} * {self.width}")
        is_image = len(self.source_shape) == 3
        if is_image and self.encoder_layers and self.source_length > MOST_ATTENDED:
            raise ConfigError(f"encoder_layers must be 0 for a source image of "
                              f"{self.source_length} positions, not {self.encoder_layers}: "
                              "attention takes time quadratic in the positions, and at most "
                              f"{MOST_ATTENDED} are allowed; use conditioning_blocks")

    def _check_text(self) -> None:
        if len(self.languages) != (2 if self.task == "translation" else 0):
            raise ConfigError("a translation has two languages and other tasks have none, not "
                              f"{shown(self.languages)}")
        for language in self.languages:
            file_name(language, "the language")  # it is the suffix of files of sentences
        same = len(self.source_shape) == len(self.target_shape) == 1
        require(same or self.task != "translation", "a translation needs source_shape and "
                "target_shape of one number")
        require(same or not self.tied_embeddings, "tied_embeddings need source_shape and "
                "target_shape of one number")

    def _check_image_priors(self) -> None:
        flags = "aligned_conditioning, numeric_neighbourhood, ordinal_output and consistent"
        if not len(self.source_shape) == len(self.target_shape) == 3:
            raise ConfigError(f"{flags} need image shapes (rows, columns, channels), not "
                              f"{self.source_shape} and {self.target_shape}")
        rows, columns, channels = self.target_shape
        source_rows, source_columns, source_channels = self.source_shape
        if rows % source_rows or columns % source_columns or channels != source_channels:
            raise ConfigError(f"{flags} need a target {self.target_shape} that is a whole multiple "
                              f"of the source {self.source_shape}")
        if channels > MOST_CHANNELS:
            raise ConfigError(f"{flags} need at most {MOST_CHANNELS} colour channels, not "
                              f"{channels}")
        covered = math.prod(self.enlargement)
        if self.target_length * covered > MOST_TABLE:
            raise ConfigError(f"{flags} need target positions times those over a source pixel of "
                              f"at most {MOST_TABLE}, not {self.target_length} * {covered}")

    @cached_property
    def source_length(self) -> int:
        """S, the number of source positions."""
        return math.prod(self.source_shape)

    @cached_property
    def target_length(self) -> int:
        """T, the number of target positions."""
        return math.prod(self.target_shape)

    @cached_property
    def ordinal_outputs(self) -> int:
        """Parameters of the ordinal term: log d with the shape "hyperbolic", the shift of mu, and
        log(1 / s)."""
        return (3 if self.ordinal_shape == "hyperbolic" else 2) if self.ordinal_output else 0

    @cached_property
    def outputs(self) -> int:
        """Outputs of the projection per position: free scores, and the parameters of the ordinal
        term."""
        return self.vocabulary * self.free_scores + self.ordinal_outputs

    @property
    def enlargement(self) -> tuple[int, int]:
        """Target rows and columns per cell (source pixel)."""
        return (self.target_shape[0] // self.source_shape[0],
                self.target_shape[1] // self.source_shape[1])

    @cached_property
    def channels(self) -> int:
        """Colour channels of a target position; 1 for text."""
        return self.target_shape[-1] if len(self.target_shape) == 3 else 1

    @cached_property
    def key_distance(self) -> int:
        """Positions from a key of decoder self-attention to the next one."""
        return self.channels if self.attention_keys == "pixels" else 1

    def longest_target(self, source_tokens: int) -> int:
        """Return the largest number of target tokens for a text of `source_tokens` tokens: see
        `LONGEST`."""
        return min(self.target_length, LONGEST[0] * source_tokens + LONGEST[1])


_FACES: dict[str, Any] = {"cell_remainder": True, "ordinal_shape": "hyperbolic",
                          "free_scores": False, "cross_attention": False}
_STAGE: dict[str, Any] = {**_FACES, "attention_keys": "pixels", "head_layer": "sequential",
                          "conditioning_blocks": 4, "conditioning_width": 64, "consistent": True,
                          "nucleus": 0.9}
_UNAIDED: dict[str, Any] = {"aligned_conditioning": False, "conditioning_blocks": 0,
                            "numeric_neighbourhood": False, "ordinal_output": False}
_TEXT: dict[str, Any] = {
    **_UNAIDED, "task": "translation", "languages": ("en", "de"), "vocabulary": 8000,
    "source_shape": (128,), "target_shape": (128,), "attention_heads": 4, "attention": "causal",
    "tied_embeddings": True}

PRESETS: dict[str, ModelConfig] = {
    "tiny": ModelConfig(cell_remainder=True),
    "base": ModelConfig(
        **_FACES, width=128, filter_size=512, attention_heads=4, encoder_layers=3, decoder_layers=4,
        head_layer="sequential", head_filter_size=256, conditioning_blocks=6,
        conditioning_width=96),
    "paper": ModelConfig(
        **_UNAIDED, width=512, filter_size=2048, attention_heads=8, encoder_layers=4,
        decoder_layers=8, norm="post", dropout=0.1, head_layer="dense", head_filter_size=2048,
        identity_p1=False),
    "transformer-base": ModelConfig(
        **{**_TEXT, "vocabulary": 32000, "source_shape": (256,), "target_shape": (256,),
           "attention_heads": 8},
        width=512, filter_size=2048, encoder_layers=6, decoder_layers=6, norm="post", dropout=0.1,
        head_layer="dense", head_filter_size=2048, identity_p1=False),
    "text": ModelConfig(
        **_TEXT, width=256, filter_size=512, encoder_layers=3, decoder_layers=3, dropout=0.3,
        head_layer="recurrent", head_filter_size=512),
    "face-64": ModelConfig(
        **_FACES, source_shape=(32, 32, 3), target_shape=(64, 64, 3), width=96, filter_size=384,
        attention_heads=3, encoder_layers=0, decoder_layers=3, head_layer="sequential",
        head_filter_size=192, conditioning_blocks=4, conditioning_width=64, consistent=True,
        nucleus=0.9),
    "face-16": ModelConfig(
        **_STAGE, target_shape=(16, 16, 3), width=128, filter_size=512, attention_heads=4,
        encoder_layers=3, decoder_layers=6, head_filter_size=256),
    "face-32": ModelConfig(
        **_STAGE, source_shape=(16, 16, 3), width=96, filter_size=384, attention_heads=3,
        encoder_layers=0, decoder_layers=3, head_filter_size=192),
    "draft": ModelConfig(
        **_FACES, width=64, filter_size=128, decoder_layers=1, conditioning_blocks=4,
        conditioning_width=64),
    "text-draft": ModelConfig(
        **_TEXT, width=128, filter_size=256, encoder_layers=2, decoder_layers=1, dropout=0.1),
}
"""Named networks.

`tiny` is for tests, and `base` is the bundled network. `face-64` enlarges pictures of 32x32 to
64x64. `face-16` and `face-32` are the stages before it in a cascade of factors of two, 8 to 16 to
32 to 64: three rows of a 16x16 picture are six of a 32x32 one, so pose, eyes and light can agree.

`paper` and `transformer-base` are the networks of Stern et al. (2018, section 7), with the heads of
section 6: an Image Transformer with the sizes of tensor2tensor's `img2img_transformer_b3`, and the
base model of Vaswani et al. (2017, table 3), which is tensor2tensor's `transformer_base_v1`, with a
joint vocabulary of 32,000 pieces. Unlike the published networks, their attention projections and
the output of `transformer-base` have biases, their head layers have no dropout, and their first
weights are drawn as torch does by default.

`text` is a small Transformer for translation. `draft` and `text-draft` are draft models for `base`
and `text`.
"""
