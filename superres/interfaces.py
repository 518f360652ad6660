"""The seam between the network and the decoder: what `superres.decoding` knows of a model, and nothing more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor


class Choose(Protocol):
    """Turns scores of tokens past the next one into tokens, as the verifier does."""

    def __call__(self, scores: Tensor, offsets: Tensor) -> Tensor:
        """Return the tokens [B, N], int64, chosen by scores [B, N, V] at `offsets` [N] past the next token."""
        ...

    def additive(self, offsets: Tensor) -> tuple[Tensor | None, Tensor | None] | None:
        """Return temperature [B, N, 1] and noise [B, N, V], if what is chosen is argmax(scores / temperature + noise).

        Both are None for the plain argmax. None where the choice is made in another way.
        """
        ...


@dataclass
class StepOutput:
    """Result of one model call.

    Attributes:
        scores: p1's scores (logits) [B, W, V].
        state: whatever the session needs to score proposals later; opaque to the decoder.
    """

    scores: Tensor
    state: Any


class Tree:
    """Columns of a step that are alternatives to one another, so that one step may verify several continuations.

    A column reads its token after those of its ancestors: its position is as many places from the root's as they are
    apart in the tree, and of the step's columns it sees its ancestors and itself alone, whatever else stands at the
    same positions. That is the step's visibility mask, the same for all rows.

    Attributes:
        size: M, columns.
        root: the column whose position a step is given. Columns 0 to `root` follow one another.
        scored: the first so many columns are scored; the others are only seen.
        ancestors: int64 [M, L]: the column itself, its parent and so on up to column 0, then -1. L is the longest path.
        depth: places that each column stands after the root, int64 [M]; negative before it.
    """

    def __init__(self, parents: Sequence[int], root: int = 0, scored: int | None = None) -> None:
        """Build a tree.

        Args:
            parents: the column that each column follows, in any order; -1 for column 0 alone.
            root: see above.
            scored: see above; all columns if None.

        Raises:
            ValueError: that is no tree, or columns 0 to `root` do not follow one another.
        """
        paths = []
        for column in range(len(parents)):
            path = [column]
            while parents[path[-1]] >= 0 and len(path) <= len(parents):  # a circle is no tree
                path.append(parents[path[-1]])
            paths.append(path)
        if not paths or any(path[-1] != 0 for path in paths) or paths[root] != [*range(root, -1, -1)]:
            raise ValueError(f"no tree from column 0 with a trunk up to column {root}: {list(parents)}")
        longest = max(map(len, paths))
        self.size, self.root, self.scored = len(paths), root, len(paths) if scored is None else scored
        self.ancestors = torch.tensor([path + [-1] * (longest - len(path)) for path in paths])
        self.depth = torch.tensor([len(path) - 1 - root for path in paths])

    @property
    def visible(self) -> Tensor:
        """The visibility mask: whether a column (rows) sees another one (columns), bool [M, M]."""
        return (self.ancestors.unsqueeze(2) == torch.arange(self.size)).any(1)


Sources: TypeAlias = Any
"""Source tokens [B, S], or what `ScoringModel.encode` has made of them; `sources[rows]` are those of rows int64 [R]."""


class Session(Protocol):
    """A batch of sequences being decoded: the memory of its sources and the cache, for one step width.

    Decoder position q reads token q - 1 (position 0 reads the start of the sequence) and scores token q.
    """

    width: int
    """W, tokens a step."""
    shape: tuple[int, ...]
    """Shape of the raster that the target positions run over, the last axis fastest; (T,) for text."""
    estimate: Tensor | None
    """Tokens expected before decoding starts, one a target position, float [B, T]; None where nothing is expected."""

    def step(self, tokens: Tensor, position: Tensor) -> StepOutput:
        """Read `tokens` [B, W] (int64) at decoder positions `position` [B] + 0..W-1 and score the tokens there.

        Overwrites what earlier steps wrote at these positions, so moving `position` back is the whole of a rollback.
        At position 0 the first token is ignored. Positions past the end are allowed; their scores are meaningless.
        """
        ...

    def propose(self, output: StepOutput, index: Tensor, first: Tensor, offsets: Tensor, choose: Choose) -> Tensor:
        """Propose with heads p2..p(N+1) at step column `index` [B] of `output`.

        Choosing happens in here because a sequential head reads the tokens chosen before its own.

        Args:
            output: result of a step.
            index: column whose scores chose `first`, [B].
            first: p1's token there, [B].
            offsets: 1..N, how far past `first` the proposals stand.
            choose: turns the heads' scores into tokens; may be called once for all offsets or once for each, in order.

        Returns:
            Tokens [B, N], int64.
        """
        ...

    def resize(self, width: int) -> None:
        """Let the following steps read `width` tokens, at most as many as the session was made for."""
        ...

    def select(self, rows: Tensor, length: int) -> None:
        """Let row i go on from what row `rows[i]` (int64 [B]) has read at decoder positions 0 .. `length` - 1.

        Both must have the same source, as the hypotheses of a beam have.
        """
        ...

    def copy_rows(
        self, rows: Tensor, other: Any, chosen: Tensor, cache: bool = True,  # noqa: ANN401 -- of the same class
    ) -> None:
        """Copy rows `chosen` [R] of `other` to the rows `rows` [R]; their previous contents are overwritten.

        Args:
            rows: int64 [R].
            other: a session of the same model and width.
            chosen: int64 [R].
            cache: also copy the cache. A row that has read nothing yet needs none.
        """
        ...

    def row_state(self, cache: bool = True) -> list[Tensor]:
        """Return views of all tensors that belong to single rows, each [B, ...], in a fixed order per class.

        Args:
            cache: include the cache.
        """
        ...


class TreeSession(Session, Protocol):
    """A session whose steps read the columns of a tree; `width` is their number, and does not change.

    `step` takes the position of the tree's root. What it reads is forgotten by the next step, except for what is kept.
    Only the first `tree.scored` columns of its scores are there.
    """

    tree: Tree

    def keep(self, columns: Tensor) -> None:
        """Commit a path of the latest step, as if its tokens had been read one after another.

        Args:
            columns: the path of each row from column 0 on, int64 [B, P], P at most what the session was made for. Its
                end may be arbitrary: moving `position` back undoes it.
        """
        ...


class Peers(Protocol):
    """Several processes that decode the same batch together, each with the same model."""

    rank: int
    """Number of this process."""
    count: int
    """How many there are."""

    def gather(self, values: Tensor) -> Tensor:
        """Tell the others `values`, of a shape that all share; return those of all, [count, ...], in order of ranks."""
        ...


Rule: TypeAlias = tuple[Literal["distance", "rank"], int]
"""A criterion as data: which proposals pass. ("distance", e): |proposal - p1's choice| is at most e, in grey levels; e
is 0 for exact acceptance. ("rank", n): the proposal is among the n tokens that p1 scores best."""


@dataclass(frozen=True)
class LoopState:
    """The memory of the decoder's loop and its settings: all that whole iterations need besides a session.

    Attributes:
        position: tokens committed so far, int64 [B]; -1 where a row has yet to read the start of its sequence.
        limit: where rows end, int64 [B].
        store: committed tokens from column 1 on, int64 [B, 1 + T + W].
        proposals: pending ones, int64 [B, W], of which as many count as the session's steps are wide.
        block_size: k.
        min_block: l, tokens accepted per step whatever the rule says.
        rule: which proposals pass.
        end_token: as in `ScoringModel`.
    """

    position: Tensor
    limit: Tensor
    store: Tensor
    proposals: Tensor
    block_size: int
    min_block: int
    rule: Rule
    end_token: int | None


@runtime_checkable
class IteratingSession(Protocol):
    """A session that may know how to do whole iterations of decoding by itself."""

    def iterations(self, state: LoopState) -> Callable[[int, int], Tensor] | None:
        """Return what does n iterations, exactly as the decoder's loop would, or None where that is not known.

        Called with n and the block size of the proposals that the last of them makes, it changes `state` in place,
        ends early when all rows are complete, and returns for each iteration and row position, accepted tokens and
        proposals, int64 [<= n, B, 2 + W].
        """
        ...


@dataclass
class Replaying:
    """How iterations of decoding are captured once and replayed, on devices that can.

    Attributes:
        capture: turns work that always reads and writes the same memory, has no other effect and reads nothing back to
            the host, into what does that work again and again.
        kept: what the decoder keeps with the model from one decode to the next.
    """

    capture: Callable[[Callable[[], None]], Callable[[], None]]
    kept: dict[Any, Any] = field(default_factory=dict)


class ScoringModel(Protocol):
    """A model that the decoder can drive."""

    vocabulary: int
    """V."""
    length: int
    """T, the largest number of target tokens."""
    prediction_heads: int
    """K, heads p1..pk."""
    end_token: int | None
    """Token that ends a sequence early, or None where sequences have a fixed length."""
    replaying: Replaying | None
    """How an iteration on its sessions is captured, whose steps keep to the same memory; None where it is called."""
    own_threads: bool
    """Whether its steps have threads of their own, beside which torch's would only be in the way."""

    @property
    def peers(self) -> Peers | None:
        """Processes among which a step's branches are spread; None where this one decodes alone."""

    @property
    def held_bytes(self) -> int:
        """Bytes of its weights."""

    def encode(self, source: Sources, padding: Tensor | None = None) -> Sources:
        """Encode `source` [B, S] (padding True in `padding` [B, S]), once for any number of sessions."""
        ...

    def session(self, source: Sources, width: int, padding: Tensor | None = None, copies: int = 1) -> Session:
        """Encode `source` unless it is encoded, and make an empty session of step width `width`.

        The session has `copies` rows for each source, one after another.
        """
        ...

    def tree_session(self, source: Sources, tree: Tree, kept: int, padding: Tensor | None = None) -> TreeSession:
        """Make an empty session whose steps read `tree`, and of each at most a path of `kept` columns is kept.

        Arguments else as for `session`.
        """
        ...

    def uncached_scores(self, source: Tensor, target: Tensor, position: Tensor) -> Tensor:
        """Score p1..pk without a cache after the first `position` [B] tokens of `target` [B, T], as [B, K, V].

        A sequential head pi reads the i - 1 tokens of `target` after those, too: what was chosen before its own.
        """
        ...
