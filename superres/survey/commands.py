"""The command lines that the survey's messages name. Each of them runs as printed in a POSIX
shell."""

from __future__ import annotations

import os
import shlex

DEFAULT_STORE = "survey.db"
STORE_VARIABLE = "SUPERRES_SURVEY_STORE"
"""Environment variable that names the store of the commands without --store."""


def command_line(action: str, *words: str, store: str) -> str:
    """Return the command line `superres survey ACTION WORDS`, with --store if the store needs
    it."""
    line = shlex.join(["superres", "survey", action, *words])
    if store == DEFAULT_STORE and STORE_VARIABLE not in os.environ:
        return line
    # a password, which no message prints; in the variable it stays out of the shell's history
    if ":***@" in store:
        return f'{line} --store "${STORE_VARIABLE}"'
    return f"{line} --store {shlex.quote(store)}"
