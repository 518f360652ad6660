"""Faces as grids of emoji squares, and the face of the day: run by node, and drawn by the bundled
model."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import superres
from superres.pictures.read import read_image
from superres.system.output import short_digest
from superres.tasks.face_finder import face_boxes
from superres.tasks.faces import area_reduce
from superres.web.site import STATIC

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="no Node.js")

FACES = sorted((Path(__file__).parents[2] / "scripts" / "faces").glob("face-*.png"))
SQUARES = "⬛🟫🟥🟧🟨⬜🟩🟦🟪"
ROW = SQUARES[:8]
GRID = "\n".join([ROW] * 8)
DATES = [f"2026-{month:02}-{day:02}T23:59:59Z" for month in (3, 12) for day in range(1, 8)]
SIDES = 136, 160, 192, 224
"""Sides to which a drawn face is enlarged before the finder looks for it."""


def asked(faces, texts=(), dates=()):
    """Return what `emoji.mjs` answers."""
    given = {"faces": [face.flatten().tolist() for face in faces], "texts": texts, "dates": dates}
    words = "node", Path(__file__).with_name("emoji.mjs"), STATIC
    return json.loads(subprocess.run(words, input=json.dumps(given), check=True, text=True,
                                     capture_output=True).stdout)


@pytest.fixture(scope="module")
def faces():
    """The inputs of the drawn examples, uint8 [N, 8, 8, 3]."""
    return np.stack([area_reduce(read_image(path)[None], 8, 8)[0] for path in FACES])


def windows(face):
    """Return in how many of eight enlarged and mirrored copies of a face the finder finds one."""
    copies = [Image.fromarray(face).resize((side, side), Image.Resampling.LANCZOS)
              for side in SIDES]
    return sum(len(face_boxes(np.asarray(copy)[:, ::turn])) > 0 for copy in copies
               for turn in (1, -1))


def test_faces_that_are_copied_as_squares_and_pasted_become_faces_and_so_do_those_of_days(faces):
    found = asked(faces, dates=DATES)
    for grid, again in zip(found["grids"], found["again"], strict=True):
        assert [len(line) for line in grid.split("\n")] == [8] * 8
        assert set(grid) <= {*SQUARES, "\n"}
        assert again == grid  # copied again, it is the same
    assert all("finer shades are lost" in one["note"] for one in found["pasted"])
    dates, days = zip(*found["days"], strict=True)
    assert list(dates) == [date[:10] for date in DATES]
    assert len({tuple(day) for day in days}) == len(days)
    inputs = np.array([one["values"] for one in found["pasted"]] + [*days], np.uint8)
    upscaler = superres.load("celeba-8to64", device="cpu", engine="native-int8")
    drawn = upscaler(inputs.reshape(-1, 8, 8, 3)).images
    are_faces = np.array([windows(face) for face in drawn]) >= 4
    assert are_faces[: len(faces)].mean() > 0.8
    assert are_faces[len(faces):].mean() > 0.9


def test_a_face_of_a_day_is_the_same_for_all():
    people = np.arange(3 * 8 * 8 * 3).reshape(3, 8, 8, 3) * 7 % 256
    found = asked(people, dates=["2026-11-29T00:00:00Z", "2026-11-29T23:59:59.999Z"])
    (_, first), (_, second) = found["days"]
    assert first == second
    assert short_digest(bytes(first)) == "0cef86de1de6"


@pytest.mark.parametrize("text", [
    GRID, GRID.replace("\n", "\r\n"), f"Look at this:\n\n{GRID}\n\nWho is it?",
    "\n".join(f"> {row}" for row in GRID.split("\n")), GRID.replace("⬛", "⬛\ufe0f"),
    GRID.replace("\n", "\n\n"), "\n".join(" ".join(row) for row in GRID.split("\n")),
    GRID.replace("\n", ""), f"⬛⬛ {SQUARES}\n---\nMe: {GRID}",
], ids=["as it is", "lines of Windows", "amid words", "quoted", "variation selectors",
        "empty lines", "spaces", "one line", "after other squares"])
def test_a_grid_is_read_from_any_text(text):
    (found,) = asked([], [text])["texts"]
    (plain,) = asked([], [GRID])["texts"]
    assert found == plain
    assert len(found["values"]) == 8 * 8 * 3
    assert found["note"].startswith("8x8 squares in eight tones: finer shades are lost")


def test_other_texts_have_no_grid_and_other_sizes_are_named():
    wordle = "Wordle 1,234 4/6\n\n⬛🟨⬛⬛🟩\n⬛⬛🟨🟩🟩\n🟩🟩🟩🟩🟩"
    texts = ["", "no squares ■", wordle, "\n".join([ROW] * 7), f"{GRID[:-1]}", "🟥"]
    found = asked([], texts)["texts"]
    assert found[:2] == [None, None]
    assert [one["values"] for one in found[2:]] == [None] * 4
    remedy = "; copy 8 rows of 8 squares, and paste them again."
    assert [one["note"] for one in found[2:]] == [f"The text has {words} squares{remedy}" for words
                                                  in ("3 rows of 5", "7 rows of 8",
                                                      "8 rows of 7 to 8", "1 row of 1")]
