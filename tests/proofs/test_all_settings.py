"""All settings at once: valid combinations of engines and settings decode as `reference.py` does.

A row of every draw is decoded again by `superres.decoding.reference`, with the same proposals: that
covers acceptance, minimum blocks, limits and end tokens. Iterations of compiled code are compared
with the loop around compiled steps, proposals included. Where the reference lacks the distributions
of the proposals, as those of compiled heads, or several of them are verified in turn, a sequence
must be decoded beside others as alone. `SUPERRES_DRAWS` (conftest.py) sets the number of draws.

Every proposer, fixed or adaptive, then decodes by every door on every engine: the tokens of greedy
decoding, or one and the same line that names the remedy.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from fakes import (
    NATIVE,
    TINY,
    VARIANTS,
    draft_of,
    drafted,
    limits_of,
    on_native,
    proposer_for,
    random_model,
    random_tokens,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import superres
from decodes import decode
from superres.checkpoint import save_checkpoint
from superres.cli.main import run
from superres.config import Confidence, DecodeConfig, general_costs
from superres.decoding import reference
from superres.decoding.acceptance import CRITERIA
from superres.decoding.confidence import ConfidentBlockSize
from superres.decoding.plain.limited import LimitedModel
from superres.decoding.proposers import PROPOSERS
from superres.decoding.proposers.ngram_table import NgramTable, count_ngrams
from superres.native import arrays, build
from superres.nn.torch_model import StepModel
from superres.pipeline.resources import NGRAMS
from superres.pipeline.upscaler import Upscaler
from superres.web.decoding import VisitorDecoding
from tests.proofs.test_consistency import assert_consistent
from tests.proofs.test_native import Sessions, assert_same_decode, prepared
from tests.proofs.test_refill import refilled

DRAWS = settings().max_examples
ENGINES = {"native": "float32", "native-int8": "int8"}
compiled = pytest.mark.skipif(build.compiler() is None, reason="no C++ compiler on this machine")

PICTURES = {name: replace(VARIANTS[name], **NATIVE) for name in (
    "base aids", "sequential heads", "no free scores", "hyperbolic")}
PICTURES["sequential heads alone"] = replace(PICTURES["sequential heads"], free_scores=False)
TEXTS = {name: replace(VARIANTS[name], **NATIVE) for name in ("text", "recurrent heads")}
NETWORKS = {**PICTURES, **TEXTS}
CONFIDENT = {"no free scores", "hyperbolic", "sequential heads alone", "recurrent heads"}
"""Networks whose heads tell how likely their proposals pass."""

HEADS = VARIANTS["base aids"].prediction_heads


@dataclass(frozen=True)
class Draw:
    """A decode: what decodes, with which settings, and how."""

    engine: str
    network: str
    options: DecodeConfig
    seed: int = 0
    rows: int = 2
    end_token: int | None = None
    limited: bool = False  # whether sums of tokens are limited, as in consistent pictures
    chooser: str = "fixed"  # or "costs" (one block size, by the costs) or "confident"
    confidence: Confidence | None = None
    width: int | None = None
    refilled: int = 0  # rows that are decoded at a time; 0 decodes all rows as one batch
    threads: int = 1
    rows_at_once: int = 2
    padded: bool = False


@st.composite
def sampled(draw, channels):
    """Draw settings of sampling; none for greedy decoding."""
    if draw(st.booleans()):
        return {}
    temperature = draw(st.sampled_from([0.3, 0.8, 1.5,
                                        *([(0.9, 0.5, 0.7)] if channels == 3 else [])]))
    return {"temperature": temperature, "seed": draw(st.sampled_from([0, 3, 2**62 + 1])),
            "sampling": draw(st.sampled_from(["coupled", "coupled", "speculative"])),
            "sample_top_k": draw(st.sampled_from([None, None, 2, 5])),
            "nucleus": draw(st.sampled_from([1.0, 1.0, 0.7]))}


@st.composite
def draws(draw, engines):
    """Draw a valid combination of all settings."""
    engine, network = draw(st.sampled_from(engines)), draw(st.sampled_from(list(NETWORKS)))
    config, proposer = NETWORKS[network], draw(st.sampled_from(list(PROPOSERS)))
    sampling = draw(sampled(config.channels))
    speculative = sampling.get("sampling") == "speculative"
    k = draw(st.integers(1, HEADS if proposer == "heads" else HEADS + 2))
    chain = proposer != "lookahead"
    limited = network in PICTURES and draw(st.booleans())
    end_token = None if limited else draw(st.sampled_from([None, 0, 3]))
    choosers = ["fixed"]
    if proposer == "heads":
        choosers.append("costs")
        if network in CONFIDENT and not sampling and k > 1:
            choosers += ["confident"] * 2
    chooser = draw(st.sampled_from(choosers))
    # In text, only exact acceptance has confident block sizes.
    exact = speculative or (chooser == "confident" and network in TEXTS)
    options = DecodeConfig(
        block_size=k, accept="exact" if exact else draw(st.sampled_from(list(CRITERIA))),
        epsilon=draw(st.integers(0, 3)), top_k=draw(st.integers(1, 4)),
        min_block=1 if exact or not chain else draw(st.integers(1, k)),
        proposer=proposer, window=draw(st.integers(1, 4)), candidates=draw(st.integers(1, 3)),
        adaptive=chooser != "fixed", **sampling)
    return Draw(
        engine, network, options, draw(st.integers(0, 2)), draw(st.integers(1, 4)), end_token,
        limited, chooser, Confidence(draw(st.sampled_from([-8, 0, 1, 8])),
                                     draw(st.sampled_from([0, 1]))),
        k + draw(st.integers(0, 2)) if chooser == "fixed" and chain and draw(st.booleans())
        else None, draw(st.integers(0, 2)), draw(st.integers(1, 3)), draw(st.integers(1, 3)),
        network in TEXTS and draw(st.booleans()))


@functools.cache
def model_of(engine, network, seed, end_token):
    """Return a small random network as a model."""
    config = NETWORKS[network]
    if engine == "plain":
        return StepModel(random_model(config, seed), end_token)
    return prepared(random_model(config, seed, torch.float32), end_token,
                    precision=ENGINES[engine])


class SingleScorer:
    """p1's scores by steps of one token: other kernels than torch's have the same bits at any
    width."""

    def __init__(self, model, source, padding=None):
        self.session, self.last, self.read, self.scores = (model.session(source, 1, padding),
                                                           model.length - 1, [], [])

    def __call__(self, tokens):
        """Return p1's scores [1, 1, V] of the token that follows `tokens`; any scores past the
        target's end."""
        tokens = tokens[: self.last]
        same = next((at for at, pair in enumerate(zip(self.read, tokens)) if pair[0] != pair[1]),  # noqa: B905
                    min(len(self.read), len(tokens)))
        # The step at position p reads token p - 1; position 0 reads the start of the sequence.
        del self.scores[same + 1 :]
        for position in range(len(self.scores), len(tokens) + 1):
            token = torch.tensor([[tokens[position - 1] if position else 0]])
            self.scores.append(self.session.step(token, torch.tensor([position])).scores)
        self.read = list(tokens)
        return self.scores[-1]


