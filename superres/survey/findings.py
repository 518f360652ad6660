"""Say in plain words what a study has found, what weakens it, and what its owner can do about that."""

from __future__ import annotations

from typing import Any

from superres.survey.anytime import EVEN, MAX_MORE_RATERS
from superres.survey.commands import command_line
from superres.survey.exclusions import applies

FEW_RATERS = 5
"""Below this number of finished raters, no forecast is made."""
WIDE = 0.2
"""Width of an interval from which two methods cannot be called equal yet."""
UNRELIABLE = 0.01
"""P-value below which the votes favour one side."""
CAREFUL = 0.7
"""Share of repeats with the same choice that careful raters reach unless the pictures look alike."""

RATER_RULES = (
    ("same-side>0.9", "votes", 8, "chose the same side in over 90 of 100 votes"),
    ("repeats<0.5", "repeat_votes", 4, "gave another answer to most pairs that they saw twice"),
    ("median-ms<500", "votes", 1, "took under half a second for most votes"),
    ("gold<0.8", "gold_votes", 2, "missed more than one in five of the obvious pairs"),
)
"""Exclusion rule, the count and its minimum from which a rater can be judged by it, and what such raters did."""


def findings(report: dict[str, Any], store: str) -> dict[str, Any]:
    """Return the findings of a report of `superres.survey.report.make_report`, whose study is in `store`.

    They are "sentences", one per comparison; and "warnings", each with "what" is the matter, what to "do", and the
    "command" that does it, or "".
    """
    result = report["result"]
    sentences = [sentence(comparison, report["level"]) for comparison in result["comparisons"]]
    return {"sentences": sentences, "warnings": [*_about_raters(report, store), *_about_votes(result)]}


def sentence(comparison: dict[str, Any], level: float) -> str:
    """Return the answer of a comparison: how many prefer what, how sure that is, and what would settle or flip it."""
    a, b, known = comparison["method_a"], comparison["method_b"], comparison.get("anytime")
    if known is None:
        votes = comparison["votes"]
        return f"{a} or {b}: " + (f"no rater has finished yet ({_count(votes, 'vote')})." if votes else "no votes yet.")
    share, (low, high) = known["preference"], known["interval"]
    if not comparison["fool_rate"] and share < EVEN:
        a, b, share, low, high = b, a, 1 - share, 1 - high, 1 - low
    if comparison["fool_rate"]:
        start = f"{hundredths(share)} of 100 take {a} for the photograph"
    elif share == EVEN:
        start = f"50 of 100 prefer {a}, and 50 prefer {b}"
    else:
        start = f"{hundredths(share)} of 100 prefer {a} to {b}"
    return f"{start}, between {hundredths(low)} and {hundredths(high)} ({100 * level:g}% confidence); {_rest(known)}"


def _rest(known: dict[str, Any]) -> str:
    """Return the end of a sentence: whether the answer is settled, and how far it is from changing."""
    flip = known["votes_to_flip"]
    if known["settled"]:
        text = "this is settled."
        if known["votes_to_unsettle"] and flip:
            text += (f" {_count(known['votes_to_unsettle'], 'vote')} the other way would unsettle it, and "
                     f"{max(flip, known['votes_to_unsettle']):,} would turn it round.")
        return text
    if known["raters"] < FEW_RATERS:
        text = f"too early to say, with {_count(known['raters'], 'finished rater')}."
    elif known["more_raters"] is None and known["interval"][1] - known["interval"][0] > WIDE:
        text = "about even so far; look again after more raters."
    elif known["more_raters"] is None:
        text = f"over {MAX_MORE_RATERS:,} more raters would be needed to settle it: take the two as equal."
    else:
        text = f"{_count(known['more_raters'], 'more rater')} would settle it, if they vote like those so far."
    return text + (f" {_count(flip, 'vote')} the other way would turn it round." if flip else "")


def hundredths(share: float) -> str:
    """Return a share as a number of 100; with a decimal where rounding would hide that it is not exactly 50."""
    text = f"{100 * share:.0f}"
    return text if text != "50" or share == EVEN else f"{100 * share:.1f}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _warning(what: str, do: str, command: str = "") -> dict[str, str]:
    return {"what": what, "do": do, "command": command}


def _about_raters(report: dict[str, Any], store: str) -> list[dict[str, str]]:
    """Return a warning for each rule that fits raters who are not excluded."""
    found = []
    for rule, count, least, text in RATER_RULES:
        raters = [rater for rater in report["raters"] if rater["excluded_by"] is None and rater[count] >= least
                  and applies(rule, rater["rater"], rater)]
        if raters:
            found.append(_warning(
                f"{_count(len(raters), 'rater')} {text}.",
                "To leave such raters out, and see the result with and without them:",
                command_line("exclude", report["study"], rule, "--reason", text, store=store)))
    return found


def _about_votes(result: dict[str, Any]) -> list[dict[str, str]]:
    """Return warnings about all votes together."""
    found = []
    sides, repeats = result["sides"], result["repeats"]
    if sides and sides["p_binomial"] < UNRELIABLE:
        side = "left" if sides["share"] > EVEN else "right"
        share = max(sides["share"], 1 - sides["share"])
        found.append(_warning(
            f"The {side} picture was chosen in {hundredths(share)} of 100 votes (on phones, left is above right).",
            "No answer is favoured by this, since sides are drawn at random, but it hides differences: ask for an "
            "answer that does not depend on the order, or collect more votes."))
    if repeats and repeats["interval"][1] < CAREFUL:
        found.append(_warning(
            f"Pairs that raters saw twice got the same answer {hundredths(repeats['share'])} times in 100; guessing "
            "gives 50.",
            "The difference may be too small to see, or the question unclear: show the pictures larger (--scale), or "
            "make a new study with a plainer question."))
    counts = [c["anytime"]["raters"] for c in result["comparisons"] if c.get("anytime")]
    if counts and min(counts) < FEW_RATERS:
        found.append(_warning(f"Only {_count(min(counts), 'rater')} finished.",
                              f"Ask at least {FEW_RATERS} people, better 20: few raters say little about others."))
    if counts and (open_raters := result["raters"] - max(counts)) > 0:
        found.append(_warning(
            f"{_count(open_raters, 'rater')} did not finish: the first sentence leaves them out so far.",
            "Wait: they count when they finish, or an hour after their last vote. The figures below have all votes."))
    return found
