"""The base class of settings, checks of single values, and descriptions of settings: help, text
form, and range.

Every field of a settings class has a `Setting`. The options of the command line and the methods of
a survey derive from it, so a new setting is written in one place. The controls of the web demo are
in `superres.web.controls`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
import numbers
import re
import sys
import textwrap
import typing
from collections import UserDict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast

from superres.errors import ConfigError, plain, shown

LOG = logging.getLogger(__name__)
T = TypeVar("T")
ConfigT = TypeVar("ConfigT", bound="Config")

# of whole-number settings without a smaller bound; sums and products with it fit into 64 bits
LARGEST = 2**31 - 1
FACES, TRANSLATION = "faces", "translation"  # names of the tasks
# sections of the help for the decoding settings
DECODING, SAMPLING, EXPERTS = "Decoding", "Sampling", "Experts"


REQUIRED: Any = dataclasses.MISSING  # the default of a setting that has none


def require(condition: bool, message: str) -> None:
    """Raise ConfigError with `message` unless `condition` holds."""
    if not condition:
        raise ConfigError(message)


def python_number(value: object) -> int | float | None:
    """Return `value` as an int or a float, such as a number of numpy; None if it is no number, as
    True and False."""
    if type(value) in (int, float):
        return cast(float, value)
    if isinstance(value, numbers.Integral):
        return None if isinstance(value, bool) else int(value)
    is_float = isinstance(value, numbers.Real) and not isinstance(value, numbers.Rational)
    return float(cast(float, value)) if is_float else None


def is_whole(value: object) -> bool:
    """Return whether `value` is a whole number, of Python or of numpy; True and False are not."""
    return isinstance(python_number(value), int)


def is_number(value: object, least: float = -sys.float_info.max,
              most: float = sys.float_info.max) -> bool:
    """Return whether `value` is a number from `least` to `most`; True, False, infinity and NaN are
    not."""
    number = python_number(value)
    return number is not None and least <= number <= most


def require_probability(name: str, value: object) -> None:
    """Require that the value of the setting `name` is a number above 0 and at most 1."""
    if not is_number(value, 0, 1) or value == 0:
        raise ConfigError(f"{name} must be above 0 and at most 1, not {shown(value)}")


def require_whole(name: str, value: Any, least: int = 1, most: int = LARGEST) -> int:  # noqa: ANN401 -- checked
    """Return the value of the setting `name`; raise ConfigError unless it is a whole number from
    `least` to `most`."""
    # without the messages' texts, which take most of the time
    if type(value) is int and least <= value <= most:
        return value
    require(is_whole(value), f"{name} must be a whole number, not {shown(value)}; give one from "
            f"{least} to {most}")
    require(value >= least, f"{name} must be at least {least}, not {shown(value)}; give a whole "
            f"number up to {most}")
    require(value <= most, f"{name} must be at most {most}, not {shown(value)}")
    return int(value)


def require_choice(name: str, value: object, names: Collection[str]) -> None:
    """Require that the value of the setting `name` is one of `names`."""
    if not (isinstance(value, str) and value in names):
        raise ConfigError(f"{name} must be one of {', '.join(names)}, not {shown(value)}")


Reader = Callable[[str, Any], Any]
"""Returns the value of the setting of a name as its type, or raises ConfigError."""


@functools.cache
def reader_of(hint: Any, least: float | None = None, most: float | None = None) -> Reader:  # noqa: ANN401 -- any type
    """Return the reader of values of the type `hint`, of which JSON can be the form; numbers are in
    a range.

    Lists become tuples where the type is a tuple, and objects become settings where it is a
    `Config`. Of a union, such as `float | tuple[float, ...]`, lists are of the last type and other
    values of the first.
    """
    kinds = typing.get_args(hint) if typing.get_origin(hint) in (Union, UnionType) else (hint,)
    first, *others = [_reader(kind, least, most) for kind in kinds if kind is not NoneType]
    if len(kinds) == 1:
        return first

    def read(name: str, value: object) -> Any:  # noqa: ANN401 -- of the type `hint`
        if value is None and NoneType in kinds:
            return None
        return (others[-1] if others and isinstance(value, (list, tuple)) else first)(name, value)

    return read


def _reader(kind: Any, least: float | None, most: float | None) -> Reader:  # noqa: ANN401 -- any type
    """Return the reader of a type that is no union."""
    origin, arguments = typing.get_origin(kind) or kind, typing.get_args(kind)
    lowest, highest = ((-sys.float_info.max if least is None else least),
                       (sys.float_info.max if most is None else most))
    length = len(arguments) if origin is tuple and arguments[-1] is not ... else None
    if isinstance(kind, type) and issubclass(kind, Config):
        return lambda name, value: value if isinstance(value, kind) else kind.from_dict(value)
    if kind is int and least is not None:
        return functools.partial(require_whole, least=int(least),
                                 most=LARGEST if most is None else int(most))
    forms: dict[Any, tuple[Callable[[Any], bool], str]] = {
        Literal: (lambda value: value in arguments, f"one of {', '.join(map(str, arguments))}"),
        bool: (lambda value: isinstance(value, bool), "true or false"),
        str: (lambda value: isinstance(value, str), "text"),
        int: (lambda value: is_whole(value) and abs(value) < 2**64, "a whole number"),
        float: (lambda value: is_number(value, lowest, highest),
                "a number" if least is None and most is None else f"a number from {lowest:g} to "
                f"{highest:g}"),
        tuple: (lambda value: isinstance(value, (list, tuple)) and length in (None, len(value)),
                "a list" if length is None else f"a list of {length} values"),
        list: (lambda value: isinstance(value, list), "a list"),
        dict: (lambda value: isinstance(value, dict), "an object of names and values"),
        Path: (lambda value: isinstance(value, (str, Path)), "a path"),
        Any: (lambda _: True, ""),
    }
    fits, form = forms[origin]
    parts = [reader_of(argument) for argument in arguments if origin in (tuple, list, dict)
             and argument is not ...]

    def read(name: str, value: Any) -> Any:  # noqa: ANN401 -- of the type `kind`
        if not fits(value):
            raise ConfigError(f"{name} must be {form}, not {shown(value)}")
        if origin is dict and arguments[1] is not Any:
            return {key: parts[1](f"{plain(key)} in {name}", entry) for key, entry in value.items()}
        if origin in (tuple, list):
            return origin(part(name, entry) for part, entry in zip(
                parts if length is not None else itertools.repeat(parts[0]), value, strict=False))
        return (Path(value) if origin is Path else python_number(value) if origin in (int, float)
                else value)

    return read


@dataclass(frozen=True)
class Config:
    """Base class of settings, whose values have the types and ranges of their fields (see
    `Setting`).

    The dictionary form has exactly the fields of the class.
    """

    def __post_init__(self) -> None:
        for name, about in _all_settings(type(self)).items():
            value = getattr(self, name)
            if (read := about.check(name, value)) is not value:
                object.__setattr__(self, name, read)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as a dictionary that JSON can represent."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls: type[ConfigT], values: dict[str, Any]) -> ConfigT:
        """Return the settings in `values`, or raise ConfigError."""
        fields = dataclasses.fields(cls)
        require(isinstance(values, dict), f"{cls.__name__} needs an object of settings, not "
                f"{shown(values)}")
        unknown = sorted(set(values) - {about.name for about in fields})
        require(not unknown, f"unknown setting {', '.join(map(plain, unknown[:3]))} in "
                f"{cls.__name__}; known: {', '.join(about.name for about in fields)}")
        missing = [about.name for about in fields if about.name not in values
                   and about.default is about.default_factory is dataclasses.MISSING]
        require(not missing, f"{cls.__name__} needs {', '.join(missing)}; add "
                f"{'it' if len(missing) == 1 else 'them'}")
        return cls(**values)


@dataclass(frozen=True)
class Setting:
    """The description of a setting.

    Attributes:
        help: what the setting does, and its range. The web demo shows only the first sentence. A
            setting without help has no option.
        metavar: placeholder of the value in the help; None for switches and for settings with
            `choices`.
        panel: section of the help that lists the setting.
        unset: meaning of the default None; None if the default is a value.
        by_checkpoint: whether a checkpoint's `config.json` has a default of its own.
        faces: a further sentence of the help where faces are decoded.
        choices: valid names; a `Registry` may add names.
        parse: function from text to the value, which raises ConfigError, or ValueError unless the
            text has numbers with commas between them; None if `kind` converts text.
        least: smallest valid number; None if the settings class has its own check. `most` is the
            largest; None for `LARGEST` of whole numbers.
        depends_on: setting whose value decides whether this setting is used: "accept", "proposer"
            or "temperature".
        tasks: tasks that use the setting.
        kind: type of the value, or of each value in a tuple; taken from the annotation, which is
            `hint`.
    """

    help: str = ""
    metavar: str | None = None
    panel: str = DECODING
    unset: str | None = None
    by_checkpoint: bool = False
    faces: str = ""
    choices: Sequence[str] = ()
    parse: Callable[[str], Any] | None = None
    least: float | None = None
    most: float | None = None
    depends_on: str | None = None
    tasks: tuple[str, ...] = (FACES, TRANSLATION)
    kind: type = str
    hint: Any = str

    def read(self, name: str, text: str) -> Any:  # noqa: ANN401 -- the type of the setting
        """Convert text to the value of the setting `name`, or raise ConfigError; its range is not
        checked."""
        if self.kind is bool:
            require_choice(name, text, ("true", "false"))
            return text == "true"
        try:
            return (self.parse or self.kind)(text)
        except ValueError:
            form = "whole number" if self.kind is int else "number" if self.parse is None else \
                "number, or several with commas between them such as 0.9,0.7,0.7"
            raise ConfigError(f"{name} must be a {form}, not {shown(text)}") from None

    def check(self, name: str, value: object) -> Any:  # noqa: ANN401 -- the type of the setting
        """Return the value as the type of the setting; raise ConfigError if it has another type or
        is out of range."""
        if self.choices:
            require_choice(name, value, self.choices)
            return value
        shown_name = name.replace("_", "-") if self.help and self.kind is int else name
        return reader_of(self.hint, self.least, self.most)(shown_name, value)


def setting(default: T, help: str = "", metavar: str | None = None, **about: Any) -> T:  # noqa: ANN401 -- of `Setting`
    """Return a field of a settings class with its default and the attributes of its `Setting`."""
    return field(default=default, metadata={"setting": Setting(help, metavar, **about)})


_SETTINGS: dict[type, dict[str, Setting]] = {}


def _all_settings(kind: type[Config]) -> dict[str, Setting]:
    """Return the settings of a class by name, in the order of its fields, with the types of the
    annotations."""
    if kind not in _SETTINGS:
        hints = typing.get_type_hints(kind)
        kinds = {name: next(part for part in (*typing.get_args(hint), hint) if part is not NoneType)
                 for name, hint in hints.items()}
        _SETTINGS[kind] = {found.name: dataclasses.replace(found.metadata.get("setting", Setting()),
                                                           hint=hints[found.name],
                                                           kind=kinds[found.name])
                           for found in dataclasses.fields(kind)}
    return _SETTINGS[kind]


def settings_of(kind: type[Config]) -> dict[str, Setting]:
    """Return the settings of a class that have a help text by name, in the order of its fields."""
    return {name: about for name, about in _all_settings(kind).items() if about.help}


def documented(kind: type[ConfigT]) -> type[ConfigT]:
    """Add the help of each setting to the docstring of a settings class."""
    lines = [textwrap.fill(f"{name}: {about.help} {about.faces}", 110, initial_indent=" " * 8,
                           subsequent_indent=" " * 12)
             for name, about in settings_of(kind).items()]
    kind.__doc__ = "\n".join([str(kind.__doc__).rstrip(), "", "    Attributes:", *lines, "    "])
    return kind


PLUGIN_NAME = re.compile(r"[A-Za-z0-9_-]+")


@functools.cache
def plugins_of(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group that installed packages have, by name; the first of a name
    counts.

    Nothing of these packages is imported. Entry points without a plain name are left out; all of
    them, with a warning, if the list of a package is damaged.
    """
    try:
        found = [(entry.name, _package(entry), entry) for entry in entry_points(group=group)]
    # whatever a damaged package causes: no other command may depend on it
    except Exception as error:
        LOG.warning("plug-ins are not available: the list of an installed package is damaged (%s); "
                    "fix or uninstall it",
                    plain(str(error)))
        return {}
    return {name: entry for name, _, entry in sorted(found, key=lambda one: one[:2], reverse=True)
            if PLUGIN_NAME.fullmatch(name)}


