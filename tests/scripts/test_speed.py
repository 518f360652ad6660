"""The command of the speed tables: what counts, who takes turns, and what is said of the
figures."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from fakes import TINY, random_model
from PIL import Image
from textual import CONFIG, sentences, vocabulary, wordy

import first_use
import measurements
import peers
import speed
import speed_tables
import speed_worker
from superres.checkpoint import save_checkpoint
from superres.config import DEFAULT_CASCADE, DEFAULT_CHECKPOINT
from superres.errors import ConfigError
from superres.system.output import cache_folder
from superres.tasks.translation import VOCABULARY_FILE

FACES = replace(TINY, source_shape=(4, 4, 3), target_shape=(8, 8, 3), prediction_heads=2,
                head_layer="sequential")
CASE = speed.Case("c", {"a": ("native", {}), "b": ("native", {"block_size": 1})}, [1, 2, 3], 1, 2)


def taken(seconds, cpu=1.0, inputs=1, **more):
    return {"seconds": seconds, "cpu": cpu, "inputs": inputs, "steps": [10, 5], "tokens": [10, 20],
            **more}


def document(**rows):
    """Return a document of two variants, in which a decode takes the seconds of its row, by way and
    variant."""
    return {"conditions": {"variants": {"AVX-512": "x86-64-v4", "AVX2 forced": "x86-64-v3"},
                           "processor": "Zen", "rounds": 3, "busy": False, "beside": None},
            "machine": {"cores": 2}, "date": "d", "commit": "c",
            "rows": {name.replace("__", ", ").replace("_", "-"): {"values": {
                way: dict(zip(("AVX-512", "AVX2 forced"), found, strict=True)) for way,
                found in own.items()}}
                     for name, own in rows.items()}}


def test_the_shortest_round_counts_after_a_warm_up_and_all_take_turns():
    asked, seconds = [], iter((0.1, 0.1, 0.1, 0.1, 3, 9, 5, 7, 4, 8, 2, 7.5))

    def worker(label):
        def decode(**question):
            asked.append((label, question["given"], len(question["inputs"])))
            return {"seconds": next(seconds), "cpu": 0, "texts": ["x"]}
        return decode

    found = speed.measure(CASE, {"new": worker("new"), "old": worker("old")})
    turns = [(label, given) for given in ({}, {"block_size": 1}) for label in ("new", "old")]
    assert asked == [(*turn, count) for count in (1, 3, 3) for turn in turns]
    assert {way: {label: one["seconds"] for label, one in by_label.items()} for way,
            by_label in found.items()} == {
                "a": {"new": 3, "old": 8}, "b": {"new": 2, "old": 7}}
    assert all(one == {"seconds": one["seconds"], "cpu": 0, "inputs": 3} for ways in found.values()
               for one in ways.values())


def test_a_worker_decodes_faces_and_counts_their_steps(tmp_path):
    save_checkpoint(random_model(FACES, dtype=torch.float32), tmp_path / "toy")
    faces = np.random.default_rng(0).integers(0, 256, (3, *FACES.source_shape)).tolist()
    for given, at_once in (({"block_size": 1}, 1), ({}, 3)):
        found = speed_worker.answer(str(tmp_path / "toy"), "native-int8", given, faces, at_once, 1,
                                    None)
        assert found["tokens"] == [3 * FACES.target_length]
        assert found["steps"] == found["tokens"] if given else found["steps"] <= found["tokens"]
        assert found["seconds"] > 0
        assert found["cpu"] > 0
        json.dumps(found)


@pytest.mark.parametrize("changes",
                         [{}, {"norm": "post"}, {"encoder_layers": 2, "prediction_heads": 1}])
def test_a_worker_translates_as_ctranslate2_does_with_the_same_weights(changes, tmp_path):
    pytest.importorskip("ctranslate2", reason="ctranslate2 is missing: pip install -e '.[peers]'")
    lines, toy = list(sentences(5).source), tmp_path / "toy"
    torch.manual_seed(0)
    save_checkpoint(wordy(replace(CONFIG, **changes), 2, torch.float32), toy, dtype=torch.float32,
                    files={VOCABULARY_FILE: vocabulary()})
    texts = [speed_worker.answer(str(toy), engine, {"block_size": 1}, lines, at_once, 1, 4)["texts"]
             for engine, at_once in (("native", 1), ("native", 5), ("CTranslate2 float32", 5),
                                     ("CTranslate2 float32", 1))]
    assert texts[1:] == texts[:1] * 3
    assert len(texts[0]) == 5


def test_a_network_that_ctranslate2_does_not_know_gets_one_line(tmp_path):
    save_checkpoint(random_model(FACES), tmp_path / "toy")
    with pytest.raises(ConfigError, match="CTranslate2 does not know the network of toy"):
        peers.ctranslate2_of(str(tmp_path / "toy"), "float32")


def test_the_network_of_transformers_has_our_size():
    pytest.importorskip("transformers", reason="transformers is missing: pip install -e '.[peers]'")
    ours = sum(weight.numel() for weight in random_model(TINY).decoder.parameters())
    assert (sum(weight.numel() for weight in peers.gpt2(TINY).transformer.h.parameters())
            == pytest.approx(ours, rel=0.35))


@pytest.mark.slow
def test_a_process_decodes_by_the_variant_that_it_is_given_and_its_end_is_told(tmp_path):
    save_checkpoint(random_model(FACES, dtype=torch.float32), tmp_path / "toy")
    (variant, *_) = speed.chosen_variants("").values()
    question = {"checkpoint": str(tmp_path / "toy"), "engine": "native", "given": {}, "at_once": 1,
                "threads": None, "inputs": np.zeros((1, *FACES.source_shape), int).tolist(),
                "batch_size": None}
    with speed.worker(speed.ROOT, variant) as decode:
        assert decode(**question)["tokens"] == [FACES.target_length]
    with speed.worker(speed.ROOT, "x86-64-v99") as decode, pytest.raises(ConfigError,
                                                                         match="ended too early"):
        decode(**question)


@pytest.mark.slow
def test_the_first_use_is_that_of_the_command(tmp_path):
    save_checkpoint(random_model(FACES, dtype=torch.float32), tmp_path / "toy")
    Image.new("RGB", (4, 4), "teal").save(tmp_path / "face.png")
    found = first_use.upscale(cache_folder().parent, tmp_path / "face.png", "--checkpoint",
                              str(tmp_path / "toy"), "--block-size", "1")
    assert found["steps"] == found["tokens"] == FACES.target_length
    for process in (found, first_use.page(cache_folder().parent)):
        assert min(process["seconds"], process["cpu"]) > 0
        assert process["memory"] > 1e7


def test_sentences_say_what_their_tables_say():
    ways = {"native-int8, greedy": (taken(4), taken(6)), "native-int8, exact, the "
            "default": (taken(2), taken(5)), "native-int8, epsilon 2": (taken(1), taken(4)),
            "native, greedy": (taken(5), taken(5)), "native, exact, the "
            "default": (taken(3), taken(4))}
    text = {f"{engine}, {way}": (taken(9, cpu), taken(9, 2 * cpu)) for engine, way, cpu in (
        ("native-int8", "greedy", 1), ("native-int8", "the default", 0.5),
        ("CTranslate2 int8", "greedy", 2))}
    text = {name: tuple({**one, "bleu": 30.0} for one in both) for name, both in text.items()}
    cases = {f"never_slower__native__faces__{size}": {
        "greedy": (taken(9, 1), taken(9, 1)), "default": (taken(9, 0.5), taken(9, ratio))}
        for size, ratio in ((1, 0.99), (64, 1.04))}
    found = document(**{f"faces__{DEFAULT_CASCADE}": ways}, text__alone=text, text__together=text,
                     **cases)
    assert speed_tables.face_gains(found) == (
        "**With AVX-512, the fastest exact decoding is 2.00 times as fast as the fastest greedy "
        "decoding, and epsilon 2 4.00 times; with AVX2 forced, 1.25 and 1.25 times**.")
    assert "a caption in 0.25 and 0.25 times the CPU time" in speed_tables.text_gains(found)
    assert speed_tables.slowest(found) == ("In 4 cases of 1 to 64 faces or captions, the default "
                                           "takes at most 1.04 times the CPU time of greedy "
                                           "decoding.")
    shown = speed_tables.views(found)
    assert "| `native` | exact, the default | 3.000 | 4.000 | 1.00 and 4.00 |" in shown["faces-64"]
    assert "| `native` | faces | 64 | 1000.00 (0.50) | 1000.00 (1.04) |" in shown["never-slower"]
    assert "| CTranslate2 int8 | greedy | 2000.00 (1.00) |" in shown["text"]
    assert not {"readme", "beside", "peers", "batch"} & set(shown)


def test_times_beside_another_checkout_are_ratios_to_the_fastest_variant():
    found = document(faces__x={"native, greedy": (taken(2), taken(3))})
    found["conditions"]["beside"] = "old"
    found["rows"]["faces, x"]["values"]["native, greedy"]["old"] = taken(5)
    assert ("| faces, x | native, greedy | 5000.00 | 2000.00 | 2.50 "
            "|" in speed_tables.beside_table(found))


@pytest.mark.parametrize(("vendor", "family", "model", "ending"), [
    ("AuthenticAMD", 26, 2, ", Zen 5"), ("AuthenticAMD", 25, 17, ", Zen 4"),
    ("AuthenticAMD", 25, 1, ", Zen 3"), ("AuthenticAMD", 23, 49, ", Zen 2"),
    ("GenuineIntel", 6, 207, "")])
def test_a_processor_of_amd_has_its_class_in_its_name(vendor, family, model, ending, tmp_path):
    (tmp_path / "cpuinfo").write_text(f"vendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: "
                                      f"{model}\nmodel name\t: any\n")
    assert speed.processor_class(tmp_path / "cpuinfo") == speed.cpu_name() + ending


@pytest.mark.parametrize(("given", "message"), [
    ({"only": "faces,none"}, "--only takes faces, batch, text, never-slower, first-use, peers, not "
     "faces,none"),
    ({"only": "faces", "publish": True}, "--publish needs all parts"),
    ({"variants": "x86-64-v9"}, "variant x86-64-v9 does not run here; those that do: ")])
def test_what_cannot_be_measured_is_refused_before_anything_is(given, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        speed.main(tmp_path / "faces", tmp_path / "text", tmp_path / "out", busy=True, rounds=1,
                   beside=None, **{"only": ",".join(speed.PARTS), "publish": False, "variants": "",
                                   **given})
    assert not (tmp_path / "out").exists()


def test_the_pages_show_the_whole_measurement():
    document = json.loads((measurements.MEASUREMENTS / "speed.json").read_text())
    assert {row.partition(", ")[0] for row in document["rows"]} == set(speed.PARTS)
    assert f"faces, {DEFAULT_CHECKPOINT}" in document["rows"]
