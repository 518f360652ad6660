"""Proposers of checkpoints: drafts and counts are found, fit or are refused, and reach decoding by
every way in."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from fakes import NATIVE, draft_of, drafted, proposer_for, random_model, random_tokens
from safetensors.numpy import save_file
from textual import (
    CONFIG,
    codec,
    learned,
    sentences,
    vocabulary,
    wordy,
    write_checkpoint,
    write_pairs,
)

import proposers
import timed_variants
from decodes import decode, result_of
from proposers import Comparison, Variant, batch_of, parse_proposers
from superres.checkpoint import save_checkpoint
from superres.cli.main import run
from superres.config import PRESETS, DecodeConfig
from superres.decoding.proposers import PROPOSERS
from superres.decoding.proposers.ngram_table import NgramTable, count_ngrams
from superres.errors import CheckpointError, ConfigError, InvalidInputError
from superres.evaluation.timing import Timer
from superres.evaluation.workload import text_workload
from superres.native import build
from superres.nn.torch_model import StepModel
from superres.nn.torch_step import StepSession
from superres.nn.weights import network_of
from superres.pipeline.auto import load
from superres.pipeline.choose import engine_of
from superres.tasks.face_data import FacePairs, write_npz
from superres.tasks.translation import VOCABULARY_FILE, train_vocabulary
from superres.training.stage import Stage
from superres.training.trainer import REPORT_STEPS

LINES = sentences(6).source
compiled = pytest.mark.skipif(build.compiler() is None, reason="no C++ compiler on this machine")
TINY = replace(PRESETS["tiny"], width=32, filter_size=64, head_filter_size=32, attention_heads=2,
               prediction_heads=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A text checkpoint that has learned something, its draft beside it, and counts in it."""
    root = tmp_path_factory.mktemp("checkpoints")
    model = learned()[torch.float32].model
    for name, network in (("toy", model), ("toy-draft", draft_of(StepModel(model), 0.05).model)):
        save_checkpoint(network, root / name, files={VOCABULARY_FILE: vocabulary()},
                        dtype=torch.float32)
    rows = [np.array(row) for row in codec().split(sentences(300).target)]
    (root / "toy" / "ngrams.safetensors").write_bytes(
        count_ngrams(rows, NgramTable(3, codec().size, 1)).to_bytes()
    )
    return root / "toy"


def command(*words):
    return run([str(word) for word in words])


