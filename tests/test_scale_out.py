"""A batch on a real Ray cluster ends as it does without, even when an actor is killed."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from batch_tools import contents
from PIL import Image
from test_photos import group_photo

from superres.batch.part_run import upscale_parts
from superres.batch.parts import Job
from superres.batch.plan import BatchOptions, plan
from superres.batch.upscaling import upscale_files
from superres.checkpoint import save_checkpoint
from superres.config import DecodeConfig, ModelConfig
from superres.errors import ConfigError, SuperresError
from superres.nn.model import EncoderDecoder
from superres.pipeline.upscaler import Upscaler

ray = pytest.importorskip("ray", reason="the extra ray is not installed")

from superres.batch import ray_cluster  # noqa: E402
from superres.batch.ray_cluster import Cluster, upscale_on_cluster  # noqa: E402
from superres.batch.ray_parts import upscale_parts_on_cluster  # noqa: E402

TINY = ModelConfig(width=32, filter_size=32, attention_heads=2, encoder_layers=0, decoder_layers=1, norm="pre",
                   attention_block_length=16, prediction_heads=64, head_filter_size=32, cross_attention=False,
                   aligned_conditioning=False, numeric_neighbourhood=False, ordinal_output=False)
DECODE = DecodeConfig(accept="distance", epsilon=255)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("checkpoints") / "tiny"
    save_checkpoint(EncoderDecoder(TINY), folder)
    return folder


@pytest.fixture(scope="module")
def cluster(checkpoint):
    """A cluster of this test run's own, to which the runs connect by its address."""
    started = ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield Cluster(started.address_info["gcs_address"], 2, str(checkpoint), "cpu", "plain")
    ray.shutdown()


@pytest.fixture
def faces(tmp_path):
    draw = np.random.default_rng(0)
    for number in range(24):
        path = tmp_path / "faces" / f"{number % 3}" / f"{number:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 256, (8, 8, 3), np.uint8)).save(path)
    (tmp_path / "faces" / "0" / "00.png").write_bytes(b"no picture")
    Image.fromarray(group_photo()[0]).save(tmp_path / "faces" / "0" / "03-party.png")  # three faces
    return tmp_path / "faces"


def actors():
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if b"MapWorker" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="actors are found by /proc")
def test_two_actors_one_of_them_killed_end_as_one_process_does(cluster, checkpoint, faces, tmp_path):
    options = BatchOptions(tmp_path / "out", recursive=True, keep_tree=True, batch_size=2)
    upscaler = Upscaler.load(checkpoint, "cpu", "plain")
    whole = dataclasses.replace(options, output=tmp_path / "whole")
    local = upscale_files(plan([faces], whole), upscaler, whole, DECODE)
    before, killed = set(actors()), []

    def kill():
        manifest = tmp_path / "out" / "1" / "01.png"
        while not killed and threading.main_thread().is_alive() and not stopped.is_set():
            mine = sorted(set(actors()) - before)
            if mine and (len(mine) > 1 or manifest.exists()):
                os.kill(mine[0], signal.SIGKILL)
                killed.append(mine[0])
            time.sleep(0.05)

    stopped = threading.Event()
    thread = threading.Thread(target=kill)
    thread.start()
    summary = upscale_on_cluster(plan([faces], options), upscaler, options, DECODE, cluster, block=2)
    stopped.set()
    thread.join()
    assert killed
    assert (summary.done, summary.failed) == (local.done, local.failed) == (26, 1)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_a_run_in_parts_with_a_killed_actor_ends_as_it_does_without_ray(cluster, checkpoint, faces, tmp_path, capfd):
    upscaler = Upscaler.load(checkpoint, "cpu", "plain")
    jobs = [Job(str(tmp_path / name), "webdataset", 4, (str(faces),)) for name in ("out", "whole")]
    options = [BatchOptions(Path(), recursive=True, place=job.output) for job in jobs]
    local = upscale_parts(jobs[1], upscaler, options[1], DECODE)
    capfd.readouterr()
    before, killed = set(actors()), []

    def watch():
        while not killed and not stopped.is_set():
            if (mine := sorted(set(actors()) - before)) and (tmp_path / "out" / "part-000000.jsonl").exists():
                os.kill(mine[0], signal.SIGKILL)
                killed.append(mine[0])
            time.sleep(0.02)

    stopped = threading.Event()
    thread = threading.Thread(target=watch)
    thread.start()
    summary = upscale_parts_on_cluster(jobs[0], upscaler, options[0], DECODE, cluster)
    stopped.set()
    thread.join()
    assert killed
    assert (summary.done, summary.failed) == (local.done, local.failed) == (26, 1)
    files = [sorted(path.name for path in (tmp_path / name).iterdir()) for name in ("out", "whole")]
    assert files[0] == files[1]
    for name in files[0]:
        if name.endswith(".tar"):
            assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert capfd.readouterr().err.count("00.png is not an image") == 1
    assert upscale_parts_on_cluster(jobs[0], upscaler, options[0], DECODE, cluster).finished == 0


@pytest.mark.parametrize("size", [None, 32])
def test_a_cascade_ends_as_it_does_without_ray(cluster, checkpoint, faces, tmp_path, size):
    save_checkpoint(EncoderDecoder(replace(TINY, source_shape=(32, 32, 3), target_shape=(64, 64, 3))),
                    checkpoint.parent / "large")
    (checkpoint.parent / "both").mkdir(exist_ok=True)
    stages = {"format_version": 1, "stages": [checkpoint.name, "large"]}
    (checkpoint.parent / "both" / "config.json").write_text(json.dumps(stages))
    whole = Upscaler.load(checkpoint.parent / "both", "cpu", "plain")
    upscaler = whole if size is None else whole.at_size(size)
    pixels = np.random.default_rng(1).integers(0, 256, (32, 32, 3), np.uint8)
    Image.fromarray(pixels).save(faces / "1" / "between.png")
    options, local = (BatchOptions(tmp_path / name, recursive=True, keep_tree=True) for name in ("out", "whole"))
    upscale_files(plan([faces], local), upscaler, local, DECODE)
    of_cascade = dataclasses.replace(cluster, checkpoint=str(checkpoint.parent / "both"))
    summary = upscale_on_cluster(plan([faces], options), upscaler, options, DECODE, of_cascade, block=9)
    assert (summary.done, summary.failed) == (27, 1)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    rows = [json.loads(line) for line in (tmp_path / "out" / "manifest.jsonl").read_text().splitlines()]
    assert {row["tokens"] for row in rows if "between" in row["input"]} == {3072 if size else 12288}


def test_another_checkpoint_on_the_cluster_is_refused_in_one_line(cluster, checkpoint, faces, tmp_path):
    upscaler = Upscaler.load(checkpoint, "cpu", "plain")
    upscaler.revision = "elsewhere"
    options = BatchOptions(tmp_path / "out", recursive=True)
    with pytest.raises(SuperresError, match="is not tiny@elsewhere") as caught:
        upscale_on_cluster(plan([faces], options), upscaler, options, DECODE, cluster)
    assert "\n" not in str(caught.value)


def test_without_the_extra_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'superres\[ray\]'"):
        ray_cluster.import_ray()
