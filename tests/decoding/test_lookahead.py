"""Lookahead: greedy tokens and sequential samples, bit for bit, in fewer steps, whatever is in the
pool; the distribution of direct sampling; and several processes as one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from fakes import VARIANTS, random_model, random_tokens
from hypothesis import given
from hypothesis import strategies as st
from ports import own_port

from decodes import decode, iterations, result_of
from superres.config import DecodeConfig
from superres.decoding import reference
from superres.decoding.plain.lookahead.pool import NgramPool
from superres.decoding.plain.lookahead.verification import verify_candidates
from superres.decoding.proposers.lookahead.layout import Layout, partition
from superres.decoding.proposers.lookahead.proposer import LookaheadProposer
from superres.errors import ConfigError
from superres.nn.torch_model import StepModel
from superres.sessions import StepOutput, Tree
from superres.testing import chi_square
from tests.decoding import helpers
from tests.decoding.helpers import VARIANTS_HERE, WAYS, decode_all, model_and_source
from tests.proofs.test_speculative import (
    ALPHA,
    FILTERS,
    LENGTH,
    ROWS,
    VOCABULARY,
    MarkovModel,
    MarkovSession,
    joint,
)

CAPACITY = 7
LOOKAHEAD = DecodeConfig(proposer="lookahead", window=4, block_size=3, candidates=3)
SIZES = [{"window": 1, "block_size": 2, "candidates": 1},
         {"window": 5, "block_size": 2, "candidates": 4},
         {"window": 4, "block_size": 3, "candidates": 3},
         {"window": 6, "block_size": 5, "candidates": 2}]


small = cache(model_and_source)


@cache
def sequential(variant, temperature=0.0):
    model, source = small(variant)
    options = DecodeConfig(temperature=temperature, seed=3)
    decoded = (reference.decode(model, source[row : row + 1], options, key=row)
               for row in range(len(source)))
    return [reference.tokens_of(steps) for steps in decoded]


def check(decoded, expected, block_size):
    """Compare a ragged batch with the plain decoder's tokens, and its traces with its tokens."""
    for row, trace in enumerate(decoded.traces):
        assert decoded.tokens[row, : decoded.lengths[row]].tolist() == expected[row]
        assert bool((decoded.tokens[row, decoded.lengths[row] :] == 0).all())
        assert all(1 <= accepted <= block_size for accepted in trace.accepted)
        assert trace.positions == [0, *np.cumsum(trace.accepted)[:-1].tolist()]
        assert trace.sequence.tolist() == expected[row]
        assert trace.model_calls == trace.iterations + 1


def test_the_mask_of_a_step_is_that_of_the_papers_figure():
    """Figure 2b: W = 5, N = 4, G = 2. Cells are named by stage and place after the root, candidates
    by number."""
    layout = Layout(4, range(5), 2)
    names = ["0", "a1", "a2", "a3", "b1", "b2", "b3"]
    stage = {0: "orange", 1: "green", 2: "red"}
    names += [f"{stage[int(s)]} {int(s + c)}" for s, c in layout.cells.T]
    assert len(names) == layout.tree.size == 5 * 3 + 2 * 3
    sees = {name: {names[i] for i in seen.tolist() if i >= 0}
            for name, seen in zip(names, layout.tree.ancestors, strict=True)}
    oranges = [f"orange {place}" for place in range(1, 5)]
    assert sees["red 6"] == {"red 6", "green 5", "0", *oranges}
    assert sees["red 2"] == {"red 2", "green 1", "0"}
    assert sees["green 3"] == {"green 3", "0", "orange 1", "orange 2"}
    assert sees["orange 2"] == {"orange 2", "orange 1", "0"}
    assert sees["a3"] == {"a3", "a2", "a1", "0"}
    assert sees["b1"] == {"b1", "0"}
    place = dict(zip(names, layout.tree.depth.tolist(), strict=True))
    assert all(place[name] == int(name.split()[-1].strip("ab")) for name in names)
    scored = {name for name in names[: layout.tree.scored]}
    assert scored == {"0", *names[1:7], *(f"red {place}" for place in range(2, 7))}
    assert [names[column] for column in layout.guesses] == [f"red {place}" for place in range(2, 7)]


