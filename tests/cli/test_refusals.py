"""Whatever is wrong with a command line is one line that names it, with code 2, before anything is
written."""

from __future__ import annotations

import re

import pytest

WRONG = [
    ("--block-size", "11", "10 prediction heads"), ("--block-size", "0", "at least 1, not 0"),
    ("--block-size", "many", "Invalid value"), ("--epsilon", "-1", "not -1"),
    ("--epsilon", "4,3", "Invalid value"), ("--epsilon", "9" * 9999, "Invalid value|must be"),
    ("--accept", "always", "distance, top-k, not 'always'"),
    ("--proposer", "oracle", "jacobi, .*, not 'oracle'"), ("--temperature", "nan", "not nan"),
    ("--temperature", "1e39", r"to 1e\+09, .*not 1e\+39"),
    ("--temperature", "0.9,0.7", r"not \(0.9, 0.7\)"),
    ("--temperature", "0.9,warm,0.7", "not '0.9,warm,0.7'"), ("--seed", 2**63, "at most"),
    ("--nucleus", "nan", "not nan"), ("--batch-size", "0", "not 0"),
    ("--samples", 10**7, "at most"),
    ("--device", "tpu", "auto, cpu, cuda, not 'tpu'"), ("--engine", "steam", "native, .*'steam'"),
    ("--checkpoint", "missing", "no checkpoint missing"),
    ("--nonsense", "1", "No such option: --nonsense"), ("--samples", "2", "temperature 0"),
    ("--source", "sketch", "photo, not 'sketch'"), ("--on-existing", "ask", "skip, .*, not 'ask'"),
    ("--shard", "3/2", "I/N"), ("--shard", f"0/{2**63}", "I/N"),
    ("--manifest", "/dev/null/manifest", "cannot write the manifest"),
]
"""Wrong options of `upscale`, and what is said of them."""


@pytest.mark.parametrize(("option", "value", "message"), WRONG, ids=lambda value: str(value)[:20])
def test_a_wrong_option_is_named(loaded, data, refused, option, value, message):
    line = refused("upscale", "in", "--output", "out", option, value)
    assert re.search(message, line)
    assert option.lstrip("-").replace("-", " ") in line.replace("-", " ")


