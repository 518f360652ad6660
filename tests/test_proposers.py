"""Proposers of checkpoints: drafts and counts are found, fit or are refused, and reach decoding by every way in."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from fakes import draft_of, random_model
from PIL import Image
from safetensors.numpy import save_file
from textual import CONFIG, codec, learned, sentences, vocabulary, wordy, write_checkpoint, write_pairs

import proposers
from cost_model import expected_tokens
from pages import fill_page
from proposers import compare_proposers, parse_proposers, proposers_markdown, summary_markdown
from superres.checkpoint import save_checkpoint
from superres.cli.main import run
from superres.config import PRESETS, DecodeConfig
from superres.decoding.decode import decode
from superres.decoding.proposers import PROPOSERS
from superres.decoding.proposers.ngrams import NgramTable, Numbering, count_ngrams
from superres.errors import CheckpointError, ConfigError, InvalidInputError
from superres.evaluation.benchmark import image_workload, text_workload
from superres.nn.engines.native import build
from superres.nn.engines.torch_model import StepModel
from superres.pipeline.auto import load
from superres.pipeline.upscaler import Upscaler
from superres.tasks.face_data import FacePairs, write_npz
from superres.tasks.faces import FaceTask
from superres.tasks.translation import END, VOCABULARY_FILE, train_vocabulary
from superres.training.settings import TrainConfig
from superres.training.trainer import REPORT_STEPS

LINES = sentences(6).source
PAGE = Path(__file__).parents[1] / "docs" / "proposers.md"
TINY = replace(PRESETS["tiny"], width=32, filter_size=64, head_filter_size=32, attention_heads=2, prediction_heads=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A text checkpoint that has learned something, its draft beside it, and counts in it."""
    root = tmp_path_factory.mktemp("checkpoints")
    model = learned()[torch.float32].model
    save_checkpoint(model, root / "toy", files={VOCABULARY_FILE: vocabulary()}, dtype=torch.float32)
    draft = draft_of(StepModel(model), 0.05)
    save_checkpoint(draft.model, root / "toy-draft", files={VOCABULARY_FILE: vocabulary()}, dtype=torch.float32)
    rows = [np.array(row) for row in codec().split(sentences(300).target)]
    (root / "toy" / "ngrams.safetensors").write_bytes(count_ngrams(rows, Numbering(3, codec().size, 1)).to_bytes())
    return root / "toy"


def command(*words):
    return run([str(word) for word in words])


