"""A network whose weights take no memory, to compare a checkpoint's names and shapes with and then to load it into."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from superres.config import ModelConfig
from superres.nn.model import EncoderDecoder


class _NoWeights(TorchFunctionMode):
    """Creates weights on the meta device and skips their random initialisation.

    All other tensors are created as usual: on the meta device, the arithmetic of position tables would import torch's
    compiler, which takes seconds.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (),  # noqa: ANN401 -- torch's own
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """See `TorchFunctionMode`."""
        kwargs = kwargs or {}
        if func in (torch.empty, torch.zeros):
            kwargs = {**kwargs, "device": "meta"}
        if func in (nn.init.normal_, Tensor.normal_):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def meta_network(config: ModelConfig) -> EncoderDecoder:
    """Return the network of `config` with its weights on the meta device; its other tensors are on the CPU."""
    with _NoWeights():
        return EncoderDecoder(config)
