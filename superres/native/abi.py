"""What Python and C++ share, read from cpp/abi.h: its constants, enums, structures and functions,
for ctypes.

Structures are attributes of this module: `CSession` is `Session` as a ctypes class. A structure by
value is nested, a pointer to a structure is a `ctypes.POINTER`, and any other pointer is an
address. The header is in a plain subset of C++, which it describes.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
from ctypes import POINTER, Structure, c_void_p
from pathlib import Path
from typing import Any

_TYPES: dict[str, Any] = {
    "int64_t": ctypes.c_int64, "uint64_t": ctypes.c_uint64, "int32_t": ctypes.c_int32,
    "uint8_t": ctypes.c_uint8, "float": ctypes.c_float, "double": ctypes.c_double,
    "const char*": ctypes.c_char_p, "void": None,
}

HEADER = Path(__file__).parent / "cpp" / "abi.h"

DIGEST = hashlib.sha256(HEADER.read_bytes()).hexdigest()
"""SHA-256 of the header. A compiled library has the digest of the header that it was compiled
with."""

_TEXT = re.sub(r"//.*", "", HEADER.read_text(encoding="utf-8"))
_CONSTANT = re.compile(r"constexpr int (\w+) = (\d+);")
_ENUM = re.compile(r"enum (\w+) : int64_t \{([\w\s,]+)\};")
_STRUCT = re.compile(r"struct (\w+)(?: \{([^{}]*)\})?;")
_FUNCTION = re.compile(r'extern "C" (void|u?int64_t|const char\*) (\w+)\(([^()]*)\);')
_DECLARATION = re.compile(r"(?:const\s+)?(\w+)\b\s*(.+)", re.DOTALL)
_DECLARATOR = re.compile(r"(\*?)\s*(\w+)(?:\[(\d+)\])?")

CONSTANTS = {name: int(number) for name, number in _CONSTANT.findall(_TEXT)}
ENUMS: dict[str, list[str]] = {name: names.replace(",", " ").split()
                               for name, names in _ENUM.findall(_TEXT)}
"""Names of each enum, in the order of their values."""
STRUCTURES: dict[str, type[Structure]] = {
    name: type(f"C{name}", (Structure,), {}) for name, _ in _STRUCT.findall(_TEXT)}


def _type(name: str, star: str) -> Any:  # noqa: ANN401 - a type of ctypes
    """Return the ctypes form of a type, or of a pointer to it if there is a `star`."""
    if name in STRUCTURES:
        return POINTER(STRUCTURES[name]) if star else STRUCTURES[name]
    return c_void_p if star else _TYPES["int64_t" if name in ENUMS else name]


def _variables(text: str, separator: str) -> list[tuple[str, Any]]:
    """Return the name and the type of every variable of the declarations in `text`."""
    return [(name, _type(kind, star) * int(count) if count else _type(kind, star))
            for declaration in text.split(separator)
            for kind, declarators in _DECLARATION.findall(declaration)
            for star, name, count in _DECLARATOR.findall(declarators)]


for _name, _fields in _STRUCT.findall(_TEXT):
    if _fields:
        STRUCTURES[_name]._fields_ = _variables(_fields, ";")
FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    name: (_TYPES[result], [kind for _, kind in _variables(arguments, ",")])
    for result, name, arguments in _FUNCTION.findall(_TEXT)}
"""Result and arguments of each function, for ctypes."""

LANES, PANEL, MAX_HEAD, NEAR, FAR = (
    CONSTANTS[name] for name in ("LANES", "PANEL", "MAX_HEAD", "NEAR_EIGHTHS", "FAR_EIGHTHS"))


def value(enum: str, name: str) -> int:
    """Return the number of `name`, such as "feed-forward" for FEED_FORWARD, in an enum; a
    ValueError if it has none."""
    return ENUMS[enum].index(name.upper().replace("-", "_"))


def __getattr__(name: str) -> Any:  # noqa: ANN401 - ctypes knows no more of a structure's fields
    """Return the structure `Name` as the attribute `CName`."""
    structure = STRUCTURES.get(name[1:]) if name.startswith("C") else None
    if structure is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return structure
