"""The base class of settings, and checks of single values."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, cast

from superres.errors import ConfigError, plain, shown

ConfigT = TypeVar("ConfigT", bound="Config")

LARGEST = 2**31 - 1
"""Largest value of whole-number settings without a smaller bound; sums and products with it fit into 64 bits."""


def require(condition: bool, message: str) -> None:
    """Raise ConfigError with `message` unless `condition` holds."""
    if not condition:
        raise ConfigError(message)


def is_whole(value: object) -> bool:
    """Return whether `value` is a whole number; True and False are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Return whether `value` is a finite number that fits into a float."""
    return (is_whole(value) or isinstance(value, float)) and abs(cast(float, value)) <= sys.float_info.max


def require_probability(name: str, value: object) -> None:
    """Raise ConfigError unless the value of the setting `name` is a number above 0 and at most 1."""
    require(is_number(value) and 0 < cast(float, value) <= 1,
            f"{name} must be above 0 and at most 1, not {shown(value)}")


def require_whole(name: str, value: object, least: int = 1, most: int = LARGEST) -> None:
    """Raise ConfigError unless the value of the setting `name` is a whole number from `least` to `most`."""
    require(is_whole(value) and cast(int, value) >= least, f"{name} must be at least {least}, not {shown(value)}; "
                                                          f"give a whole number up to {most}")
    require(cast(int, value) <= most, f"{name} must be at most {most}, not {shown(value)}")


def require_truth(name: str, value: object) -> None:
    """Raise ConfigError unless the value of the setting `name` is True or False."""
    require(isinstance(value, bool), f"{name} must be true or false, not {shown(value)}")


def require_text(name: str, value: object) -> None:
    """Raise ConfigError unless the value of the setting `name` is text."""
    require(isinstance(value, str), f"{name} must be text, not {shown(value)}")


def require_choice(name: str, value: object, names: Collection[str]) -> None:
    """Raise ConfigError unless the value of the setting `name` is one of `names`."""
    require(value in names, f"{name} must be one of {', '.join(names)}, not {shown(value)}")


@dataclass(frozen=True)
class Config:
    """Base class of settings; its dictionary form has exactly the fields of the class."""

    retired: ClassVar[dict[str, Any]] = {}
    """Former settings that older files name, and the value that each of them must have there."""

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as a dictionary that JSON can represent."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls: type[ConfigT], values: dict[str, Any]) -> ConfigT:
        """Return the settings in `values`; lists become tuples.

        Raises:
            ConfigError: a field is unknown, has the wrong type or is out of range.
        """
        known = {field.name: field for field in dataclasses.fields(cls)}
        require(isinstance(values, dict), f"{cls.__name__} needs an object of settings, not {shown(values)}")
        values = {name: v for name, v in values.items() if name not in cls.retired or v != cls.retired[name]}
        unknown = sorted(set(values) - set(known))
        require(not unknown, f"unknown setting {', '.join(map(plain, unknown[:3]))} in {cls.__name__}; "
                             f"known: {', '.join(known)}")
        cleaned = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
        try:
            return cls(**cleaned)
        except TypeError as error:
            raise ConfigError(f"{cls.__name__} cannot be built from {shown(values)}: {error}") from error
