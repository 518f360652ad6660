"""The page with a cascade: where a decode starts, and the pictures of its stages, in Chromium."""

from __future__ import annotations

import numpy as np
import pytest
from browser_tools import check_wcag, picture
from PIL import Image
from skimage import data
from web_demo import FACES, LABELS, running

from superres.pipeline.upscaler import Upscaler
from superres.tasks.faces import image_key
from superres.tasks.photos import choose_crops
from superres.tasks.pictures import read_image
from superres.web.photos import take

SHOWN = "#results superres-viewer .sr-after"
INPUT_SIDE = "document.querySelector('#preview img')?.naturalWidth"
CHOICE = "32x32: more of what the photo really shows"


@pytest.fixture(scope="module")
def cascade(browser):
    with running(Upscaler.load("celeba-8to64", "cpu")) as served:
        source = read_image(FACES[0])
        served.decoder.warm_up(source)
        yield served


@pytest.fixture(scope="module")
def arrival(browser):
    with running(Upscaler.load("celeba-8to64", "cpu"), example=True) as served:
        yield served


def input_becomes(page, side):
    page.wait_for_function(f"{INPUT_SIDE} === {side}")


def decode(page):
    """Decode, and wait for another viewer than the present one; a decode may be faster than the page shows it."""
    page.evaluate("document.querySelector('#results superres-viewer')?.setAttribute('data-old', '')")
    page.click("#run")
    page.wait_for_selector("#results superres-viewer:not([data-old]) img")
    page.wait_for_selector("#stop", state="hidden")


def shown(page):
    return np.asarray(picture(page.get_attribute(SHOWN, "src")))


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (390, "dark")])
def test_a_large_face_is_drawn_from_the_second_stage_on_if_the_visitor_asks(visit, cascade, tmp_path, width, theme):
    upscaler = cascade.decoder.upscaler
    page = visit(f"/?__theme={theme}", cascade, viewport={"width": width, "height": 900}, color_scheme=theme)
    Image.fromarray(data.astronaut()).save(tmp_path / "photo.png")
    page.set_input_files("#photo input[type=file]", tmp_path / "photo.png")
    page.wait_for_function("document.querySelector('superres-crop')?.data?.width === 512")
    page.get_by_label(CHOICE).check()
    input_becomes(page, 32)
    decode(page)
    (crop,) = choose_crops(data.astronaut(), upscaler.face_task)
    last = upscaler.from_size(32)
    source = take(data.astronaut(), last.face_task, crop).source
    np.testing.assert_array_equal(shown(page), last(source[None], keys=[image_key(source, 1)]).images[0])
    names = [name.split(":")[0] for name in page.locator(".sr-compared figcaption").all_inner_texts()]
    assert names == ["Input, 32x32", "Lanczos", "superres, 64x64", "Truth"]
    page.get_by_label("8x8", exact=True).check()
    input_becomes(page, 8)
    decode(page)
    names = [name.split(":")[0] for name in page.locator(".sr-compared figcaption").all_inner_texts()]
    assert names == ["Input, 8x8", "Lanczos", "Stage 1 of 2, 32x32", "superres, 64x64", "Truth"]
    widths = page.evaluate("""[...document.querySelectorAll('#results img')].filter(image => image.offsetParent).map(
        image => image.clientWidth % image.naturalWidth)""")
    assert set(widths) == {0}
    page.locator("#results summary", has_text="Step through it").click()
    assert page.locator("#results superres-stepper").count() == 2
    page.mouse.move(0, 0)
    page.wait_for_function("document.getAnimations().every(one => one.playState !== 'running')")
    check_wcag(page, "stages")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_choice_is_hidden_where_the_crop_is_small_and_for_inputs(visit, cascade):
    page = visit("/", cascade)
    choice = page.get_by_label(CHOICE)
    choice.check()
    input_becomes(page, 32)
    page.get_by_text("Crop in numbers").click()
    for side, is_visible in ((31, False), (32, True)):
        page.get_by_label("Side, pixels").fill(str(side))
        page.get_by_label("Side, pixels").press("Enter")
        choice.wait_for(state="visible" if is_visible else "hidden")
        input_becomes(page, 32 if is_visible else 8)
    page.get_by_role("button", name=LABELS[0]).click()
    choice.wait_for(state="hidden")
    input_becomes(page, 8)


def test_the_second_stage_is_stepped_through_over_the_picture_of_the_first(visit, cascade):
    page = visit("/", cascade)
    page.get_by_role("button", name=LABELS[1]).click()
    page.wait_for_selector("superres-crop", state="detached")
    decode(page)
    page.locator("#results summary", has_text="Step through it").click()
    page.locator("#results .sr-scrubber").last.press("Home")
    source = read_image(FACES[1])
    small = cascade.decoder.upscaler(source[None], keys=[image_key(source, 1)]).earlier.images[0]
    page.wait_for_function("[...document.querySelectorAll('superres-stepper')].at(-1).view.below.complete")
    seen = picture(page.evaluate("[...document.querySelectorAll('superres-stepper')].at(-1).view.canvas.toDataURL()"))
    scale = seen.width // small.shape[1]
    np.testing.assert_array_equal(np.asarray(seen.convert("RGB"))[scale // 2::scale, scale // 2::scale], small)


CANVASES = "[...document.querySelectorAll('superres-race canvas')].map(canvas => canvas.toDataURL())"
COUNTS = "[...document.querySelectorAll('superres-race canvas')].map(one => one.closest('figure').innerText)"


@pytest.mark.parametrize("width", [1280, 390])
def test_on_arrival_a_face_is_drawn_in_blocks_beside_one_value_per_step(visit, arrival, width):
    moving = visit("/", arrival, viewport={"width": width, "height": 900})
    still = visit("/", arrival, viewport={"width": width, "height": 900}, reduced_motion="reduce")
    example = arrival.decoder.example
    most = sum(trace.iterations for stage in example.stages for trace in stage.traces)
    still.wait_for_function(f"{COUNTS}[0].includes('15,360 steps: done')")
    single, blocks = still.evaluate(f"document.querySelector('superres-race').show({most}), {COUNTS}")
    assert f"{most:,} of 15,360 steps" in single  # on its way, when the blocks are done
    assert f"{most:,} steps: the same picture" in blocks
    still.evaluate("document.querySelector('superres-race').show(1e9)")
    for page in (still, moving):
        page.wait_for_function(f"{COUNTS}[0].includes('15,360 steps: done')")
        for uri in page.evaluate(CANVASES):
            np.testing.assert_array_equal(np.asarray(picture(uri).convert("RGB")), example.images[0])
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    still.evaluate("""(race => { const show = race.show; race.seen = []; race.show = steps => {
        race.seen.push(steps); show.call(race, steps); }; })(document.querySelector('superres-race'))""")
    still.click("superres-race button")  # it plays because it was asked to
    still.wait_for_function("(race => race.seen.at(-1) === race.most)(document.querySelector('superres-race'))")
    names = [name.split(":")[0] for name in still.locator(".sr-example figcaption").all_inner_texts()]
    assert names == ["Input, 8x8", "Lanczos", "Stage 1 of 2, 32x32", "superres, 64x64", "Truth"]
    moving.mouse.move(0, 0)
    check_wcag(moving, "arrival")
    box = moving.locator("superres-race").bounding_box()
    assert box["y"] + box["height"] < 900  # in view without scrolling
