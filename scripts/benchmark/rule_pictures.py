"""Pictures of the bench of rules: the plot, and sheets of faces for raters who must not know which
rule drew them."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from rule_distances import NOT_FOUND, OUTCOMES
from superres.errors import InvalidInputError
from superres.pictures.read import Pixels
from superres.survey.statistics import wilson
from superres.system.output import figure_png, prepare_folder, write_result, write_results

MARKERS = {"lossless": "o", "bounded": "s", "none": "^"}
"""By what a rule claims."""
COLOURS = dict(zip(OUTCOMES, ("#1b7837", "#b2182b", "#2166ac"), strict=True))
"""By what was found."""
OFFSETS = [(radius * np.cos(turn), radius * np.sin(turn)) for radius in range(14, 240, 12)
           for turn in np.linspace(0, 2 * np.pi, 16, endpoint=False)]
"""Where a label may stand from its point, in pixels, the nearest place first."""
NEAR = 0.05
"""Differences below this have a linear scale, and those above a logarithmic one."""
TICKS = (-0.1, -0.05, 0, 0.05, 0.1, 0.3, 1, 3)
SIDE, GAP, ACROSS, SEED = 96, 20, 10, 74


def plot(points: Sequence[Mapping[str, Any]]) -> bytes:
    """Return a PNG of tokens per step against the difference in bits/dim, a point per rule."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # optional, slow to import
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    figure = Figure(figsize=(9.5, 10), layout="constrained")
    axes = figure.subplots()
    axes.axhline(0, color="#888", linewidth=0.8)
    for one in points:
        axes.errorbar(one["x"], one["y"], one["half"] or 0.0, color=COLOURS[one["is"]],
                      marker=MARKERS[one["claims"]], markersize=6, elinewidth=1, capsize=2)
    axes.set(xlabel="tokens per step", ylabel="bits/dim under the network, above token by token")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_yscale("symlog", linthresh=NEAR, linscale=1.5)
    axes.set_yticks(TICKS, [f"{tick:g}" for tick in TICKS], minor=False)
    axes.margins(0.12, 0.06)
    axes.grid(alpha=0.3)
    entries = [Line2D([], [], color="#555", marker=marker, linestyle="", label=f"claims {claim}")
               for claim, marker in MARKERS.items()]
    entries += [Line2D([], [], color=colour, linewidth=3, label=f"is {outcome}" if outcome
                       != NOT_FOUND else outcome) for outcome, colour in COLOURS.items()]
    figure.legend(handles=entries, loc="outside lower center", ncols=3, fontsize="small")
    FigureCanvasAgg(figure).draw()
    place_labels(axes, points)
    return figure_png(figure)


def place_labels(axes: Any, points: Sequence[Mapping[str, Any]]) -> None:  # noqa: ANN401 -- matplotlib's
    """Write the name of each point as near to it as no other name or point is in the way."""
    figure = axes.figure
    renderer, scale = figure.canvas.get_renderer(), figure.dpi / 72
    places = axes.transData.transform([(one["x"], one["y"]) for one in points])
    inside = axes.get_window_extent(renderer)
    taken = [(x - 7, y - 7, x + 7, y + 7) for x, y in places] + in_the_way(axes, points)
    for one, (x, y) in sorted(zip(points, places, strict=True), key=lambda both: both[1][0]):
        text = axes.annotate(one["name"], (one["x"], one["y"]), fontsize=9)
        size = text.get_window_extent(renderer)
        boxes = [label_box(x + right, y + up, size.width + 4, size.height + 2, right)
                 for right, up in OFFSETS]
        fitting = [box for box in boxes if inside.x0 < box[0] and box[2] < inside.x1
                   and inside.y0 < box[1] and box[3] < inside.y1]
        free = [box for box in fitting if not any(overlap(box, other) for other in taken)]
        box = (free or fitting or boxes)[0]
        text.remove()
        axes.annotate(one["name"], (one["x"], one["y"]), xycoords="data", fontsize=9,
                      xytext=((box[0] - x + 2) / scale, (box[1] - y + 3) / scale),
                      textcoords="offset points", color=COLOURS[one["is"]],
                      arrowprops={"arrowstyle": "-", "color": "#bbb", "linewidth": 0.6,
                                  "shrinkA": 0, "shrinkB": 4})
        taken.append(box)