class Case:
    """What a draw decodes."""

    def __init__(self, drawn):
        self.drawn, self.options = drawn, drawn.options
        config = NETWORKS[drawn.network]
        self.inner = model_of(drawn.engine, drawn.network, drawn.seed, drawn.end_token)
        if drawn.engine != "plain":
            self.inner.native.threads = drawn.threads
            self.inner.native.sessions = Sessions(rows_at_once=drawn.rows_at_once)
        self.model = LimitedModel(self.inner, limits_of(config)) if drawn.limited else self.inner
        self.source = random_tokens(config, drawn.rows, drawn.seed)[0]
        lengths = torch.tensor([7, 3, 5, 1])[: drawn.rows, None]
        self.padding = torch.arange(config.source_length) >= lengths if drawn.padded else None
        self.keys = [7, 0, 2**61, 7][: drawn.rows]

    def proposer(self):
        name = self.options.proposer
        if name != "draft":
            return proposer_for(name, self.inner)
        draft = draft_of(self.inner)
        if self.drawn.engine != "plain":
            draft = on_native(draft.model, draft.end_token, threads=1)
        return drafted(draft, self.model.limits.limits if self.drawn.limited else None)

    def chooser(self):
        if self.drawn.chooser == "confident":
            costs = general_costs(0.15).of(1).up_to(self.options.block_size)
            return ConfidentBlockSize(self.drawn.confidence, costs, self.options,
                                      self.model.vocabulary, self.model.end_token)
        if self.drawn.chooser == "costs":
            return max(self.options.min_block, self.options.block_size - 1 - self.drawn.seed)
        return None

    def decode(self, rows=slice(None)):
        """Return the decode of `rows` as one batch."""
        padding = None if self.padding is None else self.padding[rows]
        return decode(self.model, self.source[rows], self.options, padding=padding,
                      keys=self.keys[rows], width=self.drawn.width, proposer=self.proposer(),
                      adaptive=self.chooser())

    def decode_by_steps(self):
        """Return the decode by the loop around compiled steps."""
        self.inner.native.sessions = Sessions(whole=False)
        return self.decode()

    def rows(self):
        """Return the tokens and the trace of every row, as a batch or in refilled rows."""
        if not self.drawn.refilled:
            decoded = self.decode()
            return [(tokens[:length].tolist(), trace) for tokens, length, trace in zip(
                decoded.tokens, decoded.lengths, decoded.traces, strict=True)]
        sizes = self.chooser()
        finished, _ = refilled(
            self.model, self.source, self.options, self.drawn.refilled, self.keys, [1, 0, 1],
            self.proposer(), self.padding, None if sizes is None else lambda source, padding: sizes)
        return [(one.tokens[: one.trace.tokens].tolist(), one.trace) for one in finished]

    def scorer(self, row, model=None):
        row = slice(row, row + 1)
        if model is None and self.drawn.engine == "plain" and self.padding is None:
            return None
        return SingleScorer(model or self.model, self.source[row],
                            None if self.padding is None else self.padding[row])

    @property
    def is_known(self):
        """Whether the reference knows the distributions of the proposals."""
        return self.options.sampling == "coupled" or self.options.proposer not in ("heads",
                                                                                   "lookahead")

    def reference(self, row, trace, length):
        """Decode one row by the reference, with the proposals of a trace."""
        proposals = {}
        for position, accepted, block in zip(trace.positions, trace.accepted,
                                             trace.proposed.tolist(), strict=True):
            # A step of lookahead may verify several candidates; its trace has the best one, or none
            # that passed.
            alone = self.options.proposer == "lookahead" and accepted == 1
            proposals[position] = [] if alone else [token for token in block[1:] if token != -1]
        drawn = self.options.proposer == "draft" and self.options.sampling == "speculative"
        source = {"draft": self.scorer(row, self.proposer().model)} if drawn else {
            "propose": lambda tokens, first: proposals[len(tokens)]}
        return reference.decode(
            self.model, self.source[row : row + 1], self.options, self.options.block_size,
            self.keys[row], p1=self.scorer(row), length=length, **source)

    @property
    def proposes_in_steps_alike(self):
        """Whether single steps compute the same proposals as native iterations, bit for bit."""
        options = self.options
        plain = not (self.drawn.limited or options.sample_top_k or options.nucleus < 1)
        by_heads = options.proposer == "heads"  # torch adds their sums in another order
        return (self.drawn.chooser != "confident"
                and not (by_heads and (options.sampling == "speculative" or not plain)))


