"""A check for any decoder that drafts: whether it gives what it gives without drafts.

    >>> import superres
    >>> from superres.testing import check_lossless
    >>> translator = superres.load("multi30k-en-de")
    >>> def decode(prompts, *, block_size, seed, temperature, length):
    ...     found = translator(prompts, block_size=block_size, seed=seed, temperature=temperature)
    ...     return [text.split() for text in found.texts]
    >>> lines = ["A dog runs.", "Two men are playing guitar.", "A girl in a red dress sings."]
    >>> report = check_lossless(decode, lines, length=100, lengths=(), samples=0)
    >>> report.ok, report["block sizes"].status, report["lengths"].status
    (True, 'passed', 'not tested')

`print(report)` shows a line per check, with the first token that differs if there is one.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from superres.config import require
from superres.errors import InvalidInputError, first_line, shown

Tokens: TypeAlias = tuple[Hashable, ...]

FEWEST = 5
"""A cell of a chi-square test has this many samples at least, as its distribution needs."""
MOST_SEQUENCES = 1_000_000
PASSED, FAILED, DIFFERS = "passed", "FAILED", "differs"
NOT_SUPPORTED, NOT_TESTED = "not supported", "not tested"
SAME_SEED, BESIDE, AS_UNDRAFTED = ("sampling repeats", "sampling beside others",
                                   "sampling as without drafts")


# Distributions


class ChiSquare(NamedTuple):
    """Result of a chi-square test: the statistic, its degrees of freedom, the probability `p` of
    one as large, and the cell that adds most to it."""

    statistic: float
    degrees: int
    p: float
    worst: str

    def __str__(self) -> str:
        return f"chi-square {self.statistic:.1f} of {self.degrees}, p = {self.p:.2g}; {self.worst}"


def chi_square(samples: Any, probabilities: Any) -> ChiSquare:  # noqa: ANN401 -- see below
    """Test whether samples have a known distribution.

    Sequences that are expected fewer than 5 times are one cell. A sequence that cannot occur and
    does gives p = 0.

    Args:
        samples: sequences of tokens, such as an array [N, T]; or the number of each, by sequence.
        probabilities: of each sequence, as from `prefix_probabilities`; or an array [V] * T of all.

    Raises:
        InvalidInputError: the probabilities do not add up to 1.
    """
    if not isinstance(probabilities, Mapping):
        probabilities = dict(np.ndenumerate(np.asarray(probabilities)))
    total = float(sum(probabilities.values()))
    if not abs(total - 1) < 1e-3:
        raise InvalidInputError(f"the probabilities add up to {total:g}, not to 1")
    seen, wanted = _counts(samples), {one: p for one, p in probabilities.items() if p > 0}
    for one in seen.keys() - wanted.keys():
        return ChiSquare(float("inf"), 0, 0.0, f"{one} occurred {seen[one]} times and cannot")
    cells, share = list(wanted), sum(seen.values()) / total
    return _test(cells, np.array([[float(seen[one]) for one in cells]]),
                 np.array([[wanted[one] * share for one in cells]]))


def chi_square_of_two(samples: Any, others: Any) -> ChiSquare:  # noqa: ANN401 -- as for `chi_square`
    """Test whether two sets of samples have the same distribution."""
    counts = [_counts(samples), _counts(others)]
    cells = list(counts[0] | counts[1])
    seen = np.array([[float(each[one]) for one in cells] for each in counts])
    return _test(cells, seen, seen.sum(1, keepdims=True) * seen.sum(0) / seen.sum())


def _counts(samples: Any) -> Counter[Tokens]:  # noqa: ANN401 -- as for `chi_square`
    if isinstance(samples, Mapping):
        return Counter(samples)
    return Counter(map(tuple, samples.tolist() if hasattr(samples, "tolist") else samples))


def _test(cells: list[Tokens], seen: npt.NDArray[np.float64],
          wanted: npt.NDArray[np.float64]) -> ChiSquare:
    """Return the test of counts [R, C] of C sequences, `wanted` of which are expected."""
    from scipy.stats import chi2  # slow to import

    order = wanted.min(0).argsort()
    least, rare = wanted.min(0)[order], 0
    if least[0] < FEWEST:  # these, and as many more as make one cell of them
        rare = max(least.searchsorted(FEWEST), least.cumsum().searchsorted(FEWEST) + 1)
    groups = [order[:rare]] * bool(rare) + [[place] for place in order[rare:]]
    seen, wanted = (np.stack([table[:, group].sum(1) for group in groups], 1)
                    for table in (seen, wanted))
    parts, degrees = (seen - wanted) ** 2 / wanted, len(groups) - 1
    row, column = np.unravel_index(parts.argmax(), parts.shape)
    name = "all rare sequences" if rare and column == 0 else cells[groups[column][0]]
    statistic = float(parts.sum())
    return ChiSquare(statistic, degrees, float(chi2.sf(statistic, degrees)) if degrees else 1.0,
                     f"{name} occurred {seen[row, column]:.0f} times of {wanted[row, column]:.1f} "
                     "expected")


def prefix_probabilities(p1: Callable[[list[Tokens]], npt.ArrayLike], length: int,
                         end_token: Hashable = None) -> dict[Tokens, float]:
    """Return the probability of every sequence of `length` tokens, or that ends before.

    Args:
        p1: returns the probabilities [N, V] of the token after each of N prefixes, which have the
            same length, as they are sampled: after temperature and filters.
        length: number of tokens, such as 4 of a vocabulary of 4: few sequences are possible.
        end_token: token that ends a sequence.

    Raises:
        InvalidInputError: `p1` returns no probabilities, or there are too many sequences.
    """
    ended: dict[Tokens, float] = {}
    open_ones: dict[Tokens, float] = {(): 1.0}
    for _ in range(length):
        rows = np.asarray(p1(list(open_ones)), np.float64)
        for prefix, row in zip(open_ones, rows, strict=True):
            if not (row.min() >= 0 and abs(row.sum() - 1) < 1e-3):
                raise InvalidInputError(f"p1 after {prefix} adds up to {row.sum():g}, not to 1; "
                                        "return probabilities after temperature and filters")
        if (count := np.count_nonzero(rows)) > MOST_SEQUENCES:
            raise InvalidInputError(f"p1 gives {count:,} sequences, more than {MOST_SEQUENCES:,}; "
                                    "enumerate fewer tokens")
        longer = {(*prefix, int(token)): mass * row[token] for (prefix, mass), row
                  in zip(open_ones.items(), rows, strict=True) for token in np.flatnonzero(row)}
        ended |= {one: mass for one, mass in longer.items() if one[-1] == end_token}
        open_ones = {one: mass for one, mass in longer.items() if one[-1] != end_token}
        if not open_ones:
            break
    return ended | open_ones


# The check


class Decode(Protocol):
    """A decoder to check."""

    def __call__(self, prompts: list[Any], *, block_size: int, seed: int, temperature: float,
                 length: int) -> Any:  # noqa: ANN401 -- arrays and lists
        """Return the new tokens of each prompt: a sequence of numbers, or of anything hashable.

        Sequences have at most `length` tokens and end with the end token, without padding. A step
        gives at most `block_size` tokens; 1 decodes without drafts. Raise NotImplementedError for
        settings that the decoder does not have, such as two prompts at once.
        """


@dataclass(frozen=True)
class Difference:
    """The first token that is not as expected: number of its prompt, its position, both tokens
    (None: no token), and the arguments of the call; `prompts` are the numbers of those decoded
    together."""

    prompt: int
    position: int
    wanted: Hashable
    got: Hashable
    settings: Mapping[str, object]

    def __str__(self) -> str:
        wanted, got = ("no token" if one is None else one for one in (self.wanted, self.got))
        return (f"prompt {self.prompt}, position {self.position}: wanted {wanted}, got {got} ("
                + ", ".join(f"{name} {shown(one)}" for name, one in self.settings.items()) + ")")


@dataclass(frozen=True)
class Row:
    """One check. `status` is "passed", "FAILED", "differs" (where only some decoders promise
    equality), "not supported" or "not tested", and `text` says what was found."""

    name: str
    status: str
    text: str
    found: Difference | ChiSquare | None = None


@dataclass(frozen=True)
class Report:
    """What `check_lossless` found; printed, a line per check. `report["batches"]` is the check
    whose name begins so."""

    rows: list[Row]

    @property
    def ok(self) -> bool:
        """Whether a check passed and none failed."""
        found = {row.status for row in self.rows}
        return PASSED in found and FAILED not in found

    def __getitem__(self, name: str) -> Row:
        return next(row for row in self.rows if row.name.startswith(name))

    def __str__(self) -> str:
        counts = Counter(row.status for row in self.rows)
        found = ", ".join(f"{count} {status}" for status, count in counts.items())
        return "\n".join([f"{'no difference found: ' * self.ok}{found}", *(
            f"{row.status:14} {row.name:26} {row.text}" for row in self.rows)])


Findings = Iterator["tuple[bool, Difference | ChiSquare | None]"]
"""Whether each sequence or distribution is right, and what was found."""


class _Checker:
    """Calls the decoder, and notes of every sequence whether it is too long or does not end."""

    def __init__(self, decode: Decode, prompts: Sequence[Any], length: int,
                 end_token: Hashable) -> None:
        self.decode, self.prompts, self.end_token = decode, prompts, end_token
        self.settings = {"block_size": 1, "seed": 0, "temperature": 0.0, "length": length}
        self.all = list(range(len(prompts)))
        self.count = self.ended = 0
        self.too_long, self.past_end = list[Difference](), list[Difference]()
        self.greedy = [self.run([number], self.settings)[0] for number in self.all]

    def run(self, chosen: list[int], settings: Mapping[str, Any]) -> list[Tokens]:
        """Return the tokens of the prompts `chosen`, decoded together, up to the length and the end
        token."""
        found = self.decode([self.prompts[number] for number in chosen], **settings)
        rows = [tuple(row.tolist() if hasattr(row, "tolist") else row) for row in found]
        require(len(rows) == len(chosen), f"decode returned {len(rows)} sequences for "
                f"{len(chosen)} prompts")
        told, length = {**settings, "prompts": chosen}, settings["length"]
        for place, (number, row) in enumerate(zip(chosen, rows, strict=True)):
            if len(row) > length:
                self.too_long.append(Difference(number, length, None, row[length], told))
            rows[place], self.count = (kept := row[:length]), self.count + 1
            if self.end_token is not None and self.end_token in kept:
                end = kept.index(self.end_token) + 1
                self.ended += settings["block_size"] > 1 and end > 1
                if end < len(kept):
                    self.past_end.append(Difference(number, end, None, kept[end], told))
                rows[place] = kept[:end]
        return rows

    def compare(self, wanted: Callable[[int, Any], Tokens], groups: Iterable[list[int]],
                sizes: Sequence[int], first: bool = False, **changes: Any) -> Findings:  # noqa: ANN401 -- arguments of the decoder
        """Decode each group of prompts with each block size, and compare each of its prompts, or
        the `first`, with what is `wanted` of it and the settings."""
        for size, chosen in itertools.product(sizes, groups):
            settings = {**self.settings, "block_size": size, **changes}
            rows = self.run(chosen, settings)
            for number, row in list(zip(chosen, rows, strict=True))[:1 if first else None]:
                pairs = enumerate(itertools.zip_longest(wanted(number, settings), row))
                found = next((Difference(number, place, *pair, {**settings, "prompts": chosen})
                              for place, pair in pairs if pair[0] != pair[1]), None)
                yield found is None, found

    def row(self, name: str, findings: Findings, needs: str, wrong: str = FAILED) -> Row:
        """Return the check of these findings; without any, it `needs` something."""
        count, found = 0, None
        try:
            for right, found in findings:
                count += 1
                if not right:
                    return Row(name, wrong, str(found), found)
        except NotImplementedError as error:
            return Row(name, NOT_SUPPORTED, f"{first_line(error)} (after {count} sequences)")
        except Exception as error:
            return Row(name, FAILED, f"raised {type(error).__name__}: {first_line(error)} (after "
                       f"{count} sequences)")
        if not count:
            return Row(name, NOT_TESTED, f"needs {needs}")
        return Row(name, PASSED, f"{count} sequences" if found is None else str(found), found)

    def greedily(self, sizes: Sequence[int], seeds: Sequence[int],
                 lengths: Sequence[int]) -> Iterator[Row]:
        """Yield the checks at temperature 0."""
        every, alone, several = (1, *sizes), [[one] for one in self.all], len(self.all) > 1
        beside = [self.all[::-1], *([one, (one + 1) % len(self.all)] for one in self.all)]
        compare = partial(self.compare, lambda number, settings: self.greedy[number][
            :settings["length"]])
        other_seeds = (compare(alone, every, seed=seed) for seed in seeds)
        others = (compare(alone, every, length=length) for length in lengths)
        yield self.row("block sizes", compare(alone, sizes), "block sizes")
        yield self.row("batches", compare([self.all] * several, every), "several prompts")
        yield self.row("neighbours", compare(beside * several, every), "several prompts")
        yield self.row("seeds", itertools.chain.from_iterable(other_seeds), "seeds")
        yield self.row("lengths", itertools.chain.from_iterable(others), "lengths")

    def sampled(self, sizes: Sequence[int], promised: Collection[str],
                **sampling: Any) -> Iterator[Row]:  # noqa: ANN401 -- as above
        """Yield the checks of single samples."""
        every, alone = (1, *sizes), [[one] for one in self.all]
        rotated = [self.all[one:] + self.all[:one] for one in self.all if len(self.all) > 1]

        def again(number: int, settings: Any, **changes: Any) -> Tokens:  # noqa: ANN401 -- as above
            return self.run([number], {**settings, **changes})[0]

        for name, findings in {
            SAME_SEED: self.compare(again, alone, every, **sampling),
            BESIDE: self.compare(again, rotated, every, first=True, **sampling),
            AS_UNDRAFTED: self.compare(partial(again, block_size=1), alone, sizes, **sampling),
        }.items():
            yield self.row(name, findings, "several prompts",
                           FAILED if name in promised else DIFFERS)

    def distributions(self, sizes: Sequence[int], expected: Mapping[Tokens, float] | None,
                      calls: int, batch: int, alpha: float, **sampling: Any) -> Iterator[Row]:  # noqa: ANN401 -- as above
        """Yield the checks of the distribution."""
        @cache
        def sample(size: int, part: int = 0) -> list[Tokens]:
            seeds = range(part * calls, (part + 1) * calls)
            return [tokens for seed in seeds for tokens in self.run(
                [0] * batch, {"block_size": size, "seed": seed, **sampling})]

        def finding(size: int) -> Findings:
            found = (chi_square(sample(size), expected) if expected
                     else chi_square_of_two(sample(size), sample(1, 1)))
            if found.degrees or found.p == 0:
                yield found.p >= alpha, found

        for size in (1, *sizes) if expected else sizes:
            yield self.row(f"distribution, block {size}", finding(size),
                           "more samples, or fewer possible sequences")

    def limits(self) -> Iterator[Row]:
        """Yield the checks of what was noted of the sequences of all calls."""
        for name, wrong, count, needs in (
            ("largest length", self.too_long, self.count, "sequences"),
            ("end tokens", self.past_end, self.ended, "sequences that end within blocks"),
        ):
            findings: list[Any] = [(False, one) for one in wrong] or [(True, None)] * count
            yield self.row(name, iter(findings), needs)


def check_lossless(
    decode: Decode, prompts: Sequence[Any], *, length: int, end_token: Hashable = None,
    block_sizes: Sequence[int] = (2, 4, 7), lengths: Sequence[int] = (1, 2, 3),
    seeds: Sequence[int] = (1, 2), temperature: float = 1.0,
    p1: Callable[[Any, list[Tokens]], npt.ArrayLike] | None = None, samples: int = 5000,
    sampled_length: int = 3, batch: int = 1, promised: Collection[str] = (SAME_SEED,),
    alpha: float = 1e-6,
) -> Report:
    """Test whether a decoder gives with drafts what it gives without.

    At temperature 0, every prompt must have the tokens that it has alone and without drafts: with
    any block size, neighbours, seed and length. Samples must have the distribution of p1. A
    lossless sampler need not give the same sample for the same seed, beside other prompts, or with
    other drafts: such differences fail only what is `promised`.

    Args:
        decode: your decoder; see `Decode`.
        prompts: what to decode, such as 8 prompts of different lengths. The distribution is tested
            with the first.
        length: largest number of tokens.
        end_token: token that ends a sequence. Choose prompts of which some end before `length`.
        block_sizes: block sizes with drafts.
        lengths: smaller numbers of tokens.
        seeds: seeds that must not matter at temperature 0.
        temperature: of sampling, above 0.
        p1: returns the probabilities [N, V] of the token after each of N prefixes of one length for
            a prompt, after temperature and filters. Without it, samples with drafts are compared
            with samples without, which finds less.
        samples: number of samples of each block size; 0 leaves out the checks of sampling.
        sampled_length: number of tokens of these samples: few sequences should be possible.
        batch: number of samples per call, if the rows of a call are independent.
        promised: what the decoder promises of single samples, of `SAME_SEED`, `BESIDE` and
            `AS_UNDRAFTED`.
        alpha: the largest p of a distribution that fails.

    Raises:
        ConfigError: an argument is out of its range.
        InvalidInputError: `p1` returns no probabilities.
    """
    sizes = tuple(block_sizes)
    require(len(prompts) > 0 and length > 0, "give one prompt and a length of 1 at least")
    require(min(sizes, default=2) > 1, f"block_sizes must be above 1, not {sizes}; leave out 1, "
            "which decodes without drafts")
    require({*promised} <= {SAME_SEED, BESIDE, AS_UNDRAFTED}, "promised must be of "
            f"{SAME_SEED!r}, {BESIDE!r} and {AS_UNDRAFTED!r}, not {promised}")
    checker = _Checker(decode, prompts, length, end_token)
    rows = list(checker.greedily(sizes, seeds, lengths))
    if samples:
        expected = p1 and prefix_probabilities(partial(p1, prompts[0]), sampled_length, end_token)
        rows += checker.sampled(sizes, promised, seed=1, temperature=temperature)
        rows += checker.distributions(sizes, expected or None, -(-samples // batch), batch, alpha,
                                      temperature=temperature, length=sampled_length)
    return Report([*rows, *checker.limits()])
