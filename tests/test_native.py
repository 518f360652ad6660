"""The compiled step computes what the network computes, and every block width gives the same bits."""

from __future__ import annotations

import ctypes
import itertools
import logging
from dataclasses import replace

import pytest
import torch
from fakes import SMALL, VARIANTS, Restless, random_model, random_tokens
from stepping import check_steps

from superres.config import DecodeConfig
from superres.decoding.decode import decode
from superres.decoding.sampling import GREEDY
from superres.errors import ScoresError
from superres.interfaces import LoopState
from superres.nn.engines import step_model
from superres.nn.engines.native import build, thread_trials
from superres.nn.engines.native import session as native
from superres.nn.engines.native.build import NativeUnavailable
from superres.nn.engines.native.session import NativeModel
from superres.nn.engines.torch_model import StepModel

SIZES = {"width": 32, "filter_size": 64, "attention_heads": 2, "head_filter_size": 32}
"""Sizes that vectors divide."""

KNOWN = {
    name: replace(config, **SIZES) for name, config in VARIANTS.items()
    if config.identity_p1 and config.head_layer != "dense"
}
BLOCKS = replace(KNOWN["sequential heads"], attention_block_length=20, target_shape=(8, 8, 3), source_shape=(4, 4, 3))
WAYS = {"greedy": {}, "Gumbel": {"temperature": 0.8}, "quantile": {"temperature": (0.9, 0.5, 0.7), "noise": "quantile"}}

pytestmark = pytest.mark.skipif(build.compiler() is None, reason="no C++ compiler on this machine")


def model_of(config, **options):
    return NativeModel(random_model(config, dtype=torch.float32), **options)


def close(actual, expected):
    torch.testing.assert_close(actual.double(), expected, rtol=1e-3, atol=3e-3)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("width", "rows"), [(1, 1), (3, 3), (5, 1)])
@pytest.mark.parametrize("variant", KNOWN)
def test_the_step_equals_the_uncached_network(variant, width, rows, threads):
    config = KNOWN[variant]
    session = model_of(config, threads=threads).session(random_tokens(config, rows)[0], width)
    check_steps(random_model(config), width, rows, session=session, close=close)


@pytest.mark.parametrize("width", [4, 10, 13, 25])
def test_the_step_equals_the_uncached_network_over_many_wraps_of_the_ring(width):
    session = model_of(BLOCKS).session(random_tokens(BLOCKS, 2)[0], width)
    check_steps(random_model(BLOCKS), width, 2, session=session, close=close)


@pytest.mark.parametrize("variant", ["text", "recurrent heads"])
def test_padding_of_the_source_is_hidden(variant):
    config = KNOWN[variant]
    padding = torch.arange(config.source_length) >= torch.tensor([[7], [3], [5]])
    session = model_of(config).session(random_tokens(config, 3)[0], 3, padding)
    check_steps(random_model(config), 3, padding=padding, session=session, close=close)


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("variant", KNOWN)
def test_scores_do_not_depend_on_width_or_threads_by_a_single_bit(variant, rows):
    config = KNOWN[variant]
    model = random_model(config, dtype=torch.float32)
    source, target = random_tokens(config, rows)
    inputs = torch.cat([torch.zeros(rows, 1, dtype=torch.int64), target], dim=1)

    def scores(width, threads):
        session = NativeModel(model, threads=threads).session(source, width)
        steps = range(0, config.target_length - width + 1, width)
        start = torch.zeros(rows, dtype=torch.int64)
        return torch.cat([session.step(inputs[:, p : p + width], start + p).scores for p in steps], dim=1)

    single = scores(1, 1)
    for width, threads in ((1, 3), (2, 1), (3, 2), (5, 4), (10, 2)):
        several = scores(width, threads)
        assert torch.equal(several, single[:, : several.shape[1]])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("variant", ["base aids", "adaptive heads", "sequential heads", "no free scores", "text",
                                     "recurrent heads"])
