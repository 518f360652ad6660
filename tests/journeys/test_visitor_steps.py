"""How a visitor sees a decode: in two stages, beside one value per step, and step by step."""

from __future__ import annotations

import numpy as np
from PIL import Image
from skimage import data

from superres.pictures.read import read_image
from superres.tasks.faces import image_key
from superres.tasks.photos import choose_crops
from superres.web.crops import take
from tests.journeys.helpers import (
    check_fits,
    choose_face,
    decode,
    open_tab,
    pixels,
    see_as_drawn,
    shown,
    upload,
    upscale,
    use_face,
)
from tests.web.helpers import FACES

# Step by step

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
                sentence: ['', ' .sr-accepted', ' .sr-rejected'].map(
                    part => stepper.querySelector('.sr-sentence' + part)?.textContent)};
    });
}"""


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


def walk(page, recorded):
    requests = []
    page.on("request", lambda request: requests.append(request.url))
    (trace,), (image,) = recorded[-1].traces, recorded[-1].images
    chosen = [*range(0, trace.iterations, 97), trace.iterations]
    steps = page.evaluate(WALK, ["#results", chosen])
    assert len(steps) == trace.iterations + 1
    assert steps[0]["cells"] == []
    broken = 0
    for step, (at, kept, row) in enumerate(zip(trace.positions, trace.accepted, trace.proposed,
                                               strict=True), 1):
        proposed, is_last = [int(token) for token in row if token != -1], step == trace.iterations
        names = [f"{'RGB'[(at + index) % 3]} {token}" for index, token in enumerate(proposed)]
        expected = states(kept, len(proposed), is_last)
        assert steps[step]["cells"] == [list(pair) for pair in zip(names, expected, strict=True)]
        assert steps[step]["caption"].startswith(f"Step {step:,} of {trace.iterations:,}. ")
        if "broken" in expected:
            broken += 1
            end = at + kept
            pixel = f"row {end // 96 + 1}, column {end // 3 % 32 + 1}"
            colour = ("red", "green", "blue")[end % 3]
            assert (f"broke at pixel value {end + 1:,} ({colour} of the pixel in {pixel}): "
                    f"proposed {proposed[kept]}, the model gives {image.ravel()[end]}."
                    in steps[step]["caption"])
    assert broken > 100
    for step in chosen:
        tokens = trace.positions[step] if step < trace.iterations else trace.tokens
        picture = np.array(steps[step]["picture"], np.uint8).reshape(-1, 4)
        whole = np.arange(len(picture)) < tokens // 3  # the input is seen through the others
        np.testing.assert_array_equal(picture[:, 3], 255 * whole)
        np.testing.assert_array_equal(picture[whole, :3], image.reshape(-1, 3)[whole])
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
    scrubber.evaluate("one => { one.value = one.max - 200; one.dispatchEvent(new Event('input')); "
                      "}")
    page.get_by_role("button", name="Play").click()
    page.wait_for_function("document.querySelector('#results .sr-scrubber').valueAsNumber === "
                           f"{last}")
    page.get_by_role("button", name="Play").wait_for()  # it has stopped at the end
    speed.press("Home")
    assert speed.get_attribute("aria-valuetext").startswith("0.5 steps per second, ")


def test_every_step_of_a_sentence_shows_its_text_and_its_proposals(visit, demo, monkeypatch):
    page, translator = visit(reduced_motion="reduce"), demo.decoding.translator
    frames = record(translator, monkeypatch)
    open_tab(page, "Translate")
    page.fill("#text textarea", "the small red dog sees a man")
    page.click("#run-text")
    page.locator("#translation summary", has_text="Step through it").click()
    page.wait_for_selector("#translation superres-stepper p")
    result = frames[-1]
    (trace,) = result.traces
    steps = page.evaluate(WALK, ["#translation", []])
    assert len(steps) == trace.iterations + 1 > 3
    assert steps[0]["sentence"] == ["", None, None]
    sentence = ""
    for step, (kept, row) in enumerate(zip(trace.accepted, trace.proposed, strict=True), 1):
        names, is_last = (translator.codec.names([token for token in row if token != -1]),
                          step == trace.iterations)
        expected = states(kept, len(names), is_last)
        assert steps[step]["cells"] == [list(pair) for pair in zip(names, expected, strict=True)]
        whole, accepted, rejected = steps[step]["sentence"]
        assert whole == sentence + accepted + (rejected or "")
        assert (rejected is not None) == ("broken" in expected)
        sentence += accepted
    assert sentence == result.texts[0]


def test_a_face_is_stepped_through_and_played_and_so_is_every_sample(visit, demo, monkeypatch):
    recorded = record(demo.decoding.upscaler, monkeypatch)
    page = visit()
    decode(page)
    page.wait_for_selector("#results superres-stepper canvas")
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


# Two stages

INPUT_SIDE = "document.querySelector('#preview img')?.naturalWidth"
CHOICE = "32x32: more of what the photo really shows"


def input_becomes(page, side):
    page.wait_for_function(f"{INPUT_SIDE} === {side}")


def compared(page):
    """Return the names of the pictures side by side."""
    return [name.split(":")[0]
            for name in page.locator(".sr-compared figcaption").all_inner_texts()]


def begin_at_the_second_stage(page, upscaler, folder):
    Image.fromarray(data.astronaut()).save(folder / "photo.png")
    upload(page, folder / "photo.png")
    use_face(page)
    page.get_by_label(CHOICE).check()
    input_becomes(page, 32)
    upscale(page)
    (crop,) = choose_crops(data.astronaut(), upscaler.face_task)
    last = upscaler.from_size(32)
    source = take(data.astronaut(), last.face_task, crop).source
    np.testing.assert_array_equal(shown(page), last(source[None], finish="mean").images[0])
    see_as_drawn(page)
    np.testing.assert_array_equal(
        shown(page), last.decode(source[None], keys=[image_key(source, 1)]).images[0])
    assert compared(page) == ["Input, 32x32", "Lanczos", "superres, 64x64", "Truth"]


def choose_the_size_of_the_input(page):
    choice = page.get_by_label(CHOICE)
    for side, is_visible in ((31, False), (32, True)):
        page.get_by_role("button", name="Move the frame").click()
        page.locator(".sr-framing details").evaluate("details => { details.open = true; }")
        page.get_by_label("Side, pixels").fill(str(side))
        page.get_by_label("Side, pixels").press("Enter")
        use_face(page)
        choice.wait_for(state="visible" if is_visible else "hidden")
        input_becomes(page, 32 if is_visible else 8)
    page.get_by_label("8x8", exact=True).check()
    input_becomes(page, 8)
    decode(page)
    assert compared(page) == ["Input, 8x8", "Lanczos", "Stage 1 of 2, 32x32", "superres, 64x64"]
    rests = page.evaluate("""[...document.querySelectorAll('#results img')].filter(
        image => image.offsetParent).map(image => image.clientWidth % image.naturalWidth)""")
    assert set(rests) == {0}
    page.get_by_label(CHOICE).check()
    choose_face(page, 0)  # a small picture begins at the first stage
    choice.wait_for(state="hidden")
    input_becomes(page, 8)
    page.wait_for_selector("superres-crop", state="detached")


def step_through_both_stages(page, upscaler):
    assert page.locator("#results superres-stepper").count() == 2
    page.locator("#results .sr-scrubber").last.press("Home")
    source = read_image(FACES[0])
    small = upscaler.decode(source[None], keys=[image_key(source, 1)]).earlier.images[0]
    last = "[...document.querySelectorAll('superres-stepper')].at(-1).view"
    page.wait_for_function(f"{last}.below.complete")
    seen = pixels(page.evaluate(f"{last}.canvas.toDataURL()"))
    scale = len(seen) // len(small)
    np.testing.assert_array_equal(seen[scale // 2::scale, scale // 2::scale], small)


def keep_the_stage_beside_each_sample(page, upscaler):
    decode(page, "#draw")
    page.get_by_label("Left side").select_option("Stage 1 of 2, 32x32")
    drawn = upscaler(read_image(FACES[0])[None], upscaler.default.changed({"temperature": 0.7}),
                     samples=9).by_likelihood(9)
    for row in (0, 8):
        page.locator(".sr-choice").nth(row).click()
        np.testing.assert_array_equal(shown(page), drawn.images[row])
        np.testing.assert_array_equal(shown(page, ".sr-before")[::2, ::2],
                                      drawn.earlier.images[row])


def test_a_face_is_drawn_in_two_stages_or_from_the_second_one_on(visit, cascade, tmp_path):
    upscaler = cascade.decoding.upscaler
    page = visit("/", cascade, viewport={"width": 390, "height": 900})
    begin_at_the_second_stage(page, upscaler, tmp_path)
    choose_the_size_of_the_input(page)
    decode(page)
    step_through_both_stages(page, upscaler)
    keep_the_stage_beside_each_sample(page, upscaler)
    check_fits(page, 390)


# The race on arrival


CANVASES = ("[...document.querySelectorAll('superres-race canvas')].map(canvas => "
            "canvas.toDataURL())")
COUNTS = ("[...document.querySelectorAll('superres-race canvas')].map(one => "
          "one.closest('figure').innerText)")


def test_on_arrival_a_face_is_drawn_in_blocks_beside_one_value_per_step(visit, cascade):
    moving = visit("/", cascade)
    still = visit("/", cascade, viewport={"width": 390, "height": 900}, reduced_motion="reduce")
    example = cascade.decoding.example
    most = sum(trace.iterations for stage in example.stages for trace in stage.traces)
    still.wait_for_function(f"{COUNTS}[0].includes('15,360 steps: done')")
    single, blocks = still.evaluate(f"document.querySelector('superres-race').show({most}), "
                                    f"{COUNTS}")
    assert f"{most:,} of 15,360 steps" in single  # on its way, when the blocks are done
    assert f"{most:,} steps: the same picture" in blocks
    verdict = still.locator(".sr-verdict")
    assert verdict.inner_text().endswith("Which one takes fewer steps?")
    still.evaluate("document.querySelector('superres-race').show(1e9)")
    assert verdict.text_content() == f"15,360 steps beside {most:,}: the same picture"
    for page, width in ((still, 390), (moving, 1280)):
        page.wait_for_function(f"{COUNTS}[0].includes('15,360 steps: done')")
        for uri in page.evaluate(CANVASES):
            np.testing.assert_array_equal(pixels(uri), example.images[0])
        check_fits(page, width)
    still.evaluate("""(race => {
        const show = race.show;
        race.seen = [];
        race.show = steps => { race.seen.push(steps); show.call(race, steps); };
    })(document.querySelector('superres-race'))""")
    still.click("superres-race button")  # it plays because it was asked to
    still.wait_for_function("(seen => seen.length > 9 && seen.at(-1) > seen[0])("
                            "document.querySelector('superres-race').seen)")
    for page in (still, moving):
        page.evaluate("scrollTo(0, 0)")
        box = page.locator(".sr-canvas").bounding_box()
        assert box["y"] + box["height"] < 900  # in view without scrolling
