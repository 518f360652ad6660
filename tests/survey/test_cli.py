"""`superres survey`: what each command does, and one line for every mistake."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from fakes import FakeUpscaler
from PIL import Image

from superres.cli.main import run
from superres.evaluation.survey_methods import parse_spec, read_images
from superres.survey.commands import DEFAULT_STORE, STORE_VARIABLE, command_line
from superres.survey.credentials import link_key
from superres.survey.exclusions import read_exclusions
from superres.survey.records import read_votes
from superres.survey.store import Store
from superres.system.asgi import how_to_leave, local_address
from superres.tasks.faces import FaceTask, area_reduce
from tests.absent import superres_without
from tests.survey.helpers import RaterClient, enter, vote_through

ROOT = Path(__file__).parents[2]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty current folder with two folders of the same five pictures, and five photographs."""
    rng = np.random.default_rng(0)
    for folder, size in (("ours", 32), ("theirs", 32), ("photos", 40)):
        (tmp_path / folder).mkdir()
        for number in range(5):
            picture = rng.integers(0, 256, (size, size, 3)).astype(np.uint8)
            Image.fromarray(picture).save(tmp_path / folder / f"face{number}.png")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def decoding(monkeypatch):
    """Replace the pipeline by a fake that knows one checkpoint."""
    importlib.import_module("superres.pipeline.auto")  # which needs the real one
    module = ModuleType("superres.pipeline.upscaler")
    module.Upscaler = type("Loader", (),
                           {"load": staticmethod(lambda name, device: FakeUpscaler())})
    monkeypatch.setitem(sys.modules, "superres.pipeline.upscaler", module)


def survey(*words):
    return run(["survey", *map(str, words)])


@pytest.mark.parametrize("words", [
    ("create", "s", "--method-a", "ours", "--method-b", "photos"),
    ("create", "a/b", "--method-a", "ours", "--method-b", "theirs")])
def test_a_command_that_fails_makes_no_store_and_leaves_one_that_exists(words, here):
    assert survey(*words, "--store", "new.db") == 2
    assert not list(here.glob("new.db*"))
    assert survey("migrate", "--store", "old.db") == 0
    assert survey(*words, "--store", "old.db") == 2
    assert survey("migrate", "--store", "old.db") == 0
    assert not list(here.glob("new.db*"))
    assert (here / "old.db").exists()


def create(*words):
    return survey("create", "study", "--trials", 5, "--gold", 1, "--repeats", 1, "--practice", 1,
                  *words)


def stored_study():
    store = Store("survey.db")
    study = store.study("study")
    store.close()
    return study


OURS = ("--method-a", "ours", "--method-b")
FOLDERS = (*OURS, "theirs")


