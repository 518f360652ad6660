"""Training on two processes is training on one: the same losses at the same global batch; either resumes the other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from train_together import train

from superres.checkpoint import load_checkpoint
from superres.data import ImageBatches
from superres.errors import ConfigError

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs of one process, of two, begun by one and ended by two, and begun by two and ended by one."""
    folder = tmp_path_factory.mktemp("runs")
    train(folder / "alone")
    train(folder / "begun alone", stop_at=30)
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2",
             str(HERE / "train_together.py"), str(folder)]
    path = os.pathsep.join([str(HERE.parent), str(HERE), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert json.loads((folder / "facts.json").read_text()) == {"processes": 2, "step": 30}
    assert train(folder / "begun together").progress.step == 100
    return folder


def curve(folder):
    return [(record["step"], record["p1"], record["heads"], record["total"])
            for record in json.loads((folder / "history.json").read_text())]


def weights(folder):
    return torch.cat([weight.flatten() for weight in load_checkpoint(folder / "checkpoint").state_dict().values()])


@pytest.mark.parametrize("name", ["together", "begun alone", "begun together"])
def test_the_losses_are_those_of_one_process_from_beginning_to_end(runs, name):
    assert [step for step, *_ in curve(runs / name)] == [50, 100]
    np.testing.assert_allclose(curve(runs / name), curve(runs / "alone"), rtol=1e-4)
    torch.testing.assert_close(weights(runs / name), weights(runs / "alone"), rtol=0.02, atol=2e-3)


def test_a_batch_that_cannot_be_shared_equally_is_refused():
    low = np.zeros((5, 2, 2, 3), np.uint8)
    with pytest.raises(ConfigError, match="4 images a batch cannot be shared equally among 3 processes"):
        ImageBatches(low, low, 4, 0).batch(0, 1, 3)
