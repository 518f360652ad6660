"""The engines, which compute decoding steps, and the choice between them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from superres.config import ENGINE_NAMES, ENGINE_PLUGINS, Registry, require_choice
from superres.errors import ConfigError
from superres.gpu.weights import refusal
from superres.native.build import NativeUnavailable
from superres.native.model import NativeModel
from superres.nn.model import EncoderDecoder
from superres.nn.torch_model import StepModel

LOG = logging.getLogger(__name__)

bytewise = partial(NativeModel, precision="int8")


def automatic(model: EncoderDecoder, end_token: int | None,
              warn: Callable[..., None] = LOG.warning) -> StepModel:
    """Take compiled code on a CPU, the Triton kernel on a GPU if it decodes with the network, else
    the plain step.

    On a CPU, that is "native-int8", whose tokens are the same on every processor and in browsers.
    `warn` is told why a slower engine serves.
    """
    if model.signal.device.type == "cpu":
        try:
            return compiled(model, end_token, warn)
        except NativeUnavailable as error:
            warn("decoding with the engine plain, which takes ten times as long or more: %s", error)
    if model.signal.device.type == "cuda":
        reason = refusal(model)
        if reason is None:
            return triton(model, end_token, warn=warn)
        warn("decoding with the engine plain on the GPU, since triton does not decode with this "
             "network: %s", reason)
    return StepModel(model, end_token)


def compiled(model: EncoderDecoder, end_token: int | None,
             warn: Callable[..., None] = LOG.warning) -> StepModel:
    """Take compiled code with bytes, or with float32, and a warning says why, if bytes do not
    support the network."""
    try:
        return bytewise(model, end_token)
    except NativeUnavailable as error:
        made = NativeModel(model, end_token)
        warn("decoding with the engine native, which takes about twice as long: %s", error)
        return made


def triton(
    model: EncoderDecoder, end_token: int | None, half: bool = False,
    warn: Callable[..., None] = LOG.warning,
) -> StepModel:
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
             (str(error).splitlines() or [repr(error)])[0])
        return StepModel(model, end_token)
    return made


ENGINES: Registry[Callable[[EncoderDecoder, int | None], StepModel]] = Registry(ENGINE_NAMES, {
    "auto": automatic,
    "plain": StepModel,
    "native": NativeModel,
    "native-int8": bytewise,
    "triton": triton,
    "triton-bf16": lambda model, end_token: triton(model, end_token, half=True),
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
