"""Settings: JSON there and back; unknown, mistyped and impossible values are refused by name."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from fakes import VARIANTS

from superres.config import PRESETS, DecodeConfig, ModelConfig
from superres.errors import ConfigError
from superres.train_config import TrainConfig

EXAMPLES = [*PRESETS.values(), DecodeConfig(), DecodeConfig(block_size=4, temperature=0.9, seed=2**63 - 1),
            DecodeConfig(accept="distance-by-offset", epsilon=(4, 3, 2)),
            DecodeConfig(temperature=(0.9, 0.7, 0.7)),
            TrainConfig(steps=10), TrainConfig(minutes=1.5, stage="heads")]


@pytest.mark.parametrize("config", EXAMPLES, ids=lambda config: type(config).__name__)
def test_settings_survive_json(config):
    assert type(config).from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize("kind", [ModelConfig, DecodeConfig, TrainConfig])
def test_unknown_settings_are_refused_by_name(kind):
    with pytest.raises(ConfigError, match="colour") as caught:
        kind.from_dict({"colour": 1})
    assert "\n" not in str(caught.value)


IMPOSSIBLE = [
    *((ModelConfig, name, value) for name in ("width", "vocabulary", "decoder_layers", "prediction_heads",
                                              "attention_block_length") for value in (0, -1, 1.5, "4", None)),
    (ModelConfig, "encoder_layers", -1), (ModelConfig, "conditioning_blocks", -1),
    (ModelConfig, "target_shape", ()), (ModelConfig, "target_shape", (8, 0, 3)), (ModelConfig, "source_shape", 8),
    (ModelConfig, "target_shape", (33, 32, 3)),
    (ModelConfig, "target_shape", (64,)), (ModelConfig, "attention_heads", 3), (ModelConfig, "width", 30),
    (ModelConfig, "attention", "global"), (ModelConfig, "norm", "none"), (ModelConfig, "head_layer", "sparse"),
    (ModelConfig, "dropout", 1.0), (ModelConfig, "dropout", -0.1),
    (DecodeConfig, "block_size", 0), (DecodeConfig, "block_size", 2.0), (DecodeConfig, "epsilon", -1),
    (DecodeConfig, "epsilon", 0.5), (DecodeConfig, "epsilon", (4, -1)), (DecodeConfig, "epsilon", ()),
    (DecodeConfig, "epsilon", (2, 0.5)), (DecodeConfig, "budget", -1), (DecodeConfig, "budget", 1.5),
    (DecodeConfig, "top_k", 0), (DecodeConfig, "min_block", 0),
    (DecodeConfig, "temperature", -0.1), (DecodeConfig, "temperature", float("nan")),
    (DecodeConfig, "temperature", float("inf")), (DecodeConfig, "temperature", (0.9, 0.7)),
    (DecodeConfig, "temperature", (0.9, 0.0, 0.7)), (DecodeConfig, "temperature", ()),
    (DecodeConfig, "temperature", "1"), (DecodeConfig, "seed", -1), (DecodeConfig, "seed", 2**63),
    (TrainConfig, "batch_size", 0), (TrainConfig, "learning_rate", 0.0), (TrainConfig, "clip", -1.0),
    (TrainConfig, "stage", "middle"), (TrainConfig, "ema_decay", 1.0), (TrainConfig, "steps", 0),
    (TrainConfig, "head_loss", "none"), (TrainConfig, "head_target", "p2"),
    (TrainConfig, "head_decay", 0.0), (TrainConfig, "head_decay", 1.1),
]


@pytest.mark.parametrize(("kind", "name", "value"), IMPOSSIBLE)
def test_impossible_values_are_refused_with_the_value(kind, name, value):
    values = {"steps": 10, name: value} if kind is TrainConfig else {name: value}
    with pytest.raises(ConfigError) as caught:
        kind.from_dict(values)
    message = str(caught.value)
    assert "\n" not in message
    assert str(value) in message


def test_minimum_block_above_the_block_size_is_refused():
    with pytest.raises(ConfigError, match="min-block 5"):
        DecodeConfig(block_size=4, min_block=5)


@pytest.mark.parametrize("layer", ["adaptive", "sequential"])
@pytest.mark.parametrize("aid", ["numeric_neighbourhood", "ordinal_output"])
def test_heads_that_weigh_intensities_need_them_as_numbers(layer, aid):
    with pytest.raises(ConfigError, match=f"head_layer {layer} needs numeric_neighbourhood and ordinal_output"):
        ModelConfig(head_layer=layer, **{aid: False})


@pytest.mark.parametrize("lacks", [{"target_shape": (4, 4, 3)}, {"cross_attention": False}, {"identity_p1": False}])
def test_recurrent_heads_are_for_text_and_read_the_memory(lacks):
    with pytest.raises(ConfigError, match="head_layer recurrent needs a target_shape of one number, cross_attention"):
        replace(VARIANTS["recurrent heads"], **lacks)


@pytest.mark.parametrize("length", [{}, {"steps": 3, "minutes": 1.0}])
def test_training_has_one_length(length):
    with pytest.raises(ConfigError, match="either steps or minutes"):
        TrainConfig(**length)


def test_settings_cannot_be_changed():
    with pytest.raises(AttributeError):
        DecodeConfig().epsilon = 3


def test_lengths_follow_from_shapes():
    base = PRESETS["base"]
    assert (base.source_length, base.target_length, base.channels) == (192, 3072, 3)
    text = replace(PRESETS["paper"], source_shape=(20,), target_shape=(30,))
    assert (text.source_length, text.target_length, text.channels) == (20, 30, 1)
