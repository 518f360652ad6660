"""Untrusted content in processes of limited memory and time: what they answer, how they end, and
what callers see."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil
import pytest
import torch
from fakes import TINY, random_model
from PIL import Image, ImageCms

from superres.cli.main import run
from superres.errors import InvalidInputError
from superres.pictures import untrusted
from superres.pictures.read import read_picture
from superres.pictures.untrusted import read_untrusted
from superres.pipeline.upscaler import Upscaler
from superres.system.confined import Confined
from tests.batch.helpers import rows_of, upscale, write_image
from tests.pictures.helpers import many_scans, saved


@pytest.fixture
def misbehave():
    called = Confined("confined_functions:misbehave", 1000)
    yield called
    called.close()


def wait(condition):
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_running(process):
    return psutil.pid_exists(process) and psutil.Process(process).status() != psutil.STATUS_ZOMBIE


def kinds():
    rng = np.random.default_rng(0)
    image = Image.fromarray(rng.integers(0, 256, (50, 30, 4), np.uint8))
    exif = Image.Exif()
    exif[0x0112], exif[0x010F] = 6, "camera"
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    return {
        "alpha": saved(image, "PNG"), "grey": saved(image.convert("L"), "PNG"), "empty": b"",
        "text": b"no picture", "exif": saved(image.convert("RGB"), "PNG", exif=exif),
        "damaged": saved(image, "PNG")[:-100], "xmp": saved(image.convert("RGB"), "JPEG",
                                                            xmp=b"<x:xmpmeta/>"),
        "small": saved(image.resize((3, 3)), "PNG"), "profile": saved(image.convert("RGB"), "JPEG",
                                                                      icc_profile=profile),
    }


@pytest.mark.parametrize("kind", kinds())
def test_a_picture_is_read_as_in_the_own_process_or_refused_with_its_words(kind, tmp_path):
    def outcome(read, file):
        try:
            return vars(read(file, "a", background="#123456", least=8))
        except InvalidInputError as error:
            return {"error": str(error)}

    path = tmp_path / "a"
    path.write_bytes(kinds()[kind])
    for file in (lambda: path, lambda: io.BytesIO(kinds()[kind])):
        expected, found = outcome(read_picture, file()), outcome(read_untrusted, file())
        assert expected.keys() == found.keys()
        for name, value in expected.items():
            np.testing.assert_equal(found[name], value)


def test_the_pixels_that_are_read_can_be_changed():
    read_untrusted(io.BytesIO(kinds()["grey"])).rgb[0, 0] = 1


@pytest.mark.parametrize(("path", "told"), [
    ("missing.png", "No such file"), (".", "it is a folder"), ("pipe", "a pipe or a device"),
    ("a\0b", "null")])
def test_a_path_that_is_no_file_is_refused_before_it_is_opened(path, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    with pytest.raises(InvalidInputError, match=told) as error:
        read_untrusted(path)
    assert ";" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_of_too_many_bytes_is_not_sent(tmp_path, monkeypatch):
    monkeypatch.setattr(untrusted, "MOST_BYTES", 100)
    (tmp_path / "a.png").write_bytes(bytes(101))
    with pytest.raises(InvalidInputError, match="over 0 MB; reduce it"):
        read_untrusted(tmp_path / "a.png")


# Limits of a call


@pytest.mark.parametrize(("how", "told"), [
    ("crash", "ended with signal 11"), ("exit", "ended with status 3"),
    ("spin", "takes over 1 seconds of processor time"),
    ("sleep", "no answer for 60 seconds; the machine is too busy"), ("grow", "too much memory"),
    ("fail", "one line")])
def test_a_call_that_fails_says_why_and_the_next_one_succeeds(how, told, misbehave):
    (first, _) = misbehave(a=1)
    with pytest.raises(ValueError, match=told) as error:
        list(misbehave(how=how, seconds=1))
    assert "\n" not in str(error.value)
    array, content = np.arange(6, dtype=np.uint8).reshape(1, 2, 3), b"\0bytes"
    (last, second) = misbehave(array=array, content=content, none=None, words=["a", "ü"])
    np.testing.assert_array_equal(last["array"], array)
    assert (last["content"], last["none"], last["words"], second) == (content, None, ["a", "ü"],
                                                                      {"second": True})
    assert (last["process"] == first["process"]) == (how in ("grow", "fail"))
    assert is_running(first["process"]) == (how in ("grow", "fail"))


def test_a_process_that_is_started_early_serves_the_next_call(misbehave):
    before = set(psutil.Process().children())
    misbehave.start()
    (started,) = set(psutil.Process().children()) - before
    (first, _) = misbehave()
    assert first["process"] == started.pid


def test_errors_of_the_package_come_as_they_are_and_prints_do_not_disturb(misbehave):
    with pytest.raises(InvalidInputError, match=r"a; b\nand c{300}"):
        list(misbehave(how="refuse"))
    assert len(list(misbehave(how="print"))) == 2


def test_a_call_that_is_given_up_ends_its_process(misbehave):
    rows = misbehave()
    process = next(rows)["process"]
    assert is_running(process)
    rows.close()
    assert not psutil.pid_exists(process)


def test_threads_have_a_process_each_and_closing_ends_what_is_under_way(misbehave):
    together = threading.Barrier(3)

    def call(_):
        rows = misbehave()
        process = next(rows)["process"]
        together.wait(300)
        list(rows)
        return process

    with ThreadPoolExecutor(3) as pool:
        assert len(set(pool.map(call, range(3)))) == 3
        running = pool.submit(lambda: list(misbehave(how="spin")))
        wait(lambda: misbehave._busy)
        misbehave.close()
        with pytest.raises(ValueError, match="ended with signal 9"):
            running.result(300)
    assert not misbehave._idle


# The processes and their caller


def test_a_forked_process_has_processes_of_its_own(misbehave):
    (first, _) = misbehave()
    reading, writing = os.pipe()
    if not os.fork():
        try:
            (found, _) = misbehave()
            os.write(writing, str(found["process"]).encode())
        finally:
            os._exit(0)
    other = int(os.read(reading, 20))
    os.wait()
    (again, _) = misbehave()
    assert again["process"] == first["process"] != other
    wait(lambda: not is_running(other))


SCRIPT = """
import os, signal, sys
import numpy as np
from PIL import Image
from superres.pictures.untrusted import READER, read_untrusted
assert read_untrusted(sys.argv[1]).rgb.shape == (8, 8, 3)
print(READER._idle[0].process.pid, flush=True)
if len(sys.argv) > 2:
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("kill", [[], ["kill"]])
def test_a_process_ends_with_its_caller_whose_script_needs_no_guard(kill, tmp_path):
    write_image(tmp_path / "a.png")
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "-W", "error", tmp_path / "script.py",
                           tmp_path / "a.png", *kill],
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                          capture_output=True, text=True, check=False)
    assert done.returncode == (-signal.SIGKILL if kill else 0)
    assert done.stderr == ""
    wait(lambda: not is_running(int(done.stdout)))


