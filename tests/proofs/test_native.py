"""The compiled step computes what the network computes, and every block width gives the same
bits."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from fakes import (
    NATIVE,
    PLAIN,
    SMALL,
    VARIANTS,
    Unruled,
    draft_of,
    drafted,
    limits_of,
    on_native,
    proposer_for,
    random_model,
    random_tokens,
    without_compilers,
)

from decodes import algorithm_of, decode, iterations, result_of
from superres.config import CostRecord, DecodeConfig, ModelConfig, StepCosts
from superres.decoding.acceptance import CRITERIA
from superres.decoding.plain.limited import LimitedModel
from superres.decoding.plain.sampling import GREEDY
from superres.decoding.proposers.proposer import Proposer
from superres.decoding.proposers.verifier import HeadProposer
from superres.errors import ScoresError
from superres.native import build, weights
from superres.native import engine as native_engine
from superres.native.build import NativeUnavailable
from superres.native.engine import NativeEngine
from superres.native.on_torch import ModelOnTorch
from superres.nn.torch_model import StepModel
from superres.nn.weights import network_of
from superres.pipeline.choose import engine_of
from tests.nn.helpers import check_steps
from tests.proofs.test_consistency import assert_consistent

KNOWN = {name: replace(config, **NATIVE) for name, config in VARIANTS.items() if config.identity_p1}
BLOCKS = replace(KNOWN["sequential heads"], attention_block_length=20, target_shape=(8, 8, 3),
                 source_shape=(4, 4, 3))

pytestmark = pytest.mark.skipif(build.compiler() is None, reason="no C++ compiler on this machine")


@dataclass
class Sessions:
    """How an engine decodes: `rows_at_once` rows at a time, and `whole` iterations in compiled code
    or none."""

    whole: bool = True
    rows_at_once: int | None = None
    asked: int = 0


class PreparedEngine(NativeEngine):
    """A native engine that decodes as `sessions` say, which count the decodes of whole
    iterations."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.sessions = Sessions()

    def _planned(self, *arguments):
        threads = super()._planned(*arguments)
        threads.rows_at_once = self.sessions.rows_at_once or threads.rows_at_once
        return threads

    def supporting(self, algorithm):
        engine = super().supporting(algorithm) if self.sessions.whole else self._plain
        self.sessions.asked += engine is self
        return engine


def prepared(network, *arguments, **options):
    """Return the prepared engine of a network on torch, as a model on torch."""
    return ModelOnTorch(PreparedEngine(network_of(network), *arguments, **options))


def model_of(config, **options):
    return prepared(random_model(config, dtype=torch.float32), **options)


def by_steps(model, *arguments, **options):
    """Decode with `model`, whose engine leaves iterations to the loop."""
    model.native.sessions, before = Sessions(whole=False), model.native.sessions
    decoded = decode(model, *arguments, **options)
    model.native.sessions = before
    return decoded


def close(actual, expected):
    torch.testing.assert_close(actual.double(), expected, rtol=1e-3, atol=3e-3)


@pytest.mark.parametrize(("config", "width", "rows"), [
    *((config, 3, 3) for config in KNOWN.values()), (KNOWN["sequential heads"], 1, 1),
    *((BLOCKS, width, 2) for width in (4, 13, 25)),  # many wraps of the ring
])
def test_the_step_equals_the_uncached_network(config, width, rows):
    session = model_of(config, threads=2).session(random_tokens(config, rows)[0], width)
    check_steps(random_model(config), width, rows, session=session, close=close)


@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize(("variant", "rows"),
                         [(name, (1, 5)[number % 2]) for number, name in enumerate(KNOWN)])
def test_scores_do_not_depend_on_width_or_threads_by_a_single_bit(variant, rows, precision):
    config = KNOWN[variant]
    model = random_model(config, dtype=torch.float32)
    source, target = random_tokens(config, rows)
    inputs = torch.cat([torch.zeros(rows, 1, dtype=torch.int64), target], dim=1)

    def scores(width, threads):
        session = on_native(model, threads=threads, precision=precision).session(source, width)
        session.native.session.threads.least_columns = 1
        steps = range(0, config.target_length - width + 1, width)
        start = torch.zeros(rows, dtype=torch.int64)
        return torch.cat([session.step(inputs[:, p : p + width], start + p).scores for p in steps],
                         dim=1)

    single = scores(1, 1)
    for width, threads in ((2, 1), (3, 2), (10, 4)):
        several = scores(width, threads)
        assert torch.equal(several, single[:, : several.shape[1]])