def check(drawn):
    """Decode, and compare with the references."""
    case, options = Case(drawn), drawn.options
    longest = case.model.session(case.source, 1, case.padding).longest
    rows = case.rows()
    if drawn.limited:
        assert_consistent(torch.tensor([tokens for tokens, _ in rows]), case.source,
                          NETWORKS[drawn.network])
    for tokens, trace in rows:
        assert trace.sequence.tolist() == tokens
        assert all(1 <= accepted <= options.block_size for accepted in trace.accepted)
    number = drawn.seed % len(rows)
    tokens, trace = rows[number]
    if case.is_known:
        most = (case.model.length if longest is None or drawn.end_token is None
                else int(longest[number]))
        steps = case.reference(number, trace, most)
        assert (tokens, trace.accepted) == (reference.tokens_of(steps),
                                            [step.accepted for step in steps])
    if drawn.engine != "plain" and case.proposes_in_steps_alike:
        case.inner.native.sessions = Sessions(rows_at_once=drawn.rows_at_once)
        assert_same_decode(case.decode(), case.decode_by_steps())
    if drawn.chooser == "fixed" and options.sampling == "speculative":
        alone = case.decode(slice(number, number + 1))
        assert (tokens, trace.accepted) == (alone.traces[0].sequence.tolist(),
                                            alone.traces[0].accepted)