@pytest.mark.parametrize(("variant", "sizes"), [*zip(["base aids", "plain", "text", "sentences"],
                                                     SIZES, strict=True)])
def test_exact_equals_the_plain_greedy_decoder(variant, sizes):
    model, source = small(variant)
    check(decode(model, source, DecodeConfig(proposer="lookahead", **sizes)), sequential(variant),
          sizes["block_size"])


class Hostile(NgramPool):
    """Finds what it pleases."""

    def __init__(self, result, kind):
        self.result, self.kind, self.generator = result, kind, torch.Generator().manual_seed(0)

    def __call__(self, batch, ngram_size, device):
        super().__init__(batch, ngram_size, device)
        self.position = torch.zeros(batch, dtype=torch.int64)  # until the loop is known
        return self

    def find(self, first, most):
        shape = len(first), most, self.grams.shape[2] - 1
        tokens = torch.randint(2, 6, shape, generator=self.generator)
        place = self.position.unsqueeze(1) + 1 + torch.arange(shape[2])
        right = self.result.gather(1, place.clamp(max=self.result.shape[1] - 1))
        if self.kind != "random":
            tokens[:, -1] = right
        if self.kind == "right, then wrong":
            tokens[:, -1, -1:] = (right[:, -1:] + 1) % 6
        return tokens, torch.ones(shape[:2], dtype=torch.bool)

    def add(self, grams):
        pass


@pytest.mark.parametrize(("kind", "temperature"),
                         [("random", 0.9), ("right", 0.0), ("right, then wrong", 0.9)])
def test_exact_equals_the_plain_decoder_whatever_is_in_the_pool(kind, temperature):
    model, source = small("base aids")
    expected = sequential("base aids", temperature)
    options = replace(LOOKAHEAD, temperature=temperature, seed=3, block_size=4)
    pool = Hostile(torch.tensor(expected), kind)
    for loop in iterations(model, source, options, proposer=LookaheadProposer(pool)):
        pool.position = loop.decoder.plain.state.position
    decoded = result_of(loop)
    check(decoded, expected, 4)
    if kind == "right":
        assert all(trace.accepted == [4] * 12 for trace in decoded.traces)
    if kind == "right, then wrong":
        assert all(set(trace.accepted[:-1]) == {3} for trace in decoded.traces)


@dataclass
class Stated:
    """Processes that are only spoken of."""

    rank: int
    count: int


@pytest.mark.parametrize(("changes", "named"), [
    ({"window": 0}, "window must be at least 1, not 0"),
    ({"window": 129}, "window must be at most 128, not 129"),
    ({"block_size": 0}, "block-size must be at least 1, not 0"),
    ({"block_size": 30}, "block size 30 is more than the 29"),
    ({"candidates": 0}, "candidates must be at least 1, not 0"),
    ({"candidates": 2.5}, "candidates must be a whole number, not 2.5; give one from 1 to 128"),
    ({"window": 20, "block_size": 12}, "window 20 and block size 12 reach 30 tokens ahead, more "
     "than the 29"), ({"min_block": 2}, "min-block 2"),
    ({"adaptive": True}, "cannot be adaptive"),
    ({"window": 1}, "2 processes need a window and candidates of at least 2, not 1 and 3"),
    ({"candidates": 1}, "not 4 and 1"),
])
def test_sizes_that_do_not_fit_are_refused_in_one_line(changes, named):
    config = replace(VARIANTS["text"], target_shape=(29,))
    model = StepModel(random_model(config))
    model.peers = Stated(0, 2)
    with pytest.raises(ConfigError, match=named) as caught:
        decode(model, random_tokens(config, 1)[0], replace(LOOKAHEAD, **changes))
    assert "\n" not in str(caught.value)


