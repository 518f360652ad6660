"""The engine in a browser, run by node: its pictures are those of the compiled engine in int8,
whatever the variant."""

from __future__ import annotations

import functools
import gzip
import json
from base64 import urlsafe_b64encode
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import native_kernels
import superres
from superres.cli.main import run
from superres.config import DecodeConfig, general_costs
from superres.errors import ConfigError
from superres.evaluation.recording import stages_of
from superres.native import abi
from superres.native.memory_image import offset_of, size_and_alignment
from superres.native.variants import WASM
from superres.pipeline.browser_export import (
    SCRIPTS,
    exact_block,
    packed_weights,
    stage_image,
    write_engine,
)
from superres.pipeline.finish import DRAWN as FINISHED
from superres.pipeline.finish import mean_of, sharpened
from superres.system.output import short_digest
from superres.tasks.faces import area_reduce, image_key
from tests.native.helpers import printed

pytestmark = [
    pytest.mark.skipif(native_kernels.node() is None, reason="no Node.js with relaxed SIMD"),
    pytest.mark.skipif(native_kernels.package("ziglang") is None, reason="no ziglang"),
]

SCRIPT = Path(__file__).with_name("browser_engine.mjs")
FACES = Path(__file__).parents[2] / "scripts" / "faces"
WAYS = {
    "exact": {}, "blocks of three": {"blockSize": 3}, "one token": {"blockSize": 1},
    "distance": {"accept": "distance", "epsilon": 3},
    "top-k": {"accept": "top-k", "topK": 4, "blockSize": 7}, "first stage": {"size": 32},
    "sample": {"temperature": 0.7, "sample": 3, "seed": 2**40 + 1},
    "sample within 2": {"temperature": 1, "accept": "distance"},
    "finished": {"finish": "mean"}, "finished first stage": {"finish": "mean", "size": 32},
    "finished samples": {"finish": "sharp", "seed": 7},
}
FINISHING = """
import {readFileSync} from "node:fs";
const {meanOf, sharpened} = await import(process.argv[1]), given = readFileSync(0, "utf8");
const bytes = numbers => Uint8Array.from(numbers);
console.log(JSON.stringify(JSON.parse(given).map(([pair, cells]) => [
  meanOf(pair.map(bytes), bytes(cells), "mean"), sharpened(bytes(pair[0]), bytes(cells)),
].map(one => [...one]))));
"""


@pytest.fixture(scope="module")
def upscaler():
    return superres.load("celeba-8to64", device="cpu", engine="native-int8")


@pytest.fixture(scope="module")
def folder(upscaler, tmp_path_factory):
    path = tmp_path_factory.mktemp("engine")
    write_engine(path, upscaler)
    return path


