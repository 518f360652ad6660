"""Faces of any sizes: a network of another size is one line of settings, and no other file names
sizes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from fakes import NATIVE, TINY, VARIANTS, limits_of, random_model, random_tokens
from PIL import Image
from skimage import data

from decodes import decode
from superres import load
from superres.checkpoint import read_checkpoint, save_checkpoint
from superres.cli.main import run
from superres.config import DecodeConfig, ModelConfig
from superres.errors import CheckpointError, ConfigError
from superres.native import build
from superres.nn.weights import network_of
from superres.pictures.read import Picture
from superres.pictures.write import encode_png
from superres.pipeline.auto import face_task
from superres.pipeline.choose import engine_of
from superres.tasks.crops import parse_crop
from superres.tasks.face_data import FacePairs, write_npz
from superres.tasks.faces import FaceTask, area_reduce
from superres.training.recipes import train_stage
from superres.training.stage import Stage
from superres.web.crops import crop_of, take
from superres.web.decoding import VisitorDecoding
from superres.web.upscale_tab import subject_of, views_of

ROOT = Path(__file__).parents[2]
TOY = replace(TINY, source_shape=(6, 6, 3), target_shape=(18, 18, 3))
TASK = FaceTask(6, 18)
ALL = DecodeConfig(accept="distance", epsilon=255)  # accepts everything: few calls
NAMED = re.compile(r"\b(8x8|32x32|3,?072)\b|\b(8, 8|32, 32), (3|C)\b|\[N, ?(8, ?8|32, ?32)\b|"
                   r"\b(LOW_SIZE|HIGH_SIZE|SIDE|LEAST) = \d|reduce\(\w+, (8, 8|32, 32)\)")
ALLOWED = {
    "superres/config/network.py": "the sizes of a network, and of the named networks",
    "superres/tasks/aligner.py": "the windows of the aligner, which is another network",
}
native = pytest.mark.skipif(build.compiler() is None, reason="no C++ compiler on this machine")


def test_no_other_file_names_sizes():
    files = [ROOT / "app.py",
             *(path for folder in ("superres", "scripts") for path in (ROOT / folder).rglob("*")
               if path.suffix in (".py", ".js", ".css", ".html", ".h", ".cpp")
               and "test" not in path.parts)]
    named = {path.relative_to(ROOT).as_posix() for path in files
             if NAMED.search(path.read_text(encoding="utf-8"))}
    assert named == ALLOWED.keys()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoints") / "toy"
    save_checkpoint(random_model(TOY, dtype=torch.float32), path)
    return path


@pytest.fixture(scope="module")
def toy(folder):
    return load(folder, device="cpu")


@pytest.fixture
def sources(rng):
    return rng.integers(0, 256, (2, 6, 6, 3), np.uint8)


@pytest.fixture
def prepared(tmp_path, rng):
    """A prepared file of three random pictures of 18x18 pixels."""
    hr = rng.integers(0, 256, (3, 18, 18, 3), np.uint8)
    write_npz(FacePairs(hr, TASK.both_sizes(hr)[1], np.arange(3, dtype=np.int32)),
              tmp_path / "dev.npz")
    return tmp_path / "dev.npz"


def test_a_checkpoint_tells_its_sizes_and_one_of_other_shapes_is_refused(toy, folder, tmp_path):
    network = read_checkpoint(folder).network
    assert face_task(folder) == toy.face_task == TASK == FaceTask.of(network)
    assert face_task("celeba-8to32") == FaceTask.of(ModelConfig())
    save_checkpoint(random_model(replace(TOY, source_shape=(6, 3, 3)), dtype=torch.float32),
                    tmp_path / "odd")
    for read in (face_task, load):
        with pytest.raises(CheckpointError, match=r"odd: faces are square RGB "
                           r"pictures.*source_shape \[6, 3, 3\]"):
            read(tmp_path / "odd")


@pytest.mark.parametrize("options", [DecodeConfig(block_size=4, temperature=0.9),
                                     replace(ALL, block_size=8)])
def test_consistent_pictures_reduce_to_exactly_their_input(toy, sources, options):
    images = toy(sources, replace(options, consistent=True)).images
    np.testing.assert_array_equal(area_reduce(images, 6, 6, is_reduced=True), sources)


def test_the_batch_command_decodes_inputs_and_photos(folder, tmp_path, sources, capsys):
    (tmp_path / "in").mkdir()
    for name, pixels in (("small", sources[0]), ("photo", data.astronaut()),
                         ("tiny", sources[0, :5])):
        (tmp_path / "in" / f"{name}.png").write_bytes(encode_png(Picture(pixels), {}))
    words = ["upscale", str(tmp_path / "in"), "--checkpoint", str(folder), "--device", "cpu",
             "--accept", "distance", "--epsilon", "255", "--output"]
    assert run([*words, str(tmp_path / "out")]) == 1
    lines = (tmp_path / "out" / "manifest.jsonl").read_text().splitlines()
    rows = {Path(row["input"]).stem: row for row in map(json.loads, lines)}
    assert "tiny.png is too small: 6x5; provide an image of at least 6x6" in rows["tiny"]["error"]
    for name in ("small", "photo"):
        assert rows[name]["tokens"] == 972
        with Image.open(rows[name]["output"]) as image:
            assert image.size == (18, 18)
    assert run([*words, str(tmp_path / "lowres"), "--source", "lowres"]) == 1
    assert [path.name for path in (tmp_path / "lowres").glob("*.png")] == ["small.png"]
    capsys.readouterr()
    assert run([*words, str(tmp_path / "crop"), "--crop", "0,0,5"]) == 2
    assert ("--crop 0,0,5 has a SIZE of 5; the model needs at least 6 "
            "pixels" in capsys.readouterr().err)
    assert not (tmp_path / "crop").exists()


def test_the_page_shows_inputs_and_pictures_of_the_checkpoint_s_sizes(toy, tmp_path, monkeypatch):
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    photo = data.astronaut()
    Image.fromarray(photo).save(tmp_path / "photo.png")
    element, preview, square, _ = crop_of(str(tmp_path / "photo.png"), TASK, 6)
    assert "&quot;least&quot;: 6" in element
    assert "6x6: the model&#x27;s input" in preview
    assert take(photo, TASK, parse_crop(square)).source.shape == (6, 6, 3)
    decoder = VisitorDecoding(toy, frame_seconds=0)
    upload = {"path": str(tmp_path / "photo.png")}
    subject = subject_of(TASK, upload, "", 6, "", decoder.deadline())
    assert (subject.source.shape, subject.truth.shape) == ((6, 6, 3), (18, 18, 3))
    views = list(views_of(decoder, "upscale", subject, {"": replace(ALL, block_size=2)},
                          decoder.deadline()))
    assert 'viewBox="0 0 18 18"' in views[0]
    assert "Input, 6x6" in views[-1]
    assert "&quot;side&quot;:18" in views[-1]
    assert "instead of 972" in views[-1]
    decoder.close()


def test_a_network_of_other_sizes_is_trained(folder, prepared, tmp_path):
    stage = Stage(steps=2, batch_size=2, crop_share=0.0, turned_share=0.5, doubled_share=0.5,
                  data=prepared, dev=prepared, output=tmp_path / "run", start=str(folder),
                  keep_heads=True)
    assert train_stage(stage, lambda: False, lambda record: None)
    assert read_checkpoint(tmp_path / "run" / "checkpoint").network.target_shape == (18, 18, 3)


# Sources of many pixels: the encoder has convolution blocks only.
LARGE = replace(VARIANTS["sequential heads"], source_shape=(1, 257, 3), target_shape=(1, 514, 3),
                encoder_layers=0, cross_attention=False, conditioning_blocks=2)


def test_attention_over_a_large_image_is_refused():
    for side, layers in ((16, 1), (17, 0)):
        ModelConfig(source_shape=(side, side, 3), target_shape=(2 * side, 2 * side, 3),
                    encoder_layers=layers)
    with pytest.raises(ConfigError, match="encoder_layers must be 0 for a source image of 867 "
                       "positions, not 2: "):
        ModelConfig(source_shape=(17, 17, 3), target_shape=(34, 34, 3), encoder_layers=2)


@pytest.mark.parametrize(("engine", "consistent"), [
    ("plain", False), pytest.param("native", True, marks=native)])
def test_engines_decode_a_large_source_without_encoder_layers(engine, consistent):
    config = replace(LARGE, **NATIVE, conditioning_width=32)
    source = random_tokens(config, 2)[0]
    made = engine_of(network_of(random_model(config, dtype=torch.float32)), engine=engine)
    assert made.name == engine
    limits = limits_of(config) if consistent else None
    greedy, blocks = (decode(made, source, DecodeConfig(block_size=size), width=4, limits=limits)
                      for size in (1, 4))
    assert torch.equal(greedy.tokens, blocks.tokens)
