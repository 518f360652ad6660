"""Settings: JSON there and back; unknown, mistyped and impossible values are refused by name."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest
import torch
from fakes import VARIANTS, random_model, random_tokens

from decodes import decode
from superres.config import PRESETS, BeamConfig, DecodeConfig, ModelConfig, QualityBound
from superres.errors import ConfigError
from superres.pipeline.choose import step_model
from superres.training.stage import Stage

EXAMPLES = [*PRESETS.values(), DecodeConfig(), DecodeConfig(block_size=4, temperature=0.9,
                                                            seed=2**63 - 1),
            DecodeConfig(accept="distance", epsilon=4),
            DecodeConfig(temperature=(0.9, 0.7, 0.7)),
            Stage(steps=10), Stage(minutes=1.5, stage="heads")]


@pytest.mark.parametrize("config", EXAMPLES, ids=lambda config: type(config).__name__)
def test_settings_survive_json(config):
    assert type(config).from_dict(json.loads(json.dumps(config.to_dict()))) == config


IMPOSSIBLE = [
    *((kind, "colour", 1) for kind in (ModelConfig, DecodeConfig, Stage)),
    *((ModelConfig, name, value) for name in ("width", "vocabulary", "decoder_layers",
                                              "prediction_heads", "attention_block_length")
      for value in (0, -1, 1.5, "4", None)),
    (ModelConfig, "encoder_layers", -1), (ModelConfig, "conditioning_blocks", -1),
    (ModelConfig, "target_shape", ()), (ModelConfig, "target_shape", (8, 0, 3)),
    (ModelConfig, "source_shape", 8), (ModelConfig, "target_shape", (33, 32, 3)),
    (ModelConfig, "target_shape", (64,)), (ModelConfig, "attention_heads", 3),
    (ModelConfig, "width", 30), (ModelConfig, "attention", "global"), (ModelConfig, "norm", "none"),
    (ModelConfig, "head_layer", "sparse"), (ModelConfig, "dropout", 1.0),
    (ModelConfig, "dropout", -0.1), (DecodeConfig, "block_size", 0),
    (DecodeConfig, "block_size", 2.0), (DecodeConfig, "epsilon", -1),
    (DecodeConfig, "epsilon", 0.5), (DecodeConfig, "epsilon", ()),
    (DecodeConfig, "epsilon", (4, 3)), (DecodeConfig, "top_k", 0), (DecodeConfig, "min_block", 0),
    (DecodeConfig, "temperature", -0.1), (DecodeConfig, "temperature", float("nan")),
    (DecodeConfig, "temperature", float("inf")), (DecodeConfig, "temperature", (0.9, 0.7)),
    (DecodeConfig, "temperature", (0.9, 0.0, 0.7)), (DecodeConfig, "temperature", ()),
    *((DecodeConfig, name, value) for name in ("temperature", "later_temperature")
      for value in (1e10, 1e39)), (DecodeConfig, "temperature", (0.9, 1e39, 0.9)),
    (DecodeConfig, "later_temperature", (0.0, 1e39)), (DecodeConfig, "epsilon", 256),
    (DecodeConfig, "temperature", "1"), (DecodeConfig, "seed", -1), (DecodeConfig, "seed", 2**63),
    (Stage, "batch_size", 0), (Stage, "learning_rate", 0.0), (Stage, "clip", -1.0),
    (Stage, "stage", "middle"), (Stage, "ema_decay", 1.0), (Stage, "steps", 0),
    (Stage, "head_loss", "none"), (Stage, "head_target", "p2"),
    (BeamConfig, "size", 0), (BeamConfig, "length_penalty", -1.0),
    (BeamConfig, "length_penalty", float("nan")),
    *((DecodeConfig, name, value) for name in ("block_size", "epsilon", "top_k", "min_block",
                                               "window", "candidates", "sample_top_k")
      for value in (2**31, float("nan"), True, "5")),
    (ModelConfig, "ordinal_shape", "gaussian"), (ModelConfig, "ordinal_shape", None),
]


@pytest.mark.parametrize(("kind", "name", "value"), IMPOSSIBLE)
def test_impossible_values_are_refused_with_the_value(kind, name, value):
    values = {"steps": 10, name: value} if kind is Stage else {name: value}
    with pytest.raises(ConfigError) as caught:
        kind.from_dict(values)
    message = str(caught.value)
    assert "\n" not in message
    assert str(value) in message or f"unknown setting {name}" in message


@pytest.mark.parametrize(("kind", "given", "wanted"), [
    (DecodeConfig, {"block_size": np.int64(5), "seed": np.uint64(2**63 - 1),
                    "temperature": np.float32(0.5)},
     DecodeConfig(block_size=5, seed=2**63 - 1, temperature=0.5)),
    (DecodeConfig, {"temperature": (np.float64(0.9), np.int8(1), 0.7)},
     DecodeConfig(temperature=(0.9, 1, 0.7))),
    (BeamConfig, {"size": np.int16(3), "length_penalty": np.float16(0.5)}, BeamConfig(3, 0.5)),
    (ModelConfig, {"width": np.int32(32), "target_shape": (*np.array([32, 32]), 3)},
     ModelConfig(width=32)),
    (QualityBound, {"max_bits_loss": np.float32(0.5)}, QualityBound(max_bits_loss=0.5)),
], ids=str)
def test_numbers_of_numpy_are_numbers(kind, given, wanted):
    assert kind(**given) == wanted
    assert json.dumps(kind(**given).to_dict()) == json.dumps(wanted.to_dict())
    for value in (np.True_, np.float32("nan"), np.array([1, 2])):
        for name in given:
            with pytest.raises(ConfigError, match="must be "):
                kind(**{name: value})


@pytest.mark.parametrize(("settings", "needs"), [
    ({"head_layer": "sequential", "numeric_neighbourhood": False}, "numeric_neighbourhood and "
     "ordinal_output"),
    ({"head_layer": "sequential", "ordinal_output": False}, "numeric_neighbourhood and "
     "ordinal_output"),
    *(({**VARIANTS["recurrent heads"].to_dict(), **lacks}, "a target_shape of one number, "
       "cross_attention and ")
      for lacks in ({"target_shape": (4, 4, 3)}, {"cross_attention": False},
                    {"identity_p1": False})),
], ids=str)
def test_heads_need_what_they_read(settings, needs):
    with pytest.raises(ConfigError, match=f"head_layer {settings['head_layer']} needs {needs}"):
        ModelConfig(**settings)


@pytest.mark.parametrize("length", [{}, {"steps": 3, "minutes": 1.0}])
def test_training_has_one_length(length):
    with pytest.raises(ConfigError, match="either steps or minutes"):
        Stage(**length)


# Every number, far out of its range

EXTREMES = [-1, 0, 1, 2**31 - 1, 2**31, 2**63, 2**64, 10**400, 1e30, 1e308, float("nan"),
            float("inf"), True, False, "5", [], None, (2**63,), (0, 2**63, 1e30)]
SAMPLED = [{"temperature": 0.9}, {"temperature": 0.9, "sampling": "speculative"}]
LOOKAHEAD = [{"proposer": "lookahead", "block_size": 3}]
READS = {
    "epsilon": [{"accept": "distance"}], "top_k": [{"accept": "top-k"}],
    "min_block": [{"accept": "distance"}], "seed": SAMPLED, "sample_top_k": SAMPLED,
    "nucleus": SAMPLED, "window": LOOKAHEAD, "candidates": LOOKAHEAD,
    "temperature": [{}, {"sample_top_k": 3}],
}
"""Other settings with which a number takes effect."""


def numeric_fields(kind):
    return [field.name for field in dataclasses.fields(kind) if {"int", "float"} & set(
        field.type.replace("[", " ").replace("]", " ").replace(",", " ").split())]


def check_line(error):
    assert str(error).isprintable()
    assert len(str(error)) < 400


@cache
def tiny():
    """Return the network `tiny`, for pictures of 48 intensities."""
    config = replace(PRESETS["tiny"], prediction_heads=4, source_shape=(2, 2, 3),
                     target_shape=(4, 4, 3))
    return step_model(random_model(config, dtype=torch.float32)), random_tokens(config, 2)[0]


@pytest.mark.parametrize("name", numeric_fields(DecodeConfig))
def test_any_number_makes_settings_that_decode_or_is_refused(name):
    for value, more in product(EXTREMES, READS.get(name, [{}])):
        try:
            options = DecodeConfig.from_dict({**more, name: value})
            model, source = tiny()
            assert decode(model, source, options).lengths.tolist() == [48, 48]
        except ConfigError as error:
            check_line(error)


@pytest.mark.parametrize("kind", [ModelConfig, BeamConfig, QualityBound])
def test_any_number_of_other_settings_is_taken_or_refused(kind):
    for name, value in product(numeric_fields(kind), EXTREMES):
        try:
            kind.from_dict({name: value})
        except ConfigError as error:
            check_line(error)


@pytest.mark.slow
@pytest.mark.parametrize("value", [-1, 1e25, 1e30, 10**400, 2**63, 0.5, float("nan"), float("inf"),
                                   True, None, "x", [], {}, "9" * 9999],
                         ids=lambda value: repr(value)[:20])
def test_what_a_visitor_sends_in_place_of_a_number_is_refused(value):
    pytest.importorskip("gradio")
    from superres.web.controls import MAX_SAMPLES, options_of, whole_number
    from superres.web.translate_tab import variant_of

    face = {"block_size": 4, "accept": "distance", "epsilon": 2, "top_k": 2, "consistent": True,
            "temperature": 0, "later_temperature": "", "seed": 0}
    text = {"block_size": 4, "accept": "exact", "top_k": 2, "beam": 0}
    options_of(DecodeConfig(), face.values())
    for name in ("block_size", "epsilon", "top_k", "seed"):
        with pytest.raises(ConfigError) as caught:
            options_of(DecodeConfig(), {**face, name: value}.values())
        assert len(str(caught.value)) < 400
    for name in ("block_size", "top_k", "beam"):
        with pytest.raises(ConfigError):
            variant_of(DecodeConfig(), *{**text, name: value}.values())
    with pytest.raises(ConfigError):
        whole_number("samples", value, 1, MAX_SAMPLES)
