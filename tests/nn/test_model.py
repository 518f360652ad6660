"""The whole-sequence network: its attention, its image priors, its heads, and which tokens its
scores depend on."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from fakes import SMALL, VARIANTS, random_model, random_tokens
from hypothesis import given
from hypothesis import strategies as st

from decodes import decode
from superres.config import HEAD_LAYERS, PRESETS, DecodeConfig, ModelConfig, tables
from superres.nn import image_priors, likelihood
from superres.nn.attention import attend, causal_attention, hidden_mask, local_attention
from superres.nn.image_priors import NumericNeighbourhood
from superres.nn.likelihood import bits_per_dim
from superres.nn.model import meta_network
from superres.nn.torch_model import StepModel


def size(module):
    return sum(weight.numel() for weight in module.parameters())


def test_paper_preset_has_the_published_sizes():
    """Those of img2img_transformer_b3, from the shapes of its weights."""
    model = meta_network(replace(PRESETS["paper"], prediction_heads=10))
    # the published projections have none
    projection_biases = {"encoder": 4 * 512, "decoder": 2 * 4 * 512}
    for layer in model.encoder:
        assert size(layer) - projection_biases["encoder"] == 3_150_336
    for layer in model.decoder:
        assert size(layer) - projection_biases["decoder"] == 4_199_936
    assert len(model.encoder) == 4
    assert len(model.decoder) == 8
    assert size(model.source_embedding) == size(model.target_embedding) == 768 * 512
    assert size(model.project) == 131_328


@pytest.mark.parametrize(("kind", "heads", "published"), [
    ("dense", 1, 2_099_712), ("dense", 10, 115_368_960), ("per-head", 10, 20_997_120)])
def test_the_head_layer_has_the_published_size(kind, heads, published):
    layer = meta_network(replace(PRESETS["paper"], head_layer=kind, prediction_heads=heads)).heads
    assert size(layer) - size(layer.norm) == published


@pytest.mark.parametrize("layer", HEAD_LAYERS)
def test_p1_keeps_the_scores_of_the_base_when_heads_are_added(layer):
    config = VARIANTS["text"] if layer == "recurrent" else SMALL
    base = random_model(replace(config, prediction_heads=1))
    grown = random_model(replace(config, prediction_heads=6, head_layer=layer), seed=9)
    grown.load_state_dict(base.state_dict(), strict=False)
    source, target = random_tokens(config, 2)
    assert torch.equal(grown.scores(grown(source, target)), base.scores(base(source, target)))


def test_one_head_has_no_layer_and_makes_no_proposals():
    model = random_model(replace(SMALL, prediction_heads=1))
    source, target = random_tokens(SMALL, 1)
    assert model.heads is None
    with pytest.raises(ValueError, match="one prediction head"):
        model.block_scores(model(source, target), torch.zeros(1, 1, dtype=torch.int64))


def test_a_base_without_its_head_layer_decodes_with_its_own_output():
    config = replace(VARIANTS["as published"], prediction_heads=1)
    base = random_model(replace(config, one_head_layer=False))
    assert random_model(config).heads is not None
    assert base.heads is None
    source, target = random_tokens(config, 2)
    decoded = base(source, target)
    torch.testing.assert_close(base.scores(decoded), base.project(decoded.hidden))
    tokens = decode(StepModel(base), source, DecodeConfig(block_size=1)).tokens
    assert torch.equal(base.scores(base(source, tokens)).argmax(-1), tokens)


@pytest.mark.parametrize("variant", VARIANTS)
def test_block_scores_equal_the_scores_of_each_head(variant):
    config = VARIANTS[variant]
    model = random_model(config)
    source, target = random_tokens(config, 2)
    decoded = model(source, target)
    position = torch.tensor([[0, 7, 3, 20], [5, 5, 1, 29]])
    together = model.block_scores(decoded, position)
    first = 1 if config.identity_p1 else 0
    for head in range(first, config.prediction_heads):
        single = model.head_scores(decoded, position, head)
        torch.testing.assert_close(together[:, :, head - first], single, rtol=1e-9, atol=1e-9)
    chosen = torch.rand(together.shape[:3], generator=torch.Generator().manual_seed(1)) < 0.5
    found = model.block_scores(decoded, position, chosen.nonzero(as_tuple=True))
    torch.testing.assert_close(found, together[chosen], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_token_changes_no_score_up_to_its_own_position(variant):
    config = VARIANTS[variant]
    model = random_model(config)
    source, target = random_tokens(config, 1)
    changed = [0, 1, 5, 13, config.target_length - 2, config.target_length - 1]
    others = target.repeat(len(changed), 1)
    for row, place in enumerate(changed):
        others[row, place] = (others[row, place] + 1) % config.vocabulary
    every = torch.cat([target, others])
    decoded = model(source.expand(len(every), -1), every)
    position = torch.arange(config.target_length).expand(len(every), -1)
    for head in (0, config.prediction_heads - 1):
        scores = model.head_scores(decoded, position, head)
        earlier = head if config.head_layer in ("sequential", "recurrent") else 0
        for row, place in enumerate(changed, start=1):
            first = max(place + 1 - earlier, 0)  # the first position whose head may see the token
            torch.testing.assert_close(scores[row, :first], scores[0, :first], rtol=1e-9, atol=1e-9)
            for seeing in range(first, place + 1):
                assert not torch.allclose(scores[row, seeing], scores[0, seeing], rtol=1e-9,
                                          atol=1e-9)
            if head == 0 and place + 1 < config.target_length:
                assert not torch.allclose(scores[row, place + 1], scores[0, place + 1], rtol=1e-9,
                                          atol=1e-9)


def test_gradient_checkpointing_changes_no_gradient():
    source, target = random_tokens(SMALL, 2)
    gradients = []
    for saving in (False, True):
        model = random_model(SMALL).train().requires_grad_(True)
        model.gradient_checkpointing = saving
        model.scores(model(source, target)).square().mean().backward()
        gradients.append([w.grad for n,
                          w in model.named_parameters() if not n.startswith("heads.")])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("threads", [1, 2])
def test_bits_per_dim_is_the_mean_surprise_in_bits(threads, monkeypatch):
    monkeypatch.setattr(likelihood, "most_threads", lambda: threads)
    config = VARIANTS["base aids"]
    model = random_model(config)
    source, target = random_tokens(config, 3)
    expected = []
    for row in range(3):
        scores = model.scores(model(source[row : row + 1], target[row : row + 1]))[0]
        p = scores.softmax(-1)[torch.arange(config.target_length), target[row]]
        expected.append(float(-p.log2().mean()))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        found = bits_per_dim(model, source, target, batch_size=2)
    finally:
        torch.set_num_threads(before)
    assert found.tolist() == pytest.approx(expected)


def by_query(query, key, value, shown):
    """Attend query by query to the keys that `shown(position)` names."""
    rows = []
    for position in range(query.shape[2]):
        keys = shown(position)
        weights = ((key[:, :, keys] @ query[:, :, position].unsqueeze(-1)).squeeze(-1)
                   / query.shape[-1] ** 0.5)
        rows.append((weights.softmax(-1).unsqueeze(-1) * value[:, :, keys]).sum(2))
    return torch.stack(rows, dim=2)


def inputs(length):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, 2, length, 4, generator=generator, dtype=torch.float64)
            for _ in range(3)]


@given(st.integers(1, 25), st.integers(1, 10))
def test_local_attention_equals_a_loop_over_queries(length, block_length):
    expected = by_query(*inputs(length), lambda position: list(range(
        max(0, (position // block_length - 1) * block_length), position + 1)))
    torch.testing.assert_close(local_attention(*inputs(length), block_length), expected)


def test_causal_attention_equals_a_loop_over_queries():
    expected = by_query(*inputs(9), lambda position: list(range(position + 1)))
    torch.testing.assert_close(causal_attention(*inputs(9)), expected)


def test_hidden_keys_have_no_weight():
    query, key, value = inputs(5)
    visible = torch.tensor([True, False, True, False, True])
    masked = attend(query, key, value, hidden_mask(visible))
    torch.testing.assert_close(masked, attend(query, key[:, :, visible], value[:, :, visible]))


def test_the_last_pixel_of_a_cell_is_known_from_its_source():
    config = SMALL
    target = torch.randint(0, 6, (2, config.target_length)).double()
    cell, positions = map(torch.from_numpy, tables.cell_tables(config))
    source = torch.zeros(2, config.source_length, dtype=torch.double)
    for position in range(config.target_length):
        source[:, cell[position]] = target[:, positions[position]].mean(1)
    estimate = torch.rand(2, config.target_length, dtype=torch.double) * 5
    neighbourhood = NumericNeighbourhood(config).double()
    deviation = torch.nn.functional.pad((target - estimate) / tables.RESIDUAL_SCALE, (0, 1))
    every = torch.arange(config.target_length)
    buffer = neighbourhood.buffer(deviation, neighbourhood.residual_sum(source, estimate))
    features = neighbourhood.features(buffer, every.expand(2, -1))
    pixels = positions.shape[1]
    assert features.shape[-1] == tables.feature_count(config)
    remainder = features[..., -pixels:]
    last, first = (positions[:, place] == every for place in (-1, 0))
    torch.testing.assert_close(remainder[:, last, 0], deviation[:, :-1][:, last])
    torch.testing.assert_close(remainder[:, first, pixels - 1],
                               deviation[:, positions[first]].mean(-1))
    assert ((remainder != 0).sum(-1) <= 1).all()


@pytest.mark.parametrize("shape", ["laplace", "hyperbolic"])
def test_ordinal_scores_peak_at_the_centre_and_fall_evenly(shape):
    network = ModelConfig(free_scores=False, ordinal_shape=shape)
    centre, sharpness = torch.tensor([100.0]), 2.0
    for log_d, shift in ((-2.0, 0.0), (0.0, 1.0), (1.5, 0.1), (-9.0, 0.1)):
        outputs = torch.tensor([[log_d, shift, sharpness][-network.outputs:]])
        term = image_priors.ordinal_term(outputs, centre)
        scores = image_priors.scores_around(*term, outputs, network)[0]
        z = (torch.arange(256) - 100 - shift * tables.RESIDUAL_SCALE) * math.exp(sharpness - 2.5)
        d = math.exp(max(log_d, -7))
        expected = -z.abs() if shape == "laplace" else d - (d * d + z * z).sqrt()
        torch.testing.assert_close(scores, expected)
        free = torch.cat([torch.zeros(1, 256), outputs], dim=1)
        assert torch.equal(image_priors.scores_around(*term, free,
                                                      ModelConfig(ordinal_shape=shape))[0], scores)


def test_a_flat_source_stays_flat():
    config = PRESETS["base"]
    large = image_priors.enlarge_source(torch.full((1, config.source_length), 77), config)
    assert torch.allclose(large, torch.tensor(77.0), atol=1e-3)