LIKELIHOOD = "with --likelihood-only, which decodes nothing; leave it out"
FACES = ("upscale in --output out", "evaluate images --data dev.npz")
TEXTS = ("translate dog --checkpoint TOY", "evaluate text --data pairs --checkpoint TOY")
TRANSLATE = "translate --checkpoint TOY --input"
REFUSED = [
    ("", "Missing command"), ("upscale a.png", "a.png: no such file"),
    ("upscale *.png", "--output"), ("upscale --output out", "INPUT"),
    ("upscale in --output dev.npz", "cannot write to the folder"),
    ("upscale in", "give --output DIR"), ("upscale nosuch*.jpg", "give --output DIR"),
    ("upscale " + 21 * "in/a.png ", "give --output DIR"),
    ("upscale in --output out --workers 2", "--workers"),
    ("manifest summary none", "cannot read the manifest none"),
    ("evaluate images", "--data"),
    ("evaluate images --data nowhere.npz", "nowhere.npz does not exist"),
    ("evaluate images --data dev.npz --samples 2", "--samples 2 at temperature 0"),
    ("evaluate images --data dev.npz --limit 0", "limit must be at least 1, not 0"),
    ("evaluate images --data dev.npz --split dev",
     "--split must be one of train, valid, test, not 'dev'"),
    ("evaluate images --data dev.npz --sheet dev.npz/sheet.png", "choose another with --sheet"),
    # options that others leave without effect
    *((f"{command} {options}", message) for command in FACES for options, message in (
        ("--epsilon 2", "--epsilon 2 has no effect with --accept exact; leave it out, or give "
         "--accept distance"),
        ("--block-size 4 --min-block 5", "min-block 5 is larger than the block size 4"),
        ("--min-block 11", "min-block 11 is larger than the block size 10"))),
    *((f"{command} {options}", message) for command in TEXTS for options, message in (
        ("--top-k 2", "--top-k 2 has no effect with --accept exact; leave it out, or give "
         "--accept top-k"),
        ("--block-size 2 --min-block 2 --accept top-k", "--accept top-k has no effect with "
         "--min-block 2"))),
    ("evaluate images --data dev.npz --split valid", "--split valid has no effect on dev.npz, "
     "which is not a CelebA root and has no splits; leave it out"),
    pytest.param("evaluate images --data root --split test", "annotation files",
                 marks=pytest.mark.slow),  # imports torchvision
    ("tune --data in --split test --max-bits-loss 1", "--split test has no effect on in"),
    *((f"evaluate images --data dev.npz --likelihood-only {options}",
       f"{options} has no effect {LIKELIHOOD}")
      for options in ("--samples 2", "--no-greedy", "--same-person", "--sheet s.png",
                      "--engine plain", "--temperature 0.9", "--consistent")),
    ("translate dog --length-penalty 0.6",
     "--length-penalty 0.6 has no effect without beam search; leave it out, or give --beam 4"),
    ("translate dog --beam 2 --trace", "--trace has no effect with --beam 2"),
    ("translate dog --beam 2 --block-size 3", "searches without blocks; leave out --block-size 3"),
    ("evaluate text --data pairs --beam 0 --length-penalty 1",
     "--length-penalty 1.0 has no effect with --beam 0"),
    ("survey create faces --images dev.npz --store s.db --method-a name=k6,block_size=6,epsilon=4 "
     "--method-b nearest", "the method 'k6': epsilon=4 has no effect with accept=exact; leave it "
     "out, or give accept=distance"),
    # text
    *((f"translate dog --checkpoint TOY {options}", message) for options, message in (
        ("--accept distance", "exact, top-k, not 'distance'"),
        ("--block-size 5", "4 prediction heads"),
        ("--temperature 0.9,0.7,0.7", "give one temperature"),
        ("--batch-size 0", "must be at least 1"), ("--beam 0", "beam must be at least 1, not 0"),
        ("--languages en-fr", "translates en-de, not en-fr"),
        ("--languages english", "unknown languages 'english'"),
        ("--epsilon 2", "No such option: --epsilon"),
        ("--input in.txt", "give either text or --input in.txt, not both"))),
    ("translate dog --checkpoint celeba-8to32", "is for the task 'faces', not translation"),
    *((f"evaluate text --data pairs --checkpoint TOY {options}", message) for options, message in (
        ("--limit 0", "limit must be at least 1, not 0"),
        ("--languages de-en", "translates en-de, not de-en"),
        ("--data nowhere", "no parallel text nowhere.en and nowhere.de"))),
    *((f"{TRANSLATE} {name} --output out", message) for name, message in (
        ("empty", "empty is empty; give a text of at least one line"),
        ("latin", "latin, line 2: byte 2 (0xff) is not UTF-8; convert the file"),
        ("none", "none cannot be read: No such file"),
        ("utf-16", "utf-16 is UTF-16 without a byte order mark; convert it to UTF-8"))),
    (f"{TRANSLATE} text --output text", "would replace the input"),
    (f"{TRANSLATE} text --output in", "cannot write"),
]
FILES = {"empty": b"", "latin": b"a dog\nb\xffd\n", "utf-16": "dog\n".encode("utf-16-le"),
         "text": b"a\n"}


@pytest.mark.parametrize(("line", "message"), REFUSED)
def test_a_command_that_is_impossible_or_without_effect_is_refused(
    loaded, data, checkpoint, refused, line, message,
):
    for name, content in FILES.items():
        (data / name).write_bytes(content)
    before = {path: path.stat().st_size for path in data.rglob("*")}
    assert message in refused(*(checkpoint if word == "TOY" else word for word in line.split()))
    assert {path: path.stat().st_size for path in data.rglob("*")} == before
