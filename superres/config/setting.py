"""The base class of settings, checks of single values, and descriptions of settings: help, text
form, and range.

Every field of a settings class has a `Setting`. The options of the command line and the methods of
a survey derive from it, so a new setting is written in one place. The controls of the web demo are
in `superres.web.controls`.
"""

from __future__ import annotations

import dataclasses
import functools
import numbers
import os
import sys
import textwrap
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NoReturn, TypeVar, Union, cast

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    Strict,
    TypeAdapter,
    ValidationError,
    with_config,
)
from typing_extensions import TypedDict

from superres.errors import ConfigError, plain, shown

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


def require_whole(name: str, value: object, least: int = 1, most: int = LARGEST) -> int:
    """Return the value of the setting `name`; raise ConfigError unless it is a whole number from
    `least` to `most`."""
    number = python_number(value)
    if not isinstance(number, int):
        raise ConfigError(f"{name} must be a whole number, not {shown(value)}; give one from "
                          f"{least} to {most}")
    if number < least:
        raise ConfigError(f"{name} must be at least {least}, not {shown(value)}; give a whole "
                          f"number up to {most}")
    if number > most:
        raise ConfigError(f"{name} must be at most {most}, not {shown(value)}")
    return number


def require_choice(name: str, value: object, names: Collection[str]) -> None:
    """Require that the value of the setting `name` is one of `names`."""
    if not (isinstance(value, str) and value in names):
        raise ConfigError(f"{name} must be one of {', '.join(names)}, not {shown(value)}")


Reader = Callable[[str, Any], Any]
"""Returns the value of the setting of a name as its type, or raises ConfigError."""
STRICT = ConfigDict(strict=True, allow_inf_nan=False)
LARGEST_INTEGER = 2**64 - 1
NO_PLUGINS = "PYDANTIC_DISABLE_PLUGINS"  # a variable that pydantic reads
FORMS = {"bool_type": "true or false", "string_type": "text", "int_type": "a whole number",
         "dict_type": "an object of names and values", "path_type": "a path",
         "tuple_type": "a list", "list_type": "a list"}
"""What a value must be, by pydantic's name for what is wrong with it."""


