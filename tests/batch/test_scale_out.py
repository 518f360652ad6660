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
from PIL import Image

from superres.checkpoint import save_checkpoint
from superres.config import DecodeConfig, ModelConfig
from superres.errors import ConfigError, SuperresError
from superres.nn.model import EncoderDecoder
from superres.pipeline.upscaler import Upscaler
from tests.batch.helpers import contents, upscale
from tests.tasks.test_photos import group_photo

ray = pytest.importorskip("ray", reason="the ray extra is not installed")

from superres.batch.cluster import Cluster, import_ray  # noqa: E402

TINY = ModelConfig(width=32, filter_size=32, attention_heads=2, encoder_layers=0, decoder_layers=1,
                   norm="pre", attention_block_length=16, prediction_heads=64, head_filter_size=32,
                   cross_attention=False, aligned_conditioning=False, numeric_neighbourhood=False,
                   ordinal_output=False)
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
    started = ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False,
                       logging_level="ERROR")
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


def in_tree(*arguments, **options):
    return upscale(*arguments, decode=DECODE, recursive=True, keep_tree=True, **options)


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="actors are found by /proc")
def test_two_actors_one_of_them_killed_end_as_one_process_does(cluster, checkpoint, faces, tmp_path,
                                                               capfd):
    upscaler, out, whole = (Upscaler.load(checkpoint, "cpu", "plain"), tmp_path / "out",
                            tmp_path / "whole")
    # many parts: an actor is killed before the last of them
    options = {"layout": "webdataset", "rows": 1}
    local = in_tree(faces, whole, upscaler, **options)
    capfd.readouterr()
    before, killed = set(actors()), []

    def kill():
        while not killed and threading.main_thread().is_alive() and not stopped.is_set():
            if next(out.rglob("part-*.jsonl"),
                    None) is not None and (mine := sorted(set(actors()) - before)):
                os.kill(mine[0], signal.SIGKILL)
                killed.append(mine[0])
            time.sleep(0.005)

    stopped = threading.Event()
    thread = threading.Thread(target=kill)
    thread.start()
    summary = in_tree(faces, out, upscaler, cluster=cluster, **options)
    stopped.set()
    thread.join()
    assert killed
    assert (summary.done, summary.failed) == (local.done, local.failed) == (26, 1)
    assert capfd.readouterr().err.count("00.png is not an image") == 1
    for path in whole.rglob("*"):
        if path.suffix == ".tar":
            assert (out / path.relative_to(whole)).read_bytes() == path.read_bytes()
    assert len(list(out.rglob("*"))) == len(list(whole.rglob("*")))
    again = in_tree(faces, out, upscaler, cluster=cluster, **options)
    assert (again.done, again.skipped, again.failed) == (0, 26, 1)


@pytest.mark.parametrize("size", [None, 32])
def test_a_cascade_ends_as_it_does_without_ray(cluster, checkpoint, faces, tmp_path, size):
    save_checkpoint(EncoderDecoder(replace(TINY, source_shape=(32, 32, 3),
                                           target_shape=(64, 64, 3))),
                    checkpoint.parent / "large")
    (checkpoint.parent / "both").mkdir(exist_ok=True)
    stages = {"format_version": 1, "stages": [checkpoint.name, "large"]}
    (checkpoint.parent / "both" / "config.json").write_text(json.dumps(stages))
    whole = Upscaler.load(checkpoint.parent / "both", "cpu", "plain")
    upscaler = whole if size is None else whole.at_size(size)
    pixels = np.random.default_rng(1).integers(0, 256, (32, 32, 3), np.uint8)
    Image.fromarray(pixels).save(faces / "1" / "between.png")
    in_tree(faces, tmp_path / "whole", upscaler)
    of_cascade = dataclasses.replace(cluster, checkpoint=str(checkpoint.parent / "both"))
    summary = in_tree(faces, tmp_path / "out", upscaler, cluster=of_cascade, rows=9)
    assert (summary.done, summary.failed) == (27, 1)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    rows = [json.loads(line)
            for line in (tmp_path / "out" / "manifest.jsonl").read_text().splitlines()]
    assert {row["tokens"] for row in rows if "between" in row["input"]} == {3072 if size else 12288}


def test_another_checkpoint_on_the_cluster_is_refused_in_one_line(cluster, checkpoint, faces,
                                                                  tmp_path):
    upscaler = Upscaler.load(checkpoint, "cpu", "plain")
    upscaler.revision = "elsewhere"
    with pytest.raises(SuperresError, match="is not tiny@elsewhere") as caught:
        in_tree(faces, tmp_path / "out", upscaler, cluster=cluster)
    assert "\n" not in str(caught.value)


def test_without_the_extra_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'superres\[ray\]'"):
        import_ray()
