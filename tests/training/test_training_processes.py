"""Training on two processes is training on one: the same losses at the same global batch; either
resumes the other."""

from __future__ import annotations

import json
import signal

import numpy as np
import pytest
import torch
from ports import own_port
from training_runs import forked, train, train_alone, train_and_die, train_together

from superres.checkpoint import load_checkpoint
from superres.errors import ConfigError
from superres.nn.weights import read_tensors
from superres.training import saved_state
from superres.training.data import ImageBatches


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs of one process, of two, begun by one and ended by two, and begun by two and ended by
    one."""
    folder = tmp_path_factory.mktemp("runs")
    ended(forked(train_alone, folder))
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(own_port()), "WORLD_SIZE": "2",
              "LOCAL_WORLD_SIZE": "2"}
    members = [forked(train_together, folder, {**shared, "RANK": rank, "LOCAL_RANK": rank})
               for rank in "01"]
    ended(*members)
    assert json.loads((folder / "facts.json").read_text()) == {"processes": 2, "step": 4}
    ended(forked(train, folder / "begun together"))
    return folder


def ended(*processes, exitcode=0):
    for process in processes:
        process.join(1800)
    assert [process.exitcode for process in processes] == [exitcode] * len(processes)


def curve(folder):
    return [(record["step"], record.get("p1", 0.0), record.get("heads", 0.0), record["total"])
            for record in json.loads((folder / "history.json").read_text())]


def weights(folder):
    return torch.cat([weight.flatten()
                      for weight in load_checkpoint(folder / "checkpoint").state_dict().values()])


@pytest.mark.parametrize(("name", "alone"), [
    ("together", "alone"), ("begun alone", "alone"), ("begun together", "alone"),
    ("one head together", "one head alone"),
])
def test_the_losses_are_those_of_one_process_from_beginning_to_end(runs, name, alone):
    assert [step for step, *_ in curve(runs / name)] == list(range(2, 9, 2))
    np.testing.assert_allclose(curve(runs / name), curve(runs / alone), rtol=1e-9)
    torch.testing.assert_close(weights(runs / name), weights(runs / alone))


def test_a_run_killed_while_it_saves_equals_an_uninterrupted_one_to_the_bit(runs, tmp_path):
    # At the second save: while a file is written, and between the two renames.
    for owner, name, call in ((saved_state.__name__, "save_file", 5), ("os", "replace", 4)):
        ended(forked(train_and_die, tmp_path, owner, name, call), exitcode=-signal.SIGKILL)
    assert not (tmp_path / "state").exists()
    assert json.loads((next(tmp_path.glob("*state*/state.json"))).read_text())["step"] > 0
    ended(forked(train, tmp_path))
    for name in ("model", "averaged", "optimizer"):
        one, other = (read_tensors(folder / "state" / f"{name}.safetensors")
                      for folder in (tmp_path, runs / "alone"))
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one), name


def test_a_batch_that_cannot_be_shared_equally_is_refused():
    low = np.zeros((5, 2, 2, 3), np.uint8)
    with pytest.raises(ConfigError, match="4 images a batch cannot be shared equally among 3 "
                       "processes"):
        ImageBatches(low, low, 4, 0).batch(0, 1, 3)
