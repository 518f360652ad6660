"""The command `superres info`: about this machine, or about the origin of a picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from typer import Argument

from superres import __version__
from superres.cli.options import DEFAULTS, AsJson
from superres.errors import plain
from superres.pipeline.resolved_options import as_option
from superres.system.terminal import echo, echo_json

PictureFile = Annotated[Path | None, Argument(metavar="FILE", help="PNG, JPEG, WebP or TIFF "
                                              "picture to describe instead of the machine: whether "
                                              "it is marked as drawn by a model, and with which "
                                              "checkpoint and settings superres drew it.")]


def info(file: PictureFile = None, as_json: AsJson = False) -> None:
    """Print versions, processor, threads, caches, and which native variant is used and why, for a
    bug report.

    The first run may compile the native engine, and tests it. With FILE, print what a picture says
    of its origin.
    """
    if file is None:
        from superres.native.diagnosis import report

        found = {"superres": __version__, **report()}
    else:
        from superres.pictures.untrusted import read_origin

        found = read_origin(file)
    if as_json:
        echo_json(found)
        return
    for name, value in (found if file is None else origin_lines(found)).items():
        for number, line in enumerate(value if isinstance(value, list) else [value]):
            echo(f"{'' if number else name:<11}{line}")


def origin_lines(found: dict[str, Any]) -> dict[str, str]:
    """Return the report of `read_origin` as lines by name."""
    from superres.pictures.mark import SOFTWARE

    mark, tool, record = found["mark"], found["tool"], found["settings"]
    lines = {"picture": f"{found['format']}, {found['width']}x{found['height']}",
             "mark": "none" if mark is None else f"{plain(mark.rpartition('/')[2])} "
             f"({plain(mark)})"}
    if tool is not None:
        lines["made by"] = plain(tool)
    if record is None:
        by_superres = (tool or "").startswith(SOFTWARE)
        return {**lines, "settings": "none" if by_superres else "none: this picture is not from "
                "superres, or another program has removed them"}
    usual = json.loads(json.dumps(DEFAULTS.to_dict()))  # as parsed JSON, like the record
    for name, value in record.items():
        if name == "config" and isinstance(value, dict):
            options = [as_option(key, ",".join(map(str, one)) if isinstance(one, list)
                                 else str(one))
                       for key, one in value.items() if one != usual.get(key) and key != "seed"]
            lines["options"] = plain(" ".join(options)) or "defaults"
            lines["seed"] = plain(str(value.get("seed", "unknown")))
        else:
            lines[plain(name)] = plain(value if isinstance(value, str) else json.dumps(value))
    return lines
