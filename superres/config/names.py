"""Names from files that become parts of paths."""

from __future__ import annotations

import re
import unicodedata

from superres.errors import ConfigError, shown

MOST_NAME = 100
"""Largest number of bytes in the name of a file; most file systems hold 255, and suffixes are
added."""
REFUSED = re.compile(r'[<>:"/\\|?*\x00-\x1f]')
"""Characters that Windows accepts in no name of a file."""
DEVICE = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[\d¹²³]) *(\..*)?",
                    re.IGNORECASE | re.DOTALL)
"""Names that Windows keeps for devices, also with a suffix."""


def portable_name(name: str) -> str:
    """Return `name` with "_" where Windows refuses it as the name of a file or folder, or unchanged
    if it does not."""
    name = REFUSED.sub("_", name)
    name = f"{name[:-1]}_" if name.endswith((".", " ")) else name
    return f"_{name}" if DEVICE.fullmatch(name) else name


def without_case(name: str) -> str:
    """Return a text that is equal for names which Windows or macOS take for the same file.

    Case and Unicode normal form do not distinguish files there.
    """
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def file_name(name: str, what: str = "the name") -> str:
    """Return `name` if it is fit for a file or folder of any system; otherwise raise ConfigError,
    which names `what`.

    It has no separators, control characters or characters that Windows refuses, begins with a
    letter, digit or underscore (so neither "." nor an option), ends with no dot or space, has at
    most `MOST_NAME` bytes in UTF-8, and is not the name of a device of Windows. Use it for every
    name from a file that becomes part of a path.
    """
    if (name.isprintable() and name == portable_name(name) and name[:1].strip(" .-")
        and len(name.encode("utf-8", "replace")) <= MOST_NAME):
        return name
    raise ConfigError(f"{what} {shown(name)} is not fit for a file; use letters, digits, hyphens "
                      f"and underscores, at most {MOST_NAME}")
