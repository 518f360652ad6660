"""The aligner: exact sums, weights that are checked, corrections that lead back, and its
training."""

from __future__ import annotations

import json

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image
from safetensors.numpy import save_file
from skimage import data

from superres.errors import CheckpointError, SuperresError
from superres.system.folders import bundled_folder
from superres.tasks import aligner
from superres.tasks.aligner import Aligner, moved, upright_errors, windows
from superres.tasks.face_data import FacePairs, write_npz
from superres.tasks.face_finder import find_faces
from superres.tasks.faces import area_reduce
from superres.training import alignment
from superres.training.alignment import measure, train_aligner


@pytest.fixture(scope="module")
def network():
    return Aligner.bundled()


@pytest.fixture(scope="module")
def face():
    """Where the astronaut's aligned face is: a box [4]."""
    return find_faces(data.astronaut())[0, :4]


def arrays(rng, scale=0.05):
    with torch.random.fork_rng():
        torch.manual_seed(int(rng.integers(2**31)))
        return alignment.arrays_of(alignment.Network())


def test_all_sums_are_exact_so_no_order_or_batch_changes_a_bit(network, rng):
    grey = rng.integers(0, 256, (90, 70), np.int64)
    boxes = np.column_stack([rng.uniform(0, 70, (20, 2)), rng.uniform(8, 90, 20),
                             rng.uniform(-180, 180, 20)])
    discs = windows(grey, boxes)
    whole = network.outputs(discs)
    np.testing.assert_array_equal(np.concatenate([network.outputs(one[None]) for one in discs]),
                                  whole)
    for weight, _ in network.layers:
        assert (weight / aligner.WEIGHT_UNIT == np.round(weight / aligner.WEIGHT_UNIT)).all()
    # The largest sum that activations and weights allow has fewer than 53 bits.
    largest = np.abs(discs).max()
    for weight, bias in network.layers:
        largest = (largest * np.abs(weight).sum(0) + np.abs(bias)).max()
        assert largest / (aligner.INPUT_UNIT * aligner.WEIGHT_UNIT) < 2**53


def test_the_network_is_that_of_the_training(rng):
    with torch.random.fork_rng():
        torch.manual_seed(3)
        trained = alignment.Network()
    discs = windows(rng.integers(0, 256, (64, 64), np.int64),
                    np.array([[32.0, 32, 60, 5], [20, 30, 30, -9]]))
    with torch.inference_mode():
        expected = trained(torch.from_numpy(discs[:, None]).float()).numpy()
    np.testing.assert_allclose(Aligner(alignment.arrays_of(trained)).outputs(discs), expected,
                               atol=0.02)


@pytest.mark.parametrize("start", [(0.08, 0, 0, 0), (0, -0.08, 0, 0), (0, 0, 0.14, 0),
                                   (0, 0, -0.14, 0), (0, 0, 0, 14), (-0.06, 0.05, 0.1, -12)])
def test_a_square_near_a_face_is_led_back_to_it(network, face, start):
    rough = moved(face[None], np.array([start]) / aligner.UNITS)
    (found,), (doubt,) = network.align(data.astronaut(), rough)
    assert np.abs(found[:2] - face[:2]).max() < 0.03 * face[2]
    assert found[2] == pytest.approx(face[2], rel=0.06)
    assert found[3] == pytest.approx(face[3], abs=3)
    assert doubt < 0.3


@pytest.mark.extended
@pytest.mark.slow
def test_a_search_finds_the_face_and_no_other(network, face):
    boxes, doubts = network.search(data.astronaut())
    assert len(boxes) == len(doubts) == 1
    np.testing.assert_allclose(boxes[0, :3], face[:3], rtol=0.08)
    assert boxes[0, 3] == pytest.approx(face[3], abs=3)
    assert not len(network.search(data.coffee())[0])
    assert not len(network.search(np.zeros((40, 20_000, 3), np.uint8))[0])


def test_beyond_the_edge_the_window_repeats_it(rng):
    grey = rng.integers(0, 256, (20, 20), np.int64)
    wide = np.pad(grey, 30, mode="edge")
    box = np.array([[2.0, 17.0, 25.0, 20.0]])
    np.testing.assert_array_equal(windows(grey, box), windows(wide, box + np.array([30, 30, 0, 0])))


def test_faces_that_are_aligned_have_the_smallest_errors(face):
    photo = Image.fromarray(data.astronaut())
    crops = []
    for shift in (0, 12, 25):
        x, y, side, turn = face + np.array([shift, 0, 0, 0])
        square = photo.rotate(turn, Image.Resampling.BICUBIC, center=(x, y)).crop(
            tuple(round(at) for at in (x - side / 2, y - side / 2, x + side / 2, y + side / 2)))
        crops.append(np.asarray(square.resize((64, 64), Image.Resampling.BOX)))
    errors = upright_errors(np.stack(crops))
    assert errors[0] < 0.2
    assert errors[1:].min() > errors[0] + 0.1
    assert upright_errors(np.zeros((0, 64, 64, 3), np.uint8)).shape == (0,)


