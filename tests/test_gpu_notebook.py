"""The notebook that checks the GPU engines: it says that there is no GPU, and its commands are commands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from test_cli_options import options_of

ROOT = Path(__file__).parent.parent
NOTEBOOK = ROOT / "docs" / "gpu-check.ipynb"
nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_without_a_gpu_one_line_says_so_and_nothing_is_measured(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    notebook = nbformat.read(NOTEBOOK, 4)
    committed = [(cell.outputs, cell.execution_count) for cell in code_cells(notebook)]
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert committed == [(cell.outputs, cell.execution_count) for cell in code_cells(notebook)]
    (first,), *others = (outputs for outputs, _ in committed)
    assert first.text == "There is no GPU on this machine, so the cells below measure nothing.\n"
    assert others == [[]] * len(others)


def test_on_a_gpu_it_runs_commands_that_exist_and_reports_each(tmp_path, monkeypatch, capsys):
    called = []

    def run(words, cwd, **options):
        called.append(words)
        assert cwd == ROOT
        return SimpleNamespace(returncode=len(called) % 2, stdout=f"output {len(called)}")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    names = {}
    for cell in code_cells(nbformat.read(NOTEBOOK, 4)):
        exec(cell.source, names)  # noqa: S102 -- our own page
    scripts = [words[1:] for words in called if words[0] == sys.executable and words[1] != "-m"]
    for script, *words in scripts:
        assert {word for word in words if word.startswith("--")} <= options_of(script), script
    assert {script for script, *_ in scripts} == {
        "scripts/draw_dev.py", "scripts/check/exactness.py", "scripts/benchmark/gpu.py"}
    assert [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests/test_gpu.py"] in called
    assert [str(Path(sys.executable).parent / "superres"), "info"] in called
    report = (tmp_path / "gpu-report.md").read_text()
    assert report.startswith("# a GPU\n")
    results = re.findall(r"^## .*: (\w+)\n\n```\n(.*)\n```$", report, flags=re.MULTILINE)
    assert results == [(("passed", "FAILED")[number % 2], f"output {number}") for number in range(1, len(called) + 1)]
    assert report in capsys.readouterr().out