class Listed:
    """The latest distinct n-grams of one row; what is known moves to the end and leaves its place
    empty."""

    def __init__(self):
        self.entries = [None] * CAPACITY

    def add(self, grams):
        kept = [gram if gram not in grams[number + 1 :] else None for number,
                gram in enumerate(grams)]
        self.entries = [None if entry in grams else entry for entry in self.entries]
        self.entries = (self.entries + kept)[-CAPACITY:]

    def find(self, first, most):
        return [gram[1:] for gram in self.entries[::-1] if gram is not None
                and gram[0] == first][:most]


@given(st.data(), st.integers(1, 3), st.integers(2, 4), st.integers(1, 5))
def test_the_pool_finds_the_latest_distinct_ngrams_of_each_row(data, rows, size, most):
    pool, plain = (NgramPool(rows, size, torch.device("cpu"), CAPACITY),
                   [Listed() for _ in range(rows)])
    for _ in range(data.draw(st.integers(1, 6))):
        count = data.draw(st.integers(1, CAPACITY))
        values = st.lists(st.integers(0, 2), min_size=rows * count * size,
                          max_size=rows * count * size)
        grams = torch.tensor(data.draw(values)).view(rows, count, size)
        pool.add(grams)
        for row in range(rows):
            plain[row].add([tuple(gram) for gram in grams[row].tolist()])
        if data.draw(st.booleans()):
            row = data.draw(st.integers(0, rows - 1))
            pool.clear(torch.tensor([row]))
            plain[row].entries = [None] * CAPACITY
        for first in range(3):
            tokens, known = pool.find(torch.full((rows,), first), most)
            for row in range(rows):
                found = [tuple(gram) for gram in tokens[row][known[row]].tolist()]
                assert found == plain[row].find(first, most)
                assert bool((tokens[row][~known[row]] == 0).all())


# Sampling

SAMPLED = DecodeConfig(proposer="lookahead", block_size=3, window=2, candidates=3,
                         temperature=1.0, sampling="speculative")


@dataclass
class MarkovTree(MarkovSession):
    tree: Tree = None

    def step(self, tokens, position):
        place, scored = (position.unsqueeze(1) + torch.from_numpy(self.tree.depth),
                         slice(self.tree.scored))
        read = torch.where(place > 0, tokens, VOCABULARY)[:, scored]
        return StepOutput(self.model.table[read], None)

    def commit(self, columns):
        pass


@dataclass
class Markov(MarkovModel):
    """Reads trees as well: the score after a token depends on that token alone."""

    def tree_session(self, source, tree, kept, padding=None):
        return MarkovTree(self, tree.size, tree=tree)


MODEL = Markov(0)


class Small(NgramPool):
    """Holds few n-grams: thousands of rows with full-sized pools would take gigabytes."""

    def __init__(self, batch, ngram_size, device):
        super().__init__(batch, ngram_size, device, capacity=8)


class Crowded(Small):
    """Finds three candidates always: two that begin alike, the second one wrong most of the time,
    and another."""

    def find(self, first, most):
        tokens = torch.stack([first, first, first, (first + 1) % 4, (first + 2) % 4, first], dim=1)
        return tokens.view(-1, 3, 2), torch.ones(len(first), 3, dtype=torch.bool)


@pytest.mark.parametrize(("filters", "pool"),
                         [("plain", Small), *((filters, Crowded) for filters in FILTERS)])
def test_samples_have_the_distribution_of_direct_sampling(filters, pool):
    options = DecodeConfig(**{**SAMPLED.to_dict(), **FILTERS[filters]})
    source = torch.zeros(ROWS, 1, dtype=torch.int64)
    decoded = decode(MODEL, source, options, keys=torch.arange(ROWS),
                     proposer=LookaheadProposer(pool))
    assert decoded.tokens.shape == (ROWS, LENGTH)
    assert chi_square(decoded.tokens, joint(options, MODEL)).p > ALPHA
    if pool is Crowded:
        assert {accepted for trace in decoded.traces for accepted in trace.accepted} == {1, 2, 3}


