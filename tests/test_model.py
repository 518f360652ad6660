"""The whole-sequence network: causal, with heads that leave the base alone, in all its published and own forms."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fakes import SMALL, VARIANTS, random_model, random_tokens

from superres.config import HEAD_LAYERS, PRESETS, DecodeConfig
from superres.decoding.decode import decode
from superres.nn.engines.torch_model import StepModel
from superres.nn.image_priors import neighbour_table
from superres.nn.likelihood import bits_per_dim
from superres.nn.model import EncoderDecoder
from superres.system.machine import TorchThreads


def size(module):
    return sum(weight.numel() for weight in module.parameters())


def on_meta(config):
    with torch.device("meta"):
        return EncoderDecoder(config)


# Facts of the published network (img2img_transformer_b3), from the shapes of its weights


def test_paper_preset_has_the_published_sizes():
    model = on_meta(replace(PRESETS["paper"], prediction_heads=10))
    projection_biases = {"encoder": 4 * 512, "decoder": 2 * 4 * 512}  # the published projections have none
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
    layer = on_meta(replace(PRESETS["paper"], head_layer=kind, prediction_heads=heads)).heads
    assert size(layer) - size(layer.norm) == published


# Prediction heads


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
    torch.testing.assert_close(model.block_scores(decoded, position, chosen), together[chosen], rtol=1e-9, atol=1e-9)


# Causality


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
                assert not torch.allclose(scores[row, seeing], scores[0, seeing], rtol=1e-9, atol=1e-9)
            if head == 0 and place + 1 < config.target_length:
                assert not torch.allclose(scores[row, place + 1], scores[0, place + 1], rtol=1e-9, atol=1e-9)


def test_neighbours_come_before_their_target_and_lie_near_it():
    rows, columns, channels = 5, 6, 3
    table = neighbour_table((rows, columns, channels))
    count = rows * columns * channels
    for position in range(count):
        present = [n for n in table[position].tolist() if n < count]
        assert len(set(present)) == len(present)
        for neighbour in present:
            assert neighbour < position
            assert position // (columns * channels) - neighbour // (columns * channels) <= 2
            assert abs(position // channels % columns - neighbour // channels % columns) <= 4
        pixel = position // channels * channels
        assert set(range(pixel, position)) <= set(present)


def test_gradient_checkpointing_changes_no_gradient():
    source, target = random_tokens(SMALL, 2)
    gradients = []
    for saving in (False, True):
        model = random_model(SMALL).train().requires_grad_(True)
        model.gradient_checkpointing = saving
        model.scores(model(source, target)).square().mean().backward()
        gradients.append([w.grad for n, w in model.named_parameters() if not n.startswith("heads.")])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("variant", ["base aids", "plain"])
def test_bits_per_dim_is_the_mean_surprise_in_bits(variant, threads, monkeypatch):
    monkeypatch.setattr(TorchThreads, "limit", lambda: threads)
    config = VARIANTS[variant]
    model = random_model(config)
    source, target = random_tokens(config, 3)
    expected = []
    for row in range(3):
        scores = model.scores(model(source[row : row + 1], target[row : row + 1]))[0]
        likelihood = scores.softmax(-1)[torch.arange(config.target_length), target[row]]
        expected.append(float(-likelihood.log2().mean()))
    assert bits_per_dim(model, source, target, batch_size=2).tolist() == pytest.approx(expected)
