"""Decodes whose proposals come from outside: exact guesses give whole blocks of the greedy picture,
and any guesses give the tokens of a decode with a proposer that guesses the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from fakes import TINY, random_model

import superres
from superres.config import DecodeConfig
from superres.decoding.algorithm import Algorithm
from superres.decoding.drafting import drafted
from superres.decoding.proposers.proposer import Proposer
from superres.errors import ConfigError
from superres.interfaces import NO_DRAFTS
from superres.pipeline.upscaler import Upscaler
from superres.web.draft import left_of

K = 10


@pytest.fixture(scope="module", params=["native-int8", "plain"])
def game(request):
    """A first stage, the values of an input, and its tokens."""
    if request.param == "plain":
        network = replace(TINY, target_shape=(16, 16, 3), prediction_heads=K)
        upscaler = Upscaler(random_model(network, dtype=torch.float32), "tiny", device="cpu",
                            engine="plain")
    else:
        upscaler = superres.load("celeba-8to64", device="cpu", engine=request.param).at_size(32)
    side = upscaler.face_task.source
    cells = np.random.default_rng(5).integers(60, 190, (side, side, 3)).astype(np.uint8)
    return upscaler, cells, upscaler.source_tokens(cells[None])[0]


def draft(game, committed=(), **changes):
    upscaler, _, source = game
    settings = {"block_size": K, "epsilon": 0, "calls": upscaler.tokens_per_image, **changes}
    return drafted(upscaler.scoring, upscaler.limits, source, committed, **settings)


class Scripted(Proposer):
    def __init__(self, guess):
        self.guess = guess

    def propose(self, context, offsets):
        known = [*context.tokens[0, : int(context.position)].tolist(), int(context.first)]
        return torch.tensor([self.guess(known)[: len(offsets)]])


def test_the_model_s_own_tokens_are_accepted_in_whole_blocks_and_give_the_greedy_picture(game):
    upscaler, _, _ = game
    greedy = draft(game, block_size=1)
    assert greedy.accepted == [1] * upscaler.tokens_per_image
    found = draft(game, propose=lambda known: greedy.tokens[len(known):][: K - 1])
    whole, rest = divmod(upscaler.tokens_per_image, K)
    assert found.tokens == greedy.tokens
    assert found.accepted == [K] * whole + [rest] * bool(rest)
    assert found.pending == []
    heads = draft(game)
    assert heads.tokens == greedy.tokens
    assert len(heads.accepted) < len(greedy.accepted)


@pytest.mark.parametrize("epsilon", [0, 12])
def test_guesses_give_the_tokens_of_a_decode_with_a_proposer_that_guesses_the_same(game, epsilon):
    upscaler, cells, source = game
    left = left_of(cells, upscaler.face_task.target, K)
    options = DecodeConfig(block_size=K, accept="distance", epsilon=epsilon, consistent=True)
    decoder = Algorithm(upscaler.scoring, options, Scripted(left), limits=upscaler.limits).start(
        source[None], K)
    accepted = list[int]()
    while not decoder.complete()[0]:
        accepted += decoder.advance(1)[:, 0, 1].tolist()
    tokens, _ = decoder.results(np.zeros(1, np.int64))
    found = draft(game, epsilon=epsilon, propose=left)
    assert found.tokens == tokens[0].tolist()
    assert found.accepted == accepted[1:]  # the first call reads the start


def test_a_draft_goes_on_after_any_number_of_its_tokens_whoever_drafts(game):
    upscaler, cells, _ = game
    left = left_of(cells, upscaler.face_task.target, K)
    whole = draft(game, epsilon=12, propose=left)
    for count in (33, len(whole.accepted) - 1):
        at = sum(whole.accepted[:count])
        rest = draft(game, whole.tokens[:at], epsilon=12, propose=left)
        assert (rest.tokens, rest.accepted) == (whole.tokens[at:], whole.accepted[count:])
    few = draft(game, whole.tokens[:at], calls=0)
    assert (few.tokens, few.accepted, few.pending[0]) == ([], [], whole.tokens[at])
    short = draft(game, whole.tokens[:33], epsilon=255, calls=1, propose=lambda _: [128, 128])
    assert short.accepted == [3]
    assert short.tokens[1:] == [128, 128]


def test_tokens_that_no_decode_has_are_refused_and_so_are_decoders_that_choose_their_blocks(game):
    upscaler, _, source = game
    with pytest.raises(ConfigError, match=r"token \d+ is not one that this picture can have"):
        draft(game, [255] * 700)
    options = DecodeConfig(block_size=K, temperature=1.0, sampling="speculative")
    decoder = Algorithm(upscaler.scoring, options).start(source[None], K)
    with pytest.raises(ConfigError, match=NO_DRAFTS):
        decoder.offer(np.zeros((1, K), np.int64))
