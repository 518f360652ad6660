"""Present a study's report in plain words (what it has found, what weakens it, what to do), tables
and a plot."""

from __future__ import annotations

from typing import Any

from superres.survey import judged_presentation as judged
from superres.survey.anytime import EVEN, MAX_MORE_RATERS
from superres.survey.commands import command_line
from superres.survey.exclusions import applies
from superres.survey.statistics import FEW_RATERS
from superres.survey.wording import (
    about_repeats,
    as_warning,
    hundredths,
    interval_text,
    level_text,
    p_text,
    percent,
    plot_of,
    section,
    times_text,
)
from superres.system.output import counted, markdown_table, number_text

Report = dict[str, Any]
"""A report of `superres.survey.report.study_report`."""

WIDE = 0.2
"""Width of an interval from which two methods cannot be called equal yet."""
UNRELIABLE = 0.01
"""P-value below which the votes favour one side."""
RATER_RULES = (
    ("same-side>0.9", "votes", 8, "chose the same side in over 90 of 100 votes"),
    ("repeats<0.5", "repeat_votes", 4, "gave another answer to most pairs that they saw twice"),
    ("median-ms<500", "votes", 1, "took under half a second for most votes"),
    ("gold<0.8", "gold_votes", 2, "missed more than one in five of the obvious pairs"),
)
"""Exclusion rule, the count and its minimum from which a rater can be judged by it, and what such
raters did."""

ANYTIME_NOTE = (
    "The first sentence, raters' mean and the any-time interval use one value per finished rater. "
    "The any-time interval (betting confidence sequence) is for the pictures of this study and "
    "stays valid however often you look, so you may stop as soon as it excludes 50. The other "
    "intervals hold for one look at a number of votes that was fixed before. "
)
INTERVALS_NOTE = (
    "Use the two-way interval: it treats raters and images as random samples. Wilson's interval "
    "assumes independent votes, as the paper's bootstrap does, and is too narrow if raters or "
    "images differ. \"Can't tell\" counts as half a vote for each side; the column decided, "
    "Wilson's interval and the binomial test leave it out."
)

PLOTTED_INTERVALS = (
    ("two_way", "two-way (raters, images)", 0.0, 3.0, "C0"),
    ("anytime", "any time (these pictures)", 0.22, 1.5, "C2"),
)
"""Intervals in the plot: kind, label, height above the comparison's line, width, colour."""


def findings(report: Report, store: str) -> dict[str, Any]:
    """Return the findings of a report, whose study is in `store`.

    They are "sentences", one per comparison, or one per judged method and one on agreement; and
    "warnings", each with "what" is the matter, what to "do", and the "command" that does it, or "".
    """
    result, warnings = report["result"], []
    for rule, count, least, text in RATER_RULES:
        raters = [rater for rater in report["raters"] if rater["excluded_by"] is None
                  and rater[count] >= least
                  and applies(rule, rater["rater"], rater)]
        if raters:
            warnings.append(as_warning(
                f"{counted(len(raters), 'rater')} {text}.",
                "To leave such raters out, and see the result with and without them:",
                command_line("exclude", report["study"], rule, "--reason", text, store=store)))
    if report["settings"]["judge"]:
        return {"sentences": judged.sentences(report),
                "warnings": [*warnings, *judged.about_votes(result)]}
    sentences = [sentence(comparison, report["level"]) for comparison in result["comparisons"]]
    return {"sentences": sentences,
            "warnings": [*warnings, *_about_votes(result, report["settings"]["allow_unsure"])]}


def sentence(comparison: dict[str, Any], level: float) -> str:
    """Return the answer of a comparison: how many prefer what, its interval, and what would settle
    or reverse it."""
    a, b, known = comparison["method_a"], comparison["method_b"], comparison.get("anytime")
    if known is None:
        votes = comparison["votes"]
        what = f"no rater has finished yet ({counted(votes, 'vote')})" if votes else "no votes yet"
        return f"{a} or {b}: {what}."
    share, (low, high) = known["preference"], known["interval"]
    if not comparison["fool_rate"] and share < EVEN:
        a, b, share, low, high = b, a, 1 - share, 1 - high, 1 - low
    if comparison["fool_rate"]:
        start = f"{a} is taken for the photograph in {hundredths(share)} of 100 votes"
    elif share == EVEN:
        start = f"{a} and {b} are chosen in 50 of 100 votes each"
    else:
        start = f"{a} is preferred to {b} in {hundredths(share)} of 100 votes"
    return (f"{start}, on average over {counted(known['raters'], 'rater')}, between "
            f"{hundredths(low)} and {hundredths(high)} ({100 * level:g}% confidence); "
            f"{_rest(known)}")


