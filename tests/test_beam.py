"""Beam search: what a plain search without a cache finds, for each row by itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fakes import SMALL, random_model, random_tokens
from textual import CONFIG, wordy

from superres.config import BeamConfig, DecodeConfig
from superres.decoding.beam import beam_search, beam_steps, length_penalty
from superres.decoding.blockwise import decode
from superres.errors import ConfigError
from superres.nn import compiled
from superres.nn.native import NativeModel
from superres.nn.step import StepModel
from superres.tasks.translation import END

SHORT = replace(CONFIG, target_shape=(12,), source_shape=(9,))


def sources(rows, seed=3):
    return random_tokens(SHORT, rows, seed)[0]


def model(seed=0, config=SHORT):
    return StepModel(wordy(config, seed), END)


def plain_search(model, source, options):
    """Search one source without a cache, hypothesis by hypothesis; returns (tokens, score)."""
    size, alive, finished = options.size, [([], 0.0)], []
    for length in range(1, model.length + 1):
        grown = []
        for tokens, score in alive:
            target = torch.zeros(1, model.length, dtype=torch.int64)
            target[0, : len(tokens)] = torch.tensor(tokens, dtype=torch.int64)
            scores = model.uncached_scores(source, target, torch.tensor([len(tokens)]))[0, 0].log_softmax(-1)
            grown += [([*tokens, token], score + float(p)) for token, p in enumerate(scores)]
        grown = sorted(grown, key=lambda item: -item[1])[: 2 * size]
        penalty = length_penalty(length, options.length_penalty)
        finished += [(tokens, score / penalty) for tokens, score in grown if tokens[-1] == END]
        finished = sorted(finished, key=lambda item: -item[1])[:size]
        alive = [item for item in grown if item[0][-1] != END][:size]
        if len(finished) == size:
            break
    if finished:
        return finished[0]
    return alive[0][0], alive[0][1] / length_penalty(model.length, options.length_penalty)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("size", "alpha"), [(4, 0.6), (3, 0.0), (2, 2.0)])
def test_beam_search_finds_what_a_plain_search_without_a_cache_finds(seed, size, alpha):
    search, source, options = model(seed), sources(4, seed), BeamConfig(size, alpha)
    found = beam_search(search, source, options)
    for row in range(len(source)):
        tokens, score = plain_search(search, source[row : row + 1], options)
        assert found.tokens[row, : found.lengths[row]].tolist() == tokens
        assert not found.tokens[row, found.lengths[row] :].any()
        assert float(found.scores[row]) == pytest.approx(score)


def test_the_searches_here_end_at_different_lengths_and_at_the_largest():
    found = [beam_search(model(seed), sources(4, seed), BeamConfig()) for seed in range(4)]
    assert len(torch.cat([beams.lengths for beams in found]).unique()) > 3
    endless = model()
    endless.model.project.bias[END] = -1000
    beams = beam_search(endless, sources(2), BeamConfig())
    assert beams.lengths.tolist() == [12, 12]
    assert not (beams.tokens == END).any()


def test_a_beam_of_one_is_greedy_decoding():
    search, source = model(), sources(6)
    greedy = decode(search, source, DecodeConfig(block_size=1))
    found = beam_search(search, source, BeamConfig(1, 0.0))
    assert torch.equal(found.tokens, greedy.tokens)
    assert torch.equal(found.lengths, greedy.lengths)


def test_a_wider_beam_finds_nothing_less_likely():
    search, source = model(1), sources(6)
    found = [beam_search(search, source, BeamConfig(size, 0.0)).scores for size in (1, 40)]
    assert bool((found[1] >= found[0] - 1e-9).all())
    assert bool((found[1] > found[0] + 1e-3).any())


def test_a_batch_equals_its_single_rows_and_padding_is_hidden():
    search, source = model(2), sources(5)
    padding = torch.arange(9) >= torch.tensor([9, 3, 5, 9, 1]).unsqueeze(1)
    together = beam_search(search, source, BeamConfig(), padding=padding)
    for row in range(5):
        short = source[row : row + 1, : int((~padding[row]).sum())]
        alone = beam_search(search, short, BeamConfig())
        assert torch.equal(together.tokens[row], alone.tokens[0])


@pytest.mark.skipif(compiled.compiler() is None, reason="no C++ compiler on this machine")
def test_the_native_step_finds_the_same():
    network, source = wordy(SHORT, dtype=torch.float32), sources(5)
    found = [beam_search(kind(network, END), source, BeamConfig()) for kind in (StepModel, NativeModel)]
    assert torch.equal(found[0].tokens, found[1].tokens)
    torch.testing.assert_close(found[0].scores, found[1].scores, rtol=1e-4, atol=1e-4)


def test_the_loop_is_handed_out_before_every_step_and_a_source_is_encoded_once(monkeypatch):
    search, encoded = model(), []
    encode = search.model.encode
    monkeypatch.setattr(search.model, "encode", lambda source, *more: encoded.append(len(source)) or encode(source))
    lengths = [int(loop.result().lengths.max()) for loop in beam_steps(search, sources(2), BeamConfig())]
    assert encoded == [2]
    assert lengths[0] == 0
    assert len(lengths) == beam_search(search, sources(2), BeamConfig()).model_calls + 1


def test_a_model_without_an_end_token_is_refused():
    with pytest.raises(ConfigError, match="needs a model with an end token"):
        beam_search(StepModel(random_model(SMALL)), random_tokens(SMALL, 1)[0], BeamConfig())


@pytest.mark.parametrize("engine", ["plain", "native"])
def test_select_moves_the_cache_of_a_session_of_pictures_too(engine):
    if engine == "native" and compiled.compiler() is None:
        pytest.skip("no C++ compiler on this machine")
    config = replace(SMALL, width=32, filter_size=32, head_filter_size=32)
    network = random_model(config, dtype=torch.float32)
    picture, targets = random_tokens(config, 2)
    session = (StepModel(network) if engine == "plain" else NativeModel(network)).session(picture[:1].expand(2, -1), 3)
    inputs = torch.cat([torch.zeros(2, 1, dtype=torch.int64), targets], dim=1)
    for start in range(0, 18, 3):
        session.step(inputs[:, start : start + 3], torch.full((2,), start))
    session.select(torch.tensor([1, 1]), 18)
    scores = session.step(inputs[1:2, 18:21].expand(2, -1), torch.full((2,), 18)).scores
    torch.testing.assert_close(scores[0], scores[1])
    wanted = network.scores(network(picture[:1], targets[1:2]))[0, 18:21]
    torch.testing.assert_close(scores[0], wanted, rtol=1e-3, atol=3e-3)


@pytest.mark.parametrize(("options", "message"), [
    ({"size": 0}, "beam must be at least 1, not 0"), ({"length_penalty": -1.0}, "length-penalty must be at least 0"),
    ({"length_penalty": float("nan")}, "length-penalty must be at least 0, not nan"),
])
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        BeamConfig(**options)
