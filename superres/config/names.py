"""Names from files that become parts of paths."""

from __future__ import annotations

import re

from superres.config.setting import require
from superres.errors import shown

MOST_NAME = 100
"""Largest number of bytes in the name of a file; most file systems hold 255, and suffixes are added."""
REFUSED = frozenset('<>:"/\\|?*')
"""Characters that Windows refuses in names."""
DEVICE = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
"""Names that Windows keeps for devices, also with a suffix."""


def file_name(name: str, what: str = "the name") -> str:
    """Return `name` if it is fit for a file or folder of any system; otherwise raise ConfigError, which names `what`.

    It has no separators, control characters or characters that Windows refuses, begins with a letter, digit or
    underscore (so neither "." nor an option), ends with no dot or space, has at most `MOST_NAME` bytes in UTF-8, and is
    not the name of a device of Windows. Use it for every name from a file that becomes part of a path.
    """
    characters = name.isprintable() and name == name.strip(" ") and not REFUSED & set(name)
    require(characters and name[:1].strip(".-") != "" and not name.endswith(".") and not DEVICE.fullmatch(name)
            and len(name.encode("utf-8", "replace")) <= MOST_NAME,
            f"{what} {shown(name)} is not fit for a file; use letters, digits, hyphens and underscores, at most "
            f"{MOST_NAME}")
    return name
