"""Training losses and the optimiser Muon: right targets, no dropout or teacher where there must be
none, and steps as torch takes them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from fakes import SMALL, VARIANTS, random_model, random_tokens
from textual import CONFIG, SHORT, wordy
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from superres.nn.likelihood import bits_per_token
from superres.tasks.translation import PADDING
from superres.training.construction import build_model
from superres.training.losses import TeacherForcingLoss, mean_loss
from superres.training.muon import COEFFICIENTS, ITERATIONS, Muon, orthogonal
from superres.training.stage import Stage

HEADS = Stage(stage="heads", steps=10, head_positions=48, head_target="tokens")


def test_a_head_whose_intensity_is_off_costs_more_with_a_distance_weight():
    value = torch.arange(256.0)
    # p1, and heads that are 1 and 4 off
    wide = [-(value - centre).abs() / 20 for centre in (100.0, 101.0, 104.0)]
    position = torch.zeros(1, 1, dtype=torch.int64)
    inside = (position[0], position[0])
    losses = {weight: [float(mean_loss(head[None], position, inside, wide[0][None, None], weight))
                       for head in wide] for weight in (0, 0.5)}
    assert losses[0][0] == losses[0.5][0] == 0
    assert losses[0][1] < 0.002  # the divergence alone hardly notices one grey level
    extra = [near - far for near, far in zip(losses[0.5], losses[0], strict=True)]
    assert extra[1:] == pytest.approx([0.5 * math.log(2), 0.5 * math.log(5)], rel=0.05)


def expected_losses(model, source, target, head_target):
    """Cross-entropy of each head, p1 first; for "p1", the loss of p2..pk from p1's
    distributions."""
    decoded = model(source, target)
    everywhere = torch.arange(48).expand(len(target), -1)
    p1, losses = model.scores(decoded).detach().log_softmax(-1), []
    for head in range(model.config.prediction_heads):
        log_q = model.head_scores(decoded, everywhere, head)[:, : 48 - head].log_softmax(-1)
        if head == 0 or head_target == "tokens":
            losses.append(-log_q.gather(2, target[:, head:].unsqueeze(2)).mean())
        else:
            losses.append(from_p1(p1[:, head:], log_q, model.config).mean())
    return losses


def from_p1(log_p, log_q, config):
    """The loss of a head with the distributions `log_q` that learns `log_p`."""
    values = torch.arange(config.vocabulary, dtype=log_p.dtype)
    difference = (log_q.exp() * values).sum(-1) - (log_p.exp() * values).sum(-1)
    near = HEADS.distance_weight * torch.log(1 + difference.abs()) if config.ordinal_output else 0
    return (log_p.exp() * (log_p - log_q)).sum(-1) + near


def gradients(loss, weights):
    found = torch.autograd.grad(loss, weights, allow_unused=True)
    return [torch.zeros_like(weight) if gradient is None else gradient
            for gradient, weight in zip(found, weights, strict=True)]


@pytest.mark.parametrize(("variant", "frozen", "head_target"), [
    ("base aids", False, "p1"), ("base aids", True, "tokens"),
    ("sequential heads, own layer for p1", False, "tokens"),
    ("sequential heads, own layer for p1", True, "p1"), ("as published", False, "tokens"),
    ("as published", True, "tokens")])
def test_one_random_head_estimates_the_mean_of_all_heads_without_bias(variant, frozen, head_target):
    config = VARIANTS[variant]
    model = random_model(config).requires_grad_(not frozen)
    model.heads.requires_grad_(True)
    source, target = random_tokens(config, 2)
    settings = replace(HEADS, head_loss="random-head", head_target=head_target, freeze_base=frozen,
                       estimate_weight=0)
    loss = TeacherForcingLoss(model, settings)
    learning = list(range(1 if frozen and config.identity_p1 else 0, config.prediction_heads))
    draws = {loss.drawn_head(draw): draw for draw in range(100)}
    assert sorted(draws) == learning
    each = [expected_losses(model, source, target, head_target)[head] for head in learning]
    totals = [loss(source, target, draws[head])["total"] for head in learning]
    torch.testing.assert_close(torch.stack(totals), torch.stack(each))
    mean = sum(each) / len(each)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    torch.testing.assert_close(sum(totals) / len(totals), mean)
    torch.testing.assert_close(gradients(sum(totals) / len(totals), weights),
                               gradients(mean, weights))


def test_base_stage_minimises_p1_and_the_error_of_the_estimate():
    model, (source, target) = random_model(SMALL), random_tokens(SMALL, 2)
    losses = TeacherForcingLoss(model, Stage(steps=1, estimate_weight=0.5))(source, target, 0)
    decoded = model(source, target)
    torch.testing.assert_close(losses["estimate"], (decoded.memory.estimate - target).abs().mean())
    expected = F.cross_entropy(model.scores(decoded).flatten(0, 1), target.flatten())
    torch.testing.assert_close(losses["p1"], expected)
    torch.testing.assert_close(losses["total"], losses["p1"] + 0.5 * losses["estimate"])
    assert "heads" not in losses


def test_a_frozen_base_drops_nothing():
    for freeze in (True, False):
        settings = replace(HEADS, freeze_base=freeze)
        model = build_model(replace(VARIANTS["recurrent heads"], dropout=0.5), settings)
        loss, tokens = TeacherForcingLoss(model, settings), random_tokens(model.config, 2)
        calm = loss.eval()(*tokens, 0)["heads"].item()
        assert (loss.train()(*tokens, 0)["heads"].item() == calm) == freeze


def test_p1_learns_nothing_from_own_pictures_and_the_heads_learn_from_all():
    model = random_model(SMALL)
    source, target = random_tokens(SMALL, 4)
    loss = TeacherForcingLoss(model, replace(HEADS, stage="distil"))
    mixed, true = loss(source, target, 1, 2), loss(source[:2], target[:2], 1)
    for part in ("p1", "estimate"):
        torch.testing.assert_close(mixed[part], true[part])
    own = loss(source[2:], target[2:], 1)
    torch.testing.assert_close(mixed["heads"], (true["heads"] + own["heads"]) / 2)


def test_p1_keeps_the_teachers_distributions_on_own_pictures_and_learns_the_true_ones():
    model, teacher = random_model(SMALL), random_model(SMALL, seed=1)
    source, target = random_tokens(SMALL, 4)
    distil = replace(HEADS, stage="distil", teacher="another")
    kept = TeacherForcingLoss(model, distil, model)(source, target, 1, 2)
    taught = TeacherForcingLoss(model, distil, teacher)(source, target, 1, 2)
    assert kept["own"] < 1e-12
    wanted, given = (one.scores(one(source[2:], target[2:])).log_softmax(-1)
                     for one in (teacher, model))
    torch.testing.assert_close(taught["own"], (wanted.exp() * (wanted - given)).sum(-1).mean())
    torch.testing.assert_close(taught["p1"], kept["p1"])
    torch.testing.assert_close(taught["total"] - kept["total"], taught["own"] - kept["own"])


def padded_batch(extra=0):
    """Return a batch of two pairs; `extra` columns of padding more change nothing."""
    source = torch.tensor([[5, 6, 7, 1], [8, 1, 0, 0]])
    target = torch.tensor([[9, 10, 11, 12, 1], [13, 1, 0, 0, 0]])
    source, target = F.pad(source, (0, extra)), F.pad(target, (0, extra))
    return source, target, source == 0, torch.tensor([5, 2])


@pytest.mark.parametrize("stage", [
    replace(SHORT, label_smoothing=0.1), replace(SHORT, stage="heads", head_positions=20),
    replace(SHORT, stage="heads", head_positions=20, head_target="tokens"),
    replace(SHORT, stage="heads", head_loss="random-head"),
], ids=["base", "heads", "tokens", "random"])
def test_padding_counts_for_nothing(stage):
    network = wordy().requires_grad_(True)
    loss = TeacherForcingLoss(network, stage)

    def of(source, target, padding, lengths):
        return loss(source, target, 5, None, padding, lengths)["total"]

    source, target, padding, lengths = padded_batch()
    expected = of(source, target, padding, lengths)
    torch.testing.assert_close(of(*padded_batch(3)), expected)
    target = torch.where(torch.arange(5) < lengths.unsqueeze(1), target, 99)
    torch.testing.assert_close(of(torch.where(padding, 77, source), target, padding, lengths),
                               expected)


def test_label_smoothing_spreads_its_share_over_all_tokens():
    network, (source, target, padding, lengths) = wordy(), padded_batch()
    log_p = network.scores(network(source, target, padding)).log_softmax(-1)
    inside = torch.arange(5) < lengths.unsqueeze(1)
    nll = -log_p.gather(-1, target.unsqueeze(-1)).squeeze(-1)[inside].mean()
    expected = 0.8 * nll - 0.2 * log_p[inside].mean()
    loss = TeacherForcingLoss(network, replace(SHORT, label_smoothing=0.2))(source, target, 0, None,
                                                                            padding, lengths)
    torch.testing.assert_close(loss["p1"], expected)
    rows = [[9, 10, 11, 12, 1], [13, 1]], [[5, 6, 7, 1], [8, 1]]
    assert bits_per_token(network, rows[1], rows[0], PADDING, 1) == pytest.approx(float(nll)
                                                                                  / np.log(2))


def test_heads_that_share_p1s_layer_share_its_label_smoothing():
    network = wordy(replace(CONFIG, identity_p1=False, head_layer="dense"))
    source, target, padding, lengths = padded_batch()
    loss = TeacherForcingLoss(network, replace(SHORT, stage="heads", head_loss="random-head",
                                               head_target="tokens", label_smoothing=0.2))
    decoded, position = network(source, target, padding), torch.arange(5).expand(2, -1)
    for draw in range(20):
        head = loss.drawn_head(draw)
        inside = position + head < lengths.unsqueeze(1)
        log_p = network.head_scores(decoded, position, head).log_softmax(-1)[inside]
        wanted = target.gather(1, (position + head).clamp(max=4))[inside]
        nll = -log_p.gather(-1, wanted.unsqueeze(-1)).mean()
        found = loss(source, target, draw, None, padding, lengths)
        torch.testing.assert_close(found["total"], 0.8 * nll - 0.2 * log_p.mean())


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


@pytest.mark.slow
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
