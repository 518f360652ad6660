"""Shortlists: learned from translations, and proposals from them that change no output."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from fakes import NATIVE, Waiting, on_native, random_tokens, stacked
from textual import CONFIG, sentences, vocabulary, wordy, write_pairs

from decodes import algorithm_of, decode
from superres.checkpoint import save_checkpoint
from superres.cli.main import run
from superres.config import DecodeConfig
from superres.decoding.batching import Stream, feed_of
from superres.errors import CheckpointError
from superres.native import build
from superres.pipeline.translator import Translator
from superres.tasks import translation
from superres.tasks.shortlist import SHORTLIST, TOKENS, Shortlists, make_shortlists
from superres.tasks.translation import VOCABULARY_FILE

NETWORK = replace(CONFIG, **NATIVE, head_layer="recurrent")
WORDS = [*range(280, 288)]
"""The words that the random network chooses among, besides the end."""
native = pytest.mark.skipif(build.compiler() is None, reason="no C++ compiler on this machine")


def lists(*tokens, vocabulary=CONFIG.vocabulary):
    """Return shortlists that hold `tokens` alone, for every source."""
    return Shortlists(np.array(tokens, np.int64), np.full((vocabulary, 2), -1, np.int64),
                      np.ones(vocabulary, np.float32), 2.0)


def test_translations_are_learned_from_sentences_and_listed_by_their_probability():
    # Source token i means target token 10 + i; 19 follows every sentence.
    sources = [[1, 2], [2, 3], [1, 3], [3], [2], [1]] * 3
    targets = [[10 + token for token in row] + [19] for row in sources]
    made = make_shortlists(sources, targets, 20, common=1, likely=2)
    assert made.common.tolist() == [19]
    assert made.likely.shape == (20, 2)
    for token in (1, 2, 3):
        assert 10 + token in made.likely[token]
    assert (made.likely[[0, 4, 11]] == -1).all()


def test_a_list_has_common_tokens_then_the_likeliest_translations_of_all_words_once():
    likely = np.full((9, 3), -1, np.int64)
    likely[1], likely[2] = [5, 6, 7], [8, 5, -1]
    found = Shortlists(np.array([6, 3]), likely, np.ones(9, np.float32),
                       2.0).of(np.array([[2, 1, 2], [4, 4, 0]]))
    assert found.shape == (2, TOKENS)
    assert found[0, :6].tolist() == [6, 3, 5, 8, 7, -1]
    assert found[1, :3].tolist() == [6, 3, -1]
    assert (found[:, 6:] == -1).all()


def test_shortlists_survive_their_file(tmp_path):
    made = make_shortlists([[1], [2]], [[3], [4]], 9, likely=2, domain="numbers")
    (tmp_path / "lists").write_bytes(made.to_bytes())
    read = Shortlists.read(tmp_path / "lists", 9)
    for name in ("common", "likely", "bits"):
        np.testing.assert_array_equal(getattr(read, name), getattr(made, name))
    assert (read.domain, read.usual) == ("numbers", pytest.approx(made.usual))
    with pytest.raises(CheckpointError, match="shortlists for 8 tokens"):
        Shortlists.read(tmp_path / "lists", 8)


@pytest.mark.parametrize("content", [b"", b"x" * 100, lists(3, vocabulary=4).to_bytes(),
                                     lists(-5).to_bytes(), lists(10**6).to_bytes()])
def test_a_damaged_file_gets_one_line(content, tmp_path):
    (tmp_path / "lists").write_bytes(content)
    with pytest.raises(CheckpointError, match="train shortlist"):
        Shortlists.read(tmp_path / "lists", CONFIG.vocabulary)


@native
@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize("words", [WORDS[:3], [300]])
def test_heads_propose_words_of_the_list_and_outputs_stay_those_of_greedy_decoding(words,
                                                                                   precision):
    engine = on_native(wordy(NETWORK, 2, torch.float32), end_token=1,
                       precision=precision).native
    source = random_tokens(NETWORK, 3)[0]
    greedy = decode(engine, source, DecodeConfig(block_size=1))
    engine.shortlists = lists(*words).of
    blocks = decode(engine, source, DecodeConfig(block_size=4))
    assert torch.equal(blocks.tokens, greedy.tokens)
    for trace in blocks.traces:
        assert set(trace.proposed[1:, 1:].ravel().tolist()) <= set(words)


@native
def test_with_all_words_on_the_list_heads_propose_as_from_all_words_also_in_refilled_rows():
    engine = on_native(wordy(NETWORK, 2, torch.float32), end_token=1,
                       precision="int8").native
    source, options = random_tokens(NETWORK, 20)[0], DecodeConfig(block_size=4)
    without = decode(engine, source, options)
    engine.shortlists = lists(1, *WORDS).of
    listed = decode(engine, source, options)
    # The scores of a list are those of bytes, which may order close ones otherwise.
    assert sum(one.accepted == other.accepted for one, other in zip(listed.traces, without.traces,
                                                                    strict=True)) >= 16
    feed = feed_of([Waiting(one, key, key) for key, one in enumerate(source)])
    stream = Stream(algorithm_of(engine, options), feed, stacked, 2)
    done = {one.item.tag: one for some in stream.run() for one in some}
    for row, trace in enumerate(listed.traces):
        assert done[row].trace.accepted == trace.accepted
        assert done[row].tokens.tolist() == without.tokens[row].tolist()


@native
def test_a_checkpoint_reads_the_shortlists_in_its_folder(tmp_path, capsys, monkeypatch):
    folder, pairs = tmp_path / "toy", sentences(40)
    save_checkpoint(wordy(NETWORK, 2, torch.float32), folder, dtype=torch.float32,
                    files={VOCABULARY_FILE: vocabulary()})
    text = write_pairs(pairs, tmp_path / "text")
    words = ["train", "shortlist", "--data", str(text), "--checkpoint", str(folder), "--domain",
             "toys"]
    assert run([*words, "--output", str(folder / SHORTLIST)]) == 0
    assert "common tokens" in capsys.readouterr().err
    translator = Translator.load(folder, "cpu", engine="native")
    assert translator.scoring.shortlists is not None
    assert translator(pairs.source[:5], DecodeConfig(block_size=3)).texts == Translator.load(
        folder, "cpu", engine="plain")(pairs.source[:5], DecodeConfig(block_size=1)).texts
    # Words that the text lacks are spelled by rare tokens.
    # an untrained network writes texts of any length
    monkeypatch.setattr(translation, "SHARES", (0, 100))
    assert run(["translate", pairs.source[0], "Xylophones!", "--checkpoint", str(folder),
                "--device", "cpu"]) == 0
    assert capsys.readouterr().err == (
        'superres: 2 of 2 lines have words that the model hardly knows: line 1: "runs", line 2: '
        '"Xylophones"\n'
        "superres: the model knows toys only, so 1 of 2 translations may be wrong: line 2\n")
    (folder / SHORTLIST).write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="remove the file"):
        Translator.load(folder, "cpu")
