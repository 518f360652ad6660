"""Settings: JSON there and back; unknown, mistyped and impossible values are refused by name."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import product

import numpy as np
import pytest
import torch
from fakes import VARIANTS, random_model, random_tokens

from decodes import decode
from superres.config import (
    PRESETS,
    BeamConfig,
    Confidence,
    Config,
    DecodeConfig,
    ModelConfig,
    QualityBound,
    Reliability,
    reader_of,
    setting,
)
from superres.errors import ConfigError
from superres.nn.weights import network_of
from superres.pipeline.choose import engine_of
from superres.training.stage import Stage
from tests.config.helpers import assert_line, refusal


@dataclass(frozen=True)
class Inner(Config):
    size: int = setting(1, least=1, most=9)


@dataclass(frozen=True)
class Outer(Config):
    inner: Inner
    many: tuple[Inner, ...] = ()
    pair: tuple[int, str] | None = None
    share: float = setting(0.5, least=0, most=1)
    rate: float | tuple[float, ...] = 0.0
    flag: bool = False
    notes: dict[str, list[float]] | None = None
    counts: dict[str, int] | None = None


NESTED = Outer(Inner(2), (Inner(3), Inner()), (1, "a"), 1, (1, 2.5), False, {"a": [1, 2]})
EXAMPLES = [*PRESETS.values(), DecodeConfig(),
            DecodeConfig(block_size=4, temperature=0.9, seed=2**63 - 1),
            DecodeConfig(accept="distance", epsilon=4), DecodeConfig(temperature=(0.9, 0.7, 0.7)),
            Stage(steps=10), Stage(minutes=1.5, stage="heads"), NESTED]


@pytest.mark.parametrize("config", EXAMPLES, ids=lambda config: type(config).__name__)
def test_settings_survive_json(config):
    assert type(config).from_dict(json.loads(json.dumps(config.to_dict()))) == config


LEAST = {Stage: {"steps": 10}, Confidence: {"offset": 0, "exponent": 1},
         Reliability: {"threshold": 1}, Outer: {"inner": {}}}
"""Settings without which a class has no others."""

IMPOSSIBLE = [
    *((kind, "colour", 1) for kind in (ModelConfig, DecodeConfig, Stage)),
    *((ModelConfig, name, 0) for name in ("width", "vocabulary", "decoder_layers",
                                          "prediction_heads", "attention_block_length")),
    (ModelConfig, "encoder_layers", -1), (ModelConfig, "conditioning_blocks", -1),
    (ModelConfig, "target_shape", ()), (ModelConfig, "target_shape", (8, 0, 3)),
    (ModelConfig, "source_shape", 8), (ModelConfig, "target_shape", (33, 32, 3)),
    (ModelConfig, "target_shape", (64,)), (ModelConfig, "attention_heads", 3),
    (ModelConfig, "width", 30), (ModelConfig, "width", 1.5), (ModelConfig, "attention", "global"),
    (ModelConfig, "norm", "none"), (ModelConfig, "dropout", 1.0), (ModelConfig, "dropout", -0.1),
    (ModelConfig, "ordinal_shape", None),
    (DecodeConfig, "block_size", 0), (DecodeConfig, "block_size", 2.0),
    *((DecodeConfig, "epsilon", value) for value in (-1, 0.5, (), (4, 3), 256)),
    (DecodeConfig, "top_k", 0), (DecodeConfig, "min_block", 0),
    *((DecodeConfig, "temperature", value) for value in (
        -0.1, (0.9, 0.7), (0.9, 0.0, 0.7), (), (0.9, 1e39, 0.9), "1", 1e-40)),
    *((DecodeConfig, name, value) for name in ("temperature", "later_temperature")
      for value in (1e10, 1e39)),
    (DecodeConfig, "later_temperature", (0.0, 1e39)),
    (DecodeConfig, "seed", -1), (DecodeConfig, "seed", 2**63),
    (BeamConfig, "size", 0), (BeamConfig, "length_penalty", -1.0), (Stage, "learning_rate", 0.0),
    (Stage, "clip", -1.0), (Stage, "stage", "middle"), (Stage, "ema_decay", 1.0),
    (Stage, "steps", 0), (Stage, "head_loss", "none"), (Stage, "head_target", "p2"),
    (Stage, "crop_share", 2), (Stage, "flip", 1), (Stage, "teacher", 7),
]


@pytest.mark.parametrize(("kind", "name", "value"), IMPOSSIBLE)
def test_impossible_values_are_refused_with_the_value(kind, name, value):
    message = refusal(kind.from_dict, LEAST.get(kind, {}) | {name: value}, error=ConfigError)
    assert str(value) in message or f"unknown setting {name}" in message


@pytest.mark.parametrize(("values", "message"), [
    ({}, "Outer needs inner"), ({"inner": 7}, "Inner needs an object of settings, not 7"),
    ({"inner": {"size": 10}}, "size must be at most 9, not 10"),
    ({"inner": {"sise": 1}}, "unknown setting sise in Inner"), ({"many": {}}, "a list, not {}"),
    ({"pair": [1]}, "a list of 2 values, not [1]"),
    ({"pair": ["1", "a"]}, "pair must be a whole number, not '1'"),
    ({"share": 1.5}, "share must be a number from 0 to 1, not 1.5"),
    ({"share": float("nan")}, "not nan"), ({"share": True}, "not True"),
    ({"rate": [True]}, "rate must be a number, not True"), ({"flag": 1}, "true or false, not 1"),
    ({"notes": {"a\n": ["x"]}}, "a in notes must be a number, not 'x'"),
    ({"counts": {"a": 1.5}}, "a in counts must be a whole number, not 1.5"),
    (7, "an object of settings, not 7"),
])
def test_a_value_of_another_type_is_named(values, message):
    given = LEAST[Outer] | values if values and isinstance(values, dict) else values
    assert message in refusal(Outer.from_dict, given, error=ConfigError)


def test_numbers_of_any_file_fit_into_64_bits():
    assert "whole number" in refusal(reader_of(int), "tokens", 2**64, error=ConfigError)


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

EXTREMES = [-1, 0, 1, 2**31 - 1, 2**31, 2**63, 2**64, 1e30, 1e308, [], None, (2**63,),
            (0, 2**63, 1e30), {}, [[]], {"a": 1}, "9" * 9999]
NO_NUMBERS = [10**400, float("nan"), float("inf"), True, "5"]
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
    return [field.name for field in fields(kind) if re.search(r"\b(int|float)\b", field.type)]


@pytest.mark.parametrize("kind", [ModelConfig, DecodeConfig, BeamConfig, QualityBound, Stage,
                                  Confidence, Reliability])
def test_any_value_is_taken_or_refused_and_what_is_no_number_is_not_taken(kind):
    least = LEAST.get(kind, {})
    for name, value in product(numeric_fields(kind), NO_NUMBERS):
        refusal(kind.from_dict, least | {name: value}, error=ConfigError)
    for field, value in product(fields(kind), [*EXTREMES, *NO_NUMBERS]):
        try:
            kind.from_dict(least | {field.name: value})
        except ConfigError as error:
            assert_line(error)


@cache
def tiny():
    """Return the engine of the network `tiny`, for pictures of 48 intensities."""
    config = replace(PRESETS["tiny"], prediction_heads=4, source_shape=(2, 2, 3),
                     target_shape=(4, 4, 3))
    network = network_of(random_model(config, dtype=torch.float32))
    return engine_of(network), random_tokens(config, 2)[0]


@pytest.mark.parametrize("name", numeric_fields(DecodeConfig))
def test_any_number_that_is_taken_decodes(name):
    for value, more in product(EXTREMES, READS.get(name, [{}])):
        try:
            options = DecodeConfig.from_dict({**more, name: value})
            engine, source = tiny()
            assert decode(engine, source, options).lengths.tolist() == [48, 48]
        except ConfigError as error:
            assert_line(error)


@pytest.mark.slow
def test_what_a_visitor_sends_in_place_of_a_number_is_refused():
    pytest.importorskip("gradio")
    from superres.web.controls import MAX_SAMPLES, whole_number
    from superres.web.translate_tab import variant_of

    text = {"block_size": 4, "accept": "exact", "top_k": 2, "beam": 0}
    for value in (-1, 1e30, 2**63, 0.5, None, [], {}, "9" * 9999, *NO_NUMBERS):
        for name in ("block_size", "top_k", "beam"):
            values = {**text, name: value}.values()
            refusal(variant_of, DecodeConfig(), *values, error=ConfigError)
        refusal(whole_number, "samples", value, 1, MAX_SAMPLES, error=ConfigError)