def test_exact_blocks_are_greedy_tokens_bit_for_bit_at_any_width(variant, rows, way):
    config = KNOWN[variant]
    options = WAYS[way] if config.channels == 3 else {**WAYS[way], **({"temperature": 0.8} if WAYS[way] else {})}
    model, source = model_of(config), random_tokens(config, rows)[0]
    one = decode(model, source, DecodeConfig(block_size=1, **options))
    many = decode(model, source, DecodeConfig(**options))
    assert torch.equal(one.tokens, many.tokens)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("variant", ["base aids", "adaptive heads", "sequential heads", "no free scores",
                                     "recurrent heads"])
def test_the_same_is_proposed_as_by_the_plain_step(variant, way):
    config = KNOWN[variant]
    source = random_tokens(config, 3)[0]
    one = {} if config.channels == 3 or way != "quantile" else {"temperature": 0.8}
    options = DecodeConfig(accept="distance", epsilon=1, **{**WAYS[way], **one})
    plain, compiled = (decode(kind(random_model(config, dtype=torch.float32)), source, options)
                       for kind in (StepModel, NativeModel))
    assert torch.equal(plain.tokens, compiled.tokens)
    assert [trace.accepted for trace in plain.traces] == [trace.accepted for trace in compiled.traces]


WHOLE = {
    "greedy": DecodeConfig(1), "exact": DecodeConfig(), "distance": DecodeConfig(accept="distance", epsilon=1),
    "top-k": DecodeConfig(accept="top-k", top_k=2), "minimum block": DecodeConfig(4, min_block=2),
}


def assert_same_decode(one, other):
    assert torch.equal(one.tokens, other.tokens)
    assert torch.equal(one.lengths, other.lengths)
    for first, second in zip(one.traces, other.traces, strict=True):
        assert (first.positions, first.accepted) == (second.positions, second.accepted)
        assert first.proposed.tolist() == second.proposed.tolist()


@pytest.mark.parametrize("way", WHOLE)
@pytest.mark.parametrize("variant", ["base aids", "sequential heads", "text", "recurrent heads"])
def test_whole_iterations_do_what_the_loop_does(variant, way, monkeypatch):
    config, options = KNOWN[variant], WHOLE[way]
    source, real, made = random_tokens(config, 3)[0], native.NativeSession.iterations, []
    for end_token in (None, 0, 3):
        model = model_of(config, end_token=end_token, threads=2)
        with monkeypatch.context() as patch:
            patch.setattr(native.NativeSession, "iterations", lambda *arguments: made.append(1) or real(*arguments))
            whole = decode(model, source, options)
            wider = decode(model, source, options, width=config.prediction_heads + 1)
        with monkeypatch.context() as patch:
            patch.setattr(native.NativeSession, "iterations", lambda *arguments: None)
            assert_same_decode(whole, decode(model, source, options))
            assert torch.equal(wider.tokens, whole.tokens)
    assert len(made) == 6


@pytest.mark.parametrize("together", [1, 2, 5])
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("variant", ["sequential heads", "text", "recurrent heads"])
def test_rows_that_do_their_iterations_apart_do_what_they_do_together(variant, threads, together, monkeypatch):
    monkeypatch.setattr(native, "rows_together", lambda *arguments: together)
    config = KNOWN[variant]
    source = random_tokens(config, 5)[0]
    for end_token in (None, 0, 3):
        model = model_of(config, end_token=end_token, threads=threads)
        for options in (DecodeConfig(), DecodeConfig(accept="top-k", top_k=2)):
            with monkeypatch.context() as patch:  # rows end in the midst of a call
                patch.setattr("superres.decoding.decode.check_interval", lambda *arguments: 5)
                apart = decode(model, source, options)
            with monkeypatch.context() as patch:
                patch.setattr(native.NativeSession, "iterations", lambda *arguments: None)
                assert_same_decode(apart, decode(model, source, options))


@pytest.mark.parametrize("end_token", [None, 3])
@pytest.mark.parametrize("variant", ["base aids", "text"])
def test_whole_iterations_change_the_block_size_as_the_loop_does(variant, end_token, monkeypatch):
    monkeypatch.setattr("superres.decoding.decode.DONE_CHECK_INTERVAL", 3)
    model, source = model_of(KNOWN[variant], end_token=end_token), random_tokens(KNOWN[variant], 3)[0]
    for seed in range(3):
        sizes = [Restless(5, seed) for _ in range(2)]
        whole = decode(model, source, DecodeConfig(), adaptive=sizes[0])
        with monkeypatch.context() as patch:
            patch.setattr(native.NativeSession, "iterations", lambda *arguments: None)
            assert_same_decode(whole, decode(model, source, DecodeConfig(), adaptive=sizes[1]))
        assert len(set(sizes[0].chosen)) > 1
        assert torch.equal(whole.tokens, decode(model, source, DecodeConfig(block_size=1)).tokens)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("apart", [0.0, 1e-7, 1e-3])
