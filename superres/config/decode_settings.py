"""Settings of blockwise decoding and of beam search."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, get_args

from superres.config.registry import with_plugins
from superres.config.setting import (
    EXPERTS,
    FACES,
    REQUIRED,
    SAMPLING,
    Config,
    documented,
    is_number,
    require,
    require_probability,
    require_whole,
    setting,
    settings_of,
)
from superres.errors import ConfigError, shown

DEFAULT_CHECKPOINT, DEFAULT_CASCADE, DEFAULT_TRANSLATOR = ("celeba-8to32", "celeba-8to64",
                                                           "multi30k-en-de")
"""Default checkpoints: a network for faces, the cascade that draws pictures to look at, and a
translator; bundled."""

DEVICES = ("auto", "cpu", "cuda")
"""Devices to compute on; "auto" is a GPU if there is one."""

CRITERION_PLUGINS, PROPOSER_PLUGINS, ENGINE_PLUGINS = ("superres.criteria", "superres.proposers",
                                                       "superres.engines")
"""Groups of entry points by which packages add criteria, proposers and engines."""
ENGINE_NAMES = with_plugins(["auto", "plain", "native", "native-int8", "triton", "triton-bf16"],
                            ENGINE_PLUGINS)
"""Engines that compute the decoding step, implemented in `superres.pipeline.choose.ENGINES`.

"plain" uses torch on any device, "native" compiled code for CPUs, and "triton" one kernel for GPUs.
"native-int8" rounds weights, keys, values and inputs of products to bytes, "triton-bf16" weights,
keys and values to bfloat16, so their tokens can differ from those of other engines. "auto" chooses
"native-int8" on a CPU, "native" if bytes do not support the network, and "triton" on a GPU for the
networks that it decodes; "plain" serves otherwise.
"""
ENGINE_NUMBERS = {"plain": "float32", "native": "float32", "native-int8": "int8",
                  "triton": "float32", "triton-bf16": "bfloat16"}
"""The format of an engine's numbers. Engines of one format give the same tokens but where two
scores almost tie."""
CriterionName = Literal["exact", "distance", "top-k"]
ProposerName = Literal["heads", "jacobi", "draft", "ngram", "lookup", "lookahead"]
SamplingName = Literal["coupled", "speculative"]
CRITERION_NAMES = with_plugins([*get_args(CriterionName)], CRITERION_PLUGINS)
"""Names of `superres.decoding.acceptance.CRITERIA`."""
PROPOSER_NAMES = with_plugins([*get_args(ProposerName)], PROPOSER_PLUGINS)
"""Names of `superres.decoding.proposers.PROPOSERS`."""

LEAST_TEMPERATURE, LARGEST_TEMPERATURE = 1e-9, 1e9
"""Smallest temperature above 0, and the largest one; both are finite in float32.

