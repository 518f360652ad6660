"""The engine `triton`: a network whose iterations one launch of a Triton kernel does for a whole
batch."""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import replace
from typing import cast

import numpy as np
import torch
from torch import Tensor

from superres.config import DecodeConfig
from superres.decoding.algorithm import Algorithm
from superres.decoding.limits import Limits
from superres.decoding.plain.blockwise import PlainDecoder
from superres.decoding.plain.engine import PlainEngine, PlainRows
from superres.decoding.plain.limited import LimitedModel, unwrapped
from superres.errors import ConfigError
from superres.gpu.decoder import TritonDecoder, supports
from superres.gpu.session import TritonSession
from superres.gpu.weights import COLUMNS, FLOAT, HALF, Tuning, filling, pack
from superres.interfaces import Int64
from superres.nn.model import EncoderDecoder
from superres.nn.torch_model import StepModel, half_precision
from superres.sessions import ScoringModel, Sources
from superres.system.precision import float32_products

LOG = logging.getLogger(__name__)

TESTED = 8
"""Tokens that the engine's test decodes."""
LAST = 3
"""Rows of the test, the last ones, whose scores are compared with matrices in bfloat16."""
WORST, IMPROBABLE = 1.0, 16.0
"""How far a token's score may be below the best in the test with matrices in bfloat16; and how much
further, times the temperature, if the token is drawn at random."""