def refusal(capsys, *words):
    assert command(*words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


# Decoding text with every proposer


@pytest.mark.parametrize("name", PROPOSERS)
def test_every_proposer_leaves_exact_translation_as_it_is(name, folder):
    translator = load(folder, "cpu")
    width = None if PROPOSERS[name].proposes_tree else 4
    for batch_size in (1, 6):
        for temperature in (0.0, 0.8):
            options = DecodeConfig(block_size=4, proposer=name, temperature=temperature)
            wanted = translator(LINES, DecodeConfig(1, temperature=temperature), width=4, batch_size=batch_size)
            made = translator(LINES, options, width=width, batch_size=batch_size)
            assert made.texts == wanted.texts
            assert made.tokens == wanted.tokens
            assert any(trace.mean_accepted_block_size > 1 for traces in made.traces for trace in traces)


class Hostile:
    """Proposes one token always; drawn at random if it is None."""

    def __init__(self, token):
        self.token, self.generator = token, torch.Generator().manual_seed(0)

    def propose(self, context, offsets):
        shape = len(context.position), len(offsets)
        return (torch.randint(CONFIG.vocabulary, shape, generator=self.generator) if self.token is None
                else torch.full(shape, self.token))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("token", [None, END, 0])
def test_exact_translation_is_the_same_bit_for_bit_whatever_is_proposed(token, temperature, dtype):
    translator = learned()[dtype]
    source = torch.from_numpy(codec().encode(LINES))
    for k in (2, 6):
        more = {"padding": source == 0, "width": 6}
        wanted = decode(translator.scoring, source, DecodeConfig(1, temperature=temperature), **more)
        options = DecodeConfig(k, temperature=temperature)
        made = decode(translator.scoring, source, options, proposer=Hostile(token), **more)
        assert torch.equal(made.tokens, wanted.tokens)
        assert torch.equal(made.lengths, wanted.lengths)


def test_a_draft_and_counts_are_found_beside_the_checkpoint_and_read_once(folder):
    translator = load(folder, "cpu")
    for name in ("draft", "ngram"):
        options = DecodeConfig(proposer=name)
        assert translator.proposers.get(options) is translator.proposers.get(replace(options, block_size=3))
    assert translator.proposers.get(DecodeConfig()) is None
    named = replace(options, proposer="draft", draft=str(folder.with_name("toy-draft")))
    assert translator(LINES, named).texts == translator(LINES).texts


def test_the_command_line_names_draft_counts_and_sampling(folder, capsys, tmp_path):
    (tmp_path / "counts").write_bytes((folder / "ngrams.safetensors").read_bytes())
    plain = ["translate", *LINES, "--checkpoint", folder, "--device", "cpu"]
    assert command(*plain) == 0
    wanted = capsys.readouterr().out
    for words in (["--proposer", "draft", "--draft", folder.with_name("toy-draft"), "--block-size", "3"],
                  ["--proposer", "ngram", "--ngrams", tmp_path / "counts"], ["--proposer", "lookup"],
                  ["--proposer", "jacobi", "--block-size", "6"]):
        assert command(*plain, *words) == 0
        assert capsys.readouterr().out == wanted
    sampled = [*plain, "--temperature", "0.9", "--sampling", "speculative", "--proposer", "draft", "--nucleus", "0.95"]
    assert command(*sampled, "--sample-top-k", "20") == 0
    first = capsys.readouterr().out
    assert command(*sampled, "--sample-top-k", "20") == 0
    assert capsys.readouterr().out == first
    assert command(*sampled, "--sample-top-k", "1") == 0
    assert capsys.readouterr().out == wanted


@pytest.mark.parametrize(("words", "message"), [
    (["--proposer", "draft", "--draft", "nowhere"], "no checkpoint 'nowhere'"),
    (["--proposer", "ngram", "--ngrams", "nowhere"], "no n-grams at nowhere; count them with 'superres train ngrams'"),
    (["--proposer", "source"], "--proposer must be one of heads, jacobi, draft, ngram, lookup, lookahead, not"),
    (["--temperature", "1", "--nucleus", "0"], "nucleus must be above 0 and at most 1, not 0"),
    (["--sampling", "speculative"], "needs a temperature above 0"),
    (["--sampling", "wild", "--temperature", "1"], "--sampling must be one of coupled, speculative, not 'wild'"),
    (["--sample-top-k", "0"], "sample-top-k must be at least 1, not 0"),
    (["--proposer", "lookup", "--block-size", "21"], "block size 21 is more than the 20 target tokens"),
    (["--proposer", "draft", "--adaptive"], "an adaptive block size needs proposals of the heads, not of draft"),
])
def test_bad_input_is_one_line(folder, capsys, words, message):
    line = refusal(capsys, "translate", "dog", "--checkpoint", folder, "--device", "cpu", *words)
    assert message in line


def test_a_checkpoint_without_a_draft_says_what_is_missing(tmp_path, capsys):
    write_checkpoint(tmp_path / "bare")
    for name, option in (("draft", "--draft"), ("ngram", "--ngrams")):
        line = refusal(capsys, "translate", "dog", "--checkpoint", tmp_path / "bare", "--proposer", name)
        assert option in line


def test_a_draft_of_another_vocabulary_is_refused_though_it_has_as_many_tokens(folder, tmp_path, capsys):
    pairs = sentences(300, seed=5)
    other = train_vocabulary([line.upper() for line in (*pairs.source, *pairs.target)], CONFIG.vocabulary)
    save_checkpoint(wordy(dtype=torch.float32), tmp_path / "other", files={VOCABULARY_FILE: other})
    words = ["translate", "dog", "--checkpoint", folder, "--proposer", "draft", "--draft", tmp_path / "other"]
    assert "differs from the verifier's" in refusal(capsys, *words)
    save_checkpoint(random_model(TINY, dtype=torch.float32), tmp_path / "faces")
    assert "has task faces, the verifier translation" in refusal(capsys, *words[:-1], tmp_path / "faces")


@pytest.mark.skipif(build.compiler() is None, reason="no C++ compiler on this machine")
def test_images_upscaled_with_a_draft_are_the_same(tmp_path):
    model = random_model(TINY, dtype=torch.float32)
    save_checkpoint(model, tmp_path / "faces", dtype=torch.float32)
    save_checkpoint(draft_of(StepModel(model), 0.05).model, tmp_path / "faces-draft", dtype=torch.float32)
    (tmp_path / "in").mkdir()
    rng = np.random.default_rng(0)
    for number in range(3):
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)).save(tmp_path / "in" / f"{number}.png")
    made = {}
    for name in ("heads", "draft", "lookup"):
        words = ["upscale", tmp_path / "in", "--output", tmp_path / name, "--checkpoint", tmp_path / "faces",
                 "--proposer", name, "--block-size", "3", "--batch-size", "2", "--device", "cpu"]
        assert command(*words) == 0
        made[name] = np.stack([np.asarray(Image.open(path)) for path in sorted((tmp_path / name).glob("*.png"))])
        rows = [json.loads(line) for line in (tmp_path / name / "manifest.jsonl").read_text().splitlines()]
        assert {row["config"]["proposer"] for row in rows} == {name}
        assert all(row["mean_accepted_block_size"] > 1 for row in rows)
    assert np.array_equal(made["heads"], made["draft"])
    assert np.array_equal(made["heads"], made["lookup"])


