"""Results as pictures, as files, and as a notebook shows them."""

from __future__ import annotations

import base64
import io
import re

import numpy as np
import pytest
from PIL import Image

from superres.errors import ConfigError, OutputError
from superres.pipeline.display import MOST_SHOWN
from superres.pipeline.translated import Translated, Translation
from superres.pipeline.upscaled import Upscaled


def test_results_are_pillow_pictures_and_files(rng, tmp_path):
    result = Upscaled(rng.integers(0, 256, (2, 32, 32, 3), np.uint8), [], 1.5)
    assert [picture.size for picture in result.pictures] == [(32, 32)] * 2
    paths = result.save(tmp_path / "face.webp")
    assert [path.name for path in paths] == ["face-1.webp", "face-2.webp"]
    for path, image in zip(paths, result.images, strict=True):
        np.testing.assert_array_equal(np.asarray(Image.open(path)), image)
    assert Upscaled(result.images[:1], [],
                    1.5).save(str(tmp_path / "one.png")) == [tmp_path / "one.png"]
    with pytest.raises(ConfigError, match=r"face\.jpg must end in \.png, .*; other formats would "
                       r"change pixels"):
        result.save("face.jpg")
    with pytest.raises(OutputError, match="cannot write"):
        result.save(tmp_path / "missing" / "face.png")


@pytest.mark.parametrize(("count", "size"), [(1, (32, 32)), (3, (96, 32)), (9, (256, 64)),
                                             (100, (256, 256))])
def test_a_notebook_shows_the_images_with_their_notes(rng, count, size):
    images = rng.integers(0, 256, (count, 32, 32, 3), np.uint8)
    result = Upscaled(images, [], 1.5, notes=["<b>.jpg (9x9): crop centre"])
    with Image.open(io.BytesIO(result._repr_png_())) as sheet:
        assert sheet.size == size
        np.testing.assert_array_equal(np.asarray(sheet)[:32, :32], images[0])
        if count == 9:
            np.testing.assert_array_equal(np.asarray(sheet)[32:, :32], images[8])
            assert (np.asarray(sheet)[32:, 32:] == 255).all()
    html = result._repr_html_()
    shown = re.search(r'src="data:image/png;base64,([^"]+)" width="(\d+)"', html)
    assert base64.b64decode(shown[1]) == result._repr_png_()
    assert int(shown[2]) == 3 * size[0]
    assert "&lt;b&gt;.jpg (9x9): crop centre" in html
    assert "<b>" not in html
    assert ("not shown: 36 images" in html) == (count > MOST_SHOWN)
    assert len(html) < 400_000


def test_a_notebook_shows_the_pictures_of_every_stage_in_whole_pixels(rng):
    small, large = (rng.integers(0, 256, (2, side, side, 3), np.uint8) for side in (32, 64))
    html = Upscaled(large, [], 1.5, earlier=Upscaled(small, [], 1.0))._repr_html_()
    shown = re.findall(r'base64,([^"]+)" width="(\d+)" alt="([^"]+)"', html)
    assert [(width, alt) for _, width, alt in shown] == [
        ("192", "2 upscaled pictures of 32x32"), ("256", "2 upscaled pictures of 64x64")]
    for (png, *_), images in zip(shown, (small, large), strict=True):
        with Image.open(io.BytesIO(base64.b64decode(png))) as sheet:
            np.testing.assert_array_equal(np.asarray(sheet), np.concatenate(images, axis=1))


def test_a_notebook_shows_translations_as_text():
    texts = ["Ein Hund & <i>Schnee</i>.", *["x"] * 100]
    html = Translated(list(map(Translation, texts)), 7, 0.25)._repr_html_()
    assert html.startswith("<ol><li>Ein Hund &amp; &lt;i&gt;Schnee&lt;/i&gt;.</li><li>x</li>")
    assert "101 lines, 0.25 s, 7 model calls" in html
    assert "not shown: 37 lines" in html
