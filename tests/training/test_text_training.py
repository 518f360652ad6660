"""Training on text: padding that does not count, stages, distillation, and the whole ladder."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from textual import CONFIG, SHORT, sentences, vocabulary, write_checkpoint, write_pairs

from superres import config as config_module
from superres.checkpoint import load_checkpoint, read_checkpoint, read_training
from superres.cli.main import run
from superres.config import BeamConfig, DecodeConfig
from superres.errors import CheckpointError, ConfigError, InvalidInputError
from superres.pipeline.translator import Translator
from superres.tasks.translation import VOCABULARY_FILE, TextPairs, read_lines, read_pairs
from superres.training.corpora import CORPORA, text_corpus
from superres.training.distillation import translate_pairs
from superres.training.recipes import read_recipe, train_recipe, train_stage
from superres.training.stage import Stage
from tests.training.helpers import ignore, never, stage_rows


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_pairs(sentences(60), tmp_path_factory.mktemp("text") / "train")


@pytest.fixture
def preset(monkeypatch):
    """Let the text preset be a tiny network."""
    monkeypatch.setitem(config_module.PRESETS, "text",
                        replace(CONFIG, prediction_heads=1, dropout=0.1))


def train(*words):
    return run(["train", *map(str, words)])


def test_a_base_and_its_heads_are_trained_from_the_command_line(preset, text, tmp_path, capsys):
    base, heads = tmp_path / "base", tmp_path / "heads"
    common = ["--data", text, "--dev", text, "--batch-size", 4, "--steps", 2, "--precision", "no"]
    assert train("base", "--preset", "text", *common, "--output", base, "--label-smoothing",
                 0.1) == 0
    assert train("heads", *common, "--start", base / "checkpoint", "--prediction-heads", 3,
                 "--head-positions", 3, "--output", heads) == 0
    (first, second) = read_training(heads / "checkpoint")
    assert (first["stage"], first["pairs_seen"]) == ("base", 8)
    assert first["settings"]["label_smoothing"] == 0.1
    assert (second["settings"]["head_positions"], second["dev_pairs"]) == (3, 60)
    assert 0 < second["dev_bits_per_token"] < 20
    assert second["dev_bleu"] >= 0
    assert len({(folder / "checkpoint" / VOCABULARY_FILE).read_bytes()
                for folder in (base, heads)}) == 1
    translator = Translator.load(heads / "checkpoint", "cpu")
    assert translator.model_config.prediction_heads == 3
    assert len(translator(["a dog"]).texts) == 1
    assert "training a vocabulary of 330 pieces" in capsys.readouterr().err
    assert (base / "curves.png").exists()


def test_other_languages_and_a_vocabulary_may_be_named(preset, tmp_path):
    pairs = sentences(20)
    for language, lines in (("xx", pairs.source), ("yy", pairs.target)):
        (tmp_path / f"t.{language}").write_text("\n".join(lines) + "\n")
    (tmp_path / "spm").write_bytes(vocabulary())
    assert train("base", "--preset", "text", "--languages", "xx-yy", "--data", tmp_path / "t",
                 "--output", tmp_path / "run", "--vocabulary", tmp_path / "spm", "--steps", 1) == 0
    assert read_checkpoint(tmp_path / "run" / "checkpoint").network.languages == ("xx", "yy")
    assert not (tmp_path / "run" / VOCABULARY_FILE).exists()


def test_pairs_that_cannot_be_trained_on_are_left_out_and_counted(preset, tmp_path, capsys):
    pairs = sentences(300)
    odd = TextPairs([*pairs.source, "", "dog " * 40, "dog"], [*pairs.target, "Hund", "Hund", ""])
    stage = replace(SHORT, data=write_pairs(odd, tmp_path / "t"), output=tmp_path / "run",
                    preset="text")
    assert train_stage(stage, never, ignore)
    assert ("3 of 303 pairs are left out: a side is empty or has more than 20 tokens"
            in capsys.readouterr().err)


@pytest.mark.parametrize(("change", "error", "message"), [
    ({"preset": "base", "languages": "en-de"}, ConfigError, "preset base has no languages"),
    ({"stage": "distil", "start": "start"}, ConfigError, "let a teacher translate"),
    ({"stage": "heads"}, ConfigError, "needs a trained base"),
    ({"start": "start", "languages": "de-en"}, ConfigError, "translates en-de, not de-en"),
    ({"vocabulary": "nowhere"}, CheckpointError, "cannot read the vocabulary"),
    ({"data": "empty"}, InvalidInputError, "holds no pair that can be trained on"),
])
def test_stages_that_cannot_be_are_refused(preset, text, tmp_path, change, error, message):
    write_checkpoint(tmp_path / "start", heads=1)
    write_pairs(TextPairs([""], [""]), tmp_path / "empty")
    (tmp_path / "spm").write_bytes(vocabulary())
    places = {key: str(tmp_path / value) for key, value in change.items()
              if key in ("start", "vocabulary", "data")}
    values = {"steps": 2, "precision": "no", "data": text, "output": tmp_path / "run",
              "preset": "text", "vocabulary": tmp_path / "spm", **change, **places}
    with pytest.raises(error, match=message):
        train_stage(Stage(**values), never, ignore)


def test_a_teacher_translates_the_training_text_once(tmp_path, text):
    teacher = Translator.load(write_checkpoint(tmp_path / "teacher"), "cpu")
    pairs = read_pairs(text)
    looks, done = iter([False, True]), []
    arguments = (teacher, pairs, tmp_path / "own", BeamConfig(2), 8)
    assert not translate_pairs(*arguments, lambda: next(looks), ignore, 25)
    first = (tmp_path / "own" / "part-00000000.txt").stat().st_mtime_ns

    def report(record):
        done.append(record["pairs"])
        assert (tmp_path / "own" / "part-00000000.txt").stat().st_mtime_ns == first

    assert translate_pairs(*arguments, never, report, 25)
    assert done == [25, 50, 60]
    assert sorted(path.name for path in (tmp_path / "own").iterdir()) == [
        "pairs.de", "pairs.en", "settings.json"]
    assert read_lines(tmp_path / "own" / "pairs.en") == pairs.source
    assert read_lines(tmp_path / "own" / "pairs.de") == teacher(pairs.source, BeamConfig(2),
                                                                batch_size=8).texts
    assert translate_pairs(*arguments, pytest.fail, ignore)
    with pytest.raises(ConfigError, match=r"other settings.*choose a new folder"):
        translate_pairs(teacher, pairs, tmp_path / "own", BeamConfig(3), 8, never, ignore)


def recipe_of(path, stages, **changes):
    path.write_text(json.dumps({"preset": "text", "prediction_heads": 3, "steps": 1,
                                "batch_size": 10, "precision": "no", "stages": stages}))
    return read_recipe(path, **changes)


@pytest.mark.extended
def test_a_stage_reads_back_translations_of_the_targets(preset, text, tmp_path, monkeypatch):
    """A student reads them too, as its teacher translates them."""
    seen, both = [], {"back_translated_by": "backward", "back_translations": 2, "copies": 3}
    corpus = text_corpus

    def watched(stage, network):
        seen.append(stage)
        return corpus(stage, network)

    monkeypatch.setitem(CORPORA, "translation", watched)
    recipe = recipe_of(tmp_path / "recipe.json", [
        {"name": "base"}, {"name": "backward-first", "start": "base", "reverse": True},
        {"name": "backward", "start": "backward-first", "reverse": True},
        {"name": "teacher", "start": "base", **both},
        {"name": "student", "start": "teacher", "translated_by": "teacher", **both}],
                       data=text, dev=text, output=tmp_path / "run")
    output = tmp_path / "run"
    assert train_recipe(recipe, never, ignore)
    folders = {name: output / name / "checkpoint" for name in ("backward", "teacher", "student")}
    directions = {name: Translator.load(folder, "cpu").languages
                  for name, folder in folders.items()}
    assert directions == {"backward": ("de", "en"), "teacher": ("en", "de"),
                          "student": ("en", "de")}
    true, backward = read_pairs(text), Translator.load(folders["backward"], "cpu")
    parts = [read_pairs(path) for path in seen[3].more]
    for seed, part in enumerate(parts, 1):
        sampling = DecodeConfig(block_size=1, temperature=0.9, nucleus=0.9, seed=seed)
        assert part.target == true.target
        assert part.source == backward(true.target, sampling).texts
    assert parts[0].source != parts[1].source
    assert seen[3].copies == 3
    teacher = Translator.load(folders["teacher"], "cpu")
    for place, part in zip((seen[4].data, *seen[4].more), (true, *parts), strict=True):
        assert read_pairs(place) == TextPairs(part.source, teacher(part.source, BeamConfig()).texts)
    rows = stage_rows(output)
    assert [row.get("reverse") for row in rows] == [None, True, True, None, None]
    assert [row.get("back_translations") for row in rows] == [None, None, None, 2, 2]


def test_a_recipe_may_keep_the_heads_of_the_checkpoint_that_it_goes_on_with(preset, text, tmp_path):
    start = write_checkpoint(tmp_path / "start")
    for keep in (False, True):
        recipe = recipe_of(tmp_path / "recipe.json", [{"name": "base"}], keep_heads=keep, data=text,
                           output=tmp_path / f"run-{keep}", start=str(start))
        assert train_recipe(recipe, never, ignore)
        trained = load_checkpoint(tmp_path / f"run-{keep}" / "base" / "checkpoint")
        assert (trained.heads is not None) == keep
    before = load_checkpoint(start).heads.state_dict()
    assert all(torch.equal(weight, before[name])
               for name, weight in trained.heads.state_dict().items())


@pytest.mark.parametrize(("stages", "message"), [
    ([{"name": "a"}, {"name": "b", "back_translated_by": "a", "back_translations": 1, "copies": 1}],
     "translated back by 'a', which is not an earlier stage with reverse"),
    ([{"name": "a", "reverse": True}, {"name": "b", "back_translated_by": "a", "copies": 1}],
     "belong together"),
    ([{"name": "a", "reverse": True},
      {"name": "b", "back_translated_by": "a", "back_translations": 2}],
     "belong together"),
    ([{"name": "a"}, {"name": "b", "back_translations": 2, "copies": 1}], "belong together"),
    ([{"name": "a", "reverse": True}, {"name": "b", "translated_by": "a"}], "opposite directions"),
    ([{"name": "a", "translated_by": "b"}, {"name": "b"}], "'a' is translated by 'b', which is not "
     "an earlier stage"),
    ([{"name": "a", "copies": -1}], "copies must be at least 0, not -1; give a whole number"),
])
def test_back_translations_that_cannot_be_are_refused(tmp_path, stages, message):
    with pytest.raises(ConfigError, match=message):
        recipe_of(tmp_path / "recipe.json", stages)
