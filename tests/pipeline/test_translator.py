"""Lines in, lines out: exact blocks change nothing, order and number of lines are kept, nothing
overruns."""

from __future__ import annotations

import copy
import sys
import threading
from dataclasses import replace

import pytest
import torch
from fakes import BAD_KEYS
from textual import CONFIG, codec, learned, sentences, vocabulary, wordy

import superres
from superres.checkpoint import save_checkpoint
from superres.config import BeamConfig, CostRecord, DecodeConfig, StepCosts
from superres.decoding import reference
from superres.decoding.batching import SHRUNK_TEXT
from superres.errors import CheckpointError, ConfigError, InvalidInputError, ScoresError
from superres.evaluation.text import bleu
from superres.native import build
from superres.native.decoder import NativeDecoder
from superres.nn.torch_model import StepModel
from superres.pipeline.auto import load
from superres.pipeline.translator import Translator
from superres.pipeline.upscaler import Upscaler
from superres.tasks.translation import (
    END,
    NO_LETTERS,
    TOO_LONG,
    TOO_SHORT,
    UNKNOWN_SCRIPT,
    VOCABULARY_FILE,
    length_doubt,
    train_vocabulary,
)

GREEDY = DecodeConfig(block_size=1)
LINES = sentences(20).source


@pytest.fixture(scope="module")
def toy():
    return learned()[torch.float64]


@pytest.fixture
def folder(tmp_path):
    save_checkpoint(wordy(dtype=torch.float32), tmp_path / "toy",
                    files={VOCABULARY_FILE: vocabulary()})
    return tmp_path / "toy"


def accepted(result):
    return [[trace.accepted for trace in line.traces] for line in result]


def test_exact_blocks_equal_greedy_decoding_without_a_cache_for_every_sentence(toy):
    plain = StepModel(toy.model, END)
    sources = (torch.from_numpy(codec().encode([line])) for line in LINES)
    wanted = [codec().decode([reference.tokens_of(reference.decode(plain, source, GREEDY))])[0]
              for source in sources]
    for k in (1, 2, 3, 4):
        assert toy(LINES, DecodeConfig(block_size=k), batch_size=8).texts == wanted
    assert len(set(wanted)) > 15


@pytest.mark.parametrize("options",
                         [DecodeConfig(), GREEDY, DecodeConfig(accept="top-k", min_block=2),
                          DecodeConfig(temperature=0.8), BeamConfig(3)], ids=str)
def test_a_batch_equals_its_single_rows_whatever_the_batch_size(toy, options):
    wanted = toy(LINES[:8], options, batch_size=1)
    for batch_size in (3, 64):
        assert toy(LINES[:8], options, batch_size=batch_size).texts == wanted.texts