# Counted n-grams


def test_counts_are_of_what_followed_most_often():
    rows = [np.array([1, 2, 3, 1, 2, 4, 1, 2, 4]), np.array([2, 0])]
    table = count_ngrams(rows, Numbering(3, 5, 1), least=2)
    number = table.numbering

    def after(*tokens):
        keys = [np.array([token]) for token in reversed(tokens)]
        place = np.flatnonzero(table.keys == number(np.array([0]), keys))
        return int(table.tokens[place[0]]) if len(place) else None

    assert after() == 2
    assert after(1) == 2
    assert after(2) == 4
    assert after(1, 2) == 4
    assert after(2, 3) is None  # seen once
    assert len(count_ngrams(rows, Numbering(3, 5, 1), least=1, most=2).keys) == 3


def test_channels_are_counted_apart():
    rows = [np.array([7, 1, 5, 7, 2, 5])]
    table = count_ngrams(rows, Numbering(1, 9, 3), least=1)
    assert table.keys.tolist() == [0, 1, 2]
    assert table.tokens.tolist() == [7, 1, 5]


def test_a_file_of_counts_is_read_as_it_was_written(tmp_path):
    table = count_ngrams([np.arange(9)], Numbering(2, 9, 3), least=1)
    (tmp_path / "counts").write_bytes(table.to_bytes())
    read = NgramTable.read(tmp_path / "counts")
    assert read.numbering == table.numbering
    assert read.keys.tolist() == table.keys.tolist()
    assert read.tokens.tolist() == table.tokens.tolist()


@pytest.mark.parametrize("content", [
    b"", b"no safetensors", {"keys": np.array([0])}, {"keys": np.array([1, 0]), "tokens": np.array([0, 0], np.int32)},
    {"keys": np.array([0]), "tokens": np.array([9], np.int32)}, {"keys": np.arange(0), "tokens": np.zeros(0, np.int32)},
    {"keys": np.array([0]), "tokens": np.array([0], np.int32), "settings": np.array([1, 2])},
])
def test_a_damaged_file_of_counts_is_one_line(tmp_path, content):
    path = tmp_path / "counts"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        save_file({"settings": np.array([2, 9, 1]), **content}, path)
    with pytest.raises(CheckpointError, match="count them") as caught:
        NgramTable.read(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("order", "message"), [(0, "must be at least 1, not 0"), (40, "do not fit 64-bit numbers")])
def test_orders_that_cannot_be_counted_are_refused(order, message):
    with pytest.raises(ConfigError, match=message):
        Numbering(order, 8000, 1)


