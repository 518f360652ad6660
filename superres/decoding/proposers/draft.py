"""Proposals of a draft model: a smaller checkpoint of the same vocabulary (Leviathan et al. 2023;
Chen et al. 2023)."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from superres.config import require
from superres.decoding.proposers.proposer import Context, Proposer, ProposerData, state_of
from superres.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from superres.decoding.limits import Limits
    from superres.interfaces import Engine
    from superres.sessions import ScoringModel, Session, Sources

READ = 2
"""Tokens that the draft reads per step. The first step reads the token before the block as well: it
may be the last proposal of the block before, which the draft has not read."""


class DraftProposer(Proposer):
    """Tokens chosen by a draft model, one after another; its session is rolled back with the
    verifier's."""

    draws = True
    block_size = 4  # each proposal costs one call of the draft model
    # in blocks of one token the draft would not read the tokens that its next proposals depend on
    least_block = 2
    resource = "draft"
    training = "a draft model"

    def __init__(self, draft: Engine | None = None, limits: Limits | None = None) -> None:
        """Use the model of the engine `draft`, whose tokens are limited as the verifier's; raises
        ConfigError if it is None."""
        if draft is None:
            raise ConfigError("the draft proposer needs a draft model; name its checkpoint with "
                              "--draft")
        self.draft, self.limits = draft, limits

    @cached_property
    def model(self) -> ScoringModel:
        """The draft model on torch, limited as the verifier."""
        from superres.decoding.plain.limited import LimitedModel

        model = self.draft.on_torch()
        return model if self.limits is None else LimitedModel(model, self.limits)

    def check(self, engine: Engine) -> None:
        for field, what in (("vocabulary", "tokens in its vocabulary"), ("length", "target tokens"),
                            ("end_token", "as its end token")):
            mine, theirs = getattr(self.draft, field), getattr(engine, field)
            require(mine == theirs, f"the draft model has {mine} {what}, the verifier {theirs}; "
                    "choose a draft that was trained for it")

    def encode(self, source: Sources, padding: Tensor | None) -> Sources:
        return self.model.encode(source, padding)

    def new_state(self, source: Sources, width: int, padding: Tensor | None,
                  copies: int) -> Session:
        # The cache is as wide as a block, so that a rejected block can be rolled back; a step reads
        # only READ tokens.
        session = self.model.session(source, max(width, READ), padding, copies)
        session.resize(READ)
        return session

    def as_data(self) -> ProposerData:
        return ProposerData("draft", draft=self.draft, limits=self.limits)

    def propose(self, context: Context, offsets: Tensor) -> Tensor:
        import torch

        session: Session = state_of(context.session)
        position, first = context.position, context.first.unsqueeze(1)
        before = context.tokens.gather(1, (position - 1).clamp(min=0).unsqueeze(1))
        tokens = [before, first]  # each [B, 1]
        for number in range(len(offsets)):
            # scores [B, 2, V]
            output = session.step(torch.cat(tokens[-READ:], dim=1), position + number)
            tokens.append(context.sampler(output.scores[:, -1:], offsets[number : number + 1]))
        return torch.cat(tokens[READ:], dim=1)  # [B, k - 1]

    @property
    def weight_bytes(self) -> int:
        return self.draft.weight_bytes
