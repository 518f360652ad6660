"""What decodes a checkpoint where a user leaves it open: the device, the engine and its decoder,
the default settings, and the block size."""

from __future__ import annotations

import copy
import functools
import hashlib
import json
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from superres.config import (
    DEVICES,
    ENGINE_NAMES,
    ENGINE_PLUGINS,
    Confidence,
    CostRecord,
    CostTable,
    DecodeConfig,
    ModelConfig,
    Registry,
    reader_of,
    require_choice,
)
from superres.decoding.acceptance import CRITERIA
from superres.decoding.block_size import check_options, fastest_size, paying_size
from superres.decoding.confidence import ConfidentBlockSize, usual
from superres.decoding.cost import measured_costs
from superres.decoding.proposers import PROPOSERS
from superres.decoding.proposers.draft import DraftProposer
from superres.decoding.proposers.proposer import Proposer
from superres.errors import ConfigError, OutputError
from superres.gpu.weights import refusal
from superres.native.build import NativeUnavailable
from superres.native.model import BY_PRECISION, NativeModel
from superres.native.variants import NEIGHBOURS
from superres.nn.model import EncoderDecoder
from superres.nn.torch_model import StepModel
from superres.system.json_files import read_json
from superres.system.machine import machine
from superres.system.output import cache_folder, write_result
from superres.system.progress import Progress
from superres.version import __version__

LOG = logging.getLogger(__name__)
Warn = Callable[..., None]

CPU = torch.device("cpu")
FULL = {"cpu": 16, "cuda": 256}
"""Rows of a full batch, by kind of device."""
CLEAR = 1.5
"""Smallest ratio, of the products of both seconds, by which a device is kept as the faster one."""
SENTENCE = 16
"""Source tokens of a sentence to measure with."""


# The device


def pick_device(name: str) -> torch.device:
    """Return the device for "auto", "cpu" or "cuda". Raises ConfigError if the device is unknown or
    not available."""
    require_choice("device", name, DEVICES)
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device cuda is not available: torch finds no GPU; choose cpu or auto")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def fastest_device(
    model: EncoderDecoder, end_token: int | None, revision: str, gpu: torch.device,
) -> torch.device:
    """Return the `gpu`, or the CPU, and a warning says so, if decoding on it is faster by a
    measurement.

    The measurement takes some seconds. It is kept in the user's cache for the network's `revision`,
    this machine and this release.
    """
    settings = {"revision": revision, "version": __version__, **machine(gpu)}
    digest = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:16]
    path = cache_folder() / f"device-{digest}.json"
    try:
        if (seconds := _kept(path)) is None:
            with Progress("measuring whether the GPU or the CPU decodes faster"):
                seconds, is_steady = seconds_per_token(model, end_token, gpu)
            if is_steady:
                document = json.dumps({**settings, "seconds": seconds}, indent=1)
                # without the file, the next process measures again
                with suppress(OSError, OutputError):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    write_result(path, f"{document}\n".encode())
    except RuntimeError as error:  # of the GPU, whose memory may be too small
        LOG.warning("decoding on the CPU, since the GPU does not work: %s", _first_line(error))
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


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [repr(error)])[0]


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


# The engine, which computes steps and has a decoder of its own for the settings it knows


def automatic(model: EncoderDecoder, end_token: int | None, warn: Warn = LOG.warning) -> StepModel:
    """Take compiled code on a CPU, the Triton kernel on a GPU if it decodes with the network, else
    the plain step.

    On a CPU, that is "native-int8", whose tokens are the same on every processor and in browsers;
    with float32 if bytes do not support the network. `warn` is told why a slower engine serves.
    """
    device = model.signal.device.type
    if device == "cpu":
        try:
            try:
                return NativeModel(model, end_token, precision="int8")
            except NativeUnavailable as error:
                made = NativeModel(model, end_token)
                warn("decoding with the engine native, which takes about twice as long: %s", error)
                return made
        except NativeUnavailable as error:
            warn("decoding with the engine plain, which takes ten times as long or more: %s", error)
    if device == "cuda":
        reason = refusal(model)
        if reason is None:
            return triton(model, end_token, warn=warn)
        warn("decoding with the engine plain on the GPU, since triton does not decode with this "
             "network: %s", reason)
    return StepModel(model, end_token)


def triton(model: EncoderDecoder, end_token: int | None, half: bool = False,
           warn: Warn = LOG.warning) -> StepModel:
    """Take the Triton kernel; the plain step, and a warning says why, if the kernel does not work
    here."""
    try:
        from superres.gpu.model import TritonModel  # Triton is imported where it is asked for only

        made = TritonModel(model, end_token, half=half)
        made.test()
    except ConfigError:
        raise
    except Exception as error:  # of Triton, the driver or the test
        warn("decoding with the engine plain, which is slower, since triton does not work here: %s",
             _first_line(error))
        return StepModel(model, end_token)
    return made


ENGINES: Registry[Callable[[EncoderDecoder, int | None], StepModel]] = Registry(ENGINE_NAMES, {
    "auto": automatic,
    "plain": StepModel,
    "native": NativeModel,
    "native-int8": partial(NativeModel, precision="int8"),
    "triton": triton,
    "triton-bf16": partial(triton, half=True),
}, ENGINE_PLUGINS, StepModel, "engine")
"""Engines by the name that users give."""


