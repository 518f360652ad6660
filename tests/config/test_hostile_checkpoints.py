"""Checkpoints from elsewhere that mean harm: each is refused at once, in one line that names what
is wrong."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from fakes import (
    PLAIN,
    SMALL,
    TINY,
    VARIANTS,
    Waiting,
    limits_of,
    random_model,
    random_tokens,
    stacked,
)
from PIL import Image
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import load_file, save_file
from textual import CONFIG as TEXT
from textual import vocabulary

from decodes import decode
from superres.checkpoint import (
    CONFIG,
    DECODE,
    TRAINING,
    WEIGHTS,
    load_checkpoint,
    read_config,
    read_decode_default,
    read_task_files,
    read_training,
    save_checkpoint,
)
from superres.cli.main import run
from superres.config import BeamConfig, DecodeConfig, ModelConfig
from superres.decoding.algorithm import Algorithm
from superres.decoding.batching import Stream, feed_of
from superres.decoding.beam import beam_search
from superres.decoding.proposers.ngrams import NgramTable
from superres.decoding.state import NanCheck
from superres.decoding.sum_limits import LimitedModel
from superres.errors import CheckpointError, ScoresError
from superres.nn.model import EncoderDecoder, meta_network
from superres.nn.torch_model import StepModel
from superres.pipeline.auto import load
from superres.system.folders import bundled_folder
from superres.tasks.translation import VOCABULARY_FILE, Codec


@pytest.fixture
def folder(tmp_path):
    save_checkpoint(random_model(SMALL, dtype=torch.float32), tmp_path / "mine",
                    training=[{"stage": "base"}])
    return tmp_path / "mine"


def refusal(read, *arguments):
    """Return the one line with which `read` refuses."""
    with pytest.raises(CheckpointError) as caught:
        read(*arguments)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000
    return str(caught.value)


def edit(folder, **changes):
    document = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(document | changes))


@pytest.mark.parametrize("name",
                         [name for name, value in SMALL.to_dict().items() if type(value) is int])
def test_a_size_that_no_machine_can_build_is_refused_unbuilt(name, folder, monkeypatch):
    monkeypatch.setattr(EncoderDecoder, "__init__", lambda *_: pytest.fail("built"))
    for value in (10**6 + 2**21, 10**400, True, 1e30):
        edit(folder, model=SMALL.to_dict() | {name: value})
        assert f"{CONFIG}: {name}" in refusal(load_checkpoint, folder)


@pytest.mark.parametrize(("shapes", "named"), [
    ({"target_shape": [2**20, 2**20, 3]}, "target_shape"),
    ({"source_shape": [2**40]}, "source_shape"),
    ({"source_shape": [1, 1, 3], "target_shape": [256, 256, 3]}, "over a source pixel"),
    ({"source_shape": [1, 1, 90000], "target_shape": [2, 1, 90000]}, "positions"),
    ({"source_shape": [1, 1, 9], "target_shape": [2, 1, 9]}, "colour channels"),
    ({"target_shape": [256, 256, 3], "width": 2**14}, "times width"),
    ({"target_shape": [4, 4]}, "one or three"), ({"target_shape": [True, 4, 3]}, "True"),
])
def test_shapes_whose_tables_no_machine_can_hold_are_refused_unbuilt(shapes, named, folder,
                                                                     monkeypatch):
    monkeypatch.setattr(EncoderDecoder, "__init__", lambda *_: pytest.fail("built"))
    edit(folder, model=SMALL.to_dict() | shapes)
    assert named in refusal(load_checkpoint, folder)


def test_names_and_shapes_are_compared_before_memory_is_taken(folder):
    """Its weights would take 51 GB."""
    edit(folder, model=SMALL.to_dict() | {"decoder_layers": 64, "filter_size": 2**16,
                                          "width": 2**10})
    assert "lacks tensors" in refusal(load_checkpoint, folder)
    edit(folder, model=SMALL.to_dict() | {"filter_size": 2**16, "head_filter_size": 2**16,
                                          "conditioning_width": 2**14})
    assert "another shape" in refusal(load_checkpoint, folder)


@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
def test_a_meta_network_is_the_network_and_lends_nothing_to_what_is_loaded(config, tmp_path):
    state = torch.get_rng_state()
    made = meta_network(config)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(weight.is_meta for weight in made.parameters())
    for (_, ours), (_, theirs) in zip(made.named_buffers(), EncoderDecoder(config).named_buffers(),
                                      strict=True):
        assert torch.equal(ours, theirs)
    model = random_model(config, dtype=torch.float32)
    save_checkpoint(model, tmp_path, dtype=torch.float32)
    loaded = load_checkpoint(tmp_path)
    for ours, theirs in zip(loaded.parameters(), model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
        assert ours.stride() == theirs.stride()
        assert ours.requires_grad
    source, target = random_tokens(config, 2)
    with torch.inference_mode():
        assert torch.equal(loaded.scores(loaded(source, target)),
                           model.scores(model(source, target)))


def test_weights_that_are_not_finite_are_named(folder):
    weights = load_file(folder / WEIGHTS)
    weights["project.bias"] = weights["project.bias"].double()
    for value in (float("nan"), float("-inf"), 1e300):
        weights["project.bias"][1] = value
        save_file(weights, folder / WEIGHTS)
        assert "tensor project.bias holds numbers that are not finite" in refusal(load_checkpoint,
                                                                                  folder)


def test_weights_of_another_type_and_names_for_the_terminal_are_refused(folder):
    weights = load_file(folder / WEIGHTS)
    for kind in (torch.int64, torch.bool, torch.float8_e4m3fn):
        save_file(weights | {"project.bias": weights["project.bias"].to(kind)}, folder / WEIGHTS)
        assert "tensor project.bias is of type" in refusal(load_checkpoint, folder)
    save_file(weights | {"a\x1b[31m\n" + 999 * "b": torch.zeros(1)}, folder / WEIGHTS)
    assert "extra tensors: a [31m bbb" in refusal(load_checkpoint, folder)


TEXTUAL = replace(SMALL, **PLAIN, source_shape=(7,), target_shape=(12,))
SAMPLED = {"temperature": 0.9}
WAYS = [DecodeConfig(block_size=1), DecodeConfig(accept="top-k"),
        DecodeConfig(block_size=1, **SAMPLED), DecodeConfig(sampling="speculative", **SAMPLED),
        DecodeConfig(nucleus=0.5, sample_top_k=2, **SAMPLED),
        DecodeConfig(proposer="lookahead", block_size=3, window=3, candidates=2,
                     sampling="speculative", **SAMPLED)]


def overflowing(config):
    """Return a network of finite weights whose scores are not."""
    model = random_model(config, dtype=torch.float32)
    for weight in model.parameters():
        weight.mul_(0).add_(1e38)
    return model


@pytest.mark.parametrize("config", [SMALL, TEXTUAL], ids=["image", "text"])
def test_scores_that_are_not_finite_stop_a_decode(config):
    model, source = overflowing(config), random_tokens(config, 2)[0]
    for options in WAYS:
        with pytest.raises(ScoresError, match="not finite"):
            decode(StepModel(model), source, options)


@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("variant", ["no free scores", "hyperbolic", "sequential heads",
                                     "recurrent heads"])
def test_heads_that_are_not_finite_propose_tokens_that_change_none(variant, limited):
    config = VARIANTS[variant]
    model, source = random_model(config, dtype=torch.float32), random_tokens(config, 2)[0]
    for weight in model.heads.parameters():
        weight.mul_(0).add_(1e38)
    step = StepModel(model)
    if limited and len(config.target_shape) == 3:
        step = LimitedModel(step, limits_of(config))
    greedy, exact = (decode(step, source, DecodeConfig(size), width=config.prediction_heads).tokens
                     for size in (1, config.prediction_heads))
    assert torch.equal(exact, greedy)


def test_scores_that_are_not_finite_stop_every_other_decode():
    model = overflowing(TEXTUAL)
    source, _ = random_tokens(TEXTUAL, 1)
    with pytest.raises(ScoresError):
        beam_search(StepModel(model, end_token=1), source, BeamConfig(2))
    source, _ = random_tokens(SMALL, 3)
    feed = feed_of([Waiting(row, key) for key, row in enumerate(source)])
    with pytest.raises(ScoresError):
        algorithm = Algorithm(StepModel(overflowing(SMALL)), DecodeConfig())
        list(Stream(algorithm, feed, stacked, 2).run())


def test_tokens_may_be_left_out_but_not_all_of_them():
    scores = torch.zeros(2, 3, 4)
    scores[:, :, 1:] = float("-inf")
    check = NanCheck(2, 3, torch.device("cpu"))
    check.note(scores)
    check.check()
    scores[1, 2, 0] = float("-inf")
    check.note(scores)
    with pytest.raises(ScoresError):
        check.check()


def test_a_batch_marks_pictures_that_cannot_be_decoded_as_failed(tmp_path, capsys):
    save_checkpoint(overflowing(TINY), tmp_path / "bad")
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "a.png")
    words = ["upscale", tmp_path / "a.png", "--checkpoint", tmp_path / "bad", "--engine", "plain",
             "--output", tmp_path / "out"]
    assert run([str(word) for word in words]) == 1
    assert "scores are not finite" in capsys.readouterr().err
    (row,) = map(json.loads, (tmp_path / "out" / "manifest.jsonl").read_text().splitlines())
    assert row["status"] == "failed"
    assert "scores are not finite" in row["error"]
    assert not list((tmp_path / "out").glob("*.png"))


NESTED = b'{"a":' * 100_000
MALFORMED = {
    "nested": NESTED, "list": b"[" * 100_000, "digits": b'{"format_version": ' + b"1" * 9999 + b"}",
    "twice": b'{"format_version": 1, "model": {"width": 4, "width": 8}}',
    "NaN": b'{"format_version": NaN}', "infinity": b'{"format_version": -Infinity}',
    "utf-8": b'{"format_version": 1, "model": {"task": "\xff"}}',
    "half a character": b'{"format_version": 1, "model": {"task": "\\ud800"}}',
    "no object": b"[1, 2]", "task": b'{"format_version": 1, "model": {"task": ["faces"]}}',
    "zero": b"\0" * 99, "large": b" " * 2**25, "format": b'{"format_version": ' + b"1" * 999
    + b', "model": {}}', "name": b'{"format_version": 1, "model": {"\\u001b[31m\\n": 1}}',
}


@pytest.mark.parametrize("content", MALFORMED.values(), ids=MALFORMED)
def test_malformed_settings_make_one_line(content, folder):
    (folder / CONFIG).write_bytes(content)
    for read in (load_checkpoint, load):
        assert CONFIG in refusal(read, folder) or read is load


def test_a_malformed_history_makes_one_line(folder):
    for content in (NESTED, b"1" * 9999, b"\xff", b"[1]", b"5"):
        (folder / TRAINING).write_bytes(content)
        assert TRAINING in refusal(read_training, folder)


def read_or_refused(read, *arguments):
    """Return what `read` gives, or None where it refuses in one line."""
    try:
        return read(*arguments)
    except CheckpointError as error:
        assert str(error).isprintable()  # noqa: PT017
    return None


@pytest.mark.parametrize("value", [None, "x", [], {}, 1, 0.5, -1, True, 10**400, [[]], {"a": 1}])
def test_no_type_of_any_setting_makes_a_traceback(value, folder):
    for name in ModelConfig.__dataclass_fields__:
        edit(folder, model=SMALL.to_dict() | {name: value})
        read_or_refused(load_checkpoint, folder)
    edit(folder, model=SMALL.to_dict())
    for name in DecodeConfig.__dataclass_fields__:
        edit(folder, **{DECODE: {"cpu": {name: value}}})
        read_or_refused(read_decode_default, folder, "cpu")
    for damaged in (value, {"cpu": value}):
        edit(folder, **{DECODE: damaged})
        assert read_or_refused(read_decode_default, folder, "cpu") in (None, DecodeConfig())


@pytest.mark.parametrize("field", ["ngrams", "draft"])
def test_a_default_names_nothing_elsewhere(field, folder):
    (folder.parent / "other.safetensors").write_bytes(b"")
    (folder / "link.safetensors").symlink_to(folder.parent / "other.safetensors")
    (folder / "circle").symlink_to(folder / "circle")
    for name in (5, "/etc/hostname", "../other.safetensors", "link.safetensors", "circle", ".", "",
                 "missing", "a\0b", "\ud800", "x" * 9999, "owner/name"):
        edit(folder, **{DECODE: {"cpu": {field: name}}})
        assert "decode for cpu is damaged" in refusal(read_decode_default, folder, "cpu")


def test_a_default_may_name_what_is_its_own_and_what_is_bundled(folder):
    (folder / "ngrams.safetensors").write_bytes(b"")
    edit(folder,
         **{DECODE: {"cpu": {"ngrams": "ngrams.safetensors", "draft": "celeba-8to32-draft"}}})
    default = read_decode_default(folder, "cpu")
    assert (default.ngrams, default.draft) == (str((folder / "ngrams.safetensors").resolve()),
                                               "celeba-8to32-draft")


READERS = {CONFIG: [read_config, load_checkpoint, load], WEIGHTS: [load_checkpoint, load],
           TRAINING: [read_training],
           VOCABULARY_FILE: [Codec.read, lambda at: read_task_files(at, "translation")],
           "ngrams.safetensors": [lambda at: NgramTable.read(at / "ngrams.safetensors")]}


@pytest.mark.parametrize("kind", ["pipe", "folder", "link to a device"])
@pytest.mark.parametrize("name", READERS)
def test_what_is_no_file_is_refused_and_not_waited_for(name, kind, folder):
    path = folder / name
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    for read in READERS[name]:
        assert "not a regular file" in refusal(read, folder)


def with_header(header, body=b"", length=None):
    content = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(content) if length is None else length).to_bytes(8, "little") + content + body


def entry(start, end, shape=(2,), kind="F32"):
    return {"dtype": kind, "shape": list(shape), "data_offsets": [start, end]}


@pytest.mark.parametrize("content", [
    with_header({}, length=2**63), with_header({}, length=2**64 - 1), with_header({}, length=90),
    with_header({"a": entry(0, 8), "b": entry(4, 12)}, bytes(12)),
    with_header({"a": entry(0, 8)}, bytes(4)), with_header({"a": entry(0, 8, (2**40, 2**40))},
                                                           bytes(8)),
    with_header({"a": entry(0, 8, (-1,))}, bytes(8)),
    with_header({"a": entry(0, 8, kind="F\n9")}, bytes(8)), with_header(b'{"\xff": 1}'),
    with_header(NESTED), with_header({"a": entry(0, 0, (0, 2**40))}),
])
def test_malformed_weights_make_one_line(content, folder):
    (folder / WEIGHTS).write_bytes(content)
    assert WEIGHTS in refusal(load_checkpoint, folder)
    (folder / "n").write_bytes(content)
    refusal(NgramTable.read, folder / "n")


@pytest.mark.parametrize(("settings", "keys"), [
    *((settings, np.arange(3)) for settings in (
        [30_000_000, 9, 1], [2**62, 1, 1], [2**62, 9, 2**62], [2, 2**62, 1], [-1, 9, 1], [2, 0, 1],
        [2, 9, 0], [2, 9], 5, [[2], [9], [1]], [2.5, 9.0, 1.0], [float("nan")] * 3,
        [float("inf")] * 3, [True, True, True])),
    *(([2, 9, 1], keys) for keys in (
        np.zeros((2, 3), np.int64), np.array(3), np.array([2**63 - 1, -(2**63), 5]),
        np.zeros(0, np.int64))),
], ids=str)
def test_impossible_ngrams_are_refused(settings, keys, tmp_path):
    arrays = {"keys": keys, "tokens": np.zeros(keys.shape, np.int32),
              "settings": np.array(settings)}
    save_arrays(arrays, tmp_path / "n")
    refusal(NgramTable.read, tmp_path / "n")


def vocabularies():
    """Yield SentencePiece models, each damaged in one way."""
    toy, bundled = vocabulary(), (bundled_folder() / "multi30k-en-de"
                                  / VOCABULARY_FILE).read_bytes()
    yield from (b"", b"\0", toy[:-9], toy[: len(toy) // 2], NESTED, b"\xff" * 999)
    yield toy.replace(b"<0x04>", b"<0\xf004>")
    # a trie, whose nodes point to one another, stands behind it
    start = bundled.index(b"nmt_nfkc") + 12
    for at in range(start, start + 400, 40):
        yield bundled[:at] + b"\xff\xff\xff" + bundled[at + 3 :]


def test_a_damaged_vocabulary_is_refused_and_ends_no_interpreter():
    for content in vocabularies():
        assert "is not a SentencePiece model" in refusal(Codec, content, "it") or not content


def test_a_network_fits_its_task(folder):
    assert "has 6 intensities" in refusal(load, folder)
    edit(folder, model=TEXT.to_dict() | {"target_shape": [4, 4, 3], "tied_embeddings": False})
    assert "a translation needs" in refusal(load_checkpoint, folder)
