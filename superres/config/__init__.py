"""Frozen, validated settings of the network and of decoding, with a strict JSON form."""

from superres.config.decode_settings import (
    COVERAGE,
    CRITERION_NAMES,
    CRITERION_PLUGINS,
    DEFAULT_CASCADE,
    DEFAULT_CHECKPOINT,
    DEFAULT_TRANSLATOR,
    DEVICES,
    ENGINE_NAMES,
    EXACT_BLOCK,
    FIRST_GUESS,
    LARGEST_ERROR,
    LEAST_TEMPERATURE,
    PROPOSER_NAMES,
    PROPOSER_PLUGINS,
    BeamConfig,
    Confidence,
    DecodeConfig,
    DecodeOptions,
    QualityBound,
    Reliability,
    parse_numbers,
)
from superres.config.names import file_name
from superres.config.network import FORMAT_VERSION, HEAD_LAYERS, LONGEST, PRESETS, ModelConfig
from superres.config.setting import (
    DECODING,
    EXPERTS,
    FACES,
    LARGEST,
    REQUIRED,
    SAMPLING,
    TRANSLATION,
    Config,
    Registry,
    Setting,
    documented,
    is_number,
    is_whole,
    reader_of,
    require,
    require_choice,
    require_whole,
    setting,
    settings_of,
)

__all__ = [
    "COVERAGE", "CRITERION_NAMES", "CRITERION_PLUGINS", "DECODING", "DEFAULT_CASCADE", "DEFAULT_CHECKPOINT",
    "DEFAULT_TRANSLATOR", "DEVICES", "ENGINE_NAMES", "EXACT_BLOCK", "EXPERTS", "FACES", "FIRST_GUESS", "FORMAT_VERSION",
    "HEAD_LAYERS", "LARGEST", "LARGEST_ERROR", "LEAST_TEMPERATURE", "LONGEST", "PRESETS", "PROPOSER_NAMES",
    "PROPOSER_PLUGINS", "REQUIRED", "SAMPLING", "TRANSLATION", "BeamConfig", "Confidence", "Config", "DecodeConfig",
    "DecodeOptions", "ModelConfig", "QualityBound", "Registry", "Reliability", "Setting", "documented", "file_name",
    "is_number", "is_whole", "parse_numbers", "reader_of", "require", "require_choice", "require_whole", "setting",
    "settings_of",
]
