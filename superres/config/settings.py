"""Descriptions of settings: help, text form, and range.

Every field of a settings class has a `Setting`. The options of the command line and the methods of a survey derive from
it, so a new setting is written in one place. The controls of the web demo are in `superres.web.controls`.
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
class Setting:
    """The description of a setting.

    Attributes:
        help: what the setting does, and its range. The web demo shows only the first sentence.
        metavar: placeholder of the value in the help; None for switches and for settings with `choices`.
        panel: section of the help that lists the setting.
        unset: meaning of the default None; None if the default is a value.
        choices: valid names; a `Registry` may add names.
        parse: function from text to the value, which raises ConfigError; None if `kind` converts text.
        least: smallest valid whole number; None if the settings class has its own check.
        most: largest valid whole number.
        depends_on: setting whose value decides whether this setting is used: "accept", "proposer" or "temperature".
        tasks: tasks that use the setting.
        kind: type of the value, or of each value in a tuple; taken from the annotation.
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
    kind: type = str

    def read(self, name: str, text: str) -> Any:  # noqa: ANN401 -- the type of the setting
        """Convert text to the value of the setting `name`; the settings class checks the range.

        Raises:
            ConfigError: the text cannot be converted.
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
        """Check the type, the choice or the range of a value of the setting `name`.

        Raises:
            ConfigError: the value is not valid.
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


def setting(default: T, help: str, metavar: str | None = None, **about: Any) -> T:  # noqa: ANN401 -- of `Setting`
    """Return a field of a settings class with its default and the attributes of its `Setting`."""
    return field(default=default, metadata={"setting": Setting(help, metavar, **about)})


_SETTINGS: dict[type, dict[str, Setting]] = {}


def settings_of(kind: type[Config]) -> dict[str, Setting]:
    """Return the settings of a class by name, in the order of its fields."""
    if kind not in _SETTINGS:
        kinds = {name: next(part for part in (*typing.get_args(hint), hint) if part is not NoneType)
                 for name, hint in typing.get_type_hints(kind).items()}
        _SETTINGS[kind] = {found.name: dataclasses.replace(found.metadata["setting"], kind=kinds[found.name])
                           for found in dataclasses.fields(kind) if "setting" in found.metadata}
    return _SETTINGS[kind]


def documented(kind: type[ConfigT]) -> type[ConfigT]:
    """Add the help of each setting to the docstring of a settings class."""
    lines = [textwrap.fill(f"{name}: {about.help}", 110, initial_indent=" " * 8, subsequent_indent=" " * 12)
             for name, about in settings_of(kind).items()]
    kind.__doc__ = "\n".join([str(kind.__doc__).rstrip(), "", "    Attributes:", *lines, "    "])
    return kind


class Registry(UserDict[str, T]):
    """Implementations of a setting by name.

    The settings class knows only the names, so it does not import the implementations. Adding or removing an
    implementation also changes the names that the settings class accepts.
    """

    def __init__(self, names: list[str], members: dict[str, T]) -> None:
        """Create the registry of the implementations `members`, whose keys must equal `names`.

        Raises:
            ValueError: the keys of `members` differ from `names`.
        """
        if list(members) != names:
            raise ValueError(f"implementations {', '.join(members)} of the names {', '.join(names)}; make them agree")
        self.names = names
        super().__init__(members)

    def __setitem__(self, name: str, member: T) -> None:
        """Add or replace an implementation."""
        super().__setitem__(name, member)
        if name not in self.names:
            self.names.append(name)

    def __delitem__(self, name: str) -> None:
        """Remove an implementation."""
        super().__delitem__(name)
        self.names.remove(name)