def verify(p, candidates, verdict, committed=0.6, known=True):
    """Verify for one row; `p` gives the probabilities at each place."""
    table, candidates = torch.tensor(p), torch.tensor([candidates])
    return [int(x) for x in verify_candidates(
        lambda leader, place: table[place : place + 1], candidates,
        torch.full(candidates.shape[:2], known), torch.tensor([verdict]),
        torch.full((1, len(p)), committed))][:3]


def test_candidates_are_tried_in_turn_and_the_one_that_passes_leads():
    p = [[0.3, 0.2, 0.5], [0.1, 0.8, 0.1], [0.0, 0.0, 1.0]]
    assert verify(p, [[0, 1], [1, 1]], [0.29, 0.7]) == [0, 2, 2]
    assert verify(p, [[0, 1], [1, 1]], [0.31, 0.7]) == [1, 2, 2]
    # both begin with 0, the second one goes on
    assert verify(p, [[0, 0], [0, 1]], [0.1, 0.7]) == [1, 2, 2]
    assert verify(p, [[0, 0], [0, 1]], [0.1, 0.95]) == [0, 1, 2]  # 0 and 1 are out, 2 is left
    assert verify(p, [[0, 1], [1, 1]], [0.51, 0.0]) == [0, 0, 2]
    assert verify(p, [[0, 1], [1, 1]], [0.0, 0.0], known=False) == [0, 0, 2]
    # a token is tried once, however many candidates have it
    p = [[0.3, 0.7], [1.0, 0.0], [1.0, 0.0]]
    assert verify(p, [[0, 0], [0, 0], [0, 0]], [0.35, 0.5])[1] == 0


@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 3), st.integers(1, 4))
def test_one_of_several_processes_knows_the_result_of_a_single_one(seed, count, size, processes):
    """Candidates of few tokens share prefixes, across processes too; a prefix determines the
    distribution after it."""
    draw, rows = torch.Generator().manual_seed(seed), 4
    candidates = torch.randint(3, (rows, count, size), generator=draw)
    known = torch.arange(count) < torch.randint(count + 1, (rows, 1), generator=draw)
    verdict, committed = (torch.rand(rows, places, generator=draw, dtype=torch.float64)
                          for places in (size, size + 1))
    table = torch.rand(rows, 4 ** size, 3, generator=draw, dtype=torch.float64).pow(3)
    table /= table.sum(-1, keepdim=True)

    def run(own):
        def distribution(candidate, place):
            read = candidates[:, own][torch.arange(rows), candidate, :place] + 1
            return table[torch.arange(rows), (read * 4 ** torch.arange(place)).sum(-1)]

        # [4, rows]
        return torch.stack(verify_candidates(distribution, candidates, known, verdict, committed,
                                             own))

    alone = run(slice(None))
    parts = [partition(count, rank, min(processes, count)) for rank in range(min(processes, count))]
    # [4, processes, rows]
    results = torch.stack([run(slice(part.start, part.stop)) for part in parts], dim=1)
    assert bool(alone[3].all())
    assert bool(results[3].any(0).all())
    assert bool(((results == alone.unsqueeze(1)).all(0) | (results[3] == 0)).all())


# Several processes


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    """What two processes have made."""
    folder, root = tmp_path_factory.mktemp("members"), Path(__file__).parents[2]
    places = root, root / "scripts", root / "tests", os.environ.get("PYTHONPATH", "")
    path = os.pathsep.join(map(str, places))
    shared = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1",
              "MASTER_PORT": str(own_port()), "WORLD_SIZE": "2"}
    words = [sys.executable, helpers.__file__, str(folder)]
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