@pytest.fixture
def exact_heads(monkeypatch):
    """Pack heads as float32, so that torch, which has no others, makes the same proposals from
    their scores."""
    monkeypatch.setattr(weights, "PROPOSING", "float32")


@pytest.mark.usefixtures("exact_heads")
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8}], ids=["greedy", "Gumbel"])
@pytest.mark.parametrize("variant", ["base aids", "sequential heads", "no free scores",
                                     "recurrent heads"])
def test_the_same_is_proposed_as_by_the_plain_step(variant, sampling):
    config = KNOWN[variant]
    source = random_tokens(config, 3)[0]
    options = DecodeConfig(accept="distance", epsilon=1, **sampling)
    plain, compiled = (decode(kind(random_model(config, dtype=torch.float32)), source, options)
                       for kind in (StepModel, on_native))
    assert torch.equal(plain.tokens, compiled.tokens)
    assert [trace.accepted for trace in plain.traces] == [trace.accepted
                                                          for trace in compiled.traces]


WHOLE = {
    "greedy": DecodeConfig(1), "exact": DecodeConfig(), "distance": DecodeConfig(accept="distance",
                                                                                 epsilon=1),
    "top-k": DecodeConfig(accept="top-k", top_k=2), "minimum block": DecodeConfig(4, min_block=2),
    "Gumbel, alone": DecodeConfig(1, temperature=0.8),
    "Gumbel": DecodeConfig(temperature=0.8, seed=2**62 + 1),
    "Gumbel, filters": DecodeConfig(temperature=0.8, sample_top_k=5, nucleus=0.8, accept="distance",
                                    epsilon=1),
    "Gumbel, top-k": DecodeConfig(temperature=0.8, accept="top-k", top_k=3, sample_top_k=4),
    "Gumbel, nucleus": DecodeConfig(temperature=0.8, nucleus=0.8, accept="distance", epsilon=2),
    "colours, top-k": DecodeConfig(temperature=(0.9, 0.5, 0.7), accept="top-k", top_k=2,
                                   sample_top_k=9),
    "speculative": DecodeConfig(temperature=0.8, sampling="speculative"),
    "speculative, alone": DecodeConfig(1, temperature=0.8, sampling="speculative"),
    "speculative, filters": DecodeConfig(temperature=0.8, sampling="speculative", sample_top_k=6,
                                         nucleus=0.9),
}


def assert_same_decode(one, other):
    assert torch.equal(one.tokens, other.tokens)
    assert torch.equal(one.lengths, other.lengths)
    for first, second in zip(one.traces, other.traces, strict=True):
        assert (first.positions, first.accepted) == (second.positions, second.accepted)
        assert first.proposed.tolist() == second.proposed.tolist()


TEXT = replace(KNOWN["text"], vocabulary=300)
LIMITED = replace(KNOWN["no free scores"], target_shape=(8, 8, 3), vocabulary=9)
CASES = [
    *((KNOWN[("sequential heads", "recurrent heads")[number % 2]], "heads", way) for number,
      way in enumerate(WHOLE)),
    *((config, proposer, way) for config, way in ((KNOWN["sequential heads"], "Gumbel"),
                                                  (TEXT, "speculative, filters"))
      for proposer in ("jacobi", "draft", "ngram", "lookup")),
    *((LIMITED, "heads", way) for way in ("distance", "top-k", "speculative, filters")),
    *((LIMITED, proposer, "Gumbel") for proposer in ("jacobi", "draft", "lookup")),
    (replace(LIMITED, **PLAIN, head_layer="per-head", free_scores=True, vocabulary=300), "heads",
     "exact"),
]
"""Networks, proposers and ways of decoding; targets of the last networks are limited to those that
fit the source."""

COMPILED = "heads", "draft"
"""The proposers of these cases that compiled iterations know; the plain decoder runs the others."""


def case_name(value):
    return f"{value.head_layer}-{value.vocabulary}" if isinstance(value, ModelConfig) else None


def made(name, model):
    """Return the proposer `name` for a model; a draft model runs in compiled code as well."""
    inner, limits = ((model.model, model.limits.limits) if isinstance(model, LimitedModel)
                     else (model, None))
    if name != "draft":
        return proposer_for(name, inner)
    return drafted(on_native(draft_of(inner).model, model.end_token), limits)


