"""Frozen, validated settings of the network and of decoding, with a strict JSON form."""

from superres.config.checks import LARGEST, Config, is_number, is_whole, require, require_choice, require_whole
from superres.config.decoding import (
    DEFAULT_CHECKPOINT,
    DEFAULT_TRANSLATOR,
    ENGINES,
    LARGEST_BEAM,
    LARGEST_BRANCHING,
    LARGEST_PENALTY,
    LEAST_TEMPERATURE,
    SAMPLINGS,
    BeamConfig,
    DecodeConfig,
    QualityBound,
    parse_epsilon,
    parse_temperature,
)
from superres.config.network import (
    FORMAT_VERSION,
    HEAD_LAYERS,
    MOST_CHANNELS,
    MOST_SOURCE,
    MOST_TABLE,
    MOST_TARGET,
    PRESETS,
    SIZES,
    ModelConfig,
)

__all__ = [
    "DEFAULT_CHECKPOINT", "DEFAULT_TRANSLATOR", "ENGINES", "FORMAT_VERSION", "HEAD_LAYERS", "LARGEST", "LARGEST_BEAM",
    "LARGEST_BRANCHING", "LARGEST_PENALTY", "LEAST_TEMPERATURE", "MOST_CHANNELS", "MOST_SOURCE", "MOST_TABLE",
    "MOST_TARGET", "PRESETS", "SAMPLINGS", "SIZES", "BeamConfig", "Config", "DecodeConfig", "ModelConfig",
    "QualityBound", "is_number", "is_whole", "parse_epsilon", "parse_temperature", "require", "require_choice",
    "require_whole",
]
