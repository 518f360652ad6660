"""Blinding: everything that a survey's server sends is searched for information about a picture's
method."""

from __future__ import annotations

import json
import re
from collections import defaultdict

import httpx
import pytest
from scipy import stats
from sqlalchemy import select

from superres.survey import schema
from superres.survey.credentials import digest
from superres.survey.records import answer_of
from superres.survey.server import page
from tests.survey.helpers import RaterClient, add_study, serving

PAGES = {"": "survey.html", "survey.js": "survey.js", "survey.css": "survey.css",
         "results/": "results.html", "results/results.js": "results.js"}
"""Files by the path under which they are served."""


def leaks(kept, found, raters):
    """Read everything that browsers receive, and return what tells a picture's method."""
    answers, shown = [], []  # (path, response); (token, side, response with the picture)
    sides = ("left",) if found.settings.judge else ("left", "right")
    with serving(kept, found) as address:
        for number in range(raters):
            client = RaterClient(address)
            client.enrol(f"blinding-{number}")
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


def secret_words(study, store, answers, shown):
    """Search bodies and headers for names of methods, comparisons, images and kinds, for settings
    and digests."""
    with store.reading() as connection:
        rows = connection.execute(select(schema.picture.c.method, schema.picture.c.image,
                                         schema.picture.c.sha256)
                                  .where(schema.picture.c.study_id == study.id)).all()
    secret = {study.name, "gold", "repeat", *(str(value) for row in rows for value in row)}
    secret |= {comparison.name for comparison in study.comparisons}
    secret |= {str(record[key]) for record in study.methods.values()
               for key in ("folder", "checkpoint", "revision") if key in record}
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


def differences(shown, sides=2):
    """Compare the headers, lengths and PNG chunks of the pictures, and the lengths of their
    tokens."""
    headers = {tuple(entry for entry in answer.headers.multi_items() if entry[0] != "date")
               for *_, answer in shown}
    if len(headers) > 1:
        yield f"pictures have {len(headers)} different sets of headers"
    if len({len(answer.content) for _, _, answer in shown}) > 1:
        yield "pictures differ in length"
    if len({tuple(chunks(answer.content)) for _, _, answer in shown}) > 1:
        yield "pictures differ in PNG chunks"
    if ({name for *_, answer in shown for name, _ in chunks(answer.content)}
            - {b"IHDR", b"IDAT", b"IEND"}):
        yield "pictures have metadata"
    tokens = {token for token, *_ in shown}
    if {len(token) for token in tokens} != {32} or len(tokens) * sides != len(shown):
        yield "tokens have different lengths or are not unique"


def chunks(png):
    """Yield the names and lengths of a PNG's chunks."""
    start = 8
    while start < len(png):
        length = int.from_bytes(png[start:start + 4], "big")
        yield png[start + 4:start + 8], length
        start += 12 + length


def statistical_leaks(study, store, shown):
    """Test whether the response time or the side correlates with the method."""
    query = select(schema.trial.c.token_hash, schema.trial.c.left_side, schema.pair.c.comparison) \
        .select_from(schema.trial.join(schema.pair)).where(schema.pair.c.study_id == study.id)
    with store.reading() as connection:
        trials = {row.token_hash: row for row in connection.execute(query)}
    times = defaultdict(list)
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


@pytest.mark.parametrize("settings", [{}, {"judge": True, "trials": 12}])
def test_nothing_that_a_browser_receives_tells_the_method(sqlite, settings):
    study, _ = add_study(sqlite, methods=("method-one", "method-two"), **settings)
    assert leaks(sqlite, study, raters=1) == []


def test_the_check_of_blinding_finds_what_is_planted(sqlite):
    study, _ = add_study(sqlite, methods=("method-one", "method-two"))
    png = bytes(8) + (0).to_bytes(4, "big") + b"IEND" + bytes(4)
    told = png[:8] + (3).to_bytes(4, "big") + b"tEXt" + b"one" + bytes(4) + png[8:]
    plain = [("x" * 32, side, httpx.Response(200, content=png)) for side in ("left", "right")]
    assert list(differences(plain)) == []
    longer = [plain[0], ("x" * 32, "right", httpx.Response(200, content=told))]
    assert list(differences(longer)) == [
        "pictures have 2 different sets of headers", "pictures differ in length", "pictures differ "
        "in PNG chunks", "pictures have metadata"]
    quiet = [("api/trial", httpx.Response(200, json={"token": "x" * 32}))]
    assert list(secret_words(study, sqlite, quiet, plain)) == []
    for body, headers in (({"pair": "method-one"}, []), ({"src": "/face3"}, []),
                          ({}, [("x-kind", "gold")])):
        loud = [("api/trial", httpx.Response(200, headers=headers, json=body))]
        assert len(list(secret_words(study, sqlite, loud, plain))) == 1
