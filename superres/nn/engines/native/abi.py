"""What Python and C++ share, read from cpp/abi.h: its constants, enums, structures and functions, for ctypes.

Structures are attributes of this module: `CSession` is `Session` as a ctypes class. A structure by value is nested, a
pointer to a structure is a `ctypes.POINTER`, and any other pointer is an address.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
from ctypes import POINTER, Structure, c_void_p
from pathlib import Path
from typing import Any, NamedTuple

_SCALARS: dict[str, type[Any]] = {
    "int64_t": ctypes.c_int64, "int32_t": ctypes.c_int32, "uint8_t": ctypes.c_uint8, "float": ctypes.c_float,
    "double": ctypes.c_double,
}

_RESULTS = {"void": None, "int64_t": ctypes.c_int64, "uint64_t": ctypes.c_uint64, "const char*": ctypes.c_char_p}

_STATEMENT = re.compile(r"""\s*(?:
    \#pragma\ once | \#include\ <cstdint>
  | constexpr\ int\ (?P<constant>\w+)\ =\ (?P<value>\d+);
  | enum\ (?P<enum>\w+)\ :\ int64_t\ \{(?P<names>[\w\s,]+)\};
  | struct\ (?P<struct>\w+)\ \{(?P<fields>[^{}]*)\};
  | struct\ (?P<forward>\w+);
  | extern\ "C"\ (?P<result>void|u?int64_t|const\ char\*)\ (?P<function>\w+)\((?P<arguments>[^()]*)\);
)\s*""", re.VERBOSE)

_DECLARATION = re.compile(r"\s*(?:const\s+)?(\w+)\b\s*(.+)", re.DOTALL)
_DECLARATOR = re.compile(r"\s*(\*?)\s*(\w+)(?:\[(\d+)\])?\s*")


class Declarations(NamedTuple):
    """What a header declares.

    Attributes:
        constants: value of each constant.
        enums: names of each enum, in the order of their values.
        structures: ctypes class of each structure.
        functions: result and arguments of each function, for ctypes.
    """

    constants: dict[str, int]
    enums: dict[str, list[str]]
    structures: dict[str, type[Structure]]
    functions: dict[str, tuple[Any, list[Any]]]


def parse(text: str) -> Declarations:
    """Return what the header `text` declares, in the plain subset of C++ that cpp/abi.h describes.

    Raises:
        ValueError: the text has something else.
    """
    text = re.sub(r"//.*", "", text)
    found = Declarations({}, {}, {}, {})
    place = 0
    while text[place:].strip():
        match = _STATEMENT.match(text, place)
        if match is None:
            raise ValueError(f"not in the subset of abi.h: {text[place:].strip().splitlines()[0]}")
        place = match.end()
        if name := match["constant"]:
            found.constants[name] = int(match["value"])
        elif name := match["enum"]:
            found.enums[name] = match["names"].replace(",", " ").split()
        elif name := match["forward"] or match["struct"]:
            structure = found.structures.setdefault(name, type(f"C{name}", (Structure,), {}))
            if match["struct"]:
                lines = match["fields"].split(";")
                structure._fields_ = [field for line in lines if line.strip() for field in _variables(line, found)]
        elif name := match["function"]:
            arguments = [variable for part in match["arguments"].split(",") if part.strip()
                         for variable in _variables(part, found)]
            found.functions[name] = _RESULTS[match["result"]], [kind for _, kind in arguments]
    return found


def _variables(declaration: str, known: Declarations) -> list[tuple[str, Any]]:
    """Return the name and the type of every variable of a declaration, without its semicolon.

    Raises:
        ValueError: it is not in the subset.
    """
    match = _DECLARATION.fullmatch(declaration)
    variables = []
    for part in match[2].split(",") if match else [""]:
        declarator = _DECLARATOR.fullmatch(part)
        if match is None or declarator is None:
            raise ValueError(f"not in the subset of abi.h: {declaration.strip()}")
        star, name, count = declarator.groups()
        kind = _type(match[1], star, known)
        variables.append((name, kind * int(count) if count else kind))
    return variables


def _type(name: str, star: str, known: Declarations) -> type[Any]:
    """Return the ctypes form of a type, or of a pointer to it if there is a `star`.

    Raises:
        ValueError: the type is not declared.
    """
    if name in known.structures:
        return POINTER(known.structures[name]) if star else known.structures[name]
    if star and (name in _SCALARS or name == "void"):
        return c_void_p
    scalar = _SCALARS.get("int64_t" if name in known.enums else name)
    if scalar is None or star:
        raise ValueError(f"not declared in abi.h: {name}{star}")
    return scalar


HEADER = Path(__file__).parent / "cpp" / "abi.h"

DIGEST = hashlib.sha256(HEADER.read_bytes()).hexdigest()
"""SHA-256 of the header. A compiled library has the digest of the header that it was compiled with."""

DECLARATIONS = parse(HEADER.read_text(encoding="utf-8"))
LANES, PANEL, MAX_HEAD, NEAR, FAR = (
    DECLARATIONS.constants[name] for name in ("LANES", "PANEL", "MAX_HEAD", "NEAR_EIGHTHS", "FAR_EIGHTHS"))


def value(enum: str, name: str) -> int:
    """Return the number of `name`, such as "feed-forward" for FEED_FORWARD, in an enum.

    Raises:
        ValueError: the enum has no such name.
    """
    return DECLARATIONS.enums[enum].index(name.upper().replace("-", "_"))


def __getattr__(name: str) -> Any:  # noqa: ANN401 - ctypes knows no more of a structure's fields
    """Return the structure `Name` as the attribute `CName`."""
    structure = DECLARATIONS.structures.get(name[1:]) if name.startswith("C") else None
    if structure is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return structure
