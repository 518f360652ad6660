"""A folder for a Hugging Face Space: what it has, what it refuses, and that its page runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from web_demo import HTTP, opened

from superres.cli.main import run
from superres.cli.space import FILES, PAGE, launch_words

WHEEL = "superres-0.1.0-py3-none-linux_x86_64.whl"


@pytest.fixture
def wheel(tmp_path):
    (tmp_path / WHEEL).write_bytes(b"a wheel")
    return tmp_path / WHEEL


def test_the_folder_has_the_page_the_wheel_and_a_readme_with_limits_and_licences(wheel, tmp_path,
                                                                                 capsys):
    folder = tmp_path / "space"
    assert run(["space", str(folder), "--wheel", str(wheel)]) == 0
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert found == {*FILES, WHEEL, "README.md", "Dockerfile"}
    assert (folder / WHEEL).read_bytes() == b"a wheel"
    matter, text = (folder / "README.md").read_text().removeprefix("---\n").split("---\n", 1)
    settings = yaml.safe_load(matter)
    assert (settings["sdk"], settings["app_port"]) == ("docker", 7860)
    for words in ("never use it to identify", "non-commercial research only", "Apache-2.0",
                  "two cores"):
        assert words in text.replace("Never", "never")
    docker = (folder / "Dockerfile").read_text()
    assert f'"./{WHEEL}[ui,text]"' in docker
    assert ([word.strip('"') for word in re.search(r"CMD \[(.*)\]", docker)[1].split(", ")][2:]
            == launch_words())
    assert "11 files" not in capsys.readouterr().out


@pytest.mark.parametrize(("name", "message"), [
    ("missing.whl", "is no wheel; build one with 'make wheels'"),
    ("superres-0.1.0-py3-none-any.whl", "has no compiled engine for x86-64 Linux")])
def test_other_wheels_and_folders_with_files_are_refused(tmp_path, wheel, capsys, name, message):
    if "any" in name:
        (tmp_path / name).write_bytes(b"")
    assert run(["space", str(tmp_path / "space"), "--wheel", str(tmp_path / name)]) == 2
    assert message in capsys.readouterr().err
    assert run(["space", str(tmp_path), "--wheel", str(wheel)]) == 2
    assert "is not empty; choose a new folder" in capsys.readouterr().err
    assert not (tmp_path / "space").exists()


def test_the_page_runs_from_the_folder_and_the_hub_may_show_it(wheel, tmp_path):
    folder = tmp_path / "space"
    assert run(["space", str(folder), "--wheel", str(wheel)]) == 0
    changed = {"--host": "127.0.0.1", "--port": "0", "--checkpoint": "celeba-8to32"}
    given = dict(zip(launch_words()[::2], launch_words()[1::2], strict=True))
    words = [word for option in (given | changed).items() for word in option]
    command = [sys.executable, "app.py", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          cwd=folder) as process:
        try:
            address = opened(process)
            answer = HTTP.get(f"{address}/")
            policy = answer.headers["content-security-policy"]
            assert policy.endswith(f"frame-ancestors 'self' {PAGE}")
            assert HTTP.get(f"{address}/health").json()["max_queue"] == 8
        finally:
            process.terminate()
    assert Path(folder / "app.py").exists()


def test_an_origin_is_checked_before_anything_is_loaded():
    command = [sys.executable, "app.py", "--embed-in", "https://a.example; script-src *"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2],
                          check=False)
    assert done.returncode == 2
    assert "--embed-in must be http(s)://HOST, not" in done.stderr
