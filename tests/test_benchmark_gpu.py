"""The benchmark for GPUs on a CPU, with a recorder in place of CUDA graphs: every measurement is made and shown."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from fakes import TINY, random_model
from recording import Recorded

import gpu
from superres.config import PRESETS, DecodeConfig
from superres.nn.engines.cuda_graph import GraphModel
from superres.pipeline.upscaler import Upscaler

CONFIG = replace(PRESETS["tiny"], prediction_heads=2, head_layer="sequential", head_filter_size=32, free_scores=False)


def captured(model, end_token=None, engine="graph"):
    return GraphModel(model, end_token, capture=Recorded)


@pytest.fixture
def upscaler(monkeypatch):
    """A network that runs, as all networks of the script, as captured iterations on the CPU."""
    monkeypatch.setattr(gpu, "step_model", captured)
    made = Upscaler(random_model(CONFIG, dtype=torch.float32), "tiny", device="cpu", engine="plain")
    made.scoring = captured(made.model)
    return made


SOURCE = np.random.default_rng(0).integers(0, 256, CONFIG.source_shape).astype(np.uint8)


def test_a_network_of_24_heads_is_captured_at_every_width_without_and_with_sampling(upscaler):
    before = Recorded.made
    costs = gpu.wide_costs(upscaler, SOURCE)
    assert list(costs) == ["greedy", "sampled"]
    for seconds in costs.values():
        assert len(seconds) == gpu.WIDE_HEADS == gpu.WIDE_WIDTHS[-1]
        assert 0 < seconds[0] <= seconds[-1]
    assert Recorded.made - before >= 2 * len(gpu.WIDE_WIDTHS)


def test_sampling_in_captured_iterations_reads_nothing(upscaler, monkeypatch):
    """The recorder refuses any read by the host that an iteration does."""
    monkeypatch.setattr(gpu, "ITERATIONS", 4)
    figures = gpu.loop_profile(upscaler, SOURCE, DecodeConfig(2, temperature=0.9))
    assert figures["iteration"] > 0
    assert figures["kernels"] == 0  # no GPU


def test_a_stream_of_images_is_decoded():
    plain = Upscaler(random_model(TINY, dtype=torch.float32), "tiny", device="cpu")
    options = DecodeConfig(8, accept="distance", epsilon=255)
    assert gpu.throughput(plain, SOURCE[None], options, 1)["images_per_second"] > 0


def test_the_targets_and_tables_show_every_measurement():
    def single(name, speed_up):
        return {"way": name, "seconds": 0.05, "accepted": 2.0, "speed_up": speed_up, "of_accepted": speed_up / 2,
                "equal_to_plain_greedy": 1.0}

    profiled = {"iteration": 1e-3, "kernel_seconds": 5e-4, "kernels": 9.0, "reads": 0}
    stream = {"rows": 64, "images": 10, "images_per_second": 2000.0, "bytes": 2**20, "seconds": 1.0,
              "seconds_of_a_tenth": 0.2}
    variants = gpu.variants_of(2)
    assert [name for name, options in variants.items() if options.adaptive] == ["exact, adaptive",
                                                                                "epsilon 2, adaptive"]
    assert not list(variants.values())[-1].adaptive  # a target is named after the last variant
    report = {"machine": {"gpu": "x"}, "heads": 2, "wide": {"graph": {"sampled": [1e-4 * n for n in range(1, 25)]}},
              "engines": {"graph": {"single": [single(name, 1.9) for name in variants],
                                    "loop": {"greedy": profiled, "sampled, k = 2": profiled}, "throughput": [stream]}}}
    report["targets"] = gpu.targets(report)
    assert all(row["reached"] for row in report["targets"])
    text = gpu.markdown(report)
    assert "| graph | sampled | 100.0 | 200.0 | 400.0 | 800.0 | 1000.0 | 1600.0 | 2400.0 | 24.00 |" in text
    assert "| sampled, k = 2 | 1000.0 |" in text
