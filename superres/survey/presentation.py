"""Present a study's report as tables, Markdown and a plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from superres.survey.report import Report
from superres.system.output import figure_png, markdown_table, number_text

ANYTIME_NOTE = (
    "The first sentence, raters' mean and the any-time interval use one value per finished rater. The any-time "
    "interval (betting confidence sequence) is for the pictures of this study and stays valid however often you look, "
    "so you may stop as soon as it excludes 50. The other intervals hold for one look at a number of votes that was "
    "fixed before. "
)
INTERVALS_NOTE = (
    "Use the two-way interval: it treats raters and images as random samples. The votes-only interval is the paper's "
    "(bootstrap over votes). It assumes independent votes and is too narrow if raters or images differ. The pigeonhole "
    "interval resamples raters and images at once and is conservative. \"Can't tell\" counts as half a vote for each "
    "side; the column decided, Wilson's interval and the binomial test leave it out."
)

PLOTTED_INTERVALS = (
    ("two_way", "two-way (raters, images)", 0.0, 3.0, "C0"), ("votes", "votes only (paper)", -0.22, 1.5, "C1"),
    ("anytime", "any time (these pictures)", 0.22, 1.5, "C2"),
)
"""Intervals in the plot: kind, label, height above the comparison's line, width, colour."""


@dataclass(frozen=True)
class Section:
    """A table with a heading above it and a note below it."""

    heading: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


def percent(share: float | None) -> str:
    """Return a share in percent with one decimal, or "-" for None."""
    return "-" if share is None else f"{100 * share:.1f}"


def interval_text(interval: Sequence[float] | None) -> str:
    """Return an interval of shares in percent in the paper's notation, or "-" for None."""
    return "-" if interval is None else f"({percent(interval[0])}, {percent(interval[1])})"


def p_text(value: float | None) -> str:
    """Return a p-value with three decimals, or "-" for None."""
    return "-" if value is None else "<0.001" if value < 0.001 else f"{value:.3f}"


def sections(report: Report) -> list[Section]:
    """Return the tables of a report. The result without exclusions has only the table of preferences."""
    result = report["result"]
    fooled = ", ".join(c["method_a"] for c in result["comparisons"] if c["fool_rate"])
    note = ANYTIME_NOTE + INTERVALS_NOTE
    if fooled:
        note += f" The preference over camera is the fool rate ({fooled})."
    found = [_preferences("Preference for method a", report, result, note), _tests(result), _rater_quality(result)]
    if report["without_exclusions"]:
        found.insert(1, _preferences("Preference without exclusions", report, report["without_exclusions"], ""))
    if result["strengths"]:
        rows = [[s["method"], f"{s['log_strength']:+.2f}", f"({s['interval'][0]:+.2f}, {s['interval'][1]:+.2f})"]
                for s in result["strengths"]]
        ties = result["tie_parameter"]
        found.append(Section("Strengths", ["method", "log strength", _level(report)], rows,
                             "Davidson's model, which without ties is Bradley and Terry's. The mean over methods is 0. "
                             "Of raters who can tell, a share of 1 / (1 + exp(B - A)) prefers A to B. The intervals "
                             "resample raters." + (f" Tie parameter: {ties:.2f}." if ties else "")))
    if report["exclusions"]:
        rows = [[str(e["number"]), e["rule"] + (" (revoked)" if e["revoked"] else ""), e["reason"], e["recorded"],
                 str(len(e["raters"]))] for e in report["exclusions"]]
        found.append(Section("Exclusions", ["number", "rule", "reason", "recorded", "raters"], rows))
    return found


def _level(report: Report) -> str:
    return f"{100 * report['level']:g}% interval"


def _preferences(heading: str, report: Report, analysis: Report, note: str) -> Section:
    rows = []
    for c in analysis["comparisons"]:
        intervals, known = c.get("intervals", {}), c.get("anytime") or {}
        rows.append([
            c["name"], percent(c.get("preference")), interval_text(intervals.get("two_way")),
            percent(known.get("preference")), interval_text(known.get("interval")),
            *(interval_text(intervals.get(kind)) for kind in ("votes", "pigeonhole")),
            percent(c.get("preference_decided")), str(c["votes"]), str(c["raters"]), str(known.get("raters", 0)),
            str(c["images"])])
    header = ["a vs b", "% for a", f"two-way {_level(report)}", "raters' mean", f"any-time {_level(report)}",
              "votes only (paper)", "pigeonhole", "decided", "votes", "raters", "finished", "images"]
    return Section(heading, header, rows, note)