@pytest.mark.usefixtures("exact_heads")
@pytest.mark.parametrize(("config", "proposer", "way"), CASES, ids=case_name)
def test_whole_iterations_do_what_the_loop_does(config, proposer, way):
    limited = config.target_shape == LIMITED.target_shape
    options, source = replace(WHOLE[way], proposer=proposer), random_tokens(config, 3)[0]
    for end_token in (None,) if limited else (None, 3):
        inner = model_of(config, end_token=end_token, threads=2)
        model = LimitedModel(inner, limits_of(config)) if limited else inner
        whole = decode(model, source, options, proposer=made(proposer, model))
        wider = decode(model, source, options, width=7, proposer=made(proposer, model))
        assert inner.native.sessions.asked == (2 if proposer in COMPILED else 0)
        assert torch.equal(wider.tokens, whole.tokens)
        assert_same_decode(whole, by_steps(inner, source, options, proposer=made(proposer, model),
                                           limits=model.limits.limits if limited else None))
        if limited:
            assert_consistent(whole.tokens, source, config)


def test_a_draft_of_another_engine_and_a_class_of_the_user_are_left_to_the_loop():
    model, source = model_of(KNOWN["sequential heads"]), random_tokens(KNOWN["sequential heads"],
                                                                       1)[0]

    class Own(HeadProposer):
        def propose(self, context, offsets):
            return torch.zeros_like(super().propose(context, offsets))

    decoded = decode(model, source, DecodeConfig(block_size=3), proposer=Own())
    assert all(set(proposed[1:]) == {0} for proposed in decoded.traces[0].proposed.tolist()[:-1])
    drafted = decode(model, source, DecodeConfig(block_size=3, proposer="draft"),
                     proposer=proposer_for("draft", model))
    assert torch.equal(drafted.tokens, decode(model, source, DecodeConfig(1)).tokens)


@pytest.mark.usefixtures("exact_heads")
@torch.inference_mode()
@pytest.mark.parametrize("way", ["Gumbel", "Gumbel, filters", "speculative",
                                 "speculative, filters"])
def test_sampled_iterations_keep_their_distributions_when_block_sizes_and_rows_change(way):
    model, source = model_of(KNOWN["sequential heads"]), random_tokens(KNOWN["sequential heads"],
                                                                       4)[0]
    decodes = []
    for whole in (True, False):
        model.native.sessions = Sessions(whole=whole)
        loop = next(iterations(model, source, WHOLE[way], adaptive=5))
        for number in range(12):
            loop.run(2)
            loop.decoder.resize(1 + number * 2 % 5)
        loop.keep(np.array([2, 0]))
        while not loop.done():
            loop.run(3)
        decodes.append(result_of(loop))
    assert_same_decode(*decodes)


@pytest.mark.usefixtures("exact_heads")
@pytest.mark.parametrize("temperature", [0.3, 30.0])
def test_samples_of_many_words_are_those_of_the_loop(temperature):
    config = replace(KNOWN["text"], vocabulary=1003)
    model, source = model_of(config), random_tokens(config, 3)[0]
    for options in ({}, {"nucleus": 0.7}, {"sampling": "speculative"}):
        sampled = DecodeConfig(temperature=temperature, **options)
        assert_same_decode(decode(model, source, sampled), by_steps(model, source, sampled))


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("apart", [0.0, 1e-7, 1e-3])
@pytest.mark.parametrize("variant", ["text", "recurrent heads"])
def test_the_best_of_many_words_is_found_however_close_the_next(variant, apart, half):
    config = replace(KNOWN[variant], vocabulary=1003)
    network = random_model(config, dtype=torch.float32)
    network.project.weight[250:1000] = network.project.weight[:250].repeat(3, 1) * (1 + apart)
    if half:  # weights that are stored as bfloat16
        network.to(torch.bfloat16).float()
    model, source = prepared(network), random_tokens(config, 4)[0]
    for k in (1, 4):
        whole = decode(model, source, DecodeConfig(k))
        assert_same_decode(whole, by_steps(model, source, DecodeConfig(k)))
        assert len(whole.tokens.unique()) > 5


class Undescribed(HeadProposer):
    """A proposer of the user, which has no form as data."""

    as_data = Proposer.as_data


@pytest.mark.parametrize("temperature", [0.0, 0.5])
@pytest.mark.parametrize(("accept", "proposer"), [("unruled", None), ("exact", Undescribed())])
def test_iterations_that_the_code_does_not_know_are_left_to_the_loop(accept, proposer, temperature,
                                                                     monkeypatch):
    monkeypatch.setitem(CRITERIA, "unruled", Unruled)
    model, source = model_of(KNOWN["sequential heads"]), random_tokens(KNOWN["sequential heads"],
                                                                       1)[0]
    decode(model, source, DecodeConfig(3, accept, temperature=temperature), proposer=proposer)
    assert not model.native.sessions.asked
    decode(model, source, DecodeConfig(block_size=3))
    assert model.native.sessions.asked


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_a_selected_row_continues_as_the_row_that_it_copies(precision):
    source, target = random_tokens(BLOCKS, 1)
    # more than fits the ring
    session, length = model_of(BLOCKS, precision=precision).session(source, 3, None, 2), 37
    for start in range(0, length, 3):
        tokens = target[0, start : start + 3]
        session.step(torch.stack([tokens, tokens.flip(0)]), torch.full((2,), start))
    session.select(torch.tensor([1, 1]), length)
    scores = session.step(target[:, :3].repeat(2, 1), torch.full((2,), length)).scores
    assert torch.equal(scores[0], scores[1])


