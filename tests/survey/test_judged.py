"""A study of single pictures: two raters judge them through the server, and the report counts what
they said."""

from __future__ import annotations

import shutil
from collections import Counter

import pytest
from sqlalchemy import select
from statsmodels.stats.proportion import proportion_confint

from superres.survey import schema
from superres.survey.credentials import digest
from superres.survey.exclusions import exclude
from superres.survey.pairs import SHUFFLED
from superres.survey.presentation import report_markdown, report_plot, report_text
from superres.survey.records import read_votes
from superres.survey.report import study_report
from superres.survey.store import Store
from superres.survey.study import GOLD, MAIN, REPEAT
from superres.survey.withdrawal import withdraw
from tests.survey.helpers import RaterClient, add_study, serving, vote_through

IMAGES = 20
TORN = {"exact": {0, 1, 2, 3}, "warm": {0, 1}}
"""Images whose pictures are torn, by method. Rater two also takes image 4 of exact for unequal; all
others are good."""


def judging(store, name):
    """Return a chooser for a rater, who recognises a picture by its place in the store."""
    def choose(token):
        pair, picture, trial = schema.pair, schema.picture, schema.trial
        query = select(picture.c.method, pair.c.image).select_from(
            trial.join(pair).join(picture, picture.c.id == pair.c.picture_a)
        ).where(trial.c.token_hash == digest(token))
        with store.reading() as connection:
            method, image = connection.execute(query).one()
        number = int(image.removeprefix("face"))
        if method == "torn" or number in TORN[method]:
            return "torn"
        return "unequal" if (name, method, number) == ("two", "exact", 4) else "good"

    return choose


@pytest.fixture(scope="module")
def voted(tmp_path_factory):
    """A store with a study of two methods that two raters have judged over HTTP; its file."""
    path = tmp_path_factory.mktemp("voted") / "survey.db"
    store = Store(path, create=True)
    study, _ = add_study(store, "look", tuple(TORN), IMAGES, SHUFFLED, judge=True, trials=40,
                         repeats=2, gold=1, practice=1)
    with serving(store, study) as address:
        for name in ("one", "two"):
            client, choose = RaterClient(address), judging(store, name)
            client.enrol(name)
            while not (trial := client.trial().json())["done"]:
                assert client.picture(trial["token"], "left").content.startswith(b"\x89PNG")
                assert client.picture(trial["token"], "right").status_code == 404
                answer = client.vote(trial["token"], choose(trial["token"])).json()
                assert answer == {"saved": True, "correct": True if trial["practice"] else None}
            client.close()
    store.backup(path.with_name("copy.db"))
    store.close()
    return path.with_name("copy.db")


@pytest.fixture
def sqlite(memory_folder, voted):
    """A copy of the store."""
    store = Store(shutil.copy(voted, memory_folder / "survey.db"))
    yield store
    store.close()


@pytest.fixture
def judged(sqlite):
    return sqlite.study("look")


def test_two_raters_judge_all_pictures_and_the_report_counts_them(sqlite, judged):
    votes = read_votes(sqlite, judged)
    counts = Counter(vote["kind"] for vote in votes)
    assert (counts[MAIN], counts[GOLD], counts[REPEAT]) == (80, 2, 4)
    assert {(vote["method_b"], vote["sha256_b"], vote["left"], vote["chosen_method"])
            for vote in votes} == {("", "", "a", "")}
    orders = [[vote["pair"] for vote in votes if (vote["rater"], vote["kind"]) == (rater, MAIN)]
              for rater in {vote["rater"] for vote in votes}]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(40))
    assert orders[0] != orders[1] != sorted(orders[1])
    report = study_report(sqlite, judged)
    exact, warm = report["result"]["methods"]
    for answer, share in (("torn", 0.2), ("unequal", 0.025), ("good", 0.775)):
        assert exact["answers"][answer]["share"] == share
        assert exact["answers"][answer]["interval"] == pytest.approx(
            proportion_confint(20 * share, 20, 0.05, "wilson"))
    assert (warm["votes"], warm["images"], warm["raters"], warm["same_answers"]) == (40, 20, 2, 1.0)
    alone = sorted(rater["shares"]["unequal"]["share"] for rater in exact["raters_alone"])
    assert alone == [0.0, 0.05]
    (difference,) = report["result"]["differences"]
    assert [difference[key] for key in ("method_a", "method_b", "images")] == ["exact", "warm", 20]
    assert difference["answers"]["torn"]["difference"] == pytest.approx(0.1)
    assert report["result"]["same_answers"] == 39 / 40
    assert report["result"]["repeats"]["share"] == report["result"]["gold"]["share"] == 1
    # By hand: 12 votes torn, 1 unequal and 67 good; 1 of 40 pictures has two different answers.
    expected = 1 - (2 / 80) / (1 - (12 * 11 + 67 * 66) / (80 * 79))
    assert report["result"]["agreement"] == pytest.approx(expected)


def test_the_report_is_told_in_words_tables_and_a_plot(sqlite, judged):
    report = study_report(sqlite, judged)
    lines = report_text(report).splitlines()
    assert lines[1] == ("exact: of 100 pictures, 20 torn or faceless (between 8 and 42), 2 unequal "
                        "(between 0 and 20) and 78 good (between 56 and 90); 2 raters judged 20 "
                        "pictures (95% confidence).")
    assert lines[3].startswith("Two raters give the same answer to 98 of 100 pictures "
                               "(Krippendorff's alpha 0.9")
    assert "80 votes of 2 raters on 20 images." in lines
    markdown = report_markdown(report)
    assert ("| exact | all | 20.0 | (8.1, 41.6) | 2.5 | (0.3, 20.0) | 77.5 | (55.7, 90.4) | 20 "
            "|" in markdown)
    assert "| exact - warm | +10.0 | " in markdown
    assert report_plot(report).startswith(b"\x89PNG")
    fresh, _ = add_study(sqlite, "new", judge=True)
    assert "no votes yet" in report_text(study_report(sqlite, fresh))


def test_raters_who_disagree_or_are_alone_are_warned_of(sqlite):
    study, _ = add_study(sqlite, judge=True, trials=12, repeats=0, practice=0)

    def warnings():
        return [warning["what"] for warning in study_report(sqlite, study)["findings"]["warnings"]]

    vote_through(sqlite, study, "one", lambda *_: "good")
    assert any(text.startswith("One rater voted") for text in warnings())
    vote_through(sqlite, study, "two", lambda _, number: ("torn", "good")[number % 2])
    assert any(text.startswith("Raters agree little (alpha -0.") for text in warnings())
    assert not any("same side" in text for text in warnings())  # there are no sides


def test_exclusion_and_withdrawal_work_as_for_pairs(sqlite, judged):
    before = study_report(sqlite, judged)["result"]
    vote_through(sqlite, judged, "bot", lambda *_: "good")
    exclude(sqlite, judged, "gold<0.8", "missed the torn picture")
    report = study_report(sqlite, judged)
    assert report["result"] == before
    assert report["without_exclusions"]["methods"][0]["raters"] == 3
    assert "Judgements without exclusions" in report_markdown(report)
    rater = report["exclusions"][0]["raters"][0]
    assert withdraw(sqlite, judged, rater).votes == 44
    assert study_report(sqlite, judged)["without_exclusions"] is None
