"""The engines, which compute decoding steps, and the choice between them."""

from __future__ import annotations

import logging
from collections.abc import Callable

from superres.config import ENGINES, require
from superres.nn.engines.cuda_graph import GraphModel
from superres.nn.engines.native.build import NativeUnavailable
from superres.nn.engines.native.session import NativeModel
from superres.nn.engines.torch_model import StepModel
from superres.nn.model import EncoderDecoder

LOG = logging.getLogger(__name__)

MAKERS: dict[str, Callable[[EncoderDecoder, int | None], StepModel]] = {
    "plain": StepModel,
    "graph": GraphModel,
    "graph-bf16": lambda model, end_token: GraphModel(model, end_token, half=True),
    "native": NativeModel,
    "native-bf16": lambda model, end_token: NativeModel(model, end_token, half=True),
}
"""Engines by their names in ENGINES."""


def step_model(model: EncoderDecoder, end_token: int | None = None, engine: str = "auto") -> StepModel:
    """Wrap `model` for the decoder.

    Args:
        model: the network, in evaluation mode and on its device.
        end_token: as in `StepModel`.
        engine: a name in ENGINES. "auto" chooses CUDA graphs on a GPU and compiled code on a CPU. If the code cannot be
            compiled, it chooses the plain step, and a warning in the log says why.

    Raises:
        ConfigError: the engine is unknown, or not available for this model or machine.
    """
    require(engine in ENGINES, f"unknown engine {engine!r}; choose one of {', '.join(ENGINES)}")
    if engine != "auto":
        return MAKERS[engine](model, end_token)
    device = model.signal.device.type
    if device == "cuda":
        return GraphModel(model, end_token)
    if device != "cpu":
        return StepModel(model, end_token)
    try:
        return NativeModel(model, end_token)
    except NativeUnavailable as error:
        LOG.warning("decoding with the plain step, which is slower: %s", error)
        return StepModel(model, end_token)