@pytest.fixture(scope="module", autouse=True)
def _filled_memory():
    """Fill new memory: a value that is read before it is written then changes a result, or is no
    address."""
    empty, within = torch.empty, arrays._within
    whole = {"int64": 2**40, "int32": 2**30, "uint16": 2**16 - 1, "uint8": 255}

    def value(dtype):
        name = str(dtype).removeprefix("torch.")
        return np.nan if name.startswith("float") else whole[name]

    def filled(*shape, **options):
        tensor = empty(*shape, **options)
        return tensor.fill_(value(tensor.dtype))

    def filled_array(allocate, shape, dtype):
        array = within(allocate, shape, dtype)
        if allocate is np.empty:
            array.fill(value(dtype))
        return array

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "empty", filled)
        patch.setattr(arrays, "_within", filled_array)
        yield


@settings(max_examples=DRAWS // 2)
@given(draws(["plain"]))
def test_the_plain_engine_decodes_as_the_reference(drawn):
    check(drawn)


@compiled
@settings(max_examples=2 * DRAWS)
@given(draws(list(ENGINES)))
def test_compiled_engines_decode_as_the_reference(drawn):
    check(drawn)


NARROW = Draw(
    "native", "sequential heads alone", DecodeConfig(5, accept="distance", epsilon=2, min_block=3,
                                                     adaptive=True),
    limited=True, chooser="confident", confidence=Confidence(1, 1))
"""The block with which a row starts has one token, fewer than the minimum block."""


def permitted(scores, options):
    """Return the tokens that the filters leave, by a definition in float64 of its own."""
    p = np.exp(scores / options.temperature - (scores / options.temperature).max())
    order = np.argsort(-p)[: options.sample_top_k]
    before = np.cumsum(p[order]) - p[order]
    return set(order[before < options.nucleus * p[order].sum()].tolist())


@pytest.mark.parametrize(("network", "limited", "filters"), [
    ("base aids", False, {"sample_top_k": 2}),
    ("no free scores", True, {"sample_top_k": 3, "nucleus": 0.7}),
    ("text", False, {"nucleus": 0.5})], ids=str)
@pytest.mark.parametrize("engine",
                         ["plain", *(pytest.param(name, marks=compiled) for name in ENGINES)])
def test_a_minimum_block_holds_no_token_that_a_filter_excludes(engine, network, limited, filters):
    drawn = Draw(engine, network, DecodeConfig(5, min_block=4, temperature=1.5, **filters),
                 limited=limited)
    check(drawn)
    case, forced = Case(drawn), 0
    for row, trace in enumerate(case.decode().traces):
        scores_of, tokens = (SingleScorer(case.model, case.source[row : row + 1]),
                             trace.sequence.tolist())
        for place, token in enumerate(tokens):
            assert token in permitted(scores_of(tokens[:place])[0, 0].double().numpy(),
                                      drawn.options)
        forced += sum(accepted > 1 for accepted in trace.accepted)
    assert forced > 5


@compiled
def test_a_block_narrower_than_the_minimum_block_is_not_read_past_its_end():
    check(NARROW)  # such a read ends the process


PROPOSED = [*PROPOSERS.data, "above"]
SPELLED = {True: "--adaptive", False: "--no-adaptive"}


class Above(superres.Proposer):
    """Proposes the colours of the pixel above."""

    block_size = 3

    def propose(self, context, offsets):
        return context.tokens.gather(
            1, (context.position[:, None] + offsets - 3 * context.width).clamp(min=0)
        )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a checkpoint that has a draft model and n-grams, one that has neither, and an
    input."""
    folder = tmp_path_factory.mktemp("doors")
    config = replace(TINY, source_shape=(2, 2, 3), target_shape=(4, 4, 3), prediction_heads=4,
                     consistent=True)
    for seed, name in enumerate(("small", "alone", "small-draft")):
        save_checkpoint(random_model(config, seed, torch.float32), folder / name)
    targets = random_tokens(config, 20)[1].numpy()
    counts = count_ngrams(targets, NgramTable(3, config.vocabulary, 3), least=1)
    (folder / "small" / NGRAMS).write_bytes(counts.to_bytes())
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (2, 2, 3),
                                                      np.uint8)).save(folder / "input.png")
    superres.register_proposer("above")(Above)
    yield folder
    del PROPOSERS["above"]


def by_each_door(upscaler, folder, given, output, capsys):
    """Return what each door gives for an input: a picture, or a message."""
    source = np.asarray(Image.open(folder / "input.png"))[None]

    def command():
        words = ["upscale", folder / "input.png", "--checkpoint", upscaler.origin[0], "--engine",
                 upscaler.origin[2], "--device", "cpu", "--output", output, "--proposer",
                 given["proposer"], SPELLED[given["adaptive"]]]
        failed = run([str(word) for word in words])
        said = capsys.readouterr().err.strip()
        return (said.removeprefix("superres: ") if failed
                else np.asarray(Image.open(output / "input.png")))

    def page(options):
        decoder = VisitorDecoding(upscaler)
        *_, frames = decoder.upscale("test", source, {"": options})
        assert np.array_equal(decoder.draw("test", source[0], options).images, frames[""].images)
        return frames[""].images[0]

    doors = {
        "call": lambda options: upscaler(source, options).images[0],
        "stream": lambda options: [*upscaler.stream(source, options)][-1].images[0],
        "command": lambda _: command(), "page": page}
    found = {}
    for door, decoded in doors.items():
        try:
            found[door] = decoded(upscaler.options(**given))
        except superres.SuperresError as error:
            found[door] = str(error)
    return found


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("proposer", PROPOSED)
@pytest.mark.parametrize("engine",
                         ["plain", *(pytest.param(name, marks=compiled) for name in ENGINES)])
def test_every_door_decodes_greedily_with_every_proposer_and_engine(
        engine, proposer, adaptive, folder, tmp_path, capsys):
    upscaler = Upscaler.load(folder / "small", "cpu", engine)
    found = by_each_door(upscaler, folder, {"proposer": proposer, "adaptive": adaptive}, tmp_path,
                         capsys)
    greedy = upscaler(folder / "input.png", upscaler.options(block_size=1)).images[0]
    if proposer == "lookahead" and adaptive:
        assert {*found.values()} == {"the block size of lookahead is the length of its n-grams and "
                                     "cannot be adaptive; leave adaptive out, or choose another "
                                     "proposer"}
    else:
        assert {door: np.array_equal(image, greedy) for door,
                image in found.items()} == dict.fromkeys(found, True)


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize(("proposer", "remedy"), [("draft", "name its checkpoint with --draft"),
                                                  ("ngram", "name their file with --ngrams")])
def test_every_door_says_alike_what_a_proposer_lacks(proposer, remedy, adaptive, folder, tmp_path,
                                                     capsys):
    upscaler = Upscaler.load(folder / "alone", "cpu", "plain")
    (said,) = {*by_each_door(upscaler, folder, {"proposer": proposer, "adaptive": adaptive},
                             tmp_path, capsys).values()}
    assert remedy in said
    assert "\n" not in said
