"""The pictures of people on README and on the page: which photographs, names on a sheet, and the
moving picture."""

from __future__ import annotations

import re

import numpy as np
import pytest
from PIL import Image
from skimage import data

import demo
import draw_decode
import draw_dev
import measurements
from superres import Upscaler
from superres.config import DEFAULT_CASCADE
from superres.evaluation.examples import photographs
from superres.tasks.crops import FACE
from superres.tasks.faces import FaceTask
from superres.tasks.photos import choose_crops
from superres.tasks.sheets import contact_sheet

TASK = FaceTask(8, 64, (32,))
DRAWN = re.compile("`make dev.npz` draws ([0-9]+)")


@pytest.mark.slow
def test_the_photographs_are_those_in_which_a_face_is_found():
    found = photographs(demo.PHOTOS)
    assert list(found) == ["astronaut", "Grace-Hopper"]
    assert ([[crop.kind for crop in choose_crops(photo, TASK)] for photo in found.values()]
            == [[FACE], [FACE]])
    camera = np.repeat(data.camera()[..., None], 3, axis=2)
    assert FACE not in [crop.kind for crop in choose_crops(camera, TASK)]
    inputs = list(demo.read_inputs(TASK))
    assert inputs == [*found, *(f"face-{number}" for number in range(1, 8))]
    said = {count for page in measurements.pages() for count in DRAWN.findall(page.read_text())}
    assert said == {str(draw_dev.SAMPLES * len(inputs))}


def test_names_of_rows_stand_left_of_a_sheet_and_change_no_picture():
    columns = {"one": np.full((2, 8, 8, 3), 90, np.uint8),
               "two": np.full((2, 8, 8, 3), 30, np.uint8)}
    plain, named = contact_sheet(columns, 4, 16), contact_sheet(columns, 4, 16,
                                                                ["a row\nof two lines", "b"])
    margin = named.shape[1] - plain.shape[1]
    assert margin > 20
    np.testing.assert_array_equal(named[16:, margin:], plain[16:])
    for top in (16, 48):
        assert (named[top:top + 32, :margin] < 128).any()


@pytest.mark.slow
def test_the_moving_picture_ends_with_the_results_and_begins_with_the_input():
    upscaler = Upscaler.load(DEFAULT_CASCADE, "cpu")
    source = demo.read_inputs(upscaler.face_task)["astronaut"]
    decodes = draw_decode.decode(upscaler, source)
    steps = [len(decode.result.ends(0)) for decode in decodes]
    assert steps == sorted(steps, reverse=True)
    enlarged = upscaler.face_task.enlarge(source[None], "nearest")[0]
    for decode in decodes:
        np.testing.assert_array_equal(decode.result.after(0, 0), enlarged)
        np.testing.assert_array_equal(decode.result.after(0, 10**6), decode.result.images[0])
    first = decodes[0]
    tokens = first.result.stages[0].images[0].size
    halfway = np.asarray(
        Image.fromarray(first.result.after(0, tokens)).resize((32, 32), Image.Resampling.NEAREST)
    )
    np.testing.assert_array_equal(halfway, first.result.stages[0].images[0])
    assert (first.text(10**6), decodes[1].end) == ("15,360 steps", "the same picture")