@pytest.mark.parametrize("change", [
    lambda found: found.pop("0.bias"),
    lambda found: found.update({"0.weight": found["0.weight"][:-1]}),
    lambda found: found.update({"6.weight": found["0.weight"]}),
    lambda found: found.update({"1.weight": np.full_like(found["1.weight"], np.nan)}),
    lambda found: found.update({"1.bias": np.full_like(found["1.bias"], np.inf)}),
    lambda found: found.update({"1.bias": found["1.bias"].reshape(-1, 1)}),
    lambda found: found.update({"5.bias": np.full_like(found["5.bias"], 1e30)}),
    lambda found: found.update({"5.weight": found["5.weight"].astype(np.int8)}),
])
def test_other_weights_are_refused_in_one_line(tmp_path, rng, change):
    found = arrays(rng)
    change(found)
    save_file(found, tmp_path / "weights.safetensors")
    with pytest.raises(CheckpointError, match=r"weights.safetensors: .* no weights of an "
                       r"aligner") as caught:
        Aligner.load(tmp_path / "weights.safetensors")
    assert "\n" not in str(caught.value)


def numpy_lacks(path, rng):
    safetensors.torch.save_file({name: torch.from_numpy(array).to(torch.float8_e4m3fn)
                                 for name, array in arrays(rng).items()}, path)


@pytest.mark.parametrize("write", [
    lambda path, rng: None, lambda path, rng: path.write_bytes(b""),
    lambda path, rng: path.write_bytes(b"\xff" * 100), numpy_lacks])
def test_a_missing_or_damaged_file_is_refused_in_one_line(tmp_path, rng, write):
    write(tmp_path / "weights.safetensors", rng)
    with pytest.raises(CheckpointError, match=r"weights.safetensors cannot be read: .*; "
                       r"install") as caught:
        Aligner.load(tmp_path / "weights.safetensors")
    assert "\n" not in str(caught.value)


def test_senseless_weights_give_senseless_but_finite_boxes(rng):
    found = arrays(rng)
    found["5.bias"] = np.full_like(found["5.bias"], 1000)
    boxes, doubts = Aligner(found).align(rng.integers(0, 256, (80, 90, 3), np.uint8),
                                         np.array([[40.0, 40, 50, 0]]))
    assert np.isfinite(boxes).all()
    assert np.isfinite(doubts).all()


def test_the_bundled_weights_are_small_and_have_a_card():
    folder = bundled_folder() / aligner.ALIGNER
    assert (folder / aligner.WEIGHTS).stat().st_size < 250_000
    assert "non-commercial" in (folder / "README.md").read_text()
    row = json.loads((folder / "training.jsonl").read_text())
    across, down, size, turn = row["dev_errors"]["all"]
    assert max(across, down) < 0.01
    assert size < 0.035
    assert turn < 1.5


@pytest.mark.extended
@pytest.mark.slow
def test_training_writes_weights_that_learn_and_are_the_same_for_a_seed(tmp_path, face):
    photo = Image.fromarray(data.astronaut())
    x, y, side, _ = face
    square = photo.crop(tuple(round(at) for at in (x - side / 2, y - side / 2, x + side / 2,
                                                   y + side / 2)))
    faces = np.stack([area_reduce(np.asarray(square), 64, 64)] * 4)
    faces[2:] = 255 - faces[2:]
    write_npz(FacePairs(faces, area_reduce(faces, 8, 8), np.arange(4, dtype=np.int32)),
              tmp_path / "faces.npz")
    losses = []
    for run in ("a", "b"):
        lines = train_aligner(tmp_path / "faces.npz", tmp_path / run, tmp_path / "faces.npz", 100,
                              7, None, lambda record: losses.append(record["loss"]))
        assert lines[0].startswith("all: turn ")
        Aligner.load(tmp_path / run / "model.safetensors")
    assert ((tmp_path / "a" / "model.safetensors").read_bytes()
            == (tmp_path / "b" / "model.safetensors").read_bytes())
    row = json.loads((tmp_path / "a" / "training.jsonl").read_text())
    assert (row["stage"], row["steps"], row["faces"], row["dev_faces"]) == ("aligner", 100, 4, 4)
    assert [*row["dev_errors"]] == ["all", *(f"{number} of 3 by symmetry" for number in (1, 2, 3))]


def test_bad_numbers_and_data_are_refused(tmp_path):
    with pytest.raises(SuperresError, match="--steps must be at least 1"):
        train_aligner(tmp_path, tmp_path / "out", None, 0, 0, None, print)
    with pytest.raises(SuperresError, match="does not exist"):
        train_aligner(tmp_path / "none.npz", tmp_path / "out", None, 1, 0, None, print)
    assert not (tmp_path / "out").exists()


def test_errors_are_reported_by_symmetry(network, face):
    x, y, side, turn = face
    photo = Image.fromarray(data.astronaut()).rotate(turn, Image.Resampling.BICUBIC, center=(x, y))
    square = np.asarray(photo.crop(tuple(round(at) for at in (x - side / 2, y - side / 2,
                                                              x + side / 2, y + side / 2))))
    found = measure(network, np.stack([area_reduce(square, 64, 64)] * 3), 0)
    assert found.left.shape == (6, 4)
    assert found.by_symmetry()[0][0] == "all"
    assert found.by_symmetry()[0][1][3] < 4
