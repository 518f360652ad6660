"""Proposals of a draft model: a smaller checkpoint of the same vocabulary (Leviathan et al. 2023; Chen et al. 2023)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from superres.config import require
from superres.decoding.proposers.base import Context, Proposer, companion_of
from superres.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from superres.interfaces import ScoringModel, Session, Sources

READ = 2
"""Tokens a step of the draft: the next block's first, and the one before, which was proposed last and may be unread."""


class DraftProposer(Proposer):
    """A draft model's own tokens, one after another; its session is rolled back with the verifier's."""

    draws = True
    block_size = 4  # every proposal costs a call of the draft
    resource = "draft"
    training = "a draft model"

    def __init__(self, draft: ScoringModel | None = None) -> None:
        """Take the draft model.

        Raises:
            ConfigError: there is none.
        """
        if draft is None:
            raise ConfigError("the proposer draft needs a draft model; name its checkpoint with --draft")
        self.draft = draft

    def check(self, model: ScoringModel) -> None:
        """See `Proposer.check`."""
        for what, mine, theirs in (("tokens in its vocabulary", self.draft.vocabulary, model.vocabulary),
                                   ("target tokens", self.draft.length, model.length),
                                   ("as its end token", self.draft.end_token, model.end_token)):
            require(mine == theirs, f"the draft model has {mine} {what}, the verifier {theirs}; choose a draft that "
                                    "was trained for it")

    def encode(self, source: Sources, padding: Tensor | None) -> Sources:
        """See `Proposer.encode`."""
        return self.draft.encode(source, padding)

    def companion(self, source: Sources, width: int, padding: Tensor | None, copies: int) -> Session:
        """See `Proposer.companion`."""
        # The cache must reach back over a whole block that is rejected, though a step reads little of it.
        session = self.draft.session(source, max(width, READ), padding, copies)
        session.resize(READ)
        return session

    def propose(self, context: Context, offsets: Tensor) -> Tensor:
        """See `Proposer.propose`."""
        import torch

        session: Session = companion_of(context)
        position, first = context.position, context.first.unsqueeze(1)
        before = context.tokens.gather(1, (position - 1).clamp(min=0).unsqueeze(1))
        tokens = [before, first]
        for number in range(len(offsets)):
            output = session.step(torch.cat(tokens[-READ:], dim=1), position + number)
            tokens.append(context.choose(output.scores[:, -1:], offsets[number : number + 1]))
        return torch.cat(tokens[READ:], dim=1)

    @property
    def held_bytes(self) -> int:
        """See `Proposer.held_bytes`."""
        return self.draft.held_bytes
