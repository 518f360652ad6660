"""Errors that a user can cause and correct.

Every message is one line that names the invalid value and the remedy. The command line prints it
without a traceback.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

MAX_SHOWN = 200  # characters of a value in a message
TORCH = ("torch", "torchvision")
EXTRAS = {
    "hub": ("huggingface_hub",),
    "survey": ("fastapi", "krippendorff", "matplotlib", "scipy", "sqlalchemy", "statsmodels",
               "uvicorn"),
    "torch": TORCH, "train": ("accelerate", "matplotlib", *TORCH),
    "ui": ("fastapi", "gradio", "uvicorn"),
}
"""Packages of an extra, by the names of their modules."""


def shown(value: object) -> str:
    """Return the text of a value in a message: printable, on one line, and at most `MAX_SHOWN`
    characters."""
    try:
        return _shortened(repr(value))
    # an integer of thousands of digits, or deeply nested lists
    except (ValueError, RecursionError):
        return f"a {type(value).__name__} that is too large to be shown"


def plain(text: str) -> str:
    """Return foreign text in a message (an error of another library, a name in a file), printable
    and shortened."""
    return _shortened(" ".join("".join(one if one.isprintable() else " " for one in text).split()))


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its type if the message is
    empty."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


class SuperresError(Exception):
    """Base of all errors that bad input causes, as opposed to bugs."""


class InvalidInputError(SuperresError):
    """An input (image, array, file or text) cannot be used."""


class ConfigError(SuperresError):
    """An option has a value outside its range, or two options contradict each other."""


class CheckpointError(SuperresError):
    """A checkpoint is missing, damaged, or does not match the code that reads it."""


class ScoresError(SuperresError):
    """The scores of a network are not finite, so they determine no tokens."""

    def __init__(self) -> None:
        super().__init__("the network's scores are not finite: its weights are too large or "
                         "damaged, and nothing can be decoded; use another checkpoint")


class OutputError(SuperresError):
    """A result cannot be written to the place that the user named."""


class PlaceError(SuperresError):
    """A place, such as an object store, gives no answer at present; the same request may succeed
    later."""


class StoreError(SuperresError):
    """A survey's store is missing, unusable or of another schema, or lacks the requested study."""


@contextmanager
def extra_needed(what: str, *extras: str) -> Iterator[None]:
    """Import inside what `what`, such as "superres train", needs; if it needs a package that is not
    installed, the ConfigError names the first of the extras that brings it."""
    try:
        yield
    except ModuleNotFoundError as error:
        found = [extra for extra in extras if error.name in EXTRAS[extra]]
        if not found:
            raise
        raise ConfigError(f"{what} needs {error.name}: pip install 'superres[{found[0]}]'"
                          ) from error


def torch_needed(what: str) -> AbstractContextManager[None]:
    """Import inside what `what`, such as "--engine plain", needs of torch; ConfigError without
    torch."""
    return extra_needed(what, "torch")
