"""Tables of scores as text, a line per method."""

from __future__ import annotations

from superres.evaluation.intervals import Entries

Methods = dict[str, Entries]
"""Scores by name, by method."""


def table_lines(title: str, methods: Methods, columns: dict[str, tuple[str, str]]) -> list[str]:
    """Return the scores of `columns` by method as the lines of a text table.

    `columns` has the title and the form of each score by name; `title` is that of the methods. A
    score that no method has gets no column, and a method without any of the scores no line; "-"
    stands for a score that a method lacks.
    """
    methods = {method: scores for method, scores in methods.items()
               if columns.keys() & scores.keys()}
    shown = {name: column for name, column in columns.items()
             if any(name in scores for scores in methods.values())}
    rows = {title: [head for head, _ in shown.values()]}
    for method, scores in methods.items():
        rows[method] = [score_text(scores, name, form) for name, (_, form) in shown.items()]
    first = max(map(len, rows))
    widths = [max(map(len, cells)) + 2 for cells in zip(*rows.values(), strict=True)]
    return [method.ljust(first) + "".join(map(str.rjust, cells, widths))
            for method, cells in rows.items()]


def score_text(scores: dict[str, float | None], name: str, form: str) -> str:
    """Return the score `name` with its interval, if it has one, as text, or "-"; `form` formats a
    number."""
    value, half = scores.get(name), scores.get(f"{name}_half_width")
    if value is None:
        return "-"
    return format(value, form) + ("" if half is None else f" +-{format(half, form.lstrip('+'))}")
