"""Checkpoint folders: read strictly, written whole or not at all, every refusal one line that names the culprit."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import pytest
import torch
from fakes import SMALL, random_model
from safetensors.torch import load_file, save_file

from superres import checkpoint
from superres.checkpoint import (
    CONFIG,
    WEIGHTS,
    HubModel,
    fetch_from_hub,
    load_checkpoint,
    load_weights,
    read_config,
    read_training,
    save_checkpoint,
    weights_digest,
)
from superres.errors import CheckpointError, OutputError
from superres.system.hub import first_line


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


def test_round_trip_keeps_sequential_heads(tmp_path):
    config = replace(SMALL, head_layer="sequential")
    model = random_model(config, dtype=torch.float32)
    save_checkpoint(model, tmp_path, dtype=torch.float32)
    loaded = load_checkpoint(tmp_path)
    assert loaded.config == config
    for name, weight in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], weight)


def test_a_checkpoint_from_before_sequential_heads_still_loads(folder):
    config = read_config(folder)["model"]
    del config["head_layer"]
    edit_config(folder, model=config)
    assert load_checkpoint(folder).config == SMALL


def test_round_trip_in_float32_is_exact(model, tmp_path):
    save_checkpoint(model, tmp_path / "full", dtype=torch.float32)
    for name, weight in load_checkpoint(tmp_path / "full").state_dict().items():
        assert torch.equal(weight, model.state_dict()[name])


def test_a_second_round_trip_changes_no_byte(folder):
    digest = weights_digest(folder)
    save_checkpoint(load_checkpoint(folder), folder)
    assert weights_digest(folder) == digest
    assert len(digest) == 12


def test_extra_entries_are_kept_in_the_config(model, tmp_path):
    save_checkpoint(model, tmp_path, {"training": {"steps": 3}})
    assert read_config(tmp_path)["training"] == {"steps": 3}


def test_other_files_survive_a_save(model, folder):
    (folder / "README.md").write_text("card")
    save_checkpoint(model, folder)
    assert (folder / "README.md").read_text() == "card"
    assert sorted(p.name for p in folder.iterdir()) == ["README.md", CONFIG, WEIGHTS]
    assert [p.name for p in folder.parent.iterdir()] == ["mine"]


# Refusals


def test_missing_and_extra_tensors_are_named(folder):
    weights = load_file(folder / WEIGHTS)
    bias = weights.pop("project.bias")
    save_file(weights, folder / WEIGHTS)
    assert "lacks tensors: project.bias" in refusal(folder)
    save_file(weights | {"project.bias": bias, "surplus": bias.clone()}, folder / WEIGHTS)
    assert "extra tensors: surplus" in refusal(folder)


def test_many_missing_tensors_still_make_one_short_line(folder):
    save_file({"project.bias": load_file(folder / WEIGHTS)["project.bias"]}, folder / WEIGHTS)
    message = refusal(folder)
    assert "more" in message
    assert len(message) < 500


def test_wrong_shapes_are_named(folder):
    weights = load_file(folder / WEIGHTS)
    save_file(weights | {"project.bias": torch.zeros(3)}, folder / WEIGHTS)
    assert "another shape: project.bias" in refusal(folder)


def test_weights_of_another_config_are_refused(folder):
    edit_config(folder, model=replace(SMALL, width=32).to_dict())
    assert "another shape" in refusal(folder)


@pytest.mark.parametrize("content", [b"", b"junk", bytes(1000), b"\xff" * 1000])
def test_damaged_weights_are_named(content, folder):
    (folder / WEIGHTS).write_bytes(content)
    assert f"{WEIGHTS} is damaged" in refusal(folder)


def test_truncated_weights_are_named(folder):
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-7])
    assert f"{WEIGHTS} is damaged" in refusal(folder)


class Trap:
    def __reduce__(self):
        return exit, ("unpickled",)


def test_pickled_weights_are_refused_unread(folder):
    (folder / WEIGHTS).write_bytes(pickle.dumps(Trap()))
    assert f"{WEIGHTS} is damaged" in refusal(folder)
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")
    assert f"{WEIGHTS} is missing" in refusal(folder)


@pytest.mark.parametrize("content", ["", "{", "[]", "7", '{"model": {}}', "\udcff"])
def test_a_damaged_config_is_named(content, folder):
    (folder / CONFIG).write_bytes(content.encode("utf-8", "surrogateescape"))
    assert f"{CONFIG} is damaged" in refusal(folder)


@pytest.mark.parametrize("version", [2, "1", None])
def test_another_format_version_is_named(version, folder):
    edit_config(folder, format_version=version)
    assert f"format {version!r}" in refusal(folder)


@pytest.mark.parametrize("settings", [None, [], "base"])
def test_a_config_without_settings_is_refused(settings, folder):
    edit_config(folder, model=settings)
    assert "no settings of a model" in refusal(folder)


@pytest.mark.parametrize(("change", "named"), [
    ({"colour": 3}, "colour"), ({"width": -4}, "-4"), ({"norm": "batch"}, "'batch'"), ({"width": "wide"}, "'wide'"),
])
def test_impossible_settings_are_named(change, named, folder):
    edit_config(folder, model=SMALL.to_dict() | change)
    message = refusal(folder)
    assert named in message
    assert CONFIG in message


def test_a_missing_folder_is_named(tmp_path):
    assert str(tmp_path / "none") in refusal(tmp_path / "none")
    with pytest.raises(CheckpointError, match="no checkpoint"):
        read_config(tmp_path / "none")


def test_a_file_in_place_of_a_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    assert "file" in refusal(tmp_path / "file")


def test_missing_weights_are_named(folder):
    (folder / WEIGHTS).unlink()
    assert f"{WEIGHTS} is missing" in refusal(folder)


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


# Failing writes


@pytest.mark.parametrize("step", ["save_file", "os.replace"])
def test_a_failing_write_leaves_the_old_checkpoint_and_nothing_else(step, folder, monkeypatch):
    before = {p.name: p.read_bytes() for p in folder.iterdir()}

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(f"superres.checkpoint.{step}", full)
        with pytest.raises(OutputError, match="No space left") as caught:
            save_checkpoint(random_model(SMALL, seed=5), folder)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before
    assert [p.name for p in folder.parent.iterdir()] == ["mine"]


def test_the_old_checkpoint_comes_back_when_the_new_one_cannot_take_its_place(folder, monkeypatch):
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    real, calls = checkpoint.os.replace, []

    def second_fails(*args):
        calls.append(args)
        if len(calls) == 2:
            raise OSError(5, "Input/output error")
        real(*args)

    with monkeypatch.context() as patch:
        patch.setattr("superres.checkpoint.os.replace", second_fails)
        with pytest.raises(OutputError):
            save_checkpoint(random_model(SMALL, seed=5), folder)
    assert folder.is_dir()
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


def test_a_first_save_that_fails_leaves_nothing(model, tmp_path):
    with pytest.raises(TypeError, match="not JSON serializable"):
        save_checkpoint(model, tmp_path / "new", training=[{"stage": object()}])
    assert list(tmp_path.iterdir()) == []


def test_a_folder_below_a_file_is_refused(model, tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputError, match="cannot write") as caught:
        save_checkpoint(model, tmp_path / "file" / "below")
    assert "\n" not in str(caught.value)


# The hub


@pytest.mark.parametrize(("error", "line"), [
    (OSError("offline\nsecond line"), "offline"), (ValueError(""), "ValueError"), (OSError("\n"), "OSError"),
])
def test_an_error_of_the_hub_makes_one_line(error, line):
    assert first_line(error) == line


def test_an_impossible_hub_id_makes_one_line():
    with pytest.raises(CheckpointError, match="a b/c") as caught:
        fetch_from_hub("a b/c")
    assert "\n" not in str(caught.value)


def test_hub_form_saves_and_reads_the_same_folder(model, tmp_path):
    HubModel(model).save_pretrained(tmp_path / "hub")
    loaded = HubModel.from_pretrained(str(tmp_path / "hub")).model
    assert loaded.config == model.config
    assert torch.equal(loaded.project.weight, model.project.weight.bfloat16().float())


def test_training_stages_are_written_with_the_checkpoint_and_kept_by_a_later_save(model, tmp_path):
    stages = [{"stage": "base"}, {"stage": "heads", "seconds": 3}]
    save_checkpoint(model, tmp_path / "a", training=stages)
    save_checkpoint(model, tmp_path / "a")
    assert read_training(tmp_path / "a") == stages
    assert read_training(tmp_path / "elsewhere") == []
    (tmp_path / "a" / "training.jsonl").write_text('{"stage"\n')
    with pytest.raises(CheckpointError, match=r"training\.jsonl is damaged"):
        read_training(tmp_path / "a")
