"""Lookahead parallelism (Fu et al. 2024, section 3.4): the branches of a step spread over several processes.

Every process has the whole model and its own cache, reads its share of the window's columns and of the candidates, and
needs nothing of the others for that. After a step they tell one another the tokens that they accepted and guessed, and
nothing else: the keys and values of what another process has accepted, each makes itself, by reading the last N tokens
again. (They go where their like is already, so that nothing depends on who accepted them.)

Every process loads the same checkpoint, sets `pipeline.scoring.peers = Processes()`, and makes the same calls; all get
the whole result. `scripts/compare_lookahead.py` does so under torchrun.
"""

from __future__ import annotations

import torch
import torch.distributed
from torch import Tensor


class Processes:
    """The processes of a torch.distributed group: `superres.interfaces.Peers`.

    Attributes:
        rank: number of this one.
        count: how many there are.
    """

    def __init__(self, group: torch.distributed.ProcessGroup | None = None) -> None:
        """Serve `group`, the default one if None; torch.distributed must be initialised."""
        self.group = group
        self.rank, self.count = torch.distributed.get_rank(group), torch.distributed.get_world_size(group)

    def gather(self, values: Tensor) -> Tensor:
        """See `superres.interfaces.Peers.gather`."""
        parts = [torch.empty_like(values) for _ in range(self.count)]
        torch.distributed.all_gather(parts, values.contiguous(), group=self.group)
        return torch.stack(parts)
