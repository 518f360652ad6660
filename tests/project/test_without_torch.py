"""Decoding on a CPU needs no torch, and what needs it says so in one line.

The processes of these tests cannot import torch, nor what is built on it.
"""

from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from superres.tasks.face_data import FacePairs, write_npz
from tests.absent import ROOT, environment_without, python_without, superres_without
from tests.web.helpers import FACES, Demo

ABSENT = ("huggingface_hub", "psutil", "torch", "torchvision", "triton")
FACE, PHOTO = str(FACES[0]), str(ROOT / "scripts" / "photos" / "Grace-Hopper.jpg")
SMALL = ["--checkpoint", "celeba-8to32"]
SETTINGS = [
    {}, {"block_size": 4, "adaptive": False}, {"accept": "distance", "epsilon": 2},
    {"accept": "top-k", "top_k": 2}, {"consistent": False}, {"min_block": 2, "block_size": 4},
    {"temperature": 0.7}, {"temperature": 0.7, "nucleus": 0.9, "sample_top_k": 40},
    {"temperature": 0.7, "sampling": "speculative"}, {"proposer": "lookahead"},
    {"proposer": "draft", "draft": "celeba-8to32-draft"}, {"finish": "mean"}, {"finish": "sharp"},
    {"temperature": 0.7, "samples": 2, "keep": "likeliest"},
]
"""Settings with which compiled code decodes alone."""
NEEDY = [{"proposer": "jacobi"}, {"proposer": "lookup"}, {"proposer": "lookahead",
                                                          "temperature": 0.7}]
"""Settings whose iterations are torch's."""
LINE = r"[^\n]+ needs torch: pip install 'superres\[torch\]'"
API = """
import sys
import superres

face, settings, needy = sys.argv[1], *map(eval, sys.argv[2:])
upscaler = superres.load("celeba-8to32")
for each in settings:
    result = upscaler(face, **each)
    print(result.images.shape[1:], result.engine if hasattr(result, "engine") else upscaler.engine)
print(result.bits_per_dim.shape, result.reliable)
*_, last = upscaler.stream(result.sources, temperature=0.7)
assert last.images.shape == result.images.shape
cascade = superres.load("celeba-8to64")
assert cascade(face, finish="mean").images.shape == (1, 64, 64, 3)
translator = superres.load("multi30k-en-de")
for each in ({}, {"block_size": 8}, {"accept": "top-k", "top_k": 2, "block_size": 8},
             {"temperature": 0.5}, {"proposer": "draft", "draft": "multi30k-en-de-draft"}):
    assert translator(["A dog runs through the snow."], **each)[0].text


@superres.register_criterion("mine")
class Mine(superres.Criterion):
    def accept(self, proposed, scores, position):
        return proposed == scores.argmax(-1)


@superres.register_proposer("mine")
class Guess(superres.Proposer):
    block_size = 2

    def propose(self, context, offsets):
        return context.tokens[:, :1]


for each in [*needy, {"accept": "mine"}, {"proposer": "mine"}]:
    try:
        upscaler(face, **each)
    except superres.SuperresError as error:
        print(error, file=sys.stderr)
assert not {"torch", "torchvision", "psutil"} & sys.modules.keys()
"""


def done(process):
    """Assert that a process has ended well."""
    assert process.returncode == 0, process.stderr
    return process


def test_the_python_api_decodes():
    made = done(python_without(ABSENT, API, FACE, repr(SETTINGS), repr(NEEDY)))
    assert made.stdout.splitlines()[:-1] == len(SETTINGS) * ["(32, 32, 3) native-int8"]
    lines = made.stderr.splitlines()[-len(NEEDY) - 2:]
    assert [line for line in lines if not re.fullmatch(LINE, line)] == []


