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
from typing import TYPE_CHECKING, Any, cast

import numpy as np

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
from superres.errors import ConfigError, OutputError, torch_needed
from superres.interfaces import Bool, Engine, Int64, Network
from superres.native.build import NativeUnavailable
from superres.native.engine import BY_PRECISION, NativeEngine
from superres.native.variants import NEIGHBOURS
from superres.system.json_files import read_json
from superres.system.machine import gpu_present, machine
from superres.system.output import cache_folder, write_result
from superres.system.progress import Progress
from superres.version import __version__

if TYPE_CHECKING:
    from superres.nn.model import EncoderDecoder

LOG = logging.getLogger(__name__)
Warn = Callable[..., None]
Make = Callable[[Network, int | None, str], Engine]
"""Makes the engine of a network, an end token and a device, "cpu" or "cuda"."""

FULL = {"cpu": 16, "cuda": 256}
"""Rows of a full batch, by kind of device."""
CLEAR = 1.5
"""Smallest ratio, of the products of both seconds, by which a device is kept as the faster one."""
SENTENCE = 16
"""Source tokens of a sentence to measure with."""


# The device


def pick_device(name: str) -> str:
    """Return "cpu" or "cuda" for "auto", "cpu" or "cuda".

    The driver is asked before torch, which takes long to import. Raises ConfigError if the device
    is unknown or not available.
    """
    require_choice("device", name, DEVICES)
    if name == "cpu" or (name == "auto" and not gpu_present()):
        return "cpu"
    try:
        with torch_needed("--device cuda"):
            import torch
    except ConfigError as error:
        if name == "cuda":
            raise
        _say_that_no_gpu_decodes(str(error))
        return "cpu"
    if torch.cuda.is_available():
        return "cuda"
    if name == "cuda":
        raise ConfigError("device cuda is not available: torch finds no GPU; choose cpu or auto")
    return "cpu"


@functools.cache
def _say_that_no_gpu_decodes(reason: str) -> None:
    """Warn once that the GPU of this machine stays idle."""
    LOG.warning("decoding on the CPU, although there is a GPU: %s", reason)


def fastest_device(network: Network, end_token: int | None) -> str:
    """Return "cuda"; or "cpu", and a warning says so, if decoding on it is faster by a measurement.

    The measurement takes some seconds. It is kept in the user's cache for the network's revision,
    this machine and this release.
    """
    settings = {"revision": network.revision, "version": __version__, **machine("cuda")}
    digest = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:16]
    path = cache_folder() / f"device-{digest}.json"
    try:
        if (seconds := _kept(path)) is None:
            with Progress("measuring whether the GPU or the CPU decodes faster"):
                seconds, is_steady = seconds_per_token(network, end_token)
            if is_steady:
                document = json.dumps({**settings, "seconds": seconds}, indent=1)
                # without the file, the next process measures again
                with suppress(OSError, OutputError):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    write_result(path, f"{document}\n".encode())
    except RuntimeError as error:  # of the GPU, whose memory may be too small
        LOG.warning("decoding on the CPU, since the GPU does not work: %s", _first_line(error))
        return "cpu"
    if gpu_pays(seconds):
        return "cuda"
    LOG.warning("decoding on the CPU, which is faster here: %.3g ms a token alone and %.3g ms in a "
                "full batch, on the GPU %.3g and %.3g ms; --device cuda decodes on the GPU",
                *(1e3 * value for value in seconds))
    return "cpu"


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


