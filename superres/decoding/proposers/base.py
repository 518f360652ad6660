"""What a proposer is: what it may look at, what is told of it, and what it keeps for each row of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:  # the command line lists the proposers in its help, which must not wait for torch
    from torch import Tensor

    from superres.config import DecodeConfig
    from superres.interfaces import Choose, Peers, ScoringModel, Session, Sources, StepOutput, Tree, TreeSession


@dataclass
class Context:
    """What a proposer may look at.

    Attributes:
        session: the model's session.
        output: result of the latest step.
        index: step column whose position comes next, [B].
        position: tokens committed so far, [B].
        first: the token at `position`, already chosen by the loop, [B].
        tokens: committed tokens [B, T + W]; those at `position` and later are undefined.
        choose: turns scores of the tokens at `position` + offsets into tokens, exactly as the verifier does (or, in
            speculative sampling, as proposals are to be drawn).
    """

    session: Session
    output: StepOutput
    index: Tensor
    position: Tensor
    first: Tensor
    tokens: Tensor
    choose: Choose


class Companion(Protocol):
    """What a proposer keeps for each row of a batch; a draft model's session is one."""

    def select(self, rows: Tensor, length: int) -> None:
        """See `superres.interfaces.Session.select`."""

    def copy_rows(
        self, rows: Tensor, other: Any, chosen: Tensor, cache: bool = True,  # noqa: ANN401 -- of the same class
    ) -> None:
        """See `superres.interfaces.Session.copy_rows`."""

    def row_state(self, cache: bool = True) -> list[Tensor]:
        """See `superres.interfaces.Session.row_state`."""


class Proposer:
    """Makes proposals. Whatever it proposes, exact acceptance gives the verifier's own tokens."""

    uses_heads: ClassVar[bool] = False
    """Whether it asks the prediction heads, so that there are at most as many proposals as they make."""
    block_size: ClassVar[int | None] = None
    """k where the options say none; None is one for each prediction head."""
    draws: ClassVar[bool] = False
    """Whether `Context.choose` makes each of its tokens, once, from the scores of a distribution that it was drawn
    from; speculative sampling takes what other proposers say for certain."""
    stateless: bool = False
    """Whether it computes proposals from the context alone, on the device and without reading anything back, so that
    its work may be captured once and replayed, or left to a session that knows it."""
    raster: ClassVar[bool] = False
    """Whether it is for images alone."""
    resource: ClassVar[str | None] = None
    """Field of `DecodeConfig` that names what has to be loaded for it, its constructor's only argument."""
    settings: ClassVar[tuple[str, ...]] = ()
    """Names of the fields of `DecodeConfig` that it reads, and no other proposer, beside `resource`."""
    branching: ClassVar[bool] = False
    """Whether it proposes several branches a step, in a loop of its own (`superres.decoding.loop.decoding_type`)."""
    training: ClassVar[str] = "none"
    """What has to be trained for it, for people."""

    def propose(self, context: Context, offsets: Tensor) -> Tensor:
        """Return proposals [B, k - 1], int64, for the tokens at `context.position + offsets`; offsets are 1..k-1."""
        raise NotImplementedError

    def encode(self, source: Sources, padding: Tensor | None) -> Sources:
        """Encode `source` for `companion`, as `superres.interfaces.ScoringModel.encode` does for sessions."""
        return source

    def companion(self, source: Sources, width: int, padding: Tensor | None, copies: int) -> Companion | None:
        """Return what it keeps for a new batch; arguments as for `superres.interfaces.ScoringModel.session`.

        A class that does not define this keeps nothing.
        """
        return None

    def check(self, model: ScoringModel) -> None:
        """Check that it can propose for `model`.

        Raises:
            ConfigError: it cannot.
        """

    @classmethod
    def check_options(cls, options: DecodeConfig, block_size: int, length: int) -> None:
        """Check that it can propose as `options` ask, in blocks of `block_size`, for targets of `length` tokens.

        Raises:
            ConfigError: it cannot.
        """

    @classmethod
    def branches(cls, options: DecodeConfig) -> int:
        """Return how many sequences of proposals are verified per step, for the cost model."""
        return 1

    @classmethod
    def columns(cls, options: DecodeConfig, block_size: int) -> int:
        """Return how many tokens of a row the model reads per step in blocks of `block_size`, for the cost model."""
        return block_size

    @property
    def held_bytes(self) -> int:
        """Bytes that it holds whatever is decoded: weights, tables."""
        return 0


