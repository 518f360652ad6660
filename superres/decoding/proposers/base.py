"""The interface of proposers: their input, their properties, and the state that they store for each row of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:  # the command line lists the proposers in its help, which must not wait for torch
    from collections.abc import Callable

    from torch import Tensor

    from superres.config import DecodeConfig
    from superres.interfaces import (
        LoopState,
        Peers,
        Sampler,
        ScoringModel,
        Session,
        Sources,
        StepOutput,
        Tree,
        TreeSession,
    )


@dataclass
class Context:
    """The input of a proposer.

    Attributes:
        session: the model's session.
        output: result of the latest step.
        index: the step's column that scored `first`, [B].
        position: number of committed tokens, [B].
        first: the token at `position`, which the loop has already chosen, [B].
        tokens: committed tokens [B, T + W]; the tokens from `position` on are undefined.
        sampler: turns scores of the tokens at `position` + offsets into tokens, exactly as the verifier does. In
            speculative sampling it draws proposals instead.
    """

    session: Session
    output: StepOutput
    index: Tensor
    position: Tensor
    first: Tensor
    tokens: Tensor
    sampler: Sampler


class ProposerState(Protocol):
    """State that a proposer stores for each row of a batch, for example the session of a draft model."""

    def select(self, rows: Tensor, length: int) -> None:
        """See `superres.interfaces.Session.select`."""

    def copy_rows(
        self, rows: Tensor, other: Any, chosen: Tensor, cache: bool = True,  # noqa: ANN401 -- of the same class
    ) -> None:
        """See `superres.interfaces.Session.copy_rows`."""

    def row_state(self, cache: bool = True) -> list[Tensor]:
        """See `superres.interfaces.Session.row_state`."""


class Proposer:
    """Makes proposals. Exact acceptance gives the verifier's own tokens for any proposals."""

    uses_heads: ClassVar[bool] = False
    """Whether it uses the prediction heads, which limit the number of proposals."""
    block_size: ClassVar[int | None] = None
    """Default block size k; None for the number of prediction heads."""
    draws: ClassVar[bool] = False
    """Whether every proposal is drawn by one call of `Context.sampler`, from the distribution of that call's scores.
    Speculative sampling assigns probability 1 to the proposals of other proposers."""
    stateless: bool = False
    """Whether proposals depend on the context only, and are computed on the device without reading from it. Such work
    can be captured in a CUDA graph, or done by native iterations."""
    resource: ClassVar[str | None] = None
    """Field of `DecodeConfig` that names a file or checkpoint to load. It becomes the constructor's only argument."""
    settings: ClassVar[tuple[str, ...]] = ()
    """Names of the fields of `DecodeConfig` that only this proposer reads, besides `resource`."""
    proposes_tree: ClassVar[bool] = False
    """Whether it proposes a tree of several continuations per step (see `superres.decoding.loop.decoding_type`)."""
    training: ClassVar[str] = "none"
    """What must be trained for it, as human-readable text."""

    def propose(self, context: Context, offsets: Tensor) -> Tensor:
        """Return proposals int64 [B, k - 1] for the tokens at `context.position + offsets`; `offsets` are 1..k-1."""
        raise NotImplementedError

    def as_data(self, session: Session) -> dict[str, Any] | None:
        """Return the fields of `superres.interfaces.ProposerData` for the rows of `session`.

        None leaves the proposals to `propose`, so that the engine does single steps. A class that overrides `propose`
        overrides this method as well.
        """
        return None

    def encode(self, source: Sources, padding: Tensor | None) -> Sources:
        """Encode `source` for `new_state`; arguments as for `superres.interfaces.ScoringModel.encode`."""
        return source

    def new_state(self, source: Sources, width: int, padding: Tensor | None, copies: int) -> ProposerState | None:
        """Return the state of a new batch; arguments as for `superres.interfaces.ScoringModel.session`.

        A class that does not define this method has no state.
        """
        return None

    def check(self, model: ScoringModel) -> None:
        """Check that it can propose for `model`.

        Raises:
            ConfigError: the model does not fit the proposer.
        """

    @classmethod
    def check_options(cls, options: DecodeConfig, block_size: int, length: int) -> None:
        """Check `options` for blocks of `block_size` and targets of `length` tokens.

        Raises:
            ConfigError: the proposer does not support the options.
        """

    @classmethod
    def candidates(cls, options: DecodeConfig) -> int:
        """Return the number of candidate continuations verified per step, for the cost model."""
        return 1

    @classmethod
    def columns(cls, options: DecodeConfig, block_size: int) -> int:
        """Return the number of tokens that the model reads per row and step, for the cost model."""
        return block_size

    @property
    def weight_bytes(self) -> int:
        """Bytes of its weights and tables."""
        return 0


