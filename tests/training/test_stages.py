"""Stages of training faces: own pictures, the ladder, and what is refused."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from ladder import check_ladder
from superres.checkpoint import (
    load_checkpoint,
    read_checkpoint,
    read_training,
    save_checkpoint,
    weights_digest,
)
from superres.cli.main import run
from superres.config import PRESETS, DecodeConfig
from superres.errors import ConfigError, InvalidInputError, SuperresError
from superres.native import build
from superres.pipeline.upscaler import Upscaler
from superres.system.folders import bundled_folder
from superres.tasks.face_data import FacePairs, read_faces, write_npz
from superres.tasks.faces import FaceTask
from superres.training import recipes, trainer
from superres.training.construction import build_model
from superres.training.distillation import decode_own_faces
from superres.training.recipes import read_recipe, stage_of, train_recipe, train_stage
from superres.training.stage import Stage
from superres.web.site import notice_of
from table2 import CHECKPOINTS
from tests.training.helpers import ignore, never, stage_rows

GREEDY = DecodeConfig(block_size=1)
SHORT = {"steps": 1, "batch_size": 2, "precision": "no"}
SMALLER = {"target_shape": (16, 16, 3)}


def random_pairs(count):
    rng = np.random.default_rng(1)
    lr = rng.integers(0, 256, (count, 8, 8, 3), np.uint8)
    return FacePairs(lr.repeat(2, 1).repeat(2, 2), lr, np.arange(count, dtype=np.int32))


@pytest.fixture(autouse=True)
def no_curves(monkeypatch):
    """Drawing them takes longer than training these networks."""
    monkeypatch.setattr(trainer, "plot_history", lambda *_: None)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("faces") / "train.npz"
    write_npz(random_pairs(3), path)
    return path


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A tiny untrained network with three prediction heads."""
    folder = tmp_path_factory.mktemp("checkpoints") / "tiny"
    config = replace(PRESETS["tiny"], prediction_heads=3, **SMALLER)
    save_checkpoint(build_model(config, Stage(**SHORT)), folder, training=[{"stage": "base"}])
    return folder


def test_own_pictures_are_those_of_greedy_decoding_and_are_not_decoded_twice(checkpoint, tmp_path):
    pairs, upscaler = random_pairs(3), Upscaler.load(checkpoint, "cpu", "plain")

    def decode(stop, report=ignore, batch_size=2):
        return decode_own_faces(upscaler, pairs, tmp_path, GREEDY, batch_size, stop, report)

    looks = iter([False, True])
    assert not decode(lambda: next(looks))
    first, done = (tmp_path / "part-00000000.npz").stat().st_mtime_ns, []
    assert not (tmp_path / "faces.npz").exists()

    def report(record):
        done.append(record["images"])
        if len(done) == 1:
            assert (tmp_path / "part-00000000.npz").stat().st_mtime_ns == first

    assert decode(never, report)
    own = read_faces(tmp_path / "faces.npz", FaceTask(8, 16))
    assert done == [2, 3]
    assert np.array_equal(own.lr, pairs.lr)
    assert np.array_equal(own.hr, np.concatenate([upscaler(pairs.lr[:2], GREEDY).images,
                                                  upscaler(pairs.lr[2:], GREEDY).images]))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["faces.npz", "settings.json"]
    assert decode(pytest.fail)
    with pytest.raises(ConfigError, match=r"other settings.*choose a new folder"):
        decode(never, batch_size=3)


@pytest.fixture
def recipe(tmp_path):
    stages = [
        {"name": "base"}, {"name": "regular", "start": "base", "stage": "heads",
                           "freeze_base": True},
        {"name": "distilled", "start": "regular", "own_images": 2, "stage": "distil",
         "teacher": "regular"},
    ]
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps({"preset": "tiny", "network": SMALLER, "prediction_heads": 3,
                                "decode_batch": 2, **SHORT, "stages": stages}))
    return path


def rewrite(recipe, **changes):
    """Change settings of a recipe."""
    recipe.write_text(json.dumps({**json.loads(recipe.read_text()), **changes}))


def train(recipe, data, output, stop=never, report=ignore, **more):
    return train_recipe(read_recipe(recipe, data=data, output=output, **more), stop, report)


