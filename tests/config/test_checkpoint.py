"""Checkpoint folders: written whole or not at all, and read strictly, also if they mean harm: every
refusal is one line that names the culprit."""

from __future__ import annotations

import itertools
import json
import os
import pickle

import pytest
import torch
from fakes import SMALL, VARIANTS, random_model, random_tokens
from safetensors.torch import load_file, save_file
from textual import CONFIG as TEXT

from superres import checkpoint
from superres.checkpoint import (
    CONFIG,
    DECODE,
    TRAINING,
    WEIGHTS,
    load_checkpoint,
    read_checkpoint,
    read_task_files,
    read_training,
    save_checkpoint,
    weights_digest,
)
from superres.config import DecodeConfig
from superres.decoding.proposers.ngram_table import NgramTable
from superres.errors import CheckpointError, OutputError
from superres.nn.model import EncoderDecoder, meta_network
from superres.nn.weights import load_weights
from superres.pipeline.auto import load
from superres.tasks.translation import VOCABULARY_FILE, Codec
from tests.config.helpers import assert_line, edit, refusal


@pytest.fixture
def model():
    return random_model(SMALL, dtype=torch.float32)


@pytest.fixture
def folder(model, tmp_path):
    save_checkpoint(model, tmp_path / "mine")
    return tmp_path / "mine"


def default_of(folder):
    return read_checkpoint(folder).decode_default("cpu")


# Written and read

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


@pytest.mark.slow
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
                         [("safetensors.torch.save_file", 1), ("os.replace", 1), ("os.replace", 2)])
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
        patch.setattr(step, full)
        said = refusal(save_checkpoint, random_model(SMALL, seed=5), folder, error=OutputError)
    assert "No space left" in said
    assert str(folder) in said
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before
    assert [p.name for p in folder.parent.iterdir()] == ["mine"]


def test_a_first_save_that_fails_leaves_nothing(model, tmp_path):
    with pytest.raises(TypeError, match="not JSON serializable"):
        save_checkpoint(model, tmp_path / "new", training=[{"stage": object()}])
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("x")
    assert "cannot write" in refusal(save_checkpoint, model, tmp_path / "file" / "below",
                                     error=OutputError)


def test_training_stages_and_other_files_are_kept_by_a_later_save(model, tmp_path):
    stages = [{"stage": "base"}, {"stage": "heads", "seconds": 3}]
    save_checkpoint(model, tmp_path / "a", training=stages)
    (tmp_path / "a" / "README.md").write_text("card")
    save_checkpoint(model, tmp_path / "a")
    assert read_training(tmp_path / "a") == stages
    assert read_training(tmp_path / "elsewhere") == []
    assert {p.name for p in (tmp_path / "a").iterdir()} == {"README.md", CONFIG, WEIGHTS, TRAINING}
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


# Weights

BIAS = "project.bias"


@pytest.mark.parametrize(("change", "message"), [
    (lambda weights: weights.pop(BIAS), f"lacks tensors: {BIAS}"),
    (lambda weights: {"surplus": torch.zeros(1)}, "extra tensors: surplus"),
    (lambda weights: {"a\x1b[31m\n" + 999 * "b": torch.zeros(1)}, "extra tensors: a [31m bbb"),
    (lambda weights: {BIAS: torch.zeros(3)}, f"another shape: {BIAS}"),
    *((lambda weights, kind=kind: {BIAS: weights[BIAS].to(kind)}, f"tensor {BIAS} is of type")
      for kind in (torch.int64, torch.bool, torch.float8_e4m3fn)),
    *((lambda weights, value=value: {BIAS: weights[BIAS].double().fill_(value)},
       f"tensor {BIAS} holds numbers that are not finite")
      for value in (float("nan"), float("-inf"), 1e300)),
])
def test_tensors_that_are_not_those_of_the_network_are_named(change, message, folder):
    weights = load_file(folder / WEIGHTS)
    changed = change(weights)
    save_file(weights | (changed if isinstance(changed, dict) else {}), folder / WEIGHTS)
    assert message in refusal(load_checkpoint, folder)


class Trap:
    def __reduce__(self):
        return exit, ("unpickled",)


def with_header(header, body=b"", length=None):
    content = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(content) if length is None else length).to_bytes(8, "little") + content + body


def entry(start, end, shape=(2,), kind="F32"):
    return {"dtype": kind, "shape": list(shape), "data_offsets": [start, end]}


@pytest.mark.parametrize("content", [
    b"", bytes(1000), pickle.dumps(Trap()), with_header({}, length=2**63),
    with_header({}, length=2**64 - 1), with_header({}, length=90),
    with_header({"a": entry(0, 8), "b": entry(4, 12)}, bytes(12)),
    with_header({"a": entry(0, 8)}, bytes(4)),
    with_header({"a": entry(0, 8, (2**40, 2**40))}, bytes(8)),
    with_header({"a": entry(0, 8, (-1,))}, bytes(8)),
    with_header({"a": entry(0, 8, kind="F\n9")}, bytes(8)), with_header(b'{"\xff": 1}'),
    with_header(b'{"a":' * 100_000), with_header({"a": entry(0, 0, (0, 2**40))}),
], ids=lambda content: repr(content[:12]))
def test_malformed_weights_are_refused_unread(content, folder):
    for name, read in ((WEIGHTS, load_checkpoint), ("n", lambda at: NgramTable.read(at / "n"))):
        (folder / name).write_bytes(content)
        assert name in refusal(read, folder)


