"""A study of single pictures: two raters judge them through the server, and the report counts what
they said."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from contextlib import closing

import numpy as np
import pytest
from PIL import Image
from sqlalchemy import select
from statsmodels.stats.proportion import proportion_confint
from survey_tools import add_study, vote_on, vote_through

from superres.cli.main import run
from superres.survey import judgements, schema
from superres.survey.credentials import digest
from superres.survey.exclusions import exclude
from superres.survey.export import export_study
from superres.survey.importing import import_study
from superres.survey.pairs import SHUFFLED
from superres.survey.presentation import report_markdown, report_plot, report_text
from superres.survey.records import read_votes
from superres.survey.report import study_report
from superres.survey.store import Store
from superres.survey.study import GOLD, MAIN, REPEAT
from superres.survey.voting import RefusedError, enrol, next_trial
from superres.survey.withdrawal import withdraw
from tests.survey.over_http import RaterClient, serving

IMAGES = 20
TORN = {"exact": {0, 1, 2, 3}, "warm": {0, 1}}
"""Images whose pictures are torn, by method. Rater two also takes image 4 of exact for unequal; all
others are good."""


def judging(store, name):
    """Return a chooser for a rater, who recognises a picture by its place in the store."""
    def choose(token):
        query = select(schema.picture.c.method, schema.pair.c.image) \
            .select_from(schema.trial.join(schema.pair).join(schema.picture, schema.picture.c.id ==
                                                             schema.pair.c.picture_a)) \
            .where(schema.trial.c.token_hash == digest(token))
        with store.reading() as connection:
            method, image = connection.execute(query).one()
        number = int(image.removeprefix("face"))
        if method == "torn" or number in TORN[method]:
            return "torn"
        return "unequal" if (name, method, number) == ("two", "exact", 4) else "good"

    return choose


@pytest.fixture
def judged(sqlite):
    """A study of two methods that two raters have judged over HTTP."""
    study, _ = add_study(sqlite, "look", tuple(TORN), IMAGES, SHUFFLED, judge=True, trials=40,
                         repeats=2, gold=1, practice=1)
    with serving(sqlite, study) as address:
        for name in ("one", "two"):
            client, choose = RaterClient(address), judging(sqlite, name)
            client.enrol(name)
            while not (trial := client.trial().json())["done"]:
                assert client.picture(trial["token"], "left").content.startswith(b"\x89PNG")
                assert client.picture(trial["token"], "right").status_code == 404
                answer = client.vote(trial["token"], choose(trial["token"])).json()
                assert answer == {"saved": True, "correct": True if trial["practice"] else None}
            client.close()
    return study


def test_two_raters_judge_all_pictures_and_the_report_counts_them(sqlite, judged):
    votes = read_votes(sqlite, judged)
    assert [sum(vote["kind"] == kind for vote in votes) for kind in (MAIN, GOLD, REPEAT)] == [80, 2,
                                                                                              4]
    assert {(vote["method_b"], vote["sha256_b"], vote["left"], vote["chosen_method"])
            for vote in votes} == {
                ("", "", "a", "")}
    orders = [[vote["pair"] for vote in votes if (vote["rater"], vote["kind"]) == (rater, MAIN)]
              for rater in {vote["rater"] for vote in votes}]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(40))
    assert orders[0] != orders[1] != sorted(orders[1])
    report = study_report(sqlite, judged)
    exact, warm = report["result"]["methods"]
    assert ([exact["answers"][answer]["share"] for answer in ("torn", "unequal", "good")]
            == [0.2, 0.025, 0.775])
    assert exact["answers"]["torn"]["interval"] == pytest.approx(proportion_confint(4, 20, 0.05,
                                                                                    "wilson"))
    assert (exact["answers"]["unequal"]["interval"]
            == pytest.approx(proportion_confint(0.5, 20, 0.05, "wilson")))
    assert (warm["votes"], warm["images"], warm["raters"], warm["same_answers"]) == (40, 20, 2, 1.0)
    assert sorted(alone["shares"]["unequal"]["share"] for alone in exact["raters_alone"]) == [0.0,
                                                                                              0.05]
    (difference,) = report["result"]["differences"]
    assert (difference["method_a"], difference["method_b"], difference["images"]) == ("exact",
                                                                                      "warm", 20)
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
    assert "no votes yet" in report_text(study_report(sqlite,
                                                      add_study(sqlite, "new", judge=True)[0]))


def test_raters_who_disagree_or_are_alone_are_warned_of(store):
    study, _ = add_study(store, judge=True, trials=12, repeats=0, practice=0)

    def warnings():
        return [warning["what"] for warning in study_report(store, study)["findings"]["warnings"]]

    vote_through(store, study, "one", lambda *_: "good")
    assert any(text.startswith("One rater voted") for text in warnings())
    vote_through(store, study, "two", lambda _, number: ("torn", "good")[number % 2])
    assert any(text.startswith("Raters agree little (alpha -0.") for text in warnings())
    assert not any("same side" in text for text in warnings())  # there are no sides


def test_exclusion_withdrawal_export_and_import_work_as_for_pairs(sqlite, judged, tmp_path):
    path = tmp_path / "votes.csv"
    export_study(sqlite, judged, path)
    with closing(Store(tmp_path / "other.db", create=True)) as other:
        copy = import_study(other, path)
        original, imported = (study_report(store, study) for store,
                              study in ((sqlite, judged), (other, copy)))
    # whose commands name the store
    assert {**imported, "findings": None} == {**original, "findings": None}
    vote_through(sqlite, judged, "bot", lambda *_: "good")
    exclude(sqlite, judged, "gold<0.8", "missed the torn picture")
    report = study_report(sqlite, judged)
    assert report["result"] == original["result"]
    assert report["without_exclusions"]["methods"][0]["raters"] == 3
    assert "Judgements without exclusions" in report_markdown(report)
    rater = report["exclusions"][0]["raters"][0]
    assert withdraw(sqlite, judged, rater).votes == 44
    assert study_report(sqlite, judged)["without_exclusions"] is None


@pytest.mark.parametrize(("change", "message"), [
    (lambda row: row.update(choice="left", chosen="a", chosen_method=row["method_a"]),
     "does not offer the choice 'left'"),
    (lambda row: row.update(chosen="good", choice="torn"), "contradict choice"),
    (lambda row: row.update(sha256_b="0" * 64), "a single picture has no method_b"),
    (lambda row: row.update(left="b"), "a single picture has no method_b|sides swapped"),
    (lambda row: row.update(method_b="third"), "the study has no comparison"),
])
def test_a_judgement_that_was_changed_by_hand_is_refused(sqlite, judged, tmp_path, change, message):
    path = tmp_path / "votes.jsonl"
    export_study(sqlite, judged, path)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    change(next(row for row in rows if row["kind"] == MAIN))
    path.write_text("\n".join(map(json.dumps, rows)))
    with closing(Store(tmp_path / "other.db", create=True)) as other, \
            pytest.raises(Exception, match=message) as caught:
        import_study(other, path)
    assert type(caught.value).__name__ == "InvalidInputError"


@pytest.mark.parametrize(("judge", "choice"), [(True, "left"), (True, "unsure"), (False, "good")])
def test_an_answer_to_another_kind_of_question_is_refused(sqlite, judge, choice):
    study, _ = add_study(sqlite, judge=judge)
    session, _ = enrol(sqlite, study, "me", study.settings.consent_version)
    trial = next_trial(sqlite, study, session)
    with pytest.raises(RefusedError, match=f"the choice '{choice}' is not offered in this study"):
        vote_on(sqlite, study, session, trial["token"], choice)
    assert read_votes(sqlite, study) == []


def test_an_interval_of_paired_differences_covers_as_often_as_it_says():
    rng, covered = np.random.default_rng(0), []
    for _ in range(1000):  # two raters agree on most of 50 pictures; true shares 0.08 and 0.05
        torn = rng.random((2, 50)) < np.array([[0.08], [0.05]])
        seen = np.where(rng.random((2, 2, 50)) < 0.02, ~torn, torn).mean(axis=0)
        truth = 0.96 * 0.08 + 0.02 - (0.96 * 0.05 + 0.02)
        low, high = judgements.paired_interval(list(seen[0] - seen[1]))
        covered.append(low <= truth <= high)
    assert 0.93 <= np.mean(covered) <= 0.995
    low, high = judgements.paired_interval([0.0] * 20)
    assert low == -high < -0.05


def test_one_command_makes_and_serves_the_study(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("ours", "theirs"):
        (tmp_path / name).mkdir()
        for number in range(5):
            Image.fromarray(rng.integers(0, 256, (32, 32, 3)).astype(np.uint8)).save(
                tmp_path / name / f"{number}.png")
    command = [sys.executable, "-m", "superres", "survey", "look", "faces", "--images", "ours",
               "--method", "ours", "--method", "theirs", "--pictures", "4", "--port", "0"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True) as process:
        lines = []
        for line in process.stderr:
            lines.append(line)
            if found := re.search(r"open (\S+) to vote in faces", line):
                break
        client = RaterClient(found[1])
        client.enrol("me")
        assert client.vote(client.trial().json()["token"], "unequal").json()["saved"]
        client.close()
        process.send_signal(signal.SIGINT)
        process.wait(30)
    assert "study faces is in survey.db: 8 pictures (2 methods of 4 images)" in "".join(lines)
    assert ("each rater votes 12 times: on 8 of the 8 pictures, on 4 of these again; 2 "
            "raters" in "".join(lines))
    store = Store(tmp_path / "survey.db")
    assert [vote["choice"] for vote in read_votes(store, store.study("faces"))] == ["unequal"]
    store.close()


def test_single_pictures_have_no_arena_layout_and_no_folder_of_obvious_pairs(sqlite, judged,
                                                                             tmp_path, capsys):
    words = ["survey", "export", "look", "--output", str(tmp_path / "a.csv"), "--layout", "arena",
             "--store", sqlite.location]
    assert run(words) == 2
    assert ("has single pictures, and the arena layout is of pairs; leave out "
            "--layout" in capsys.readouterr().err)