def in_the_way(axes: Any,  # noqa: ANN401 -- matplotlib's
               points: Sequence[Mapping[str, Any]]) -> list[tuple[float, ...]]:
    """Return the boxes of the line at 0 and of the intervals."""
    (left, right), found = axes.get_xlim(), []
    lines = [(left, 0.0, right, 0.0)]
    lines += [(one["x"], one["y"] - (one["half"] or 0), one["x"], one["y"] + (one["half"] or 0))
              for one in points]
    for x0, y0, x1, y1 in lines:
        ends = axes.transData.transform([(x0, y0), (x1, y1)])
        found.append((ends[0][0] - 2, ends[0][1] - 2, ends[1][0] + 2, ends[1][1] + 2))
    return found


def label_box(x: float, y: float, width: float, height: float, right: float) -> tuple[float, ...]:
    """Return the box of a label that begins, or to the left of its point ends, at x."""
    left = x if right > 1 else x - width if right < -1 else x - width / 2
    return left, y - height / 2, left + width, y + height / 2


def overlap(one: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether two boxes (left, bottom, right, top) overlap."""
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


# Sheets for raters


def sheet(pictures: Pixels) -> bytes:
    """Return a PNG of pictures, 10 in a row, each below its number from 0."""
    rows = -(-len(pictures) // ACROSS)
    image = Image.new("RGB", (ACROSS * (SIDE + GAP) + GAP, rows * (SIDE + GAP) + GAP), "white")
    text = ImageDraw.Draw(image)
    for number, (row, column) in zip(range(len(pictures)), itertools.product(
            range(rows), range(ACROSS)), strict=False):
        left, top = GAP + column * (SIDE + GAP), GAP + row * (SIDE + GAP)
        face = Image.fromarray(pictures[number])
        image.paste(face.resize((SIDE, SIDE), Image.Resampling.NEAREST if SIDE % face.width == 0
                                else Image.Resampling.LANCZOS), (left, top))
        text.text((left, top - 14), str(number), fill="#555")
    content = io.BytesIO()
    image.save(content, "PNG")
    return content.getvalue()


def write_sheets(pictures: Mapping[str, Pixels], folder: Path, key: Path) -> None:
    """Write a numbered sheet per rule into `folder`, in an order drawn by chance, and that order
    into the file `key`."""
    prepare_folder(folder, "--sheets")
    names = np.random.default_rng(SEED).permutation(list(pictures)).tolist()
    write_results(folder, {f"sheet-{number:02d}.png": sheet(pictures[name])
                           for number, name in enumerate(names, 1)})
    order = {str(number): [name, len(pictures[name])] for number, name in enumerate(names, 1)}
    write_result(key, json.dumps(order, indent=1).encode(), "--output")


def torn_shares(judgements: Path, key: Path) -> dict[str, dict[str, float]]:
    """Return the share of torn pictures and Wilson's interval by rule, from a JSON of the numbers
    of the torn pictures by sheet."""
    try:
        found, order = json.loads(judgements.read_text()), json.loads(key.read_text())
        shares = {}
        for number, torn in found.items():
            name, count = order[str(int(number))]
            low, high = wilson(len(set(torn)), count, 0.95)
            shares[name] = {"torn": len(set(torn)) / count, "torn_low": low, "torn_high": high}
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise InvalidInputError(f"{judgements} and {key} cannot be read ({error!r}); give the "
                                'numbers of torn pictures by sheet, such as {"1": [0, 17]}, and '
                                "the --output of --sheets") from error
    return shares