def test_rounded_weights_encode_nearly_alike():
    """A decoder of random weights multiplies the difference of its conditioning, so only the memory
    is compared."""
    model = random_model(KNOWN["base aids"], dtype=torch.float32)
    source, _ = random_tokens(KNOWN["base aids"], 2)
    memories = [on_native(model, precision=one).encode(source) for one in ("float32", "int8")]
    for name in ("states", "position_table", "estimate"):
        full, rounded = (getattr(memory, name) for memory in memories)
        assert not torch.equal(full, rounded)
        assert (full - rounded).norm() < 0.05 * full.norm()


@pytest.mark.parametrize("variant", ["no conditioning", "text"])
def test_rounded_weights_score_nearly_alike(variant):
    config = KNOWN[variant]
    model = random_model(config, dtype=torch.float32)
    source, target = random_tokens(config, 2)
    position = torch.zeros(2, dtype=torch.int64)
    full, rounded = (on_native(model, precision=one).session(source, 8).step(target[:, :8],
                                                                             position).scores
                     for one in ("float32", "int8"))
    assert not torch.equal(full, rounded)
    assert (full - rounded).norm() < 0.05 * full.norm()


@pytest.mark.parametrize(("known", "cores", "limit", "rows", "expected"), [
    (2, 2, 8, 1, 2), (2, 2, 1, 1, 1), (2, 2, 8, 17, 8),  # a row may have a thread of its own
    (1, 4, 8, 17, 1),  # more threads did not gain
    (2, 0, 8, 1, 2),  # nothing was measured
])
def test_a_session_takes_the_threads_and_rows_of_its_record(known, cores, limit, rows, expected,
                                                            monkeypatch):
    engine = model_of(BLOCKS).native
    engine.costs = CostRecord({"1": StepCosts((1.0,), 1.0, threads=known, together=2), "16":
                               StepCosts((1.0,), 1.0, threads=known, together=8)}, cores=cores)
    monkeypatch.setattr(native_engine, "most_threads", lambda: limit)
    memory = engine.encode(random_tokens(BLOCKS, rows)[0].numpy())
    threads = engine.session(memory, 3).session.threads
    assert threads.count == expected
    assert threads.rows_at_once == (8 if rows > 1 else 2)
    engine.threads = 3
    assert engine.session(memory, 3).session.threads.count == 3


def test_rows_that_a_thread_decodes_together_have_the_scores_that_they_have_alone():
    model = model_of(BLOCKS, threads=1)
    model.native.costs = CostRecord({"1": StepCosts((1.0,), 1.0, together=8)})
    source, target = random_tokens(BLOCKS, 17)
    together, alone = model.session(source, 3), [model.session(source[row : row + 1], 3)
                                                 for row in range(17)]
    for start in (0, 3):
        position = torch.full((17,), start)
        scores = together.step(target[:, start : start + 3], position).scores
        for row, session in enumerate(alone):
            own = session.step(target[row : row + 1, start : start + 3], position[:1]).scores
            assert torch.equal(scores[row], own[0])


@pytest.mark.parametrize(("change", "message"), [
    ({"identity_p1": False}, "p1"), ({"width": 24}, "multiples of 32"),
    ({"attention_heads": 4}, "multiple of 16"),
])
def test_a_network_that_the_code_does_not_know_gets_the_plain_step_and_one_line(change, message,
                                                                                caplog):
    network = network_of(random_model(replace(SMALL, **{**NATIVE, **change})))
    assert type(engine_of(network).on_torch()) is StepModel
    assert len(caplog.records) == 1
    assert message in caplog.text


def test_bytes_are_the_default_and_float32_serves_an_attention_head_too_wide_for_them(caplog):
    network = network_of(random_model(replace(SMALL, **NATIVE)))
    assert engine_of(network).name == "native-int8"
    assert not caplog.records
    network = network_of(random_model(replace(SMALL, **{**NATIVE, "width": 288,
                                                        "attention_heads": 1})))
    with pytest.raises(NativeUnavailable, match="at most 256, not 288; choose native"):
        engine_of(network, engine="native-int8")
    assert engine_of(network).name == "native"
    (line,) = caplog.messages
    assert line.startswith("decoding with the engine native, which takes about twice as long: with "
                           "int8")


