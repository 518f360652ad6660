"""The interface of proposers: their input, their properties, and the state that they store for each
row of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:  # the command line lists the proposers in its help, which must not wait for torch
    from torch import Tensor

    from superres.config import DecodeConfig
    from superres.decoding.acceptance import Draws
    from superres.decoding.limits import Limits
    from superres.interfaces import Engine
    from superres.sessions import (
        Sampler,
        ScoringModel,
        Session,
        Sources,
        StepOutput,
        Tree,
        TreeSession,
    )


@dataclass(frozen=True)
class ProposerData:
    """A proposer as data, for compiled decoders."""

    kind: str  # heads, draft or lookahead
    uses_heads: bool = False  # whether the prediction heads propose
    draft: Engine | None = None  # of the draft model, which reads two tokens per step
    limits: Limits | None = None  # on the tokens of the draft model


@dataclass
class Context:
    """The input of a proposer."""

    session: Session  # the model's session
    output: StepOutput  # result of the latest step
    index: Tensor  # the step's column that scored `first`, [B]
    position: Tensor  # number of committed tokens, [B]
    first: Tensor  # the token at `position`, which the loop has already chosen, [B]
    tokens: Tensor  # committed tokens [B, T + W]; the tokens from `position` on are undefined
    # turns scores of the tokens at `position` + offsets into tokens, exactly as the verifier does.
    # In speculative sampling it draws proposals instead, and is a
    # `superres.decoding.plain.sampling.SpeculativeSampler`
    sampler: Sampler
    # the proposals that the step has judged, in speculative sampling: that of offset o of the new
    # block was at column `index` + o of them
    draws: Draws | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the target: rows, columns and channels of a picture, and (T,) of text."""
        return self.session.shape

    @property
    def width(self) -> int:
        """Number of pixels per row of the target picture; T of text. The pixel above is `width` * 3
        tokens before."""
        return self.shape[-2:][0]


class Proposer:
    """Makes proposals. Exact acceptance gives the verifier's own tokens for any proposals."""

    # Whether it uses the prediction heads, which limit the number of proposals
    uses_heads: ClassVar[bool] = False
    # Default block size k; None for the number of prediction heads
    block_size: ClassVar[int | None] = None
    least_block: ClassVar[int] = 1  # Smallest block size that an adaptive block size may choose
    draws: ClassVar[bool] = False
    """Whether every proposal is drawn by one call of `Context.sampler`, from the distribution of
    that call's scores. Speculative sampling assigns probability 1 to the proposals of other
    proposers."""
    draws_only: ClassVar[bool] = False  # Whether it proposes in speculative sampling alone
    resource: ClassVar[str | None] = None
    """Field of `DecodeConfig` that names a file or checkpoint to load. It becomes the constructor's
    only argument."""
    settings: ClassVar[tuple[str, ...]] = ()
    """Names of the fields of `DecodeConfig` that only this proposer reads, besides `resource`."""
    proposes_tree: ClassVar[bool] = False
    """Whether it proposes a tree of several continuations per step (see
    `superres.decoding.plain.engine.decoding_type`)."""
    training: ClassVar[str] = "none"  # What must be trained for it, as human-readable text

    def propose(self, context: Context, offsets: Tensor) -> Tensor:
        """Return proposals int64 [B, k - 1] for the tokens at `context.position + offsets`;
        `offsets` are 1..k-1."""
        raise NotImplementedError

    def as_data(self) -> ProposerData | None:
        """Return the proposer as data, so that a compiled decoder can run the iterations.

        None leaves the iterations to the plain decoder. A class that overrides `propose` overrides
        this method as well.
        """
        return None

    def encode(self, source: Sources, padding: Tensor | None) -> Sources:
        """Encode `source` for `new_state`; arguments as for
        `superres.sessions.ScoringModel.encode`."""
        return source

    def new_state(
        self, source: Sources, width: int, padding: Tensor | None, copies: int,
    ) -> Session | RowTensors | None:
        """Return the state of a new batch; arguments as for
        `superres.sessions.ScoringModel.session`.

        A class that does not define this method has no state.
        """
        return None

    def check(self, engine: Engine) -> None:
        """Raise ConfigError if the network of `engine` does not fit the proposer."""

    @classmethod
    def check_options(cls, options: DecodeConfig, block_size: int, length: int) -> None:
        """Raise ConfigError if it does not support `options`, blocks of `block_size` and targets of
        `length` tokens."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of its weights and tables."""
        return 0


def sources_at(sources: Sources, rows: Tensor) -> Sources:
    """Return the sources in `rows`, int64 [R]; those of each part for a tuple of sources."""
    if isinstance(sources, tuple):
        return tuple(sources_at(part, rows) for part in sources)
    return sources[rows]