def test_a_recipe_changes_its_preset_and_keeps_weights_at_equal_distances(recipe, data, tmp_path):
    rewrite(recipe, network={**SMALLER, "width": 16, "ordinal_output": False},
            stages=[{"name": "base", "steps": 5, "snapshots": 2}])
    assert train(recipe, data, tmp_path / "run")
    base = tmp_path / "run" / "base"
    network = load_checkpoint(base / "checkpoint")
    assert (network.config.width, network.config.ordinal_output,
            network.config.cell_remainder) == (16, False, True)
    kept = {int(folder.name): folder for folder in (base / "snapshots").iterdir()}
    assert sorted(kept) == [3, 5]
    assert read_training(kept[3])[-1]["steps"] == 3
    states = [load_checkpoint(folder).state_dict() for folder in (kept[3], kept[5])]
    assert any(not torch.equal(states[0][name], weight) for name, weight in states[1].items())
    assert all(torch.equal(states[1][name], weight)
               for name, weight in network.state_dict().items())


def test_a_recipe_changes_the_sizes_of_a_checkpoint_that_it_starts_from(checkpoint, recipe, data,
                                                                        tmp_path):
    rewrite(recipe, network={"source_shape": (4, 4, 3), "target_shape": (8, 8, 3),
                             "attention_keys": "pixels"},
            stages=[{"name": "heads", "stage": "heads", "start": str(checkpoint),
                     "freeze_base": True}])
    assert train(recipe, data, tmp_path / "run")
    before = load_checkpoint(checkpoint)
    after = load_checkpoint(tmp_path / "run" / "heads" / "checkpoint")
    assert (after.config.target_shape, after.config.key_distance,
            after.config.prediction_heads) == ((8, 8, 3), 3, 3)
    assert torch.equal(after.decoder[0].attention.query.weight,
                       before.decoder[0].attention.query.weight)


def test_all_stages_have_the_precision_and_threads_of_the_first_one(recipe, data, tmp_path,
                                                                    monkeypatch):
    # another one trains the later stages
    machines = itertools.chain([{}], itertools.repeat({"avx512_bf16": True}))
    monkeypatch.setattr(torch.cpu, "get_capabilities", machines.__next__)
    rewrite(recipe, precision="auto")
    for _ in range(2):  # the second time, all is finished
        assert train(recipe, data, tmp_path / "run")
        assert [(row["settings"]["precision"], row["settings"]["threads"])
                for row in stage_rows(tmp_path / "run")] == [("no", 1)] * 3


@pytest.mark.extended
def test_a_ladder_trains_every_rung_once_and_tells_of_each(recipe, data, tmp_path):
    output = tmp_path / "run"
    assert not train(recipe, data, output, lambda: True, dev=data)
    assert train(recipe, data, output, dev=data)
    names, rows = ["base", "regular", "distilled"], stage_rows(output)
    assert [row["name"] for row in rows] == names
    assert all(row["dev_bits_per_dim"] > 0 and row["dev_images"] == 3 and row["images_seen"] == 2
               for row in rows)
    checkpoints = [output / name / "checkpoint" for name in names]
    assert [read_checkpoint(one).network.prediction_heads for one in checkpoints] == [1, 3, 3]
    assert [row["stage"] for row in read_training(checkpoints[2])] == ["base", "heads", "distil"]
    assert [row["settings"]["teacher"] for row in rows] == [None, None, "regular"]
    written = [(folder / "model.safetensors").stat().st_mtime_ns for folder in checkpoints]
    assert train(recipe, data, output, pytest.fail, pytest.fail, dev=data)
    assert [(folder / "model.safetensors").stat().st_mtime_ns for folder in checkpoints] == written


