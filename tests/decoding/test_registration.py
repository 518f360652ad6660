"""Own proposers, criteria and engines, registered or named by installed packages."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from fakes import TINY, VARIANTS, limits_of, random_model, random_tokens
from PIL import Image

import superres
from decodes import decode
from superres.checkpoint import save_checkpoint
from superres.config import CRITERION_NAMES, PROPOSER_NAMES, DecodeConfig
from superres.decoding.acceptance import CRITERIA, Verdict
from superres.decoding.plain.limited import LimitedModel
from superres.decoding.proposers import PROPOSERS
from superres.errors import ConfigError
from superres.nn.torch_model import StepModel
from superres.pipeline.choose import ENGINES

SMALL = replace(TINY, target_shape=(16, 16, 3))


@pytest.fixture(autouse=True)
def restored():
    """Leave no name behind."""
    yield
    for registry in (PROPOSERS, CRITERIA, ENGINES):
        for name in {"mine"} & set(registry):
            del registry[name]


class Wrong(superres.Proposer):
    """Proposes token 1 always."""

    def propose(self, context, offsets):
        return torch.ones(len(context.position), len(offsets), dtype=torch.int64)


class All(superres.Criterion):
    """Accepts everything."""

    rule = None

    def accept(self, proposed, scores, position):
        return torch.ones_like(proposed, dtype=torch.bool)


def test_an_own_proposer_is_exact_and_an_own_criterion_decides():
    assert superres.register_proposer("mine")(Wrong) is Wrong
    superres.register_criterion("mine")(All)
    assert "mine" in PROPOSER_NAMES
    assert "mine" in CRITERION_NAMES
    model = StepModel(random_model(SMALL, dtype=torch.float32))
    source = random_tokens(SMALL, 2)[0]
    greedy = decode(model, source, DecodeConfig(block_size=1))
    exact = decode(model, source, DecodeConfig(block_size=3, proposer="mine"))
    assert torch.equal(exact.tokens, greedy.tokens)
    loose = decode(model, source, DecodeConfig(block_size=3, proposer="mine", accept="mine"))
    assert max(trace.iterations for trace in loose.traces) <= model.length // 3 + 1
    assert (loose.tokens == 1).float().mean() > 0.6
    superres.register_proposer("mine")(type("Again", (Wrong,), {}))  # a cell that runs again


def test_an_own_criterion_judges_drawn_proposals_and_nothing_else():
    class Drawn(superres.DrawCriterion):
        """Passes every proposal."""

        def judge(self, draws):
            return Verdict(draws.uniform >= 0, lambda p, q, index: p)

    model = StepModel(random_model(SMALL, dtype=torch.float32))
    source = random_tokens(SMALL, 2)[0]
    superres.register_criterion("mine")(Drawn)
    sampled = {"temperature": 0.9, "sampling": "speculative"}
    all_passed = decode(model, source, DecodeConfig(block_size=3, accept="mine", **sampled))
    assert max(trace.iterations for trace in all_passed.traces) == model.length // 3
    with pytest.raises(ConfigError, match="mine judges drawn proposals; sample speculative"):
        decode(model, source, DecodeConfig(block_size=3, accept="mine", temperature=0.9))
    superres.register_proposer("mine")(type("Drawing", (Wrong,), {"draws_only": True}))
    with pytest.raises(ConfigError, match="mine draws its proposals; sample speculative"):
        decode(model, source, DecodeConfig(block_size=3, proposer="mine"))
    superres.register_criterion("mine")(All)
    with pytest.raises(ConfigError, match="takes criteria of drawn proposals, not mine; leave"):
        decode(model, source, DecodeConfig(block_size=3, accept="mine", **sampled))


@pytest.mark.parametrize(("config", "limited", "shape", "width"), [
    (VARIANTS["base aids"], False, (4, 4, 3), 4), (VARIANTS["base aids"], True, (4, 4, 3), 4),
    (replace(VARIANTS["base aids"], source_shape=(2, 4, 3), target_shape=(4, 8, 3)), False,
     (4, 8, 3), 8),
    (VARIANTS["text"], False, VARIANTS["text"].target_shape, *VARIANTS["text"].target_shape)])
def test_a_proposer_knows_the_shape_of_the_target(config, limited, shape, width):
    seen = set()

    class Looking(Wrong):
        def propose(self, context, offsets):
            seen.add((context.shape, context.width))
            return super().propose(context, offsets)

    superres.register_proposer("mine")(Looking)
    model = StepModel(random_model(config, dtype=torch.float32))
    model = LimitedModel(model, limits_of(config)) if limited else model
    decode(model, random_tokens(config, 1)[0], DecodeConfig(block_size=2, proposer="mine"))
    assert seen == {(shape, width)}


@pytest.mark.parametrize(("name", "kind", "message"), [
    ("heads", Wrong, "heads is built in; choose another name"),
    ("a b", Wrong, "a name has letters, digits"), ("", Wrong, "a name has letters, digits"),
    ("mine", All, "mine must be a class derived from superres.Proposer"),
    ("mine", Wrong(), "mine must be a class derived from superres.Proposer"),
])
def test_what_is_no_proposer_is_refused_in_one_line(name, kind, message):
    with pytest.raises(ConfigError, match=message):
        superres.register_proposer(name)(kind)
    assert "mine" not in PROPOSERS


GOOD = """
import torch
import superres

