"""The base class of settings, checks of single values, and descriptions of settings: help, text form, and range.

Every field of a settings class has a `Setting`. The options of the command line and the methods of a survey derive from
it, so a new setting is written in one place. The controls of the web demo are in `superres.web.controls`.
"""

from __future__ import annotations

import dataclasses
import sys
import textwrap
import typing
from collections import UserDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from types import NoneType
from typing import Any, ClassVar, TypeVar, cast

from superres.errors import ConfigError, plain, shown

T = TypeVar("T")
ConfigT = TypeVar("ConfigT", bound="Config")

LARGEST = 2**31 - 1  # of whole-number settings without a smaller bound; sums and products with it fit into 64 bits
FACES, TRANSLATION = "faces", "translation"  # names of the tasks
DECODING, SAMPLING, EXPERTS = "Decoding", "Sampling", "Experts"  # sections of the help for the decoding settings


def require(condition: bool, message: str) -> None:
    """Raise ConfigError with `message` unless `condition` holds."""
    if not condition:
        raise ConfigError(message)


def is_whole(value: object) -> bool:
    """Return whether `value` is a whole number; True and False are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object, least: float = -sys.float_info.max, most: float = sys.float_info.max) -> bool:
    """Return whether `value` is a number from `least` to `most`; True, False, infinity and NaN are not."""
    return (is_whole(value) or isinstance(value, float)) and least <= cast(float, value) <= most


def require_probability(name: str, value: object) -> None:
    """Require that the value of the setting `name` is a number above 0 and at most 1."""
    require(is_number(value, 0, 1) and value != 0, f"{name} must be above 0 and at most 1, not {shown(value)}")


def require_whole(name: str, value: object, least: int = 1, most: int = LARGEST) -> None:
    """Require that the value of the setting `name` is a whole number from `least` to `most`."""
    require(is_whole(value) and cast(int, value) >= least, f"{name} must be at least {least}, not {shown(value)}; "
                                                          f"give a whole number up to {most}")
    require(cast(int, value) <= most, f"{name} must be at most {most}, not {shown(value)}")


def require_truth(name: str, value: object) -> None:
    """Require that the value of the setting `name` is True or False."""
    require(isinstance(value, bool), f"{name} must be true or false, not {shown(value)}")


def require_choice(name: str, value: object, names: Collection[str]) -> None:
    """Require that the value of the setting `name` is one of `names`."""
    require(isinstance(value, str) and value in names, f"{name} must be one of {', '.join(names)}, not {shown(value)}")


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
        """Return the settings in `values`, or raise ConfigError; lists become tuples."""
        known = [field.name for field in dataclasses.fields(cls)]
        require(isinstance(values, dict), f"{cls.__name__} needs an object of settings, not {shown(values)}")
        values = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
                  if name not in cls.retired or value != cls.retired[name]}
        unknown = sorted(set(values) - set(known))
        require(not unknown, f"unknown setting {', '.join(map(plain, unknown[:3]))} in {cls.__name__}; "
                             f"known: {', '.join(known)}")
        try:
            return cls(**values)
        except TypeError as error:
            raise ConfigError(f"{cls.__name__} cannot be built from {shown(values)}: {error}") from error


@dataclass(frozen=True)
class Setting:
    """The description of a setting.

    Attributes:
        help: what the setting does, and its range. The web demo shows only the first sentence.
        metavar: placeholder of the value in the help; None for switches and for settings with `choices`.
        panel: section of the help that lists the setting.
        unset: meaning of the default None; None if the default is a value.
        by_checkpoint: whether a checkpoint's `config.json` has a default of its own.
        faces: a further sentence of the help where faces are decoded.
        choices: valid names; a `Registry` may add names.
        parse: function from text to the value, which raises ConfigError; None if `kind` converts text.
        least: smallest valid whole number; None if the settings class has its own check. `most` is the largest.
        depends_on: setting whose value decides whether this setting is used: "accept", "proposer" or "temperature".
        tasks: tasks that use the setting.
        kind: type of the value, or of each value in a tuple; taken from the annotation.
    """

    help: str
    metavar: str | None = None
    panel: str = DECODING
    unset: str | None = None
    by_checkpoint: bool = False
    faces: str = ""
    choices: Sequence[str] = ()
    parse: Callable[[str], Any] | None = None
    least: int | None = None
    most: int = LARGEST
    depends_on: str | None = None
    tasks: tuple[str, ...] = (FACES, TRANSLATION)
    kind: type = str

    def read(self, name: str, text: str) -> Any:  # noqa: ANN401 -- the type of the setting
        """Convert text to the value of the setting `name`, or raise ConfigError; its range is not checked."""
        if self.kind is bool:
            require_choice(name, text, ("true", "false"))
            return text == "true"
        try:
            return (self.parse or self.kind)(text)
        except ValueError:
            form = "number" if self.kind is float else "whole number"
            raise ConfigError(f"{name} must be a {form}, not {shown(text)}") from None

    def check(self, name: str, value: object) -> None:
        """Raise ConfigError unless `value` has the type, and is one of the choices or in the range, of this setting."""
        if self.choices:
            require_choice(name, value, self.choices)
        elif value is None and self.unset is not None:
            return
        elif self.kind is bool:
            require_truth(name, value)
        elif self.kind is str:
            require(isinstance(value, str), f"{name} must be text, not {shown(value)}")
        elif self.least is not None:
            require_whole(name.replace("_", "-"), value, self.least, self.most)


def setting(default: T, help: str, metavar: str | None = None, **about: Any) -> T:  # noqa: ANN401 -- of `Setting`
    """Return a field of a settings class with its default and the attributes of its `Setting`."""
    return field(default=default, metadata={"setting": Setting(help, metavar, **about)})


_SETTINGS: dict[type, dict[str, Setting]] = {}


def _loaded(entry: EntryPoint) -> Any:  # noqa: ANN401 -- whatever a package names
    """Return what an entry point names."""
    try:
        return entry.load()
    except Exception as error:
        package = entry.dist.name if entry.dist is not None else entry.value
        raise ConfigError(f"{entry.name} of the package {package} cannot be imported ({' '.join(str(error).split())}); "
                          "mend or remove that package") from error


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
    lines = [textwrap.fill(f"{name}: {about.help} {about.faces}", 110, initial_indent=" " * 8,
                           subsequent_indent=" " * 12)
             for name, about in settings_of(kind).items()]
    kind.__doc__ = "\n".join([str(kind.__doc__).rstrip(), "", "    Attributes:", *lines, "    "])
    return kind


def with_plugins(names: list[str], group: str) -> list[str]:
    """Return `names` and those of the entry points of a group that installed packages have; the first of a name counts.

    Nothing of these packages is imported.
    """
    return list(dict.fromkeys([*names, *sorted(entry.name for entry in entry_points(group=group))]))


class Registry(UserDict[str, T]):
    """Implementations of a setting by name.

    The settings class reads only the list `names`, so it does not import the implementations. Adding or removing an
    implementation also changes this list. `names` are the keys of the first `members`, and those that `with_plugins`
    adds from the entry points of `group`, if given, which are imported here. Raise ConfigError if one cannot be
    imported.
    """

    def __init__(self, names: list[str], members: dict[str, T], group: str | None = None) -> None:
        added = {} if group is None else {
            entry.name: entry for entry in entry_points(group=group) if entry.name not in members}
        if list(members) != names[:len(members)] or added.keys() != set(names[len(members):]):
            raise ValueError(f"implementations {', '.join(members)} of the names {', '.join(names)}; make them agree")
        self.names = names
        super().__init__({**members, **{name: _loaded(added[name]) for name in names[len(members):]}})

    def __setitem__(self, name: str, member: T) -> None:
        super().__setitem__(name, member)
        if name not in self.names:
            self.names.append(name)

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        self.names.remove(name)
