"""How much of the package one has to read to follow one photo: laws, whose bounds may only fall."""

from __future__ import annotations

import pytest
from PIL import Image
from skimage import data

from superres import load
from superres.cli.main import run
from superres.native import build
from tests.project.trace import entered, files_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(build.compiler() is None, reason="no C++ compiler on this machine"),
]


@pytest.fixture
def photo(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Image.fromarray(data.astronaut()).save("photo.jpg")
    return "photo.jpg"


def assert_at_most(functions, files, call):
    """Assert that a second `call`, when all is warm, enters so many functions in so many files."""
    call()
    found = entered(call)
    assert len(found) <= functions
    assert len(files_of(found)) <= files


def test_one_photo_enters_at_most_so_many_functions_of_a_loaded_upscaler(photo):
    upscaler = load("celeba-8to64", "cpu")
    assert_at_most(205, 44, lambda: upscaler(photo))


def test_one_photo_enters_at_most_so_many_functions_of_the_command(photo):
    def upscale():
        assert run(["upscale", photo, "--device", "cpu", "--on-existing", "overwrite"]) == 0

    assert_at_most(440, 76, upscale)
