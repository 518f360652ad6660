"""The base of the settings classes, and the checks of single values that they share."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from superres.errors import ConfigError, plain, shown

ConfigT = TypeVar("ConfigT", bound="Config")

LARGEST = 2**31 - 1
"""Largest whole number of a setting that has no smaller bound: sums and products with it stay within 64 bits."""


def require(condition: bool, message: str) -> None:
    """Raise ConfigError with `message` unless `condition` holds."""
    if not condition:
        raise ConfigError(message)


def is_whole(value: object) -> bool:
    """Tell whether `value` is a whole number; True and False are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Tell whether `value` is a finite number that fits a float."""
    return (is_whole(value) or isinstance(value, float)) and abs(cast(float, value)) <= sys.float_info.max


def require_whole(name: str, value: object, least: int = 1, most: int = LARGEST) -> None:
    """Raise ConfigError unless `value` is a whole number in [least, most]; `name` is that of the setting."""
    require(is_whole(value) and cast(int, value) >= least, f"{name} must be at least {least}, not {shown(value)}; "
                                                          f"give a whole number up to {most}")
    require(cast(int, value) <= most, f"{name} must be at most {most}, not {shown(value)}")


def require_truth(name: str, value: object) -> None:
    """Raise ConfigError unless the setting `name` is True or False."""
    require(isinstance(value, bool), f"{name} must be true or false, not {shown(value)}")


def require_text(name: str, value: object) -> None:
    """Raise ConfigError unless the setting `name` is text."""
    require(isinstance(value, str), f"{name} must be text, not {shown(value)}")


def require_choice(name: str, value: object, names: Collection[str]) -> None:
    """Raise ConfigError unless `value` is one of `names`; `name` is that of the setting."""
    require(value in names, f"{name} must be one of {', '.join(names)}, not {shown(value)}")


@dataclass(frozen=True)
class Config:
    """Base of the settings classes: a dictionary form that refuses unknown and mistyped fields."""

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as JSON-ready values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls: type[ConfigT], values: dict[str, Any]) -> ConfigT:
        """Build the settings from `values`.

        Raises:
            ConfigError: a field is unknown, has the wrong type or is out of range.
        """
        known = {field.name: field for field in dataclasses.fields(cls)}
        require(isinstance(values, dict), f"{cls.__name__} needs an object of settings, not {shown(values)}")
        unknown = sorted(set(values) - set(known))
        require(not unknown, f"unknown setting {', '.join(map(plain, unknown[:3]))} in {cls.__name__}; "
                             f"known: {', '.join(known)}")
        cleaned = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
        try:
            return cls(**cleaned)
        except TypeError as error:
            raise ConfigError(f"{cls.__name__} cannot be built from {shown(values)}: {error}") from error
