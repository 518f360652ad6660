"""The benchmark measures what it says: real decodes in turn, floors that are least, nothing on a
busy machine."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from fakes import random_model
from PIL import Image
from textual import learned, sentences, write_checkpoint, write_pairs

from native_kernels import step_work, window
from superres.cli import benchmark as command
from superres.cli.benchmark import parse_batches
from superres.cli.main import run
from superres.config import PRESETS
from superres.errors import ConfigError
from superres.evaluation import benchmark, timing
from superres.evaluation.benchmark import (
    benchmark_markdown,
    run_benchmark,
    write_benchmark,
)
from superres.evaluation.timing import Timer
from superres.evaluation.workload import image_workload, text_workload
from superres.nn.attention import local_visible
from superres.pipeline.upscaler import Upscaler

SHAPES = {"source_shape": (4, 4, 3), "target_shape": (16, 16, 3)}
TINY = replace(PRESETS["tiny"], width=32, filter_size=64, head_filter_size=32, attention_heads=2,
               prediction_heads=2, **SHAPES)
QUICK = Timer("cpu", repeats=2, warm_up=1)


@pytest.fixture(scope="module")
def upscaler():
    return Upscaler(random_model(TINY, dtype=torch.float32), "tiny", "0123", "cpu")


@pytest.fixture(scope="module")
def sources():
    return np.random.default_rng(0).integers(0, 256, (3, *TINY.source_shape)).astype(np.uint8)


def check_report(report, unit, ways):
    assert [row["way"] for row in report["ways"] if row["batch"] == 1] == ways
    for row in report["ways"]:
        assert row[f"seconds_per_{unit}"] * row[f"{unit}s_per_second"] == pytest.approx(1)
        assert row["tokens_per_second"] > 0
        assert row["model_calls"] > 1
    greedy = [row for row in report["ways"] if row["way"] == "greedy"]
    assert {(row["speed_up"], row["mean_accepted_block_size"]) for row in greedy} == {(1.0, 1.0)}
    for row in report["steps"]:
        assert sum(value for name, value in row.items() if name.startswith("part_")) > 0
        assert row["iteration"] > 0
        assert (row["heads"] > 0) == (row["width"] > 1)
    assert json.loads(json.dumps(report)) == report


def test_images_are_decoded_in_every_way(upscaler, sources, tmp_path):
    report = run_benchmark(image_workload(upscaler, sources), (1, 2), 1, QUICK)
    check_report(report, "image", ["greedy", "exact, k = 2", "exact, adaptive", "epsilon 2, k = 2",
                                   "epsilon 2, adaptive"])
    assert [(row["batch"], row["width"]) for row in report["steps"]] == [(1, 1), (1, 2), (2, 1),
                                                                         (2, 2)]
    assert (report["task"], report["engine"], report["checkpoint"]) == ("faces", upscaler.engine,
                                                                        "tiny@0123")
    assert report["ways"][0]["model_calls"] == TINY.target_length + 1
    assert set(report["memory"]) == {"1", "2"}
    text = benchmark_markdown(report)
    assert "| 2 | epsilon 2, adaptive |" in text
    assert text.count("\n| 1 |") == 5 + 2
    paths = write_benchmark(report, tmp_path / "out")
    assert [path.name for path in paths] == ["benchmark.json", "benchmark.md", "speed.png",
                                             "step.png"]
    for path in paths[2:]:
        with Image.open(path) as picture:
            assert picture.width == 840


def test_sentences_are_decoded_in_every_way_and_searched():
    work = text_workload(learned()[torch.float32], [*sentences(9).source, "", " "])
    report = run_benchmark(work, (1, 3), 1, QUICK)
    check_report(report, "sentence", ["greedy", "exact, k = 2", "exact, k = 4", "exact, adaptive",
                                      "top-2, k = 2", "top-2, k = 4", "top-2, adaptive", "beam 4"])
    beam = [row for row in report["ways"] if row["way"] == "beam 4"]
    assert [row["mean_accepted_block_size"] for row in beam] == [None, None]
    assert "beam 4" in benchmark_markdown(report)


def test_what_does_not_fit_into_the_time_is_left_out_and_greedy_decoding_is_not(upscaler, sources,
                                                                                tmp_path):
    report = run_benchmark(image_workload(upscaler, sources), (1, 2), 3, QUICK, seconds=0)
    assert [(row["way"], row["batch"]) for row in report["ways"]] == [("greedy", 1), ("greedy", 2)]
    assert len(report["steps"]) == 1
    assert "| 2 | greedy |" in benchmark_markdown(report)
    assert len(write_benchmark(report, tmp_path)) == 4


def test_the_batches_are_those_of_the_device_unless_some_are_given(monkeypatch, upscaler, sources):
    asked = []
    monkeypatch.setattr(command, "image_work", lambda *given: asked.append(given[-1])
                        or image_workload(upscaler, sources))
    monkeypatch.setattr(benchmark, "run_benchmark", lambda work, batches, repeats, seconds:
                        asked.append((batches, repeats, seconds)) or {})
    monkeypatch.setattr(command, "echo_json", lambda report: None)
    for words in ([], ["--batches", "3,5", "--minutes", "2"]):
        assert run(["benchmark", "images", "--busy", "--json", *words]) == 0
    assert asked == [command.SOURCES, ((1, 8, 64), 3, float("inf")), 5, ((3, 5), 3, 120)]


@pytest.mark.parametrize("attention", ["local_1d", "causal"])
def test_a_step_reads_every_weight_and_the_keys_that_attention_sees(upscaler, attention):
    work, model, config = step_work(upscaler, 100), upscaler.model, upscaler.model_config
    every = sum(w.numel() for part in (model.decoder, model.project, model.neighbourhood)
                for w in part.parameters())
    assert work["weights"] == every - model.project.bias.numel()
    assert work["cache"] == 2 * config.decoder_layers * config.width * window(config, 100)
    config = replace(TINY, attention=attention)
    block = config.attention_block_length if attention == "local_1d" else config.target_length
    keys = torch.arange(config.target_length)
    for position in (0, 5, 47, 48, 95, 96, 200):
        seen = local_visible(torch.tensor([[position]]), keys, block)
        assert window(config, position) == int(seen.sum())


@pytest.mark.extended
def test_peak_memory_sees_what_is_held():
    # The peak is that of a process's whole life, so the test has a process of its own.
    code = ("import torch; from superres.evaluation.timing import peak_bytes; held = []; "
            "print(*(peak_bytes('cpu', lambda: held.append(torch.ones(count)))"
            " for count in (40_000_000, 60_000_000)))")
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                            check=True)
    first, second = map(float, result.stdout.split())
    assert first >= 0
    assert second == pytest.approx(240e6, rel=0.2)


@pytest.mark.parametrize("words", [["benchmark", "images"], ["tune", "--no-save"]])
def test_a_machine_that_is_busy_is_not_measured(words, monkeypatch, capsys):
    monkeypatch.setattr(timing, "busyness", lambda: 1.3)
    assert run(words) == 2
    assert "this machine is busy (a fixed workload took up to 1.30 times" in capsys.readouterr().err


def test_busyness_is_the_worst_over_the_best():
    clock = iter(np.cumsum([0, *[1, 0] * 17, *[3, 0] * 3]).tolist())
    assert timing.busyness(20, lambda: next(clock)) == 3


def test_the_text_command_prints_json(tmp_path, capsys):
    write_checkpoint(tmp_path / "toy")
    data = write_pairs(sentences(4), tmp_path / "pairs")
    words = ["benchmark", "text", "--data", data, "--checkpoint", tmp_path / "toy", "--batches",
             "1", "--repeats", "1", "--busy", "--json", "--output", tmp_path / "out"]
    assert run([str(word) for word in words]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["unit"] == "sentence"
    assert json.loads((tmp_path / "out" / "benchmark.json").read_text()) == report


@pytest.mark.parametrize("text", ["", "0", "1,,2", "a", "-1", "1.5"])
def test_bad_batches_are_refused_by_name(text):
    with pytest.raises(ConfigError, match="--batches takes positive whole numbers"):
        parse_batches(text)
    assert parse_batches("1, 8,64") == (1, 8, 64)


def test_numbers_out_of_range_are_refused(upscaler, sources):
    for batches, repeats, message in (((0,), 1, "batches must be positive"),
                                      ((1,), 0, "--repeats must be at least 1")):
        with pytest.raises(ConfigError, match=message):
            run_benchmark(image_workload(upscaler, sources), batches, repeats)