@pytest.fixture(scope="module")
def sources():
    """24 inputs: drawn faces, mirrored ones, brighter ones, and halves of two."""
    faces = np.stack([np.asarray(Image.open(path).convert("RGB"))
                      for path in sorted(FACES.glob("*.png"))[:6]])
    faces = area_reduce(faces, 8, 8)
    mixed = np.concatenate([faces[:, :4], faces[::-1, 4:]], axis=1)
    return np.concatenate([faces, faces[:, :, ::-1], 255 - (255 - faces) // 2, mixed])


def asked(folder, questions, variant="", kind="way"):
    """Return what the engine answers to (source, way)."""
    given = [{"cells": source.flatten().tolist(), kind: way} for source, way in questions]
    words = native_kernels.node(), SCRIPT, folder, *([variant] if variant else [])
    return json.loads(printed(*words, input=json.dumps(given)))


def expected(upscaler, source, way):
    """Return the digest and the steps of each decode of the picture that the compiled engine
    draws."""
    accept, finish, drawn = way.get("accept", "exact"), way.get("finish", "none"), {}
    sizes = [way.get("blockSize") or (exact_block(stage) if accept == "exact" else 24)
             for stage in stages_of(upscaler)]
    drawer = upscaler.at_size(way.get("size", 64))
    for size in {*sizes}:
        options = DecodeConfig(
            block_size=size, accept=accept, epsilon=way.get("epsilon", 2), top_k=way.get("topK", 2),
            consistent=True, temperature=way.get("temperature", 0.0), seed=way.get("seed", 0),
            nucleus=upscaler.default.nucleus)
        keys = [image_key(source, way.get("sample", 1))]
        drawn[size] = (drawer.decode(source[None], options, keys=keys) if finish == "none"
                       else drawer(source[None], options, finish=finish))
    numbers = [*range(drawer.stages)]
    if finish != "none":  # several pictures, and the last stage enlarges their mean
        numbers = numbers[: max(drawer.stages - 1, 1)] * FINISHED[finish] + (
            numbers[-1:] if drawer.stages > 1 else [])
    traces = [drawn[sizes[number]].all_traces(0)[at] for at, number in enumerate(numbers)]
    return short_digest(drawn[sizes[0]].images[0].tobytes()), [
        (trace.tokens, trace.iterations, list(trace.accepted)) for trace in traces]


def assert_as_compiled(upscaler, questions, answers):
    for (source, way), answer in zip(questions, answers, strict=True):
        digest, stages = expected(upscaler, source, way)
        assert answer["digest"] == digest, way
        assert [(stage["tokens"], stage["steps"], stage["accepted"])
                for stage in answer["stages"]] == stages, way


def test_the_block_size_of_exact_pictures_is_that_of_the_recorded_costs(upscaler, monkeypatch):
    for slope, least, most in ((0.1, 2, 24), (2.0, 1, 1)):
        record = general_costs(slope)
        monkeypatch.setattr(upscaler.last, "costs", {"native-int8": {"wasm32-relaxed": record}})
        assert least <= exact_block(upscaler.last) <= most
        about, _ = stage_image(upscaler.last)
        assert about["block"] == exact_block(upscaler.last)


@pytest.mark.parametrize("variant", [variant.name for variant in WASM])
def test_pictures_of_all_ways_are_those_of_the_compiled_engine(folder, upscaler, sources, variant):
    count = 2 if variant == "wasm32-relaxed" else 1  # the other one is slow
    questions = [(source, way) for source in sources[:count] for way in WAYS.values()]
    found = asked(folder, questions, variant)
    assert found["info"]["variant"] == variant
    assert_as_compiled(upscaler, questions, found["answers"])


def test_pictures_of_three_stages_are_those_of_the_compiled_engine(sources, tmp_path):
    cascade = superres.load("celeba-8to64-doubling", device="cpu", engine="native-int8")
    write_engine(tmp_path, cascade)
    questions = [(sources[0], way) for way in ({}, WAYS["sample"], WAYS["finished"])]
    answers = asked(tmp_path, questions)["answers"]
    assert [len(answer["stages"]) for answer in answers] == [3, 3, 5]
    assert_as_compiled(cascade, questions, answers)


@pytest.mark.parametrize(("kind", "number", "way"), [
    ("small", 0, {"size": 32}), ("large", 0, {}), ("finished", 0, {"finish": "mean"}),
    ("large", 3, {"temperature": 0.7, "seed": 5, "sample": 3}),
], ids=["small", "large", "finished", "sample"])
def test_a_link_has_one_picture_on_the_page_of_the_server_and_on_that_in_the_browser(
    folder, sources, kind, number, way,
):
    """The server's page loads the checkpoint with the engine that it takes on this processor by
    itself.

    Steps may differ, since the fastest blocks do.
    """
    pytest.importorskip("gradio")
    from superres.web.decoding import VisitorDecoding
    from superres.web.paint import drawn

    link = urlsafe_b64encode(sources[0].tobytes()).decode()
    decoder = VisitorDecoding(superres.load("celeba-8to64", device="cpu"))
    try:
        (face,) = drawn(decoder, kind, {"x": link, "t": 0.7, "s": 5, "n": number})["faces"]
    finally:
        decoder.close()
    (answer,) = asked(folder, [(sources[0], way)])["answers"]
    assert face["digest"] == answer["digest"]


def test_any_pictures_are_finished_with_the_bits_of_python(rng):
    """Black, white and equal ones, too, whose rests and limits meet."""
    drawn = np.concatenate([rng.integers(0, 256, (4, 2, 64, 64, 3)), rng.choice([0, 255], (
        2, 2, 64, 64, 3)), np.full((1, 2, 64, 64, 3), 255), np.zeros((1, 2, 64, 64, 3))]).astype(
            np.uint8)
    inputs = rng.integers(0, 256, (8, 8, 8, 3), np.uint8)
    inputs[::2] = rng.choice([0, 1, 254, 255], (4, 8, 8, 3))
    found = json.loads(printed(
        native_kernels.node(), "--input-type=module", "-e", FINISHING, SCRIPTS / "finish.js",
        input=json.dumps([[pair.reshape(2, -1).tolist(), source.flatten().tolist()]
                          for pair, source in zip(drawn, inputs, strict=True)])))
    for pair, source, (mean, sharp) in zip(drawn, inputs, found, strict=True):
        assert mean == mean_of(pair, source, "mean").flatten().tolist()
        assert sharp == sharpened(pair[0], source).flatten().tolist()


def test_drafts_are_those_of_the_compiled_engine_and_go_on_after_any_of_their_tokens(
    folder, upscaler, sources,
):
    from superres.decoding.drafting import drafted
    from superres.web.draft import left_of

    first, source = upscaler.at_size(32), sources[1]
    draft = functools.partial(drafted, first.scoring, first.limits,
                              first.source_tokens(source[None])[0], block_size=10, epsilon=12)
    left = left_of(source, 32, 10)
    whole = draft([], calls=3072, propose=left)
    begun, mine = whole.tokens[:1001], [whole.tokens[1001], 90, 250]
    expected = [whole, draft([], calls=3072), draft(begun, calls=30, propose=left),
                draft(begun, calls=1, propose=lambda _: mine[1:]), draft(begun, calls=0)]
    common = {"blockSize": 10, "epsilon": 12}
    questions = [{"by": "left", "calls": 3072}, {"by": "heads", "calls": 3072},
                 {"by": "left", "calls": 30, "tokens": begun},
                 {"by": mine[1:], "tokens": begun}, {"calls": 0, "tokens": begun}]
    # the memory goes on with a draft, unless another picture was drawn in it
    half = {**questions[2], "calls": 15}
    answers = asked(folder, [*((source, {**common, **one}) for one in [*questions, half])],
                    kind="drafting")
    for one, answer in zip(expected, answers["answers"], strict=False):
        for name in ("tokens", "accepted", "pending"):
            assert answer[name] == getattr(one, name), name
    then = answers["answers"][-1]
    joined = [(source, {**common, **half}), (source, {**common, **half,
                                                      "tokens": begun + then["tokens"]})]
    *_, following = asked(folder, joined, kind="drafting")["answers"]
    assert then["accepted"] + following["accepted"] == expected[2].accepted
    wrong = asked(folder, [(source, {**common, "tokens": [255] * 700})], kind="drafting")
    assert wrong["answers"] == [{"error": "RangeError: these tokens are not of this picture; "
                                          "begin again"}]


def test_24_exact_pictures_are_those_of_one_token_per_step_and_reduce_to_their_inputs(folder,
                                                                                      sources):
    assert len({source.tobytes() for source in sources}) == 24
    questions = [(source, {"blockSize": size}) for source in sources for size in (10, 1)]
    answers = asked(folder, questions)["answers"]
    for source, blocks, single in zip(sources, answers[::2], answers[1::2], strict=True):
        assert blocks["digest"] == single["digest"]
        assert blocks["stages"][1]["steps"] < single["stages"][1]["steps"] == 64 * 64 * 3
        image = np.array(blocks["pixels"], np.uint8).reshape(64, 64, 3)
        assert np.array_equal(area_reduce(image, 8, 8, is_reduced=True), source)
        # Partial pictures grow: all of a picture behind its tokens is 0. The trace is complete.
        assert blocks["pictures"] > 10
        assert blocks["beginning"]
        for stage in blocks["stages"]:
            assert sum(stage["accepted"]) == stage["tokens"] == stage["side"] ** 2 * 3
            assert all(len(block) == 10 for block in stage["proposed"])


def test_a_wrong_setting_or_input_is_named(folder, sources):
    small = np.zeros((4, 4, 3), np.uint8)
    wrong = [
        (sources[0], {"accept": "near"}, "accept is near; give exact, distance or top-k"),
        (sources[0], {"epsilon": -1}, "epsilon is -1; give a whole number from 0 on"),
        (sources[0], {"blockSize": 1.5}, "blockSize is 1.5; give a whole number from 0 on"),
        (sources[0], {"temperature": 1e-9}, "temperature is 1e-9; give 0, or at least 0.01"),
        (sources[0], {"size": 16}, "size is 16; give 32 or 64"),
        (sources[0], {"finish": "crisp"}, "finish is crisp; give none, mean or sharp"),
        (sources[0], {"finish": "mean", "temperature": 1},
         "temperature is 1; give 0 with finish, which draws at temperatures of its own"),
        (small, {}, "48 values were given; the input has 8x8 pixels of 3"),
    ]
    answers = asked(folder, [question for *question, _ in wrong])["answers"]
    assert [one["error"] for one in answers] == [f"RangeError: {message}" for *_, message in wrong]


def other_digits(content, name):
    """Return content in whose header the digits of `name` are others."""
    begin = content.index(b'"%b": "' % name) + len(name) + 5
    return content[:begin] + content[begin : begin + 16][::-1] + content[begin + 16 :]


@pytest.mark.parametrize(("change", "message"), [
    (lambda content: other_digits(content, b"self_test"), "other rounding"),
    (lambda content: content.replace(b'"format": 2', b'"format": 3'), "weights.bin has format 3, "
     "and superres.js knows 2; export the folder again"),
    (lambda content: other_digits(content, b"abi"), "of different releases; export the folder "
     "again"),
    (None, "weights.bin is damaged"),
], ids=["other numbers", "another format", "another release", "damaged"])
def test_files_that_do_not_fit_are_refused(folder, tmp_path, change, message):
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = tmp_path / "weights.bin"
    content = bytearray(weights.read_bytes())
    if change is None:
        content[len(content) // 2] ^= 1
    else:
        content = gzip.compress(change(gzip.decompress(content)), 1)
    weights.write_bytes(content)
    assert message in asked(tmp_path, [])["error"]


def test_a_network_of_another_kind_is_refused():
    with pytest.raises(ConfigError, match="a network such as that of celeba-8to32, or not with"):
        packed_weights(superres.load("celeba-8to32", device="cpu", engine="native"))


def test_weights_are_the_same_in_every_export(folder, upscaler):
    assert packed_weights(upscaler) == (folder / "weights.bin").read_bytes()


def test_addresses_have_four_bytes_and_structures_are_aligned():
    assert size_and_alignment(abi.CLinear) == (40, 8)  # three integers, three addresses, padding
    assert offset_of(abi.CLinear, "scale") == 32
    assert offset_of(abi.CSession, "size.width") == 8
    assert size_and_alignment(abi.CInput) == (24, 8)
    assert size_and_alignment(abi.CThreads) == (32, 8)


def test_a_folder_that_is_not_empty_stays_as_it_is(tmp_path, capsys):
    (tmp_path / "notes").touch()
    assert run(["export", "web", str(tmp_path)]) == 2
    assert "is not an empty folder" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]
