"""Search everything that a survey's server sends for information about a picture's method."""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Iterator

import httpx
from scipy import stats
from sqlalchemy import select

from superres.survey import schema
from superres.survey.credentials import digest
from superres.survey.records import answer_of
from superres.survey.server import page
from superres.survey.store import Store
from superres.survey.study import Study
from tests.survey.over_http import RaterClient, serving

Shown = tuple[str, str, httpx.Response]
"""Token of a trial, side, and the response with the picture there."""

PAGES = {"": "survey.html", "survey.js": "survey.js", "survey.css": "survey.css",
         "results/": "results.html", "results/results.js": "results.js"}
"""Files by the path under which they are served."""


def leaks(kept: Store, found: Study, raters: int) -> list[str]:
    """Read everything that browsers receive, and return what tells a picture's method."""
    answers: list[tuple[str, httpx.Response]] = []
    shown: list[Shown] = []
    sides = ("left",) if found.settings.judge else ("left", "right")
    with serving(kept, found) as address:
        for number in range(raters):
            client = RaterClient(address)
            client.enrol(f"blinding-{os.getpid()}-{number}")
            answers.extend((path, client.ask(path)) for path in (*PAGES, "api/study", "nowhere"))
            while not (trial := client.trial()).json()["done"]:
                token = trial.json()["token"]
                shown.extend((token, side, client.picture(token, side)) for side in sides)
                answers += [("api/trial", trial),
                            ("api/votes", client.vote(token, found.settings.choices[0]))]
            answers.append(("api/trial", trial))
            client.close()
    return [*secret_words(found, kept, answers, shown), *differences(shown, len(sides)),
            *statistical_leaks(found, kept, shown)]


def secret_words(
    study: Study, store: Store, answers: list[tuple[str, httpx.Response]], shown: list[Shown],
) -> Iterator[str]:
    """Search bodies and headers for names of methods, comparisons, images and kinds, for settings
    and digests."""
    with store.reading() as connection:
        rows = connection.execute(select(schema.picture.c.method, schema.picture.c.image,
                                         schema.picture.c.sha256)
                                  .where(schema.picture.c.study_id == study.id)).all()
    secret = {study.name, "gold", "repeat", *(str(value) for row in rows for value in row)}
    secret |= {comparison.name for comparison in study.comparisons}
    secret |= {str(record[key]) for record in study.methods.values()
               for key in ("folder", "checkpoint", "revision")
               if key in record}
    words = re.compile("|".join(rf"(?<!\w){re.escape(word)}(?!\w)" for word in secret))
    tokens = {token for token, _, _ in shown}
    wording = [study.settings.title, study.settings.question, study.settings.consent,
               study.settings.thanks]
    for path, answer in answers:
        text = answer.text
        if path in PAGES:
            if answer.content != page(PAGES[path]).body:
                yield f"the page {path!r} is not the common file of all studies"
            text = ""
        # The owner's texts may contain "camera", and random tokens may contain any word.
        for own in (*wording, *tokens):
            text = text.replace(json.dumps(own, ensure_ascii=False), "")
        for word in set(words.findall(f"{answer.headers.multi_items()} {text}")):
            yield f"{word!r} in the response to {path!r}"
    for _, side, answer in shown:
        if words.search(str(answer.headers.multi_items())):
            yield f"a name in the headers of a {side} picture"


def differences(shown: list[Shown], sides: int = 2) -> Iterator[str]:
    """Compare the headers, lengths and PNG chunks of the pictures, and the lengths of their
    tokens."""
    headers = {tuple(entry for entry in answer.headers.multi_items() if entry[0] != "date") for _,
               _, answer in shown}
    if len(headers) > 1:
        yield f"pictures have {len(headers)} different sets of headers"
    if len({len(answer.content) for _, _, answer in shown}) > 1:
        yield "pictures differ in length"
    if len({tuple(chunks(answer.content)) for _, _, answer in shown}) > 1:
        yield "pictures differ in PNG chunks"
    if {name for _, _, answer in shown for name, _ in chunks(answer.content)} - {b"IHDR", b"IDAT",
                                                                                 b"IEND"}:
        yield "pictures have metadata"
    if ({len(token) for token, _, _ in shown} != {32} or len({token for token, _, _ in shown})
        * sides != len(shown)):
        yield "tokens have different lengths or are not unique"


def chunks(png: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield the names and lengths of a PNG's chunks."""
    start = 8
    while start < len(png):
        length = int.from_bytes(png[start:start + 4], "big")
        yield png[start + 4:start + 8], length
        start += 12 + length


def statistical_leaks(study: Study, store: Store, shown: list[Shown]) -> Iterator[str]:
    """Test whether the response time or the side correlates with the method."""
    query = select(schema.trial.c.token_hash, schema.trial.c.left_side, schema.pair.c.comparison) \
        .select_from(schema.trial.join(schema.pair)).where(schema.pair.c.study_id == study.id)
    with store.reading() as connection:
        trials = {row.token_hash: row for row in connection.execute(query)}
    times: dict[str, list[float]] = defaultdict(list)
    for token, side, answer in shown:
        trial = trials[digest(token)]
        name = trial.comparison if study.settings.judge else answer_of(side, trial.left_side)
        times[name].append(answer.elapsed.total_seconds())
    names = ([comparison.method_a for comparison in study.comparisons] if study.settings.judge
             else ["a", "b"])
    p_time = float(stats.mannwhitneyu(*(times[name] for name in names)).pvalue)
    lefts = [trials[digest(token)].left_side == "a" for token, side, _ in shown if side == "left"]
    p_side = 1.0 if study.settings.judge else float(stats.binomtest(sum(lefts), len(lefts)).pvalue)
    if min(p_time, p_side) < 1e-4:
        yield "the response time or the side reveals the method"
