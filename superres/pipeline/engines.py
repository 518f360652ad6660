"""The engines, which compute decoding steps, and the choice between them."""

from __future__ import annotations

import logging
from collections.abc import Callable

from superres.config import ENGINE_NAMES, Registry, require_choice
from superres.native.build import NativeUnavailable
from superres.native.model import NativeModel
from superres.nn.cuda_graph import GraphModel
from superres.nn.model import EncoderDecoder
from superres.nn.torch_model import StepModel

LOG = logging.getLogger(__name__)


def automatic(model: EncoderDecoder, end_token: int | None) -> StepModel:
    """Take CUDA graphs on a GPU, compiled code on a CPU; elsewhere the plain step, and a warning says why."""
    device = model.signal.device.type
    if device == "cuda":
        return GraphModel(model, end_token)
    if device == "cpu":
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
    "graph": GraphModel,
    "graph-bf16": lambda model, end_token: GraphModel(model, end_token, half=True),
})
"""Engines by the name that users give."""


def step_model(model: EncoderDecoder, end_token: int | None = None, engine: str = "auto") -> StepModel:
    """Wrap `model`, in evaluation mode and on its device, for the decoder; `engine` is a name in ENGINES.

    Raises ConfigError if the engine is unknown, or not available for this model or machine.
    """
    require_choice("engine", engine, ENGINES)
    return ENGINES[engine](model, end_token)
