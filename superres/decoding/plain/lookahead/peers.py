"""The processes that divide the columns of a step of lookahead decoding among them."""

from __future__ import annotations

import torch
import torch.distributed
from torch import Tensor


class Peers:
    """The processes of a torch.distributed group that decode the same batch together, each with the
    same model.

    Every process loads the same checkpoint, sets `pipeline.scoring.peers = Peers()`, makes the same
    calls, and returns the whole result: under torchrun, for example.

    Attributes:
        rank: the number of this process.
        count: the number of processes.
        messages: number of messages that this process has sent so far, one to every other process
            per `gather`.
        sent_bytes: number of bytes of these messages.
    """

    def __init__(self, group: torch.distributed.ProcessGroup | None = None) -> None:
        """Use `group`, or the default group if None; torch.distributed must be initialised."""
        self.group, self.messages, self.sent_bytes = group, 0, 0
        self.rank, self.count = (torch.distributed.get_rank(group),
                                 torch.distributed.get_world_size(group))

    def gather(self, values: Tensor) -> Tensor:
        """Return the `values` of all processes, [count, ...] in the order of ranks; they must have
        equal shapes."""
        self.messages += self.count - 1
        self.sent_bytes += (self.count - 1) * values.numel() * values.element_size()
        parts = [torch.empty_like(values) for _ in range(self.count)]
        torch.distributed.all_gather(parts, values.contiguous(), group=self.group)
        return torch.stack(parts)
