"""Proposals from n-gram counts: the most frequent next token in training data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from superres.config import require
from superres.decoding.proposers.proposer import Context, Proposer
from superres.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from superres.decoding.proposers.ngram_table import NgramTable
    from superres.interfaces import Engine


class NgramProposer(Proposer):
    """Proposes one token after another: the table's next token of the longest known context."""

    resource = "ngrams"
    training = "counts"

    def __init__(self, table: NgramTable | None = None) -> None:
        """Use the counts in `table`; raises ConfigError if it is None."""
        if table is None:
            raise ConfigError("the ngram proposer needs counts; name their file with --ngrams, and "
                              "make it with 'superres train ngrams'")
        self.table = table
        self._cached: tuple[Tensor, Tensor] | None = None

    def check(self, engine: Engine) -> None:
        counted = self.table.vocabulary
        require(counted == engine.vocabulary, f"the n-grams have a vocabulary of {counted} tokens, "
                f"but the model has {engine.vocabulary}; count them for this model")

    def propose(self, context: Context, offsets: Tensor) -> Tensor:
        import torch

        keys, known_tokens = self._table_on(context.tokens.device)
        table, position = self.table, context.position
        longest = table.order - 1
        earlier = (context.tokens.gather(1, (position - back).clamp(min=0).unsqueeze(1))[:, 0]
                   for back in range(1, longest))
        before = [context.first, *earlier]  # nearest first
        lengths = torch.arange(longest + 1, device=position.device)  # [n]
        tokens: list[Tensor] = []
        for offset in range(1, len(offsets) + 1):
            place = position + offset
            wanted = torch.stack([table.number(place % table.channels, before[:length])
                                  for length in range(longest + 1)], dim=1)  # [B, n]
            index = torch.searchsorted(keys, wanted).clamp(max=len(keys) - 1)
            known = (keys[index] == wanted) & (lengths <= place.unsqueeze(1))
            best = (known * (lengths + 1)).argmax(1, keepdim=True)  # [B, 1]
            tokens.append(known_tokens[index.gather(1, best)])
            before = [tokens[-1][:, 0], *before[: max(longest - 1, 0)]]
        return torch.cat(tokens, dim=1)  # [B, k - 1]

    @property
    def weight_bytes(self) -> int:
        return self.table.keys.nbytes + self.table.tokens.nbytes

    def _table_on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the table's keys and tokens on `device`, cached for later calls."""
        import torch

        if self._cached is None or self._cached[0].device != device:
            parts = (torch.from_numpy(part).to(device)
                     for part in (self.table.keys, self.table.tokens))
            self._cached = next(parts), next(parts)
        return self._cached
