"""docs/microblocks.py: it needs Python alone, its gradients are right, exact blocks change nothing,
and the pages quote what it prints."""

from __future__ import annotations

import importlib.util
import json
import math
import random
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docs" / "microblocks.py"
PAGE = (ROOT / "docs" / "teaching.md").read_text()
RUN = """
import json, sys
names = {"__name__": "__main__"}
exec(compile(open(sys.argv[1]).read(), sys.argv[1], "exec"), names)
exec(sys.argv[2], names)
network, greedy, rows = names["trained"], [None] * 64, []
for proposer, epsilon in ("from_above", 0), *(("from_heads", epsilon) for epsilon in (1, 2, 3)):
    network.calls = 0
    found = [names["blockwise"](network, label, greedy, names[proposer], epsilon)
             for label in range(10)]
    rows.append([round(640 / sum(len(counts) for _, counts in found), 2), network.calls])
print(json.dumps(rows))
"""
"""Runs a file as `python FILE` does, then a drafter of a page and the heads within 1, 2 and 3."""
COUNTS = re.compile(r"^(\w[\w, ]*?) +(\d+\.\d\d) accepted per step, +(\d+) calls, +\d+ columns, +"
                    r"(\d+) of 640 pixels differ$", re.MULTILINE)
QUOTED = re.compile(r"^```text\n(Greedy[^`]*)^```", re.MULTILINE)
DRAFTER = re.compile(r"^    ```py\n(.*?)^    ```", re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def micro():
    spec = importlib.util.spec_from_file_location("microblocks", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_the_file_runs_without_any_package_and_prints_what_the_pages_quote():
    assert len(FILE.read_text().splitlines()) <= 250
    [drafter] = DRAFTER.findall(PAGE)
    ran = subprocess.run([sys.executable, "-I", "-S", "-c", RUN, FILE, textwrap.dedent(drafter)],
                         capture_output=True, text=True, check=False, timeout=300)
    assert (ran.returncode, ran.stderr) == (0, "")
    rows = [(name, float(mean), int(calls), int(others))
            for name, mean, calls, others in COUNTS.findall(ran.stdout)]
    assert len(rows) == 6
    for heads, left, near in (rows[:3], rows[3:]):  # greedy decoding, and sampling
        assert heads[3] == left[3] == 0 < near[3]
        assert near[1] > heads[1] > left[1] > 1.5
        assert heads[2] < 320
    losses = [float(loss) for loss in re.findall(r"digits: (\S+) bits", ran.stdout)]
    assert len(losses) == 8
    assert losses == sorted(losses, reverse=True)
    [quoted] = QUOTED.findall(PAGE)
    assert {*quoted.splitlines()} <= {*ran.stdout.splitlines()}
    said = " ".join(PAGE.split())
    (above, calls), *epsilons = json.loads(ran.stdout.splitlines()[-1])
    assert f"`from_above` has {above:.2f} accepted per step and {calls} calls" in said
    assert "{:.2f}, {:.2f} and {:.2f} accepted".format(*(mean for mean, _ in epsilons)) in said
    assert f"instead of {rows[3][1]:.2f}" in said


def test_its_gradients_are_those_of_differences(micro):
    """The softmax takes (1 + x / 1024) ** 1024 for e ** x, hence the tolerance."""
    rng, head, position, rate = random.Random(0), 2, 20, 1e-6
    network, tokens = micro.Network(rng), micro.draw(3, rng)

    def loss():
        state = network.layers(3, tokens, position)[2]
        return -sum(math.log(network.distribution(one, state)[tokens[position + one]])
                    for one in (0, head))

    class Always:
        def randrange(self, start, stop):
            return head

    tables = [[network.bias], network.place, network.recent, network.middle, *network.heads]
    chosen = [(rows, row, unit) for rows in tables for row in range(len(rows))
              for unit in range(0, micro.HIDDEN, 5) if rng.random() < 0.2 or rows is tables[0]]
    chosen += [(network.place, 3 * micro.LENGTH + position, unit) for unit in range(micro.HIDDEN)]
    expected = []
    for rows, row, unit in chosen:
        rows[row][unit] += 1e-5
        above = loss()
        rows[row][unit] -= 2e-5
        expected.append((above - loss()) / 2e-5)
        rows[row][unit] += 1e-5
    before = [rows[row][unit] for rows, row, unit in chosen]
    bias = network.bias
    network.learn(3, tokens, position, rate, Always())
    tables[0][0] = network.bias
    assert bias is not network.bias
    found = [(old - rows[row][unit]) / rate
             for old, (rows, row, unit) in zip(before, chosen, strict=True)]
    assert found == pytest.approx(expected, rel=0.02, abs=1e-4)
    assert sum(abs(one) > 1e-3 for one in expected) > 50


def test_blocks_of_any_size_are_single_tokens_and_a_wrong_proposal_costs_steps_only(micro,
                                                                                     monkeypatch):
    rng = random.Random(0)
    network = micro.Network(rng)
    noise = [rng.random() for _ in range(micro.LENGTH)]
    wanted = micro.one_by_one(network, 5, noise)
    for size in (1, 2, 6):
        monkeypatch.setattr(micro, "K", size)
        for propose in (micro.from_heads, micro.from_left):
            tokens, accepted = micro.blockwise(network, 5, noise, propose)
            assert tokens == wanted
            assert sum(accepted) == micro.LENGTH
            assert 1 <= min(accepted) <= max(accepted) <= size
