"""Settings of decoding: blockwise, and beam search."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from superres.config.checks import (
    LARGEST,
    Config,
    is_number,
    is_whole,
    require,
    require_text,
    require_truth,
    require_whole,
)
from superres.errors import ConfigError, shown

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
        proposer: source of proposals, a name in `superres.decoding.proposers.PROPOSERS`, such as "heads", "draft" or
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
