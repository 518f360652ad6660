"""The steps that the page sends to the browser: those of the decode's trace."""

from __future__ import annotations

import json
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from textual import codec, learned
from web_demo import FACES

from superres.config import BeamConfig, DecodeConfig
from superres.decoding.trace import RowTrace
from superres.pipeline.translator import Translated
from superres.pipeline.upscaler import Upscaler
from superres.tasks.faces import image_key
from superres.tasks.pictures import read_image
from superres.web.stepping import faces_stepper, text_stepper


class Element(HTMLParser):
    """The data of the only element of a piece of HTML."""

    def __init__(self, html):
        super().__init__()
        self.found = []
        self.feed(html)
        ((self.tag, attributes),) = self.found
        self.data = json.loads(attributes["data-view"])

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))


@pytest.fixture(scope="module")
def upscaler():
    return Upscaler.load(device="cpu")


def rows_of(trace):
    """Return a trace's proposals without the filling, in another way than the page."""
    return [[int(token) for token in row if token != -1] for row in trace.proposed]


@pytest.mark.parametrize("settings", [
    {}, {"block_size": 1}, {"block_size": 4, "temperature": 1.0}], ids=str)
def test_the_steps_of_faces_are_those_of_the_trace(upscaler, settings):
    source = read_image(FACES[0])
    options = upscaler.default.changed(settings)
    count = 2 if options.temperature else 1
    keys = [image_key(source, sample) for sample in range(1, count + 1)]
    result = upscaler(source[None].repeat(count, axis=0), options, keys=keys)
    data = Element(faces_stepper(result)).data
    assert [decode["name"] for decode in data["decodes"]] == [f"Sample {n}" for n in range(1, count + 1)]
    for decode, trace, image in zip(data["decodes"], result.traces, result.images, strict=True):
        (part,) = decode["parts"]
        assert part == {"accepted": trace.accepted, "proposed": rows_of(trace)}
        tokens = [token for row, kept in zip(part["proposed"], part["accepted"], strict=True) for token in row[:kept]]
        np.testing.assert_array_equal(np.array(tokens, np.uint8).reshape(image.shape), image)
        assert decode["seconds"] == result.seconds


def test_the_steps_of_text_are_those_of_the_trace():
    translator = learned()[torch.float32]
    lines = ["the small red dog", "", "a house"]
    frames = {"Greedy": translator(lines, DecodeConfig(block_size=1)),
              "Blockwise": translator(lines, DecodeConfig(block_size=4))}
    data = Element(text_stepper(translator, frames)).data
    names = [decode["name"] for decode in data["decodes"]]
    assert names == ["Blockwise, line 1", "Blockwise, line 3", "Greedy, line 1", "Greedy, line 3"]
    assert data["language"] == translator.languages[1]
    expected = [(result.traces[line], result.texts[line], result.seconds)
                for result in (frames["Blockwise"], frames["Greedy"]) for line in (0, 2)]
    for decode, (traces, text, seconds) in zip(data["decodes"], expected, strict=True):
        assert [part["accepted"] for part in decode["parts"]] == [trace.accepted for trace in traces]
        assert [part["proposed"] for part in decode["parts"]] == [
            [translator.codec.names(row) for row in rows_of(trace)] for trace in traces]
        assert " ".join("".join(part["texts"]) for part in decode["parts"]) == text
        assert decode["seconds"] == seconds


@pytest.mark.parametrize("text", ['"><script>alert(1)</script>', "${1+1} {{7}} &lt; 'é'"])
def test_rejected_text_continues_the_accepted_text_and_stays_data(text):
    translator = learned()[torch.float32]
    (tokens,) = codec(None).split([text])
    half = len(tokens) // 2
    width = len(tokens)
    proposed = np.full((2, width), -1)
    proposed[0, :width] = tokens
    proposed[1, :width - half] = tokens[half:]
    trace = RowTrace([0, half], [half, width - half], proposed)
    result = Translated([text], [[trace]], [False], [width], [1], 3, 0.5)
    (part,) = Element(text_stepper(translator, {"": result})).data["decodes"][0]["parts"]
    assert "".join(part["texts"]) == text
    assert part["texts"][0] + part["rejected"][0] == text
    assert part["rejected"][1] == ""


def test_beam_search_has_no_steps():
    translator = learned()[torch.float32]
    assert text_stepper(translator, {"": translator(["a dog"], BeamConfig(2))}) == ""
