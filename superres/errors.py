"""Errors that a user can cause and mend.

Every message is one line that names the offending value and the remedy; the command line prints it without a traceback.
"""


SHOWN = 200
"""Most characters of a value in a message."""


def shown(value: object) -> str:
    """Return a value as a message shows it: on one line, printable and short, whatever it is."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, lists thousands deep
        return f"a {type(value).__name__} that is too large to be shown"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def plain(text: str) -> str:
    """Return text from elsewhere (another library's error, a name in a file) as a message shows it."""
    text = " ".join("".join(one if one.isprintable() else " " for one in text).split())
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


class SuperresError(Exception):
    """Base of all errors raised for bad input rather than for a bug."""


class InvalidInputError(SuperresError):
    """An input (image, array, file or text) cannot be used."""


class ConfigError(SuperresError):
    """An option has a value outside its range, or two options contradict each other."""


class CheckpointError(SuperresError):
    """A checkpoint is missing, damaged, or does not fit the code that reads it."""


class ScoresError(SuperresError):
    """The scores of a network are not finite, so that they choose no tokens."""

    def __init__(self, message: str = "the network's scores are not finite: its weights are too large or damaged, and "
                                      "nothing can be decoded; use another checkpoint") -> None:
        """Take the message."""
        super().__init__(message)


class OutputError(SuperresError):
    """A result cannot be written where the user asked for it."""


class ClusterError(SuperresError):
    """A cluster that should do the work cannot be reached, or fails."""


class StoreError(SuperresError):
    """A survey's store is missing, locked, read-only, full or of another schema, or does not hold what is asked for."""
