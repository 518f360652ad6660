"""Files of checkpoints from elsewhere that are read, but of which nothing can be decoded."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from fakes import (
    PLAIN,
    SMALL,
    TINY,
    VARIANTS,
    Waiting,
    limits_of,
    random_model,
    random_tokens,
    stacked,
)
from PIL import Image
from safetensors.numpy import save_file
from textual import vocabulary

from decodes import algorithm_of, decode
from superres.checkpoint import save_checkpoint
from superres.cli.main import run
from superres.config import BeamConfig, DecodeConfig
from superres.decoding.batching import Stream, feed_of
from superres.decoding.plain.beam import beam_search
from superres.decoding.plain.limited import LimitedModel
from superres.decoding.plain.state import NanCheck
from superres.decoding.proposers.ngram_table import NgramTable
from superres.errors import ScoresError
from superres.nn.torch_model import StepModel
from superres.system.folders import bundled_folder
from superres.tasks.translation import VOCABULARY_FILE, Codec
from tests.config.helpers import refusal

TEXTUAL = replace(SMALL, **PLAIN, source_shape=(7,), target_shape=(12,))
SAMPLED = {"temperature": 0.9}
WAYS = [DecodeConfig(block_size=1), DecodeConfig(accept="top-k"),
        DecodeConfig(block_size=1, **SAMPLED), DecodeConfig(sampling="speculative", **SAMPLED),
        DecodeConfig(nucleus=0.5, sample_top_k=2, **SAMPLED),
        DecodeConfig(proposer="lookahead", block_size=3, window=3, candidates=2,
                     sampling="speculative", **SAMPLED)]


def overflowing(config):
    """Return a network of finite weights whose scores are not."""
    model = random_model(config, dtype=torch.float32)
    for weight in model.parameters():
        weight.mul_(0).add_(1e38)
    return model


def test_scores_that_are_not_finite_stop_every_decode():
    for config in (SMALL, TEXTUAL):
        model, source = StepModel(overflowing(config), 1), random_tokens(config, 2)[0]
        feed = feed_of([Waiting(row, key) for key, row in enumerate(source)])
        stream = Stream(algorithm_of(model, DecodeConfig()), feed, stacked, 2)
        ways = [*((decode, model, source, way) for way in WAYS),
                (beam_search, model, source, BeamConfig(2)), (list, stream.run())]
        for work, *arguments in ways:
            with pytest.raises(ScoresError, match="not finite"):
                work(*arguments)


@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("variant", ["no free scores", "hyperbolic", "sequential heads",
                                     "recurrent heads"])
def test_heads_that_are_not_finite_propose_tokens_that_change_none(variant, limited):
    config = VARIANTS[variant]
    model, source = random_model(config, dtype=torch.float32), random_tokens(config, 2)[0]
    for weight in model.heads.parameters():
        weight.mul_(0).add_(1e38)
    step = StepModel(model)
    if limited and len(config.target_shape) == 3:
        step = LimitedModel(step, limits_of(config))
    greedy, exact = (decode(step, source, DecodeConfig(size), width=config.prediction_heads).tokens
                     for size in (1, config.prediction_heads))
    assert torch.equal(exact, greedy)


def test_tokens_may_be_left_out_but_not_all_of_them():
    scores = torch.zeros(2, 3, 4)
    scores[:, :, 1:] = float("-inf")
    check = NanCheck(2, 3, torch.device("cpu"))
    check.note(scores)
    check.check()
    scores[1, 2, 0] = float("-inf")
    check.note(scores)
    with pytest.raises(ScoresError):
        check.check()


def test_a_batch_marks_pictures_that_cannot_be_decoded_as_failed(tmp_path, capsys):
    save_checkpoint(overflowing(TINY), tmp_path / "bad")
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "a.png")
    words = ["upscale", tmp_path / "a.png", "--checkpoint", tmp_path / "bad", "--engine", "plain",
             "--output", tmp_path / "out"]
    assert run([str(word) for word in words]) == 1
    assert "scores are not finite" in capsys.readouterr().err
    (row,) = map(json.loads, (tmp_path / "out" / "manifest.jsonl").read_text().splitlines())
    assert row["status"] == "failed"
    assert "scores are not finite" in row["error"]
    assert not list((tmp_path / "out").glob("*.png"))


@pytest.mark.parametrize(("settings", "keys"), [
    *((settings, np.arange(3)) for settings in (
        [30_000_000, 9, 1], [2**62, 1, 1], [2**62, 9, 2**62], [2, 2**62, 1], [-1, 9, 1], [2, 0, 1],
        [2, 9, 0], [2, 9], 5, [[2], [9], [1]], [2.5, 9.0, 1.0], [float("nan")] * 3,
        [float("inf")] * 3, [True, True, True])),
    *(([2, 9, 1], keys) for keys in (
        np.zeros((2, 3), np.int64), np.array(3), np.array([2**63 - 1, -(2**63), 5]),
        np.zeros(0, np.int64))),
], ids=str)
def test_impossible_ngrams_are_refused(settings, keys, tmp_path):
    arrays = {"keys": keys, "tokens": np.zeros(keys.shape, np.int32),
              "settings": np.array(settings)}
    save_file(arrays, tmp_path / "n")
    refusal(NgramTable.read, tmp_path / "n")


def vocabularies():
    """Yield SentencePiece models, each damaged in one way."""
    toy, bundled = vocabulary(), (bundled_folder() / "multi30k-en-de"
                                  / VOCABULARY_FILE).read_bytes()
    yield from (b"", b"\0", toy[:-9], toy[: len(toy) // 2], b'{"a":' * 100_000, b"\xff" * 999)
    yield toy.replace(b"<0x04>", b"<0\xf004>")
    # a trie, whose nodes point to one another, stands behind it
    start = bundled.index(b"nmt_nfkc") + 12
    for at in range(start, start + 400, 40):
        yield bundled[:at] + b"\xff\xff\xff" + bundled[at + 3 :]


def test_a_damaged_vocabulary_is_refused_and_ends_no_interpreter():
    for content in vocabularies():
        assert "is not a SentencePiece model" in refusal(Codec, content, "it") or not content
