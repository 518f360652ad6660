"""What CONTRIBUTING says of newcomers: a module that adds one is all that it takes.

Each test writes a module of its own into a temporary folder, and starts a process that imports it before anything else.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from superres.pipeline.auto import load

SOURCE = np.asarray(Image.open(Path(__file__).parent.parent / "scripts" / "faces" / "face-1.png").resize((8, 8)))

CRITERION = '''
from superres.decoding.acceptance import CRITERIA, Exact

class EverySecond(Exact):
    """Accepts nothing after an even token, and whatever the verifier chose after an odd one."""
    rule = None

    def accept(self, proposed, scores, position):
        return super().accept(proposed, scores, position) & (proposed % 2 == 1)

CRITERIA["every-second"] = EverySecond
'''

PROPOSER = '''
import torch
from superres.decoding.proposers import PROPOSERS
from superres.decoding.proposers.base import Proposer

class Repeat(Proposer):
    """Proposes the last token again."""

    def propose(self, context, offsets):
        return context.first.unsqueeze(1).expand(-1, len(offsets))

PROPOSERS["repeat"] = Repeat
'''

ENGINE = '''
from superres.nn.engines import ENGINES
from superres.nn.engines.torch_model import StepModel

class Counting(StepModel):
    """The plain engine, which says how many sessions it made."""
    engine = "counting"

    def session(self, *arguments, **keywords):
        print("a session")
        return super().session(*arguments, **keywords)

ENGINES["counting"] = Counting
'''


def upscale(folder, module, *words):
    """Upscale a face in a process that knows the newcomer of `module`; return what it printed, and the manifest."""
    (folder / "newcomer.py").write_text(module)
    Image.fromarray(SOURCE).save(folder / "face.png")
    command = ["upscale", "face.png", "--output", "out", *words]
    code = f"import newcomer; from superres.cli.main import run; raise SystemExit(run({command!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads((folder / "out" / "manifest.jsonl").read_text().splitlines()[-1])


@pytest.fixture(scope="module")
def greedy():
    """The face in greedy decoding."""
    upscaler = load("celeba-8to32", "cpu")
    return upscaler(SOURCE[None], upscaler.options(block_size=1)).images[0]


@pytest.mark.parametrize(("module", "words"), [
    (CRITERION, ["--accept", "every-second"]), (PROPOSER, ["--proposer", "repeat", "--block-size", "4"]),
], ids=["criterion", "proposer"])
def test_a_new_criterion_or_proposer_is_a_choice_of_the_command_and_exact(module, words, greedy, tmp_path):
    _, row = upscale(tmp_path, module, *words)
    assert 1 < row["mean_accepted_block_size"] < 3.4
    assert np.array_equal(Image.open(tmp_path / "out" / "face.png"), greedy)


def test_a_new_engine_is_a_choice_of_the_command(tmp_path):
    printed, row = upscale(tmp_path, ENGINE, "--engine", "counting", "--accept", "distance", "--epsilon", "2")
    assert "a session" in printed
    assert row["status"] == "ok"
