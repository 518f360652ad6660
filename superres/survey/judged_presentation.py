"""Present a report on judged pictures: how many of each method are torn, unequal and good, in
words, tables, a plot."""

from __future__ import annotations

from typing import Any

from superres.survey.study import GOOD, TORN, UNEQUAL
from superres.survey.wording import (
    about_repeats,
    as_warning,
    hundredths,
    interval_text,
    level_text,
    percent,
    plot_of,
    section,
    times_text,
)
from superres.system.output import counted, number_text

Report = dict[str, Any]

WORDS = {TORN: "torn or faceless", UNEQUAL: "unequal", GOOD: "good"}
"""The answers as raters read them."""

COLOURS = {TORN: "#ef8a62", UNEQUAL: "#fddbc7", GOOD: "#67a9cf"}

RELIABLE = 0.667
"""Krippendorff's alpha from which conclusions are tentatively drawn (Krippendorff 2004, "Content
Analysis")."""

NOTE = (
    "Shares are in percent of a method's pictures. A picture on which raters differ counts in "
    "parts. The intervals are for other pictures of the same kind judged by the same raters: "
    "Wilson's for the number of pictures, which is too wide rather than too narrow where several "
    "raters judged each."
)
DIFFERENCES_NOTE = (
    "Differences are in percentage points, on the same images. The intervals (Agresti and Min "
    "2005) say which are settled for other images and the same raters, each by itself; among many, "
    "one in twenty is wrong by chance at 95%."
)


def sentences(report: Report) -> list[str]:
    """Return the answer for each method, and how far raters agree."""
    found = []
    for method in report["result"]["methods"]:
        if not method["votes"]:
            found.append(f"{method['method']}: no votes yet.")
            continue
        parts = [f"{hundredths(share['share'])} {WORDS[answer]} ({_range(share['interval'])})"
                 for answer, share in method["answers"].items()]
        found.append(f"{method['method']}: of 100 pictures, {', '.join(parts[:-1])} and "
                     f"{parts[-1]}; {counted(method['raters'], 'rater')} judged "
                     f"{counted(method['images'], 'picture')} ({100 * report['level']:g}% "
                     "confidence).")
    same, alpha = report["result"]["same_answers"], report["result"]["agreement"]
    if same is not None:
        found.append(f"Two raters give the same answer to {hundredths(same)} of 100 pictures "
                     f"(Krippendorff's alpha {number_text(alpha, 2)}; 1 is agreement on all, 0 is "
                     "agreement by chance).")
    return found


def _range(interval: tuple[float, float]) -> str:
    return f"between {hundredths(interval[0])} and {hundredths(interval[1])}"


def about_votes(result: Report) -> list[dict[str, str]]:
    """Return warnings about all votes together."""
    found, alpha = [], result["agreement"]
    if result["raters"] == 1:
        found.append(as_warning("One rater voted.", "Ask a second one: nobody knows yet how far "
                                "raters agree."))
    if alpha is not None and alpha < RELIABLE:
        found.append(as_warning(
            f"Raters agree little (alpha {alpha:.2f}, and {RELIABLE} is the least that is usually "
            "relied on).",
            "Compare methods by differences, which use the same raters, and look at pictures on "
            "which raters differ (superres survey export): the answers may need examples."))
    return found + about_repeats(
        result["repeats"], "Pictures", "three answers gives 33",
        "Raters are unsure, or do not look: show the pictures larger (--scale), or ask others.")


def sections(report: Report) -> list[dict[str, Any]]:
    """Return the tables of a report; see `superres.survey.presentation.sections`."""
    result, level = report["result"], report["level"]
    found = [_shares("Judgements", result, level, NOTE)]
    if report["without_exclusions"]:
        found.append(_shares("Judgements without exclusions", report["without_exclusions"], level))
    if result["differences"]:
        rows = [[f"{row['method_a']} - {row['method_b']}",
                 *(cell for change in row["answers"].values()
                   for cell in (f"{100 * change['difference']:+.1f}",
                                interval_text(change["interval"]))),
                 str(row["images"])] for row in result["differences"]]
        found.append(section("Differences", ["a - b", *_columns(level), "images"], rows,
                             DIFFERENCES_NOTE))
    return [*found, _agreement(result)]


def _columns(level: float) -> list[str]:
    return [cell for word in WORDS.values() for cell in (word, level_text(level))]


def _shares(heading: str, result: Report, level: float, note: str = "") -> dict[str, Any]:
    """Return the table of each method's shares: those of all raters, then those of each rater."""
    rows = []
    for method in result["methods"]:
        if not method["votes"]:
            rows.append([method["method"], "all", *["-"] * 6, "0"])
            continue
        alone = method["raters_alone"]
        own = [("all", method["images"], method["answers"]),
               *((rater["rater"][:8], rater["pictures"], rater["shares"]) for rater in alone
                 if len(alone) > 1)]
        rows += [[method["method"], name,
                  *(cell for share in shares.values()
                    for cell in (percent(share["share"]), interval_text(share["interval"]))),
                  str(pictures)]
                 for name, pictures, shares in own]
    return section(heading, ["method", "rater", *_columns(level), "pictures"], rows, note)


def _agreement(result: Report) -> dict[str, Any]:
    """Return the table of agreement between raters, and of each rater with an earlier answer."""
    rows = [[name, percent(part.get("same_answers")), number_text(part["agreement"], 3)]
            for name, part in (*((method["method"], method) for method in result["methods"]),
                               ("all", result))]
    repeats, gold = result["repeats"], result["gold"]
    rows += [[name, percent(share["share"]), "-"] for name, share in (
        ("the same rater, shown twice", repeats), ("obvious pictures", gold)) if share]
    return section("Agreement", ["pictures", "same answer %", "alpha"], rows,
                   "Same answer is the share of equal answers among all pairs of raters of a "
                   "picture, and alpha is Krippendorff's (nominal), which counts "
                   "chance." + times_text(result["response_ms"]))


def report_plot(report: Report, narrow: bool = False) -> bytes:
    """Return a PNG with a bar of each method's shares and the intervals of torn ones; see
    `plot_of`."""
    methods = [method for method in report["result"]["methods"] if method["votes"]]

    def draw(axes: Any) -> None:  # noqa: ANN401 -- of matplotlib
        places, left = range(len(methods))[::-1], [0.0] * len(methods)
        for answer, word in WORDS.items():
            widths = [100 * method["answers"][answer]["share"] for method in methods]
            bars = axes.barh(places, widths, left=left, color=COLOURS[answer], label=word,
                             height=0.6)
            axes.bar_label(bars, [f"{width:.0f}" if width >= 3 else "" for width in widths],
                           label_type="center")
            left = [start + width for start, width in zip(left, widths, strict=True)]
        for place, method in zip(places, methods, strict=True):
            low, high = method["answers"][TORN]["interval"]
            axes.plot([100 * low, 100 * high], [place + 0.37] * 2, color="black", linewidth=2)
        axes.set_xlim(0, 100)

    return plot_of([method["method"] for method in methods], draw,
                   f"pictures, % (line: torn, {level_text(report['level'])})", narrow, 3)
