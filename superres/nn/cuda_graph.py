"""The engine for GPUs: decoding iterations are captured as CUDA graphs and replayed without the host.

A step of a small model is about a hundred kernels of a few microseconds each; launched one by one, they wait for the
host. The captured work is an iteration of `superres.decoding.loop` with the plain step, so the tokens are those of the
plain engine. Only the capture needs a GPU; with another `capture`, the rest runs anywhere.
"""

from __future__ import annotations

import copy
import itertools
import logging
from collections.abc import Callable

import torch
from torch import Tensor, nn

from superres.errors import ConfigError
from superres.interfaces import GraphCapture
from superres.nn.model import EncoderDecoder
from superres.nn.torch_model import StepModel
from superres.nn.torch_step import StepSession

LOG = logging.getLogger(__name__)

WARM_UP = 3
"""Calls before the capture, in which libraries allocate their workspaces. These calls do real work."""

Work = Callable[[], None]


def captured(work: Work) -> Work:
    """Return a callable that does `work`: WARM_UP times directly, then captured as a CUDA graph and replayed.

    The work must use the same memory in every call and never wait for the device. If the capture fails, a warning in
    the log says why, and every call runs the work directly.
    """
    calls, graph = itertools.count(), None
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def call() -> None:
        nonlocal graph
        if next(calls) == WARM_UP:
            graph = _graph_of(work, stream)
        if graph is not None:
            graph.replay()
            return
        current = torch.cuda.current_stream()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            work()
        current.wait_stream(stream)

    return call


def _graph_of(work: Work, stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph | None:
    """Record the work's kernels without running them; None, and a warning in the log, if that fails."""
    graph = torch.cuda.CUDAGraph()
    try:
        # thread_local: other threads may allocate memory during the capture.
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            work()
    except RuntimeError as error:
        LOG.warning("decoding without CUDA graphs, which is slower: %s", (str(error).splitlines() or ["?"])[0])
        return None
    return graph


def half_precision(layers: nn.ModuleList) -> nn.ModuleList:
    """Return a copy of `layers` whose linear layers compute in bfloat16; norms and residual sums keep their type."""
    copied = copy.deepcopy(layers)
    for linear in copied.modules():
        if isinstance(linear, nn.Linear):
            linear.bfloat16().register_forward_pre_hook(lambda _, inputs: inputs[0].bfloat16())
    return copied


class GraphModel(StepModel):
    """`EncoderDecoder` as a `superres.interfaces.ScoringModel` whose iterations are captured and replayed.

    Args:
        model: the network in evaluation mode, on a GPU unless `capture` is given.
        end_token: token that ends a sequence early.
        half: store the weights of the decoder's layers, keys and values as bfloat16 and compute the aligned
            conditioning in bfloat16; norms, sums and scores stay in float32.
        fused_attention: compute attention by torch's fused kernel instead of three operations.
        compiled: let torch.compile fuse the operations of a step, which takes up to a minute per shape.
        capture: turns work into a callable that repeats it; CUDA graphs if None.

    Raises:
        ConfigError: the model is not on a GPU, and there is no `capture`.
    """

    def __init__(
        self, model: EncoderDecoder, end_token: int | None = None, *, half: bool = False, fused_attention: bool = True,
        compiled: bool = False, capture: Callable[[Work], Work] | None = None,
    ) -> None:
        device = model.signal.device.type
        if capture is None and device != "cuda":
            raise ConfigError(f"engine graph runs on a GPU, not on {device}; choose plain or native")
        super().__init__(model, end_token)
        self.engine, self.half = "graph-bf16" if half else "graph", half
        self.fused_attention, self.compiled = fused_attention, compiled
        if half:
            self.layers = half_precision(model.decoder)
        self.graph_capture = GraphCapture(capture or captured)

    def session(self, source: Tensor, width: int, padding: Tensor | None = None, copies: int = 1) -> StepSession:
        memory = self.encode(source, padding, copies)
        session = StepSession(self.model, self.layers, memory, width, self.fused_attention)
        if self.compiled:
            session.compute = torch.compile(session.compute, dynamic=False)  # type: ignore[method-assign]
        return session
