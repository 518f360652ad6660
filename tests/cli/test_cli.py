import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from fakes import FakeUpscaler
from PIL import Image

from superres.batch.rows import Row
from superres.cli.main import main, run
from superres.errors import CheckpointError, ConfigError
from superres.tasks.faces import area_reduce

ROOT = Path(__file__).parents[2]


@pytest.fixture
def loaded(monkeypatch):
    """Replace the pipeline by a fake; returns what was asked of `Upscaler.load`."""
    import superres.pipeline.auto  # noqa: F401 -- it must not keep the fake

    calls = []

    class Loader(FakeUpscaler):
        @classmethod
        def load(cls, name_or_dir="celeba-8to32", device="auto", engine="auto"):
            calls.append((name_or_dir, device, engine))
            if "missing" in str(name_or_dir):
                raise CheckpointError(f"no checkpoint {name_or_dir};\nthe bundled one is "
                                      "celeba-8to32")
            return FakeUpscaler()

    module = ModuleType("superres.pipeline.upscaler")
    module.Upscaler = Loader
    monkeypatch.setitem(sys.modules, "superres.pipeline.upscaler", module)
    return calls


@pytest.fixture
def data(tmp_path):
    """A prepared data set of three images, and a folder with one of their inputs."""
    hr = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3)).astype(np.uint8)
    np.savez(tmp_path / "dev.npz", hr=hr, lr=area_reduce(hr, 8, 8),
             ids=np.arange(3, dtype=np.int32))
    (tmp_path / "in").mkdir()
    Image.fromarray(area_reduce(hr[0], 8, 8)).save(tmp_path / "in" / "a.png")
    return tmp_path