def seconds_per_token(network: Network, end_token: int | None) -> tuple[list[float], bool]:
    """Return the seconds per token of a row alone and in a full batch, on CPU and GPU, and whether
    to keep them.

    They are those of the block size that is the fastest if four of five proposals pass. They are
    not kept if the kernel did not work, which may have passing reasons, or if both devices are so
    close that other work may have decided.
    """
    found, works, config = list[float](), True, network.config
    length = config.source_length if end_token is None else min(SENTENCE, config.source_length)
    for device in FULL:
        warn = LOG.debug if device == "cpu" else LOG.warning
        engine = automatic(network, end_token, device, warn)
        works &= device == "cpu" or engine.name != "plain" or _unsupported(network) is not None
        largest = check_options(DecodeConfig(), engine.prediction_heads)
        for rows in (1, FULL[device]):
            source = (7 * np.arange(rows * length) % (config.vocabulary - 4) + 4).reshape(rows, -1)
            costs = measured_costs(engine, source, DecodeConfig(), largest)
            size, tokens = fastest_size(costs)
            found.append(costs[size - 1] / tokens / rows)
    gain = found[0] * found[1] / (found[2] * found[3])
    return found, works and max(gain, 1 / gain) > CLEAR


# The engine, which computes steps and has a decoder of its own for the settings it knows


def automatic(network: Network, end_token: int | None, device: str,
              warn: Warn = LOG.warning) -> Engine:
    """Take compiled code on a CPU, the Triton kernel on a GPU if it decodes with the network, else
    the plain step.

    On a CPU, that is "native-int8", whose tokens are the same on every processor and in browsers;
    with float32 if bytes do not support the network. `warn` is told why a slower engine serves.
    """
    if device == "cpu":
        try:
            try:
                return native(network, end_token, device, "int8")
            except NativeUnavailable as error:
                made = native(network, end_token, device)
                warn("decoding with the engine native, which takes about twice as long: %s", error)
                return made
        except NativeUnavailable as error:
            slower = plain(network, end_token, device, f"decoding without compiled code ({error})")
            warn("decoding with the engine plain, which takes ten times as long or more: %s", error)
            return slower
    reason = _unsupported(network)
    if reason is None:
        return triton(network, end_token, device, warn=warn)
    warn("decoding with the engine plain on the GPU, since triton does not decode with this "
         "network: %s", reason)
    return plain(network, end_token, device)


def _unsupported(network: Network) -> str | None:
    """Return why the Triton kernel does not decode with a network; None if it does."""
    from superres.gpu.weights import refusal

    return refusal(module_on(network, "cpu"))


def module_on(network: Network, device: str, what: str = "the torch module") -> EncoderDecoder:
    """Return a network as a torch module in evaluation mode on a device; a copy, except on the CPU.

    Raises ConfigError that `what` needs torch.
    """
    with torch_needed(what):
        from superres.nn.weights import module_of
    module = module_of(network)
    return module if device == "cpu" else copy.deepcopy(module).to(device)


def native(network: Network, end_token: int | None, device: str,
           precision: str = "float32") -> Engine:
    """Take compiled code."""
    if device != "cpu":
        raise NativeUnavailable(f"the native step runs on the CPU, not on {device}; choose plain")
    return NativeEngine(network, end_token, precision=precision)


def plain(network: Network, end_token: int | None, device: str,
          what: str = "the engine plain") -> Engine:
    """Take the step of torch; ConfigError that `what` needs torch."""
    module = module_on(network, device, what)
    from superres.decoding.plain.engine import PlainEngine
    from superres.nn.torch_model import StepModel

    return PlainEngine(StepModel(module, end_token))


def triton(network: Network, end_token: int | None, device: str, half: bool = False,
           warn: Warn = LOG.warning) -> Engine:
    """Take the Triton kernel; the plain step, and a warning says why, if the kernel does not work
    here."""
    module = module_on(network, device, "the engine triton")
    from superres.decoding.plain.engine import PlainEngine
    from superres.nn.torch_model import StepModel

    try:
        from superres.gpu.model import TritonModel  # Triton is imported where it is asked for only

        made = TritonModel(module, end_token, half=half)
        made.test()
    except ConfigError:
        raise
    except Exception as error:  # of Triton, the driver or the test
        warn("decoding with the engine plain, which is slower, since triton does not work here: %s",
             _first_line(error))
        return PlainEngine(StepModel(module, end_token))
    return PlainEngine(made)