@pytest.mark.parametrize(("change", "message"), [
    (lambda d: d.pop("stages"), "stages must be a list, not None"),
    (lambda d: d["stages"].clear(), "a recipe needs stages"),
    (lambda d: d.update(stages=7), "must be a list, not 7"),
    (lambda d: d.update(preset=7), "preset must be one of"),
    (lambda d: d.update(decode_batch=-1), "decode_batch must be at least 1, not -1"),
    (lambda d: d.update(prediction_heads=2_000_000_000), "prediction-heads must be at most 1024, "
     "not 2000000000"),
    (lambda d: d.update(keep_heads="no"), "keep_heads must be true or false, not 'no'"),
    *((lambda d, name=name: d["stages"][0].update(name=name), "the name of a stage .* is not fit "
       "for a file")
      for name in ("../../evil", "/evil", "a\\b", "..", ".hidden", "NUL", "a\0", "a\n", "x" * 300,
                   "", "\ud800")),
    (lambda d: d["stages"][0].update(name="training.jsonl"), "another stage or file is called"),
    (lambda d: d["stages"][0].update(batch_size="4"), "stage 'base': batch-size must be a whole "
     "number, not '4'"),
    (lambda d: d["stages"][1].update(start="nowhere"), "no checkpoint 'nowhere'"),
    (lambda d: d["stages"][1].update(name="BASE"), "another stage or file is called 'BASE'"),
    (lambda d: d["stages"][2].update(teacher="nobody"), "no checkpoint 'nobody'"),
    (lambda d: d["stages"][2].update(own_images=0), "own_images must be positive"),
    (lambda d: d["stages"][0].update(step=3), "unknown setting step"),
    (lambda d: d.update(colour="red"), "unknown setting colour in Stage"),
    (lambda d: d.update(network={"widht": 8}), "unknown setting widht"),
    (lambda d: d["stages"][0].update(snapshots=2), "snapshots must be 0, or at most the number of "
     "steps"),
    (lambda d: d["stages"][1].update(head_layer="round"), "head_layer must be one of per-head, "
     "dense.* not 'round'"),
    (lambda d: d["stages"][0].update(head_layer="dense"), "in a stage that trains heads, not "
     "'dense'"),
])
def test_a_recipe_that_does_not_hold_together_is_refused_in_one_line(change, message, recipe):
    document = json.loads(recipe.read_text())
    change(document)
    recipe.write_text(json.dumps(document))
    with pytest.raises(SuperresError, match=message) as caught:
        read_recipe(recipe)
    assert "\n" not in str(caught.value)


def test_the_bundled_recipes_can_be_read():
    folder = bundled_folder().parent / "scripts" / "train" / "recipes"
    recipes = {path.stem: read_recipe(path) for path in folder.glob("*.json")}
    assert {"draft-two-cores", "one-gpu", "table2", "text-two-cores", "two-cores"} <= recipes.keys()
    settings = recipes["table2"][1:]
    assert len({(one.steps, one.learning_rate, one.batch_size, one.seed) for one in settings}) == 1


@pytest.mark.extended
def test_the_ladder_of_table_2_starts_all_heads_anew_from_one_base(checkpoint, data, tmp_path):
    document = json.loads((bundled_folder().parent / "scripts" / "train" / "recipes"
                           / "table2.json").read_text())
    for stage in document["stages"]:
        stage |= {**SHORT, "head_positions": 4, "seed": 5, "snapshots": 0}
        if stage.get("head_layer") == "sequential":
            # the checkpoint's, whose trained heads must not be taken
            stage["head_layer"] = "per-head"
    (tmp_path / "recipe.json").write_text(json.dumps({**document, "prediction_heads": 3}))
    output = tmp_path / "run"
    assert train(tmp_path / "recipe.json", data, output, start=str(checkpoint))
    networks = {name: load_checkpoint(output / name / "checkpoint")
                for name in ("base", *CHECKPOINTS)}
    kinds = {name: (networks[name].config.prediction_heads, networks[name].config.head_layer)
             for name in CHECKPOINTS}
    assert kinds == {
        "regular": (3, "dense"), "fine-tuned": (3, "dense"), "sequential-regular": (3, "per-head"),
        "sequential-fine-tuned": (3, "per-head")}
    assert networks["base"].heads is None
    for name in ("regular", "sequential-regular"):
        frozen = networks[name].state_dict()
        assert all(torch.equal(frozen[key], weight)
                   for key, weight in networks["base"].state_dict().items())
    given = load_checkpoint(checkpoint).heads.state_dict()
    fresh = networks["sequential-regular"].heads.state_dict()
    assert any(not torch.allclose(fresh[key], given[key], atol=0.05) for key in given)
    check_ladder({name: read_training(output / name / "checkpoint") for name in CHECKPOINTS})
    assert [(row["name"], row["start"]) for row in stage_rows(output)] == [
        ("base", checkpoint.name), *((name, "base") for name in CHECKPOINTS)]


def test_a_copy_trained_further_keeps_the_licence_and_the_origin_of_its_start(recipe, data,
                                                                              tmp_path):
    start = tmp_path / "ours"
    save_checkpoint(build_model(replace(PRESETS["tiny"], **SMALLER), Stage(**SHORT)), start)
    (start / "README.md").write_text("---\nlicense: other\nlicense_name: for-tests\n---\n\n# "
                                     "ours\n\nlicense: no\n")
    stages = [{"name": "first", "start": str(start)}, {"name": "second", "start": "first"},
              {"name": "fresh"}]
    rewrite(recipe, stages=stages)
    assert train(recipe, data, tmp_path / "run")
    first, second, fresh = (tmp_path / "run" / stage["name"] / "checkpoint" for stage in stages)
    origin = f"- ours, SHA-256 of the weights {weights_digest(start)}...\n"
    later = f"- first, SHA-256 of the weights {weights_digest(first)}...\n{origin}"
    for folder, lines in ((first, origin), (second, later)):
        card = (folder / "README.md").read_text()
        assert card.startswith("---\nlicense: other\nlicense_name: for-tests\n---\n")
        assert card.endswith(f"\n\n{lines}")
    assert notice_of(second) == "The weights (checkpoint): licence for-tests."
    assert not (fresh / "README.md").exists()


