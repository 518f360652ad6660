"""The web demo's translations: what the page shows of them, what it refuses, and the endpoint
`/translate`."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fakes import TINY, random_model
from gradio_client import Client
from textual import codec, learned, sentences, write_checkpoint

from superres.cli import app
from superres.config import BeamConfig, DecodeConfig
from superres.decoding.trace import RowTrace
from superres.errors import CheckpointError, InvalidInputError
from superres.pipeline.line_translation import TranslationSummary, line_notes, trace_lines
from superres.pipeline.translated import Translated, Translation
from superres.pipeline.translator import Translator
from superres.pipeline.upscaler import Upscaler
from superres.tasks.word_marks import repetition
from superres.web.decoding import VisitorDecoding
from superres.web.translate_tab import (
    MAX_CHARACTERS,
    MAX_LINES,
    blocks_html,
    lines_of,
    report_of,
    slow_motion,
    text_stepper,
    translations_html,
)
from tests.web.helpers import HTTP, running

ROOT = Path(__file__).parents[2]
LINES = [*sentences(4, seed=5).source, "", "the red dog"]


@pytest.fixture(scope="module")
def translator():
    return learned()[torch.float32]


class Spans(HTMLParser):
    """The elements of a piece of HTML, and its text."""

    def __init__(self, html):
        super().__init__()
        self.elements, self.text = [], ""
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.text += data


def traced(text, size):
    """Return the record of a decoding of `text` in blocks of `size`."""
    (tokens,) = codec(None).split([text])
    blocks = [tokens[start : start + size] for start in range(0, len(tokens), size)]
    return RowTrace([size * i for i in range(len(blocks))], [len(block) for block in blocks],
                    np.array([[*block, *[9] * (size - len(block))] for block in blocks]))


# What the page shows


def test_every_accepted_block_is_marked_numbered_and_named(translator):
    traces = translator(["the small red dog"])[0].traces
    shown = Spans(blocks_html(translator, traces, [], 0))
    assert shown.text == translator(["the small red dog"]).texts[0]
    assert [attributes["data-step"] for _, attributes in shown.elements] == [
        str(number) for number in range(1, traces[0].iterations + 1)]
    assert [attributes["title"] for _, attributes in shown.elements] == [
        f"Step {number}: {count} token{'s' if count > 1 else ''}" for number,
        count in enumerate(traces[0].accepted, 1)]
    assert ["sr-ends" in attributes["class"] for _, attributes in shown.elements] == [
        *[False] * (traces[0].iterations - 1), True]
    # of a long line
    parts = Spans(blocks_html(translator, [traced("a dog", 2), traced("a man", 2)], [], 0))
    assert parts.text == "a dog a man"
    assert [attributes["data-step"] for _, attributes in parts.elements] == [
        str(number) for number in range(1, len(parts.elements) + 1)]


@pytest.mark.parametrize("text", ["<script>alert(1)</script>", '" onclick="alert(1)',
                                  "a & b </span>", "${1+1} {{7}}"])
def test_text_is_text_and_not_html(translator, text):
    result = Translated([Translation(text, 9, [traced(text, 3)]), Translation(text, 9)], 3, 0.5)
    shown = Spans(translations_html(translator, [text] * 2, {"": result}))
    # as blocks, as a whole as beam search gives it, and both to copy
    assert shown.text.count(text) == 4
    assert {tag for tag, _ in shown.elements} <= {"div", "section", "ol", "li", "span", "dl", "dt",
                                                  "dd", "details", "summary", "pre", "p", "label",
                                                  "textarea", "superres-stepper"}
    assert not any(name.startswith("on") for _, attributes in shown.elements for name in attributes)


def test_the_steps_are_listed_as_on_the_command_line(translator):
    lines = ["a dog", "", "the red house"]
    result = translator(lines)
    text = Spans(translations_html(translator, lines, {"": result})).text
    for number in (0, 2):
        assert ("\n".join([f"Line {number + 1}", *trace_lines(translator, result[number].traces)])
                in text)
    assert "an empty line" in text
    assert "Line 2" not in text
    assert "Decoded in" in text


@pytest.mark.parametrize(("clocks", "factor"), [
    ({name: [(call, call * seconds) for call in range(1, 6)]
      for name, seconds in (("Greedy", 0.010), ("Blockwise", 0.004))}, 0.3 * 5 / 0.05),
    ({"": [(1, 0.1), (200, 20)]}, 4 / 20)], ids=["few", "many"])
def test_what_was_too_fast_to_see_is_shown_again_at_the_pace_of_its_steps(clocks, factor):
    assert slow_motion(clocks) == pytest.approx(factor)


def test_a_race_tells_who_won_and_whether_it_cost_anything(translator):
    first, *_, result = translator.stream(LINES, interval=0)
    assert "Translating ..." in translations_html(translator, LINES, {"": first})
    steps = sum(line.steps for line in result)
    # beam search has no blocks: its steps are model calls
    without = [replace(line, traces=[]) for line in result]
    shown = {"Greedy": replace(result, seconds=3.0),
             "Blockwise": replace(result, lines=without, seconds=1.5, model_calls=2)}
    html = translations_html(translator, LINES, shown)
    assert f"Blockwise took 2 steps, Greedy {steps}; Blockwise was 2.0 times as fast." in html
    shown["Blockwise"] = replace(shown["Blockwise"], seconds=2.9)
    html = translations_html(translator, LINES, shown)
    assert "; both took about as long, since each of the fewer steps takes longer." in html
    same = {name: replace(one, lines=without, model_calls=9) for name, one in shown.items()}
    claimed = translations_html(translator, LINES, same)
    assert "Both took 9 steps" in claimed
    assert "as fast" not in claimed
    assert "The translations are equal." in html
    shown["Blockwise"] = replace(result, lines=[Translation(""), *result[1:]])
    assert "The translations are different." in translations_html(translator, LINES, shown)


def test_the_report_holds_the_steps_of_every_line(translator):
    options = DecodeConfig(block_size=4)
    report = report_of(translator, options, translator(LINES, options))
    assert json.loads(json.dumps(report)) == report
    assert [entry["line"] for entry in report["lines"]] == list(range(1, len(LINES) + 1))
    assert (report["languages"], report["checkpoint"],
            report["config"]["block_size"]) == ("en-de", "toy@0123", 4)
    assert "steps" not in report["lines"][4]
    first = report["lines"][0]
    assert sum(len(step) for step in first["steps"]) == first["tokens"]
    assert first["mean_accepted_block_size"] == first["tokens"] / first["iterations"]


# What visitors ask for


@pytest.mark.parametrize(("text", "message"), [
    (None, "give text"), ([1], "give text"), ({"a": 1}, "give text"),
    (" \n ", "there is no text yet"), ([], "there is no text yet"),
    ("a\n" * (MAX_LINES + 1), "21 lines"), ("a" * (MAX_CHARACTERS + 1), "2,001 characters"),
    ("\ud83d", "character 1 is half of a surrogate pair"),
], ids=repr)
def test_text_that_cannot_be_translated_is_refused_with_a_message(text, message):
    with pytest.raises(InvalidInputError, match=message):
        lines_of(text)


@pytest.mark.parametrize("text", ['"><script>alert(1)</script>', "${1+1} {{7}} &lt; 'é'"])
def test_rejected_text_continues_the_accepted_text_and_stays_data(translator, text):
    (tokens,) = codec(None).split([text])
    half, width = len(tokens) // 2, len(tokens)
    proposed = np.array([tokens, [*tokens[half:], *[-1] * half]])
    trace = RowTrace([0, half], [half, width - half], proposed)
    result = Translated([Translation(text, width, [trace])], 3, 0.5)
    ((_, attributes),) = Spans(text_stepper(translator, {"": result})).elements
    (part,) = json.loads(attributes["data-view"])["decodes"][0]["parts"]
    assert "".join(part["texts"]) == text
    assert part["texts"][0] + part["rejected"][0] == text
    assert part["rejected"][1] == ""


def test_all_variants_end_complete_and_the_log_tells_no_text(translator, caplog):
    variants = {"Greedy": DecodeConfig(block_size=1), "Beam 2": BeamConfig(2)}
    with caplog.at_level("INFO"):
        decoding = VisitorDecoding(None, translator=translator)
        shown = list(decoding.translate("translate", LINES, variants))
    assert {name: result.texts for name, result in shown[-1].items()} == {
        name: translator(LINES, settings).texts for name, settings in variants.items()}
    assert len(shown) > 5
    assert caplog.records[-1].message.startswith("translate: done in ")
    assert LINES[0] not in caplog.text


def test_the_bundled_checkpoint_is_taken_where_it_is_and_a_named_one_must_be_there(monkeypatch,
                                                                                   tmp_path):
    toy = write_checkpoint(tmp_path / "toy")
    monkeypatch.setattr("superres.checkpoint.bundled_checkpoints", list)
    beside = SimpleNamespace(device="cpu", scoring=SimpleNamespace(adaptive=True))
    assert app.load_translator(None, "cpu", beside) is None
    assert app.load_translator(str(toy), "cpu", beside).name == "toy"
    with pytest.raises(CheckpointError, match="no checkpoint 'nowhere'"):
        app.load_translator("nowhere", "cpu", beside)
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="is for the task 'faces', not translation"):
        app.load_translator("celeba-8to32", "cpu", beside)
    late = app.load_translator(None, "cpu", beside)
    assert (late.name, late.languages) == ("multi30k-en-de", ("en", "de"))
    assert late._loaded is None
    loaded = Translator.load(None, "cpu")
    assert late.expected == late.default == loaded.default
    assert late.revision == loaded.revision
    assert [*late.stream(["A dog runs."])][-1].texts == loaded(["A dog runs."]).texts
    see_what_is_wrong_at_its_line(loaded)


def see_what_is_wrong_at_its_line(translator):
    """The page, a program and the command say it of the same lines, in the same words."""
    noted = {"A dog runs.": [], "Stone stairway to a wooden gate.": ['repeats "Treppe"'],
             "A quokka plays in snow.": ['the model hardly knows "quokka"'],
             "A dog sees 東京 in the snow.": ['the model hardly knows "東京"',
                                             "the model knows captions of photographs only"],
             "A woman woman is running.": []}
    lines = list(noted)
    result = translator(lines)
    assert [line_notes(line) for line in result] == list(noted.values())
    report = report_of(translator, translator.default, result)
    assert [line["notes"] for line in report["lines"]] == list(noted.values())
    html = translations_html(translator, lines, {"": result})
    assert re.findall('lang="en">(.*?)</small>', html) == [
        "Repeats &quot;Treppe&quot;.", "The model hardly knows &quot;quokka&quot;.",
        "The model hardly knows &quot;東京&quot;; the model knows captions of photographs only."]
    assert notes_of(result) == [
        '1 of 5 translations repeat words: line 2: "Treppe"',
        '2 of 5 lines have words that the model hardly knows: line 3: "quokka", line 4: "東京"',
        "the model knows captions of photographs only, so 1 of 5 translations may be wrong: line 4"]
    # neither is what stands in the source, nor what begins a clause
    assert [repetition(*pair) for pair in (
        ("a very very old dog", "ein sehr sehr alter Hund"),
        ("women who cross the street", "Frauen, die die Straße überqueren"),
        ("the lamps", "die Lampen der Lampen der Stadt"), ("you", "Sie Sie"))] == [
            "", "", "Lampen der", "Sie"]


def notes_of(result):
    summary = TranslationSummary()
    summary.add(result)
    return summary.notes()


# The endpoint


@pytest.fixture(scope="module")
def demo(upscaler, translator):
    with running(upscaler, translator=translator, frame_seconds=0.0) as served:
        yield served


@pytest.fixture(scope="module")
def client(demo):
    return Client(demo.url, verbose=False)


@pytest.mark.parametrize(("arguments", "settings"), [
    ({"block_size": 4}, DecodeConfig(block_size=4)),
    ({"block_size": 1}, DecodeConfig(block_size=1)),
    ({"accept": "top-k", "top_k": 3}, DecodeConfig(block_size=4, accept="top-k", top_k=3)),
    ({"beam": 3}, BeamConfig(3)),
], ids=str)
def test_translate_gives_what_the_translator_gives(client, translator, arguments, settings):
    texts, report = client.predict(LINES, **arguments, api_name="/translate")
    result = translator(LINES, settings)
    assert texts == result.texts
    assert report == {**report_of(translator, settings, result), "seconds": report["seconds"]}
    assert report["complete"]


def test_text_may_be_one_string_and_settings_are_those_of_the_translator(client, translator):
    texts, report = client.predict("\n".join(LINES), api_name="/translate")
    assert texts == translator(LINES).texts
    assert DecodeConfig.from_dict(report["config"]) == replace(translator.default, block_size=4,
                                                               adaptive=False)


def test_the_documented_example_of_translation_runs(demo, capsys):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/web-demo.md").read_text(), re.S)
    example = next(block for block in blocks if "/translate" in block)
    exec(example.replace("http://127.0.0.1:7860", demo.url), {})  # noqa: S102 -- our own page
    assert capsys.readouterr().out.splitlines()[-1].startswith("['")


@pytest.mark.parametrize(("arguments", "message"), [
    ({"lines": ["a", "<b>" * 200]}, "line 2: a word is longer than the 24 tokens"),
    ({"lines": ["<b>" * 200]}, "&lt;b&gt;"), ({"block_size": 5}, "more than the 4 prediction "
                                              "heads; use 4 or less"),
    ({"accept": "distance"}, "distance compares grey levels"),
    ({"beam": 99}, "beam must be at most 8, not 99"),
])
def test_bad_arguments_come_back_as_one_clear_message(demo, arguments, message):
    outputs, error = demo.call("translate", **{"lines": ["a dog"], **arguments})
    assert outputs == []
    assert message in error
    assert "\n" not in error


def test_a_checkpoint_without_proposal_heads_is_served_too(tmp_path):
    base = Translator.load(write_checkpoint(tmp_path / "base", heads=1), "cpu")
    faces = Upscaler(random_model(replace(TINY, prediction_heads=1), dtype=torch.float32), "tiny",
                     device="cpu")
    with running(faces, translator=base) as served:
        texts, report = Client(served.url, verbose=False).predict(["a dog"], api_name="/translate")
    assert texts == base(["a dog"]).texts
    assert report["config"]["block_size"] == 1


def test_without_a_checkpoint_for_text_there_is_no_tab_and_no_endpoint(upscaler, demo):
    def offered(url):
        config = HTTP.get(f"{url}/config").json()
        tabs = {component["props"].get("label") for component in config["components"]
                if component["type"] == "tabitem"}
        return tabs, {dependency["api_name"] for dependency in config["dependencies"]}

    with running(upscaler) as plain:
        tabs, names = offered(plain.url)
    assert tabs == {"Upscale", "Batch", "You are the drafter"}
    assert "translate" not in names
    tabs, names = offered(demo.url)
    assert tabs == {"Upscale", "Batch", "Translate", "You are the drafter"}
    assert "translate" in names
