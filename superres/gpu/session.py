"""The sessions of the engine `triton`: those of `plain`, with room for the columns of the
kernel."""

from __future__ import annotations

from torch import Tensor, nn

from superres.gpu.weights import COLUMNS, Weights
from superres.nn.cache import KeyValueCache
from superres.nn.model import EncoderDecoder, Memory
from superres.nn.torch_step import StepSession


class TritonSession(StepSession):
    """A plain session whose tensors have room for COLUMNS columns of a step, and the cache for
    their queries."""

    def __init__(
        self, model: EncoderDecoder, layers: nn.ModuleList, memory: Memory, width: int,
        weights: Weights,
    ) -> None:
        self.weights = weights
        super().__init__(model, layers, memory, max(width, COLUMNS))
        self.resize(width)

    def _make_cache(self, like: Tensor) -> KeyValueCache:
        return KeyValueCache(self.config, self.batch, self.width, like, self.weights.tuning.chunk,
                             COLUMNS)