READERS = {CONFIG: [read_checkpoint, load_checkpoint, load], WEIGHTS: [load_checkpoint, load],
           TRAINING: [read_training],
           VOCABULARY_FILE: [Codec.read, lambda at: read_task_files(at, "translation")],
           "ngrams.safetensors": [lambda at: NgramTable.read(at / "ngrams.safetensors")]}


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")],
                         ids=["pipe", "folder", "device"])
@pytest.mark.parametrize("name", READERS)
def test_what_is_no_file_is_refused_and_not_waited_for(name, make, folder):
    (folder / name).unlink(missing_ok=True)
    make(folder / name)
    for read in READERS[name]:
        assert "not a regular file" in refusal(read, folder)


# Settings

def test_a_missing_file_a_missing_folder_and_another_task_are_named(folder):
    assert "has 6 intensities" in refusal(load, folder)
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")
    assert f"{WEIGHTS} is missing" in refusal(load_checkpoint, folder)
    assert f"no checkpoint at {folder}x" in refusal(load_checkpoint, f"{folder}x")


NETWORK = SMALL.to_dict()


@pytest.mark.parametrize(("changes", "message"), [
    *(({"format_version": version}, f"format {version!r}") for version in (2, "1", None)),
    ({"model": TEXT.to_dict() | {"target_shape": [4, 4, 3], "tied_embeddings": False}},
     "a translation needs"),
    # names and shapes are compared before memory is taken: such weights would take 51 GB
    ({"model": NETWORK | {"decoder_layers": 64, "filter_size": 2**16, "width": 2**10}},
     "lacks tensors"),
    ({"model": NETWORK | {"filter_size": 2**16, "head_filter_size": 2**16,
                          "conditioning_width": 2**14}}, "another shape"),
], ids=lambda value: str(value)[:40])
def test_settings_that_the_weights_or_the_release_do_not_fit_are_refused(changes, message, folder):
    edit(folder, **changes)
    assert message in refusal(load_checkpoint, folder)


@pytest.mark.parametrize(("changes", "named"), [
    *(({name: value}, f"{CONFIG}: {name}") for name, of in NETWORK.items()
      if type(of) is int for value in (10**6 + 2**21, 10**400)),
    ({"target_shape": [2**20, 2**20, 3]}, "target_shape"),
    ({"source_shape": [2**40]}, "source_shape"),
    ({"source_shape": [1, 1, 3], "target_shape": [256, 256, 3]}, "over a source pixel"),
    ({"source_shape": [1, 1, 90000], "target_shape": [2, 1, 90000]}, "positions"),
    ({"source_shape": [1, 1, 9], "target_shape": [2, 1, 9]}, "colour channels"),
    ({"target_shape": [256, 256, 3], "width": 2**14}, "times width"),
    ({"target_shape": [4, 4]}, "one or three"), ({"target_shape": [True, 4, 3]}, "True"),
], ids=lambda value: str(value)[:40])
def test_sizes_that_no_machine_can_hold_are_refused_unbuilt(changes, named, folder, monkeypatch):
    monkeypatch.setattr(EncoderDecoder, "__init__", lambda *_: pytest.fail("built"))
    edit(folder, model=NETWORK | changes)
    assert named in refusal(load_checkpoint, folder)


def test_no_type_of_a_default_makes_a_traceback(folder):
    values = [None, "x", [], {}, True, 10**400]
    entries = [{"cpu": {name: value}} for name in DecodeConfig.__dataclass_fields__
               for value in values]
    for damaged in itertools.chain(values, ({"cpu": value} for value in values), entries):
        edit(folder, **{DECODE: damaged})
        try:
            assert isinstance(default_of(folder), DecodeConfig | None)
        except CheckpointError as error:
            assert_line(error)


@pytest.mark.parametrize("field", ["ngrams", "draft"])
def test_a_default_names_nothing_elsewhere_but_its_own_and_what_is_bundled(field, folder):
    (folder.parent / "other.safetensors").write_bytes(b"")
    (folder / "link.safetensors").symlink_to(folder.parent / "other.safetensors")
    (folder / "circle").symlink_to(folder / "circle")
    for name in (5, "/etc/hostname", "../other.safetensors", "link.safetensors", "circle", ".", "",
                 "missing", "a\0b", "\ud800", "x" * 9999, "owner/name"):
        edit(folder, **{DECODE: {"cpu": {field: name}}})
        assert "decode for cpu is damaged" in refusal(default_of, folder)
    (folder / "own").write_bytes(b"")
    edit(folder, **{DECODE: {"cpu": {"ngrams": "own", "draft": "celeba-8to32-draft"}}})
    default = default_of(folder)
    assert (default.ngrams, default.draft) == (str((folder / "own").resolve()),
                                               "celeba-8to32-draft")