@pytest.mark.parametrize("variant", ["text", "recurrent heads"])
def test_the_best_of_many_words_is_found_however_close_the_next(variant, apart, half, monkeypatch):
    config = replace(KNOWN[variant], vocabulary=1003)
    network = random_model(config, dtype=torch.float32)
    network.project.weight[250:1000] = network.project.weight[:250].repeat(3, 1) * (1 + apart)
    model, source = NativeModel(network, half=half), random_tokens(config, 4)[0]
    for k in (1, 4):
        whole = decode(model, source, DecodeConfig(k))
        with monkeypatch.context() as patch:
            patch.setattr(native.NativeSession, "iterations", lambda *arguments: None)
            assert_same_decode(whole, decode(model, source, DecodeConfig(k)))
        assert len(whole.tokens.unique()) > 5


@pytest.mark.parametrize("options", [
    DecodeConfig(temperature=0.5), DecodeConfig(proposer="left"), DecodeConfig(accept="drift-budget", epsilon=1),
    DecodeConfig(accept="distance-by-offset", epsilon=(1, 2)),
])
def test_iterations_that_the_code_does_not_know_are_left_to_the_loop(options, monkeypatch):
    model, source = model_of(KNOWN["sequential heads"]), random_tokens(KNOWN["sequential heads"], 1)[0]
    asked = []
    monkeypatch.setattr(native.NativeSession, "iterations", lambda session, state: asked.append(state))
    decode(model, source, replace(options, block_size=3))
    assert not asked
    decode(model, source, DecodeConfig(block_size=3))
    assert asked


def test_bfloat16_weights_score_nearly_alike():
    config = KNOWN["base aids"]
    model = random_model(config, dtype=torch.float32)
    source, target = random_tokens(config, 2)
    position = torch.zeros(2, dtype=torch.int64)
    full, half = (NativeModel(model, half=half).session(source, 8).step(target[:, :8], position).scores
                  for half in (False, True))
    assert not torch.equal(full, half)
    assert (full - half).norm() < 0.05 * full.norm()


@pytest.mark.parametrize("variant", ["base aids", "sequential heads", "text", "recurrent heads"])
def test_bfloat16_blocks_of_any_width_are_bfloat16_greedy_tokens(variant):
    model = NativeModel(random_model(KNOWN[variant], dtype=torch.float32), half=True)
    source = random_tokens(KNOWN[variant], 3)[0]
    alone = decode(model, source, DecodeConfig(block_size=1))
    for k in (2, 5):
        assert torch.equal(decode(model, source, DecodeConfig(block_size=k)).tokens, alone.tokens)


@pytest.mark.parametrize(("costs", "threads"), [((4, 2, 1, 3), 4), ((1, 2, 3, 4), 1), ((4, 2, 1.95, 1.94), 2)])
def test_as_many_threads_are_taken_as_were_seen_to_pay(monkeypatch, costs, threads):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 6)
    monkeypatch.setattr(native, "usable_cores", lambda: 6)
    clock = itertools.count()
    seconds = dict(zip((1, 2, 4, 6), costs, strict=True))
    monkeypatch.setattr(thread_trials.time, "perf_counter", lambda: spent[0])
    spent = [0.0]
    step = native.NativeSession.step

    def counted(self, tokens, position):
        next(clock)
        spent[0] += seconds[self.session.threads]
        return step(self, tokens, position)

    monkeypatch.setattr(native.NativeSession, "step", counted)
    config = KNOWN["sequential heads"]
    model = model_of(config)
    sessions = [model.session(random_tokens(config, 1)[0], 3) for _ in range(2)]
    assert [session.session.threads for session in sessions] == [threads, threads]
    assert next(clock) == 4 * (thread_trials.FIRST_ROUNDS + 1) * thread_trials.IN_A_ROW


