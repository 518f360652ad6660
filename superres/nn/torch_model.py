"""The engine `plain`: a network for the decoder whose steps are computed with torch."""

from __future__ import annotations

import copy
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from superres.config import CostRecord, general_costs
from superres.config.tables import SOURCE_MULTIPLE
from superres.interfaces import Network
from superres.nn.likelihood import bits_and_variance
from superres.nn.model import EncoderDecoder, Memory
from superres.nn.torch_step import StepSession
from superres.nn.tree_attention import TreeSession
from superres.nn.weights import network_of
from superres.sessions import Sources, TensorDecoder, Tree
from superres.system.precision import float32_products


def half_precision(layers: nn.ModuleList) -> nn.ModuleList:
    """Return a copy of `layers` whose linear layers compute in bfloat16; norms and residual sums
    keep their type."""
    copied = copy.deepcopy(layers)
    for linear in copied.modules():
        if isinstance(linear, nn.Linear):
            linear.bfloat16().register_forward_pre_hook(lambda _, inputs: inputs[0].bfloat16())
    return copied


class StepModel:
    """`EncoderDecoder` in evaluation mode as a `superres.sessions.ScoringModel`."""

    engine = "plain"
    half = False  # whether the engine computes in bfloat16
    # whether wider steps cost so much more that block sizes are chosen by their cost
    adaptive = False
    own_threads = False
    # of decoding on this class of processors, by which block sizes are chosen
    costs: CostRecord = general_costs(0.05)

    def __init__(self, model: EncoderDecoder, end_token: int | None = None) -> None:
        self.model = model
        self.vocabulary = model.config.vocabulary
        self.length = model.config.target_length
        self.prediction_heads = model.config.prediction_heads
        self.end_token = end_token
        self.peers: Any = None  # see `superres.sessions.ScoringModel.peers`
        self.weight_bytes = sum(weight.numel() * weight.element_size()
                                for weight in model.parameters())
        self.layers: nn.ModuleList = model.decoder

    @property
    def code(self) -> str:
        """What computes the steps, by which measured times are kept: the engine, and the compiled
        library if any."""
        return self.engine

    @property
    def variant(self) -> str:
        """The class of processors of the engine's recorded costs: the variant of compiled code, or
        the device."""
        return str(self.model.signal.device.type)

    @property
    def device(self) -> torch.device:
        return self.model.signal.device

    @cached_property
    def network(self) -> Network:
        return network_of(self.model)

    def likelihood(self, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """See `superres.interfaces.Engine.likelihood`."""
        return bits_and_variance(self.model, source, target)

    def row_bytes(self, width: int, by_heads: bool) -> int:
        """See `superres.interfaces.Engine.row_bytes`."""
        # The scores and the sampling noise of every column, and intermediate results.
        return 16 * 8 * width * self.vocabulary

    def encode(self, source: Sources, padding: Tensor | None = None, copies: int = 1) -> Memory:
        """See `superres.sessions.ScoringModel.encode`; `copies` as for its method `session`."""
        memory = self._encoded(source, padding) if isinstance(source, Tensor) else source
        return memory.repeat(copies).rounded_up(SOURCE_MULTIPLE)

    @float32_products()
    def _encoded(self, source: Tensor, padding: Tensor | None) -> Memory:
        return self.model.encode(source, padding, self.half)

    @float32_products()
    def session(self, source: Sources, width: int, padding: Tensor | None = None,
                copies: int = 1) -> StepSession:
        return StepSession(self.model, self.layers, self.encode(source, padding, copies), width)

    def decoder(self, plain: Any) -> TensorDecoder | None:  # noqa: ANN401 -- as in the interface
        return None

    @float32_products()
    def tree_session(self, source: Sources, tree: Tree, kept: int,
                     padding: Tensor | None = None) -> TreeSession:
        return TreeSession(self.model, self.layers, self.encode(source, padding), tree, kept)

    @float32_products()
    def uncached_scores(self, source: Tensor, target: Tensor, position: Tensor) -> Tensor:
        with torch.inference_mode():
            decoded = self.model(source, target)
            place = position.unsqueeze(1).clamp(max=self.length - 1)
            heads = range(self.prediction_heads)
            return torch.cat([self.model.head_scores(decoded, place, head) for head in heads],
                             dim=1)
