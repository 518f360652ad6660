"""The interfaces between networks, decoders and pipelines, in numpy: an `Engine` encodes sources
and starts a `Decoder`. What engines on torch consist of is in `superres.sessions`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from superres.config import CostRecord, ModelConfig

Int64: TypeAlias = npt.NDArray[np.int64]
Bool: TypeAlias = npt.NDArray[np.bool_]
Float32: TypeAlias = npt.NDArray[np.float32]
Float64: TypeAlias = npt.NDArray[np.float64]

NO_DRAFTS = ("this decoder takes no tokens from outside; decode in blocks of a fixed size by the "
             "prediction heads, on a CPU")


@dataclass(eq=False)
class Network:
    """A network as data.

    Attributes:
        config: its settings.
        arrays: its weights, contiguous float32, by the names of
            `superres.config.parameters.parameter_shapes`.
        revision: first digits of the SHA-256 of the file that they were read from.
        module: the same network on torch, on the CPU, once something has asked
            `superres.nn.weights.module_of` for it.
    """

    config: ModelConfig
    arrays: Mapping[str, Float32]
    revision: str = ""
    module: Any = None


class Encoded(Protocol):
    """Sources, ready to begin in rows of a decoder of the same engine and settings."""

    def __len__(self) -> int:
        """Return the number of sources."""

    def __getitem__(self, rows: Int64) -> Encoded:
        """Return the sources `rows` [R]."""


class Decoder(Protocol):
    """Runs the iterations of the B rows that it holds."""

    @property
    def block_size(self) -> int:
        """Size of the pending blocks, k."""

    @property
    def width(self) -> int:
        """Number of columns of a step."""

    @property
    def compiled(self) -> bool:
        """Whether one call runs whole iterations, and ends with the last row."""

    def advance(self, count: int) -> Int64:
        """Do up to `count` iterations of one block size, none only if all rows are complete, and
        return their trace.

        int64 [N, B, 2 + W]: position, number of accepted tokens and proposals. Raises ScoresError,
        at once or when the rows are asked for, if scores are not finite.
        """

    def resize(self, block_size: int) -> None:
        """Propose blocks of `block_size`, at most the width that the decoder was made with, from
        the end of the next iteration on; steps become as wide."""

    def pending(self) -> Int64:
        """Return the tokens [B, k] that the next iteration verifies: p1's own choice, and
        proposals."""

    def offer(self, tokens: Int64) -> None:
        """Let the next iteration verify `tokens` [B, N] from outside, N from 1 to k, instead.

        The first is committed as it is: p1's own choice, or to repeat a decode, a token of it.
        Raises ConfigError if the decoder takes none.
        """

    def accept(self, epsilon: int) -> None:
        """Accept tokens within `epsilon` grey levels of p1's choice from now on."""

    def replace(self, rows: Int64, encoded: Any, keys: Int64) -> None:  # noqa: ANN401 -- the engine's own `Encoded`
        """Begin the sequences of `encoded` in `rows` [R], each of which occurs once; `keys` [R] are
        those of the sampling noise."""

    def keep(self, rows: Int64) -> None:
        """Continue with `rows` [R] only."""

    def complete(self) -> Bool:
        """Return whether each row is complete, [B]; raises ScoresError if scores are not finite."""

    def positions(self) -> Int64:
        """Return the number of committed tokens of each row [B]; -1 where the start has yet to be
        read."""

    def results(self, rows: Int64) -> tuple[Int64, Int64]:
        """Return the tokens [R, T] of `rows` [R] so far, then 0, and the numbers of tokens [R]."""

    def seek(self, position: int) -> None:
        """Go on at `position` in all rows, which no end token ends from now on: to time
        iterations. Tokens are overwritten."""


class Engine(Protocol):
    """What computes with one network on one device, and decodes with it."""

    name: str  # as in `superres.config.ENGINE_NAMES`
    adaptive: bool
    """Whether wider steps cost so much more that block sizes are chosen by their cost."""
    confident: bool
    """Whether the heads' confidence can choose the block size of every iteration."""
    costs: CostRecord  # of decoding on this class of processors, by which block sizes are chosen
    peers: Any  # the processes that divide the columns of a step; None for a single process
    vocabulary: int  # V
    length: int  # T, the largest number of target tokens
    prediction_heads: int  # K, the number of heads p1..pK
    end_token: int | None  # token that ends a sequence early; None if all sequences have length T

    @property
    def device(self) -> str:
        """The kind of device, "cpu" or "cuda"."""

    @property
    def network(self) -> Network:
        """The network as data."""

    @property
    def code(self) -> str:
        """What computes the steps, by which measured times are kept: the engine, and the compiled
        library if any."""

    @property
    def variant(self) -> str:
        """The class of processors of the engine's recorded costs: the variant of compiled code, or
        the device."""

    @property
    def weight_bytes(self) -> int:
        """Number of bytes of its weights."""

    def supporting(self, algorithm: Any) -> Engine:  # noqa: ANN401 -- `superres.decoding.algorithm.Algorithm`
        """Return the engine that runs the iterations of an algorithm: this one, or on torch."""

    def encode(self, tokens: Int64, padding: Bool | None, algorithm: Any) -> Encoded:  # noqa: ANN401 -- as above
        """Encode sources [B, S], with what the algorithm's limits and proposer need of them;
        `padding` [B, S] is True at padding."""

    def joined(self, parts: Sequence[Any]) -> Encoded:
        """Return the sources of all parts, which have the same S."""

    def start(
        self, encoded: Any, keys: Int64, algorithm: Any,  # noqa: ANN401 -- as above, and its own `Encoded`
        block_size: int, confident: Any = None,  # noqa: ANN401 -- `superres.decoding.confidence.ConfidentBlockSize`
    ) -> Decoder:
        """Begin the sequences of `encoded` in rows of their own, in blocks of `block_size`.

        `keys` [B] are those of the sampling noise. `confident` chooses the block size of every
        iteration; None leaves it to `Decoder.resize`.
        """

    def likelihood(self, sources: Int64, targets: Int64) -> tuple[Float64, Float32]:
        """Return what p1 says of targets [B, T] of sources [B, S], in float32 and without limits:
        bits per token [B], and the variance of its distribution of each token [B, T]."""

    def row_bytes(self, width: int, by_heads: bool) -> int:
        """Return the bytes that a row of a decode with steps of `width` needs, beside its memory
        and its cache.

        `by_heads` says that the heads propose, and that each token is verified by itself.
        """

    def side_by_side(self, decodes: int) -> Sequence[Engine]:
        """Return the engines with which up to `decodes` decodes run fastest at the same time, each
        with one of them.

        They share the weights. There is only one if a decode on all threads is as fast as several
        on fewer.
        """

    def on_torch(self) -> Any:  # noqa: ANN401 -- a `superres.sessions.EngineModel`
        """Return the engine as a model whose sessions read and return tensors."""
