"""Whether the GPU or the CPU decodes, where a user leaves both the device and the engine open:
measured once."""

from __future__ import annotations

import copy
import functools
import hashlib
import json
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from superres.config import DecodeConfig, reader_of
from superres.decoding.block_size import check_options, fastest_size
from superres.decoding.cost import measured_costs
from superres.errors import ConfigError, OutputError
from superres.gpu.weights import refusal
from superres.nn.model import EncoderDecoder
from superres.pipeline.engines import automatic
from superres.system.json_files import read_json
from superres.system.machine import machine
from superres.system.output import cache_folder, write_result
from superres.system.progress import Progress
from superres.version import __version__

LOG = logging.getLogger(__name__)

FULL = {"cpu": 16, "cuda": 256}
"""Rows of a full batch, by kind of device."""
CLEAR = 1.5
"""Smallest ratio, of the products of both seconds, by which a device is kept as the faster one."""
SENTENCE = 16
"""Source tokens of a sentence to measure with."""

CPU = torch.device("cpu")


def fastest_device(
    model: EncoderDecoder, end_token: int | None, revision: str, gpu: torch.device,
    measure: Callable[[EncoderDecoder, int | None, torch.device],
                      tuple[list[float], bool]] | None = None,
) -> torch.device:
    """Return the `gpu`, or the CPU, and a warning says so, if decoding on it is faster by a
    measurement.

    The measurement takes some seconds. It is kept in the user's cache for the network's `revision`,
    this machine and this release; `measure` is `seconds_per_token`, but for tests.
    """
    settings = {"revision": revision, "version": __version__, **machine(gpu)}
    path = (cache_folder()
            / f"device-{hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:16]}.json")
    try:
        if (seconds := _kept(path)) is None:
            with Progress("measuring whether the GPU or the CPU decodes faster"):
                seconds, keep = (measure or seconds_per_token)(model, end_token, gpu)
            if keep:
                _keep(path, {**settings, "seconds": seconds})
    except RuntimeError as error:  # of the GPU, whose memory may be too small
        LOG.warning("decoding on the CPU, since the GPU does not work: %s",
                    (str(error).splitlines() or [repr(error)])[0])
        return CPU
    if gpu_pays(seconds):
        return gpu
    LOG.warning("decoding on the CPU, which is faster here: %.3g ms a token alone and %.3g ms in a "
                "full batch, on the GPU %.3g and %.3g ms; --device cuda decodes on the GPU",
                *(1e3 * value for value in seconds))
    return CPU


def _kept(path: Path) -> list[float] | None:
    """Return the four seconds in a file; None if it is missing or damaged."""
    with suppress(ConfigError):
        known = read_json(path, functools.partial(reader_of(dict[str, Any]), "the seconds"),
                          ConfigError, "remove it")
        seconds: list[float] = reader_of(list[float])("seconds", known.get("seconds"))
        return seconds if len(seconds) == 4 and min(seconds) > 0 else None
    return None


def _keep(path: Path, document: dict[str, Any]) -> None:
    """Write a file; without it, the next process measures again."""
    with suppress(OSError, OutputError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_result(path, (json.dumps(document, indent=1) + "\n").encode())


def gpu_pays(seconds: list[float]) -> bool:
    """Return whether the GPU decodes, by the seconds per token of a row alone and in a full batch:
    CPU's, then GPU's.

    What will be decoded is not known when a checkpoint is loaded. So the GPU decodes if it gains as
    much in one of the two cases as it loses in the other, or more.
    """
    alone, together, gpu_alone, gpu_together = seconds
    return gpu_alone * gpu_together <= alone * together


def seconds_per_token(
    model: EncoderDecoder, end_token: int | None, gpu: torch.device,
) -> tuple[list[float], bool]:
    """Return the seconds per token of a row alone and in a full batch, on CPU and GPU, and whether
    to keep them.

    They are those of the block size that is the fastest if four of five proposals pass. They are
    not kept if the kernel did not work, which may have passing reasons, or if both devices are so
    close that other work may have decided.
    """
    found, works, config = list[float](), True, model.config
    length = config.source_length if end_token is None else min(SENTENCE, config.source_length)
    for device in (CPU, gpu):
        warn = LOG.debug if device == CPU else LOG.warning
        engine = automatic(copy.deepcopy(model).to(device).eval(), end_token, warn)
        works &= device == CPU or engine.engine != "plain" or refusal(model) is not None
        largest = check_options(DecodeConfig(), engine.prediction_heads)
        for rows in (1, FULL[device.type]):
            source = (7 * torch.arange(rows * length, device=device) % (config.vocabulary - 4)
                      + 4).view(rows, length)
            costs = measured_costs(engine, source, DecodeConfig(), largest)
            size, tokens = fastest_size(costs)
            found.append(costs[size - 1] / tokens / rows)
    gain = found[0] * found[1] / (found[2] * found[3])
    return found, works and max(gain, 1 / gain) > CLEAR
