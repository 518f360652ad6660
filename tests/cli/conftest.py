"""A fake pipeline and pictures for it, a network that translates, and commands that are refused."""

from __future__ import annotations

import sys
from types import ModuleType

import numpy as np
import pytest
from fakes import FakeUpscaler
from PIL import Image
from textual import sentences, write_checkpoint, write_pairs

from superres.cli.main import run
from superres.errors import CheckpointError
from superres.tasks.faces import area_reduce


@pytest.fixture
def loaded(monkeypatch):
    """Replace the pipeline by a fake; returns what was asked of `Upscaler.load`."""
    import superres.pipeline.auto  # noqa: F401 -- it must not keep the fake

    calls = []

    class Loader(FakeUpscaler):
        @classmethod
        def load(cls, name_or_dir="celeba-8to32", device="auto", engine="auto", size=None,
                 start=None):
            calls.append((name_or_dir, device, engine))
            if "missing" in str(name_or_dir):
                raise CheckpointError(f"no checkpoint {name_or_dir};\nthe bundled one is "
                                      "celeba-8to32")
            return FakeUpscaler()

    module = ModuleType("superres.pipeline.upscaler")
    module.Upscaler = Loader
    monkeypatch.setitem(sys.modules, "superres.pipeline.upscaler", module)
    return calls


@pytest.fixture
def data(tmp_path, monkeypatch):
    """The current folder: a prepared data set of three images, a folder with one of their inputs,
    and parallel text."""
    hr = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3)).astype(np.uint8)
    np.savez(tmp_path / "dev.npz", hr=hr, lr=area_reduce(hr, 8, 8),
             ids=np.arange(3, dtype=np.int32))
    (tmp_path / "in").mkdir()
    Image.fromarray(area_reduce(hr[0], 8, 8)).save(tmp_path / "in" / "a.png")
    (tmp_path / "root" / "celeba" / "img_align_celeba").mkdir(parents=True)
    write_pairs(sentences(6), tmp_path / "pairs")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    return str(write_checkpoint(tmp_path_factory.mktemp("checkpoints") / "toy"))


@pytest.fixture
def refused(capsys):
    """Run a command that is refused; returns its one line."""
    def said(*words):
        assert run([str(word) for word in words]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        (line,) = captured.err.splitlines()
        assert line.startswith("superres: ")
        assert line.isprintable()
        assert len(line) < 1000
        return line

    return said
