"""The engine of the tables in docs/: rows that are measured one by one, JSON, Markdown in pages,
and plots.

    python scripts/measurements.py     # fill the tables of docs/ from docs/measurements/

A table is a list of rows: a name, a function that measures, and the settings that its values depend
on. The document is written after every row, and a row whose settings are unchanged is not measured
again, so an interrupted run continues.

The module of a table has `views(document)`, its parts as Markdown by name, and may have
`plots(document)`, its pictures by file name. In a page, the text from `<!-- table: NAME.VIEW -->`
to `<!-- end -->` is the view VIEW of `docs/measurements/NAME.json`. A document with `printed` has
its tables as they were printed, without the measurements.
"""

from __future__ import annotations

import datetime
import importlib
import io
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from PIL import Image

from superres.config import require
from superres.errors import ConfigError, InvalidInputError, SuperresError
from superres.system.machine import machine
from superres.system.output import (
    figure_png,
    markdown_table,
    number_text,
    prepare_folder,
    write_result,
    write_results,
)
from superres.system.progress import say

ROOT = Path(__file__).resolve().parents[1]
MEASUREMENTS = ROOT / "docs" / "measurements"
SECTION = re.compile(r"<!-- table: ([\w-]+)\.([\w-]+) -->\n(.*?)<!-- end -->", re.DOTALL)
"""A table in a page: its document and its view."""

Values = dict[str, Any]
Document = dict[str, Any]

Output = Annotated[Path, typer.Option(help="Folder for the JSON, Markdown and plots; an "
                                      "interrupted run continues.")]
