"""Lookahead parallelism (Fu et al. 2024, section 3.4): several processes divide the columns of a step among them.

Every process holds the whole model and its own cache. It reads its part of the window's columns and of the candidates,
which needs no communication. After a step, the processes exchange the accepted and the predicted tokens only. Each
process computes the keys and values of tokens that another process accepted, by reading the last N tokens again. The
rewritten cache entries are the same in every process, so results do not depend on which process accepted a token.

Every process loads the same checkpoint, sets `pipeline.scoring.peers = Processes()`, and makes the same calls. Every
process returns the whole result. `scripts/benchmark/lookahead.py` is an example that runs under torchrun.
"""

from __future__ import annotations

import torch
import torch.distributed
from torch import Tensor


class Processes:
    """The processes of a torch.distributed group: `superres.interfaces.Peers`.

    Attributes:
        rank: number of this process.
        count: number of processes.
    """

    def __init__(self, group: torch.distributed.ProcessGroup | None = None) -> None:
        """Use `group`, or the default group if None; torch.distributed must be initialised."""
        self.group = group
        self.rank, self.count = torch.distributed.get_rank(group), torch.distributed.get_world_size(group)

    def gather(self, values: Tensor) -> Tensor:
        """See `superres.interfaces.Peers.gather`."""
        parts = [torch.empty_like(values) for _ in range(self.count)]
        torch.distributed.all_gather(parts, values.contiguous(), group=self.group)
        return torch.stack(parts)
