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
WORST = 1.0
"""How far a token's score may be below the best in the test with matrices in bfloat16."""


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
        self.said: set[str] = set()  # why the plain decoder served
        self.engine, self.half = "triton-bf16" if half else "triton", half
        kind = torch.bfloat16 if half else torch.float32
        if half:
            self.layers = half_precision(model.decoder)
        self.weights = pack(model, kind, tuning or (HALF if half else FLOAT))

    def session(self, source: Sources, width: int, padding: Tensor | None = None, copies: int = 1) -> TritonSession:
        memory = self.encode(source, padding, copies)
        return TritonSession(self.model, self.layers, memory, width, self.weights)

    def row_bytes(self, width: int, by_heads: bool) -> int:
        """See `StepModel.row_bytes`; the kernel has no scores in memory, but tables of its own, and a record."""
        if not by_heads:  # the plain decoder may serve
            return super().row_bytes(width, by_heads)
        config = self.model.config
        return self.length * (2 * 4 * config.width + 8 * (2 + width))

    @torch.inference_mode()
    def test(self) -> None:
        """Decode TESTED tokens and compare them with those of the plain decoder; raise RuntimeError if they differ.

        In float32, tokens are equal. In bfloat16 some are one off by rounding, so their scores must be nearly the best.
        The plain decoder runs on the same device, for a few milliseconds: so every network has such tokens, also one
        that has just been trained, and neither its encoder nor another machine's rounding is part of the comparison.
        """
        source = torch.arange(self.model.config.source_length, device=self.model.signal.device).unsqueeze(0) * 7 % 200
        loop = self._first_tokens(self, source)
        tokens = loop.plain.state.tokens[:, : self.length]
        first = tokens[0, :TESTED]
        if not loop.is_native:
            raise RuntimeError("its kernel does not decode with this network")
        if self.half:
            scores = self.model.scores(self.model(source, tokens))[0, :TESTED]  # [N, V]
            lost = float((scores.amax(1) - scores.gather(1, first.unsqueeze(1))[:, 0]).max())
            if not lost <= WORST:
                raise RuntimeError(f"its test decoded {first.tolist()}, up to {lost:.3f} below the best scores")
            return
        plain = self._first_tokens(StepModel(self.model, self.end_token), source)
        wanted = plain.plain.state.tokens[0, : self.length][:TESTED]
        if not torch.equal(first, wanted):
            raise RuntimeError(f"its test decoded {first.tolist()}, not {wanted.tolist()}")

    def _first_tokens(self, model: StepModel, source: Tensor) -> BlockwiseLoop:
        """Return the loop of a decode whose TESTED first tokens are decoded."""
        size = min(self.prediction_heads, TESTED)
        loop = BlockwiseLoop(model, model.session(source, size), DecodeConfig(size), source[0, :1], size)
        loop.plain.state.limit.fill_(min(TESTED, self.length))
        while not loop.done():
            loop.run(1 + TESTED)
        return loop

    def decoder(self, plain: PlainDecoder) -> TritonDecoder | None:
        """Return the kernel's decoder; None, and a warning once, if it lacks these settings or does not compile."""
        if self.broken:
            return None
        if not supports(plain):
            self._left(f"triton does not decode with {settings_text(plain.samplers.options)}")
            return None
        made = TritonDecoder(plain)
        try:
            made.prepare()
        except Exception as error:  # of Triton or the driver
            self.broken = True
            self._left((str(error).splitlines() or [repr(error)])[0])
            return None
        return made

    def _left(self, reason: str) -> None:
        """Say once why the plain decoder serves."""
        if reason not in self.said:
            self.said.add(reason)
            LOG.warning("decoding with the engine plain, which is slower: %s", reason)


def settings_text(options: DecodeConfig) -> str:
    """Return the settings of `options` that the kernel may lack as a line of text."""
    default = DecodeConfig()
    return ", ".join(f"{name} {getattr(options, name)}" for name in ("proposer", "accept", "sampling", "block_size")
                     if getattr(options, name) != getattr(default, name)) or "these settings"