def test_the_command_counts_text_and_faces(folder, tmp_path, capsys):
    data = write_pairs(sentences(50), tmp_path / "pairs")
    assert command("train", "ngrams", "--data", data, "--checkpoint", folder, "--output", tmp_path / "text") == 0
    assert NgramTable.read(tmp_path / "text").numbering == Numbering(3, codec().size, 1)
    rng = np.random.default_rng(0)
    write_npz(FacePairs(rng.integers(0, 256, (3, 32, 32, 3), np.uint8), rng.integers(0, 256, (3, 8, 8, 3), np.uint8),
                        np.arange(3, dtype=np.int32)), tmp_path / "faces.npz")
    assert command("train", "ngrams", "--data", tmp_path / "faces.npz", "--output", tmp_path / "faces", "--order", "2",
                   "--limit", "2") == 0
    assert NgramTable.read(tmp_path / "faces").numbering == Numbering(2, 256, 3)
    assert "contexts of up to 1 tokens" in capsys.readouterr().err
    words = ["translate", "dog", "--checkpoint", folder, "--proposer", "ngram", "--ngrams", tmp_path / "faces"]
    assert "have 256 tokens in 3 channels, but the model has 330 in 1" in refusal(capsys, *words)


# Draft models


def test_a_draft_learns_from_its_teacher(folder, tmp_path, monkeypatch):
    data = write_pairs(sentences(60), tmp_path / "pairs")
    small = replace(CONFIG, width=16, filter_size=16, decoder_layers=1, prediction_heads=1)
    monkeypatch.setitem(PRESETS, "text-draft", small)
    words = ["train", "base", "--preset", "text-draft", "--data", data, "--teacher", folder,
             "--steps", str(2 * REPORT_STEPS), "--precision", "no", "--learning-rate", "0.02", "--warmup-steps", "5",
             "--output", tmp_path / "draft"]
    assert command(*words) == 0
    history = [record["p1"] for record in json.loads((tmp_path / "draft" / "history.json").read_text())
               if "p1" in record]
    assert history[-1] < 0.7 * history[0]
    made = tmp_path / "draft" / "checkpoint"
    assert (made / VOCABULARY_FILE).read_bytes() == vocabulary()
    assert json.loads((made / "training.jsonl").read_text())["settings"]["teacher"] == str(folder)
    translator = load(folder, "cpu")
    options = DecodeConfig(4, proposer="draft", draft=str(made))
    assert translator(LINES, options, width=4).texts == translator(LINES, DecodeConfig(1), width=4).texts


def test_a_teacher_of_other_tokens_is_refused(folder, tmp_path, capsys):
    data = write_pairs(sentences(300, seed=5), tmp_path / "pairs")
    lines = (tmp_path / "pairs.de").read_text().upper().splitlines()
    (tmp_path / "other.model").write_bytes(train_vocabulary(lines, CONFIG.vocabulary))
    save_checkpoint(random_model(TINY, dtype=torch.float32), tmp_path / "faces")
    words = ["train", "base", "--preset", "text", "--data", data, "--steps", "1", "--output", tmp_path / "run"]
    for more, message in (
        (["--teacher", folder], "has source_shape (24,), the network to train (128,)"),
        (["--teacher", tmp_path / "faces", "--vocabulary", folder / VOCABULARY_FILE], "has task faces"),
        (["--teacher", "nowhere"], "no checkpoint 'nowhere'"),
    ):
        assert message in refusal(capsys, *words, *more)


def test_a_teacher_is_for_stages_in_which_p1_learns_from_it():
    for settings in ({"stage": "heads"}, {"label_smoothing": 0.1}, {"stage": "distil", "freeze_base": True}):
        with pytest.raises(ConfigError, match="a teacher is for the stages base and distil"):
            TrainConfig(steps=1, teacher="celeba-8to32", **settings)


# The benchmark


def check_rows(report, names):
    assert {(row["proposer"], row["mode"]) for row in report["rows"]} == {
        (name, mode) for name in names for mode in proposers.MODES}
    for row in report["rows"]:
        gamma = row["block_size"] - 1
        assert 0 <= row["alpha"] <= 1
        assert 1 <= row["mean_accepted_block_size"] <= row["block_size"]
        assert 1 <= row["predicted_tokens"] <= row["block_size"]
        candidates, columns = (10, 20 * gamma) if row["proposer"] == "lookahead" else (1, gamma + 1)
        assert row["predicted_tokens"] == pytest.approx(expected_tokens(row["alpha"], gamma, candidates))
        assert row["operations"] * row["predicted_tokens"] >= columns - 1e-9
        assert row["predicted_speed_up"] == pytest.approx(row["predicted_tokens"] / (gamma * row["c"] + 1))
        # What was measured is the tokens of a step over its cost: the prediction errs by its idea of the tokens alone.
        ratio = row["predicted_speed_up_here"] / row["predicted_tokens"] * row["mean_accepted_block_size"]
        assert row["speed_up"] == pytest.approx(ratio, rel=0.35)
        assert row["seconds"] > 0
        assert row["extra_bytes"] >= 0
        if row["mode"] != "speculative":
            assert row["equal_tokens"] > 0.98
    assert json.loads(json.dumps(report)) == report


