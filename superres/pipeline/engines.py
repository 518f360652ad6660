"""The engines, which compute decoding steps, and the choice between them."""

from __future__ import annotations

import logging
from collections.abc import Callable

from superres.config import ENGINE_NAMES, Registry, require_choice
from superres.native.build import NativeUnavailable
from superres.native.model import NativeModel
from superres.nn.model import EncoderDecoder
from superres.nn.torch_model import StepModel

LOG = logging.getLogger(__name__)


def automatic(model: EncoderDecoder, end_token: int | None) -> StepModel:
    """Take compiled code on a CPU, or the plain step with a warning that says why; the plain step on other devices."""
    if model.signal.device.type == "cpu":
        try:
            return NativeModel(model, end_token)
        except NativeUnavailable as error:
            LOG.warning("decoding with the engine plain, which takes ten times as long or more: %s", error)
    return StepModel(model, end_token)


ENGINES: Registry[Callable[[EncoderDecoder, int | None], StepModel]] = Registry(ENGINE_NAMES, {
    "auto": automatic,
    "plain": StepModel,
    "native": NativeModel,
    "native-int8": lambda model, end_token: NativeModel(model, end_token, precision="int8"),
})
"""Engines by the name that users give."""


def step_model(model: EncoderDecoder, end_token: int | None = None, engine: str = "auto") -> StepModel:
    """Wrap `model`, in evaluation mode and on its device, for the decoder; `engine` is a name in ENGINES.

    Raises ConfigError if the engine is unknown, or not available for this model or machine.
    """
    require_choice("engine", engine, ENGINES)
    return ENGINES[engine](model, end_token)
