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
from superres.system.places import known_place

LINES = ["the man sees a dog", "", "a red house", "dog"]


@pytest.fixture(scope="session")
def wanted(checkpoint):
    return load(checkpoint, "cpu")(LINES).texts


@pytest.fixture
def translate(checkpoint, capsys):
    """Run `superres translate` with the toy network; returns its code, and the lines of its output
    and of its messages."""
    def translated(*words):
        code = run(["translate", "--checkpoint", checkpoint, "--device", "cpu", *map(str, words)])
        captured = capsys.readouterr()
        return code, captured.out.splitlines(), captured.err.splitlines()

    return translated


@pytest.mark.slow
def test_lines_are_arguments_or_standard_input(checkpoint, wanted, translate, monkeypatch, refused):
    def standard_input(text):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    assert translate(*LINES)[:2] == translate("\n".join(LINES))[:2] == (0, wanted)
    standard_input("\n".join(LINES) + "\n")
    assert translate("--batch-size", 1)[:2] == (0, wanted)
    standard_input("")
    assert "standard input is empty" in refused("translate", "--checkpoint", checkpoint)


def test_a_file_goes_to_a_file_with_a_summary_on_standard_error(wanted, translate, tmp_path):
    (tmp_path / "in.txt").write_text("".join(f"{line}\r\n" for line in LINES))
    output = tmp_path / "new" / "out.txt"
    code, printed, said = translate("--input", tmp_path / "in.txt", "--output", output)
    assert (code, printed) == (0, [])
    assert output.read_text().splitlines() == wanted
    assert said[-1].startswith("superres: 4 lines in ")
    assert "mean accepted block size" in said[-1]
    assert [path.name for path in output.parent.iterdir()] == ["out.txt"]


def test_the_trace_lists_the_steps_with_their_accepted_tokens(checkpoint, translate):
    _, printed, said = translate(LINES[0], "--trace", "--block-size", 2)
    trace, = load(checkpoint, "cpu")(LINES[:1], DecodeConfig(block_size=2)).traces
    steps = [line for line in said if line.startswith("Step ")]
    assert [int(step.split()[2]) for step in steps] == trace.accepted
    assert steps[0].startswith(f"Step 1 {trace.accepted[0]:>4} token")
    assert steps[0].endswith("]")
    assert len(printed) == 1


def test_beam_search_is_an_option_without_blocks(checkpoint, translate):
    texts = load(checkpoint, "cpu")(LINES, BeamConfig(3, 1.0)).texts
    assert translate(*LINES, "--beam", 3, "--length-penalty", 1.0)[:2] == (0, texts)


@pytest.mark.parametrize("options", [(), ("--beam", 2)])
def test_a_line_of_many_sentences_is_one_line(translate, options):
    code, printed, _ = translate("dog", "The man sees a dog. " * 8, *options)
    assert (code, len(printed)) == (0, 2)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_a_line_that_cannot_be_translated_fails_alone(checkpoint, translate, tmp_path, encoding):
    (tmp_path / "in.txt").write_text(f"dog\n{'x' * 3000}\nä man", encoding=encoding)
    code, printed, said = translate("--input", tmp_path / "in.txt")
    assert (code, printed) == (1, load(checkpoint, "cpu")(["dog", "", "ä man"]).texts)
    assert "line 2: a word is longer than the 24 tokens" in "".join(said)


@pytest.mark.slow
def test_the_report_holds_quality_acceptance_and_time_of_each_way(checkpoint, tmp_path, capsys):
    data = write_pairs(sentences(6), tmp_path / "dev")
    assert run(["evaluate", "text", "--checkpoint", checkpoint, "--data", str(data), "--device",
                "cpu", "--json", "--limit", "5"]) == 0
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


def test_each_line_is_cut_once_and_its_noise_is_that_of_its_number(checkpoint, monkeypatch):
    monkeypatch.setattr(text, "TOGETHER", 1)
    lines, options = [*LINES, *reversed(LINES)], DecodeConfig(temperature=0.9)
    translator, cut = load(checkpoint, "cpu"), []
    segments = translator.codec.segments
    monkeypatch.setattr(translator.codec, "segments",
                        lambda line: cut.append(line) or segments(line))
    summary = text.TranslationSummary()
    results = list(text.translate_lines(lines, translator, options, 2))
    assert cut == lines
    assert [len(result.texts) for result in results] == [2] * (len(lines) // 2)
    assert [line for result in results for line in result.texts] == translator(lines, options).texts
    for result in results:
        summary.add(result)
    assert str(summary).startswith(f"{len(lines)} lines in ")


def test_a_text_is_replaced_whole_or_not_at_all(tmp_path):
    output = tmp_path / "out.txt"
    output.write_text("before\n")
    with text.line_writer(output) as write:
        write(["a", "b"])
        assert output.read_text() == "before\n"
        write(["c"])
    with pytest.raises(AttributeError), text.line_writer(output) as write:
        write(["d", None.missing])
    assert output.read_text() == "a\nb\nc\n"
    assert [path.name for path in tmp_path.iterdir()] == ["out.txt"]


@pytest.mark.slow
def test_text_of_a_store_is_translated_into_it(checkpoint, wanted, tmp_path, monkeypatch, refused,
                                               translate):
    pytest.importorskip("s3fs", reason="the cloud extra is not installed")
    with faulty_store(monkeypatch) as store:
        known_place(f"{store}/in.txt").write("\n".join(LINES).encode())
        code, *_ = translate("--input", f"{store}/in.txt", "--output", f"{store}/below/out.txt")
        assert code == 0
        assert known_place(f"{store}/below/out.txt").read(10_000).decode().splitlines() == wanted
        assert translate("--input", f"{store}/in.txt")[:2] == (0, wanted)
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
    assert said.endswith(f"what was written is in {kept}")
    assert kept.read_text().splitlines() == wanted