def test_without_a_compiler_the_plain_step_serves(monkeypatch, caplog):
    monkeypatch.setattr(build, "search", build.search.__wrapped__)
    without_compilers(monkeypatch)
    network = network_of(random_model(replace(SMALL, **NATIVE)))
    assert type(engine_of(network).on_torch()) is StepModel
    assert "no C++ compiler" in caplog.text


def session_of(rows=2, width=3, config=KNOWN["sequential heads"]):
    return model_of(config).session(random_tokens(config, rows)[0], width)


@pytest.mark.parametrize("change", [
    {"tokens": torch.zeros(2, 4, dtype=torch.int64)},
    {"tokens": torch.zeros(2, 3, dtype=torch.int32)},
    {"tokens": torch.zeros(3, 3, dtype=torch.int64)},
    {"position": torch.zeros(1, dtype=torch.int64)}, {"position": torch.zeros(2)},
])
def test_what_the_compiled_code_would_read_past_is_refused(change):
    session = session_of()
    given = {"tokens": torch.zeros(2, 3, dtype=torch.int64),
             "position": torch.zeros(2, dtype=torch.int64)}
    session.step(**given)
    with pytest.raises(ValueError, match="the native step wants"):
        session.step(**given | change)


def decoder_of(block_size=3, min_block=1):
    """Return a native decoder of two rows, whose steps have up to three columns."""
    model = model_of(KNOWN["sequential heads"])
    algorithm = algorithm_of(model, DecodeConfig(3), width=3)
    object.__setattr__(algorithm.options, "min_block", min_block)  # also what settings refuse
    source = random_tokens(KNOWN["sequential heads"], 2)[0].numpy()
    encoded = model.native.encode(source, None, algorithm)
    return model.native.start(encoded, np.arange(2), algorithm, block_size)


@pytest.mark.parametrize("change", [
    {"block_size": 0}, {"block_size": 4}, {"min_block": 4}, {"min_block": -1}])
def test_iterations_that_would_write_past_their_memory_are_refused(change):
    assert decoder_of().advance(2).shape == (2, 2, 5)
    with pytest.raises(ValueError, match="steps of 3 cannot verify blocks"):
        decoder_of(**change)


def test_blocks_and_widths_without_memory_are_refused():
    decoder = decoder_of(2)
    session = decoder.session
    session.resize(2)
    for width in (0, 4):
        with pytest.raises(ValueError, match=f"up to 3 tokens cannot read {width}"):
            session.resize(width)
    for following in (0, 4):
        decoder.resize(following)
        with pytest.raises(ValueError, match=f"steps of 2 that propose blocks of {following}"):
            decoder.advance(1)
    decoder.resize(2)
    session.resize(1)
    with pytest.raises(ValueError, match="no memory for steps of 1"):
        decoder.advance(1)
    for width in (2, 3):
        session.resize(width)
        assert decoder.advance(1).shape == (1, 2, 5)
        assert session.width == 2  # as the blocks


def test_more_proposals_than_heads_are_refused():
    session, zeros = session_of(), torch.zeros(2, dtype=torch.int64)
    output = session.step(torch.zeros(2, 3, dtype=torch.int64), zeros)
    with pytest.raises(ValueError, match="5 proposals were requested"):
        session.propose(output, zeros, zeros, torch.arange(1, 6), GREEDY)
    config = KNOWN["recurrent heads"]
    session = model_of(config).session(random_tokens(config, 2)[0], 1)  # steps of one token
    output = session.step(torch.zeros(2, 1, dtype=torch.int64), zeros)
    with pytest.raises(ValueError, match="1 proposals were requested from 0 heads"):
        session.propose(output, zeros, zeros, torch.arange(1, 2), GREEDY)


@pytest.mark.parametrize("value", [float("nan"), 1e38])
@pytest.mark.parametrize("variant", ["no conditioning", "base aids", "sequential heads", "text",
                                     "recurrent heads"])
def test_scores_that_are_not_finite_end_a_decode(variant, value):
    config = KNOWN[variant]
    network = random_model(config, dtype=torch.float32)
    with torch.no_grad():
        for weight in network.decoder.parameters():
            weight.fill_(value)
    model, source = on_native(network), random_tokens(config, 3)[0]
    with pytest.raises(ScoresError, match="not finite"):
        decode(model, source, DecodeConfig())
