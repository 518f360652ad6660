"""The interface between network and decoder: all that `superres.decoding` uses of a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

import torch
import torch.distributed
from torch import Tensor


class Sampler:
    """Chooses tokens after the next one from their scores, as the verifier does."""

    limit: Callable[[Tensor], Tensor] | None = None
    """If the tokens are limited: chooses the possible tokens nearest to tokens [B, 1], whole numbers as floats, for the
    next offset. The limits depend on the tokens chosen before, so the calls are counted."""

    def __call__(self, scores: Tensor, offsets: Tensor) -> Tensor:
        """Return tokens int64 [B, N] chosen from scores [B, N, V]; `offsets` [N] count from the next token."""
        raise NotImplementedError

    def additive(self, offsets: Tensor) -> tuple[Tensor | None, Tensor | None] | None:
        """Return temperature [B, N, 1] and noise [B, N, V] if the choice is argmax(scores / temperature + noise).

        Both are None for the plain argmax. The result is None if the choice has another form.
        """
        return None

    def observe(self, centre: Tensor, slope: Tensor, tokens: Tensor) -> None:
        """Read centres and slopes [B, N] of ordinal heads, in grey levels, and the `tokens` [B, N] they proposed."""

    def observe_scores(self, scores: Tensor, tokens: Tensor) -> None:
        """Read the scores [B, 1, V] of the next head, of tokens without order, and the `tokens` [B, 1] it proposed."""


@dataclass
class StepOutput:
    """Result of one model call: p1's scores (logits) [B, W, V], and `state` for `Session.propose`, opaque otherwise."""

    scores: Tensor
    state: Any


class Tree:
    """A tree of the columns of a step, so that one step can verify several continuations (tree attention).

    The position of a column is the root's position plus the column's depth. A column attends to the committed tokens,
    to its ancestors and to itself, and to no other column of the step. This visibility mask is the same for all rows.

    Attributes:
        size: M, the number of columns.
        root: the column at the position that a step is given. Columns 0 to `root` form a chain, the trunk.
        scored: number of columns that are scored, the first ones; further columns only provide keys and values.
        ancestors: int64 [M, L]: the column itself, its parent and so on up to column 0, then -1. L is the longest path.
        depth: number of positions from the root to each column, int64 [M]; negative before the root.
    """

    def __init__(self, parents: Sequence[int], root: int = 0, scored: int | None = None) -> None:
        """Build a tree from the parent of each column, in any order; the parent is -1 for column 0 only.

        All columns are scored if `scored` is None. Raises ValueError if the parents do not form a tree, or columns 0 to
        `root` do not form a chain.
        """
        paths = []
        for column in range(len(parents)):
            path = [column]
            while parents[path[-1]] >= 0 and len(path) <= len(parents):  # a cycle is an error
                path.append(parents[path[-1]])
            paths.append(path)
        if not paths or any(path[-1] != 0 for path in paths) or paths[root] != [*range(root, -1, -1)]:
            raise ValueError(f"no tree from column 0 with a trunk up to column {root}: {list(parents)}")
        longest = max(map(len, paths))
        self.size, self.root, self.scored = len(paths), root, len(paths) if scored is None else scored
        self.ancestors = torch.tensor([path + [-1] * (longest - len(path)) for path in paths])
        self.depth = torch.tensor([len(path) - 1 - root for path in paths])


Sources: TypeAlias = Any
"""Source tokens [B, S], the result of `ScoringModel.encode`, or a tuple of such. Except for tuples, `sources[rows]` are
the sources of rows int64 [R]."""


