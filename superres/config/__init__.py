"""Frozen, validated settings of the network and of decoding, with a strict JSON form."""

from superres.config.costs import MOST_THREADS, CostRecord, CostTable, StepCosts, general_costs
from superres.config.decode_settings import (
    COVERAGE,
    CRITERION_NAMES,
    CRITERION_PLUGINS,
    DEFAULT_CASCADE,
    DEFAULT_CHECKPOINT,
    DEFAULT_TRANSLATOR,
    DEVICES,
    ENGINE_NAMES,
    ENGINE_NUMBERS,
    ENGINE_PLUGINS,
    FIRST_GUESS,
    LARGEST_ERROR,
    LARGEST_TEMPERATURE,
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
from superres.config.names import file_name, portable_name, without_case
from superres.config.network import FORMAT_VERSION, HEAD_LAYERS, LONGEST, PRESETS, ModelConfig
from superres.config.registry import PLUGIN_NAME, Registry
from superres.config.setting import (
    DECODING,
    EXPERTS,
    FACES,
    LARGEST,
    REQUIRED,
    SAMPLING,
    TRANSLATION,
    Config,
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
    "COVERAGE", "CRITERION_NAMES", "CRITERION_PLUGINS", "DECODING", "DEFAULT_CASCADE",
    "DEFAULT_CHECKPOINT", "DEFAULT_TRANSLATOR", "DEVICES", "ENGINE_NAMES", "ENGINE_NUMBERS",
    "ENGINE_PLUGINS", "EXPERTS", "FACES", "FIRST_GUESS", "FORMAT_VERSION", "HEAD_LAYERS", "LARGEST",
    "LARGEST_ERROR", "LARGEST_TEMPERATURE", "LEAST_TEMPERATURE", "LONGEST", "MOST_THREADS",
    "PLUGIN_NAME", "PRESETS", "PROPOSER_NAMES", "PROPOSER_PLUGINS", "REQUIRED", "SAMPLING",
    "TRANSLATION", "BeamConfig", "Confidence", "Config", "CostRecord", "CostTable", "DecodeConfig",
    "DecodeOptions", "ModelConfig", "QualityBound", "Registry", "Reliability", "Setting",
    "StepCosts", "documented", "file_name", "general_costs", "is_number", "is_whole",
    "parse_numbers", "portable_name", "reader_of", "require", "require_choice", "require_whole",
    "setting", "settings_of", "without_case",
]