def test_threads_that_were_slow_while_the_machine_was_busy_are_taken_later(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(native, "usable_cores", lambda: 2)
    seconds = {1: 1.0, 2: 3.0}
    spent = [0.0]
    monkeypatch.setattr(thread_trials.time, "perf_counter", lambda: spent[0])

    def counted(self, tokens, position):
        spent[0] += seconds[self.session.threads]

    monkeypatch.setattr(native.NativeSession, "step", counted)
    config = KNOWN["sequential heads"]
    model, source = model_of(config), random_tokens(config, 1)[0]
    assert model.session(source, 3).session.threads == 1
    seconds[2] = 0.5
    assert model.session(source, 3).session.threads == 2
    seconds[2] = 3.0
    for _ in range(2 * thread_trials.ROUNDS):
        assert model.session(source, 3).session.threads == 2
    assert model.trials[1, 3, 2].rounds == thread_trials.ROUNDS


@pytest.mark.parametrize(("change", "message"), [
    ({"head_layer": "dense"}, "dense"), ({"identity_p1": False}, "p1"),
    ({"width": 24}, "multiples of 32"), ({"attention_heads": 4}, "multiple of 16"),
])
def test_a_network_that_the_code_does_not_know_gets_the_plain_step_and_one_line(change, message, caplog):
    model = random_model(replace(SMALL, **{**SIZES, **change}))
    with pytest.raises(NativeUnavailable, match=message):
        NativeModel(model)
    with caplog.at_level(logging.INFO):
        assert type(step_model(model)) is StepModel
    assert len(caplog.records) == 1
    assert message in caplog.text


def test_without_a_compiler_the_plain_step_serves(monkeypatch, caplog):
    build.library.cache_clear()
    monkeypatch.setenv("PATH", "")
    with caplog.at_level(logging.INFO):
        assert type(step_model(random_model(replace(SMALL, **SIZES)))) is StepModel
    assert "no C++ compiler" in caplog.text
    build.library.cache_clear()


def test_code_is_compiled_once_and_a_failure_leaves_nothing_behind(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    broken = tmp_path / "cpp" / "native.cpp"
    broken.parent.mkdir()
    broken.write_text("this is no C++")
    build.library.cache_clear()
    with monkeypatch.context() as patched:
        patched.setattr(build, "SOURCE", broken)
        with pytest.raises(NativeUnavailable, match=r"cannot compile native\.cpp"):
            build.library()
    assert list(build.cache_folder().iterdir()) == []
    build.library()
    built = list(build.cache_folder().iterdir())
    assert [path.suffix for path in built] == [".so"]
    build.library.cache_clear()
    stamp = built[0].stat().st_mtime_ns
    build.library()
    assert built[0].stat().st_mtime_ns == stamp
    build.library.cache_clear()


@pytest.mark.parametrize("rows", [1, 3])
def test_a_large_vocabulary_is_projected_alike_by_several_threads(rows):
    config = replace(KNOWN["text"], vocabulary=2100)
    network, source = random_model(config, dtype=torch.float32), random_tokens(config, rows)[0]
    alone, together = (decode(NativeModel(network, threads=threads), source, DecodeConfig()) for threads in (1, 3))
    plain = decode(StepModel(network), source, DecodeConfig())
    assert torch.equal(alone.tokens, together.tokens)
    assert torch.equal(alone.tokens, plain.tokens)
    assert [trace.accepted for trace in alone.traces] == [trace.accepted for trace in together.traces]


def test_structures_that_the_compiler_lays_out_otherwise_are_refused(monkeypatch):
    build.library.cache_clear()
    monkeypatch.setattr(build, "layout", lambda: "Linear:48\n")
    with pytest.raises(NativeUnavailable, match="other structures"):
        build.library()
    build.library.cache_clear()


@pytest.mark.parametrize("change", [
    {"tokens": torch.zeros(2, 4, dtype=torch.int64)}, {"tokens": torch.zeros(2, 3, dtype=torch.int32)},
    {"tokens": torch.zeros(3, 3, dtype=torch.int64)}, {"position": torch.zeros(1, dtype=torch.int64)},
    {"position": torch.zeros(2)},
])
def test_what_the_compiled_code_would_read_past_is_refused(change):
    config = KNOWN["sequential heads"]
    session = model_of(config).session(random_tokens(config, 2)[0], 3)
    given = {"tokens": torch.zeros(2, 3, dtype=torch.int64), "position": torch.zeros(2, dtype=torch.int64)}
    session.step(**given)
    with pytest.raises(ValueError, match="the native step wants"):
        session.step(**given | change)


@pytest.mark.parametrize("width", [0, 4])
def test_a_width_without_memory_is_refused(width):
    config = KNOWN["sequential heads"]
    session = model_of(config).session(random_tokens(config, 2)[0], 3)
    session.resize(1)
    with pytest.raises(ValueError, match=f"up to 3 tokens cannot read {width}"):
        session.resize(width)


def loop_state(width=3, **change):
    config, rows = KNOWN["sequential heads"], 2
    tensors = {
        "position": torch.full((rows,), -1), "limit": torch.full((rows,), config.target_length),
        "store": torch.zeros(rows, 1 + config.target_length + width, dtype=torch.int64),
        "proposals": torch.zeros(rows, width, dtype=torch.int64),
    }
    options = {"block_size": width, "min_block": 1, "rule": ("distance", 0), "end_token": None}
    return LoopState(**tensors | options | change)


@pytest.mark.parametrize("change", [
    {"block_size": 0}, {"block_size": 4}, {"min_block": 4}, {"min_block": -1}, {"position": torch.zeros(3)},
    {"limit": torch.zeros(2)}, {"store": torch.zeros(2, 3, dtype=torch.int64)},
    {"proposals": torch.zeros(2, 2, dtype=torch.int64)}, {"proposals": torch.zeros(3, 3, dtype=torch.int64)},
])
def test_iterations_that_would_write_past_their_memory_are_refused(change):
    config = KNOWN["sequential heads"]
    session = model_of(config).session(random_tokens(config, 2)[0], 3)
    assert session.iterations(loop_state())(2, 3).shape == (2, 2, 5)
    with pytest.raises(ValueError, match=r"cannot verify|too few|the native step wants"):
        session.iterations(loop_state(**change))


def test_iterations_refuse_blocks_and_widths_that_they_have_no_memory_for():
    config = KNOWN["sequential heads"]
    session = model_of(config).session(random_tokens(config, 2)[0], 3)
    session.resize(2)
    iterate = session.iterations(loop_state(block_size=2))
    for following in (0, 4):
        with pytest.raises(ValueError, match=f"steps of 2 that propose blocks of {following}"):
            iterate(1, following)
    for width in (1, 3):
        session.resize(width)
        with pytest.raises(ValueError, match=f"no memory for steps of {width}"):
            iterate(1, 2)


def test_more_proposals_than_heads_are_refused():
    config = KNOWN["sequential heads"]
    session = model_of(config).session(random_tokens(config, 2)[0], 3)
    zeros = torch.zeros(2, dtype=torch.int64)
    output = session.step(torch.zeros(2, 3, dtype=torch.int64), zeros)
    offsets = torch.arange(1, config.prediction_heads + 1)
    with pytest.raises(ValueError, match=f"{config.prediction_heads} proposals were requested"):
        session.propose(output, zeros, zeros, offsets, GREEDY)


@pytest.mark.parametrize("name", [name for name, (_, arguments) in build.SIGNATURES.items() if arguments])
def test_the_compiled_functions_refuse_other_arguments(name):
    arguments = build.SIGNATURES[name][1]
    with pytest.raises(TypeError, match="arguments"):
        getattr(build.library(), name)(*[None] * (len(arguments) - 1))
    with pytest.raises(ctypes.ArgumentError):
        getattr(build.library(), name)("session", *[None] * (len(arguments) - 1))


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("value", [float("nan"), 1e38])
@pytest.mark.parametrize("variant", ["no conditioning", "base aids", "sequential heads", "text", "recurrent heads"])
def test_scores_that_are_not_finite_end_a_decode(variant, value, rows):
    config = KNOWN[variant]
    network = random_model(config, dtype=torch.float32)
    with torch.no_grad():
        for weight in network.decoder.parameters():
            weight.fill_(value)
    model, source = NativeModel(network), random_tokens(config, rows)[0]
    with pytest.raises(ScoresError, match="not finite"):
        decode(model, source, DecodeConfig())
