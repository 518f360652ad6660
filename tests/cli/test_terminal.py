"""What the command line prints, in real processes: no terminal obeys a name, and no output is lost
quietly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from superres.cli.main import run
from superres.system.terminal import one_line, printable

RUN = [sys.executable, "-c", "from superres.cli.main import main; main()"]
ROOT = Path(__file__).parents[2]
HOSTILE = [b"red\x1b[31m", b"title\x1b]0;x\x07", b"c1\xc2\x9b2J", b"two\nlines\r",
           "right\u202eto left".encode(), "isolate\u2066".encode(), b"raw\xff\xfe",
           "separator\u2028".encode(), b"delete\x7f\x08"]
"""Parts of file names, all of which a file system takes."""

FULL = Path("/dev/full")


def superres(*words, stdout=subprocess.PIPE, **more):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run([*RUN, *words], stdout=stdout, stderr=subprocess.PIPE, env=environment,
                          check=False, **more)


def assert_printable(output):
    assert output.decode().replace("\n", "").isprintable()  # UTF-8, whatever the names were


def assert_error(printed, part=""):
    assert_printable(printed)
    assert printed.startswith(b"superres: ")
    assert printed.count(b"\n") == 1
    assert part in printed.decode()


@pytest.mark.parametrize(("text", "shown"), [
    ("a\x1b[31mb", r"a\x1b[31mb"), ("a\x9bb", r"a\x9bb"), ("a\u202eb\u2066", r"a\u202eb\u2066"),
    ("a\tb", r"a\x09b"), ("a\udcffb", r"a\xffb"), ("a\ud83db", r"a\ud83db"), ("a\x7fb", r"a\x7fb"),
    ("a\u2028b", r"a\u2028b"), ("Grüße, 日本語 👩\u200d🚀 \\x1b", "Grüße, 日本語 👩\u200d🚀 \\x1b"),
    ("one\ntwo", "one\ntwo"),
])
def test_what_a_terminal_would_obey_is_shown_as_an_escape(text, shown):
    assert printable(text) == shown
    assert one_line(f" {text}\n") == " ".join(shown.split())


def test_names_of_inputs_are_printed_as_escapes_and_recorded_as_they_are(tmp_path):
    folder, output = os.fsencode(tmp_path / "in"), tmp_path / "out"
    os.mkdir(folder)
    for name in HOSTILE:
        with open(folder + b"/" + name + b".png", "wb") as file:
            file.write(b"no picture")
    result = superres("upscale", folder, "--output", output, "--device", "cpu")
    assert result.returncode == 1
    assert result.stdout == b""
    assert_printable(result.stderr)
    assert result.stderr.count(b"\n") >= len(HOSTILE) + 1
    for part in (rb"red\x1b[31m.png", rb"c1\x9b2J.png", rb"right\u202eto left.png",
                 rb"raw\xff\xfe.png"):
        assert part in result.stderr
    rows = [json.loads(line) for line in (output / "manifest.jsonl").read_text().splitlines()]
    assert {os.fsencode(row["input"]) for row in rows} == {folder + b"/" + name + b".png"
                                                           for name in HOSTILE}


@pytest.mark.parametrize("words", [
    ["manifest", "merge", "--output", "all.jsonl"], ["upscale", "--output", "o", "--list"],
    ["train", "ladder", "--data", "d", "--output", "o"], ["translate", "dog", "--checkpoint"],
    ["survey", "report", "study", "--store"], ["upscale", "--output", "o", "--shard"], ["evaluate"],
    ["upscale", "--output"],
], ids=" ".join)
def test_errors_print_names_as_escapes(words, tmp_path, monkeypatch, capfdbinary):
    monkeypatch.chdir(tmp_path)
    assert run([*words, os.fsdecode(b"".join(name.replace(b"\n", b"") for name in HOSTILE))]) == 2
    assert_error(capfdbinary.readouterr().err)


@pytest.fixture(params=["help", "more than a buffer"])
def words(request, checkpoint):
    """A command that writes to standard output."""
    return {"help": ["upscale", "--help"],
            "more than a buffer": ["translate", "\n" * 20_000, "--checkpoint", checkpoint,
                                   "--device", "cpu"]}[request.param]


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full on this system")
def test_a_full_standard_output_is_one_line_and_code_1(words):
    with FULL.open("wb") as full:
        result = superres(*words, stdout=full)
    assert result.returncode == 1
    assert_error(result.stderr, "cannot write to standard output: No space left on device")


def test_a_closed_pipe_ends_quietly_with_the_code_of_shells(words):
    reading, writing = os.pipe()
    os.close(reading)
    result = superres(*words, stdout=writing)
    os.close(writing)
    assert (result.returncode, result.stderr) == (141, b"")


def test_a_closed_standard_input_is_one_line():
    for words in (["translate"], ["upscale", "--list", "-", "--output", "out"]):
        result = subprocess.run(["sh", "-c", 'exec "$@" <&-', "sh", *RUN, *words], cwd=ROOT,
                                capture_output=True, check=False)
        assert result.returncode == 2
        assert_error(result.stderr, "cannot read standard input: Bad file descriptor")


def test_paths_that_are_not_utf8_work(checkpoint, tmp_path):
    folder = os.fsencode(tmp_path)
    with open(folder + b"/in\xff.txt", "wb") as file:
        file.write(b"dog\n")
    result = superres("translate", "--input", b"in\xff.txt", "--output", b"new\xff/out\xff.txt",
                      "--device", "cpu", "--checkpoint", checkpoint, cwd=tmp_path)
    assert result.returncode == 0
    with open(folder + b"/new\xff/out\xff.txt", "rb") as file:
        assert file.read().count(b"\n") == 1


def test_the_tab_key_completes_options_without_the_imports_of_decoding():
    code = "import atexit, sys; atexit.register(lambda: print('torch' in sys.modules)); " \
           "from superres.cli.main import main; main()"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "_SUPERRES_COMPLETE": "complete_bash",
                   "COMP_WORDS": "superres upscale --acc", "COMP_CWORD": "2"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          env=environment, check=False)
    assert done.stdout.splitlines() == ["--accept", "False"], done.stderr
