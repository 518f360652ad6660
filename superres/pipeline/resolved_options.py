"""Combine the decoding settings that a user gave with a checkpoint's defaults.

A given setting without effect is an error, since the user expects an effect. A default without
effect is ignored. The seed is exempt, since every record contains it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

from superres.config import DecodeConfig, require, require_choice, settings_of
from superres.decoding.acceptance import CRITERIA
from superres.decoding.block_size import check_options
from superres.decoding.proposers import PROPOSERS
from superres.errors import ConfigError

# formats a setting and its value (empty for a switch) as the user writes them
Spell = Callable[[str, str], str]

SETTINGS = settings_of(DecodeConfig)
KEEPS = ("likeliest",)
"""Which of several samples of an input is kept, if one is: the one with the smallest bits/dim under
p1."""
FINISHES = ("none", "mean", "sharp")
"""How pictures are finished after decoding: see `superres.pipeline.finish`."""


class Checkpoint(Protocol):
    """A loaded checkpoint: a `superres.pipeline.pipeline.Pipeline`."""

    def block_size(self, options: DecodeConfig) -> int:
        ...


def dependent_on(name: str) -> tuple[str, ...]:
    """Return the settings that depend on the choice of the setting `name`."""
    return tuple(other for other, about in SETTINGS.items() if about.depends_on == name)


def choices_for(name: str, task: str) -> list[str]:
    """Return the choices of the setting `name` for a task, "faces" or "translation".

    A criterion of a package that is not imported yet is among them.
    """
    return [one for one in SETTINGS[name].choices
            if name != "accept" or one not in CRITERIA.data
            or all(task in SETTINGS[read].tasks for read in CRITERIA[one].settings)]


def readers_of(name: str) -> list[str]:
    """Return the imported criteria or proposers that read the setting `name`."""
    if SETTINGS[name].depends_on == "accept":
        return [one for one, criterion in CRITERIA.data.items() if name in criterion.settings]
    return [one for one, kind in PROPOSERS.data.items() if name in (*kind.settings, kind.resource)]


def as_option(name: str, value: str) -> str:
    """Format a setting as a command-line option; a switch has no value."""
    if value in ("True", "False"):
        name, value = name if value == "True" else f"no_{name}", ""
    return f"--{name.replace('_', '-')} {value}".rstrip()


def as_setting(name: str, value: str) -> str:
    """Format a setting as in the SPEC of a survey's method."""
    return f"{name}={value}"


def combined(
    default: DecodeConfig, given: dict[str, Any], prediction_heads: int, spell: Spell = as_option,
    stages: int = 1,
) -> DecodeConfig:
    """Return the checkpoint's settings `default`, overridden by the settings that a user gave.

    `given` may also hold settings equal to the default. `prediction_heads` is K of the checkpoint,
    and `stages` the number of its stages. Raises ConfigError if settings contradict each other, the
    checkpoint does not support them, or a given setting has no effect.
    """
    options = default.changed(given)
    reasons = unused_settings(options, check_options(options, prediction_heads), spell, stages)
    for name, value in given.items():
        if name in reasons:
            raise ConfigError(f"{spell(name, '' if value is True else str(value))} has no effect "
                              f"{reasons[name]}")
    return options


def unused_settings(
    options: DecodeConfig, block_size: int, spell: Spell = as_option, stages: int = 1,
) -> dict[str, str]:
    """Return the settings without effect by name, with a reason and a remedy; `block_size` is the
    resolved one."""
    alone = "where a single stage draws; leave it out, or choose a checkpoint of several stages"
    reasons = {"later_temperature": alone} if stages == 1 else {}
    of_criteria, of_proposers = dependent_on("accept"), dependent_on("proposer")

    def add(reason: str, *names: str) -> None:
        for name in names:
            reasons.setdefault(name, reason)

    if block_size == 1:
        add("in blocks of one token, without proposals; leave it out, or give "
            f"{spell('block_size', 'K')} above 1",
            "accept", *of_criteria, "min_block", "adaptive", "proposer", *of_proposers)
    elif options.min_block == block_size:
        add(f"with {spell('min_block', str(options.min_block))}, which accepts every block as a "
            f"whole; leave it out, or give a smaller {spell('min_block', 'L')}", "accept",
            *of_criteria, "adaptive")
    if not options.is_sampling:
        add(f"without sampling; leave it out, or give {spell('temperature', '0.9')}",
            *dependent_on("temperature"))
    elif options.sampling == "speculative":
        own = () if options.accept in CRITERIA.built_in else ("accept",)
        add(f"with {spell('sampling', 'speculative')}, which has its own rule of acceptance; leave "
            f"it out, or give {spell('sampling', 'coupled')}",
            *(name for name in ("accept", *of_criteria, "min_block") if name not in own))
    for choice, names in (("accept", of_criteria), ("proposer", of_proposers)):
        chosen = getattr(options, choice)
        for name in names:
            if chosen not in (readers := readers_of(name)):
                add(f"with {spell(choice, chosen)}; leave it out, or give "
                    f"{spell(choice, ' or '.join(readers))}", name)
    return reasons


def resolve_options(
    decode: DecodeConfig, upscaler: Checkpoint, samples: int = 1, finish: str = FINISHES[0],
) -> DecodeConfig:
    """Return `decode` with the block size filled in; raise ConfigError if it cannot be used."""
    block_size = upscaler.block_size(decode)
    check_samples(decode, samples, finish)
    if decode.block_size == block_size:
        return decode
    return dataclasses.replace(decode, block_size=block_size)


def check_samples(decode: DecodeConfig, samples: int, finish: str = FINISHES[0]) -> None:
    """Raise ConfigError if several samples of an image would be equal, or `finish` does not finish
    samples."""
    require(samples == 1 or decode.is_sampling, f"--samples {samples} at temperature 0 would draw "
            f"the same picture {samples} times; add --temperature 0.9 or leave --samples at 1")
    require(finish == "none" or not decode.is_sampling, f"--finish {finish} draws at temperatures "
            "of its own; leave out --temperature and --later-temperature, or --finish")


def check_keep(keep: str | None, samples: int, finish: str = FINISHES[0]) -> None:
    """Raise ConfigError unless `finish` is one of `FINISHES`, `keep` None or one of `KEEPS`, and
    they fit `samples`."""
    require_choice("--finish", finish, FINISHES)
    require(finish == "none" or keep is None, f"--finish {finish} makes one picture of several, "
            f"and --keep {keep} chooses one of them; give only one of both")
    require(finish == "none" or samples == 1, f"--finish {finish} makes one picture per input; "
            f"leave out --samples {samples}, or --finish")
    if keep is not None:
        require_choice("--keep", keep, KEEPS)
        require(samples > 1, f"--keep {keep} has no effect on one sample; give --samples 4, or "
                "leave it out")
