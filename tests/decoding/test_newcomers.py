"""A module that registers a criterion, a proposer or an engine, and that is imported first, is all
that these need."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from fakes import TINY, random_model
from PIL import Image

from superres.checkpoint import save_checkpoint
from superres.pipeline.upscaler import Upscaler

SOURCE = np.asarray(Image.open(Path(__file__).parents[2] / "scripts" / "faces"
                               / "face-1.png").resize((8, 8)))

NEWCOMERS = '''
import superres

@superres.register_criterion("every-second")
class EverySecond(superres.Criterion):
    """Accepts nothing after an even token, and whatever the verifier chose after an odd one."""

    def accept(self, proposed, scores, position):
        return (proposed == scores.argmax(-1)) & (proposed % 2 == 1)

@superres.register_proposer("repeat")
class Repeat(superres.Proposer):
    """Proposes the last token again."""

    def propose(self, context, offsets):
        return context.first.unsqueeze(1).expand(-1, len(offsets))

@superres.register_engine("counting")
class Counting(superres.StepModel):
    """The plain engine, which says how many sessions it made."""

    def session(self, *arguments, **keywords):
        print("a session")
        return super().session(*arguments, **keywords)
'''


def test_a_new_criterion_proposer_or_engine_is_a_choice_of_the_command_and_exact(tmp_path):
    """One process decodes with each of them."""
    (tmp_path / "newcomer.py").write_text(NEWCOMERS)
    Image.fromarray(SOURCE).save(tmp_path / "face.png")
    save_checkpoint(random_model(replace(TINY, target_shape=(16, 16, 3)), dtype=torch.float32),
                    tmp_path / "tiny")
    ways = {"criterion": ["--accept", "every-second"],
            "proposer": ["--proposer", "repeat", "--block-size", "4"],
            "engine": ["--engine", "counting", "--accept", "distance", "--epsilon", "9"]}
    commands = [["upscale", "face.png", "--checkpoint", "tiny", "--output", way, *words] for way,
                words in ways.items()]
    code = ("import newcomer; from superres.cli.main import run; "
            f"raise SystemExit(max([run(command) for command in {commands!r}]))")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "a session" in done.stdout
    upscaler = Upscaler.load(tmp_path / "tiny", "cpu")
    greedy = upscaler(SOURCE[None], upscaler.options(block_size=1)).images[0]
    for way in ways:
        row = json.loads((tmp_path / way / "manifest.jsonl").read_text().splitlines()[-1])
        assert row["status"] == "ok"
        assert row["mean_accepted_block_size"] > 1
        if way != "engine":
            assert np.array_equal(Image.open(tmp_path / way / "face.png"), greedy)