def test_faces_photos_and_sentences_become_files(tmp_path):
    face, photo = tmp_path / "face", tmp_path / "photo"
    batch = ["upscale", *map(str, FACES[:3]), "--output", str(tmp_path / "out"), *SMALL,
             "--temperature", "0.7", "--samples", "2", "--keep", "likeliest"]
    made = done(superres_without(
        ABSENT, ["upscale", FACE, "--output", str(face), *SMALL],
        ["upscale", PHOTO, "--output", str(photo), "--sheet", "--finish", "mean"],
        batch, [*batch, "--verify"], ["info"],
        ["translate", "A man plays the guitar.", "Two dogs."]))
    assert Image.open(face / FACES[0].name).size == (32, 32)
    assert Image.open(photo / "Grace-Hopper-sheet.png").size > (64, 64)
    assert len([*(tmp_path / "out").glob("*.png")]) == 3
    assert len(made.stdout.splitlines()[-2:]) == 2


def test_methods_are_decoded_for_a_survey_and_the_page_for_browsers_is_written(tmp_path):
    study = ["--store", str(tmp_path / "survey.db")]
    made = done(superres_without(
        ABSENT, ["survey", "create", "study", *study, "--images", str(FACES[0].parent),
                 "--method-a", "name=ours,checkpoint=celeba-8to32", "--method-b", "lanczos"],
        ["survey", "report", "study", *study], ["export", "web", str(tmp_path / "site"), *SMALL]))
    assert "ours or lanczos: no votes yet." in made.stdout
    assert (tmp_path / "site" / "index.html").is_file()


def test_the_page_draws_and_translates(tmp_path):
    words = [sys.executable, str(ROOT / "app.py"), "--port", "0", "--checkpoint", "celeba-8to32"]
    with (environment_without(*ABSENT[1:]) as environment,  # Gradio brings huggingface_hub
          subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=subprocess.PIPE,
                           text=True) as process):
        try:
            address = process.stdout.readline().split()[2]
            page = Demo(address.removesuffix("/"), None, None)
            face = page.upload("face.png", FACES[0].read_bytes())
            (files, _), error = page.call("upscale", image=face)
            assert (bool(files), error) == (True, "")
            found, error = page.call("translate", lines=["A dog runs."])
            assert (bool(found), error) == (True, "")
        finally:
            process.terminate()


def test_what_needs_torch_says_so_in_one_line(tmp_path):
    write_npz(FacePairs(np.zeros((1, 32, 32, 3), np.uint8), np.zeros((1, 8, 8, 3), np.uint8),
                        np.zeros(1, np.int32)), tmp_path / "dev.npz")
    data, output = ["--data", str(tmp_path / "dev.npz")], ["--output", str(tmp_path / "out")]
    commands = [
        ["evaluate", "images", *data], ["train", "base", *data, *output, "--steps", "1"],
        ["tune", "--no-save"], ["benchmark", "images", "--batches", "1", "--repeats", "1"],
        *(["upscale", FACE, *SMALL, *output, *words] for words in (
            ["--engine", "plain"], ["--device", "cuda"], ["--proposer", "jacobi"],
            ["--proposer", "lookahead", "--temperature", "0.7"])),
        ["translate", "dog", "--beam", "4"],
    ]
    refused = superres_without(ABSENT, *commands)
    assert (refused.returncode, refused.stdout) == (2, "")
    pattern = re.compile(LINE.replace("torch\\]", "(torch|train)\\]"))
    lines = refused.stderr.splitlines()
    assert [line for line in lines if not pattern.fullmatch(line)] == []
    assert len(lines) == len(commands)
    hub = superres_without(ABSENT, ["upscale", FACE, "--checkpoint", "owner/name"])
    assert hub.stderr == ("superres: the checkpoint 'owner/name' of the hub needs "
                          "huggingface_hub: pip install 'superres[hub]'\n")


@pytest.mark.parametrize("script", ["demo.py", "draw_dev.py"])
def test_the_scripts_of_make_demo_start(script):
    with environment_without(*ABSENT) as environment:
        subprocess.run([sys.executable, ROOT / "scripts" / script, "--help"], env=environment,
                       capture_output=True, check=True)