def _rest(known: dict[str, Any]) -> str:
    """Return the end of a sentence: whether the answer is settled, and how far it is from
    changing."""
    flip, unsettle = known["votes_to_flip"], known["votes_to_unsettle"]
    if known["settled"]:
        return "this is settled." + (f" {counted(unsettle, 'vote')} the other way would unsettle "
                                     f"it, and {max(flip, unsettle):,} would turn it "
                                     "round." if unsettle and flip else "")
    if known["raters"] < FEW_RATERS:
        text = f"too early to say, with {counted(known['raters'], 'finished rater')}."
    elif known["more_raters"] is None and known["interval"][1] - known["interval"][0] > WIDE:
        text = "about even so far; look again after more raters."
    elif known["more_raters"] is None:
        text = (f"over {MAX_MORE_RATERS:,} more raters would be needed to settle it: take the two "
                "as equal.")
    else:
        text = (f"{counted(known['more_raters'], 'more rater')} would settle it, if they vote like "
                "those so far.")
    return text + (f" {counted(flip, 'vote')} the other way would turn it round." if flip else "")


def _about_votes(result: dict[str, Any], unsure: bool) -> list[dict[str, str]]:
    """Return warnings about all votes together; `unsure` says whether "can't tell" was an
    answer."""
    found, sides = [], result["sides"]
    if sides and sides["p_binomial"] is not None and sides["p_binomial"] < UNRELIABLE:
        side = "left" if sides["share"] > EVEN else "right"
        share = max(sides["share"], 1 - sides["share"])
        found.append(as_warning(
            f"The {side} picture was chosen in {hundredths(share)} of 100 votes (on phones, left "
            "is above right).",
            "No answer is favoured by this, since sides are drawn at random, but it hides "
            "differences: ask for an answer that does not depend on the order, or collect more "
            "votes."))
    found += about_repeats(
        result["repeats"], "Pairs", "three answers gives 33" if unsure else "two answers gives 50",
        "The difference may be too small to see, or the question unclear: show the pictures larger "
        "(--scale), or make a new study with a plainer question.")
    counts = [c["anytime"]["raters"] for c in result["comparisons"] if c.get("anytime")]
    if counts and min(counts) < FEW_RATERS:
        found.append(as_warning(f"Only {counted(min(counts), 'rater')} finished.",
                                f"Ask at least {FEW_RATERS} people, better 20: few raters say "
                                "little about others."))
    if counts and (open_raters := result["raters"] - max(counts)) > 0:
        found.append(as_warning(
            f"{counted(open_raters, 'rater')} did not finish: the first sentence leaves them out "
            "so far.",
            "Wait: they count when they finish, or an hour after their last vote. The figures "
            "below have all votes."))
    return found


def sections(report: Report) -> list[dict[str, Any]]:
    """Return the tables of a report, each with a "heading", "header", "rows" and a "note" (or "").

    The result without exclusions has only the table of preferences, or of judgements.
    """
    if report["settings"]["judge"]:
        return [*judged.sections(report), *_exclusions(report)]
    result = report["result"]
    fooled = ", ".join(c["method_a"] for c in result["comparisons"] if c["fool_rate"])
    note = ANYTIME_NOTE + INTERVALS_NOTE
    if fooled:
        note += f" The preference over camera is the fool rate ({fooled})."
    found = [_preferences("Preference for method a", report, result, note)]
    if report["without_exclusions"]:
        found.append(_preferences("Preference without exclusions", report,
                                  report["without_exclusions"], ""))
    found += [_tests(result), _rater_quality(result)]
    if result["strengths"]:
        rows = [[s["method"], f"{s['log_strength']:+.2f}", f"({s['interval'][0]:+.2f}, "
                 f"{s['interval'][1]:+.2f})"]
                for s in result["strengths"]]
        ties = result["tie_parameter"]
        text = ("Davidson's model, which without ties is Bradley and Terry's. The mean over "
                "methods is 0. Of raters who can tell, a share of 1 / (1 + exp(B - A)) prefers A "
                "to B. The intervals resample raters."
                + (f" Tie parameter: {ties:.2f}." if ties else ""))
        found.append(section("Strengths", ["method", "log strength", level_text(report["level"])],
                             rows, text))
    return [*found, *_exclusions(report)]


def _exclusions(report: Report) -> list[dict[str, Any]]:
    rows = [[str(e["number"]), e["rule"] + (" (revoked)" if e["revoked"] else ""), e["reason"],
             e["recorded"], str(len(e["raters"]))] for e in report["exclusions"]]
    return ([section("Exclusions", ["number", "rule", "reason", "recorded", "raters"], rows)]
            if rows else [])


def _preferences(heading: str, report: Report, analysis: Report, note: str) -> dict[str, Any]:
    rows = []
    for c in analysis["comparisons"]:
        intervals, known = c.get("intervals", {}), c.get("anytime") or {}
        rows.append([
            c["name"], percent(c.get("preference")), interval_text(intervals.get("two_way")),
            percent(known.get("preference")), interval_text(known.get("interval")),
            percent(c.get("preference_decided")), interval_text(intervals.get("wilson")),
            str(c["votes"]), str(c["raters"]), str(known.get("raters", 0)), str(c["images"])])
    level = level_text(report["level"])
    header = ["a vs b", "% for a", f"two-way {level}", "raters' mean", f"any-time {level}",
              "decided", "Wilson", "votes", "raters", "finished", "images"]
    return section(heading, header, rows, note)


