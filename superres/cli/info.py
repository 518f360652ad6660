"""The command `superres info`: what to paste into a bug report."""

from __future__ import annotations

from superres.cli import options as opt
from superres.system.terminal import echo, echo_json


def info(as_json: opt.AsJson = False) -> None:
    """Print versions, processor, threads, caches, and which native variant is used and why, for a bug report.

    The first run may compile the native engine, and tests it.
    """
    from superres import __version__
    from superres.nn.engines.native.report import report

    found = {"superres": __version__, **report()}
    if as_json:
        echo_json(found)
        return
    for name, value in found.items():
        for number, line in enumerate(value if isinstance(value, list) else [value]):
            echo(f"{'' if number else name:<11}{line}")
