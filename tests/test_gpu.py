"""What only a GPU can show: real CUDA graphs give the plain engine's tokens, and nothing is read back in the loop."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fakes import VARIANTS, Waiting, proposer_for, random_model, random_tokens, stacked
from test_graph import CONFIG, ROWS, SAMPLINGS, WAYS, assert_same
from test_refill import ScriptedFeed
from torch.profiler import ProfilerActivity, profile

from decodes import decode, iterations
from superres.config import DecodeConfig
from superres.decoding.batching import RefilledDecoder
from superres.decoding.proposers import PROPOSERS
from superres.decoding.sum_limits import LimitedModel, Limits
from superres.pipeline.engines import step_model
from superres.tasks.consistency import cell_limits

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")]

READS = ("Memcpy DtoH", "aten::item", "aten::_local_scalar_dense", "aten::nonzero", "cudaStreamSynchronize")


def pair(config=CONFIG, engine="graph", end_token=None):
    """Return the plain engine and another of the same network, in float64, where kernels hardly differ."""
    dtype = torch.float32 if engine == "graph-bf16" else torch.float64
    model = random_model(config, dtype=dtype).cuda()
    return [step_model(model, end_token, name) for name in ("plain", engine)]


def tokens(config, rows, seed=0):
    return random_tokens(config, rows, seed)[0].cuda()


def assert_captured(model, caplog, count=1):
    """Check that as many pieces of work were captured, and that no capture failed."""
    assert sum(len(loop.decoder._captured) for loop in model.graph_capture.loops.values()) == count
    assert "without CUDA graphs" not in caplog.text


@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_graphs_give_the_same_tokens_and_traces_for_one_batch_after_another(way, limited, caplog):
    _, graph = models = pair()
    if limited:
        limits = cell_limits(CONFIG.source_shape, CONFIG.target_shape, CONFIG.vocabulary)
        models = [LimitedModel(model, Limits.of(limits, torch.device("cuda"))) for model in models]
    for seed in (0, 1):
        source, options = tokens(CONFIG, ROWS, seed), replace(WAYS[way], seed=seed)
        expected, found = (decode(model, source, options) for model in models)
        assert_same(found, expected)
    assert_captured(graph, caplog)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_network_is_captured(variant, caplog):
    plain, graph = pair(VARIANTS[variant])
    source = tokens(VARIANTS[variant], 2)
    assert_same(decode(graph, source, DecodeConfig()), decode(plain, source, DecodeConfig()))
    assert_captured(graph, caplog)


def test_rows_end_at_their_end_tokens():
    config = replace(VARIANTS["text"], source_shape=(21,))
    plain, graph = pair(config, end_token=3)
    for length in (9, 15, 18):
        source = tokens(config, ROWS, length)[:, :length]
        padding = torch.arange(length, device="cuda") >= torch.tensor([[length], [3], [length - 2]], device="cuda")
        expected = decode(plain, source, DecodeConfig(), padding=padding)
        assert_same(decode(graph, source, DecodeConfig(), padding=padding), expected)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("proposer", PROPOSERS)
def test_text_with_every_proposer(proposer, sampling, caplog):
    plain, graph = pair(VARIANTS["text"], end_token=3)
    options = DecodeConfig(block_size=4, proposer=proposer, window=5, candidates=3, **sampling)
    made = proposer_for(proposer, plain)
    if proposer == "draft":
        made.draft.model.cuda()
    source = tokens(VARIANTS["text"], ROWS)
    assert_same(decode(graph, source, options, proposer=made), decode(plain, source, options, proposer=made))
    assert_captured(graph, caplog, PROPOSERS[proposer].stateless)


@pytest.mark.parametrize("way", ["exact", "sampled", "speculative"])
def test_rows_are_refilled_in_place(way):
    plain, graph = pair()
    source = tokens(CONFIG, 7)
    waiting = [Waiting(one, key, key) for key, one in enumerate(source)]
    decoder = RefilledDecoder(graph, ScriptedFeed(waiting, [1, 0, 2, 0, 0, 1]), stacked, WAYS[way], ROWS)
    for one in [one for some in decoder.run() for one in some]:
        key = torch.tensor([one.item.tag], device="cuda")
        alone = decode(plain, source[one.item.tag : one.item.tag + 1], WAYS[way], keys=key)
        assert one.tokens.tolist() == alone.tokens[0].tolist()
        assert one.trace.accepted == alone.traces[0].accepted


def test_bfloat16_blocks_are_bfloat16_greedy_tokens():
    half, source = pair(engine="graph-bf16")[1], tokens(CONFIG, ROWS)
    greedy, blocks = (decode(half, source, DecodeConfig(block_size=k), width=5) for k in (1, 5))
    assert torch.equal(greedy.tokens, blocks.tokens)


@pytest.mark.parametrize("engine", ["plain", "graph"])
@pytest.mark.parametrize("way", [
    "greedy", "exact", "distance", "top-k", "sampled", "sampled by colour", "speculative", "lookahead"])
def test_nothing_is_read_or_waited_for_in_the_loop(way, engine):
    plain, graph = pair()
    with torch.inference_mode():
        loop = next(iterations(graph if engine == "graph" else plain, tokens(CONFIG, ROWS), WAYS[way]))
        loop.run(5)
        torch.cuda.synchronize()
        held = torch.cuda.memory_allocated()
        torch.cuda.set_sync_debug_mode("error")
        try:
            with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
                loop.run(4)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    names = [event.key for event in profiler.key_averages()]
    assert not [name for name in names if name.startswith(READS)]
    if engine == "graph":
        assert any("cudaGraphLaunch" in name for name in names)
        assert torch.cuda.memory_allocated() - held <= 4 * loop.decoder._record.nbytes
