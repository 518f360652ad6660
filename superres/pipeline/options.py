"""Decoding settings that a user gave, joined with a checkpoint's defaults.

A given setting that the others leave without effect is refused: whoever gives one expects a difference. A default never
is. The seed is no such setting, since records name it whether it was used or not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from superres.config import FACES, DecodeConfig, require, settings_of
from superres.decoding.acceptance import CRITERIA
from superres.decoding.proposers import PROPOSERS
from superres.errors import ConfigError

if TYPE_CHECKING:
    from superres.pipeline.upscaler import Upscaler

Spell = Callable[[str, str], str]
"""Writes a setting and its value (nothing for a switch) as the user does."""

SETTINGS = settings_of(DecodeConfig)


def dependent_on(name: str) -> tuple[str, ...]:
    """Return the settings that only some choices of the setting `name` read."""
    return tuple(other for other, about in SETTINGS.items() if about.depends_on == name)


def choices_for(name: str, task: str) -> list[str]:
    """Return the names that the setting `name` takes for a task, "faces" or "translation"."""
    names = list(SETTINGS[name].choices)
    if name == "accept":
        return [one for one in names if all(task in SETTINGS[read].tasks for read in CRITERIA[one].settings)]
    if name == "proposer":
        return [one for one in names if task == FACES or not PROPOSERS[one].raster]
    return names


def readers_of(name: str) -> list[str]:
    """Return the criteria or the proposers that read the setting `name`."""
    if SETTINGS[name].depends_on == "accept":
        return [one for one, criterion in CRITERIA.items() if name in criterion.settings]
    return [one for one, kind in PROPOSERS.items() if name in (*kind.settings, kind.resource)]


def as_option(name: str, value: str) -> str:
    """Spell a setting as an option of the command line."""
    return f"--{name.replace('_', '-')} {value}".rstrip()


def as_setting(name: str, value: str) -> str:
    """Spell a setting as in the SPEC of a survey's method."""
    return f"{name}={value}"


def combined(
    default: DecodeConfig, given: dict[str, Any], prediction_heads: int, spell: Spell = as_option,
) -> DecodeConfig:
    """Return the settings `default` with those that a user gave instead.

    Args:
        default: the checkpoint's own.
        given: settings that the user named, equal to a default or not.
        prediction_heads: K of the checkpoint.
        spell: how the user writes a setting.

    Raises:
        ConfigError: settings contradict one another, do not fit the checkpoint, or leave a given one without effect.
    """
    from superres.decoding.decode import check_options  # waits for torch

    options = default.changed(given)
    reasons = idle_settings(options, check_options(options, prediction_heads), spell)
    for name, value in given.items():
        if name in reasons:
            values = value if isinstance(value, tuple) else () if value is True else (value,)
            raise ConfigError(f"{spell(name, ','.join(map(str, values)))} has no effect {reasons[name]}")
    return options


def idle_settings(options: DecodeConfig, block_size: int, spell: Spell = as_option) -> dict[str, str]:
    """Return why settings are without effect, and what to do, by their names; `block_size` is the resolved one."""
    reasons: dict[str, str] = {}
    of_criteria, of_proposers = dependent_on("accept"), dependent_on("proposer")

    def idle(reason: str, *names: str) -> None:
        for name in names:
            reasons.setdefault(name, reason)

    if block_size == 1:
        idle(f"in blocks of one token, which propose nothing; leave it out, or give {spell('block_size', 'K')} above 1",
             "accept", *of_criteria, "min_block", "adaptive", "proposer", *of_proposers)
    elif options.min_block == block_size:
        idle(f"with {spell('min_block', str(options.min_block))}, which accepts whole blocks whatever they hold; leave "
             f"it out, or give a smaller {spell('min_block', 'L')}", "accept", *of_criteria, "adaptive")
    if not options.is_sampling:
        idle(f"without sampling; leave it out, or give {spell('temperature', '0.9')}",
             *dependent_on("temperature"))
    elif options.sampling == "speculative":
        idle(f"with {spell('sampling', 'speculative')}, which has its own rule of acceptance and its own noise; leave "
             f"it out, or give {spell('sampling', 'coupled')}", "accept", *of_criteria, "min_block", "noise")
    for choice, names in (("accept", of_criteria), ("proposer", of_proposers)):
        chosen = getattr(options, choice)
        for name in names:
            if chosen not in (readers := readers_of(name)):
                idle(f"with {spell(choice, chosen)}; leave it out, or give {spell(choice, ' or '.join(readers))}", name)
    return reasons


def resolve_options(decode: DecodeConfig, upscaler: Upscaler, samples: int = 1) -> DecodeConfig:
    """Return `decode` with the block size filled in, having checked it against the checkpoint.

    Raises:
        ConfigError: the block size does not fit the checkpoint, or greedy decoding is asked for several samples.
    """
    from superres.decoding.decode import check_options  # waits for torch

    block_size = check_options(decode, upscaler.model_config.prediction_heads, upscaler.model_config.target_length)
    check_samples(decode, samples)
    return dataclasses.replace(decode, block_size=block_size)


def check_samples(decode: DecodeConfig, samples: int) -> None:
    """Raise ConfigError where several samples of an image would all be the same."""
    require(samples == 1 or decode.is_sampling, f"--samples {samples} at temperature 0 would draw the same picture "
            f"{samples} times; add --temperature 0.9 or leave --samples at 1")
