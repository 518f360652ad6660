"""Numbers, tables, warnings and plots of a report, of pairs or of single pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from superres.system.output import figure_png

CAREFUL = 0.7
"""Share of repeats with the same answer that careful raters reach unless the pictures look
alike."""


def hundredths(share: float) -> str:
    """Return a share as a number of 100; with a decimal where rounding would hide that it is not
    exactly 50."""
    text = f"{100 * share:.0f}"
    return text if text != "50" or share == 0.5 else f"{100 * share:.1f}"


def percent(share: float | None) -> str:
    """Return a share in percent with one decimal, or "-" for None."""
    return "-" if share is None else f"{100 * share:.1f}"


def interval_text(interval: Sequence[float] | None) -> str:
    """Return an interval of shares in percent in the paper's notation, or "-" for None."""
    return "-" if interval is None else f"({percent(interval[0])}, {percent(interval[1])})"


def p_text(value: float | None) -> str:
    """Return a p-value with three decimals, or "-" for None."""
    return "-" if value is None else "<0.001" if value < 0.001 else f"{value:.3f}"


def level_text(level: float) -> str:
    """Return the heading of a column of intervals."""
    return f"{100 * level:g}% interval"


def section(heading: str, header: list[str], rows: list[list[str]],
            note: str = "") -> dict[str, Any]:
    """Return a table of a report with its heading and note."""
    return {"heading": heading, "header": header, "rows": rows, "note": note}


def as_warning(what: str, do: str, command: str = "") -> dict[str, str]:
    """Return a warning: what is the matter, what to do, and the command that does it."""
    return {"what": what, "do": do, "command": command}


def about_repeats(repeats: dict[str, Any] | None, what: str, answers: str,
                  do: str) -> list[dict[str, str]]:
    """Return a warning if raters gave too few of the pairs or pictures that they saw twice the same
    answer."""
    return [as_warning(
        f"{what} that raters saw twice got the same answer in {hundredths(repeats['share'])} of "
        f"100 cases; guessing among {answers}.", do)
    ] if repeats and repeats["interval"][1] < CAREFUL else []


def plot_of(names: Sequence[str], draw: Callable[[Any], None], label: str, narrow: bool,
            columns: int) -> bytes:
    """Return a PNG with a place for each name, the first at the top, 900 pixels wide; 420 if
    `narrow`, for a phone.

    `draw` gets matplotlib's axes, on which the n-th of N names is at the height N - 1 - n. `label`
    is that of the horizontal axis, and `columns` the legend's number of columns.
    """
    from matplotlib.figure import Figure

    height = 1.8 + 0.55 * max(len(names), 1)
    figure = Figure(figsize=(4.2, height + 0.4) if narrow else (9, height), layout="constrained")
    axes = figure.subplots()
    draw(axes)
    axes.set_yticks(range(len(names))[::-1], names)
    axes.set_xlabel(label)
    if names:
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=columns, frameon=False,
                    fontsize=8)
    else:
        axes.text(0.5, 0.5, "no votes yet", transform=axes.transAxes, ha="center")
    return figure_png(figure)


def times_text(times: dict[str, float] | None) -> str:
    """Return a sentence on the quantiles of response times, in milliseconds; "" without votes."""
    return "" if times is None else (
        f" Response time: median {times['median'] / 1000:.1f} s, 10% under "
        f"{times['p10'] / 1000:.1f} s, 10% over {times['p90'] / 1000:.1f} s.")
