"""Captured iterations: what is recorded once and replayed gives the tokens of the plain engine, on memory that stays.

Here a tape of operations stands for a CUDA graph; where there is a GPU, the tests at the end run real ones.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from fakes import (
    VARIANTS,
    Waiting,
    criterion_options,
    limits_of,
    proposer_for,
    random_model,
    random_tokens,
    stacked,
)
from recording import Recorded
from stepping import check_steps
from test_refill import ScriptedFeed

from decodes import decode, iterations, result_of
from superres.config import DecodeConfig
from superres.decoding.acceptance import CRITERIA
from superres.decoding.batching import RefilledDecoder
from superres.decoding.loop import cache
from superres.decoding.proposers import PROPOSERS
from superres.decoding.proposers.lookahead.pool import NgramPool
from superres.decoding.proposers.lookahead.proposer import LookaheadProposer
from superres.decoding.sum_limits import LimitedModel
from superres.errors import ConfigError
from superres.nn.cuda_graph import GraphModel
from superres.nn.torch_model import StepModel
from superres.pipeline.engines import step_model

CONFIG = replace(VARIANTS["sequential heads"], free_scores=False)
ROWS = 3

WAYS = {
    "greedy": DecodeConfig(block_size=1),
    **{name: criterion_options(name) for name in CRITERIA},
    "minimum block": DecodeConfig(min_block=2),
    "sampled": DecodeConfig(temperature=0.8, seed=3),
    "sampled by colour": DecodeConfig(temperature=(0.9, 0.5, 0.7), accept="distance", epsilon=1),
    "speculative": DecodeConfig(temperature=0.8, sampling="speculative", nucleus=0.9, seed=3),
    "speculative, certain proposals": DecodeConfig(temperature=0.8, sampling="speculative", proposer="jacobi"),
    **{name: DecodeConfig(proposer=name) for name, kind in PROPOSERS.items() if kind.stateless},
}


SAMPLINGS = {}, {"temperature": 0.8}, {"temperature": 0.8, "sampling": "speculative"}


def pair(config=CONFIG, end_token=None, dtype=torch.float64, **options):
    """Return the plain engine and the one under test, of the same network."""
    model = random_model(config, dtype=dtype)
    return StepModel(model, end_token), GraphModel(model, end_token, capture=Recorded, **options)


def assert_same(actual, expected):
    assert torch.equal(actual.tokens, expected.tokens)
    assert torch.equal(actual.lengths, expected.lengths)
    for one, other in zip(actual.traces, expected.traces, strict=True):
        assert one.positions == other.positions
        assert one.accepted == other.accepted
        assert (one.proposed == other.proposed).all()


@pytest.mark.parametrize(("way", "limited"), [(way, number % 2 == 1) for number, way in enumerate(WAYS)])
def test_replayed_iterations_give_the_same_tokens_and_traces_for_one_batch_after_another(way, limited):
    plain, graph = (LimitedModel(model, limits_of(CONFIG)) if limited else model for model in pair())
    before = Recorded.made
    for seed in (0, 1):
        source, options = random_tokens(CONFIG, ROWS, seed)[0], replace(WAYS[way], seed=seed)
        keys = torch.arange(ROWS) + 5 * seed
        assert_same(decode(graph, source, options, keys=keys), decode(plain, source, options, keys=keys))
    assert Recorded.made == before + 1, "the second batch uses what the first has captured"


@pytest.mark.parametrize("variant", ["text", "recurrent heads"])
def test_rows_end_at_their_end_tokens(variant):
    config = replace(VARIANTS[variant], source_shape=(21,))
    plain, graph = pair(config, end_token=3)
    for length in (9, 15, 18):  # two of them round up to the same length
        source = random_tokens(config, ROWS, length)[0][:, :length]
        padding = torch.arange(length) >= torch.tensor([[length], [3], [length - 2]])
        for options in (DecodeConfig(), DecodeConfig(accept="top-k", top_k=2)):
            expected = decode(plain, source, options, padding=padding)
            assert_same(decode(graph, source, options, padding=padding), expected)
    assert bool((expected.lengths < config.target_length).any())
    assert len({kind[-1] for kind in graph.graph_capture.loops}) == 2


@torch.inference_mode()
@pytest.mark.parametrize(("seed", "sampling"), [*enumerate(SAMPLINGS)])
def test_block_sizes_change_between_captures(seed, sampling):
    plain, graph = pair()
    source, loops = random_tokens(CONFIG, ROWS, seed)[0], []
    for model in (graph, plain):
        loop = next(iterations(model, source, DecodeConfig(**sampling), adaptive=CONFIG.prediction_heads))
        loops.append(loop)
        for size in itertools.cycle((1, 4, 2, 5, 3)):
            loop.resize(size)
            loop.run(3)
            if loop.done():
                break
    assert_same(*map(result_of, loops))


@pytest.mark.parametrize("way", ["distance", "speculative"])
def test_rows_are_refilled_in_place(way):
    plain, graph = pair()
    source = random_tokens(CONFIG, 7)[0]
    waiting = [Waiting(one, key, key) for key, one in enumerate(source)]
    before = Recorded.made
    decoder = RefilledDecoder(graph, ScriptedFeed(waiting, [1, 0, 2, 0, 0, 1]), stacked, WAYS[way], ROWS)
    finished = [one for some in decoder.run() for one in some]
    for one in finished:
        alone = decode(plain, source[one.item.tag, None], WAYS[way], keys=torch.tensor([one.item.tag]))
        assert one.tokens.tolist() == alone.tokens[0].tolist()
        assert one.trace.accepted == alone.traces[0].accepted
    assert {one.item.tag for one in finished} == set(range(7))
    assert Recorded.made == before + 1


@pytest.mark.parametrize(("size", "sampling"), zip((4, 2, 4), SAMPLINGS, strict=True))
def test_lookahead_is_captured_with_its_window_and_its_pool(size, sampling, caplog):
    config = replace(VARIANTS["text"], source_shape=(21,))
    plain, graph = pair(config, end_token=3)
    options = DecodeConfig(block_size=size, proposer="lookahead", window=5, candidates=3, **sampling)
    before = Recorded.made
    for seed in (0, 1):  # the second decode must not find n-grams of the first
        source, own = random_tokens(config, ROWS, seed)[0], replace(options, seed=seed)
        assert_same(decode(graph, source, own), decode(plain, source, own))
    assert Recorded.made == before + 1
    assert caplog.text == ""


def test_lookahead_with_a_pool_of_ones_own_or_with_other_processes_is_not_captured():
    config = VARIANTS["text"]
    plain, graph = pair(config, end_token=3)
    source, options = random_tokens(config, ROWS)[0], DecodeConfig(block_size=3, proposer="lookahead")
    expected, before = decode(plain, source, options), Recorded.made
    assert_same(decode(graph, source, options, proposer=LookaheadProposer(NgramPool)), expected)
    graph.peers = SimpleNamespace(rank=0, count=1, gather=lambda values: values.unsqueeze(0))
    assert torch.equal(decode(graph, source, options).tokens, expected.tokens)
    assert Recorded.made == before


@pytest.mark.parametrize(("proposer", "sampling"), zip(
    [name for name, kind in PROPOSERS.items() if not kind.stateless], SAMPLINGS, strict=False))
def test_proposers_that_keep_something_are_called_and_give_the_same_tokens(proposer, sampling):
    config = VARIANTS["text"]
    models, before = pair(config, end_token=3), Recorded.made
    source, options = random_tokens(config, ROWS)[0], DecodeConfig(block_size=4, proposer=proposer, **sampling)
    graph, plain = (decode(model, source, options, proposer=proposer_for(proposer, model)) for model in models)
    assert_same(graph, plain)
    assert Recorded.made == before


@torch.inference_mode()
def test_a_loop_given_up_half_way_serves_again_and_one_that_failed_does_not():
    plain, graph = pair()
    source = random_tokens(CONFIG, ROWS)[0]
    loops = iterations(graph, source, DecodeConfig())
    loop = next(loops)
    loop.run(3)
    loop.run(1)
    loops.close()
    assert len(graph.graph_capture.loops) == 1
    assert_same(decode(graph, source, DecodeConfig()), decode(plain, source, DecodeConfig()))
    loops = iterations(graph, source, DecodeConfig())
    loop = next(loops)
    loop.decoder._captured.clear()
    loop.plain.session.step = None
    with pytest.raises(TypeError):
        next(loops)
    assert graph.graph_capture.loops == {}


@torch.inference_mode()
def test_loops_of_the_same_kind_at_the_same_time_do_not_share_memory():
    plain, graph = pair()
    sources = [random_tokens(CONFIG, ROWS, seed)[0] for seed in (0, 1)]
    running = [iterations(graph, source, DecodeConfig()) for source in sources]
    for loops in zip(*running, strict=False):
        last = loops
    for loop, source in zip(last, sources, strict=True):
        while not loop.done():
            loop.run(1)
        assert torch.equal(result_of(loop).tokens, decode(plain, source, DecodeConfig()).tokens)


def test_the_oldest_loops_make_room():
    kept = {}
    for kind, rows, left in (("a", 2, "a"), ("b", 2, "ab"), ("a", 2, "ba"), ("c", 1, "bac"), ("d", 3, "cd")):
        cache(SimpleNamespace(loops=kept), kind, SimpleNamespace(plain=SimpleNamespace(keys=range(rows))), most=5)
        assert "".join(kept) == left


@pytest.mark.parametrize("variant", ["base aids", "text", "as published"])
def test_the_fused_attention_computes_the_same(variant):
    config = VARIANTS[variant]
    _, graph = pair(config)
    assert graph.fused_attention
    check_steps(random_model(config), 4, session=graph.session(random_tokens(config, 3)[0], 4))


def test_bfloat16_weights_score_nearly_alike_and_stay_exact():
    plain, half = pair(dtype=torch.float32, half=True)
    source, target = random_tokens(CONFIG, 2)
    full, rounded = (model.session(source, 5).step(target[:, :5], torch.zeros(2, dtype=torch.int64)).scores
                     for model in (plain, half))
    assert rounded.dtype == torch.float32
    assert not torch.equal(full, rounded)
    assert (full - rounded).norm() < 0.05 * full.norm()
    assert half.session(source, 5).cache.store.dtype == torch.bfloat16
    greedy, blocks = (decode(half, source, DecodeConfig(block_size=k), width=5) for k in (1, 5))
    assert torch.equal(greedy.tokens, blocks.tokens)


def test_without_a_gpu_there_is_one_line():
    with pytest.raises(ConfigError, match="engine graph runs on a GPU, not on cpu; choose plain or native"):
        step_model(random_model(CONFIG), engine="graph-bf16")