ENGINES: Registry[Any] = Registry(ENGINE_NAMES, {
    "auto": automatic,
    "plain": plain,
    "native": native,
    "native-int8": partial(native, precision="int8"),
    "triton": triton,
    "triton-bf16": partial(triton, half=True),
}, ENGINE_PLUGINS, "StepModel", "engine")
"""Engines by the name that users give: functions `Make`, and classes derived from `StepModel` that
are not built in."""


def engine_of(network: Network, end_token: int | None = None, device: str = "cpu",
              engine: str = "auto") -> Engine:
    """Return the engine of a network on a device; `engine` is a name in ENGINES.

    Raises ConfigError if the engine is unknown, or not available for this network or machine.
    """
    require_choice("engine", engine, ENGINES)
    make = ENGINES[engine]
    if engine in ENGINES.built_in:
        return cast(Make, make)(network, end_token, device)
    from superres.decoding.plain.engine import PlainEngine

    model = make(module_on(network, device), end_token)
    model.engine = engine
    return PlainEngine(model)


# The settings and the block size


def fastest_exact(adaptive: bool, network: ModelConfig, heads: int | None = None) -> DecodeConfig:
    """Return the settings of a checkpoint without a saved default: exact acceptance, in the fastest
    block sizes.

    Where every further proposal costs time (`Engine.adaptive`), the block size is adaptive.
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


def use_costs(engine: Engine, table: CostTable) -> None:
    """Let `engine` decode by its record in a checkpoint's table, or by its general costs."""
    if (record := record_for(table, engine.name, engine.variant)) is not None:
        engine.costs = record


def _draft_step(engine: Engine, proposer: DraftProposer, rows: int) -> float:
    """Return the time of a draft's step of one token, in the unit of the engine's costs."""
    draft, own = proposer.draft, engine.costs
    if draft.costs.is_measured and own.is_measured:
        return draft.costs.of(rows).alone
    return own.of(rows).alone * draft.weight_bytes / engine.weight_bytes


class BlockSizes:
    """The adaptive block sizes of one network: by the record `Engine.costs`, and its `confidence`.
    Nothing is measured while decoding."""

    confidence: Confidence | None = None

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def get(
        self, options: DecodeConfig, source: Int64, padding: Bool | None = None,
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
        engine, rows = self.engine, len(source)
        proposer = proposer or PROPOSERS[options.proposer]()
        costs = engine.costs.of(rows)
        times = costs.up_to(check_options(options, engine.prediction_heads))
        # one step of the draft per proposal; other proposals cost next to none
        if isinstance(proposer, DraftProposer):
            step = _draft_step(engine, proposer, rows)
            times = [time + step * further for further, time in enumerate(times)]
        least = min(len(times), max(options.min_block, proposer.least_block))
        # a sentence is about as long as its translation
        length: float = engine.length
        if engine.end_token is not None:
            length = source.shape[1] - (0.0 if padding is None else float(padding.sum()) / rows)
        size = paying_size(costs, times, least, usual(self.confidence, options), length)
        if size == 1 or self.confidence is None or not self._is_confident(options):
            return size
        return ConfidentBlockSize(self.confidence, times, options, engine.vocabulary,
                                  engine.end_token)

    def _is_confident(self, options: DecodeConfig) -> bool:
        """Return whether every iteration can choose its block size.

        Proposers other than the heads have no known probabilities. Sampling, and criteria without a
        rule, have no known reach. Heads of text have probabilities, but to know one takes all
        scores of a vocabulary: captions took up to 1.18 times as long as with one block size. On an
        accelerator, further proposals cost hardly anything.
        """
        engine, rule = self.engine, CRITERIA[options.accept](options).rule
        known = options.proposer == "heads" and rule is not None and engine.end_token is None
        return (known and not options.is_sampling and engine.confident
                and engine.device == "cpu")