def refusal(capsys, *words, lines=1):
    capsys.readouterr()
    assert survey(*words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    *skipped, line = captured.err.splitlines()
    assert len(skipped) == lines - 1
    assert all(other.startswith("superres: skipped: ") for other in skipped)
    assert line.startswith("superres: ")
    return line


@pytest.fixture
def printed(capsys):
    """Run a command and return what it prints."""
    def printed(*words):
        capsys.readouterr()
        assert survey(*words) == 0
        return "".join(capsys.readouterr())

    return printed


def test_a_question_gets_the_obvious_pairs_that_answer_it(here, capsys):
    words = (*FOLDERS, "--question", "Which is sharper?")
    for more, told in ((("--gold", 2), "--gold needs pairs with an obvious answer to this "),
                       (("--obvious", "nowhere"), "nowhere has no folders right and wrong")):
        assert told in refusal(capsys, "create", "own", *words, *more)
    for side in ("right", "wrong"):
        shutil.copytree("ours", f"sharp/{side}")
    Path("sharp/wrong/face0.png").unlink()
    for name, more, votes, told in (
            ("none", (), 9, "there are no obvious pairs"),
            ("own", ("--obvious", "sharp"), 17, "skipped: wrong lacks face0"),
            ("tiles", ("--obvious", "shuffled"), 17, "4 obvious pairs to test attention")):
        assert survey("create", name, *words, *more) == 0
        printed = capsys.readouterr().err
        assert f"each rater votes {votes} times" in printed
        assert told in printed


def test_a_study_of_two_folders_from_creation_to_a_withdrawal(here, capsys, printed):
    assert create(*FOLDERS) == 0
    captured = capsys.readouterr()
    assert ("5 pairs (1 comparison of 5 images)\nsuperres: each rater votes 8 times: on 5 of the 5 "
            "pairs" in captured.err)
    assert "superres: next: superres survey serve study\n" in captured.err
    store = Store("survey.db")
    study = store.study("study")
    assert store.is_owner(study, captured.out.strip())
    assert study.methods == {"ours": {"folder": "ours"}, "theirs": {"folder": "theirs"}}
    for rater in ("one", "two"):
        vote_through(store, study, rater)
    plain = printed("report", "study").splitlines()
    assert plain[0] == "study: Which of the two pictures was more likely taken by a camera?"
    assert "10 votes of 2 raters on 5 images." in plain
    assert len(plain) < 20
    assert "|" not in "".join(plain)
    report = printed("report", "study", "--json")
    assert printed("report", "study", "--output", "report", "--tables").startswith("# study")
    assert sorted(path.suffix for path in Path("report").iterdir()) == [".json", ".md", ".png"]
    assert Path("report/report.json").read_text() == report
    printed("export", "study", "--output", "out/votes.jsonl")
    assert len(Path("out/votes.jsonl").read_text().splitlines()) == 2 * 8
    for words, expected in (
            (["same-side>0.9", "--reason", "one key"], "2 raters are excluded now, by 1: same"),
            (["--revoke", 1, "--reason", "pilot"], "0 raters are excluded now, by no rule"),
            (["--rater-id", "one", "--reason", "asked"], "1 rater is excluded now, by 3: rater=")):
        assert expected in printed("exclude", "study", *words)
    assert "and 8 votes are erased" in printed("withdraw", "study", "--rater-id", "two")
    assert ("0 votes of 0 raters on 0 images; 1 rater excluded; 1 rater withdrew, whose votes are "
            "erased." in printed("report", "study"))
    assert store.is_owner(study, printed("token", "study").strip())
    assert "is a store without what was deleted" in printed("migrate")
    store.close()


def test_prolifics_submissions_leave_out_who_gave_up_and_name_whom_to_approve(here, capsys):
    assert create(*FOLDERS) == 0
    store, study = Store("survey.db"), stored_study()
    for rater in ("done", "gone", "slow", "approved", "barred"):
        vote_through(store, study, rater)
    enter(store, study, "begun")
    assert survey("exclude", "study", "--rater-id", "barred", "--reason", "a friend") == 0
    rows = {"done": "AWAITING REVIEW", "gone": "RETURNED", "slow": "TIMED-OUT",
            "approved": "APPROVED", "begun": "AWAITING REVIEW", "barred": "AWAITING REVIEW",
            "elsewhere": "AWAITING REVIEW"}
    Path("p.csv").write_text("\ufeffSubmission id,Participant id,Status,Place\r\n" + "".join(
        f'1,{name},{status},"London, UK"\r\n' for name, status in rows.items()))
    for _ in range(2):  # the second time, the rules stand already
        capsys.readouterr()
        assert survey("exclude", "study", "--prolific", "p.csv") == 0
        shown = capsys.readouterr()
        assert shown.out == "done\n"
        for text in ("2 returned or timed out",
                     "1 submission awaiting review, but not finished here: begun",
                     "1 submission awaiting review, but excluded by a rule: barred",
                     "1 participant of p.csv did not enrol in study", "3 raters are excluded now"):
            assert text in shown.err
    reasons = [rule.reason for rule in read_exclusions(store, study)]
    assert reasons == ["a friend", *["returned or timed out at Prolific"] * 2]
    store.close()


@pytest.mark.parametrize(("content", "message"), [
    (None, "cannot read p.csv: No such file or directory; export the submissions"),
    (b"Participant,Status\nx,RETURNED\n", "p.csv has no column 'Participant id'; export the "),
    (b"participant_id\nx\n", "p.csv has no column 'Status'"),
    (b"", "p.csv is not CSV with a header"), (b"\xff\xfe\x00", "p.csv is not CSV with a header"),
    (b'Participant id,Status\n"x', "p.csv is not CSV"),
    (b"Participant id,Status\nx\n", "p.csv: row 2 has 1 values, not 2"),
    (b"Participant id,Status\n,RETURNED\n", "p.csv: a participant id must be 1 to 100 printable"),
])
def test_a_file_that_is_not_prolifics_is_one_line_and_excludes_nobody(content, message, here,
                                                                      capsys):
    assert create(*FOLDERS) == 0
    capsys.readouterr()
    if content is not None:
        Path("p.csv").write_bytes(content)
    assert survey("exclude", "study", "--prolific", "p.csv") == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.err.count("\n") == 1
    assert shown.out == ""


def test_one_command_makes_a_study_of_single_pictures_and_serves_it(here, capsys):
    command = [sys.executable, "-m", "superres", "survey", "judge", "faces", "--images", "ours",
               "--method", "ours", "--method", "theirs", "--pictures", "4", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
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
    said = "".join(lines)
    for text in ("study faces is in survey.db: 8 pictures (2 methods of 4 images)",
                 "each rater votes 12 times: on 8 of the 8 pictures, on 4 of these again; 2 "
                 "raters"):
        assert text in said
    store = Store("survey.db")
    assert [vote["choice"] for vote in read_votes(store, store.study("faces"))] == ["unequal"]
    store.close()
    assert "has single pictures, and the arena layout is of pairs; leave out --layout" in refusal(
        capsys, "export", "faces", "--output", "a.csv", "--layout", "arena")


def test_decoder_settings_enlargements_and_photographs_are_methods(here, decoding):
    assert create("--images", "photos", "--pairs", 3, "--method-a",
                  "name=k6,accept=distance,epsilon=2,block_size=6", "--method-a", "bicubic",
                  "--method-b", "camera", "--seed", 5) == 0
    study = stored_study()
    assert [pair.name for pair in study.comparisons] == ["k6 vs camera", "bicubic vs camera"]
    record = study.methods["k6"]
    assert (record["checkpoint"], record["engine"]) == ("fake", "fake")
    assert (record["config"]["block_size"], record["config"]["epsilon"]) == (6, 2)
    assert record["mean_accepted_block_size"] == pytest.approx(6)
    assert study.methods["camera"] == {"photographs": True}
    assert study.settings.seed == 5


def test_images_of_8x8_are_decoded_and_are_no_photographs(here, decoding, capsys):
    (here / "small").mkdir()
    for path in sorted((here / "photos").iterdir()):
        with Image.open(path) as picture:
            Image.fromarray(area_reduce(np.asarray(picture), 8, 8)).save(here / "small" / path.name)
    images = read_images(Path("small"), FaceTask(8, 32))
    assert len(images.sources) == 5
    assert images.photographs == {}
    line = refusal(capsys, "create", "study", "--images", "small", "--method-a", "bicubic",
                   "--method-b", "camera")
    assert ("5 of the images (such as face0) are under 32x32, too small to stand for "
            "photographs" in line)
    assert create("--images", "small", "--method-a", "bicubic", "--method-b", "nearest") == 0


IMAGES = ("--images", "photos")


@pytest.mark.parametrize(("words", "message"), [
    (FOLDERS[:2], "there is no --method-b to compare with; give one, or --judge"),
    ((*FOLDERS, "--judge"), "--judge shows single pictures, and --method-b makes pairs; leave one"),
    (("--judge", "--allow-unsure", *FOLDERS[:2]), "allow_unsure is a fourth one; leave one of the"),
    (("--judge", *FOLDERS[:2] * 2), "two methods are named 'ours'; leave one out, or tell them"),
    ((*OURS, "nowhere"), "'nowhere' is not a method: give a folder of finished pictures"),
    ((*OURS, "bicubic"), "the method 'bicubic' makes pictures of images; give --images"),
    ((*OURS, "name=x,epsilon=a", *IMAGES), "epsilon must be a whole number"),
    ((*OURS, "block_size=2", *IMAGES), "needs a name: name=k6"),
    ((*OURS, "name=b,samples=4", *IMAGES), "would draw the same picture 4 times"),
    ((*OURS, "name=camera,block_size=2"), "'camera' is the name of the photographs"),
    ((*OURS, "name=x,folder=theirs,epsilon=2"), "takes no decoding settings"),
    ((*OURS, "name=x,block_size=99", *IMAGES), "more than the 10 prediction"),
    ((*OURS, "name=x,size=a", *IMAGES), "size must be a whole number"),
    ((*FOLDERS, "--interpolation", "box"), "must be one of nearest, bicubic, lanczos, not 'box'"),
    ((*FOLDERS, "--minimum-viewport", "big"), "must be W,H such as 640,480, not 'big'"),
    ((*FOLDERS, "--consent", "nowhere.txt"), "--consent nowhere.txt cannot be read"),
    ((*FOLDERS, "--completion-url", "javascript:x"), "the completion URL must be http(s)"),
    ((*FOLDERS, "--question", " "), "question must not be empty"),
    ((*FOLDERS, "--store", "ours"), "cannot be opened"),
])
def test_bad_studies_are_one_line_and_code_2(here, decoding, capsys, words, message):
    assert message in refusal(capsys, "create", "study", *words)
    if Path("survey.db").exists():
        assert Store("survey.db").studies() == []


def test_pictures_that_cannot_be_compared_are_named_and_skipped(here, capsys):
    (here / "theirs" / "face3.png").unlink()
    (here / "theirs" / "face4.png").rename(here / "theirs" / "other.png")
    (here / "ours" / "face0.png").write_text("no picture")
    with Image.open(here / "ours" / "face1.png") as picture:
        picture.resize((40, 40)).save(here / "ours" / "face1.png")
    assert create(*FOLDERS, "--store", "my study.db") == 0
    lines = capsys.readouterr().err.splitlines()
    assert "face0.png is not an image that can be read" in lines[0]
    assert [line.removeprefix("superres: skipped: ") for line in lines[1:4]] == [
        "ours lacks face0, other", "theirs lacks face3, face4",
        "face1, which differ in size between methods"]
    assert "1 pair (1 comparison of 1 image)" in lines[4]
    assert lines[6] == "superres: next: superres survey serve study --store 'my study.db'"


def test_a_study_of_no_pictures_is_refused(here, capsys):
    for path in (here / "theirs").iterdir():
        path.rename(path.with_stem(f"their-{path.stem}"))
    assert ("ours and theirs have no image in common; give the pictures of one image the same file "
            "name" in refusal(capsys, "create", "study", *FOLDERS, lines=3))
    for path in (here / "ours").iterdir():
        path.write_text("no picture")
    assert "no picture in ours can be read" in refusal(capsys, "create", "study", *FOLDERS, lines=6)


@pytest.mark.parametrize(("size", "scale"), [(100, 2), (300, 1)])
def test_pictures_are_enlarged_to_at_most_256_pixels(here, size, scale):
    for path in (*Path("ours").iterdir(), *Path("theirs").iterdir()):
        with Image.open(path) as picture:
            picture.resize((size, size // 2 + 4)).save(path)
    assert survey("create", "study", *FOLDERS, "--question", "Which is sharper?") == 0
    settings = stored_study().settings
    assert (settings.scale, settings.title, settings.trials) == (scale, "Which is sharper?", 5)


COMMANDS = ["create", "judge", "serve", "link", "report", "plan", "export", "exclude", "withdraw",
            "backup", "migrate", "token"]
EXTRA = ("fastapi", "krippendorff", "matplotlib", "scipy", "sqlalchemy", "statsmodels", "uvicorn")
DECODING = ("gradio", "huggingface_hub", "safetensors", "skimage", "torch", "torchvision")


def test_two_folders_become_a_study_a_report_and_an_export_without_torch(here):
    made = superres_without(DECODING, ["survey", "create", "study", *FOLDERS],
                            ["survey", "report", "study", "--output", "report"],
                            ["survey", "export", "study", "--output", "votes.csv"])
    assert made.returncode == 0
    assert "ours or theirs: no votes yet." in made.stdout
    assert Path("report/report.png").is_file()
    assert Path("votes.csv").is_file()


def test_help_needs_no_extra():
    shown = superres_without((*EXTRA, *DECODING), *([*words, "--help"] for words in (
        ["survey"], *(["survey", command] for command in COMMANDS))))
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.count("Usage: superres survey") == 1 + len(COMMANDS)


def test_a_missing_package_is_one_line_with_the_command_that_installs_it(here):
    refused = superres_without(("torch", "uvicorn"), ["tune", "--no-save"],
                               ["survey", "serve", "x"])
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.splitlines() == [
        "superres: superres tune needs torch: pip install 'superres[torch]'",
        "superres: superres survey needs uvicorn: pip install 'superres[survey]'"]
    training = ["train", "base", "--data", "x", "--output", "y", "--steps", "1"]
    refused = superres_without(("accelerate", "gradio"), training, ["app", "--port", "0"])
    assert refused.stderr.splitlines() == [
        "superres: superres train needs accelerate: pip install 'superres[train]'",
        "superres: superres app needs gradio: pip install 'superres[ui]'"]


@pytest.mark.parametrize(("words", "message"), [
    (("create", "study", *FOLDERS), "the study 'study' exists in survey.db already"),
    (("report", "study", "--level", 1.5), "--level must be between 0 and 1, not 1.5"),
    (("export", "study", "--output", "v.txt"), "v.txt must end in .csv, .jsonl, .parquet, which"),
    (("export", "study", "--output", "v.csv", "--layout", "x"), "must be one of votes, arena, "),
    (("withdraw", "study", "nobody"), "the study 'study' has no rater nobody; give a pseudonym of"),
    (("withdraw", "study", "--rater-id", r"Zoë\1"), r"has no rater Zoë\1; give a pseudonym"),
    (("withdraw", "study"), "give a rater's PSEUDONYM or --rater-id ID"),
    (("exclude", "study", "--rater-id", "an 'id'", "--reason", "x"), "has no rater an 'id'; give"),
    (("exclude", "study", f"rater={'0' * 32}", "--reason", "x"), f"has no rater {'0' * 32}; give"),
    (("exclude", "study", "gold<1"), "give a --reason"),
    (("backup", "survey.db"), "survey.db exists already; choose another file, or remove it"),
    (("serve", "other"), "no study 'other'"),
    (("serve", "study", "--host", "256.1.1.1", "--port", "0"), "listen on 256.1.1.1, port 0"),
    (("plan", "--precision", "60"), "the precision must be between 0 and 0.5"),
])
def test_other_mistakes_are_one_line_and_code_2(here, capsys, words, message):
    assert create(*FOLDERS) == 0
    assert message in refusal(capsys, *words)


def test_help_lists_the_options_of_a_survey_in_sections_of_their_own(capsys):
    assert survey("create", "--help") == 0
    printed = capsys.readouterr().out
    sections = dict(re.findall(r"^(\w+):\n((?:  .*\n|\n)+)", printed, re.MULTILINE))
    assert list(sections) == ["Arguments", "Options", "Trials", "Page", "Raters"]
    for section, options in (("Trials", ("--trials", "--gold", "--obvious", "--seed")),
                             ("Page", ("--question", "--consent", "--scale")),
                             ("Raters", ("--id-param", "--completion-code"))):
        for option in options:
            assert f"\n  {option} " in f"\n{sections[section]}"


def test_a_plan_is_printed(capsys):
    assert survey("plan", "--precision", 3, "--images", 400, "--json") == survey("plan") == 0
    plan, _, text = capsys.readouterr().out.rpartition("}")
    assert json.loads(plan + "}")["votes"] > 700
    assert "give an interval of +-2 points at 90%" in text


def test_a_spec_joins_numbers_by_colons_and_a_folder_may_have_another_name(here):
    spec = parse_spec("name=k,temperature=0.9:0.7:0.7,seed=3")
    assert (spec.settings, spec.checkpoint) == ({"temperature": (0.9, 0.7, 0.7), "seed": 3},
                                                "celeba-8to32")
    names = [parse_spec(text).name for text in ("name=mine,folder=ours", "folder=ours", "ours")]
    assert names == ["mine", "ours", "ours"]


def run_line(line):
    """Run a command line that was printed, with the words that a POSIX shell would make of it."""
    program, *words = shlex.split(line)
    assert program == "superres"
    return run(words)


def test_every_printed_command_runs_as_printed(here, capsys, monkeypatch):
    name, store = "my  study", "o'brien's  votes.db"
    assert survey("create", name, *FOLDERS, "--store", store, "--question", "Which?") == 0
    printed = capsys.readouterr()
    served = []
    monkeypatch.setattr("uvicorn.Server.run", lambda server, sockets: served.extend(sockets))
    assert run_line(f"{printed.err.split('next: ')[1].splitlines()[0]} --port 0") == 0
    (listening,) = served
    first, second = capsys.readouterr().err.splitlines()
    address = f"http://127.0.0.1:{listening.getsockname()[1]}/"
    listening.close()
    assert first == f"superres: open {address} to vote in {name} (Ctrl-C stops it)"
    assert f"results are at {address}results/" in second
    assert run_line(second.split("the old one expires: ")[1]) == 0
    opened = Store(store)
    study = opened.study(name)
    assert opened.is_owner(study, capsys.readouterr().out.strip())
    assert not opened.is_owner(study, printed.out.strip())
    for number in range(2):
        vote_through(opened, study, f"rater{number}")
    assert survey("report", name, "--store", store) == 0
    commands = [line.strip() for line in capsys.readouterr().out.splitlines()
                if line.startswith("    superres")]
    assert len(commands) >= 1  # their speed is judged, and by the draw of the pairs their care
    for command in commands:
        assert run_line(command) == 0
    assert "2 raters are excluded now, by 1: " in capsys.readouterr().err
    assert survey("report", name, "--store", store, "--tables") == 0
    # the reason on record
    assert "took under half a second for most votes |" in capsys.readouterr().out
    opened.close()


def test_a_printed_command_never_has_a_password_and_names_the_store_unless_it_is_the_default(
    monkeypatch):
    monkeypatch.delenv(STORE_VARIABLE, raising=False)
    assert command_line("report", "a b", store=DEFAULT_STORE) == "superres survey report 'a b'"
    assert command_line("report", "s", store="postgresql://me:***@host/votes") == (
        'superres survey report s --store "$SUPERRES_SURVEY_STORE"')
    assert command_line(
        "report", "s", store="postgresql://me@host/votes"
    ).endswith("--store postgresql://me@host/votes")
    monkeypatch.setenv(STORE_VARIABLE, "other.db")  # without --store, a command would open this one
    assert (command_line("report", "s", store=DEFAULT_STORE) == "superres survey report s --store "
            "survey.db")


@pytest.mark.parametrize(("host", "path", "address"), [
    ("127.0.0.1", "", "http://127.0.0.1:80/"), ("0.0.0.0", "/a/b/", "http://127.0.0.1:80/a/b/"),  # noqa: S104
    ("::", "a", "http://[::1]:80/a/"), ("::1", "", "http://[::1]:80/"), ("lab.example", "/", "http://lab.example:80/"),
])
def test_the_address_to_open_works_on_this_machine(host, path, address):
    assert local_address(host, 80, path) == address
    assert ("other machines" in how_to_leave(host)) == (host in ("0.0.0.0", "::"))  # noqa: S104


def test_personal_links_are_printed_for_the_page_to_take(here, capsys):
    assert create(*FOLDERS, "--id-param", "PROLIFIC_PID", "--id-param", "who") == 0
    capsys.readouterr()
    assert survey("link", "study", "anna", "b & c", "--address", "https://example.org/survey/") == 0
    links, salt = capsys.readouterr().out.splitlines(), stored_study().salt
    assert links[0] == f"https://example.org/survey/?who=anna&link_key={link_key(salt, 'anna')}"
    assert parse_qs(urlsplit(links[1]).query) == {"who": ["b & c"],
                                                  "link_key": [link_key(salt, "b & c")]}
    assert "a participant id must be 1 to 100" in refusal(capsys, "link", "study", "anna",
                                                          "x" * 101)
    assert "--address must be http(s)" in refusal(capsys, "link", "study", "anna", "--address",
                                                  "example.org")
