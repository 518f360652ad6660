"""Which proposer is the fastest, by documents of measurements."""

from __future__ import annotations

import json

import pytest

import which_proposer
from superres.errors import InvalidInputError


def row(proposer, mode, block_size, speed_up):
    return {"proposer": proposer, "mode": mode, "block_size": block_size, "speed_up": speed_up}


def document(rows, **changes):
    conditions = {"task": "faces", "checkpoint": "a@1", "weights": 4_000_000, "code": "native "
                  "x86-64-v3-0123456789ab", "batch": 8, **changes}
    return {"conditions": conditions, "machine": {"cpu": "A processor", "threads": 2},
            "rows": {"comparison": {"values": {"rows": rows}}}}


def test_the_fastest_row_of_each_proposer_counts(tmp_path, capsys):
    fast = [row("heads", "greedy", 4, 1.2), row("heads", "greedy", 8, 1.5),
            row("jacobi", "greedy", 2, 1.3), row("draft", "coupled", 4, 1.1),
            row("draft", "speculative", 4, 1.4), row("heads", "coupled", 2, 1.0)]
    slow = [row("heads", "greedy", 2, 1.04), row("jacobi", "greedy", 2, 0.7)]
    files = []
    for name, found in (("fast", document(fast)),
                        ("slow", document(slow, task="translation", code="plain", batch=1))):
        files.append(tmp_path / f"{name}.json")
        files[-1].write_text(json.dumps(found))
    which_proposer.main(files, tmp_path / "out")
    lines = [[cell.strip() for cell in line.strip("|").split("|")]
             for line in capsys.readouterr().out.splitlines()
             if line.startswith("| ")]
    assert lines[2:] == [
        ["images", "greedy", "8", "a, 4.0 M", "native x86-64-v3", "`heads`, k = 8", "1.50",
         "`jacobi`, k = 2 (1.30)"],
        ["images", "sampling", "8", "a, 4.0 M", "native x86-64-v3", "`draft`, k = 4, speculative",
         "1.40", "`heads`, k = 2 (1.00)"],
        ["text", "greedy", "1", "a, 4.0 M", "plain", "one token per step", "1.00",
         "`heads`, k = 2 (1.04)"],
    ]


@pytest.mark.parametrize("content",
                         ["{", "[]", '{"rows": []}', json.dumps(document([{"proposer": "heads"}]))])
def test_other_files_are_refused_in_one_line(tmp_path, content):
    (tmp_path / "other.json").write_text(content)
    with pytest.raises(InvalidInputError, match=r"other\.json is not a document of proposers\.py "
                       r".*name its"):
        which_proposer.main([tmp_path / "other.json"], tmp_path)