def test_every_proposer_of_text_is_measured_beside_its_prediction(folder, tmp_path):
    translator = load(folder, "cpu")
    names = parse_proposers("all")
    assert names == list(PROPOSERS)
    report = compare_proposers(text_workload(translator, LINES), names, batch=2, count=2, most=5)
    check_rows(report, names)
    assert report["missing"] == {}
    by_name = {(row["proposer"], row["mode"]): row for row in report["rows"]}
    assert by_name["draft", "greedy"]["extra_bytes"] > by_name["ngram", "greedy"]["extra_bytes"] > 0
    assert by_name["draft", "greedy"]["alpha"] > 0.5
    text = proposers_markdown(report)
    assert text.count("\n| ") == 2 + len(report["rows"])  # and heading and ruler
    assert summary_markdown(report).count("\n") == 1 + 2 * len(names)
    page = tmp_path / "page.md"
    page.write_text(PAGE.read_text())
    fill_page(page, "proposers: translation", summary_markdown(report))
    filled = page.read_text()
    assert summary_markdown(report) in filled
    fill_page(page, "proposers: translation", summary_markdown(report))
    assert page.read_text() == filled
    assert filled.split("## Text")[0] == PAGE.read_text().split("## Text")[0]
    page.write_text("# Nothing")
    with pytest.raises(InvalidInputError, match="has no table between"):
        fill_page(page, "proposers: translation", "")


def test_the_page_tells_of_every_proposer():
    table = PAGE.read_text().split("```")[2]
    assert set(PROPOSERS) <= set(re.findall(r"`([a-z]+)`", table))


def test_proposers_of_images_are_measured():
    model = random_model(TINY, dtype=torch.float32)
    upscaler = Upscaler(model, "tiny", "0123", "cpu")
    sources = np.random.default_rng(0).integers(0, 256, (1, 8, 8, 3)).astype(np.uint8)
    report = compare_proposers(image_workload(upscaler, sources), ["lookup", "draft"], count=1, most=2)
    check_rows(report, ["lookup"])
    assert "name its checkpoint with --draft" in report["missing"]["draft"]
    assert "draft: not measured" in proposers_markdown(report)
    assert "| draft | not measured |" in summary_markdown(report)


def test_the_script_compares_proposers(folder, capsys, tmp_path):
    data = write_pairs(sentences(30), tmp_path / "pairs")
    out = tmp_path / "out"
    proposers.main(proposers.Task.text, out, data, str(folder), "heads,lookup", count=8, temperature=0.7, block_size=3,
                   device="cpu", busy=True)
    report = json.loads((out / "proposers.json").read_text())
    assert report["temperature"] == 0.7
    assert min(row["block_size"] for row in report["rows"]) <= 3
    assert len(report["rows"]) >= 6
    assert (out / "proposers.md").read_text() in capsys.readouterr().out
    with pytest.raises(ConfigError, match=r"--proposers takes all, or names from heads, jacobi.* not 'left'"):
        parse_proposers("heads,left")


def test_examples_serve_where_no_data_is_given():
    from superres.evaluation.examples import SENTENCES, example_sources

    sources = example_sources(4, FaceTask(8, 32))
    assert sources.shape == (4, 8, 8, 3)
    assert len(np.unique(sources.reshape(4, -1), axis=0)) == 4
    assert len(set(SENTENCES)) == len(SENTENCES)


def test_lines_that_do_not_fit_the_model_are_no_workload(folder):
    translator = load(folder, "cpu")
    with pytest.raises(InvalidInputError, match="no line of 1 to 24 tokens"):
        text_workload(translator, ["", "tree " * 40])
    assert text_workload(translator, ["", "tree " * 40, "a dog"]).source(2).shape[0] == 2