class Ones(superres.Proposer):
    def propose(self, context, offsets):
        return torch.ones(len(context.position), len(offsets), dtype=torch.int64)

class Lax(superres.Criterion):
    settings = ("epsilon",)

    def accept(self, proposed, scores, position):
        return (proposed - scores.argmax(-1)).abs() <= 3

class Steps(superres.StepModel):
    pass
"""
PLUGINS = {
    "raising": "raise RuntimeError('mine\\nis broken')", "exiting": "import sys; sys.exit(3)",
    "good": GOOD, "wrong": "class Ones: pass\nLax = Steps = 7", "looping": "def f(): return "
    "f()\nf()", "shadow": GOOD,
}


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """Install a package of each kind; return the environment in which they are found."""
    folder = tmp_path_factory.mktemp("packages")
    for name, code in PLUGINS.items():
        (folder / f"its_{name}.py").write_text(code)
        about = folder / f"its_{name}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: its-{name}\nVersion: 1.0\n")
        names = ("heads", "exact", "plain") if name == "shadow" else (name,) * 3
        (about / "entry_points.txt").write_text("".join(
            f"[superres.{group}]\n{one} = its_{name}:{kind}\n" for one, group, kind in zip(
                names, ("proposers", "criteria", "engines"), ("Ones", "Lax", "Steps"),
                strict=True)))
    return {**os.environ,
            "PYTHONPATH": os.pathsep.join([str(folder), str(Path(__file__).parents[2])])}


def python(packages, *words):
    return subprocess.run([sys.executable, *words], env=packages, capture_output=True, text=True,
                          check=False)


def test_packages_that_fail_at_import_take_no_command_down(packages):
    done = python(packages, "-m", "superres", "--version")
    assert (done.returncode, done.stderr) == (0, "")
    helped = python(packages, "-m", "superres", "upscale", "--help")
    assert helped.returncode == 0
    assert all(name in helped.stdout for name in PLUGINS if name != "shadow")
    assert "Traceback" not in helped.stderr


LOOKED_UP = """
import sys
import superres
from superres.decoding.acceptance import CRITERIA
from superres.decoding.proposers import PROPOSERS
from superres.pipeline.choose import ENGINES
assert not any(name.startswith("its_") for name in sys.modules)
for registry in (PROPOSERS, CRITERIA, ENGINES):
    for name in registry:
        try:
            print(name, registry[name].__module__)
        except superres.SuperresError as error:
            print(error)
print(superres.DecodeConfig(block_size=2, proposer="good", accept="good"))
"""


def test_a_plug_in_is_imported_when_its_name_is_chosen_and_refused_if_it_does_not_fit(packages):
    done = python(packages, "-c", LOOKED_UP)
    assert done.returncode == 0, done.stderr
    for registry in ("Proposer", "Criterion", "StepModel"):
        assert f"wrong must be a class derived from superres.{registry}" in done.stdout
    for line in ("good its_good", "heads superres.decoding.proposers.",
                 "raising of the package its-raising cannot be used (RuntimeError: mine is "
                 "broken); fix or uninstall",
                 "exiting of the package its-exiting cannot be used (SystemExit: 3)",
                 "looping of the package its-looping cannot be used (RecursionError: ", "exact "
                 "superres.decoding."):
        assert line in done.stdout
    told = "the plug-in of that name in the package its-shadow is not used"
    assert done.stderr.splitlines() == [f"{name}; {told}" for name in (
        "heads is the built-in proposer", "exact is the built-in criterion", "plain is the "
        "built-in engine")]


def test_the_command_decodes_with_plug_ins_exactly_and_says_why_another_cannot_be_used(packages,
                                                                                       tmp_path):
    """One process decodes with each of them."""
    save_checkpoint(random_model(SMALL, dtype=torch.float32), tmp_path / "small")
    ways = {"greedy": ["--block-size", "1"], "proposer": ["--proposer", "good"],
            "criterion": ["--accept", "good", "--epsilon", "3"], "engine": ["--engine", "good"],
            "exiting": ["--proposer", "exiting"]}
    face = Path(__file__).parents[2] / "scripts" / "faces" / "face-1.png"
    commands = [["upscale", str(face), "--checkpoint", str(tmp_path / "small"), "--block-size",
                 "8", "--output", str(tmp_path / way), *words] for way, words in ways.items()]
    done = python(packages, "-c", "from superres.cli.main import run\n"
                  f"print([run(command) for command in {commands!r}])")
    assert done.stdout.splitlines()[-1] == "[0, 0, 0, 0, 2]", done.stderr
    refused = done.stderr.splitlines()[-1]
    assert "exiting of the package its-exiting cannot be used" in refused
    greedy, proposed, accepted, _ = (np.asarray(Image.open(tmp_path / way / "face-1.png")).tolist()
                                     for way in list(ways)[:4])
    assert greedy == proposed != accepted


def test_the_damaged_list_of_a_package_makes_one_warning(packages, tmp_path):
    about = tmp_path / "damaged-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Name: damaged\n")
    (about / "entry_points.txt").write_bytes(b"[superres.proposers]\n\xff = its:X\n")
    path = os.pathsep.join([str(tmp_path), packages["PYTHONPATH"]])
    done = python({**packages, "PYTHONPATH": path}, "-m", "superres", "--version")
    assert done.returncode == 0
    assert "is damaged" in done.stderr
    assert "Traceback" not in done.stderr
