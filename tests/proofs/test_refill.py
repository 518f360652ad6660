"""A refilled row gives what its sequence gives alone, whoever its neighbours are and whenever it
enters."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from fakes import (
    NATIVE,
    SMALL,
    VARIANTS,
    Waiting,
    draft_of,
    drafted,
    on_native,
    proposer_for,
    random_model,
    random_tokens,
    stacked,
)
from scripted import ScriptedModel

from decodes import algorithm_of, decode, engine_of, numbers
from superres.config import Confidence, DecodeConfig
from superres.decoding import batching
from superres.decoding.batching import Stream, feed_of
from superres.decoding.confidence import ConfidentBlockSize
from superres.decoding.plain.blockwise import PlainDecoder
from superres.native import build
from superres.native.decoder import NativeDecoder
from superres.native.on_torch import ModelOnTorch
from superres.nn.torch_model import StepModel

WAYS = {
    "exact": {}, "distance": {"accept": "distance", "epsilon": 1},
    "colours": {"temperature": (0.9, 0.5, 0.7)}, "draft": {"proposer": "draft"},
    "lookup": {"proposer": "lookup", "block_size": 7},
}


@dataclass
class ScriptedFeed:
    """Hands out sequences in order; `ready` says how many there are at each asking that does not
    wait."""

    waiting: list
    ready: list = field(default_factory=list)
    asked: list = field(default_factory=list)

    def __call__(self, most, wait):
        self.asked.append((most, wait))
        if not self.waiting:
            return None
        count = most if wait or not self.ready else min(most, self.ready.pop(0))
        taken, self.waiting = self.waiting[:count], self.waiting[count:]
        return taken


def refilled(model, source, options, rows, keys=None, ready=(), proposer=None, padding=None,
             adaptive=None):
    keys = range(len(source)) if keys is None else keys
    waiting = [Waiting(one, key, tag) for tag,
               (one, key) in enumerate(zip(source, keys, strict=True))]
    hidden = numbers(padding)

    def sources(items):
        return stacked(items)[0], None if hidden is None else hidden[[item.tag for item in items]]

    stream = Stream(algorithm_of(model, options, proposer, adaptive=adaptive),
                    ScriptedFeed(waiting, list(ready)), sources, rows)
    finished = [one for some in stream.run() for one in some]
    assert sorted(one.item.tag for one in finished) == list(range(len(source)))
    return sorted(finished, key=lambda one: one.item.tag), stream


def assert_equal(finished, model, source, options, keys=None, **more):
    for number, one in enumerate(finished):
        key = number if keys is None else keys[number]
        alone = decode(model, source[number : number + 1], options, keys=[key], **more)
        assert one.tokens.tolist() == alone.tokens[0].tolist()
        assert (one.trace.accepted, one.trace.positions) == (alone.traces[0].accepted,
                                                             alone.traces[0].positions)
        assert (one.trace.proposed == alone.traces[0].proposed).all()


@pytest.mark.parametrize("way", WAYS)
def test_what_is_decoded_does_not_depend_on_neighbours_or_entry(way):
    config = VARIANTS["sequential heads"]
    model, source, options = (StepModel(random_model(config)), random_tokens(config, 6)[0],
                              DecodeConfig(**WAYS[way]))
    proposer = proposer_for(options.proposer, model)
    finished, _ = refilled(model, source, options, 3, ready=[1, 0, 2, 0, 0, 1], proposer=proposer)
    assert_equal(finished, model, source, options, proposer=proposer)
    assert len({tuple(one.trace.accepted) for one in finished}) > 1


@pytest.mark.skipif(build.compiler() is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize(("variant", "way"), [
    ("sequential heads", "colours"), ("plain", "exact"), ("causal attention", "colours"),
    ("recurrent heads", "exact")])
def test_the_native_step_gives_the_same_bits_beside_others_as_alone(variant, way):
    config = replace(VARIANTS[variant], **NATIVE)
    model = on_native(random_model(config, dtype=torch.float32))
    source, options = random_tokens(config, 9)[0], DecodeConfig(**WAYS[way])
    finished, _ = refilled(model, source, options, 4, ready=[0, 2, 1])
    assert_equal(finished, model, source, options)


def sources_seen(engine):
    """Return the list that every source will be added to that `engine` encodes: in compiled code,
    or its network."""
    owner = getattr(engine, "model", engine)
    owner = owner.native if isinstance(owner, ModelOnTorch) else getattr(owner, "model", owner)
    encode, seen = owner.encode, []

    def counted(sources, *more):
        seen.extend(sources.tolist())
        return encode(sources, *more)

    owner.encode = counted
    return seen


MAKE = {"plain": StepModel, "native": on_native}


@pytest.mark.parametrize(("name", "draft"), [("heads", None), ("lookahead", None),
                                             ("draft", "plain"), ("draft", "native")])
@pytest.mark.parametrize("engine", ["plain", "native"])
def test_every_source_is_encoded_once(engine, name, draft):
    if "native" in (engine, draft) and build.compiler() is None:
        pytest.skip("no C++ compiler on this machine")
    config = replace(VARIANTS["sequential heads"], **NATIVE)
    model = MAKE[engine](random_model(config, dtype=torch.float32))
    proposer = (proposer_for(name, model) if draft is None
                else drafted(MAKE[draft](draft_of(model).model)))
    source = random_tokens(config, 6)[0]
    encoded = [sources_seen(one) for one in (engine_of(model), getattr(proposer, "draft", None))
               if one is not None]
    options = DecodeConfig(proposer=name, block_size=3, window=3)
    finished, _ = refilled(model, source, options, 4, ready=[1, 0, 1], proposer=proposer)
    assert len(finished) == 6
    for seen in encoded:
        assert sorted(seen) == sorted(source.tolist())


def test_the_decoder_stays_full_until_the_feed_ends_and_shrinks_then():
    generator = np.random.default_rng(0)
    truth = torch.from_numpy(generator.integers(0, 8, (40, 24)))
    hits = torch.from_numpy(generator.random((40, 24)) < generator.random((40, 1)))
    rows = []

    class Watched(ScriptedModel):
        def session(self, source, width, padding=None):
            session = super().session(source, width, padding)
            step = session.step

            def watched(tokens, position):
                rows.append((len(position), int((position <= self.length).sum())))
                return step(tokens, position)

            session.step = watched
            return session

    source, options = torch.arange(40).unsqueeze(1), DecodeConfig(block_size=4)
    finished, _ = refilled(Watched(truth, hits), source, options, 8)
    assert [one.tokens.tolist() for one in finished] == truth.tolist()
    iterations = sum(one.trace.iterations for one in finished)
    stepped = sum(count for count, _ in rows)
    lockstep = sum(8 * max(one.trace.iterations for one in finished[start : start + 8])
                   for start in range(0, 40, 8))
    assert rows[-1][0] < 8
    assert iterations + 40 <= stepped < 0.9 * lockstep


def test_what_is_under_way_is_known_when_decoding_fails():
    model, source = StepModel(random_model(SMALL)), random_tokens(SMALL, 4)[0]
    feed = ScriptedFeed([Waiting(one, 0, tag) for tag, one in enumerate(source)])
    stream = Stream(algorithm_of(model, DecodeConfig()), feed, stacked, 3)
    steps = stream.run()
    next(steps)  # reads the start of the sequences
    assert stream.tokens_under_way == 0
    next(steps)
    assert [waiting.tag for waiting in stream.under_way] == [0, 1, 2]
    assert 3 <= stream.tokens_under_way <= 15


INTERVALS = [None, 1, 7, 1000]


@pytest.mark.skipif(build.compiler() is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("way", ["exact", "distance", "colours"])
def test_how_often_compiled_iterations_return_changes_neither_tokens_nor_traces(way, rows,
                                                                                monkeypatch):
    config, options = replace(VARIANTS["sequential heads"], **NATIVE), DecodeConfig(**WAYS[way])
    model = on_native(random_model(config, dtype=torch.float32))
    source = random_tokens(config, rows)[0]
    sizes = None if options.is_sampling else ConfidentBlockSize(
        Confidence(0.0, 1.0, 0.8), [1.0, 1.1, 1.2, 1.3, 1.4], options, config.vocabulary)
    asked, advance = [], NativeDecoder.advance
    monkeypatch.setattr(NativeDecoder, "advance", lambda self, count: asked.append(count)
                        or advance(self, count))
    found = []
    for interval in INTERVALS:
        for name in ("DONE_CHECK_INTERVAL", "LAUNCH_INTERVAL"):
            monkeypatch.setattr(batching, name, interval or getattr(batching, name))
        items = [Waiting(one, key, key) for key, one in enumerate(source)]
        stream = Stream(algorithm_of(model, options, adaptive=lambda *_: sizes), feed_of(items),
                        stacked, rows, batch=True)
        asked.clear()
        finished = [one for some in stream.run() for one in some]
        found.append([(one.tokens.tolist(), one.trace.accepted, one.trace.proposed.tolist())
                      for one in finished])
        most = max(one.trace.iterations for one in finished)
        assert len(asked) <= 2 + most / (interval or batching.DONE_CHECK_INTERVAL)
    assert all(one == found[0] for one in found)


@pytest.mark.skipif(build.compiler() is None, reason="no C++ compiler on this machine")
def test_torch_starts_no_threads_beside_those_of_compiled_steps(monkeypatch):
    config = replace(VARIANTS["sequential heads"], **NATIVE)
    model, seen = on_native(random_model(config, dtype=torch.float32)), set()

    def watched(method):
        return lambda *given: seen.add(torch.get_num_threads()) or method(*given)

    for owner, name in ((ModelOnTorch, "encode"), (ModelOnTorch, "session"),
                        (PlainDecoder, "iterate"), (PlainDecoder, "results")):
        monkeypatch.setattr(owner, name, watched(getattr(owner, name)))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        options = DecodeConfig(proposer="lookup")  # which compiled iterations do not know
        refilled(model, random_tokens(config, 5)[0], options, 2, ready=[1, 1])
    finally:
        torch.set_num_threads(before)
    assert seen == {1}