@dataclass
class AccompaniedSources:
    """Sources as the model has encoded them, and as the proposer has: `superres.interfaces.Sources`."""

    model: Sources
    proposer: Sources

    def __getitem__(self, rows: Tensor) -> AccompaniedSources:
        """Return the sources in `rows`, int64 [R]."""
        return AccompaniedSources(self.model[rows], self.proposer[rows])

    @classmethod
    def of(cls, source: Sources) -> AccompaniedSources:
        """Return what both take for `source`, encoded or not."""
        return source if isinstance(source, cls) else cls(source, source)


class AccompaniedSession:
    """A session whose rows a proposer's companion follows wherever they go: a `superres.interfaces.Session`.

    Rolling back is moving the position, for both; what refilling and shrinking move, they move for both.
    """

    def __init__(self, session: Session, companion: Companion) -> None:
        """Join a session and a companion of the same rows."""
        self.session, self.companion = session, companion
        self.width, self.shape, self.estimate = session.width, session.shape, session.estimate
        self.step, self.propose = session.step, session.propose

    def resize(self, width: int) -> None:
        """See `superres.interfaces.Session.resize`; a companion has a width of its own."""
        self.session.resize(width)
        self.width = width

    def select(self, rows: Tensor, length: int) -> None:
        """See `superres.interfaces.Session.select`."""
        self.session.select(rows, length)
        self.companion.select(rows, length)

    def copy_rows(self, rows: Tensor, other: AccompaniedSession, chosen: Tensor, cache: bool = True) -> None:
        """See `superres.interfaces.Session.copy_rows`."""
        self.session.copy_rows(rows, other.session, chosen, cache)
        self.companion.copy_rows(rows, other.companion, chosen, cache)

    def row_state(self, cache: bool = True) -> list[Tensor]:
        """See `superres.interfaces.Session.row_state`."""
        return [*self.session.row_state(cache), *self.companion.row_state(cache)]


class Accompanied:
    """A model whose sessions have a proposer's companion beside them: a `superres.interfaces.ScoringModel`."""

    def __init__(self, model: ScoringModel, proposer: Proposer) -> None:
        """Join them."""
        self.model, self.proposer = model, proposer
        self.vocabulary, self.length, self.end_token = model.vocabulary, model.length, model.end_token
        self.prediction_heads, self.uncached_scores = model.prediction_heads, model.uncached_scores
        self.replaying, self.own_threads = model.replaying, model.own_threads

    @property
    def held_bytes(self) -> int:
        """See `superres.interfaces.ScoringModel.held_bytes`."""
        return self.model.held_bytes + self.proposer.held_bytes

    @property
    def peers(self) -> Peers | None:
        """See `superres.interfaces.ScoringModel.peers`."""
        return self.model.peers

    def encode(self, source: Sources, padding: Tensor | None = None) -> AccompaniedSources:
        """See `superres.interfaces.ScoringModel.encode`."""
        own = AccompaniedSources.of(source)
        return AccompaniedSources(self.model.encode(own.model, padding), self.proposer.encode(own.proposer, padding))

    def tree_session(self, source: Sources, tree: Tree, kept: int, padding: Tensor | None = None) -> TreeSession:
        """See `superres.interfaces.ScoringModel.tree_session`; proposers that verify a tree keep no companion."""
        return self.model.tree_session(AccompaniedSources.of(source).model, tree, kept, padding)

    def session(self, source: Sources, width: int, padding: Tensor | None = None, copies: int = 1) -> Session:
        """See `superres.interfaces.ScoringModel.session`."""
        own = AccompaniedSources.of(source)
        session = self.model.session(own.model, width, padding, copies)
        companion = self.proposer.companion(own.proposer, width, padding, copies)
        return session if companion is None else AccompaniedSession(session, companion)


def accompany(model: ScoringModel, proposer: Proposer) -> ScoringModel:
    """Return `model` with what `proposer` keeps for each row beside its sessions.

    Raises:
        ConfigError: it cannot propose for this model.
    """
    if not isinstance(proposer, Proposer):  # anything with a method `propose` serves
        return model
    proposer.check(model)
    keeps = type(proposer).companion is not Proposer.companion
    return Accompanied(model, proposer) if keeps else model


def companion_of(context: Context) -> Any:  # noqa: ANN401 -- what the proposer itself made
    """Return the companion of the batch that `context` is of.

    Raises:
        ValueError: the session was not made by a model that the proposer accompanies.
    """
    if not isinstance(context.session, AccompaniedSession):
        raise ValueError("the proposer keeps something for each row; make sessions with accompany(model, proposer)")
    return context.session.companion