def refusal(capsys, *words):
    assert command(*words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_a_draft_and_counts_are_found_beside_the_checkpoint_and_read_once(folder):
    translator = load(folder, "cpu")
    for name in ("draft", "ngram"):
        options = DecodeConfig(proposer=name)
        assert translator.proposers.get(options) is translator.proposers.get(replace(options,
                                                                                     block_size=3))
    assert translator.proposers.get(DecodeConfig()) is None
    named = replace(options, proposer="draft", draft=str(folder.with_name("toy-draft")))
    assert translator(LINES, named).texts == translator(LINES).texts


def test_the_command_line_names_draft_counts_and_sampling(folder, capsys, tmp_path):
    (tmp_path / "counts").write_bytes((folder / "ngrams.safetensors").read_bytes())
    plain = ["translate", *LINES, "--checkpoint", folder, "--device", "cpu"]
    assert command(*plain) == 0
    wanted = capsys.readouterr().out
    for words in (["--proposer", "draft", "--draft", folder.with_name("toy-draft"), "--block-size",
                   "3"],
                  ["--proposer", "ngram", "--ngrams", tmp_path / "counts"],
                  ["--proposer", "lookup"], ["--proposer", "jacobi", "--block-size", "6"]):
        assert command(*plain, *words) == 0
        assert capsys.readouterr().out == wanted
    sampled = [*plain, "--temperature", "0.9", "--sampling", "speculative", "--proposer", "draft",
               "--nucleus", "0.95"]
    made = []
    for top_k in (20, 20, 1):
        assert command(*sampled, "--sample-top-k", top_k) == 0
        made.append(capsys.readouterr().out)
    assert made[0] == made[1]
    assert made[2] == wanted


@pytest.mark.parametrize(("words", "message"), [
    (["--proposer", "draft", "--draft", "nowhere"], "no checkpoint 'nowhere'"),
    (["--proposer", "ngram", "--ngrams", "nowhere"], "no n-grams at nowhere; count them with "
     "'superres train ngrams'"),
    (["--proposer", "source"], "--proposer must be one of heads, jacobi, draft, ngram, lookup, "
     "lookahead, not"),
    (["--proposer", "lookup", "--block-size", "21"], "block size 21 is more than the 20 target "
     "tokens"),
])
def test_bad_input_is_one_line(folder, capsys, words, message):
    assert message in refusal(capsys, "translate", "dog", "--checkpoint", folder, "--device", "cpu",
                              *words)


def test_drafts_that_are_missing_or_of_other_tokens_are_refused(folder, tmp_path, capsys):
    write_checkpoint(tmp_path / "bare")
    for name, option in (("draft", "--draft"), ("ngram", "--ngrams")):
        assert option in refusal(capsys, "translate", "dog", "--checkpoint", tmp_path / "bare",
                                 "--proposer", name)
    pairs = sentences(300, seed=5)
    other = train_vocabulary([line.upper() for line in (*pairs.source, *pairs.target)],
                             CONFIG.vocabulary)
    save_checkpoint(wordy(dtype=torch.float32), tmp_path / "other", files={VOCABULARY_FILE: other})
    words = ["translate", "dog", "--checkpoint", folder, "--proposer", "draft", "--draft",
             tmp_path / "other"]
    assert "differs from the verifier's" in refusal(capsys, *words)
    save_checkpoint(random_model(TINY, dtype=torch.float32), tmp_path / "faces")
    assert "has task faces, the verifier translation" in refusal(capsys, *words[:-1],
                                                                 tmp_path / "faces")


# Counted n-grams


def shape_of(table):
    return table.order, table.vocabulary, table.channels


def test_counts_are_of_what_followed_most_often():
    rows = [np.array([1, 2, 3, 1, 2, 4, 1, 2, 4]), np.array([2, 0])]
    table = count_ngrams(rows, NgramTable(3, 5, 1), least=2)

    def after(*tokens):
        keys = [np.array([token]) for token in reversed(tokens)]
        place = np.flatnonzero(table.keys == table.number(np.array([0]), keys))
        return int(table.tokens[place[0]]) if len(place) else None

    assert [after(), after(1), after(2), after(1, 2)] == [2, 2, 4, 4]
    assert after(2, 3) is None  # seen once
    assert len(count_ngrams(rows, NgramTable(3, 5, 1), least=1, limit=2).keys) == 3
    channels = count_ngrams([np.array([7, 1, 5, 7, 2, 5])], NgramTable(1, 9, 3), least=1)
    assert (channels.keys.tolist(), channels.tokens.tolist()) == ([0, 1, 2], [7, 1, 5])


def test_a_file_of_counts_is_read_as_it_was_written(tmp_path):
    table = count_ngrams([np.arange(9)], NgramTable(2, 9, 3), least=1)
    (tmp_path / "counts").write_bytes(table.to_bytes())
    read = NgramTable.read(tmp_path / "counts")
    assert shape_of(read) == shape_of(table)
    assert (read.keys.tolist(), read.tokens.tolist()) == (table.keys.tolist(),
                                                          table.tokens.tolist())


@pytest.mark.parametrize("content", [
    b"", b"no safetensors", {"keys": np.array([0])},
    {"keys": np.array([1, 0]), "tokens": np.array([0, 0], np.int32)},
    {"keys": np.array([0]), "tokens": np.array([9], np.int32)},
    {"keys": np.arange(0), "tokens": np.zeros(0, np.int32)},
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


@pytest.mark.parametrize(("order", "message"),
                         [(0, "must be at least 1, not 0"), (40, "do not fit 64-bit numbers")])
def test_orders_that_cannot_be_counted_are_refused(order, message):
    with pytest.raises(ConfigError, match=message):
        NgramTable(order, 8000, 1)


def test_the_command_counts_text_and_faces(folder, tmp_path, capsys):
    data = write_pairs(sentences(50), tmp_path / "pairs")
    assert command("train", "ngrams", "--data", data, "--checkpoint", folder, "--output",
                   tmp_path / "text") == 0
    assert shape_of(NgramTable.read(tmp_path / "text")) == (3, codec().size, 1)
    rng = np.random.default_rng(0)
    write_npz(FacePairs(rng.integers(0, 256, (3, 32, 32, 3), np.uint8),
                        rng.integers(0, 256, (3, 8, 8, 3), np.uint8), np.arange(3, dtype=np.int32)),
              tmp_path / "faces.npz")
    assert command("train", "ngrams", "--data", tmp_path / "faces.npz", "--output",
                   tmp_path / "faces", "--order", "2", "--limit", "2") == 0
    assert shape_of(NgramTable.read(tmp_path / "faces")) == (2, 256, 3)
    assert "contexts of up to 1 tokens" in capsys.readouterr().err
    words = ["translate", "dog", "--checkpoint", folder, "--proposer", "ngram", "--ngrams",
             tmp_path / "faces"]
    assert "have 256 tokens in 3 channels, but the model has 330 in 1" in refusal(capsys, *words)


# Draft models


def test_a_draft_learns_from_its_teacher(folder, tmp_path, monkeypatch):
    data = write_pairs(sentences(60), tmp_path / "pairs")
    small = replace(CONFIG, width=16, filter_size=16, decoder_layers=1, prediction_heads=1)
    monkeypatch.setitem(PRESETS, "text-draft", small)
    assert command(
        "train", "base", "--preset", "text-draft", "--data", data, "--teacher", folder, "--steps",
        2 * REPORT_STEPS, "--precision", "no", "--learning-rate", "0.02", "--warmup-steps", "5",
        "--output", tmp_path / "draft") == 0
    history = [record["p1"]
               for record in json.loads((tmp_path / "draft" / "history.json").read_text())
               if "p1" in record]
    assert history[-1] < 0.7 * history[0]
    made = tmp_path / "draft" / "checkpoint"
    assert (made / VOCABULARY_FILE).read_bytes() == vocabulary()
    assert json.loads((made / "training.jsonl").read_text())["settings"]["teacher"] == str(folder)
    translator = load(folder, "cpu")
    options = DecodeConfig(4, proposer="draft", draft=str(made))
    drafted, alone = (translator.decode(LINES, one, width=4) for one in (options, DecodeConfig(1)))
    assert drafted.texts == alone.texts


def test_a_teacher_of_other_tokens_or_for_another_stage_is_refused(folder, tmp_path, capsys):
    data = write_pairs(sentences(20), tmp_path / "pairs")
    save_checkpoint(random_model(TINY, dtype=torch.float32), tmp_path / "faces")
    words = ["train", "base", "--preset", "text", "--data", data, "--steps", "1", "--output",
             tmp_path / "run"]
    for more, message in (
        (["--teacher", folder], "has source_shape (24,), the network to train (128,)"),
        (["--teacher", tmp_path / "faces", "--vocabulary", folder / VOCABULARY_FILE],
         "has task faces"),
        (["--teacher", "nowhere"], "no checkpoint 'nowhere'"),
    ):
        assert message in refusal(capsys, *words, *more)
    for settings in ({"stage": "heads"}, {"label_smoothing": 0.1},
                     {"stage": "distil", "freeze_base": True}):
        with pytest.raises(ConfigError, match="a teacher is for the stages base and distil"):
            Stage(steps=1, teacher="celeba-8to32", **settings)


# The benchmark


@pytest.fixture
def short(monkeypatch):
    """One round of measurements, which are not tested, in place of several."""
    monkeypatch.setattr(timed_variants, "ROUNDS", 1)
    monkeypatch.setattr(timed_variants, "SPLIT", 16)
    monkeypatch.setattr(proposers, "MAX_BLOCK_SIZE", 5)


@pytest.mark.usefixtures("short")
def test_every_proposer_of_text_is_measured(folder):
    names = parse_proposers("all")
    assert names == list(PROPOSERS)
    translator = load(folder, "cpu")
    batches = [batch_of(translator, rows)
               for rows in np.split(text_workload(translator, LINES).source(4), 2)]
    report = Comparison(translator, batches, 0.9, DecodeConfig()).measure(names)
    assert report["missing"] == {}
    by_name = {(row["proposer"], row["mode"]): row for row in report["rows"]}
    assert by_name.keys() == {(name, mode) for name in names for mode in proposers.MODES}
    for row in report["rows"]:
        assert 0 <= row["alpha"] <= 1
        assert 1 <= row["mean_accepted_block_size"] <= row["block_size"]
        assert min(row["speed_up"], row["verify"], row["best_block_size"]) > 0
    assert json.loads(json.dumps(report)) == report
    assert by_name["draft", "greedy"]["extra_bytes"] > by_name["ngram", "greedy"]["extra_bytes"] > 0
    assert by_name["draft", "greedy"]["alpha"] > 0.5


@pytest.mark.parametrize("mode", ["greedy", "speculative"])
def test_the_cost_of_a_draft_is_that_of_its_steps(mode, monkeypatch):
    verifier, draft = (
        StepModel(random_model(replace(TINY, prediction_heads=1, source_shape=(4, 4, 3),
                                       target_shape=(8, 8, 3)))) for _ in range(2))
    now, step = [0.0], StepSession.step

    def timed(session, *given):
        now[0] += 1.0 if session.model is verifier.model else 0.25
        return step(session, *given)

    monkeypatch.setattr(StepSession, "step", timed)
    monkeypatch.setattr(timed_variants, "Timer", lambda device: Timer(device, clock=lambda: now[0]))
    source = np.zeros((1, verifier.model.config.source_length), np.int64)
    alone = DecodeConfig(1, temperature=float(mode != "greedy"),
                         sampling="coupled" if mode == "greedy" else mode)
    variants = [Variant(mode, alone, None), Variant(mode, alone, None),
                Variant(mode, replace(alone, block_size=4, proposer="draft"), drafted(draft))]
    for variant, model in zip(variants, (verifier, draft, verifier), strict=True):
        variant.measure(model, [(source, None)], 0)
    assert [variant.iteration for variant in variants] == [1, 0.25, 1.75]
    assert variants[2].proposing == 3 * 0.25
    assert variants[2].parts == [(1, 1.75)] * len(variants[2].parts)
    assert len(variants[2].parts) == variants[2].iterations


@pytest.mark.parametrize(
    "sampling", [{}, {"temperature": 0.9}, {"temperature": 0.9, "sampling": "speculative"}]
)
@pytest.mark.parametrize("name", ["heads", "jacobi", "draft", "ngram", "lookup"])
@pytest.mark.parametrize("engine", ["plain", pytest.param("native", marks=compiled)])
def test_a_verification_that_is_timed_alone_changes_no_token(engine, name, sampling):
    network = replace(TINY, **NATIVE, source_shape=(2, 2, 3), target_shape=(4, 4, 3))
    verifier = random_model(network, dtype=torch.float32)
    model = engine_of(network_of(verifier), engine=engine)
    source = random_tokens(verifier.config, 2)[0].numpy()
    options = DecodeConfig(3, proposer=name, **sampling)
    proposer = drafted(model) if name == "draft" else proposer_for(name, StepModel(verifier))
    loop = timed_variants.loop_of(model, (source, None), options, proposer)
    loop.run(1)
    while not loop.done():
        assert timed_variants.verification(loop) > 0
        loop.run(1)
    assert loop.decoder.compiled == (engine == "native" and name in ("heads", "draft"))
    decoded = decode(model, source, options, proposer=proposer)
    assert torch.equal(result_of(loop).tokens, decoded.tokens)
    assert [trace.accepted for trace in result_of(loop).traces] == [trace.accepted
                                                                    for trace in decoded.traces]


@pytest.mark.usefixtures("short")
def test_the_script_compares_proposers(folder, capsys, tmp_path):
    data = write_pairs(sentences(30), tmp_path / "pairs")
    out = tmp_path / "out"
    proposers.main(proposers.Task.text, out, data, str(folder), "heads,lookup", count=8,
                   temperature=0.7, block_size=3, device="cpu", busy=True)
    document = json.loads((out / "proposers-text.json").read_text())
    assert document["conditions"]["temperature"] == 0.7
    assert min(row["block_size"] for row in document["rows"]["comparison"]["values"]["rows"]) <= 3
    assert proposers.views(document)["fastest"] in capsys.readouterr().out
    with pytest.raises(ConfigError, match=r"--proposers takes all, or names from heads, jacobi.* "
                       r"not 'left'"):
        parse_proposers("heads,left")


def test_lines_that_do_not_fit_the_model_are_no_workload(folder):
    translator = load(folder, "cpu")
    with pytest.raises(InvalidInputError, match="no line of 1 to 24 tokens"):
        text_workload(translator, ["", "tree " * 40])
    assert text_workload(translator, ["", "tree " * 40, "a dog"]).source(2).shape[0] == 2