def test_a_child_loads_neither_torch_nor_the_network():
    script = ("import superres.pictures.untrusted, sys; "
              "print(*sorted({name.split('.')[0] for name in sys.modules}))")
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True,
                            check=True).stdout.split()
    assert {"numpy", "PIL"} <= set(loaded)
    assert not {"torch", "skimage", "gradio", "scipy"} & set(loaded)


# Pictures that are too much work


def test_pictures_that_take_too_long_or_too_much_memory_fail_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(untrusted, "MOST_SECONDS", 1)
    monkeypatch.setattr(untrusted, "MOST_MEMORY", 100_000_000)
    write_image(tmp_path / "in" / "a.png", 1)
    (tmp_path / "in" / "b.jpg").write_bytes(many_scans(2000, 5000))
    write_image(tmp_path / "in" / "c.png", 2)
    Image.new("RGB", (7000, 7000)).save(tmp_path / "in" / "d.png", compress_level=1)
    write_image(tmp_path / "in" / "e.png", 3)
    summary = upscale(str(tmp_path / "in"), tmp_path / "out")
    assert summary.exit_code == 1
    rows = {os.path.basename(row["input"]): row for row in rows_of(tmp_path / "out")}
    assert [name for name, row in rows.items() if row["status"] == "ok"] == ["a.png", "c.png",
                                                                             "e.png"]
    assert "takes over 1 seconds of processor time; reduce it" in rows["b.jpg"]["error"]
    assert "takes over 100 MB of memory; reduce it" in rows["d.png"]["error"]
    upscaler = Upscaler(random_model(TINY, dtype=torch.float32), "random", device="cpu",
                        engine="plain")
    with pytest.raises(InvalidInputError, match=r"b\.jpg cannot be decoded: it takes over 1 "
                       r"seconds"):
        upscaler(tmp_path / "in" / "b.jpg")


@pytest.mark.parametrize(("limit", "value", "told"), [("MOST_MEMORY", 10**8, "cannot be read"),
                                                      ("MOST_SECONDS", 0.001, "takes over 0.001 "
                                                       "seconds")])
def test_info_of_a_picture_that_takes_too_much_ends_with_one_line(limit, value, told, tmp_path,
                                                                  monkeypatch, capsys):
    monkeypatch.setattr(untrusted, limit, value)
    Image.new("RGB", (7000, 7000)).save(tmp_path / "a.png", compress_level=1)
    assert run(["info", str(tmp_path / "a.png")]) == 2
    assert told in (message := capsys.readouterr().err)
    assert message.count("\n") == 1


def test_an_answer_that_has_too_much_is_not_read(misbehave):
    for values, told in (({"content": bytes(1001)}, "its answer has over 1,000 bytes"),
                         ({"array": np.zeros((1001, 1), np.uint8)}, "its answer has over 1,000 "
                          "bytes"),
                         ({"word": "x" * 10**6}, "its answer has over 1,000,000 bytes")):
        with pytest.raises(ValueError, match=told):
            list(misbehave(**values))
    assert len(list(misbehave(content=bytes(1000)))) == 2


def test_messages_go_to_a_call_under_way_and_only_they_make_it_go_on(misbehave):
    call = misbehave(a=1)
    next(call)
    assert call.send({"b": b"2"}) == {"second": True, "b": b"2"}
    assert list(call) == []
    assert len(misbehave._idle) == 1
