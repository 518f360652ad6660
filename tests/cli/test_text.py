"""`superres translate` and `superres evaluate text`: a line out for a line in, and one line for
every error."""

from __future__ import annotations

import io
import json
import sys
import tempfile

import pytest
from stores import faulty_store
from textual import sentences, write_pairs

from superres.cli.main import run
from superres.config import BeamConfig, DecodeConfig
from superres.pipeline import line_translation as text
from superres.pipeline.auto import load
from superres.system.places import read_place, write_place

LINES = ["the man sees a dog", "", "a red house", "dog"]


@pytest.fixture(scope="session")
def wanted(checkpoint):
    return load(checkpoint, "cpu")(LINES).texts


def command(*words):
    return run([str(word) for word in words])


def translate(checkpoint, *words):
    return command("translate", "--checkpoint", checkpoint, "--device", "cpu", *words)


def standard_input(monkeypatch, data):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


@pytest.mark.parametrize("words", [LINES, ["\n".join(LINES)]], ids=["lines", "one argument"])
def test_arguments_are_lines(checkpoint, wanted, capsys, words):
    assert translate(checkpoint, *words) == 0
    assert capsys.readouterr().out == "".join(f"{text}\n" for text in wanted)


def test_standard_input_goes_to_standard_output(checkpoint, wanted, capsys, monkeypatch, refused):
    standard_input(monkeypatch, ("\n".join(LINES) + "\n").encode())
    assert translate(checkpoint, "--batch-size", 1) == 0
    assert capsys.readouterr().out == "".join(f"{text}\n" for text in wanted)
    standard_input(monkeypatch, b"")
    assert "standard input is empty" in refused("translate", "--checkpoint", checkpoint)


def test_a_file_goes_to_a_file_with_a_summary_on_standard_error(checkpoint, wanted, tmp_path,
                                                                capsys):
    (tmp_path / "in.txt").write_text("".join(f"{line}\r\n" for line in LINES))
    output = tmp_path / "new" / "out.txt"
    assert translate(checkpoint, "--input", tmp_path / "in.txt", "--output", output) == 0
    assert output.read_text() == "".join(f"{text}\n" for text in wanted)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "superres: 4 lines in " in captured.err
    assert "mean accepted block size" in captured.err
    assert [path.name for path in output.parent.iterdir()] == ["out.txt"]


def test_the_trace_lists_the_steps_with_their_accepted_tokens(checkpoint, capsys):
    assert translate(checkpoint, LINES[0], "--trace", "--block-size", 2) == 0
    captured = capsys.readouterr()
    trace, = load(checkpoint, "cpu")(LINES[:1], DecodeConfig(block_size=2)).traces
    steps = [line for line in captured.err.splitlines() if line.startswith("Step ")]
    assert len(steps) == trace.iterations
    counts = [int(step.split()[2]) for step in steps]
    assert counts == trace.accepted
    assert steps[0].startswith(f"Step 1 {counts[0]:>4} token")
    assert steps[0].endswith("]")
    assert "Step" not in captured.out


def test_beam_search_is_an_option_without_blocks(checkpoint, capsys):
    assert translate(checkpoint, *LINES, "--beam", 3, "--length-penalty", 1.0) == 0
    texts = load(checkpoint, "cpu")(LINES, BeamConfig(3, 1.0)).texts
    assert capsys.readouterr().out == "".join(f"{text}\n" for text in texts)


@pytest.mark.parametrize("options", [(), ("--beam", 2)])
def test_a_line_of_many_sentences_is_one_line(checkpoint, capsys, options):
    line = "The man sees a dog. " * 8
    assert translate(checkpoint, "dog", line, *options) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_a_line_that_cannot_be_translated_fails_alone(checkpoint, tmp_path, capsys, encoding):
    (tmp_path / "in.txt").write_text(f"dog\n{'x' * 3000}\nä man", encoding=encoding)
    words = ["--input", tmp_path / "in.txt", "--output", tmp_path / "out.txt"]
    assert translate(checkpoint, *words) == 1
    assert "line 2: a word is longer than the 24 tokens" in capsys.readouterr().err
    assert (tmp_path / "out.txt").read_text().split("\n") == [
        *load(checkpoint, "cpu")(["dog", "", "ä man"]).texts, ""]


