"""The Muon optimiser takes the steps of torch's, and few operations for many matrices."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from superres.training.muon import COEFFICIENTS, ITERATIONS, Muon, orthogonal

SHAPES = [(8, 8), (24, 8), (8, 24), (24, 8), (40, 16)]


class Operations(TorchDispatchMode):
    """Counts the operations inside the context, without those that return views, which no device
    computes."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        self.count += not function.is_view
        return function(*arguments, **(options or {}))


def matrices(dtype=torch.float32, shapes=SHAPES):
    random = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=random, dtype=dtype)) for shape in shapes]


def give_gradients(weights, seed):
    random = torch.Generator().manual_seed(seed)
    for weight in weights:
        weight.grad = torch.randn(weight.shape, generator=random, dtype=weight.dtype)


def test_steps_are_those_of_torch_up_to_the_rounding_of_its_bfloat16():
    ours, theirs = matrices(), matrices()
    optimizers = (Muon(ours, 0.02, 0.1),
                  torch.optim.Muon(theirs, 0.02, 0.1, adjust_lr_fn="match_rms_adamw"))
    for step in range(3):
        before = [weight.detach().clone() for weight in theirs]
        for weights, optimizer in zip((ours, theirs), optimizers, strict=True):
            give_gradients(weights, step)
            optimizer.step()
        for one, other, start in zip(ours, theirs, before, strict=True):
            assert (one - other).norm() < 0.03 * (step + 1) * (other - start).norm()
    momenta = [[optimizer.state[weight]["momentum_buffer"] for weight in weights]
               for optimizer, weights in zip(optimizers, (ours, theirs), strict=True)]
    torch.testing.assert_close(*momenta)


def test_a_matrix_without_a_gradient_stays():
    weights = matrices()
    give_gradients(weights[1:], 0)
    before = weights[0].detach().clone()
    optimizer = Muon(weights, 0.02, 0.1)
    optimizer.step()
    assert torch.equal(weights[0], before)
    assert weights[0] not in optimizer.state


@pytest.mark.parametrize("shape", [(6, 6), (6, 20)])
def test_the_singular_values_follow_the_polynomial_and_the_vectors_stay(shape):
    given = torch.randn((3, *shape), generator=torch.Generator().manual_seed(1),
                        dtype=torch.float64)
    left, values, right = torch.linalg.svd(given, full_matrices=False)
    values = values / values.norm(dim=1, keepdim=True)
    for _ in range(ITERATIONS):
        values = sum(factor * values**power for factor,
                     power in zip(COEFFICIENTS, (1, 3, 5), strict=True))
    torch.testing.assert_close(orthogonal(given), left @ torch.diag_embed(values) @ right)
    assert float(values.min()) > 0.4


def test_matrices_of_one_shape_cost_as_many_operations_as_one():
    counts = []
    for copies in (1, 20):
        weights = matrices(shapes=[(24, 8)] * copies)
        optimizer = Muon(weights, 0.02, 0.1)
        give_gradients(weights, 0)
        optimizer.step()  # makes the state
        with Operations() as operations:
            optimizer.step()
        counts.append(operations.count)
    assert counts[0] == counts[1] < 40
