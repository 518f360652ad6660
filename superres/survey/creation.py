"""Store a study of compared methods, fitted to the number of pairs, and say what raters will
see."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

from superres.config import require
from superres.survey.commands import command_line
from superres.survey.pairs import ComparedMethods, ObviousPairs, make_pairs
from superres.survey.store import Store
from superres.survey.study import GOLD, MAIN, PRACTICE, Comparison, StudySettings
from superres.system.output import counted
from superres.system.progress import say

MAX_WIDTH, MAX_SMOOTH_WIDTH = 256, 512
"""Largest side of a picture that the default scale enlarges to, in CSS pixels. The page enlarges
single pixels further, but no smooth picture."""


def require_free(store: Store, name: str) -> None:
    """Raise ConfigError if the store has a study of this name."""
    require(name not in store.studies(), f"the study {name!r} exists in {store.location} already; "
            "choose another name")


def create_study(
    store: Store, name: str, settings: StudySettings, compared: Sequence[ComparedMethods],
    scale: int | None = None, obvious: ObviousPairs | str | None = None,
) -> str:
    """Store a study, say what it has and the command that serves it, and return the owner's token.

    `settings.trials` and `settings.repeats` are reduced to the number of pairs. `scale` takes the
    place of `settings.scale`; None is the largest that keeps pictures within MAX_WIDTH, at least 1,
    and lets the page enlarge pixels further. `obvious` are the practice
    and gold pairs, as in `make_pairs`.

    Raises:
        ConfigError: the name is taken or not valid.
    """
    made = make_pairs(compared, settings, obvious)
    methods = {method.name: method.record for _, *own in compared for method in own if method}
    counts = Counter(pair.kind for pair in made)
    has_pixels = settings.interpolation == "nearest"
    most = MAX_WIDTH if has_pixels else MAX_SMOOTH_WIDTH
    trials = min(settings.trials, counts[MAIN])
    largest = max(max(pair.pictures[0].shape[:2]) for pair in made)
    settings = dataclasses.replace(settings, trials=trials, repeats=min(settings.repeats, trials),
                                   scale=scale or min(max(1, most // largest), 64),
                                   fill=scale is None and has_pixels)
    _, token = store.create_study(name, settings, [comparison for comparison, _, _ in compared],
                                  methods, made)
    _say_size(store, name, settings, counts, [comparison for comparison, _, _ in compared])
    say(f"next: {command_line('serve', name, store=store.location)}")
    say("the token of the study's owner, which opens the results, follows; it is shown only once")
    return token


def _say_size(
    store: Store, name: str, settings: StudySettings, counts: Counter[str],
    comparisons: Sequence[Comparison],
) -> None:
    """Say what a study has, and how often each rater votes, given its number of pairs by kind."""
    noun, group = ("picture", "method") if settings.judge else ("pair", "comparison")
    main, gold = counts[MAIN], min(settings.gold, counts[GOLD])
    practice = min(settings.practice, counts[PRACTICE])
    say(f"study {name} is in {store.location}: {counted(main, noun)} "
        f"({counted(len(comparisons), group)} of {counted(main // len(comparisons), 'image')})")
    checks = (f", on {counted(gold, f'obvious {noun}')} to test attention, and first on {practice} "
              "for practice" if gold + practice else "")
    raters, swapped = (2, "") if settings.judge else (20, " with the sides swapped")
    votes = round(raters * settings.trials / main)
    say("each rater votes "
        f"{counted(settings.trials + gold + settings.repeats + practice, 'time')}: on "
        f"{settings.trials} of the {counted(main, noun)}, on {settings.repeats} of these "
        f"again{swapped}{checks}; {raters} raters give each {noun} "
        + (f"about {counted(votes, 'vote')}" if votes else "less than one vote on average"))
    if not checks and not settings.judge and settings.gold + settings.practice:
        say("there are no obvious pairs, since pictures with shuffled tiles need not answer this "
            "question; --obvious makes some")
