"""The Muon optimiser with few and large operations: matrices of one shape take their step
together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic polynomial whose iteration moves singular values between 0 and 1 towards 1."""
ITERATIONS = 5
SMALLEST_NORM = 1e-7


class Muon(torch.optim.Optimizer):
    """Muon (Jordan et al. 2024) with Nesterov momentum and decoupled weight decay, for matrices.

    Its steps are as long as AdamW's (Liu et al. 2025) and equal those of `torch.optim.Muon` with
    "match_rms_adamw" up to rounding. That optimiser takes one matrix at a time: about 20 operations
    each, which a GPU has to start.
    """

    def __init__(
        self, matrices: Iterable[Tensor], lr: float, weight_decay: float, momentum: float = 0.95,
    ) -> None:
        super().__init__(matrices, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take a step."""
        for group in self.param_groups:
            moved = [matrix for matrix in group["params"] if matrix.grad is not None]
            if moved:
                self._step(moved, group["lr"], group["weight_decay"], group["momentum"])

    def _step(self, moved: list[Tensor], rate: float, weight_decay: float, momentum: float) -> None:
        gradients = [matrix.grad for matrix in moved if matrix.grad is not None]
        for matrix in moved:
            if "momentum_buffer" not in self.state[matrix]:
                self.state[matrix]["momentum_buffer"] = torch.zeros_like(matrix)
        buffers = [self.state[matrix]["momentum_buffer"] for matrix in moved]
        torch._foreach_lerp_(buffers, gradients, 1 - momentum)
        ahead = torch._foreach_lerp(gradients, buffers, momentum)
        torch._foreach_mul_(moved, 1 - rate * weight_decay)
        alike = defaultdict[torch.Size, list[int]](list)
        for number, matrix in enumerate(moved):
            alike[matrix.shape].append(number)
        for (rows, columns), numbers in alike.items():
            together = torch.stack([ahead[number] for number in numbers])  # [N, rows, columns]
            steps = (orthogonal(together) if rows <= columns
                     else orthogonal(together.mT).mT.contiguous())
            torch._foreach_add_([moved[number] for number in numbers], list(steps.unbind()),
                                alpha=-0.2 * rate * max(rows, columns) ** 0.5)


def orthogonal(matrices: Tensor) -> Tensor:
    """Return matrices [N, r, c], r <= c, of the same singular vectors, whose singular values are
    moved close to 1.

    On a GPU, the products are computed in bfloat16, which many CPUs have to emulate.
    """
    a, b, c = COEFFICIENTS
    x: Tensor = matrices / torch.linalg.vector_norm(matrices, dim=(1, 2),
                                                    keepdim=True).clamp(min=SMALLEST_NORM)
    x = x.bfloat16() if x.is_cuda else x
    for _ in range(ITERATIONS):
        gram = torch.bmm(x, x.mT)  # [N, r, r]
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.to(matrices.dtype)
