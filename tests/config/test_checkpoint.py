"""Checkpoint folders: read strictly, written whole or not at all, every refusal one line that names
the culprit."""

from __future__ import annotations

import json
import pickle

import pytest
import torch
from fakes import SMALL, random_model
from safetensors.torch import load_file, save_file

from superres import checkpoint
from superres.checkpoint import (
    CONFIG,
    WEIGHTS,
    load_checkpoint,
    load_weights,
    read_training,
    save_checkpoint,
    weights_digest,
)
from superres.errors import CheckpointError, OutputError


@pytest.fixture
def model():
    return random_model(SMALL, dtype=torch.float32)


@pytest.fixture
def folder(model, tmp_path):
    save_checkpoint(model, tmp_path / "mine")
    return tmp_path / "mine"


def refusal(folder, error=CheckpointError):
    """Return the one line with which `folder` is refused."""
    with pytest.raises(error) as caught:
        load_checkpoint(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def edit_config(folder, **changes):
    document = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(document | changes))


def test_round_trip_keeps_settings_and_bfloat16_weights(model, folder):
    loaded = load_checkpoint(folder)
    assert loaded.config == model.config
    assert not loaded.training
    for name, weight in model.state_dict().items():
        assert loaded.state_dict()[name].dtype == torch.float32
        assert torch.equal(loaded.state_dict()[name], weight.bfloat16().float())
    digest = weights_digest(folder)
    save_checkpoint(loaded, folder)
    assert weights_digest(folder) == digest


def test_missing_extra_and_misshapen_tensors_are_named(folder):
    weights = load_file(folder / WEIGHTS)
    bias = weights.pop("project.bias")
    save_file(weights, folder / WEIGHTS)
    assert "lacks tensors: project.bias" in refusal(folder)
    save_file(weights | {"project.bias": bias, "surplus": bias.clone()}, folder / WEIGHTS)
    assert "extra tensors: surplus" in refusal(folder)
    save_file(weights | {"project.bias": torch.zeros(3)}, folder / WEIGHTS)
    assert "another shape: project.bias" in refusal(folder)


class Trap:
    def __reduce__(self):
        return exit, ("unpickled",)


def test_damaged_and_pickled_weights_are_refused_unread(folder):
    whole = (folder / WEIGHTS).read_bytes()
    for content in (b"", bytes(1000), whole[:-7], pickle.dumps(Trap())):
        (folder / WEIGHTS).write_bytes(content)
        assert f"{WEIGHTS} is damaged" in refusal(folder)
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")
    assert f"{WEIGHTS} is missing" in refusal(folder)


def test_another_format_and_a_missing_folder_are_named(folder):
    for version in (2, "1", None):
        edit_config(folder, format_version=version)
        assert f"format {version!r}" in refusal(folder)
    assert f"no checkpoint at {folder}x" in refusal(folder.with_name(folder.name + "x"))


def test_optional_tensors_may_be_missing_and_others_may_not(model):
    fresh = random_model(SMALL, seed=4, dtype=torch.float32)
    own_head = fresh.heads.bias.clone()
    weights = {n: w for n, w in model.state_dict().items() if not n.startswith("heads.")}
    load_weights(fresh, weights, "here", optional="heads.")
    assert torch.equal(fresh.heads.bias, own_head)
    assert torch.equal(fresh.project.weight, model.project.weight)
    weights.pop("project.bias")
    with pytest.raises(CheckpointError, match=r"here lacks tensors: project\.bias"):
        load_weights(fresh, weights, "here", optional="heads.")


@pytest.mark.parametrize(("step", "number"),
                         [("save_file", 1), ("os.replace", 1), ("os.replace", 2)])
def test_a_failing_write_leaves_the_old_checkpoint_and_nothing_else(step, number, folder,
                                                                    monkeypatch):
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    real, calls = checkpoint.os.replace, []

    def full(*arguments, **_):
        calls.append(arguments)
        if len(calls) == number:
            raise OSError(28, "No space left on device")
        real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(f"superres.checkpoint.{step}", full)
        with pytest.raises(OutputError, match="No space left") as caught:
            save_checkpoint(random_model(SMALL, seed=5), folder)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before
    assert [p.name for p in folder.parent.iterdir()] == ["mine"]


def test_a_first_save_that_fails_leaves_nothing(model, tmp_path):
    with pytest.raises(TypeError, match="not JSON serializable"):
        save_checkpoint(model, tmp_path / "new", training=[{"stage": object()}])
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputError, match=r"cannot write [^\n]*$"):
        save_checkpoint(model, tmp_path / "file" / "below")


def test_training_stages_and_other_files_are_kept_by_a_later_save(model, tmp_path):
    stages = [{"stage": "base"}, {"stage": "heads", "seconds": 3}]
    save_checkpoint(model, tmp_path / "a", training=stages)
    (tmp_path / "a" / "README.md").write_text("card")
    save_checkpoint(model, tmp_path / "a")
    assert read_training(tmp_path / "a") == stages
    assert read_training(tmp_path / "elsewhere") == []
    assert {p.name for p in (tmp_path / "a").iterdir()} == {"README.md", CONFIG, WEIGHTS,
                                                            "training.jsonl"}
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
