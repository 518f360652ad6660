"""Beam search: what exhaustive search finds in small networks, and greedy decoding with a beam of
one."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace

import pytest
import torch
from fakes import SMALL, on_native, random_model, random_tokens
from textual import CONFIG, wordy

from decodes import decode
from superres.config import BeamConfig, DecodeConfig
from superres.decoding.plain.beam import beam_search, beam_steps
from superres.errors import ConfigError
from superres.native import build
from superres.nn.torch_model import StepModel
from superres.tasks.translation import END

SHORT = replace(CONFIG, target_shape=(12,), source_shape=(9,))


def sources(rows, seed=3):
    return random_tokens(SHORT, rows, seed)[0]


def model(seed=0, config=SHORT):
    return StepModel(wordy(config, seed), END)


TINY = replace(CONFIG, vocabulary=5, source_shape=(4,), target_shape=(5,), tied_embeddings=False)
ALPHAS, BIASES = (0.0, 0.6, 2.5), (0.0, 2.0, 3.0)


@functools.cache
def tiny(seed, bias):
    """Return a search, its source, and log p of every prefix that does not go on after an end
    token, by its tokens.

    The network ends its targets the sooner, the larger the bias.
    """
    network, source = random_model(TINY, seed, torch.float64), random_tokens(TINY, 1, seed)[0]
    network.project.bias[END] += bias
    length = TINY.target_length
    targets = torch.tensor(list(itertools.product(range(TINY.vocabulary), repeat=length)))
    p = network.scores(network(source.expand(len(targets), -1), targets)).log_softmax(-1)
    totals = p.gather(2, targets.unsqueeze(2)).squeeze(2).cumsum(1)
    prefixes = {tuple(row[:size]): float(total[size - 1])
                for row, total in zip(targets.tolist(), totals, strict=True)
                for size in range(1, length + 1)
                if END not in row[: size - 1]}
    return StepModel(network, END), source, prefixes


def optimum(prefixes, alpha):
    """Return the best complete target, its score, and a width of the beam that is bound to keep all
    its prefixes."""
    scores = {tokens: total / ((5 + len(tokens)) / 6) ** alpha
              for tokens, total in prefixes.items() if tokens[-1] == END}
    best = max(scores, key=scores.get)
    ranks = [sum(len(other) == size and total >= prefixes[best[:size]] for other,
                 total in prefixes.items())
             for size in range(1, len(best) + 1)]
    return list(best), scores[best], max(ranks)


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("seed", range(2))
def test_a_beam_that_is_wide_enough_finds_the_optimum_of_exhaustive_search(seed, bias, alpha):
    search, source, prefixes = tiny(seed, bias)
    tokens, score, width = optimum(prefixes, alpha)
    for size in {width, width + 1, 2 * width}:
        found = beam_search(search, source, BeamConfig(size, alpha))
        assert found.tokens[0, : found.lengths[0]].tolist() == tokens
        assert not found.tokens[0, found.lengths[0] :].any()
        assert float(found.scores[0]) == pytest.approx(score)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
def test_a_beam_of_one_is_greedy_decoding_and_ends_with_it(alpha):
    search, source = model(2), sources(6)
    greedy = decode(search, source, DecodeConfig(block_size=1))
    found = beam_search(search, source, BeamConfig(1, alpha))
    assert torch.equal(found.tokens, greedy.tokens)
    assert torch.equal(found.lengths, greedy.lengths)
    early = greedy.lengths < greedy.lengths.max()
    alone = beam_search(search, source[early], BeamConfig(1, alpha))
    assert alone.model_calls == int(greedy.lengths[early].max())


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
def test_a_row_that_is_over_would_find_nothing_else_up_to_the_largest_length(alpha):
    early = 0
    for seed in range(4):
        search, over = model(seed), {}
        for loop in beam_steps(search, sources(6), BeamConfig(3, alpha)):
            for row in loop.over().nonzero().flatten().tolist():
                over.setdefault(row, loop.result().tokens[row])
                early += loop.calls < search.length
        with torch.inference_mode():
            while loop.calls < search.length:
                loop.iterate()
        for row, tokens in over.items():
            assert torch.equal(loop.result().tokens[row], tokens)
    assert early > 10


def test_a_batch_equals_its_single_rows_and_padding_is_hidden():
    search, source = model(2), sources(5)
    padding = torch.arange(9) >= torch.tensor([9, 3, 5, 9, 1]).unsqueeze(1)
    batch = beam_search(search, source, BeamConfig(), padding=padding)
    for row in range(5):
        short = source[row : row + 1, : int((~padding[row]).sum())]
        alone = beam_search(search, short, BeamConfig())
        assert torch.equal(batch.tokens[row], alone.tokens[0])


def test_a_model_without_an_end_token_is_refused():
    with pytest.raises(ConfigError, match="needs a model with an end token"):
        beam_search(StepModel(random_model(SMALL)), random_tokens(SMALL, 1)[0], BeamConfig())


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["plain", "native"])
def test_select_moves_the_cache_of_a_session_of_pictures_too(engine):
    if engine == "native" and build.compiler() is None:
        pytest.skip("no C++ compiler on this machine")
    config = replace(SMALL, width=32, filter_size=32, head_filter_size=32)
    network = random_model(config, dtype=torch.float32)
    picture, targets = random_tokens(config, 2)
    session = (StepModel(network) if engine == "plain" else on_native(network)).session(
        picture[:1].expand(2, -1), 3)
    inputs = torch.cat([torch.zeros(2, 1, dtype=torch.int64), targets], dim=1)
    for start in range(0, 18, 3):
        session.step(inputs[:, start : start + 3], torch.full((2,), start))
    session.select(torch.tensor([1, 1]), 18)
    scores = session.step(inputs[1:2, 18:21].expand(2, -1), torch.full((2,), 18)).scores
    torch.testing.assert_close(scores[0], scores[1])
    wanted = network.scores(network(picture[:1], targets[1:2]))[0, 18:21]
    torch.testing.assert_close(scores[0], wanted, rtol=1e-3, atol=3e-3)