Scores up to 3e29 divided by the smallest stay finite in float32. Sampling equals greedy decoding
unless two scores differ by less than 1e-7. At the largest, all possible tokens are equally likely.
"""
TEMPERATURES = (f"must be 0 (greedy) or from {LEAST_TEMPERATURE:g} to {LARGEST_TEMPERATURE:g}, one "
                "number or one per")
LARGEST_BRANCHING = 128  # a step of lookahead reads (window + candidates) * (k - 1) columns
FIRST_GUESS = 0.8  # probability that a proposal passes, where nothing is known about it
LARGEST_COEFFICIENT = 8  # the spread of the probabilities of `Confidence` then fits into float32
LARGEST_INTENSITY = 255
# the mask of reliable pixels: a tenth of the grey levels, at 9 of 10 pixels
LARGEST_ERROR, COVERAGE = 25.0, 0.9
LARGEST_BEAM, LARGEST_PENALTY = 1024, 10


def parse_numbers(text: str) -> float | tuple[float, ...]:
    """Return the number or numbers in text such as "0.9" or "0.9,0.7,0.7", or raise ValueError."""
    values = tuple(float(part) for part in text.split(","))
    return values if len(values) > 1 else values[0]


def _is_temperature(value: float) -> bool:
    return LEAST_TEMPERATURE <= value <= LARGEST_TEMPERATURE


class DecodeOptions(TypedDict, total=False):
    """The types of the fields of `DecodeConfig` for type checkers and editors, with the built-in
    names of choices."""

    block_size: int | None
    accept: CriterionName
    epsilon: int
    top_k: int
    min_block: int
    consistent: bool
    temperature: float | tuple[float, ...]
    later_temperature: float | tuple[float, ...] | None
    seed: int
    proposer: ProposerName
    adaptive: bool
    window: int
    candidates: int
    draft: str | None
    ngrams: str | None
    sampling: SamplingName
    sample_top_k: int | None
    nucleus: float


@documented
@dataclass(frozen=True)
class DecodeConfig(Config):
    """Settings of blockwise decoding.

    Each field describes its setting completely (see `superres.config.setting`). A new setting needs
    its field here, the code that uses it, and a check below if its range alone does not define the
    valid values.
    """

    block_size: int | None = setting(
        None, "Tokens proposed per step; 1 decodes greedily.", "K", least=1,
        unset="all prediction heads, or fewer as they pay")
    accept: str = setting(
        "exact", "Criterion that accepts proposals: exact gives the greedy result; the others "
        "trade quality for speed.", choices=CRITERION_NAMES)
    epsilon: int = setting(
        2, "Largest accepted difference between a proposal and the verifier's token, in grey "
        f"levels, 0 to {LARGEST_INTENSITY}.", "E", least=0, most=LARGEST_INTENSITY,
        depends_on="accept", tasks=(FACES,))
    top_k: int = setting(
        2, "Rank within which top-k accepts a proposal, 1 or more.", "N", least=1,
        depends_on="accept")
    min_block: int = setting(
        1, "Tokens accepted per step regardless of the criterion, up to the block size; 1 is off.",
        "L", least=1)
    consistent: bool = setting(
        False, "Decode only pictures that reduce to exactly their input (consistency with the "
        "low-resolution input).", tasks=(FACES,), by_checkpoint=True)
    temperature: float | tuple[float, ...] = setting(
        0.0, "0 decodes greedily; above 0, tokens are sampled (try 0.9). The smallest value above "
        f"0 is {LEAST_TEMPERATURE:g}, the largest {LARGEST_TEMPERATURE:g}.", "T", panel=SAMPLING,
        parse=parse_numbers, faces="Greedy pictures are smooth. Three values, T,T,T, set red, "
        "green and blue.")
    later_temperature: float | tuple[float, ...] | None = setting(
        None, "Temperature of the stages after the first. Values with commas between them are "
        "those of the second stage, the third and so on; the last one holds for all that follow. 0 "
        "decodes them greedily, which is faster.", "T", panel=SAMPLING, parse=parse_numbers,
        unset="that of the first stage", tasks=(FACES,))
    seed: int = setting(
        0, "Seed of the sampling noise, 0 to 2**63 - 1.", "S", panel=SAMPLING, least=0,
        most=2**63 - 1)
    proposer: str = setting("heads", "Source of proposals.", panel=EXPERTS, choices=PROPOSER_NAMES)
    adaptive: bool = setting(
        False, "Choose the fastest block size while decoding, up to --block-size. With exact "
        "acceptance, the tokens do not depend on the block sizes. The block size of lookahead is "
        "fixed. The compiled engines for CPUs do so by default in upscale and translate, unless "
        "the checkpoint or another option determines the blocks.",
        panel=EXPERTS)
    window: int = setting(
        10, f"Width of lookahead's Jacobi window in tokens, 1 to {LARGEST_BRANCHING}. The length "
        "of its n-grams is the block size.", "W", panel=EXPERTS, least=1, most=LARGEST_BRANCHING,
        depends_on="proposer")
    candidates: int = setting(
        10, "Largest number of n-grams that lookahead verifies per step, 1 to "
        f"{LARGEST_BRANCHING}.", "G", panel=EXPERTS, least=1, most=LARGEST_BRANCHING,
        depends_on="proposer")
    draft: str | None = setting(
        None, "Checkpoint of the draft model for the draft proposer.", "NAME|DIR", panel=EXPERTS,
        unset="NAME-draft beside --checkpoint NAME, if it exists", depends_on="proposer")
    ngrams: str | None = setting(
        None, "File of n-gram counts for the ngram proposer, from 'superres train ngrams'.", "FILE",
        panel=EXPERTS, unset="ngrams.safetensors of the checkpoint, if it exists",
        depends_on="proposer")
    sampling: str = setting(
        "coupled", "coupled gives the sample of sequential decoding with the same seed; "
        "speculative verifies the proposals of a block jointly, and gives another sample of the "
        "same distribution.", panel=SAMPLING, choices=get_args(SamplingName),
        depends_on="temperature")
    sample_top_k: int | None = setting(
        None, "Sample from the N likeliest tokens, 1 or more.", "N", panel=SAMPLING, least=1,
        unset="all tokens", depends_on="temperature")
    nucleus: float = setting(
        1.0, "Sample from the likeliest tokens whose probabilities add up to P, above 0; 1 is off.",
        "P", panel=SAMPLING, depends_on="temperature", by_checkpoint=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        # no message is made for what passes: this runs for every picture
        if self.block_size is not None and self.min_block > self.block_size:
            raise ConfigError(f"min-block {self.min_block} is larger than the block size "
                              f"{self.block_size}")
        if self.temperature != 0 and not (len(self.temperatures) in (1, 3)
                                          and all(map(_is_temperature, self.temperatures))):
            raise ConfigError(f"temperature {TEMPERATURES} colour, not {shown(self.temperature)}")
        if self.later_temperature == () or not all(t == 0 or _is_temperature(t)
                                                   for t in self._later):
            raise ConfigError(f"later-temperature {TEMPERATURES} stage after the first, not "
                              f"{shown(self.later_temperature)}")
        require_probability("nucleus", self.nucleus)
        if self.sampling == "speculative":
            require(self.is_sampling, "speculative sampling needs a temperature above 0; give one "
                    "such as 0.9")
            # a criterion of the caller's may be one of drawn proposals
            if self.accept in get_args(CriterionName)[1:] or self.min_block > 1:
                raise ConfigError("speculative sampling has its own acceptance rule; leave out "
                                  f"accept {self.accept} and min-block {self.min_block}, or "
                                  "sample coupled")

    @property
    def temperatures(self) -> tuple[float, ...]:
        """`temperature` as a tuple: one value per colour channel, or one for all channels."""
        return self.temperature if isinstance(self.temperature, tuple) else (self.temperature,)

    @property
    def _later(self) -> tuple[float, ...]:
        later = () if self.later_temperature is None else self.later_temperature
        return later if isinstance(later, tuple) else (later,)

    @property
    def is_sampling(self) -> bool:
        """Whether tokens of any stage are sampled rather than chosen greedily."""
        return self.temperature != 0 or any(self._later)

    def of_stage(self, number: int) -> DecodeConfig:
        """Return the settings of stage `number` of a cascade, from 0, whose `temperature` is that
        of the stage."""
        if self.later_temperature is None:
            return self
        temperature = self._later[min(number, len(self._later)) - 1] if number else self.temperature
        sampling = self.sampling if temperature != 0 else "coupled"
        return dataclasses.replace(self, temperature=temperature, later_temperature=None,
                                   sampling=sampling)

    @property
    def is_speculative(self) -> bool:
        """Whether proposals are drawn, and judged by the distributions of p1 and proposer."""
        return self.is_sampling and self.sampling == "speculative"

    @property
    def is_exact(self) -> bool:
        """Whether any block size gives the tokens of one token per step with the same seed."""
        return self.accept == "exact" and self.min_block == 1 and self.sampling == "coupled"

    def sequential(self) -> DecodeConfig:
        """Return the settings that decode one token per step, with the same sampling."""
        return dataclasses.replace(self, block_size=1, min_block=1, accept="exact", adaptive=False)

    def greedy(self) -> DecodeConfig:
        """Return the settings that decode the likeliest token, one per step, within the same
        limits."""
        return dataclasses.replace(self.sequential(), temperature=0.0, sampling="coupled")

    def changed(self, given: dict[str, Any]) -> DecodeConfig:
        """Return these settings with the values in `given`, as a user's options change a
        checkpoint's default.

        Settings that only another acceptance criterion uses return to their default. So do settings
        that contradict the given sampling, temperature, proposer or block size. An adaptive block
        size becomes fixed if a block size, a minimum block or another proposer is given, or if the
        given settings make the tokens depend on the block sizes.
        """
        plain, temperature = type(self)(), given.get("temperature")
        for name, value in given.items():
            settings_of(type(self))[name].check(name, value)
        changes: dict[str, Any] = {
            "min_block": min(self.min_block, given.get("block_size") or self.min_block)
        }
        if self.block_size is not None and given.get("min_block", 0) > self.block_size:
            changes.update(block_size=plain.block_size)
        if given.get("accept", self.accept) != self.accept:
            changes.update({name: getattr(plain, name) for name,
                            about in settings_of(type(self)).items()
                            if about.depends_on == "accept"})
        if given.get("sampling") == "speculative":
            changes.update(accept=plain.accept, min_block=plain.min_block)
        if is_number(temperature) and temperature == 0:
            changes.update(sampling=plain.sampling, later_temperature=plain.later_temperature)
        other_proposer = given.get("proposer", self.proposer) != self.proposer
        if other_proposer:
            changes.update(block_size=plain.block_size, min_block=plain.min_block)
        result = dataclasses.replace(self, **{**changes, **given})
        is_fixed = other_proposer or "block_size" in given or "min_block" in given
        if "adaptive" not in given and (is_fixed or (self.is_exact and not result.is_exact)):
            result = dataclasses.replace(result, adaptive=plain.adaptive)
        return result


@dataclass(frozen=True)
class Confidence(Config):
    """Coefficients of the probability that a proposal passes, fitted to a checkpoint:
    `superres.decoding.confidence`.

    For ordinal heads, the slope of the probability is exp(offset + exponent * log(slope of the
    prediction head)). For other heads, the logarithm of the odds that a proposal passes is offset +
    exponent * (that of the head). `accepted` is the share of verified proposals that exact
    acceptance accepts.
    """

    offset: float = setting(REQUIRED, least=-LARGEST_COEFFICIENT, most=LARGEST_COEFFICIENT)
    exponent: float = setting(REQUIRED, least=-LARGEST_COEFFICIENT, most=LARGEST_COEFFICIENT)
    accepted: float = setting(FIRST_GUESS, least=0, most=1)


@dataclass(frozen=True)
class Reliability(Config):
    """The calibration of the mask of the pixels of a face that one can rely on:
    `superres.evaluation.reliability`.

    A pixel is reliable if its uncertainty is at most `threshold`, in grey levels. Of the reliable
    pixels of faces like those of the calibration, drawn with the checkpoint's default settings, a
    share of at least `coverage` differs from the truth by at most `tolerance` grey levels, as the
    mean over the colours. `revision` is that of the weights for which it was found; with other
    weights, there is no mask.
    """

    threshold: float = setting(REQUIRED, least=0, most=LARGEST_INTENSITY)
    tolerance: float = setting(LARGEST_ERROR, least=0, most=LARGEST_INTENSITY)
    coverage: float = COVERAGE
    revision: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_probability("coverage", self.coverage)


@dataclass(frozen=True)
class BeamConfig(Config):
    """Settings of beam search.

    Attributes:
        size: hypotheses per sequence.
        length_penalty: alpha; hypotheses are ranked by log p / ((5 + length) / 6)**alpha (Wu et al.
            2016).
    """

    size: int = setting(4, least=1, most=LARGEST_BEAM)
    length_penalty: float = setting(0.6, least=0, most=LARGEST_PENALTY)

    def __post_init__(self) -> None:
        require_whole("beam", self.size, 1, LARGEST_BEAM)
        super().__post_init__()


@dataclass(frozen=True)
class QualityBound(Config):
    """Bound on the quality that decoding may lose against greedy decoding, by one of two measures.

    Attributes:
        min_psnr_to_greedy: smallest PSNR to the greedily decoded images, in dB.
        max_bits_loss: largest increase in bits/dim under p1 over the greedily decoded images.
    """

    min_psnr_to_greedy: float | None = None
    max_bits_loss: float | None = None

    def __post_init__(self) -> None:
        psnr, bits = self.min_psnr_to_greedy, self.max_bits_loss
        require((psnr is None) != (bits is None), "give the bound on quality as either "
                "--min-psnr-to-greedy (dB) or --max-bits-loss (bits/dim)")
        require(psnr is None or (is_number(psnr, 0) and psnr != 0),
                f"min-psnr-to-greedy must be positive, not {shown(psnr)}; give a finite number of "
                "dB")
        require(bits is None or is_number(bits, 0),
                f"max-bits-loss must be at least 0, not {shown(bits)}; give a finite number of "
                "bits/dim")
        super().__post_init__()