@dataclass
class StatefulSources:
    """Sources encoded by the model and by the proposer: `superres.interfaces.Sources`."""

    model: Sources
    proposer: Sources

    def __getitem__(self, rows: Tensor) -> StatefulSources:
        """Return the sources in `rows`, int64 [R]."""
        return StatefulSources(self.model[rows], self.proposer[rows])

    @classmethod
    def of(cls, source: Sources) -> StatefulSources:
        """Return the sources of model and proposer for `source`, encoded or not."""
        return source if isinstance(source, cls) else cls(source, source)


class StatefulSession:
    """A session joined with the proposer's state of the same rows: a `superres.interfaces.Session`.

    Both are rolled back by moving the position. Methods that move rows move them in both.
    """

    def __init__(self, session: Session, state: ProposerState) -> None:
        """Join a session and a state of the same rows."""
        self.session, self.state = session, state
        self.width, self.shape = session.width, session.shape
        self.longest = session.longest
        self.step, self.propose = session.step, session.propose

    def iterations(self, state: LoopState) -> Callable[[int, int], Tensor] | None:
        """See `superres.interfaces.IteratingSession.iterations`."""
        from superres.interfaces import IteratingSession

        return self.session.iterations(state) if isinstance(self.session, IteratingSession) else None

    def resize(self, width: int) -> None:
        """See `superres.interfaces.Session.resize`; the proposer's state does not depend on the width."""
        self.session.resize(width)
        self.width = width

    def select(self, rows: Tensor, length: int) -> None:
        """See `superres.interfaces.Session.select`."""
        self.session.select(rows, length)
        self.state.select(rows, length)

    def copy_rows(self, rows: Tensor, other: StatefulSession, chosen: Tensor, cache: bool = True) -> None:
        """See `superres.interfaces.Session.copy_rows`."""
        self.session.copy_rows(rows, other.session, chosen, cache)
        self.state.copy_rows(rows, other.state, chosen, cache)

    def row_state(self, cache: bool = True) -> list[Tensor]:
        """See `superres.interfaces.Session.row_state`."""
        return [*self.session.row_state(cache), *self.state.row_state(cache)]


class StatefulModel:
    """A model whose sessions include the proposer's state: a `superres.interfaces.ScoringModel`."""

    def __init__(self, model: ScoringModel, proposer: Proposer) -> None:
        """Join a model and a proposer."""
        self.model, self.proposer = model, proposer
        self.vocabulary, self.length, self.end_token = model.vocabulary, model.length, model.end_token
        self.prediction_heads, self.uncached_scores = model.prediction_heads, model.uncached_scores
        self.graph_capture, self.own_threads = model.graph_capture, model.own_threads

    @property
    def weight_bytes(self) -> int:
        """See `superres.interfaces.ScoringModel.weight_bytes`."""
        return self.model.weight_bytes + self.proposer.weight_bytes

    @property
    def peers(self) -> Peers | None:
        """See `superres.interfaces.ScoringModel.peers`."""
        return self.model.peers

    def encode(self, source: Sources, padding: Tensor | None = None) -> StatefulSources:
        """See `superres.interfaces.ScoringModel.encode`."""
        own = StatefulSources.of(source)
        return StatefulSources(self.model.encode(own.model, padding), self.proposer.encode(own.proposer, padding))

    def tree_session(self, source: Sources, tree: Tree, kept: int, padding: Tensor | None = None) -> TreeSession:
        """See `superres.interfaces.ScoringModel.tree_session`; proposers of trees have no state."""
        return self.model.tree_session(StatefulSources.of(source).model, tree, kept, padding)

    def session(self, source: Sources, width: int, padding: Tensor | None = None, copies: int = 1) -> Session:
        """See `superres.interfaces.ScoringModel.session`."""
        own = StatefulSources.of(source)
        session = self.model.session(own.model, width, padding, copies)
        state = self.proposer.new_state(own.proposer, width, padding, copies)
        return session if state is None else StatefulSession(session, state)


def with_proposer_state(model: ScoringModel, proposer: Proposer) -> ScoringModel:
    """Return `model` itself, or a model whose sessions include the state of `proposer` if the proposer has a state.

    Raises:
        ConfigError: the proposer does not fit the model.
    """
    if not isinstance(proposer, Proposer):  # any object with a method `propose` will do
        return model
    proposer.check(model)
    has_state = type(proposer).new_state is not Proposer.new_state
    return StatefulModel(model, proposer) if has_state else model


def state_of(session: Session) -> Any:  # noqa: ANN401 -- the result of the proposer's own `new_state`
    """Return the proposer's state of the batch of `session`.

    Raises:
        ValueError: the session does not include a proposer's state.
    """
    if not isinstance(session, StatefulSession):
        raise ValueError("the proposer stores state per row; make sessions with with_proposer_state(model, proposer)")
    return session.state