def step_model(model: EncoderDecoder, end_token: int | None = None,
               engine: str = "auto") -> StepModel:
    """Wrap `model`, in evaluation mode and on its device, for the decoder; `engine` is a name in
    ENGINES.

    Raises ConfigError if the engine is unknown, or not available for this model or machine.
    """
    require_choice("engine", engine, ENGINES)
    made = ENGINES[engine](model, end_token)
    if engine not in ENGINES.built_in:
        made.engine = engine
    return made


# The settings and the block size


def fastest_exact(adaptive: bool, network: ModelConfig, heads: int | None = None) -> DecodeConfig:
    """Return the settings of a checkpoint without a saved default: exact acceptance, in the fastest
    block sizes.

    Where every further proposal costs time (`StepModel.adaptive`), the block size is adaptive.
    Elsewhere all heads propose, or as many `heads` as the engine has room for. Consistent pictures
    and the nucleus of samples are as the network's settings ask.
    """
    most = network.prediction_heads
    return DecodeConfig(heads if heads and heads < most else None, adaptive=adaptive and most > 1,
                        consistent=network.consistent, nucleus=network.nucleus)


def record_for(table: CostTable, engine: str, variant: str) -> CostRecord | None:
    """Return the record of an engine and variant, or the most similar one; None if nothing similar
    is recorded.

    A variant without a record has that of a neighbour, and a compiled engine without one that of
    the other compiled engine. Steps of torch and of a GPU are not similar to them: a wide step of
    these hardly takes more time.
    """
    compiled = ([name for name in BY_PRECISION.values() if name != engine]
                if engine in BY_PRECISION.values() else [])
    for name in (engine, *compiled):
        for kind in (variant, *NEIGHBOURS.get(variant, ())):
            if (record := table.get(name, {}).get(kind)) is not None:
                return record
    return None


def use_costs(model: StepModel, table: CostTable) -> None:
    """Let `model` decode by the record of its engine in a checkpoint's table, or by its general
    costs."""
    if (record := record_for(table, model.engine, model.variant)) is not None:
        model.costs = record


def _draft_step(model: StepModel, proposer: DraftProposer, rows: int) -> float:
    """Return the time of a draft's step of one token, in the unit of the model's costs."""
    draft, own = proposer.draft, model.costs
    if isinstance(draft, StepModel) and draft.costs.is_measured and own.is_measured:
        return draft.costs.of(rows).alone
    return own.of(rows).alone * draft.weight_bytes / model.weight_bytes


class BlockSizes:
    """The adaptive block sizes of one network: by the record `StepModel.costs` of its engine, and
    its `confidence`. Nothing is measured while decoding."""

    confidence: Confidence | None = None

    def __init__(self, model: StepModel) -> None:
        self.model = model

    def get(
        self, options: DecodeConfig, source: Tensor, padding: Tensor | None = None,
        proposer: Proposer | None = None,
    ) -> int | ConfidentBlockSize | None:
        """Return the adaptive block size for `source` [B, S]; None if `options` have a fixed block
        size.

        `proposer` is the one of `options`; None if it needs no resource. Every iteration chooses
        its own size where the probabilities of its proposals are known; other decodes have the size
        that the recorded costs make the fastest. That size is 1 wherever blocks would not pay. It
        depends on the checkpoint, the class of the processor, the options, the number of rows and,
        for text, the length of the sources; not on the machine or its other work.
        """
        if not options.adaptive or not len(source):
            return None
        model, rows = self.model, len(source)
        proposer = proposer or PROPOSERS[options.proposer]()
        costs = model.costs.of(rows)
        times = costs.up_to(check_options(options, model.prediction_heads))
        # one step of the draft per proposal; other proposals cost next to none
        if isinstance(proposer, DraftProposer):
            step = _draft_step(model, proposer, rows)
            times = [time + step * further for further, time in enumerate(times)]
        least = min(len(times), max(options.min_block, proposer.least_block))
        # a sentence is about as long as its translation
        length: float = model.length
        if model.end_token is not None:
            length = source.shape[1] - (0.0 if padding is None else float(padding.sum()) / rows)
        size = paying_size(costs, times, least, usual(self.confidence, options), length)
        if size == 1 or self.confidence is None or not self._is_confident(options):
            return size
        return ConfidentBlockSize(self.confidence, times, options, model.vocabulary,
                                  model.end_token)

    def _is_confident(self, options: DecodeConfig) -> bool:
        """Return whether every iteration can choose its block size.

        Proposers other than the heads have no known probabilities. Sampling, and criteria without a
        rule, have no known reach. Heads of text have probabilities, but to know one takes all
        scores of a vocabulary: captions took up to 1.18 times as long as with one block size. On an
        accelerator, further proposals cost hardly anything.
        """
        rule = CRITERIA[options.accept](options).rule
        known = options.proposer == "heads" and rule is not None and self.model.end_token is None
        return known and not options.is_sampling and self.model.model.signal.device.type == "cpu"
