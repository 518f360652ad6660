"""Numbers, tables and warnings of a report in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


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


def section(heading: str, header: list[str], rows: list[list[str]], note: str = "") -> dict[str,
                                                                                            Any]:
    """Return a table of a report with its heading and note."""
    return {"heading": heading, "header": header, "rows": rows, "note": note}


def as_warning(what: str, do: str, command: str = "") -> dict[str, str]:
    """Return a warning: what is the matter, what to do, and the command that does it."""
    return {"what": what, "do": do, "command": command}


def times_text(times: dict[str, float] | None) -> str:
    """Return a sentence on the quantiles of response times, in milliseconds; "" without votes."""
    return "" if times is None else (
        f" Response time: median {times['median'] / 1000:.1f} s, 10% under "
        f"{times['p10'] / 1000:.1f} s, 10% over {times['p90'] / 1000:.1f} s.")