def test_the_report_holds_quality_acceptance_and_time_of_each_way(checkpoint, tmp_path, capsys):
    data = write_pairs(sentences(6), tmp_path / "dev")
    words = ["evaluate", "text", "--checkpoint", checkpoint, "--data", data, "--device", "cpu",
             "--json", "--limit", 5]
    assert command(*words) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["sentences"], report["languages"], report["batch_size"]) == (5, "en-de", 1)
    assert report["config"]["block_size"] == 4
    assert report["beam"] == {"size": 4, "length_penalty": 0.6}
    assert report["signatures"]["bleu"].startswith(
        "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert list(report["methods"]) == ["greedy", "beam 4", "blockwise"]
    assert set(report["speed_up"]) == {"greedy", "beam 4"}
    greedy, beam, blockwise = report["methods"].values()
    assert greedy["mean_accepted_block_size"] == 1
    assert greedy["model_calls_per_sentence"] == greedy["tokens_per_sentence"] + 1
    assert beam["mean_accepted_block_size"] is None
    assert 1 <= blockwise["mean_accepted_block_size"] <= 4
    assert blockwise["bleu"] == greedy["bleu"]
    assert report["identical_to_greedy"] == 1
    assert blockwise["seconds_per_sentence"] > 0


def test_translations_are_written_in_order_before_further_lines_begin(checkpoint, tmp_path,
                                                                      monkeypatch):
    monkeypatch.setattr(text, "TOGETHER", 1)
    lines, options = [*LINES, *reversed(LINES)], DecodeConfig(temperature=0.9)
    translator, cut = load(checkpoint, "cpu"), []
    segments = translator.codec.segments
    monkeypatch.setattr(translator.codec, "segments", lambda line: cut.append(line)
                        or segments(line))
    results = list(text.translate_lines(lines, translator, options, 2))
    assert cut == lines  # each line is cut once
    assert [len(result.texts) for result in results] == [2] * (len(lines) // 2)
    # The noise of a line is that of its number in the whole text.
    assert [line for result in results for line in result.texts] == translator(lines, options).texts
    output = tmp_path / "out.txt"
    output.write_text("before\n")
    with text.line_writer(output) as write:
        write(["a", "b"])
        assert output.read_text() == "before\n"
        write(["c"])
    assert output.read_text() == "a\nb\nc\n"
    with pytest.raises(AttributeError), text.line_writer(output) as write:
        write(["d", None.missing])
    assert output.read_text() == "a\nb\nc\n"
    assert [path.name for path in tmp_path.iterdir()] == ["out.txt"]
    summary = text.TranslationSummary()
    for result in results:
        summary.add(result)
    assert summary.lines == len(lines)
    assert str(summary).startswith(f"{len(lines)} lines in ")


@pytest.mark.slow
def test_text_of_a_store_is_translated_into_it(checkpoint, wanted, tmp_path, monkeypatch, capsys,
                                               refused):
    pytest.importorskip("s3fs", reason="the cloud extra is not installed")
    with faulty_store(monkeypatch) as store:
        write_place(f"{store}/in.txt", "\n".join(LINES).encode())
        assert translate(checkpoint, "--input", f"{store}/in.txt", "--output",
                         f"{store}/below/out.txt") == 0
        assert read_place(f"{store}/below/out.txt", 10_000).decode().splitlines() == wanted
        assert translate(checkpoint, "--input", f"{store}/in.txt") == 0
        assert capsys.readouterr().out.splitlines() == wanted
        for words, message in (
            (["--input", f"{store}/in.txt", "--output", f"{store}/in.txt"], "replace the input"),
            (["--input", f"{store}/none.txt"], "s3://faces/none.txt does not exist"),
            (["dog", "--output", "https://localhost/out.txt"], "web servers are only read"),
        ):
            assert message in refused("translate", "--checkpoint", checkpoint, *words)
        # What cannot be stored is kept, and the message says where.
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        said = refused("translate", *LINES, "--checkpoint", checkpoint, "--output",
                       "s3://elsewhere/out.txt")
    (kept,) = tmp_path.glob("superres-*.txt")
    assert said.endswith(f"the translations are in {kept}")
    assert kept.read_text().splitlines() == wanted
