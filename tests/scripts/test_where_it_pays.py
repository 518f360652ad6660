"""Where blocks pay: the expected speed-up, the choice of W, and the check by whole decodes."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from fakes import changed, random_model
from PIL import Image

import where_it_pays
from superres.config import PRESETS
from superres.decoding import cost
from superres.pipeline.upscaler import Upscaler
from superres.tasks.faces import FaceTask
from where_it_pays import LAYERS, best_block, network_of, speed_ups, views, whole_decodes

SHARES = [1.0, 0.5, 0.25, 0.25]


def document(survival, *costs):
    return {"rows": {"survival": {"values": survival},
                     **{f"costs {number}": {"values": row} for number, row in enumerate(costs)}}}


def cell(costs, **more):
    return {"engine": "native", "network_width": 128, "layers": 4, "weights": 8e5, "batch": 1,
            "costs": costs, **more}


def test_the_best_block_has_the_largest_expected_speed_up():
    assert speed_ups(SHARES, [2.0, 2.0, 4.0, 8.0]) == [1.0, 1.5, 1.75 / 2, 2.0 / 4]
    for costs, best in (
            ([1, 1, 1, 1], (4, 2.0)),  # width costs nothing
            ([1, 1.2, 1.3, 2], (3, 1.75 / 1.3)),
            ([1, 1.5, 1.75, 2], (1, 1.0)),  # equal speed
            ([1, 2, 3, 4], (1, 1.0))):  # T grows faster than the tokens
        assert best_block(SHARES, costs) == pytest.approx(best)


@pytest.mark.parametrize("width", [32, *LAYERS, 2048])
def test_networks_keep_their_proportions(width):
    base = PRESETS["base"]
    config = network_of(base, width)
    assert config.filter_size / width == base.filter_size / base.width
    assert config.head_filter_size / width == base.head_filter_size / base.width
    assert width / config.attention_heads == base.width / base.attention_heads
    assert config.decoder_layers == LAYERS[min(max(width, 128), 1024)]


def test_the_table_has_the_block_size_or_greedy():
    survival = {"exact": [1.0, 0.1], "epsilon 2": [1.0, 0.9]}
    text = views(document(survival, cell([1.0, 1.6]),
                          cell([1.0, 1.0], network_width=256, layers=6)))["expected"]
    assert "| exact | 1 | native | greedy | 1.10 (W = 2) |" in text
    assert "| epsilon 2 | 1 | native | 1.19 (W = 2) | 1.90 (W = 2) |" in text
    assert "width 128, 4 layers, 0.8 M | width 256, 6 layers, 0.8 M |" in text


def test_whole_decodes_are_compared_without_and_with_the_encoder(monkeypatch):
    monkeypatch.setattr(where_it_pays, "CHECKED_ROWS", 2)
    # the warm-up, and two images
    seconds = {1: [9.0, 4.0, 6.0], 2: [9.0, 3.5, 2.5], 3: [9.0, 3.0, 4.0]}

    def upscaler(images, options):
        return SimpleNamespace(seconds=seconds[options.block_size].pop(0))

    upscaler.engine, upscaler.model_config = "native", SimpleNamespace(width=128,
                                                                       prediction_heads=3)
    monkeypatch.setattr(where_it_pays, "_encoder_seconds", lambda *_: 1.0)
    survival = {"exact": [1.0, 0.8, 0.1]}
    cells = [cell([1.0, 1.2, 2.0]), cell([1.0, 1.0, 1.0], engine="plain"),
             cell([1.0, 1.0, 1.0], network_width=256), cell([1.0, 1.0, 1.0], batch=3)]
    rows = whole_decodes(upscaler, torch.zeros(2).numpy(), document(survival, *cells))["rows"]
    assert [(row["block_size"], row["is_best"]) for row in rows] == [(1, False), (2, True),
                                                                     (3, False)]
    assert [row["predicted"] for row in rows] == pytest.approx([1, 1.5, 0.95])
    assert [row["decoder"] for row in rows] == pytest.approx([1, 4 / 2, 4 / 2.5])
    assert [row["whole"] for row in rows] == pytest.approx([1, 5 / 3, 5 / 3.5])


@pytest.mark.parametrize(("seconds", "burst"), [(0.0001, cost.BURST), (0.001, cost.BURST),
                                                (0.03, 1), (0.5, 1)])
def test_bursts_of_long_iterations_are_one_iteration(monkeypatch, seconds, burst):
    now, counts = [0.0], []

    def run_from(loop, position, count):
        counts.append(count)
        now[0] += seconds * count
        return count

    monkeypatch.setattr(cost, "run_from", run_from)
    monkeypatch.setattr(cost, "time", changed(time, thread_time=lambda: now[0]))
    loop = SimpleNamespace(plain=SimpleNamespace(state=SimpleNamespace(length=8)))
    assert cost._least_seconds(loop, torch.device("cpu")) == pytest.approx(seconds)
    assert counts[0] == 1  # completes a block of the previous size
    assert set(counts[1:]) == {burst}
    assert len(counts) == 2 or seconds * sum(counts[1:-1]) < cost.TIMED_SECONDS / cost.ROUNDS


def test_the_script_writes_the_report_the_tables_and_the_chart(monkeypatch, tmp_path, capsys):
    config = replace(PRESETS["tiny"], prediction_heads=2, head_filter_size=32)
    model = random_model(config, dtype=torch.float32)
    monkeypatch.setattr(Upscaler, "load", lambda checkpoint, device, engine="auto": Upscaler(
        model, "tiny", "0123", device, engine=engine))
    monkeypatch.setattr(where_it_pays, "CHECKED_ROWS", 1)
    page = tmp_path / "page.md"
    page.write_text("Head\n\n<!-- table: where-blocks-pay.expected -->\n\nold\n\n<!-- end -->\n")
    monkeypatch.setattr(where_it_pays, "face_task", lambda _: FaceTask.of(config))
    where_it_pays.main(tmp_path / "out", None, 4, "tiny", "cpu", "auto", "64", "1,2", True, page)
    made = json.loads((tmp_path / "out" / "where-blocks-pay.json").read_text())
    costs = [row["values"] for name, row in made["rows"].items() if name.startswith("costs ")]
    assert [(row["network_width"], row["batch"]) for row in costs] == [(32, 1), (32, 2), (64, 1),
                                                                       (64, 2)]
    checked = made["rows"]["checked auto"]["values"]["rows"]
    assert {(row["batch"], row["criterion"]) for row in checked} == {(1, "exact"), (1, "epsilon 2")}
    assert made["rows"]["survival"]["values"]["exact"][0] == 1
    expected = views(made)["expected"]
    assert expected in capsys.readouterr().out
    assert (page.read_text() == "Head\n\n<!-- table: where-blocks-pay.expected "
            f"-->\n\n{expected}\n\n<!-- end -->\n")
    with Image.open(tmp_path / "pictures" / "where-blocks-pay.webp") as picture:
        assert picture.width > 600
