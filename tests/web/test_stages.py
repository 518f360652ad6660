"""The web demo with a cascade: where a decode starts, what the page says of its stages, and the
endpoints' `start`."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from html import unescape

import numpy as np
import pytest
import torch
from fakes import TINY, random_model
from gradio_client import Client, handle_file
from PIL import Image
from skimage import data

from superres.config import DecodeConfig
from superres.errors import ConfigError
from superres.pictures.mark import DRAWN
from superres.pictures.read import read_image
from superres.pipeline.upscaler import Upscaler
from superres.tasks.crops import Crop
from superres.tasks.faces import FaceTask, area_reduce, image_key
from superres.tasks.photos import choose_crops
from superres.web.crops import chosen, offer_crop, show_crop, started, subjects
from superres.web.decoding import VisitorDecoding
from superres.web.drawing import data_uri
from superres.web.race import race_html
from superres.web.upscale_tab import example_of, views_of
from tests.web.helpers import running

TASK = FaceTask(4, 16, (8,))
FAST = DecodeConfig(accept="distance", epsilon=255)


@pytest.fixture(scope="module")
def cascade():
    """A cascade of networks with random weights, from 4 to 8 to 16 pixels."""
    def stage(name, source, target):
        network = replace(TINY, source_shape=(source, source, 3), target_shape=(target, target, 3))
        return Upscaler(random_model(network, dtype=torch.float32), name, device="cpu")

    return stage("large", 8, 16).after(stage("small", 4, 8), "both")


@pytest.fixture
def photo(tmp_path, monkeypatch):
    """The path of a photo among the uploads."""
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    Image.fromarray(data.astronaut()).save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


@pytest.mark.parametrize(("start", "size", "side"),
                         [(4, 100, 4), (8, 100, 8), (8, 8, 8), (8, 7, 4)])
def test_a_decode_starts_where_the_visitor_asks_if_the_crop_has_the_pixels(start, size, side):
    assert started(TASK, start, Crop(0, 0, size)).source == side


def test_the_choice_is_offered_for_large_crops_only_and_the_view_of_the_input_follows_it(photo):
    upload = {"path": str(photo)}
    assert offer_crop(TASK, upload, 4)[3]["visible"] is True
    assert offer_crop(FaceTask(4, 16), upload, 4)[3]["visible"] == "hidden"
    for square, start, caption, is_visible in (
        ("10,20,40", 4, "4x4: the model&#x27;s input, all that it sees<", True),
        ("10,20,40", 8, "8x8: the model&#x27;s input, all that it sees; only the last stage draws",
         True),
        ("10,20,7", 8, "4x4: the model&#x27;s input, all that it sees<", False)):
        view, update = show_crop(TASK, upload, square, start)
        assert caption in view
        assert (update["visible"] is True) == is_visible
    Image.fromarray(data.astronaut()[:8, :8]).save(photo)
    _, view, _, update = offer_crop(TASK, upload, 4)
    assert "8x8: the model&#x27;s input; only the last stage draws" in view
    assert update["visible"] == "hidden"
    with pytest.raises(ConfigError, match="not 'x'; choose another --start"):
        chosen("", "x", TASK, data.astronaut())


def marks_of(page):
    """Return whether each picture of a page is marked as drawn by a model."""
    found = [base64.b64decode(data)
             for data in re.findall("data:image/png;base64,([A-Za-z0-9+/=]+)", page)]
    return [DRAWN.encode() in picture for picture in found]


def test_a_decode_from_the_last_stage_is_that_of_the_stage_alone_and_its_command_says_so(cascade):
    image = data.astronaut()
    (crop,) = choose_crops(image, TASK)
    subject = chosen("", 8, TASK, image)
    assert (subject.source == area_reduce(crop.take(image), 8, 8)).all()
    assert (subject.truth == area_reduce(crop.take(image), 16, 16)).all()
    decoding = VisitorDecoding(cascade, frame_seconds=0)
    *_, page = views_of(decoding, "upscale", subject, {"": replace(FAST, block_size=8)},
                        decoding.deadline())
    decoding.close()
    assert "--checkpoint both --start 8 --crop" in page
    assert "Input, 8x8" in page
    assert "Stage 1" not in page
    # In the viewer: input, enlargement, truth, result; the stepper's input; side by side: the
    # same four, the result third; the heat map.
    assert marks_of(page) == [*[False] * 3, True, False, *[False, False, True, False], True]


def test_the_example_has_a_truth_if_it_is_from_the_given_picture(cascade, photo, rng):
    decoding = VisitorDecoding(cascade)
    assert example_of(decoding, photo) is None
    decoding.warm_up(rng.integers(0, 256, (4, 4, 3), np.uint8))
    assert example_of(decoding, photo).truth is None  # the example is another picture
    subject = subjects(read_image(photo), TASK)[0]
    decoding.warm_up(subject.source)
    np.testing.assert_array_equal(example_of(decoding, photo).truth, subject.truth)


def test_the_race_on_arrival_has_the_steps_of_both_and_blocks_even_if_the_default_has_none(
    cascade, rng, monkeypatch):
    decoding = VisitorDecoding(cascade)
    assert race_html(decoding, None) == ""
    truth = rng.integers(0, 256, (16, 16, 3), np.uint8)
    for default in (DecodeConfig(block_size=4), DecodeConfig(adaptive=True)):
        monkeypatch.setattr(cascade, "default", default)
        decoding.warm_up(rng.integers(0, 256, (4, 4, 3), np.uint8))
        view = json.loads(unescape(re.search('data-view="([^"]*)"', race_html(decoding, truth))[1]))
        assert view["truth"] == data_uri(truth, None)
        single, blocks = (decode["stages"] for decode in view["decodes"])
        assert [stage["tokens"] for stage in single] == [192, 768]
        assert all("accepted" not in stage for stage in single)
        assert [sum(stage["accepted"]) for stage in blocks] == [192, 768]
        assert [stage["uri"] for stage in blocks] == [data_uri(stage.images[0])
                                                      for stage in decoding.example.stages]
    monkeypatch.setattr(cascade, "default", FAST)
    # blocks and single steps may then make different pictures
    assert race_html(decoding, truth) == ""


def test_a_face_takes_the_same_steps_by_every_way_of_the_page(cascade, rng):
    """With frames and without, alone and beside single steps, as often as it is decoded."""
    decoding, options = (VisitorDecoding(cascade, frame_seconds=0.001),
                        DecodeConfig(adaptive=True, accept="top-k", top_k=200))
    source, found = rng.integers(0, 256, (4, 4, 3), np.uint8), set()
    for _ in range(2):
        for variants in ({"": options}, {"single": options.sequential(), "blocks": options}):
            *_, last = decoding.upscale("upscale", source[None], variants, judged=True)
            found.add(tuple(len(trace.accepted) for stage in last[[*variants][-1]].stages
                            for trace in stage.traces))
        drawn = decoding.draw("draw", source, options)
        found.add(tuple(len(trace.accepted) for stage in drawn.stages for trace in stage.traces))
    assert len(found) == 1


def test_the_result_says_how_many_steps_all_stages_took(cascade, photo):
    def said(count=1):
        decoding = VisitorDecoding(cascade)
        *_, html = views_of(decoding, "upscale", chosen("", 4, TASK, read_image(photo)),
                            {"": DecodeConfig(1, temperature=0.9)}, decoding.deadline(), count)
        return re.search('<p class="sr-hint">(.*?)</p>', html)[1]

    steps = r" in \d\.\d\d seconds: 960 steps{} instead of 960, 1\.0 pixel values per step\."
    assert re.fullmatch("One picture" + steps.format(""), said())
    assert re.fullmatch("2 pictures" + steps.format(" for each"), said(2))


def test_the_endpoints_start_where_a_program_asks(cascade, tmp_path, rng):
    picture, small = rng.integers(0, 256, (30, 30, 3), np.uint8), rng.integers(0, 256, (4, 4, 3),
                                                                               np.uint8)
    for name, pixels in (("picture", picture), ("small", small)):
        Image.fromarray(pixels).save(tmp_path / f"{name}.png")
    settings = {"accept": "distance", "epsilon": 255, "block_size": 8}
    with running(cascade, frame_seconds=0) as demo:
        client = Client(demo.url, verbose=False)
        files, report = client.predict(handle_file(tmp_path / "picture.png"), start=8, **settings,
                                       api_name="/upscale")
        source = area_reduce(picture, 8, 8)
        options = replace(FAST, block_size=8)
        expected = cascade.from_size(8).decode(source[None], options,
                                               keys=[image_key(source, 1)]).images[0]
        np.testing.assert_array_equal(np.asarray(Image.open(files[0])), expected)
        assert [stage["tokens"] for stage in report["samples"][0]["stages"]] == [768]
        _, report = client.predict([handle_file(tmp_path / f"{name}.png")
                                    for name in ("picture", "small")], start=8,
                                   **settings, api_name="/upscale_batch")
        assert [row["status"] for row in report["rows"]] == ["failed", "ok"]
        assert ("small.png is too small: 4x4; provide an image of at least "
                "8x8" in report["rows"][0]["error"])
        assert report["rows"][1]["checkpoint"].startswith("large@")
        upload = demo.upload("a.png", (tmp_path / "picture.png").read_bytes())
        _, error = demo.call("upscale", image=upload, start=5)
        assert "inputs of 4 or 8 pixels, not 5" in error
