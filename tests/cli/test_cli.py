"""Commands for faces: codes, summaries and reports, with a fake pipeline."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fakes import FakeUpscaler
from PIL import Image

from superres.cli.main import run

ROOT = Path(__file__).parents[2]


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


def test_a_picture_alone_is_written_to_the_current_folder(loaded, data, capsys):
    assert run(["upscale", "in/a.png"]) == 0
    assert "superres: in/a.png: written to a-superres.png\n" in capsys.readouterr().err
    assert run(["upscale", "in/a.png"]) == 1
    assert ("a-superres.png exists already; use --on-existing skip or "
            "overwrite" in capsys.readouterr().err)
    assert run(["upscale", "in/a.png", "--on-existing", "overwrite", "--suffix", "-x"]) == 0
    assert {path.name for path in data.glob("*.png")} == {"a-superres.png", "a-x.png"}
    assert run(["upscale", "nosuch.jpg", "in/a.png", "--on-existing", "overwrite"]) == 1
    assert "superres: 1 done, 0 skipped, 1 failed" in capsys.readouterr().err


def test_a_manifest_is_summarised_by_its_latest_rows(loaded, data, capsys):
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


def failed(name, reason):
    return {"input": f"in/{name}", "output": f"/out/{name}", "status": "failed",
            "error": f"in/{name} {reason}"}


def test_a_summary_gives_every_reason_and_the_first_name(tmp_path, capsys, refused):
    rows = [failed("a.png", "is damaged"), failed("b.png", "is empty"),
            *(failed(f"c{number}.png", "is too small") for number in range(3))]
    (tmp_path / "m").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert run(["manifest", "summary", str(tmp_path / "m")]) == 1
    assert capsys.readouterr().out.splitlines()[1:] == [
        "3 failed: is too small (first: in/c0.png)", "1 failed: is damaged (in/a.png)",
        "1 failed: is empty (in/b.png)"]
    with open(tmp_path / "m", "a") as file:
        file.write(json.dumps({**rows[0], "status": "ok", "tokens": "7"}) + "\n")
    assert "line 6 of the manifest" in refused("manifest", "summary", tmp_path / "m")


def test_an_interrupt_is_one_line_and_code_130(data, monkeypatch, capsys, loaded):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("superres.batch.run.upscale", interrupt)
    assert run(["upscale", str(data / "in"), "--output", str(data / "out")]) == 130
    assert (capsys.readouterr().err == "superres: stopped; finished results are kept, and the same "
            "command continues\n")


@pytest.mark.slow
def test_evaluate_prints_its_report_as_json_or_as_a_table_and_draws_a_sheet(
    loaded, data, capsys, monkeypatch,
):
    words = ["evaluate", "images", "--data", "dev.npz", "--limit", "2"]
    assert run([*words, "--json"]) == 0
    captured = capsys.readouterr()
    whole = json.loads(captured.out)
    assert captured.err == ""
    assert whole["images"] == 2
    assert set(whole["methods"]) == {"nearest", "bicubic", "lanczos", "greedy", "blockwise"}
    assert run([*words, "--no-greedy", "--sheet", "sheets/sheet.png"]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "bicubic" in captured.err
    with Image.open("sheets/sheet.png") as image:
        assert image.size == (5 * 128, 2 * 128 + 16)  # input, bicubic, Lanczos, blockwise, truth
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


@pytest.mark.slow
def test_commands_import_what_they_use_and_help_and_usage_errors_neither_numpy_nor_pillow(tmp_path):
    Image.new("RGB", (8, 8), "peru").save(tmp_path / "face.png")
    for commands, codes, unused in (
        (["--help", "upscale -h", "translate -h", "upscale x --output y --epsilon -1"],
         [0, 0, 0, 2], {"numpy", "PIL", "torch", "scipy", "skimage", "safetensors", "gradio"}),
        (["upscale face.png --size 32 --device cpu"], [0],
         {"scipy", "skimage", "huggingface_hub", "sentencepiece", "gradio", "pandas"})):
        code = ("import sys; from superres.cli.main import run; "
                f"assert [run(words.split()) for words in {commands}] == {codes}; "
                f"assert not {unused} & sys.modules.keys(), {unused} & sys.modules.keys()")
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True,
                              env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True, check=False)
        assert done.returncode == 0, done.stderr
    words = [sys.executable, "-m", "superres", "upscale", "--help"]
    assert "--manifest" in subprocess.run(words, cwd=ROOT, capture_output=True, text=True,
                                          check=True).stdout
