"""What people read and write of a setting: its help, its text form, and where it is offered.

A field of a settings class carries a `Setting`. The options of the command line, the methods of a survey and the
controls of the web demo are made from it, so that a new setting is written in one place.
"""

from __future__ import annotations

import dataclasses
import textwrap
import typing
from collections import UserDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, TypeVar

from superres.config.checks import LARGEST, Config, ConfigT, require_choice, require_text, require_truth, require_whole
from superres.errors import ConfigError, shown

T = TypeVar("T")

FACES, TRANSLATION = "faces", "translation"
"""Names of the tasks, as in `superres.tasks`."""

DECODING, SAMPLING, EXPERTS = "Decoding", "Sampling", "Experts"
"""Sections of the help for the decoding settings."""


@dataclass(frozen=True)
class Control:
    """How the web demo offers a setting.

    Attributes:
        label: the name that visitors read.
        high: the largest number of a slider; None makes a field to type in.
        step: the distance between two numbers of a slider.
        tasks: tasks whose tabs have the control.
    """

    label: str
    high: float | None = None
    step: float = 1
    tasks: tuple[str, ...] = (FACES,)


@dataclass(frozen=True)
class Setting:
    """What is known of a setting beside its default and its checks.

    Attributes:
        help: what it does and its range, in plain English.
        metavar: what stands for its value in the help; None where `choices` does, and for a switch.
        panel: section of the help.
        unset: what the default None stands for.
        choices: names that it takes; a later registration may add some.
        parse: makes the value from text where the type alone does not; it raises ConfigError.
        least: smallest whole number that it takes; None where a check of its own decides.
        most: largest whole number.
        depends_on: the setting, "accept", "proposer" or "temperature", whose value tells whether this one is read.
        tasks: tasks that it serves.
        control: how the web demo offers it, if it does.
        kind: type of the value, or of one of several values; read from the annotation.
    """

    help: str
    metavar: str | None = None
    panel: str = DECODING
    unset: str | None = None
    choices: Sequence[str] = ()
    parse: Callable[[str], Any] | None = None
    least: int | None = None
    most: int = LARGEST
    depends_on: str | None = None
    tasks: tuple[str, ...] = (FACES, TRANSLATION)
    control: Control | None = None
    kind: type = str

    def read(self, name: str, text: str) -> Any:  # noqa: ANN401 -- the type of the setting
        """Return the value of the setting `name` that `text` stands for.

        Raises:
            ConfigError: the text has another form; the range is checked by the settings class.
        """
        if self.kind is bool:
            require_choice(name, text, ("true", "false"))
            return text == "true"
        try:
            return (self.parse or self.kind)(text)
        except ValueError:
            form = "number" if self.kind is float else "whole number"
            raise ConfigError(f"{name} must be a {form}, not {shown(text)}") from None

    def check(self, name: str, value: object) -> None:
        """Check what is known of every value of the setting `name`: a choice, a switch, text, or a range.

        Raises:
            ConfigError: the value is something else.
        """
        if self.choices:
            require_choice(name, value, self.choices)
        elif value is None and self.unset is not None:
            return
        elif self.kind is bool:
            require_truth(name, value)
        elif self.kind is str:
            require_text(name, value)
        elif self.least is not None:
            require_whole(name.replace("_", "-"), value, self.least, self.most)


def setting(  # noqa: D417 -- `Setting` describes them
    default: T, help: str, metavar: str | None = None, *, panel: str = DECODING, unset: str | None = None,
    choices: Sequence[str] = (), parse: Callable[[str], Any] | None = None, least: int | None = None,
    most: int = LARGEST, depends_on: str | None = None, tasks: tuple[str, ...] = (FACES, TRANSLATION),
    control: Control | None = None,
) -> T:
    """Return a field of a settings class; see `Setting`.

    Args:
        default: the value where none is given.
    """
    about = Setting(help, metavar, panel, unset, choices, parse, least, most, depends_on, tasks, control)
    return field(default=default, metadata={"setting": about})


_SETTINGS: dict[type, dict[str, Setting]] = {}


def settings_of(kind: type[Config]) -> dict[str, Setting]:
    """Return the settings of a class, by their names, in their order."""
    if kind not in _SETTINGS:
        hints = typing.get_type_hints(kind)
        values = {name: next(part for part in (*typing.get_args(hint), hint) if part is not NoneType)
                  for name, hint in hints.items()}
        _SETTINGS[kind] = {found.name: dataclasses.replace(found.metadata["setting"], kind=values[found.name])
                           for found in dataclasses.fields(kind) if "setting" in found.metadata}
    return _SETTINGS[kind]


def documented(kind: type[ConfigT]) -> type[ConfigT]:
    """Add the help of each setting to the docstring of a settings class."""
    lines = [textwrap.fill(f"{name}: {about.help}", 110, initial_indent=" " * 8, subsequent_indent=" " * 12)
             for name, about in settings_of(kind).items()]
    kind.__doc__ = "\n".join([str(kind.__doc__).rstrip(), "", "    Attributes:", *lines, "    "])
    return kind


class Registry(UserDict[str, T]):
    """Implementations of a setting by the names that users give.

    The settings class knows the names alone, so that it need not import what implements them. A name that is registered
    later becomes known to it, and is forgotten with its implementation.
    """

    def __init__(self, names: list[str], members: dict[str, T]) -> None:
        """Take the implementations `members` of `names`.

        Raises:
            ValueError: a name has no implementation, or an implementation no name.
        """
        if list(members) != names:
            raise ValueError(f"implementations {', '.join(members)} of the names {', '.join(names)}; make them agree")
        self.names = names
        super().__init__(members)

    def __setitem__(self, name: str, member: T) -> None:
        """Register an implementation."""
        super().__setitem__(name, member)
        if name not in self.names:
            self.names.append(name)

    def __delitem__(self, name: str) -> None:
        """Remove an implementation."""
        super().__delitem__(name)
        self.names.remove(name)
