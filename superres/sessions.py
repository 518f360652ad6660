"""What engines on torch consist of, as the plain decoder sees it: models, whose sessions, samplers
and proposals are tensors, and trees of columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from superres.config import CostRecord
    from superres.interfaces import Network


class Sampler:
    """Chooses tokens after the next one from their scores, as the verifier does."""

    limit: Callable[[Tensor], Tensor] | None = None
    """Chooses the possible tokens nearest to [B, 1], whole numbers as floats, at the next offset;
    None: no limits."""

    def __call__(self, scores: Tensor, offsets: Tensor) -> Tensor:
        """Return tokens int64 [B, N] chosen from scores [B, N, V]; `offsets` [N] count from the
        next token."""
        raise NotImplementedError

    def additive(self, offsets: Tensor) -> tuple[Tensor | None, Tensor | None] | None:
        """Return T [B, N, 1] and noise [B, N, V] of argmax(scores / T + noise), both None without;
        else None alone."""
        return None

    def observe(self, centre: Tensor, slope: Tensor, tokens: Tensor) -> None:
        """Read centres and slopes [B, N] of ordinal heads, in grey levels, and their proposals
        `tokens` [B, N]."""

    def observe_scores(self, scores: Tensor, tokens: Tensor) -> None:
        """Read the scores [B, 1, V] of the next head, of tokens without order, and the `tokens` [B,
        1] it proposed."""


@dataclass
class StepOutput:
    """Result of one model call: p1's scores (logits) [B, W, V], and `state` for `Session.propose`,
    opaque otherwise."""

    scores: Tensor
    state: Any


Sources: TypeAlias = Any
"""Source tokens [B, S], the result of `ScoringModel.encode`, or a tuple of such. Except for tuples,
`sources[rows]` are the sources of rows int64 [R]."""


class Session(Protocol):
    """The encoded sources and the cache of a batch. Decoder position q reads token q - 1 and scores
    token q."""

    width: int  # W, the number of tokens per step
    # Shape of the raster of target positions, the last axis fastest; (T,) for text
    shape: tuple[int, ...]
    # largest number of tokens of each row that ends with an end token, int64 [B]; None for T
    longest: Tensor | None

    def step(self, tokens: Tensor, position: Tensor) -> StepOutput:
        """Read `tokens` [B, W] (int64) at decoder positions `position` [B] + 0..W-1 and score the
        tokens there.

        It overwrites the cache at these positions, so a rollback only moves `position` back.
        Position 0 reads the start of the sequence instead of its token. Scores of positions past
        the end are undefined.
        """

    def propose(self, output: StepOutput, index: Tensor, first: Tensor, offsets: Tensor,
                sampler: Sampler) -> Tensor:
        """Return proposals int64 [B, N] of heads p2..p(N+1) at step column `index` [B] of `output`.

        `first` [B] is p1's token after this column, and `offsets` are 1..N, counted from it. A head
        may read the tokens of the heads before it, so `sampler` is called here: for all offsets at
        once, or once per offset in order.
        """

    def resize(self, width: int) -> None:
        """Make the following steps read `width` tokens, at most the width that the session was made
        with."""

    def select(self, rows: Tensor, length: int) -> None:
        """Copy the first `length` decoder positions of row `rows[i]` (int64 [B]), of the same
        source, to row i."""

    def copy_rows(
        self, rows: Tensor, other: Any, chosen: Tensor, cache: bool = True,  # noqa: ANN401 -- of the same class
    ) -> None:
        """Overwrite `rows` int64 [R] by rows `chosen` [R] of `other`, a session of the same model
        and width.

        A row that has read nothing yet needs no copy of the `cache`.
        """

    def row_state(self, cache: bool = True) -> list[Tensor]:
        """Return views of all tensors of single rows, or all but the cache's, [B, ...], in a fixed
        order per class."""


class Tree:
    """A tree of the columns of a step, so that one step can verify several continuations (tree
    attention).

    The position of a column is the root's position plus the column's depth. A column attends to the
    committed tokens, to its ancestors and to itself, and to no other column of the step. This
    visibility mask is the same for all rows.

    Attributes:
        size: M, the number of columns.
        root: the column at the position that a step is given. Columns 0 to `root` form a chain, the
            trunk.
        scored: number of columns that are scored, the first ones; further columns only provide keys
            and values.
        ancestors: int64 [M, L]: the column itself, its parent and so on up to column 0, then -1. L
            is the longest path.
        depth: number of positions from the root to each column, int64 [M]; negative before the
            root.
    """

    def __init__(self, parents: Sequence[int], root: int = 0, scored: int | None = None) -> None:
        """Build a tree from the parent of each column, in any order; the parent is -1 for column 0
        only.

        All columns are scored if `scored` is None. Raises ValueError if the parents do not form a
        tree, or columns 0 to `root` do not form a chain.
        """
        paths = []
        for column in range(len(parents)):
            path = [column]
            while parents[path[-1]] >= 0 and len(path) <= len(parents):  # a cycle is an error
                path.append(parents[path[-1]])
            paths.append(path)
        trunk = [*range(root, -1, -1)]
        if not paths or any(path[-1] != 0 for path in paths) or paths[root] != trunk:
            raise ValueError(f"no tree from column 0 with a trunk up to column {root}: "
                             f"{list(parents)}")
        longest = max(map(len, paths))
        self.size, self.root = len(paths), root
        self.scored = self.size if scored is None else scored
        self.ancestors = np.array([path + [-1] * (longest - len(path)) for path in paths])
        self.depth = np.array([len(path) - 1 - root for path in paths])


class TreeSession(Session, Protocol):
    """A session whose steps read the columns of a tree; `width` is the fixed number of columns.

    `step` takes the position of the tree's root, and returns the scores of the first `tree.scored`
    columns. The next step discards all columns that `commit` has not kept.
    """

    tree: Tree

    def commit(self, columns: Tensor) -> None:
        """Commit a path of the latest step to the cache, as if its tokens had been read one after
        another.

        `columns` holds the path of each row from column 0 on, int64 [B, P], P at most `kept` of
        `ScoringModel.tree_session`. The last columns may be rejected ones: moving `position` back
        undoes them.
        """


class TensorDecoder(Protocol):
    """Runs the iterations of the rows of a `superres.decoding.plain.blockwise.PlainDecoder`, which
    is one itself."""

    def advance(self, count: int) -> Tensor:
        """See `Decoder.advance`; of other rows than those of a kernel, a single iteration."""

    def shrink(self, rows: Tensor, session: Session) -> None:
        """Continue with `rows` int64 [R] only, in `session`, an empty session of R rows made for
        the same width."""


class ScoringModel(Protocol):
    """A model on torch that the plain decoder can drive."""

    vocabulary: int  # V
    length: int  # T, the largest number of target tokens
    prediction_heads: int  # K, the number of heads p1..pK
    end_token: int | None  # Token that ends a sequence early; None if all sequences have length T
    own_threads: bool  # Whether its steps use threads of their own; torch then uses a single thread

    @property
    def device(self) -> torch.device:
        """The device of its weights."""

    @property
    def peers(self) -> Any:  # noqa: ANN401 -- `superres.decoding.plain.lookahead.peers.Peers`
        """The processes that divide the columns of a step; None for a single process."""

    @property
    def weight_bytes(self) -> int:
        """Number of bytes of its weights."""

    def encode(self, source: Sources, padding: Tensor | None = None) -> Sources:
        """Encode `source` [B, S] once for any number of sessions; `padding` is bool [B, S], True at
        padding."""

    def session(self, source: Sources, width: int, padding: Tensor | None = None,
                copies: int = 1) -> Session:
        """Make an empty session of step width `width`, of `copies` consecutive rows per source,
        encoded or not."""

    def tree_session(self, source: Sources, tree: Tree, kept: int,
                     padding: Tensor | None = None) -> TreeSession:
        """Make an empty session whose steps read `tree` and commit at most `kept` of its
        columns."""

    def decoder(self, plain: Any) -> TensorDecoder | None:  # noqa: ANN401 -- a `superres.decoding.plain.blockwise.PlainDecoder`
        """Return a faster decoder that takes over the rows of `plain`, or None if it does not
        support them."""

    def uncached_scores(self, source: Tensor, target: Tensor, position: Tensor) -> Tensor:
        """Return p1..pK's scores [B, K, V] after `position` [B] tokens of `target` [B, T]; heads
        may read the next."""


class EngineModel(ScoringModel, Protocol):
    """A model on torch that an engine wraps; `engine` is the engine's name. See `Engine` for the
    others."""

    engine: str
    adaptive: bool
    costs: CostRecord

    @property
    def network(self) -> Network:
        """See `Engine.network`."""

    @property
    def code(self) -> str:
        """See `Engine.code`."""

    @property
    def variant(self) -> str:
        """See `Engine.variant`."""

    def likelihood(self, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """See `Engine.likelihood`."""

    def row_bytes(self, width: int, by_heads: bool) -> int:
        """See `Engine.row_bytes`."""