def _package(entry: EntryPoint) -> str:
    return plain(str(entry.dist.name if entry.dist is not None else entry.value))


def with_plugins(names: list[str], group: str) -> list[str]:
    """Return `names` and those of `plugins_of` a group."""
    return list(dict.fromkeys([*names, *sorted(plugins_of(group))]))


class Registry(UserDict[str, T]):
    """Implementations of a setting by name.

    The settings class reads only the list `names`, so it does not import the implementations.
    Adding or removing an implementation also changes this list. `names` are those of the `built_in`
    members and names that `with_plugins` adds from the entry points of `group`, if given. A plug-in
    is imported when its name is looked up, which raises a ConfigError if that fails or it does not
    fit; `data` has the implementations that are imported. Others than the first `members` are
    classes derived from `base`, which superres exports; messages call them `label`.
    """

    def __init__(
        self, names: list[str], members: dict[str, T], group: str | None = None,
        base: type = object, label: str = "",
    ) -> None:
        self.plugins = {} if group is None else dict(plugins_of(group))
        self.shadowing = {name: self.plugins.pop(name) for name in members if name in self.plugins}
        if (list(members) != names[:len(members)] or self.plugins.keys()
            != set(names[len(members):])):
            raise ValueError(f"implementations {', '.join(members)} of the names "
                             f"{', '.join(names)}; make them agree")
        self.names, self.base, self.label, self.built_in = names, base, label, frozenset(members)
        super().__init__(members)

    def check(self, name: str, member: object) -> None:
        """Raise ConfigError unless `member` may be an implementation."""
        require(isinstance(member, type) and issubclass(member, self.base),
                f"{name} must be a class derived from superres.{self.base.__name__}, not "
                f"{shown(member)}")

    def __getitem__(self, name: str) -> T:
        if name in self.shadowing:
            LOG.warning("%s is the built-in %s; the plug-in of that name in the package %s is not "
                        "used", name, self.label, _package(self.shadowing.pop(name)))
        if name not in self.data and name in self.plugins:
            entry = self.plugins[name]
            try:
                member = entry.load()
                self.check(name, member)
            except (Exception, SystemExit) as error:  # whatever a package does when it is imported
                raise ConfigError(f"{name} of the package {_package(entry)} cannot be used "
                                  f"({type(error).__name__}: {plain(str(error))}); fix or "
                                  "uninstall that package, or choose another name"
                                  ) from error
            self.data[name] = member
        return self.data[name]

    def __contains__(self, name: object) -> bool:
        return name in self.data or name in self.plugins

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self.data, *self.plugins]))

    def __len__(self) -> int:
        return len({*self.data, *self.plugins})

    def __setitem__(self, name: str, member: T) -> None:
        super().__setitem__(name, member)
        if name not in self.names:
            self.names.append(name)

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        self.names.remove(name)