class Session(Protocol):
    """A batch of sequences being decoded: the encoded sources and the cache, for one step width.

    Decoder position q reads token q - 1 (position 0 reads the start of the sequence) and scores token q.
    """

    width: int  # W, the number of tokens per step
    shape: tuple[int, ...]  # Shape of the raster of target positions, the last axis fastest; (T,) for text
    longest: Tensor | None
    """Largest number of tokens of each row's target if it ends with an end token, int64 [B]; None if that is T."""

    def step(self, tokens: Tensor, position: Tensor) -> StepOutput:
        """Read `tokens` [B, W] (int64) at decoder positions `position` [B] + 0..W-1 and score the tokens there.

        The step overwrites the cache entries of earlier steps at these positions, so a rollback only moves `position`
        back. At position 0 the first token is ignored. Positions past the end are allowed; their scores are undefined.
        """

    def propose(self, output: StepOutput, index: Tensor, first: Tensor, offsets: Tensor, sampler: Sampler) -> Tensor:
        """Return proposals int64 [B, N] of heads p2..p(N+1) at step column `index` [B] of `output`.

        `first` [B] is p1's token, which this column determined, and `offsets` are 1..N, the number of positions from
        it to each proposal. The tokens are chosen inside this method, because a sequential head reads the tokens chosen
        before its own: `sampler` is called once for all offsets, or once per offset in order.
        """

    def iterations(self, state: LoopState) -> Callable[[int, int], Tensor] | None:
        """Return a function that does native iterations, equal to those of the decoder's loop; None if unsupported.

        The function takes the number n of iterations and the block size of the proposals that the last one makes. It
        changes `state` in place and stops early when all rows are complete. It returns position, number of accepted
        tokens and proposals for each iteration and row, int64 [<= n, B, 2 + W]. With `block_costs`, -1 ends a block.
        """

    def resize(self, width: int) -> None:
        """Make the following steps read `width` tokens, at most the width that the session was made with."""

    def select(self, rows: Tensor, length: int) -> None:
        """Copy the first `length` decoder positions of row `rows[i]` (int64 [B]) to row i.

        Both rows must have the same source, as the hypotheses of a beam do.
        """

    def copy_rows(
        self, rows: Tensor, other: Any, chosen: Tensor, cache: bool = True,  # noqa: ANN401 -- of the same class
    ) -> None:
        """Copy rows `chosen` (int64 [R]) of `other`, a session of the same model and width, to rows `rows` (int64 [R]).

        Their previous contents are overwritten. A row that has read nothing yet needs no copy of the `cache`.
        """

    def row_state(self, cache: bool = True) -> list[Tensor]:
        """Return views of all tensors that belong to single rows, each [B, ...], in a fixed order per class.

        Without `cache`, the tensors of the cache are left out.
        """


class TreeSession(Session, Protocol):
    """A session whose steps read the columns of a tree; `width` is the fixed number of columns.

    `step` takes the position of the tree's root, and returns the scores of the first `tree.scored` columns. The next
    step discards all columns that `keep` has not committed.
    """

    tree: Tree

    def keep(self, columns: Tensor) -> None:
        """Commit a path of the latest step to the cache, as if its tokens had been read one after another.

        `columns` holds the path of each row from column 0 on, int64 [B, P], P at most `kept` of
        `ScoringModel.tree_session`. The last columns may be rejected ones: moving `position` back undoes them.
        """


class Peers:
    """The processes of a torch.distributed group that decode the same batch together, each with the same model.

    Every process loads the same checkpoint, sets `pipeline.scoring.peers = Peers()`, makes the same calls, and returns
    the whole result. `scripts/reproduce/lookahead_parallel.py` is an example that runs under torchrun.

    Attributes:
        rank: the number of this process.
        count: the number of processes.
        messages: number of messages that this process has sent so far, one to every other process per `gather`.
        sent_bytes: number of bytes of these messages.
    """

    def __init__(self, group: torch.distributed.ProcessGroup | None = None) -> None:
        """Use `group`, or the default group if None; torch.distributed must be initialised."""
        self.group, self.messages, self.sent_bytes = group, 0, 0
        self.rank, self.count = torch.distributed.get_rank(group), torch.distributed.get_world_size(group)

    def gather(self, values: Tensor) -> Tensor:
        """Return the `values` of all processes, [count, ...] in the order of ranks; they must have equal shapes."""
        self.messages += self.count - 1
        self.sent_bytes += (self.count - 1) * values.numel() * values.element_size()
        parts = [torch.empty_like(values) for _ in range(self.count)]
        torch.distributed.all_gather(parts, values.contiguous(), group=self.group)
        return torch.stack(parts)


Rule: TypeAlias = tuple[Literal["distance", "rank"], int]
"""A criterion as data. ("distance", e): |proposal - p1's choice| must be at most e grey levels, 0 for exact acceptance.
("rank", n): the proposal must be among the n tokens that p1 scores best."""


@dataclass(frozen=True)
class Sampling:
    """How a decode samples tokens, as data: see `superres.decoding.sampling`."""

    kind: str  # gumbel or speculative
    seed: int  # in [0, 2**63)
    keys: Tensor  # key of each row's noise, int64 [B]
    temperatures: Tensor  # T of each colour channel, float32 [1 or 3]
    top_k: int | None  # sample from the `top_k` likeliest tokens; None for all tokens
    nucleus: float  # sample from the likeliest tokens of this total probability
    # weights of the distributions that pending proposals were drawn from, int32 [B, W, V]; [B, 0, V] if the sampling is
    # not speculative
    q: Tensor
    q_total: Tensor  # sums of these weights, int64 [B, W]; 0 without a proposal


@dataclass(frozen=True)
class ProposerData:
    """A source of proposals as data, for native iterations: see `superres.decoding.proposers`."""

    kind: str  # heads, jacobi, draft, ngram, lookup or lookahead
    uses_heads: bool = False  # whether the prediction heads propose
    draft: Session | None = None  # session of the draft model for the same rows, which reads two tokens per step
    keys: Tensor | None = None  # contexts of n-grams in ascending order, int64 [N]
    known: Tensor | None = None  # the next token of each context, int64 [N]
    order: int = 0  # number of tokens of the longest n-gram
    channels: int = 0  # number of channels that n-grams are counted for
    source: Tensor | None = None  # source tokens, int64 [B, S]
    longest: int = 0  # largest number of latest tokens that are looked up in the source and the target


