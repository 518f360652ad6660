"""The page with a cascade: where a decode starts, and the pictures of its stages, in Chromium."""

from __future__ import annotations

import numpy as np
import pytest
from browser_tools import check_wcag, choose_face, decode, picture, see_as_drawn, upload, upscale
from PIL import Image
from skimage import data
from web_demo import FACES, running

from superres.pictures.read import read_image
from superres.pipeline.upscaler import Upscaler
from superres.tasks.faces import image_key
from superres.tasks.photos import choose_crops
from superres.web.crops import take

SHOWN = "#results superres-viewer .sr-after"
INPUT_SIDE = "document.querySelector('#preview img')?.naturalWidth"
CHOICE = "32x32: more of what the photo really shows"


@pytest.fixture(scope="module")
def cascade(browser, checkpoints):
    with running(Upscaler.load(checkpoints / "8to64", "cpu"), example=True) as served:
        yield served


def input_becomes(page, side):
    page.wait_for_function(f"{INPUT_SIDE} === {side}")


def shown(page):
    return np.asarray(picture(page.get_attribute(SHOWN, "src")))


def test_a_large_face_is_drawn_from_the_second_stage_on_if_the_visitor_asks(visit, cascade,
                                                                            tmp_path):
    upscaler = cascade.decoder.upscaler
    page = visit("/?__theme=dark", cascade, viewport={"width": 390, "height": 900},
                 color_scheme="dark")
    Image.fromarray(data.astronaut()).save(tmp_path / "photo.png")
    upload(page, tmp_path / "photo.png")
    page.wait_for_function("document.querySelector('superres-crop')?.data?.width === 512")
    page.get_by_label(CHOICE).check()
    input_becomes(page, 32)
    upscale(page)
    (crop,) = choose_crops(data.astronaut(), upscaler.face_task)
    last = upscaler.from_size(32)
    source = take(data.astronaut(), last.face_task, crop).source
    np.testing.assert_array_equal(shown(page), last(source[None], finish="mean").images[0])
    see_as_drawn(page)
    np.testing.assert_array_equal(shown(page),
                                  last.decode(source[None], keys=[image_key(source, 1)]).images[0])
    names = [name.split(":")[0]
             for name in page.locator(".sr-compared figcaption").all_inner_texts()]
    assert names == ["Input, 32x32", "Lanczos", "superres, 64x64", "Truth"]
    page.get_by_label("8x8", exact=True).check()
    input_becomes(page, 8)
    decode(page, "#run")
    names = [name.split(":")[0]
             for name in page.locator(".sr-compared figcaption").all_inner_texts()]
    assert names == ["Input, 8x8", "Lanczos", "Stage 1 of 2, 32x32", "superres, 64x64", "Truth"]
    widths = page.evaluate("""[...document.querySelectorAll('#results img')].filter(image => image.offsetParent).map(
        image => image.clientWidth % image.naturalWidth)""")
    assert set(widths) == {0}
    page.locator("#results summary", has_text="Step through it").click()
    assert page.locator("#results superres-stepper").count() == 2
    page.mouse.move(0, 0)
    page.wait_for_function("document.getAnimations().every(one => one.playState !== 'running')")
    check_wcag(page, "stages")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_the_choice_of_a_size_is_hidden_for_small_inputs_which_are_stepped_through_in_two_stages(
    visit, cascade):
    page = visit("/", cascade)
    page.get_by_role("button", name="Astronaut").click()
    choice = page.get_by_label(CHOICE)
    choice.check()
    input_becomes(page, 32)
    page.get_by_text("Crop in numbers").click()
    for side, is_visible in ((31, False), (32, True)):
        page.get_by_label("Side, pixels").fill(str(side))
        page.get_by_label("Side, pixels").press("Enter")
        choice.wait_for(state="visible" if is_visible else "hidden")
        input_becomes(page, 32 if is_visible else 8)
    choose_face(page, 0)
    choice.wait_for(state="hidden")
    input_becomes(page, 8)
    page.wait_for_selector("superres-crop", state="detached")
    decode(page, "#run")
    page.locator("#results summary", has_text="Step through it").click()
    page.locator("#results .sr-scrubber").last.press("Home")
    source = read_image(FACES[0])
    small = cascade.decoder.upscaler.decode(source[None], keys=[image_key(source, 1)]).earlier.images[0]
    page.wait_for_function(
        "[...document.querySelectorAll('superres-stepper')].at(-1).view.below.complete")
    seen = picture(
        page.evaluate(
            "[...document.querySelectorAll('superres-stepper')].at(-1).view.canvas.toDataURL()"))
    scale = seen.width // small.shape[1]
    np.testing.assert_array_equal(np.asarray(seen.convert("RGB"))[scale // 2::scale,
                                                                  scale // 2::scale], small)


def test_the_left_side_stays_at_the_first_stage_of_whichever_sample_is_chosen(visit, cascade):
    page = visit("/", cascade)
    choose_face(page, 0)
    decode(page, "#draw")
    page.get_by_label("Left side").select_option("Stage 1 of 2, 32x32")
    source, upscaler = read_image(FACES[0]), cascade.decoder.upscaler
    drawn = upscaler(source[None], upscaler.default.changed({"temperature": 0.7}),
                     samples=9).by_likelihood(9)
    for row in (0, 8):
        page.locator(".sr-choice").nth(row).click()
        np.testing.assert_array_equal(shown(page), drawn.images[row])
        stage = np.asarray(picture(page.get_attribute(".sr-before", "src")))
        np.testing.assert_array_equal(stage[::2, ::2], drawn.earlier.images[row])


CANVASES = ("[...document.querySelectorAll('superres-race canvas')].map(canvas => "
            "canvas.toDataURL())")
COUNTS = ("[...document.querySelectorAll('superres-race canvas')].map(one => "
          "one.closest('figure').innerText)")


def test_on_arrival_a_face_is_drawn_in_blocks_beside_one_value_per_step(visit, cascade):
    moving = visit("/", cascade)
    still = visit("/", cascade, viewport={"width": 390, "height": 900}, reduced_motion="reduce")
    example = cascade.decoder.example
    most = sum(trace.iterations for stage in example.stages for trace in stage.traces)
    still.wait_for_function(f"{COUNTS}[0].includes('15,360 steps: done')")
    single, blocks = still.evaluate(f"document.querySelector('superres-race').show({most}), "
                                    f"{COUNTS}")
    assert f"{most:,} of 15,360 steps" in single  # on its way, when the blocks are done
    assert f"{most:,} steps: the same picture" in blocks
    still.evaluate("document.querySelector('superres-race').show(1e9)")
    for page, width in ((still, 390), (moving, 1280)):
        page.wait_for_function(f"{COUNTS}[0].includes('15,360 steps: done')")
        for uri in page.evaluate(CANVASES):
            np.testing.assert_array_equal(np.asarray(picture(uri).convert("RGB")),
                                          example.images[0])
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    still.evaluate("""(race => { const show = race.show; race.seen = []; race.show = steps => {
        race.seen.push(steps); show.call(race, steps); }; })(document.querySelector('superres-race'))""")
    still.click("superres-race button")  # it plays because it was asked to
    still.wait_for_function("(race => race.seen.at(-1) === "
                            "race.most)(document.querySelector('superres-race'))")
    for page in (still, moving):
        page.mouse.move(0, 0)
        check_wcag(page, "arrival")
        page.evaluate("scrollTo(0, 0)")
        box = page.locator(".sr-canvas").bounding_box()
        assert box["y"] + box["height"] < 900  # in view without scrolling
