"""Which functions of superres a call enters: as much as one has to read to follow it."""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType

import superres

PACKAGE = Path(superres.__file__).parent


def entered(call: Callable[[], object]) -> set[CodeType]:
    """Return the code of the package's functions that `call` enters, in this thread and in those it
    starts.

    Lambdas, comprehensions, generator expressions, and bodies of classes and modules are left out.
    """
    found = set[CodeType]()

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            found.add(frame.f_code)

    before = sys.getprofile()
    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(before)
        threading.setprofile(None)  # type: ignore[arg-type] -- as threads begin
    return {code for code in list(found) if Path(code.co_filename).is_relative_to(PACKAGE)
            and code.co_flags & inspect.CO_NEWLOCALS and not code.co_name.startswith("<")}


def files_of(functions: set[CodeType]) -> set[str]:
    """Return the package's files in which functions are."""
    return {str(Path(code.co_filename).relative_to(PACKAGE)) for code in functions}