@dataclass(frozen=True)
class BlockCosts:
    """Data for choosing the block size of every iteration by its proposals: `superres.decoding.confidence`."""

    costs: Tensor  # seconds of an iteration at block sizes 1 to K, float64 [K]
    offset: float  # as in `superres.config.Confidence`
    exponent: float  # as in `superres.config.Confidence`
    reach: float  # distance from a proposal within which p1's centre must lie for the proposal to pass
    sizes: Tensor  # block size of each row's pending proposals, int64 [B]
    # running values of each row, float64 [B, 2 + channels]: expected tokens per row and seconds of the latest
    # iterations, and the probability that a proposal for each channel passes. The rows of a group, all rows in Python,
    # have the same values
    rate: Tensor


@dataclass(frozen=True)
class LookaheadData:
    """Layout and state of lookahead decoding as data: see `superres.decoding.proposers.lookahead.decoding`."""

    paths: Tensor  # columns of the root and of each candidate, int64 [G, N]
    guesses: Tensor  # columns of the window's last stage, int64 [W]
    cells: Tensor  # stage and window column of each column after the candidates, int64 [2, ...]
    window: Tensor  # tokens of the window, int64 [B, N - 1, W]
    grams: Tensor  # the pool of each row, int64 [B, C, N]; an entry that begins with -1 is empty


@dataclass(frozen=True)
class LoopState:
    """Tensors and settings of the decoder's loop that native iterations need besides a session."""

    position: Tensor  # number of committed tokens, int64 [B]; -1 before the start of the sequence was read
    limit: Tensor  # number of tokens at which each row is complete, int64 [B]
    store: Tensor  # committed tokens from column 1 on, int64 [B, 1 + T + W]
    proposals: Tensor  # pending proposals, int64 [B, W]; a step reads as many of them as it is wide
    block_size: int  # k
    min_block: int  # l, the number of tokens that every step accepts regardless of the rule
    rule: Rule  # the acceptance criterion
    end_token: int | None  # as in `ScoringModel`
    sampling: Sampling | None = None  # None if tokens are chosen greedily
    proposer: ProposerData = ProposerData("heads", True)  # source of proposals 2..k
    block_costs: BlockCosts | None = None  # choose the block size of every iteration; None if all have `block_size`
    # `earlier` and `bounds` of limits on the sums of groups of target tokens: see
    # `superres.decoding.sum_limits.Limits`; None without limits
    limits: tuple[Tensor, Tensor] | None = None
    lookahead: LookaheadData | None = None  # layout and state of lookahead decoding; None for other proposers


@dataclass
class GraphCapture:
    """CUDA graph capture of decoding iterations, on devices that support it."""

    # captures a function and returns a function that replays it. The captured function must read and write fixed memory
    # only, and must not read from the device
    capture: Callable[[Callable[[], None]], Callable[[], None]]
    loops: dict[Any, Any] = field(default_factory=dict)  # the decoder's graph cache, which persists between decodes


class ScoringModel(Protocol):
    """A model that the decoder can drive."""

    vocabulary: int  # V
    length: int  # T, the largest number of target tokens
    prediction_heads: int  # K, the number of heads p1..pK
    end_token: int | None  # Token that ends a sequence early; None if all sequences have length T
    graph_capture: GraphCapture | None
    """CUDA graph capture of iterations on its sessions; None if iterations are not captured."""
    own_threads: bool  # Whether its steps use threads of their own; torch then uses a single thread

    @property
    def peers(self) -> Peers | None:
        """The processes that divide the columns of a step; None for a single process."""

    @property
    def weight_bytes(self) -> int:
        """Number of bytes of its weights."""

    def encode(self, source: Sources, padding: Tensor | None = None) -> Sources:
        """Encode `source` [B, S] once for any number of sessions; `padding` is bool [B, S], True at padding."""

    def session(self, source: Sources, width: int, padding: Tensor | None = None, copies: int = 1) -> Session:
        """Make an empty session of step width `width`; `source` is encoded unless it is encoded already.

        The session has `copies` consecutive rows per source.
        """

    def tree_session(self, source: Sources, tree: Tree, kept: int, padding: Tensor | None = None) -> TreeSession:
        """Make an empty session whose steps read `tree`; `kept` is the largest number of columns to commit per step."""

    def uncached_scores(self, source: Tensor, target: Tensor, position: Tensor) -> Tensor:
        """Return the scores [B, K, V] of p1..pK after the first `position` [B] tokens of `target` [B, T], uncached.

        A sequential head pi also reads the following i - 1 tokens of `target`, the choices of the heads before it.
        """