class TritonModel(StepModel):
    """`EncoderDecoder` as a `superres.sessions.ScoringModel` whose iterations run in one kernel.

    Exact blocks have the tokens of one token per step, bit for bit, at every block size and batch
    size. The kernel has room for COLUMNS prediction heads. What it does not support, the plain
    decoder does with the same weights.

    Args:
        model: the network in evaluation mode, on a GPU, or on a CPU under TRITON_INTERPRET=1.
        end_token: token that ends a sequence early.
        half: store matrices, keys and values as bfloat16; sums are in float32.
        tuning: how the kernel is compiled, by default as was fastest on an H200.

    Raises:
        ConfigError: the model is on another device, or the kernel does not decode with it.
    """

    def __init__(
        self, model: EncoderDecoder, end_token: int | None = None, *, half: bool = False,
        tuning: Tuning | None = None,
    ) -> None:
        if model.signal.device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
            raise ConfigError(f"engine triton runs on a GPU, not on {model.signal.device}; choose "
                              "plain or native")
        super().__init__(model, end_token)
        self.prediction_heads = min(self.prediction_heads, COLUMNS)
        # whether the kernel could not be compiled for some settings, or failed its test
        self.broken = False
        self.said: set[str] = set()  # why the plain decoder served
        # kernels that need no test; None if there is none
        self.tested: set[tuple[int, ...]] | None = None
        self.testing = threading.RLock()
        self.engine, self.half = "triton-bf16" if half else "triton", half
        kind = torch.bfloat16 if half else torch.float32
        if half:
            self.layers = half_precision(model.decoder)
        self.weights = pack(model, kind, tuning or (HALF if half else FLOAT))

    @float32_products()
    def session(self, source: Sources, width: int, padding: Tensor | None = None,
                copies: int = 1) -> TritonSession:
        memory = self.encode(source, padding, copies)
        return TritonSession(self.model, self.layers, memory, width, self.weights)

    def row_bytes(self, width: int, by_heads: bool) -> int:
        """See `StepModel.row_bytes`; the kernel has no scores in memory, but tables of its own, and
        a record."""
        if not by_heads:  # the plain decoder may serve
            return super().row_bytes(width, by_heads)
        config = self.model.config
        return self.length * (2 * 4 * config.width + 8 * (2 + width))

    def test(self) -> None:
        """Test the kernel of greedy decoding, and from now on each other kernel before its first
        use.

        Raises RuntimeError if it fails.
        """
        self.tested, rows = None, self._compare(DecodeConfig(), None, 1)
        self.tested = {rows.decoder.variant} if isinstance(rows.decoder, TritonDecoder) else set()

    def _test_kernel_of(self, decoder: TritonDecoder) -> None:
        """Test a decoder's kernel once: limits, sampling and rows per program make other kernels of
        the same text."""
        with self.testing:
            if self.tested is None or decoder.variant in self.tested:
                return
            self.tested.add(decoder.variant)  # the decoders of the test are not tested
            rows = 1 if decoder.tuning.rows == 1 else filling(self.model.signal.device) + 2
            found, options = unwrapped(decoder.plain.session)[1], decoder.plain.samplers.options
            self._compare(options, None if found is None else found.limits, rows)

    @torch.inference_mode()
    def _compare(self, options: DecodeConfig, limits: Limits | None, count: int) -> PlainRows:
        """Decode TESTED tokens of `count` rows and compare them with those of the plain decoder;
        return the rows.

        In float32, tokens are equal. In bfloat16 some are one off by rounding, so their scores must
        be nearly the best. The plain decoder runs on the same device, for a few milliseconds: so
        every network has such tokens, also one that has just been trained, and neither its encoder
        nor another machine's rounding is part of the comparison.

        Raises RuntimeError if they differ.
        """
        source = np.arange(self.model.config.source_length)
        source = (source + 3 * np.arange(count)[:, None]) * 7 % 200
        options = replace(options, block_size=min(self.prediction_heads, TESTED), accept="exact",
                          min_block=1)
        limited, name = limits is not None, "its test"
        if limited or options.is_sampling or count > 1:
            name += (f" of temperature {options.temperature}, {options.sampling} sampling, limits "
                     f"{limited} and rows {count}")
        rows = self._first_tokens(self, source, options, limits)
        if not rows.compiled:
            raise RuntimeError("its kernel does not decode with this network")
        plain = StepModel(self.model, self.end_token)
        if self.half:
            lost = self._lost(rows, plain if limits is None else LimitedModel(plain, limits),
                              torch.from_numpy(source).to(self.device))
            if not lost <= WORST:
                found = rows.results(np.arange(count))[0][-1, :TESTED].tolist()
                raise RuntimeError(f"{name} decoded {found}, up to {lost:.3f} below the best "
                                   "scores")
            return rows
        every = np.arange(count)
        wanted = self._first_tokens(plain, source, options, limits).results(every)[0]
        for one, other in zip(rows.results(every)[0][:, :TESTED].tolist(),
                              wanted[:, :TESTED].tolist(), strict=True):
            if one != other:
                raise RuntimeError(f"{name} decoded {one}, not {other}")
        return rows

    def _lost(self, rows: PlainRows, model: ScoringModel, source: Tensor) -> float:
        """Return how far the score of a token of the last rows is below the best, at most.

        Scores are those of the network in float32, for coupled sampling with its noise. A token
        that is drawn at random may have a lower score, unless it is improbable.
        """
        tokens, samplers = rows.plain.state.tokens[:, : self.length], rows.plain.samplers
        # [B, N]
        place = torch.arange(self.length, device=source.device)[:TESTED].expand(len(source), -1)
        last = slice(-LAST, None)
        scores = torch.stack([model.uncached_scores(source[last], tokens[last], one)[:, 0]
                              for one in place[last].unbind(1)], dim=1).double()  # [B, N, V]
        allowed = scores.new_zeros(())
        if samplers.noise is not None:
            temperature, options = samplers.temperature(place)[last], samplers.options  # [B, N, 1]
            if samplers.speculative or options.nucleus < 1 or options.sample_top_k is not None:
                allowed = IMPROBABLE * temperature
            else:
                scores += samplers.at(place).noise[last] * temperature
        own = scores.gather(-1, tokens[last, :TESTED].unsqueeze(-1))
        return float((scores.amax(-1, keepdim=True) - own - allowed).max())

    def _first_tokens(
        self, model: StepModel, source: Int64, options: DecodeConfig, limits: Limits | None,
    ) -> PlainRows:
        """Return rows whose TESTED first tokens are decoded."""
        algorithm = Algorithm(PlainEngine(model), options, limits=limits)
        rows = cast(PlainRows, algorithm.start(source, options.block_size or 1))
        rows.plain.state.limit.fill_(min(TESTED, self.length))
        while not rows.complete().all():
            rows.advance(1 + TESTED)
        return rows

    def decoder(self, plain: PlainDecoder) -> TritonDecoder | None:
        """Return the kernel's decoder; None, and a warning once, if it lacks these settings or does
        not compile."""
        if self.broken:
            return None
        if not supports(plain):
            self._left(f"triton does not decode with {settings_text(plain.samplers.options)}")
            return None
        made = TritonDecoder(plain)
        try:
            made.prepare()
            self._test_kernel_of(made)
        except Exception as error:  # of Triton, the driver or the test
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
    return ", ".join(f"{name} {getattr(options, name)}"
                     for name in ("proposer", "accept", "sampling", "block_size")
                     if getattr(options, name) != getattr(default, name)) or "these settings"
