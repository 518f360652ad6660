"""Text as tokens, parallel files, long lines: nothing is lost, and what cannot be used is named."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from textual import codec, write_pairs

from superres.errors import CheckpointError, ConfigError, InvalidInputError
from superres.tasks.translation import (
    END,
    PADDING,
    VOCABULARY_FILE,
    Codec,
    TextPairs,
    pad,
    parse_languages,
    read_pairs,
    sentences,
    train_vocabulary,
)

# SentencePiece normalises compatibility forms and blanks; other text comes back as it was.
TEXT = st.text(st.characters(codec="utf-8", categories=("Ll", "Nd", "Po", "So")), max_size=30).map(
    lambda text: codec().decode(pad(codec(None).split([text])))[0])


@given(TEXT)
def test_what_is_encoded_comes_back_even_characters_that_the_vocabulary_lacks(text):
    (row,) = codec(None).split([text])
    assert codec().decode([row]) == [text]
    assert row[-1] == END
    assert END not in row[:-1]


def test_a_batch_is_filled_up_with_padding_after_each_end():
    tokens = codec().encode(["a", "the small red dog"])
    assert tokens.dtype == np.int64
    assert tokens[0].tolist() == [*codec().split(["a"])[0], *[PADDING] * (tokens.shape[1] - 2)]
    assert (tokens[:, -1] == [PADDING, END]).all()
    assert codec().encode([]).shape == (0, 0)


def test_a_translation_is_one_line_whatever_bytes_were_chosen():
    (row,) = codec().split(["a"])
    assert "\n" not in codec().decode([[*row[:-1], codec().pieces.piece_to_id("<0x0A>"), *row]])[0]


@given(TEXT)
def test_surfaces_are_the_text_that_each_token_adds(text):
    (row,) = codec(None).split([text])
    surfaces = codec().surfaces(row)
    assert len(surfaces) == len(row)
    assert "".join(surfaces) == text
    assert codec().surfaces([]) == []


def test_a_character_of_several_tokens_comes_with_the_last_of_them():
    (row,) = codec().split(["a dog \U0001f600 a"])
    assert codec().surfaces(row)[-6:] == ["", "", "", "\U0001f600", " a", ""]


@pytest.mark.parametrize(("call", "message"), [
    (lambda: train_vocabulary(["a b", "c"], 8000), "2 lines give no vocabulary of 8000 pieces"),
    (lambda: codec().encode(["a", "a " * 30]), r"input 2 has 31 tokens, more than the 24 .*'a a a "
     r"a"),
    (lambda: codec().decode([[1.5]]), "whole numbers"),
    (lambda: codec().decode([1, 2]), "whole numbers"),
    (lambda: codec().decode([[330]]), r"0\.\.329, not 330\.\.330"),
    (lambda: codec().decode([[-1]]), "not -1"),
    (lambda: codec().segments(f"a dog {'x' * 5000} runs"),
     r"a word is longer than the 24 tokens .*'xxxx.*\.\.\.'; write it in"),
    (lambda: read_pairs("nowhere", limit=0), "limit must be at least 1, not 0"),
])
def test_what_cannot_be_used_is_refused_in_one_line_with_its_value(call, message):
    with pytest.raises(InvalidInputError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("expected", [
    ["A dog runs."], ["A dog runs.", "Two women sit on a bench!", "Is it late?"],
    ["It is 5 p.m. in St. Louis."], ["Dr. Seuss wrote it.", "She reads."],
    ["He said \"Stop!\"", "Then he ran."], ["A man at the U.S. Army library."],
    ["John A. Noble waits.", "So do I.", "He is late."], ["No. 5 is red.", "No.", "Not that one."],
    ["A dog. a man."], ["Well...", "Perhaps."], ["In 2010.", "5 men ran."],
    ["(A dog runs.)", "(A man sits.)"], ["Ein Hund, z.B. Rex.", "Ärzte warten."], [],
])
def test_a_line_is_cut_after_each_sentence_and_not_after_an_abbreviation(expected):
    assert sentences("  " + "  ".join(expected)) == expected


def test_a_long_sentence_is_cut_where_its_parts_end_like_sentences():
    assert codec().segments("a dog. a man.") == ["a dog. a man."]
    assert codec().segments("") == codec().segments("  \t") == []
    segments = codec().segments("a man sees a tree. " * 6)
    assert len(segments) > 1
    assert all(segment.endswith(".") for segment in segments)


@given(st.lists(st.sampled_from(["the small red dog runs.", "a man sees a tree.", "dog", "Haus!",
                                 "the"]), max_size=30))
@example(["dog"] * 5000)
def test_a_long_line_is_cut_between_words_and_nothing_is_left_out(parts):
    line = " ".join(parts)
    segments = codec().segments(line)
    assert " ".join(segments) == line
    assert all(len(row) <= 24 for row in codec().split(segments))


@given(st.text(st.characters(max_codepoint=127), max_size=60))
def test_ascii_text_has_at_most_a_token_per_character_and_two_more(text):
    assert len(codec().split([text])[0]) <= len(text) + 2


def test_a_damaged_or_foreign_vocabulary_is_refused(tmp_path):
    (tmp_path / VOCABULARY_FILE).write_bytes(b"nonsense")
    with pytest.raises(CheckpointError, match="is not a SentencePiece model"):
        Codec.read(tmp_path)
    with pytest.raises(CheckpointError, match="cannot read the vocabulary"):
        Codec.read(tmp_path / "nowhere")


@pytest.mark.parametrize("tag", ["en", "en-en", "en-de-fr", "english-de", "EN-DE", "", "e-d",
                                 "../x-de"])
def test_unknown_language_tags_are_refused(tag):
    with pytest.raises(ConfigError, match="unknown languages"):
        parse_languages(tag)
    assert parse_languages("en-de") == ("en", "de")


def test_parallel_files_are_read_line_by_line(tmp_path):
    pairs = TextPairs(["a dog", "", "odd\u2028separator\x0bs"], ["ein Hund", "", "x"])
    assert read_pairs(write_pairs(pairs, tmp_path / "train")) == pairs
    assert read_pairs(tmp_path / "train", limit=1) == TextPairs(["a dog"], ["ein Hund"])
    assert read_pairs(tmp_path / "train", ("de", "en")).source == pairs.target
    # with a byte order mark and ends of Windows
    (tmp_path / "train.de").write_bytes(b"\xef\xbb\xbfone\r\n\ntwo")
    assert read_pairs(tmp_path / "train").target == ["one", "", "two"]


@pytest.mark.parametrize("place", ["toy/toy", "toy", "named"])
def test_sacrebleus_own_test_sets_are_read(tmp_path, place, monkeypatch):
    folder = tmp_path / "toy"
    folder.mkdir()
    (folder / "toy.en-de.src").write_text("a dog\n")
    (folder / "toy.en-de.ref").write_text("ein Hund\n")
    monkeypatch.setenv("SACREBLEU", str(tmp_path))
    path = "toy" if place == "named" else tmp_path / place
    assert read_pairs(path) == TextPairs(["a dog"], ["ein Hund"])


@pytest.mark.parametrize(("files", "message"), [
    ({"t.en": b"a\nb\n", "t.de": b"x\n"}, r"t\.en has 2 lines and .*t\.de 1; they must be "
     r"translations line by line"),
    ({"t.en": b"a\n\xffb\n", "t.de": b"x\ny\n"}, r"t\.en, line 2: byte 1 \(0xff\) is not UTF-8"),
    ({"t.en": b"", "t.de": b""}, r"t\.en is empty"),
    ({"t.en": b"a\n"}, r"t\.de cannot be read: No such file"),
    ({}, r"no parallel text .*t\.en and .*t\.de; give the common prefix of both names"),
])
def test_parallel_text_that_cannot_be_used_is_one_line(tmp_path, files, message):
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidInputError, match=message) as caught:
        read_pairs(tmp_path / "t")
    assert "\n" not in str(caught.value)