@pytest.mark.skipif(build.compiler() is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize("options", [GREEDY, DecodeConfig(3), DecodeConfig(temperature=1.0)])
def test_compiled_code_continues_without_the_complete_rows_of_a_batch(toy, options, monkeypatch):
    several = Translator(copy.deepcopy(toy.model).float(), "toy", engine="native", codec=codec())
    several.scoring.threads = 1
    # A sample's noise belongs to its key.
    wanted = [several.decode([line], options, keys=[key]).texts[0]
              for key, line in enumerate(LINES)]
    kept, real = [], NativeDecoder.keep

    def watched(decoder, rows):
        kept.append((len(rows), len(decoder.positions())))
        real(decoder, rows)

    monkeypatch.setattr(NativeDecoder, "keep", watched)
    assert several(LINES, options, batch_size=16).texts == wanted
    assert kept
    assert all(2 * rows <= before and before >= SHRUNK_TEXT for rows, before in kept)


@pytest.mark.skipif(build.compiler() is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize("options", [GREEDY, DecodeConfig(temperature=1.0), BeamConfig(2)])
def test_groups_that_are_translated_at_the_same_time_equal_one_after_the_other(toy, options,
                                                                               monkeypatch):
    several = Translator(copy.deepcopy(toy.model).float(), "toy", engine="native", codec=codec())
    several.scoring.threads = 1
    wanted = several(LINES, options, batch_size=4)
    several.scoring.threads = 3
    threads, real = set(), several._translated
    second = threading.Event()

    def waits_for_a_second(*given):
        # A toy's groups take no time: without the wait, one thread may have done them all before
        # another has started.
        threads.add(threading.get_ident())
        if len(threads) > 1:
            second.set()
        assert second.wait(300)
        yield from real(*given)

    monkeypatch.setattr(several, "_translated", waits_for_a_second)
    progress = []
    found = several(LINES, options, batch_size=4, progress=lambda *given: progress.append(given))
    assert found.texts == wanted.texts
    assert accepted(found) == accepted(wanted)
    assert progress[-1] == (len(LINES), len(LINES))

    def fails(*_):
        raise ScoresError
        yield

    monkeypatch.setattr(several, "_translated", fails)
    with pytest.raises(ScoresError):
        several(LINES, batch_size=4)


def test_a_call_without_options_is_that_of_the_default_and_its_record_decides_by_batch(folder,
                                                                                       monkeypatch):
    translator = load(folder, "cpu", "plain")
    translator.default = DecodeConfig(adaptive=True)
    pays, costly = StepCosts((1.0, 1.01), 1.0), StepCosts((1.0, 9.0), 1.0)
    monkeypatch.setattr(translator.scoring, "costs", CostRecord({"1": pays, "16": costly}, cores=1))
    for lines, batch_size, largest in ((LINES[:1], 64, 4), (LINES[:16], 64, 1), (LINES[:16], 2, 4)):
        own, default = (translator(lines, options, batch_size=batch_size)
                        for options in (None, translator.default))
        assert (own.texts, own.model_calls) == (default.texts, default.model_calls)
        assert {trace.proposed.shape[1] for trace in own.traces} == {largest}


def test_lines_keep_their_order_and_empty_ones_stay_empty(toy):
    lines = ["", *LINES[:3], " ", LINES[3], ""]
    result = toy(lines)
    alone = [toy([line]).texts[0] for line in lines]
    assert result.texts == alone
    assert ([bool(text) for text in (result.texts[0], result.texts[4], result.texts[6])] == [False]
            * 3)
    assert [len(line.traces) for line in result] == [0, 1, 1, 1, 0, 1, 0]
    assert toy([]).texts == []
    (only,) = toy.stream(["", " "])
    assert (only.texts, only.is_complete) == (["", ""], True)


@pytest.mark.parametrize(("line", "reason"), [
    ("...", NO_LETTERS), ("- 12:30", NO_LETTERS),
    ("a dog runs. \u0441\u043e\u0431\u0430\u043a\u0430", ""),
    ("\u0441\u043e\u0431\u0430\u043a\u0430", UNKNOWN_SCRIPT), ("a dog", ""), ("", ""),
])
def test_a_source_that_has_no_right_translation_is_marked(toy, line, reason):
    assert toy(["a dog", line])[1].unusual == reason
    *_, last = toy.stream([line])
    assert [line.unusual for line in last] == [reason]


def test_a_translation_of_unlikely_length_is_marked_once_it_is_complete():
    source = "a man sees a small red dog"
    assert [length_doubt(source, "x" * length) for length in (12, 13, 65, 66)] == [TOO_SHORT, "",
                                                                                   "", TOO_LONG]
    assert length_doubt("a dog", "") == ""  # too short to tell


SAMPLED = DecodeConfig(temperature=0.9, seed=3)


@pytest.mark.parametrize("options", [DecodeConfig(), SAMPLED], ids=["greedy", "sampling"])
def test_a_long_line_is_translated_in_parts_that_have_noise_of_their_own(toy, options):
    line = "The small red dog sees a man. " * 8
    segments = codec().segments(line)
    assert len(segments) > 2
    assert len(set(segments)) == 1
    result = toy([LINES[0], line], options)
    assert [line.segments for line in result] == [1, len(segments)]
    parts = [tuple(trace.sequence.tolist()) for trace in result[1].traces]
    assert (len(set(parts)) > 1) == options.is_sampling
    # The first part has the line's own key; and neither batch nor neighbours change anything.
    assert toy([LINES[0], segments[0]], options)[1].traces[0].sequence.tolist() == list(parts[0])
    for batch_size in (1, 2):
        assert toy([LINES[0], line], options, batch_size=batch_size).texts == result.texts
    assert toy(["", line, LINES[1]], options).texts[1] == result.texts[1]


def test_keys_make_a_sample_independent_of_the_place_of_its_line(toy):
    line = "the small red dog sees a man. " * 8
    lines = [*LINES[:3], line]
    wanted = toy.decode(lines, SAMPLED, keys=[5, 2**63 - 1, 0, 9]).texts
    assert toy.decode(lines[::-1], SAMPLED, keys=[9, 0, 2**63 - 1, 5],
                      batch_size=2).texts == wanted[::-1]
    assert [*toy.decode_stream(lines, SAMPLED, keys=[5, 2**63 - 1, 0, 9])][-1].texts == wanted
    assert toy.decode(lines, SAMPLED, keys=range(4)).texts == toy(lines, SAMPLED).texts
    assert toy.decode(lines, SAMPLED, keys=[1, 2, 3, 4]).texts != wanted


@pytest.mark.parametrize(("keys", "message"), BAD_KEYS, ids=repr)
def test_keys_that_do_not_fit_the_lines_are_refused_in_one_line(toy, keys, message):
    for call in (lambda: toy.decode(LINES[:2], SAMPLED, keys=keys),
                 lambda: next(toy.decode_stream(LINES[:2], SAMPLED, keys=keys))):
        with pytest.raises(InvalidInputError, match=message) as caught:
            call()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("options", [DecodeConfig(), GREEDY, DecodeConfig(min_block=4),
                                     BeamConfig()], ids=str)
def test_a_translation_that_does_not_end_is_cut_at_a_length_bound_by_that_of_its_source(options):
    network = wordy()
    network.project.bias[END] = -1000
    result = Translator(network, "endless", device="cpu", engine="plain", codec=codec())(LINES[:5],
                                                                                         options)
    sources = [len(tokens) for tokens in codec().split(LINES[:5])]
    tokens = [line.tokens for line in result]
    assert tokens == [min(20, 2 * length + 10) for length in sources]
    assert len(set(tokens)) > 1
    assert all(line.truncated for line in result)


def test_load_picks_by_the_task_and_another_task_is_refused_by_name(folder):
    toy = load(folder, "cpu")
    assert isinstance(toy, superres.Translator)
    assert (toy.name, toy.languages, toy.codec.size) == ("toy", ("en", "de"), 330)
    assert isinstance(load("celeba-8to32", "cpu"), Upscaler)
    with pytest.raises(CheckpointError, match="toy is for the task 'translation', not faces"):
        Upscaler.load(folder, "cpu")
    with pytest.raises(CheckpointError, match="celeba-8to32 is for the task 'faces', not "
                       "translation"):
        Translator.load("celeba-8to32", "cpu")


def test_a_checkpoint_without_its_vocabulary_or_with_another_is_refused(folder):
    (folder / VOCABULARY_FILE).unlink()
    with pytest.raises(CheckpointError, match="cannot read the vocabulary"):
        load(folder, "cpu")
    with pytest.raises(CheckpointError, match=r"has 331 tokens, its sentencepiece\.model 330"):
        Translator(wordy(replace(CONFIG, vocabulary=331)), "odd", device="cpu", engine="plain",
                   codec=codec())


@pytest.mark.parametrize(("options", "message"), [
    (DecodeConfig(accept="distance"), "distance compares grey levels, .*; choose one of exact, "
     "top-k"),
    (DecodeConfig(temperature=(0.9, 0.7, 0.7)), "text has no colour channels"),
    (DecodeConfig(block_size=5), "block size 5 is more than the 4 prediction heads"),
])
def test_options_for_pictures_are_refused(toy, options, message):
    for call in (lambda: toy(["a"], options), lambda: next(toy.stream(["a"], options))):
        with pytest.raises(ConfigError, match=message):
            call()


@pytest.mark.parametrize("options", [DecodeConfig(), GREEDY, BeamConfig(3)], ids=str)
def test_a_stream_shows_every_step_and_ends_with_what_a_call_gives(toy, options):
    lines = [LINES[0], "", LINES[1], "the small red dog sees a man. " * 5]
    *frames, last = toy.stream(lines, options, interval=0)
    wanted = toy(lines, options)
    assert [replace(line, traces=[]) for line in last] == [replace(line, traces=[])
                                                           for line in wanted]
    assert (last.is_complete, last.model_calls) == (True, wanted.model_calls)
    assert accepted(last) == accepted(wanted)
    assert len(frames) > 5
    assert not any(frame.is_complete or any(line.truncated for line in frame) for frame in frames)
    calls = [frame.model_calls for frame in [*frames, last]]
    assert calls == sorted(calls)
    clocks = [frame.seconds for frame in [*frames, last]]
    assert clocks == sorted(clocks)
    if not isinstance(options, BeamConfig):  # whose best hypothesis may change its mind
        for before, after in zip(frames, [*frames[1:], last], strict=True):
            assert all(line.tokens <= more.tokens for line, more in zip(before, after, strict=True))
        assert [line.tokens for line in frames[0]] != [line.tokens for line in last]


def test_text_without_sentencepiece_or_sacrebleu_is_one_line(monkeypatch):
    for module in ("sentencepiece", "sacrebleu"):
        monkeypatch.setitem(sys.modules, module, None)
    for call in (lambda: bleu(["a"], ["a"]), lambda: train_vocabulary(["a"], 300)):
        with pytest.raises(ConfigError, match=r"superres\[text\]"):
            call()