def refusal(capsys, *arguments):
    """Run a command that is refused; returns its one line."""
    assert run([str(argument) for argument in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("superres: ")
    return lines[0]


BAD = [
    ("--block-size", "11", "10 prediction heads"), ("--block-size", "0", "at least 1, not 0"),
    ("--block-size", "many", "Invalid value"), ("--epsilon", "-1", "not -1"),
    ("--epsilon", "4,3", "Invalid value"), ("--accept", "always", "distance, top-k, not 'always'"),
    ("--proposer", "oracle", "jacobi, .*, not 'oracle'"), ("--top-k", "0", "not 0"),
    ("--temperature", "nan", "not nan"), ("--temperature", "1e-40", "not 1e-40"),
    ("--temperature", "1e39", r"to 1e\+09, .*not 1e\+39"), ("--epsilon", "256", "at most 255"),
    ("--temperature", "0.9,0.7", r"not \(0.9, 0.7\)"),
    ("--temperature", "0.9,warm,0.7", "not '0.9,warm,0.7'"), ("--seed", "-5", "not -5"),
    ("--batch-size", "0", "not 0"), ("--device", "tpu", "auto, cpu, cuda, not 'tpu'"),
    ("--engine", "steam", "native, .*, not 'steam'"),
    ("--checkpoint", "missing", "no checkpoint missing"),
    ("--nonsense", "1", "No such option: --nonsense"), ("--samples", "2", "temperature 0"),
    ("--source", "sketch", "photo, not 'sketch'"), ("--on-existing", "ask", "skip, .*, not 'ask'"),
    ("--shard", "3/2", "I/N"), ("--manifest", "/dev/null/manifest", "cannot write the manifest"),
    *((option, 2**63, "") for option in ("--block-size", "--epsilon", "--top-k", "--min-block",
                                         "--seed", "--window", "--candidates", "--sample-top-k",
                                         "--samples", "--batch-size")),
    ("--epsilon", "9" * 9999, ""), ("--nucleus", "nan", ""), ("--temperature", "inf", ""),
    ("--samples", 10**7, ""), ("--shard", f"0/{2**63}", ""),
]
"""Wrong options of `upscale`, and what is said of them."""


@pytest.mark.parametrize(("option", "value", "message"), BAD, ids=lambda value: str(value)[:20])
def test_bad_usage_is_one_line_and_code_2(loaded, data, capsys, option, value, message):
    line = refusal(capsys, "upscale", data / "in", "--output", data / "out", option, value)
    assert re.search(message, line)
    assert option.lstrip("-").replace("-", " ") in line.replace("-", " ")
    assert len(line) < 400


@pytest.mark.parametrize(("words", "message"), [
    ("", "Missing command"), ("upscale a.png", "a.png: no such file"),
    ("upscale *.png", "--output"), ("upscale --output out", "INPUT"),
    ("evaluate images", "--data"), ("upscale in --output dev.npz", "cannot write to the folder"),
    ("evaluate images --data nowhere.npz", "nowhere.npz does not exist"),
    ("evaluate images --data dev.npz --samples 2", "--samples 2 at temperature 0"),
    ("evaluate images --data dev.npz --limit 0", "limit must be at least 1, not 0"),
    ("evaluate images --data dev.npz --split dev", "--split must be one of train, valid, test, not "
     "'dev'"),
    ("evaluate images --data dev.npz --sheet dev.npz/sheet.png", "choose another with --sheet"),
])
def test_an_incomplete_or_impossible_command_is_one_line_and_code_2(loaded, data, capsys,
                                                                    monkeypatch, words, message):
    monkeypatch.chdir(data)
    assert message in refusal(capsys, *words.split())


def test_success_is_code_0_with_a_summary_on_standard_error(loaded, data, capsys):
    manifest = data / "rows" / "manifest.jsonl"
    words = ["upscale", data / "in", "--output", data / "out", "--checkpoint", "other", "--device",
             "cpu", "--engine", "plain", "--seed", "9", "--block-size", "4", "--proposer", "jacobi",
             "--accept", "distance", "--epsilon", "3", "--manifest", manifest]
    assert run(map(str, words)) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("superres: 1 done, 0 skipped, 0 failed; ")
    assert captured.err.endswith("mean accepted block size 4.00\n")
    assert loaded == [("other", "cpu", "plain")]
    row = json.loads(manifest.read_text())
    names = ("block_size", "accept", "epsilon", "seed", "proposer")
    assert [row["config"][name] for name in names] == [4, "distance", 3, 9, "jacobi"]
    assert (data / "out" / "a.png").is_file()


def test_some_failed_is_code_1_and_the_rest_are_done(loaded, data, capsys):
    (data / "in" / "b.png").write_text("not an image")
    assert run(["upscale", str(data / "in"), str(data / "nowhere.png"), "--output",
                str(data / "out")]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert lines[-1].startswith("superres: 1 done, 0 skipped, 2 failed")


def test_a_picture_alone_is_written_to_the_current_folder(loaded, data, capsys, monkeypatch):
    monkeypatch.chdir(data)
    assert run(["upscale", "in/a.png"]) == 0
    assert "superres: in/a.png: written to a-superres.png\n" in capsys.readouterr().err
    assert sorted(path.name for path in data.iterdir()) == ["a-superres.png", "dev.npz", "in"]
    assert run(["upscale", "in/a.png"]) == 1
    assert ("a-superres.png exists already; use --on-existing skip or "
            "overwrite" in capsys.readouterr().err)
    assert run(["upscale", "in/a.png", "--on-existing", "overwrite", "--suffix", "-x"]) == 0
    assert (data / "a-x.png").exists()
    capsys.readouterr()
    assert "nosuch.jpg: no such file" in refusal(capsys, "upscale", "nosuch.jpg")
    assert run(["upscale", "nosuch.jpg", "in/a.png", "--on-existing", "overwrite"]) == 1
    assert "superres: 1 done, 0 skipped, 1 failed" in capsys.readouterr().err
    assert "give --output DIR" in refusal(capsys, "upscale", "in")
    assert "give --output DIR" in refusal(capsys, "upscale", "nosuch*.jpg")
    assert "give --output DIR" in refusal(capsys, "upscale", *["in/a.png"] * 21)


def test_a_manifest_is_summarised_by_its_latest_rows(loaded, data, capsys, monkeypatch):
    monkeypatch.chdir(data)
    (data / "in" / "b.png").write_bytes(b"no picture")
    (data / "in" / "c.png").write_bytes(b"none")
    assert run(["upscale", "in", "-o", "out", "--accept", "distance"]) == 1
    Image.new("RGB", (8, 8)).save(data / "in" / "b.png")
    assert run(["upscale", "in", "-o", "out", "--accept", "distance"]) == 1
    capsys.readouterr()
    assert run(["manifest", "summary", "out/manifest.jsonl"]) == 1
    first, settings, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("2 done, 0 skipped, 1 failed; ")
    assert settings == "2 by fake@0123abcd --block-size 10 --accept distance --engine fake"
    assert "cannot read the manifest none" in refusal(capsys, "manifest", "summary", "none")


ROW = {"input": "in/a.png", "output": "/out/a.png", "status": "failed",
       "error": "in/a.png is damaged"}


def test_a_summary_gives_every_reason_and_the_first_name(tmp_path, capsys):
    rows = [ROW, {**ROW, "input": "in/b.png", "output": "/out/b.png", "error": "in/b.png is empty"}]
    for number in range(3):
        name = f"in/c{number}.png"
        rows.append({**ROW, "input": name, "output": f"/out/c{number}.png",
                     "error": f"{name} is too small"})
    (tmp_path / "m").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert run(["manifest", "summary", str(tmp_path / "m")]) == 1
    assert capsys.readouterr().out.splitlines()[1:] == [
        "3 failed: is too small (first: in/c0.png)", "1 failed: is damaged (in/a.png)", "1 failed: "
        "is empty (in/b.png)"]


def test_a_row_of_another_type_is_refused_with_its_line(tmp_path, capsys):
    wrong = {
        ("tokens", "iterations", "model_calls", "seed"): ("7", 1.5, True, -1, 10**400, []),
        ("seconds", "mean_accepted_block_size"): ("7", float("nan"), float("inf"), -0.5, {}),
        ("error", "checkpoint", "sha256"): (7, ["a"], {"a": 1}),
        ("config", "options", "crop"): (7, "a", []), ("input", "output", "status"): (7, None, []),
    }
    for name, value in ((name, value) for names, values in wrong.items() for name in names
                        for value in values):
        line = json.dumps({**ROW, "status": "ok", name: value})
        with pytest.raises((ValueError, ConfigError), match=f"{name} must be|no status|no input|is "
                           "not a number"):
            Row.parse(line.encode())
    (tmp_path / "m").write_text(f"{json.dumps(ROW)}\n{line}\n")
    assert "line 2 of the manifest" in refusal(capsys, "manifest", "summary", str(tmp_path / "m"))


def test_an_interrupt_is_one_line_and_code_130(data, monkeypatch, capsys, loaded):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("superres.batch.run.upscale", interrupt)
    assert run(["upscale", str(data / "in"), "--output", str(data / "out")]) == 130
    assert (capsys.readouterr().err == "superres: stopped; finished results are kept, and the same "
            "command continues\n")


def test_evaluate_prints_json_alone_on_standard_output_and_scores_the_likelihood_alone(
    loaded, data, capsys, monkeypatch,
):
    words = ["evaluate", "images", "--data", str(data / "dev.npz"), "--limit", "2"]
    assert run([*words, "--json"]) == 0
    captured = capsys.readouterr()
    whole = json.loads(captured.out)
    assert captured.err == ""
    assert whole["images"] == 2
    assert set(whole["methods"]) == {"nearest", "bicubic", "lanczos", "greedy", "blockwise"}
    monkeypatch.setattr(FakeUpscaler, "__call__", None)  # nothing is decoded
    assert run([*words, "--likelihood-only", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert loaded[-1] == ("celeba-8to32", "auto", "plain")
    assert report["bits_per_dim"] > 0
    assert report.items() <= whole.items()
    assert run([*words, "--likelihood-only"]) == 0
    shown = capsys.readouterr().err
    assert f"bits/dim {report['bits_per_dim']:.3f} (95 % interval" in shown
    assert "bytes per picture: p1" in shown


def test_evaluate_prints_a_table_on_standard_error_and_draws_the_sheet(loaded, data, capsys):
    sheet = data / "sheets" / "sheet.png"
    assert run(["evaluate", "images", "--data", str(data / "dev.npz"), "--no-greedy", "--sheet",
                str(sheet)]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "bicubic" in captured.err
    with Image.open(sheet) as image:
        assert image.size == (5 * 128, 3 * 128 + 16)  # input, bicubic, Lanczos, blockwise, truth


@pytest.mark.slow
def test_help_and_usage_errors_come_without_loading_the_network():
    code = ("import sys; from superres.cli.main import run; assert run(['--help']) == "
            "run(['upscale', '-h']) == 0; assert run(['upscale', 'x', '--output', 'y', "
            "'--epsilon', '-1']) == 2; assert 'torch' not in sys.modules")
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
    words = [sys.executable, "-m", "superres", "upscale", "--help"]
    assert "--manifest" in subprocess.run(words, cwd=ROOT, capture_output=True, text=True,
                                          check=True).stdout


@pytest.mark.parametrize(("given", "found"), [(None, "passive"), ("active", "active")])
def test_idle_threads_of_torch_sleep_unless_the_environment_says_otherwise(given, found,
                                                                           monkeypatch):
    monkeypatch.setattr(sys, "argv", ["superres", "--version"])
    monkeypatch.setenv("OMP_WAIT_POLICY", given or "")
    if given is None:
        monkeypatch.delenv("OMP_WAIT_POLICY")
    with pytest.raises(SystemExit):
        main()
    assert os.environ.pop("OMP_WAIT_POLICY") == found
