"""The bench of rules, from drawing to tables, with a rule that is not what it claims to be."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from fakes import TINY, random_model
from PIL import Image

import rules as bench
import superres
from decodes import Decoded
from rule import Rule
from superres.checkpoint import save_checkpoint
from superres.decoding.acceptance import CRITERIA
from superres.decoding.trace import RowTrace
from superres.errors import ConfigError, InvalidInputError
from superres.tasks.face_data import FacePairs, write_npz
from superres.tasks.faces import area_reduce

pytestmark = pytest.mark.slow


def white(model, source, options, keys):
    """Read two columns in each of two calls, and call everything white."""
    session, length = model.session(source, 2), model.model.config.target_length
    for position in (0, 2):
        session.step(torch.zeros(len(source), 2, dtype=torch.int64),
                     torch.full((len(source),), position))
    tokens = torch.full((len(source), length), 255)
    half = np.full((2, length // 2), 255)
    return Decoded(tokens, [RowTrace([0, length // 2], [length // 2] * 2, half) for _ in source])


class Anything(superres.Criterion):
    """Accepts everything, unlike what its rule claims."""

    def accept(self, proposed, scores, position):
        return torch.ones_like(proposed, dtype=torch.bool)


RULES = [Rule("token by token", "", "lossless", {"block_size": 1}),
         Rule("heads, exact", "", "lossless", {"block_size": 4}),
         Rule("anything passes", "", "lossless",
              {"block_size": 4, "accept": "anything"}),
         Rule("white", "", "bounded", decode=white)]


@pytest.fixture
def table(tmp_path, rng, monkeypatch, capsys):
    """Return a function that measures the rules for a network with random weights, from 4 to 12
    pixels, and returns what it prints."""
    network = replace(TINY, source_shape=(4, 4, 3), target_shape=(12, 12, 3))
    save_checkpoint(random_model(network, dtype=torch.float32), tmp_path / "toy")
    hr = rng.integers(0, 256, (2, 12, 12, 3), np.uint8)
    write_npz(FacePairs(hr, area_reduce(hr, 4, 4), np.arange(2, dtype=np.int32)),
              tmp_path / "dev.npz")
    superres.register_criterion("anything")(Anything)
    monkeypatch.setattr(sys, "argv", ["scripts/benchmark/rules.py"])
    monkeypatch.setattr(bench, "all_rules", lambda: {one.name: one for one in RULES})

    def measured(**more):
        bench.main(tmp_path / "dev.npz", tmp_path / "out", str(tmp_path / "toy"), faces=2,
                   engine="plain", **{"samples": 200, "greedy": 1, "page": None, "sheets": None,
                                      "torn": None, **more})
        return capsys.readouterr().out

    yield measured
    del CRITERIA["anything"]


def cells(text, rule):
    """Return the cells of a rule's line of each table."""
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()
            if line.startswith(f"| {rule} |")]


def test_every_rule_is_measured_and_a_wrong_one_found_out(table, tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text("<!-- table: rules-12.distances -->\n<!-- end -->\n")
    text = table(page=page, rules="heads, exact; anything passes; white")
    found = {rule.name: cells(text, rule.name) for rule in RULES}

    assert [main[:5] for main, *_ in found.values()] == [
        ["token by token", "lossless", "lossless", "1", "1.0"],
        ["heads, exact", "lossless", "lossless", "4", "4.0"],
        ["anything passes", "lossless", "not lossless", "4", "4.0"],
        ["white", "bounded", "no difference found", "-", "2.0"]]  # of bits/dim, by two faces
    assert found["token by token"][0][5:7] == ["1.00 ±0.00", "433 ±0"]
    assert found["anything passes"][0][5:7] == ["4.00 ±0.00", "109 ±0"]
    assert found["white"][0][5] == "216.00 ±0.00"
    # distances: the tokens of exact blocks are those of the baseline; no order, no chi-square
    assert found["heads, exact"][1][3:5] == ["0.0000 ±0.0000", "100"]
    assert found["white"][1][1] == "-"
    assert found["anything passes"][1][1] == "< 1e-9, < 1e-9"
    assert found["heads, exact"][2][2] == "100.0" != found["anything passes"][2][2]
    assert cells(page.read_text(), "white") == [found["white"][1]]
    assert Image.open(tmp_path / "pictures" / "rules-12.webp").size == (950, 1000)

    monkeypatch.setattr(bench, "chi_squares", None)  # nothing is measured again
    assert cells(table(), "white") == found["white"]


def test_raters_get_numbered_sheets_and_their_judgements_enter_the_table(table, tmp_path):
    few = {"rules": "white", "samples": 0, "greedy": 0}
    table(**few, sheets=tmp_path / "sheets")
    key = json.loads((tmp_path / "out" / "rules-12-key.json").read_text())
    assert sorted(key.values()) == [["token by token", 2], ["white", 2]]
    number = next(int(number) for number, (name, _) in key.items() if name == "white")
    shown = np.asarray(Image.open(tmp_path / "sheets" / f"sheet-{number:02d}.png"))
    assert (shown[20:116, 136:348] == 255).all()

    (tmp_path / "torn.json").write_text(json.dumps({number: [1]}))
    text = table(**few, torn=tmp_path / "torn.json")
    assert [cells(text, name)[1][-1] for name in ("token by token", "white")] == ["-", "50 (9-91)"]
    (tmp_path / "torn.json").write_text('{"9": [1]}')
    with pytest.raises(InvalidInputError, match="give the numbers of torn pictures by sheet"):
        table(**few, torn=tmp_path / "torn.json")


def test_an_unknown_rule_is_refused(table):
    with pytest.raises(ConfigError, match=r"token by token; heads, exact; .*, not 'SJ'"):
        table(rules="SJ")