@pytest.mark.parametrize("option", ["start", "teacher"])
def test_a_cascade_to_train_is_refused_with_the_names_of_its_stages(option, data, tmp_path, recipe):
    message = ("celeba-8to64 has 2 stages, which are trained one at a time; name celeba-8to32 or "
               "celeba-32to64")
    stage = stage_of({**SHORT, "data": data, "output": tmp_path / "run", option: "celeba-8to64"})
    with pytest.raises(ConfigError, match=message):
        train_stage(stage, never, ignore)
    rewrite(recipe, stages=[{"name": "first"}, {"name": "second", option: "celeba-8to64"}])
    with pytest.raises(ConfigError, match=message):  # before the first stage is trained
        train(recipe, data, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_distil_without_own_pictures_and_other_stages_with_them_are_refused(checkpoint, data,
                                                                            tmp_path):
    for stage, own in (("distil", None), ("heads", data)):
        with pytest.raises(ConfigError, match="the distil stage, and no other"):
            train_stage(Stage(stage=stage, steps=1, data=data, output=tmp_path,
                              start=str(checkpoint), own=own), never, ignore)
    with pytest.raises(ConfigError, match="batch_size must be even"):
        Stage(stage="distil", steps=1, batch_size=3)


@pytest.mark.parametrize("kind", ["shape", "type", "empty folder"])
def test_data_that_cannot_be_trained_on_is_one_line(kind, checkpoint, tmp_path, capsys):
    path = tmp_path / ("folder" if kind == "empty folder" else "bad.npz")
    pairs = random_pairs(2)
    if kind == "empty folder":
        path.mkdir()
    else:
        hr = pairs.hr[:, :12] if kind == "shape" else pairs.hr.astype(np.float32)
        np.savez(path, hr=hr, lr=pairs.lr, ids=pairs.ids)
    with pytest.raises(InvalidInputError):
        read_faces(path, FaceTask(8, 16))
    assert run(["train", "base", "--data", str(path), "--output", str(tmp_path / "run"), "--steps",
                "1"]) == 2
    error = capsys.readouterr().err
    assert str(path) in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("words", [
    ["decode"], ["base", "--steps", "1"], ["heads", "--start", "celeba-8to32", "--steps", "1"],
    ["ladder"]], ids=lambda words: words[0])
def test_paths_are_checked_before_any_work(words, recipe, data, tmp_path, capsys, monkeypatch):
    for owner, name in ((Upscaler, "load"), (recipes, "build_model")):
        monkeypatch.setattr(owner, name, lambda *_: pytest.fail("work was done"))
    words = ["train", *words, *([str(recipe)] if words == ["ladder"] else [])]
    for options, message in (
        (["--data", str(tmp_path / "nowhere"), "--output", str(tmp_path / "run")],
         "nowhere does not exist"),
        (["--data", str(data), "--output", str(data)], "cannot write to the folder")):
        assert run([*words, *options]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_the_commands_decode_and_distil_work_together(checkpoint, data, tmp_path, capsys):
    own = tmp_path / "own"
    words = ["train", "decode", "--data", str(data), "--checkpoint", str(checkpoint), "--limit",
             "2", "--device", "cpu"]
    assert run([*words, "--output", str(own), "--block-size", "1"]) == 0
    assert run([*words, "--output", str(tmp_path / "fastest")]) == 0
    images = [read_faces(folder / "faces.npz", FaceTask(8, 16)).hr
              for folder in (own, tmp_path / "fastest")]
    assert np.array_equal(*images)
    settings = json.loads((tmp_path / "fastest" / "settings.json").read_text())["decode"]
    assert settings["adaptive"] == (build.compiler() is not None)
    words = ["train", "distil", "--data", str(data), "--own", str(own / "faces.npz"), "--start",
             str(checkpoint)]
    assert (run([*words, "--output", str(tmp_path / "run"), "--steps", "1", "--batch-size", "2"])
            == 0)
    assert ([stage["stage"] for stage in read_training(tmp_path / "run" / "checkpoint")]
            == ["base", "distil"])
    assert "finished" in capsys.readouterr().err
