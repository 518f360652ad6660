"""Stepping through a finished decode, in Chromium."""

from __future__ import annotations

import numpy as np
import pytest
from browser_tools import decode, open_tab

from superres.pipeline.upscaled import Upscaled
from superres.web.drawing import unfinished

WALK = """([root, pictures]) => {
    const stepper = document.querySelector(root + ' superres-stepper');
    const scrubber = stepper.querySelector('.sr-scrubber');
    return Array.from({length: Number(scrubber.max) + 1}, (_, step) => {
        scrubber.value = step;
        scrubber.dispatchEvent(new Event('input'));
        const picture = pictures.includes(step)
            && [...stepper.view.small.getContext('2d').getImageData(0, 0, 32, 32).data];
        return {cells: [...stepper.querySelectorAll('.sr-strip [data-state]')].map(cell => [
                    cell.querySelector('b').textContent, cell.dataset.state]),
                caption: stepper.querySelector('.sr-caption').textContent, picture,
                sentence: ['.sr-sentence', '.sr-sentence .sr-accepted', '.sr-sentence .sr-rejected'].map(
                    selector => stepper.querySelector(selector)?.textContent)};
    });
}"""


def upscale(page):
    page.click("#run")
    page.locator("#results summary", has_text="Step through it").click()
    page.wait_for_selector("#results superres-stepper canvas")


def translate(page, text):
    open_tab(page, "Translate")
    page.fill("#text textarea", text)
    page.click("#run-text")
    page.locator("#translation summary", has_text="Step through it").click()
    page.wait_for_selector("#translation superres-stepper p")


def states(kept, count, is_last):
    """Return the states that a step's cells must have."""
    if is_last:
        return ["accepted"] * kept + ["past"] * (count - kept)
    return (["accepted"] * kept + ["broken"] + ["rejected"] * count)[:count]


def value(page, root="#results"):
    return page.locator(f"{root} .sr-scrubber").evaluate("element => element.valueAsNumber")


def record(pipeline, monkeypatch):
    """Return the list of the frames that a pipeline is going to yield."""
    frames, stream = [], pipeline.decode_stream

    def recording(*arguments, **settings):
        for frame in stream(*arguments, **settings):
            frames.append(frame)
            yield frame

    monkeypatch.setattr(pipeline, "decode_stream", recording)
    return frames


@pytest.fixture
def recorded(demo, monkeypatch):
    """The frames of the faces that the page asks for."""
    return record(demo.decoder.upscaler, monkeypatch)


def walk(page, recorded):
    requests = []
    page.on("request", lambda request: requests.append(request.url))
    (trace,), (image,) = recorded[-1].traces, recorded[-1].images
    chosen = [*range(0, trace.iterations, 97), trace.iterations]
    shown = page.evaluate(WALK, ["#results", chosen])
    assert len(shown) == trace.iterations + 1
    assert shown[0]["cells"] == []
    broken = 0
    for step, (at, kept, row) in enumerate(zip(trace.positions, trace.accepted, trace.proposed,
                                               strict=True), 1):
        proposed, is_last = [int(token) for token in row if token != -1], step == trace.iterations
        names = [f"{'RGB'[(at + index) % 3]} {token}" for index, token in enumerate(proposed)]
        expected = states(kept, len(proposed), is_last)
        assert shown[step]["cells"] == [list(pair) for pair in zip(names, expected, strict=True)]
        assert shown[step]["caption"].startswith(f"Step {step:,} of {trace.iterations:,}. ")
        if "broken" in expected:
            broken += 1
            end = at + kept
            pixel = f"row {end // 96 + 1}, column {end // 3 % 32 + 1}"
            assert f"broke at pixel value {end + 1:,} ({('red', 'green', 'blue')[end % 3]} of the pixel in {pixel}): " \
                f"proposed {proposed[kept]}, the model gives {image.ravel()[end]}." in shown[step]["caption"]
    assert broken > 100
    for step in chosen:
        tokens = trace.positions[step] if step < trace.iterations else trace.tokens
        known = np.where(np.arange(image.size) < tokens, image.ravel(), 0).reshape(image.shape)
        partial = Upscaled(known[None], [type("Trace", (), {"tokens": tokens})], 0.0)
        picture = np.array(shown[step]["picture"], np.uint8).reshape(32, 32, 4)
        np.testing.assert_array_equal(picture[..., :3], unfinished(partial, 0))
    assert requests == []


def play(page):
    scrubber, speed = page.locator("#results .sr-scrubber"), page.get_by_label("Speed")
    scrubber.press("End")
    last = value(page)
    scrubber.press("Home")
    assert value(page) == 0
    for _ in range(3):
        scrubber.press("ArrowRight")
    scrubber.press("ArrowLeft")
    assert value(page) == 2
    page.get_by_role("button", name="Forward").press("ArrowRight")  # anywhere in the element
    assert value(page) == 3
    speed.press("End")
    assert speed.get_attribute("aria-valuetext").startswith("200 steps per second, ")
    assert value(page) == 3  # End belongs to the speed here
    speed.fill("60")  # the decode then takes most of a minute
    scrubber.press(" ")
    page.get_by_role("button", name="Pause").wait_for()
    page.wait_for_function("document.querySelector('#results .sr-scrubber').valueAsNumber > 10")
    scrubber.press(" ")
    page.get_by_role("button", name="Play").wait_for()
    assert 10 < value(page) < last
    speed.press("End")
    page.get_by_role("button", name="Play").click()
    page.wait_for_function("document.querySelector('#results .sr-scrubber').valueAsNumber === "
                           f"{last}")
    page.get_by_role("button", name="Play").wait_for()  # it has stopped at the end
    speed.press("Home")
    assert speed.get_attribute("aria-valuetext").startswith("0.5 steps per second, ")


def test_every_step_of_a_sentence_shows_its_text_and_its_proposals(visit, demo, monkeypatch):
    page = visit(reduced_motion="reduce")
    text = "the small red dog sees a man"
    translator = demo.decoder.translator
    frames = record(translator, monkeypatch)
    translate(page, text)
    result = frames[-1]
    ((trace,),) = result.traces
    shown = page.evaluate(WALK, ["#translation", []])
    assert len(shown) == trace.iterations + 1 > 3
    assert shown[0]["sentence"] == ["", None, None]
    sentence = ""
    for step, (kept, row) in enumerate(zip(trace.accepted, trace.proposed, strict=True), 1):
        names, is_last = (translator.codec.names([token for token in row if token != -1]),
                          step == trace.iterations)
        expected = states(kept, len(names), is_last)
        assert shown[step]["cells"] == [list(pair) for pair in zip(names, expected, strict=True)]
        whole, accepted, rejected = shown[step]["sentence"]
        assert whole == sentence + accepted + (rejected or "")
        assert (rejected is not None) == ("broken" in expected)
        sentence += accepted
    assert sentence == result.texts[0]


def test_a_face_is_stepped_through_and_played_and_so_is_every_sample(visit, recorded):
    page = visit()
    upscale(page)
    assert value(page) == 1  # where there is most to see, with all steps ahead
    walk(page, recorded)
    play(page)
    decode(page, "#draw")
    likeliest, (_, second, *_) = int(recorded[-1].bits_per_dim.argmin()), recorded[-1].traces
    last = page.locator("#results .sr-scrubber")
    assert (
        value(page), int(last.get_attribute("max"))
    ) == (1, recorded[-1].traces[likeliest].iterations)
    page.get_by_role("combobox", name="Decode").select_option("Sample 2")
    assert (value(page), int(last.get_attribute("max"))) == (1, second.iterations)