class RowTensors:
    """Tensors [B, ...] that belong to the rows of a session, and are moved with them."""

    def __init__(self, *tensors: Tensor) -> None:
        self.tensors = [*tensors]

    def select(self, rows: Tensor, length: int) -> None:
        for tensor in self.tensors:
            tensor.copy_(tensor[rows])

    def copy_rows(self, rows: Tensor, other: RowTensors, chosen: Tensor,
                  cache: bool = True) -> None:
        for mine, theirs in zip(self.tensors, other.tensors, strict=True):
            mine.index_copy_(0, rows, theirs.index_select(0, chosen))

    def row_state(self, cache: bool = True) -> list[Tensor]:
        return self.tensors


class StatefulSession:
    """A session joined with a state of the same rows, such as a proposer's: a
    `superres.sessions.Session`.

    Both are rolled back by moving the position. Methods that move rows move them in both.
    """

    def __init__(self, session: Session, state: Session | RowTensors) -> None:
        self.session, self.state = session, state
        self.width, self.shape, self.longest = session.width, session.shape, session.longest

    def step(self, tokens: Tensor, position: Tensor) -> StepOutput:
        return self.session.step(tokens, position)

    def propose(self, output: StepOutput, index: Tensor, first: Tensor, offsets: Tensor,
                sampler: Sampler) -> Tensor:
        return self.session.propose(output, index, first, offsets, sampler)

    def resize(self, width: int) -> None:
        """See `superres.sessions.Session.resize`; the state does not depend on the width."""
        self.session.resize(width)
        self.width = width

    def select(self, rows: Tensor, length: int) -> None:
        self.session.select(rows, length)
        self.state.select(rows, length)

    def copy_rows(self, rows: Tensor, other: StatefulSession, chosen: Tensor,
                  cache: bool = True) -> None:
        self.session.copy_rows(rows, other.session, chosen, cache)
        self.state.copy_rows(rows, other.state, chosen, cache)  # type: ignore[arg-type]

    def row_state(self, cache: bool = True) -> list[Tensor]:
        return [*self.session.row_state(cache), *self.state.row_state(cache)]


class WrappedModel:
    """The base of models that change another model's sessions: a
    `superres.sessions.ScoringModel`.

    Its encoded sources are a tuple: those of the model, and what the class adds.
    """

    def __init__(self, model: ScoringModel) -> None:
        self.model = model
        self.vocabulary, self.length = model.vocabulary, model.length
        self.end_token = model.end_token
        self.prediction_heads, self.decoder = model.prediction_heads, model.decoder
        self.own_threads, self.device = model.own_threads, model.device

    @property
    def weight_bytes(self) -> int:
        return self.model.weight_bytes

    @property
    def peers(self) -> Any:  # noqa: ANN401 -- as in the interface
        return self.model.peers

    def uncached_scores(self, source: Tensor, target: Tensor, position: Tensor) -> Tensor:
        return self.model.uncached_scores(source, target, position)


class StatefulModel(WrappedModel):
    """A model whose sessions include the proposer's state; the sources are those of the model and
    of the proposer."""

    def __init__(self, model: ScoringModel, proposer: Proposer) -> None:
        super().__init__(model)
        self.proposer = proposer

    @property
    def weight_bytes(self) -> int:
        return self.model.weight_bytes + self.proposer.weight_bytes

    def encode(self, source: Sources, padding: Tensor | None = None) -> Sources:
        own, proposers = source if isinstance(source, tuple) else (source, source)
        return self.model.encode(own, padding), self.proposer.encode(proposers, padding)

    def tree_session(self, source: Sources, tree: Tree, kept: int,
                     padding: Tensor | None = None) -> TreeSession:
        """See `superres.sessions.ScoringModel.tree_session`; proposers of trees have no state."""
        own = source[0] if isinstance(source, tuple) else source
        return self.model.tree_session(own, tree, kept, padding)

    def session(self, source: Sources, width: int, padding: Tensor | None = None,
                copies: int = 1) -> Session:
        own, proposers = source if isinstance(source, tuple) else (source, source)
        session = self.model.session(own, width, padding, copies)
        state = self.proposer.new_state(proposers, width, padding, copies)
        return session if state is None else StatefulSession(session, state)


def with_proposer_state(model: ScoringModel, proposer: Proposer) -> ScoringModel:
    """Return `model` itself, or a model whose sessions include the state of `proposer` if the
    proposer has a state.

    Any object with a method `propose` is a proposer, without a state.
    """
    has_state = (isinstance(proposer, Proposer)
                 and type(proposer).new_state is not Proposer.new_state)
    return StatefulModel(model, proposer) if has_state else model


def state_of(session: Session) -> Any:  # noqa: ANN401 -- the result of the proposer's own `new_state`
    """Return the proposer's state of the batch of `session`, which must be one of
    `with_proposer_state`."""
    if not isinstance(session, StatefulSession):
        raise ValueError("the proposer stores state per row; make sessions with "
                         "with_proposer_state(model, proposer)")
    return session.state
