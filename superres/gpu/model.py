"""The engine `triton`: a network whose iterations one launch of a Triton kernel does for a whole batch."""

from __future__ import annotations

import logging
import os

import torch
from torch import Tensor

from superres.config import DecodeConfig
from superres.decoding.blockwise import PlainDecoder
from superres.decoding.loop import BlockwiseLoop
from superres.errors import ConfigError
from superres.gpu.decoder import TritonDecoder, supports
from superres.gpu.session import TritonSession
from superres.gpu.weights import COLUMNS, FLOAT, HALF, Tuning, pack
from superres.interfaces import Sources
from superres.nn.model import EncoderDecoder
from superres.nn.torch_model import StepModel, half_precision

LOG = logging.getLogger(__name__)

TESTED = 8
"""Tokens that the engine's test decodes."""
WORST = {False: 0.01, True: 1.0}
"""How far a token's score may be below the best in the test, in float32 and with matrices in bfloat16."""


class TritonModel(StepModel):
    """`EncoderDecoder` as a `superres.interfaces.ScoringModel` whose iterations run in one kernel.

    Exact blocks have the tokens of one token per step, bit for bit, at every block size and batch size. The kernel has
    room for COLUMNS prediction heads. What it does not support, the plain decoder does with the same weights.

    Args:
        model: the network in evaluation mode, on a GPU, or on a CPU under TRITON_INTERPRET=1.
        end_token: token that ends a sequence early.
        half: store matrices, keys and values as bfloat16; sums are in float32.
        tuning: how the kernel is compiled, by default as was fastest on an H200.

    Raises:
        ConfigError: the model is on another device, or the kernel does not decode with it.
    """

    def __init__(
        self, model: EncoderDecoder, end_token: int | None = None, *, half: bool = False, tuning: Tuning | None = None,
    ) -> None:
        if model.signal.device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
            raise ConfigError(f"engine triton runs on a GPU, not on {model.signal.device}; choose plain or native")
        super().__init__(model, end_token)
        self.prediction_heads = min(self.prediction_heads, COLUMNS)
        self.broken = False  # whether the kernel could not be compiled for some settings
        self.engine, self.half = "triton-bf16" if half else "triton", half
        kind = torch.bfloat16 if half else torch.float32
        if half:
            self.layers = half_precision(model.decoder)
        self.weights = pack(model, kind, tuning or (HALF if half else FLOAT))

    def session(self, source: Sources, width: int, padding: Tensor | None = None, copies: int = 1) -> TritonSession:
        memory = self.encode(source, padding, copies)
        return TritonSession(self.model, self.layers, memory, width, self.weights)

    @torch.inference_mode()
    def test(self) -> None:
        """Decode TESTED tokens and compare them with the network's scores; raises RuntimeError if they are worse."""
        source = torch.arange(self.model.config.source_length, device=self.model.signal.device).unsqueeze(0) * 7 % 200
        size = min(self.prediction_heads, TESTED)
        loop = BlockwiseLoop(self, self.session(source, size), DecodeConfig(size), source[0, :1], size)
        loop.plain.state.limit.fill_(min(TESTED, self.length))
        while not loop.done():
            loop.run(1 + TESTED)
        tokens = loop.plain.state.tokens[:, : self.length]
        scores = self.model.scores(self.model(source, tokens))[0, :TESTED]  # [N, V]
        lost = scores.amax(1) - scores.gather(1, tokens[0, :TESTED, None])[:, 0]
        if not loop.is_native or float(lost.max()) > WORST[self.half]:
            raise RuntimeError(f"its test decoded {tokens[0, :TESTED].tolist()}, up to {float(lost.max()):.3f} below "
                               "the best scores")

    def decoder(self, plain: PlainDecoder) -> TritonDecoder | None:
        """Return the kernel's decoder; None, with a warning, if it cannot be compiled for these settings."""
        if self.broken or not supports(plain):
            return None
        made = TritonDecoder(plain)
        try:
            made.prepare()
        except Exception as error:  # of Triton or the driver
            self.broken = True
            LOG.warning("decoding with the engine plain, which is slower: %s",
                        (str(error).splitlines() or [repr(error)])[0])
            return None
        return made