def _tests(analysis: Report) -> Section:
    rows = []
    for c in analysis["comparisons"]:
        intervals, times = c.get("intervals", {}), c.get("response_ms")
        rows.append([
            c["name"], *(interval_text(intervals.get(kind)) for kind in ("rater", "image", "wilson")),
            p_text(c.get("p_two_way")), p_text(c.get("p_binomial")), number_text(c.get("design_effect"), 1),
            *(number_text(c.get(key), 3) for key in ("rater_correlation", "image_correlation", "agreement")),
            str(c["unsure"]), number_text(c.get("tie_parameter"), 2), number_text(times and times["median"] / 1000, 1)])
    return Section("Details", ["a vs b", "raters resampled", "images resampled", "Wilson", "p two-way", "p binomial",
                               "design effect", "rater correlation", "image correlation", "alpha", "can't tell",
                               "tie parameter", "median s"], rows,
                   "The design effect is the two-way variance relative to independent votes. Alpha is Krippendorff's "
                   "(nominal). The tie parameter is Davidson's: votes \"can't tell\" per geometric mean of the votes "
                   "for a and for b.")


def _rater_quality(analysis: Report) -> Section:
    rows = [[name, percent(share["share"]), interval_text(share["interval"]), str(share["count"]),
             p_text(share.get("p_binomial"))] if share else [name, "-", "-", "0", "-"]
            for name, share in (("left side chosen", analysis["sides"]), ("gold answered correctly", analysis["gold"]),
                                ("repeats with the same choice", analysis["repeats"]))]
    times = analysis["response_ms"]
    note = f"Krippendorff's alpha over all pairs: {number_text(analysis['agreement'], 3)}."
    if times:
        note += (f" Response time: median {times['median'] / 1000:.1f} s, 10% under {times['p10'] / 1000:.1f} s, "
                 f"10% over {times['p90'] / 1000:.1f} s.")
    return Section("Rater quality", ["", "%", "Wilson", "votes", "p binomial"], rows, note)


def report_markdown(report: Report) -> str:
    """Return a report as Markdown: the answer and warnings in plain words, then the tables."""
    result = report["result"]
    excluded = sum(len(exclusion["raters"]) for exclusion in report["exclusions"])
    found = report["findings"]
    head = [f"# {report['study']}", *found["sentences"],
            *(f"- **{warning['what']}** {warning['do']}"
              + (f" `{warning['command']}`" if warning["command"] else "") for warning in found["warnings"]),
            f"{result['votes']} votes of {result['raters']} raters on {result['images']} images"
            + (f"; {excluded} rater{'s' if excluded > 1 else ''} excluded." if excluded else "."),
            f"> {report['settings']['question']}"]
    body = [f"### {section.heading}\n\n{markdown_table(section.header, section.rows)}"
            + (f"\n\n{section.note}" if section.note else "") for section in sections(report)]
    return "\n\n".join([*head, "## Figures for experts", *body]) + "\n"


def report_plot(report: Report, narrow: bool = False) -> bytes:
    """Return a PNG with each comparison's preference, its two-way interval, and the votes-only interval below it.

    Args:
        report: the report.
        narrow: draw it for a phone, 420 pixels wide instead of 900.
    """
    from matplotlib.figure import Figure

    comparisons = [c for c in report["result"]["comparisons"] if c["votes"]]
    height = 1.8 + 0.55 * max(len(comparisons), 1)
    figure = Figure(figsize=(4.2, height + 0.4) if narrow else (9, height), layout="constrained")
    axes = figure.subplots()
    for place, comparison in enumerate(reversed(comparisons)):
        middle = 100 * comparison["preference"]
        for kind, _, offset, width, color in PLOTTED_INTERVALS:
            interval = (comparison["anytime"] or {}).get("interval") if kind == "anytime" \
                else comparison["intervals"][kind]
            if interval:
                axes.plot([100 * end for end in interval], [place + offset] * 2, linewidth=width, color=color)
        axes.plot(middle, place, marker="o", color="C0", markersize=7)
        axes.annotate(f"{middle:.1f}", (middle, place), (0, 7), textcoords="offset points", ha="center", fontsize=8)
    for _, label, _, width, color in PLOTTED_INTERVALS:
        axes.plot([], [], linewidth=width, color=color, label=label)
    axes.axvline(50, color="grey", linewidth=1, linestyle=":")
    names = [c["name"].replace(" vs ", "\nvs ") if narrow else c["name"] for c in reversed(comparisons)]
    axes.set_yticks(range(len(comparisons)), names)
    axes.set_ylim(-0.6, len(comparisons) - 0.3)
    axes.set_xlabel(f"votes for the first method, % ({_level(report)}s)")
    if comparisons:
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=1 if narrow else 3, frameon=False, fontsize=8)
    else:
        axes.text(0.5, 0.5, "no votes yet", transform=axes.transAxes, ha="center")
    return figure_png(figure)