def _bounded(hint: Any, least: float | None, most: float | None) -> Any:  # noqa: ANN401 -- any type
    """Return pydantic's form of the type `hint`: numbers are in a range, and JSON may be given.

    Lists become tuples where the type is a tuple, and objects become settings where it is a
    `Config`.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, type) and issubclass(hint, Config):
        return Annotated[Any, PlainValidator(
            lambda value: value if isinstance(value, hint) else hint.from_dict(value))]
    if hint is int:
        if least is None:
            least, most = -LARGEST_INTEGER, LARGEST_INTEGER
        # the bounds first: behind a function, pydantic would check them in Python
        return Annotated[int, Field(ge=int(least), le=LARGEST if most is None else int(most)),
                         BeforeValidator(lambda one: int(one) if is_whole(one) else one)]
    if hint is float:
        return Annotated[float, Field(ge=least, le=most), BeforeValidator(_python_number)]
    if hint is Path:
        return Annotated[Path, Strict(False)]
    if origin is Literal or not arguments:
        return hint
    parts = tuple(part if part is ... else _bounded(part, least, most) for part in arguments)
    if origin in (Union, UnionType):
        return Union[parts]  # noqa: UP007 -- of a tuple
    if origin is tuple:
        return Annotated[tuple[parts], BeforeValidator(  # type: ignore[valid-type]
            lambda value: tuple(value) if isinstance(value, list) else value)]
    return origin[parts]


def _adapter(form: Any, config: ConfigDict | None = None) -> TypeAdapter[Any]:  # noqa: ANN401
    """Return the check of a form, without pydantic's plug-ins: a damaged list of one installed
    package would stop every command."""
    before = os.environ.get(NO_PLUGINS)
    os.environ[NO_PLUGINS] = "__all__"
    try:
        return TypeAdapter(form, config=config)
    finally:
        if before is None:
            del os.environ[NO_PLUGINS]
        else:
            os.environ[NO_PLUGINS] = before


def _python_number(value: object) -> int | float:
    """Return a number as Python's, since pydantic takes numpy's True for 1."""
    if (number := python_number(value)) is None:
        raise ValueError("no number")
    return number


@functools.cache
def reader_of(hint: Any, least: float | None = None, most: float | None = None) -> Reader:  # noqa: ANN401
    """Return the reader of values of the type `hint`, of which JSON can be the form.

    Whole numbers are in the range from `least` to `most` if `least` is given, and other numbers in
    the range that is given.
    """
    adapter = _adapter(_bounded(hint, least, most), STRICT)

    def read(name: str, value: object) -> Any:  # noqa: ANN401 -- of the type `hint`
        try:
            return adapter.validate_python(value)
        except ValidationError as error:
            # of a union, the type that the value fits the furthest says what is wrong
            found = max(error.errors(include_url=False), key=lambda one: len(one["loc"]))
        is_union = typing.get_origin(hint) in (Union, UnionType)
        kinds = [kind for kind in typing.get_args(hint) if kind is not NoneType]
        _refuse(name, value, found, kinds[0] if is_union else hint, least, most)

    return read


def _refuse(name: str, given: object, found: Mapping[str, Any], hint: Any,  # noqa: ANN401
            least: float | None, most: float | None) -> NoReturn:
    """Raise the error that says what the value of a setting must be, or a part of it.

    `found` is what pydantic says is wrong with the value.
    """
    kind, value = found["type"], found["input"] if found["loc"] else given
    if typing.get_origin(hint) is dict and found["loc"]:
        name = f"{plain(str(found['loc'][0]))} in {name}"
    if hint is int and least is not None:
        require_whole(name, value, int(least), LARGEST if most is None else int(most))
    if kind == "literal_error":
        form = f"one of {', '.join(map(str, typing.get_args(hint)))}"
    elif kind in ("missing", "too_long"):
        form, value = f"a list of {len(typing.get_args(hint))} values", given
    elif hint is int:
        form = FORMS["int_type"]
    elif kind in FORMS or least is most is None:
        form = FORMS.get(kind, "a number")
    else:
        lowest, highest = -sys.float_info.max, sys.float_info.max
        form = (f"a number from {lowest if least is None else least:g} to "
                f"{highest if most is None else most:g}")
    raise ConfigError(f"{name} must be {form}, not {shown(value)}")


@dataclass(frozen=True)
class Config:
    """Base class of settings, whose values have the types and ranges of their fields (see
    `Setting`).

    The dictionary form has exactly the fields of the class.
    """

    def __post_init__(self) -> None:
        values, settings = vars(self), _all_settings(type(self))
        try:
            read = _adapter_of(type(self)).validate_python(values)
        except ValidationError:  # one value after the other, to say which one is wrong
            read = {name: about.check(name, values[name]) for name, about in settings.items()}
        for name, value in read.items():
            if value is not values[name]:
                object.__setattr__(self, name, value)
            if settings[name].choices:
                require_choice(name, value, settings[name].choices)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as a dictionary that JSON can represent."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls: type[ConfigT], values: dict[str, Any]) -> ConfigT:
        """Return the settings in `values`, or raise ConfigError."""
        fields, kind = dataclasses.fields(cls), cls.__name__
        if not isinstance(values, dict):
            raise ConfigError(f"{kind} needs an object of settings, not {shown(values)}")
        known = [about.name for about in fields]
        if unknown := sorted(set(values).difference(known)):
            raise ConfigError(f"unknown setting {', '.join(map(plain, unknown[:3]))} in {kind}; "
                              f"known: {', '.join(known)}")
        if missing := [about.name for about in fields if about.name not in values
                       and about.default is about.default_factory is dataclasses.MISSING]:
            raise ConfigError(f"{kind} needs {', '.join(missing)}; add "
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


def setting(default: T, help: str = "", metavar: str | None = None, **about: Any) -> T:  # noqa: ANN401
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


_ADAPTERS: dict[type, TypeAdapter[dict[str, Any]]] = {}


def _adapter_of(kind: type[Config]) -> TypeAdapter[dict[str, Any]]:
    """Return the check of all values of a class by name, whose ranges are those of its settings."""
    if kind not in _ADAPTERS:
        hints = {name: _bounded(about.hint, about.least, about.most)
                 for name, about in _all_settings(kind).items()}
        values = with_config(STRICT)(TypedDict(kind.__name__, hints))  # type: ignore[operator]
        _ADAPTERS[kind] = _adapter(values)
    return _ADAPTERS[kind]


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
