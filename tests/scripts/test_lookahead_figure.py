"""The figures of Lookahead: the equations, Jacobi decoding of the whole target, and the command
that measures them."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from fakes import NATIVE, TINY, VARIANTS, random_model, random_tokens
from PIL import Image
from textual import sentences, write_checkpoint, write_pairs

import tables
from cost_model import expected_tokens
from decodes import decode
from lookahead import fitted, predicted
from measurements import values
from superres.checkpoint import save_checkpoint
from superres.config import DecodeConfig
from superres.errors import ConfigError
from superres.native import build
from superres.nn.torch_model import StepModel
from superres.tasks.face_data import FacePairs, write_npz
from superres.tasks.faces import FaceTask


@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.9])
def test_one_guess_is_equation_4_and_several_are_the_longest_of_independent_ones(alpha):
    for gamma in range(1, 6):
        assert expected_tokens(alpha, gamma, 1) == pytest.approx((1 - alpha ** (gamma + 1))
                                                                 / (1 - alpha))
    passed = np.random.default_rng(0).random((40_000, 3, 4)) < alpha  # b = 3 guesses of 4 tokens
    longest = 1 + passed.cumprod(2).sum(2).max(1)
    assert expected_tokens(alpha, 4, 3) == pytest.approx(longest.mean(), abs=0.03)


def test_the_fit_finds_the_parameters_of_equation_7():
    sizes = [(size, width) for size in (2, 3, 5) for width in (1, 2, 4, 8)]
    rows = [{"block_size": size, "candidates": width,
             "step_compression": predicted(0.3, 2.5, size - 1, width)}
            for size, width in sizes]
    assert fitted(rows) == pytest.approx({"alpha": 0.3, "f": 2.5, "error": 0}, abs=1e-9)
    rows[0]["step_compression"] += 0.5
    assert fitted(rows)["error"] > 0.05


@pytest.mark.parametrize("variant", ["text", "base aids"])
def test_jacobi_decoding_with_a_block_of_the_whole_target_is_algorithm_1(variant):
    network, (source, _) = random_model(VARIANTS[variant]), random_tokens(VARIANTS[variant], 1)
    length, guesses = network.config.target_length, []
    guess = torch.zeros(1, length, dtype=torch.int64)
    while not guesses or not torch.equal(guess, guesses[-1]):
        guesses.append(guess)
        guess = network.scores(network(source, guess)).argmax(-1)
    decoded = decode(StepModel(network), source, DecodeConfig(block_size=length, proposer="jacobi"))
    assert torch.equal(decoded.tokens, guess)
    # the start makes the first guess of all tokens
    assert decoded.traces[0].iterations == len(guesses) - 1
    assert 1 < len(guesses) - 1 <= length


@pytest.mark.slow
@pytest.mark.skipif(build.compiler() is None, reason="no C++ compiler on this machine")
def test_the_command_measures_text_images_and_processes(tmp_path, capsys):
    toy = replace(TINY, **NATIVE, source_shape=(3, 3, 3), target_shape=(6, 6, 3))
    write_checkpoint(tmp_path / "translator")
    save_checkpoint(random_model(toy, dtype=torch.float32), tmp_path / "upscaler")
    write_pairs(sentences(3), tmp_path / "val")
    hr = np.random.default_rng(0).integers(0, 256, (1, 6, 6, 3), np.uint8)
    write_npz(FacePairs(hr, FaceTask(3, 6).both_sizes(hr)[1], np.arange(1, dtype=np.int32)),
              tmp_path / "dev.npz")
    tables.lookahead(tmp_path / "out", tmp_path / "val", tmp_path / "dev.npz",
                     str(tmp_path / "translator"), str(tmp_path / "upscaler"), "native", 3, 1,
                     "1,2", True)
    made = json.loads((tmp_path / "out" / "lookahead.json").read_text())
    for task in ("text", "images"):
        rows = [row for found in values(made, f"{task} ").values() for row in found.get("rows", ())]
        assert all(row["equal"] == 1 and row["low"] <= row["step_compression"] <= row["high"]
                   for row in rows)
        assert max(row["step_compression"] for row in rows) > 1
    shared = [row for count in (1, 2) for row in values(made)[f"{count} processes"]["rows"]]
    assert [(row["processes"], row["sampling"], row["messages"]) for row in shared] == [
        (count, sampling, count - 1) for count in (1, 2) for sampling in ("greedy", "coupled",
                                                                          "speculative")]
    assert len({row["tokens"] for row in shared if row["sampling"] == "greedy"}) == 1
    assert shared[3]["columns"] < shared[0]["columns"] < 2 * shared[3]["columns"]
    printed = capsys.readouterr().out
    assert "| W = G | N = 2 | N = 4 |" in printed
    assert "| greedy | 4 | 2 |" in printed
    with Image.open(tmp_path / "out" / "lookahead.png") as image:
        assert image.width > 900


def test_numbers_of_processes_that_are_none_are_refused_in_one_line(tmp_path):
    with pytest.raises(ConfigError, match="--processes takes positive whole numbers such as 1,2,4, "
                       "not '1,0'"):
        tables.lookahead(tmp_path, tmp_path, tmp_path, processes="1,0")