Faces = Annotated[Path, typer.Option(help="Faces: .npz, folder of images or CelebA root.")]
Text = Annotated[Path, typer.Option(help="Parallel text: PATH.en and PATH.de, or a test set of "
                                    "sacreBLEU.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Use the first N inputs only.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Engine = Annotated[str, typer.Option(help="Engine of decoding.")]
Checkpoint = Annotated[str, typer.Option(help="Checkpoint name, folder or hub id.")]
Busy = Annotated[bool, typer.Option("--busy", help="Measure even if other processes use the "
                                    "processor.")]
Page = Annotated[Path | None, typer.Option(help="Markdown page to fill; the JSON is kept in "
                                           "measurements/ beside it.")]


@dataclass(frozen=True)
class Row:
    """One measurement.

    Attributes:
        name: unique in its table.
        measure: returns the values, serialisable as JSON.
        settings: what the values depend on, such as a digest of weights and decoding options,
            serialisable as JSON.
    """

    name: str
    measure: Callable[[], Values]
    settings: Values = field(default_factory=dict)


class Table:
    """A document of measurements, FOLDER/NAME.json.

    Attributes:
        document: `table` (the module of its views), `command`, `commit`, `date`, `machine`,
            `conditions` and `rows`, which have `settings` and `values` by name.
    """

    def __init__(self, module: str, folder: Path, conditions: Values,
                 device: str = "cpu", name: str | None = None) -> None:
        """Open the document in `folder`, or start one.

        `conditions` are those of all rows, serialisable as JSON.

        Raises:
            ConfigError: the document has other conditions or another processor, or cannot be read.
            OutputError: the folder cannot be written.
        """
        self.name, self.folder, self.path = (name or module, folder,
                                             folder / f"{name or module}.json")
        here = machine(device)
        self.document: Document = {
            "table": module, "command": command_text(sys.argv), "commit": commit(),
            "date": datetime.date.today().isoformat(), "machine": here, "conditions": conditions,
            "rows": {}}
        prepare_folder(folder)
        if self.path.exists():
            try:
                before = json.loads(self.path.read_text())
                known, rows = ({**before["conditions"], "cpu": before["machine"]["cpu"]},
                               dict(before["rows"]))
            except (OSError, ValueError, TypeError, KeyError) as error:
                raise ConfigError(f"{self.path} cannot be read ({error!r}); remove it or choose "
                                  "another --output"
                                  ) from error
            wanted = json.loads(json.dumps({**conditions, "cpu": here["cpu"]}))
            changed = [f"{name} {known.get(name)}, not {value}" for name, value in wanted.items()
                       if known.get(name) != value]
            require(not changed, f"{self.path} was measured with {', '.join(changed)}; choose "
                    "another --output")
            self.document["rows"] = rows

    def measure(self, rows: Iterable[Row]) -> None:
        """Measure the rows that are new or have other settings, and write the document after each
        of them."""
        for row in rows:
            settings = json.loads(json.dumps(row.settings))
            if self.document["rows"].get(row.name, {}).get("settings") == settings:
                say(f"{row.name}: already measured")
                continue
            say(row.name)
            self.document["rows"][row.name] = {"settings": settings, "values": row.measure()}
            self.save()

    def save(self) -> None:
        """Write the document; raise OutputError if that is not possible."""
        write_results(self.folder, {self.path.name: self.document})

    def finish(self, page: Path | None = None) -> list[Path]:
        """Write the document, its views as one Markdown file, and its plots; print the views and
        fill `page`."""
        self.save()
        module = importlib.import_module(self.document["table"])
        text = (conditions_text(self.document) + "\n\n"
                + "\n\n".join(module.views(self.document).values()) + "\n")
        plots = module.plots(self.document) if hasattr(module, "plots") else {}
        paths = write_results(self.folder, {f"{self.name}.md": text, **plots})
        print(text)
        print(f"written: {', '.join(map(str, (self.path, *paths)))}")
        if page is not None:
            write_results(page.parent / "measurements", {self.path.name: self.document})
            write_results(page.parent / "pictures", {name.replace(".png", ".webp"): webp(png)
                                                     for name, png in plots.items()})
            fill_page(page, page.parent / "measurements")
        return paths


def values(document: Document, prefix: str = "") -> dict[str, Values]:
    """Return the values of the rows whose names begin with `prefix`, by the rest of the name."""
    return {name.removeprefix(prefix): row["values"] for name, row in document["rows"].items()
            if name.startswith(prefix)}


def command_text(words: Sequence[str]) -> str:
    """Return a command line without the folders of its paths, which are those of one machine."""
    script, options = Path(words[0]), [Path(word).name or word for word in words[1:]]
    return " ".join(["python", f"scripts/{script.parent.name}/{script.name}", *options])


def commit() -> str | None:
    """Return the short hash of the checkout's commit; None outside of a repository, or without
    git."""
    with suppress(OSError):  # git is not installed
        found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT,
                               stdout=subprocess.PIPE, text=True, check=False)
        return found.stdout.strip() or None
    return None


def conditions_text(document: Document) -> str:
    """Return the command, date, commit, machine and conditions of a document as a sentence each."""
    here = ", ".join(f"{name} {value}" for name, value in document["machine"].items()
                     if value is not None)
    given = ", ".join(f"{name} {value}" for name, value in document.get("conditions", {}).items()
                      if value is not None)
    return (f"`{document['command']}`, {document['date']}, commit {document['commit']}. {here}."
            + (f" Conditions: {given}." if given else ""))


def verdict(difference: float, noise: float = 0.0) -> str:
    """Return whether a difference is positive beyond its noise: holds, does not hold or
    undecided."""
    return ("undecided" if abs(difference) <= noise else "holds" if difference > 0
            else "does not hold")


# Markdown

Columns = Mapping[str, tuple[str | Callable[[Values], Any], int]]
"""Entry of a row's values, or a function of them, and number of decimals, by heading."""


def cell_text(value: Any, digits: int = 0, half_width: float | None = None) -> str:  # noqa: ANN401 -- of JSON
    """Return a value as text: a number with `digits` decimals and perhaps half the width of its
    interval."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float):
        return "-" if value is None else str(value)
    return number_text(value, digits) + ("" if half_width is None else f" ±{half_width:.{digits}f}")


def columns_table(rows: Iterable[Values], columns: Columns) -> str:
    """Return a Markdown table with a line per row; after ± is half the width of an interval,
    KEY_half_width."""
    def text(row: Values, key: str | Callable[[Values], Any], digits: int) -> str:
        if callable(key):
            return cell_text(key(row), digits)
        return cell_text(row.get(key), digits, row.get(f"{key}_half_width"))

    return markdown_table(
        [*columns], [[text(row, key, digits) for key, digits in columns.values()] for row in rows]
    )


def views(document: Document) -> dict[str, str]:
    """Return the parts of any document as Markdown, by name."""
    if "printed" in document:
        return {name: shown if isinstance(shown, str) else markdown_table(shown["header"],
                                                                          shown["rows"])
                for name, shown in document["printed"].items()}
    found: dict[str, str] = importlib.import_module(document["table"]).views(document)
    return found


def fill_page(page: Path, measurements: Path = MEASUREMENTS) -> bool:
    """Replace every table of a page by the view of its document, and return whether the page has
    changed.

    Raises:
        InvalidInputError: the page or a document cannot be read, or there is no such view.
        OutputError: the page cannot be written.
    """
    def view(found: re.Match[str]) -> str:
        name, part = found.group(1, 2)
        try:
            made = views(json.loads((measurements / f"{name}.json").read_text()))[part]
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise InvalidInputError(f"{page} shows {part} of {name}.json, which cannot be read "
                                    f"({error!r})") from error
        return f"<!-- table: {name}.{part} -->\n\n{made.strip()}\n\n<!-- end -->"

    try:
        text = page.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"--page {page} cannot be read ({error}); name a Markdown "
                                "page") from error
    filled = SECTION.sub(view, text)
    if filled != text:
        write_result(page, filled.encode(), "--page")
    return filled != text


# Plots


@dataclass(frozen=True)
class Line:
    """Points of a panel, with an optional note beside each of them; `format` is matplotlib's."""

    points: Sequence[tuple[float, float]]
    label: str | None = None
    colour: str | None = None
    format: str = "o-"
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Panel:
    """A panel of a plot; `settings` are those of matplotlib's `Axes.set`."""

    lines: Sequence[Line]
    settings: Mapping[str, Any]


def draw(panels: Sequence[Panel], columns: int, size: tuple[float, float]) -> bytes:
    """Return a PNG of panels in `columns` columns, with one legend below."""
    from matplotlib.figure import Figure  # an optional dependency, slow to import

    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(-(-len(panels) // columns), columns, squeeze=False)
    entries: dict[str, Any] = {}
    for axes, panel in zip(grid.flat, panels, strict=False):
        for line in panel.lines:
            if line.points:
                drawn = axes.plot(*zip(*line.points, strict=True), line.format, color=line.colour,
                                  markersize=5, linewidth=1, label=line.label)
                entries |= {line.label: drawn[0]} if line.label else {}
            for note, point in zip(line.notes, line.points, strict=False):
                axes.annotate(note, point, (4, 3), textcoords="offset points", fontsize=7)
        axes.set(**panel.settings)
        if panel.settings.get("xscale") == "log":
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter("{x:g}")
        axes.grid(alpha=0.3)
    if entries:
        figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=4,
                      fontsize="small")
    return figure_png(figure)


def webp(png: bytes) -> bytes:
    """Return a PNG as a lossless WebP, which is smaller."""
    content = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").save(content, "WEBP", lossless=True)
    return content.getvalue()


def run(program: Callable[..., Any]) -> None:
    """Run a Typer application, or a function as a command, with errors as one line."""
    try:
        program() if isinstance(program, typer.Typer) else typer.run(program)
    except SuperresError as error:
        sys.exit(f"{Path(sys.argv[0]).stem}: {error}")


def pages() -> list[Path]:
    """Return the pages of the project that may have tables."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def main() -> None:
    """Fill the tables of all pages from docs/measurements."""
    sys.path += [str(ROOT / "scripts" / folder) for folder in ("reproduce", "benchmark")]
    for page in pages():
        if fill_page(page):
            print(f"filled: {page}")


if __name__ == "__main__":
    run(main)
