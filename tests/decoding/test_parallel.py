"""Lookahead on two processes is Lookahead on one: the same tokens in the same blocks, and only
tokens are exchanged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from decode_together import VARIANTS_HERE, WAYS, decode_all, model_and_source
from hypothesis import given
from hypothesis import strategies as st
from ports import own_port

from decodes import decode
from superres.config import DecodeConfig
from superres.decoding.proposers.lookahead.iteration import Layout, partition
from superres.errors import ConfigError

HERE = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    """What two processes have made."""
    folder = tmp_path_factory.mktemp("members")
    places = HERE.parent, HERE.parent / "scripts", HERE, os.environ.get("PYTHONPATH", "")
    path = os.pathsep.join(map(str, places))
    shared = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1",
              "MASTER_PORT": str(own_port()), "WORLD_SIZE": "2"}
    words = [sys.executable, str(HERE / "decode_together.py"), str(folder)]
    processes = [subprocess.Popen(words, env={**shared, "RANK": rank}, stderr=subprocess.PIPE,
                                  text=True)
                 for rank in "01"]
    messages = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], messages
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]


@pytest.fixture(scope="module")
def alone():
    return decode_all()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("variant", VARIANTS_HERE)
def test_two_processes_decode_the_same_tokens_in_the_same_blocks_as_one(members, alone, variant,
                                                                        way):
    name = f"{variant}, {way}"
    tokens, accepted = alone[name]
    assert [member["made"][name] for member in members] == [[tokens, accepted]] * 2
    if WAYS[way].is_exact:
        model, source = model_and_source(variant)
        options = replace(WAYS[way], proposer="heads", block_size=1)
        assert decode(model, source, options).tokens.tolist() == tokens


def test_only_tokens_are_gathered_and_their_messages_are_counted(members):
    """Per row and step: how many are accepted, the next one, a block of at most 5, and 5
    guesses."""
    assert [member["gathered"] for member in members] == [3 * (2 + 5 + 5)] * 2
    for member in members:
        assert member["messages"] == len(member["sizes"])  # one to the other process per call
        assert member["bytes"] == 8 * sum(member["sizes"])


@dataclass
class Stated:
    """Processes that are only spoken of."""

    rank: int
    count: int


@given(st.integers(1, 9), st.integers(1, 9), st.integers(2, 5), st.integers(1, 4))
def test_every_branch_is_read_by_one_process(window, candidates, size, count):
    count = min(count, window, candidates)
    shares = [partition(window, rank, count) for rank in range(count)]
    assert [column for part in shares for column in part] == list(range(window))
    options = DecodeConfig(proposer="lookahead", window=window, candidates=candidates)
    layouts = [Layout.of(options, size, Stated(rank, count)) for rank in range(count)]
    assert sum(len(layout.paths) for layout in layouts) == candidates
    assert sum(len(layout.guesses) for layout in layouts) == window
    whole = Layout.of(options, size, None)
    # What a process reads besides its share is the trunk of the window, and what was accepted.
    assert all(layout.tree.size <= whole.tree.size + size - 1 for layout in layouts)


@pytest.mark.parametrize(("changes", "named"), [
    ({"window": 1}, "2 processes need a window and candidates of at least 2, not 1 and 10"),
    ({"candidates": 1}, "not 10 and 1"),
])
def test_what_several_processes_cannot_do_is_refused_in_one_line(changes, named):
    model, source = model_and_source("text")
    model.peers = Stated(0, 2)
    with pytest.raises(ConfigError, match=named) as caught:
        decode(model, source, DecodeConfig(proposer="lookahead", **changes))
    assert "\n" not in str(caught.value)