def _tests(analysis: Report) -> dict[str, Any]:
    rows = []
    withheld = {c["withheld"]: None for c in analysis["comparisons"] if c.get("withheld")}
    for c in analysis["comparisons"]:
        times = c.get("response_ms")
        shares = "rater_correlation", "image_correlation", "agreement"
        rows.append([
            c["name"], p_text(c.get("p_two_way")), p_text(c.get("p_binomial")),
            number_text(c.get("design_effect"), 1),
            *(number_text(c.get(key), 3) for key in shares), str(c["unsure"]),
            number_text(c.get("tie_parameter"), 2),
            number_text(times and times["median"] / 1000, 1)])
    return section("Details", ["a vs b", "p two-way", "p binomial",
                               "design effect", "rater correlation", "image correlation", "alpha",
                               "can't tell", "tie parameter", "median s"], rows,
                   "The design effect is the two-way variance relative to independent votes. Alpha "
                   "is Krippendorff's (nominal). The tie parameter is Davidson's: votes \"can't "
                   "tell\" per geometric mean of the votes for a and for b."
                   + "".join(f" {text[0].upper()}{text[1:]}." for text in withheld))


def _rater_quality(analysis: Report) -> dict[str, Any]:
    rows = [[name, percent(share["share"]), interval_text(share["interval"]), str(share["count"]),
             p_text(share.get("p_binomial"))] if share else [name, "-", "-", "0", "-"]
            for name, share in (("left side chosen", analysis["sides"]),
                                ("gold answered correctly", analysis["gold"]),
                                ("repeats with the same choice", analysis["repeats"]))]
    note = (f"Krippendorff's alpha over all pairs: {number_text(analysis['agreement'], 3)}."
            + times_text(analysis["response_ms"]))
    return section("Rater quality", ["", "%", "Wilson", "votes", "p binomial"], rows, note)


def report_text(report: Report) -> str:
    """Return a report in some ten plain lines: the answers, how many voted, warnings, and what to
    do."""
    lines = [f"{report['study']}: {report['settings']['question']}",
             *report["findings"]["sentences"], counts_line(report)]
    for warning in report["findings"]["warnings"]:
        lines.append(f"! {warning['what']} {warning['do']}")
        lines += [f"    {warning['command']}"] if warning["command"] else []
    return "\n".join(lines)


def counts_line(report: Report) -> str:
    """Return how many votes and raters a report is about, and how many are excluded or withdrew."""
    result, withdrawn = report["result"], len(report["withdrawals"])
    excluded = sum(len(exclusion["raters"]) for exclusion in report["exclusions"])
    parts = [f"{counted(result['votes'], 'vote')} of {counted(result['raters'], 'rater')} on "
             f"{counted(result['images'], 'image')}",
             *([f"{counted(excluded, 'rater')} excluded"] if excluded else []),
             *([f"{counted(withdrawn, 'rater')} withdrew, whose votes are erased"] if withdrawn
               else [])]
    return "; ".join(parts) + "."


def report_markdown(report: Report) -> str:
    """Return a report as Markdown: the answer and warnings in plain words, then the tables."""
    found = report["findings"]
    head = [f"# {report['study']}", *found["sentences"],
            *(f"- **{warning['what']}** {warning['do']}"
              + (f" `{warning['command']}`" if warning["command"] else "")
              for warning in found["warnings"]),
            counts_line(report), f"> {report['settings']['question']}"]
    body = [f"### {section['heading']}\n\n{markdown_table(section['header'], section['rows'])}"
            + (f"\n\n{section['note']}" if section["note"] else "") for section in sections(report)]
    return "\n\n".join([*head, "## Figures for experts", *body]) + "\n"


def report_plot(report: Report, narrow: bool = False) -> bytes:
    """Return a PNG with each comparison's preference and intervals; see `plot_of`."""
    if report["settings"]["judge"]:
        return judged.report_plot(report, narrow)
    comparisons = [c for c in report["result"]["comparisons"] if c["votes"]]

    def draw(axes: Any) -> None:  # noqa: ANN401 -- of matplotlib
        for place, comparison in enumerate(reversed(comparisons)):
            middle = 100 * comparison["preference"]
            known = {**comparison["intervals"],
                     "anytime": (comparison["anytime"] or {}).get("interval")}
            for kind, _, offset, width, color in PLOTTED_INTERVALS:
                if known[kind]:
                    axes.plot([100 * end for end in known[kind]], [place + offset] * 2,
                              linewidth=width, color=color)
            axes.plot(middle, place, marker="o", color="C0", markersize=7)
            axes.annotate(f"{middle:.1f}", (middle, place), (0, 7), textcoords="offset points",
                          ha="center", fontsize=8)
        for _, label, _, width, color in PLOTTED_INTERVALS:
            axes.plot([], [], linewidth=width, color=color, label=label)
        axes.axvline(50, color="grey", linewidth=1, linestyle=":")
        axes.set_ylim(-0.6, len(comparisons) - 0.3)

    names = [c["name"].replace(" vs ", "\nvs ") if narrow else c["name"] for c in comparisons]
    return plot_of(names, draw, f"votes for the first method, % ({level_text(report['level'])}s)",
                   narrow, 1 if narrow else 3)
