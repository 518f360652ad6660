"""An option that the others leave without effect is refused, with its value and the remedy; a
default never is."""

from __future__ import annotations

import pytest
from textual import write_checkpoint

from superres.cli.main import run
from superres.config import DecodeConfig
from superres.decoding.acceptance import CRITERIA
from superres.decoding.proposers import PROPOSERS
from superres.errors import ConfigError
from superres.evaluation.tuning import save_default
from superres.pipeline.resolved_options import combined, dependent_on

HEADS = 10
OF_CRITERIA = dependent_on("accept")
T = {"temperature": 0.9}
SETTINGS = {
    "accept": "top-k", "epsilon": 4, "top_k": 3, "min_block": 2, "proposer": "jacobi",
    "adaptive": True, "window": 6, "candidates": 4, "draft": "d", "ngrams": "n",
    "sampling": "coupled", "sample_top_k": 5, "nucleus": 0.9,
}
"""A value of every setting that can be without effect."""

READERS = {"draft": "draft", "ngrams": "ngram", "window": "lookahead", "candidates": "lookahead"}
"""The only proposer that reads a setting."""


def reads(criterion, name):
    return name in CRITERIA[criterion].settings


BLOCKS = ("accept", *OF_CRITERIA, "adaptive")
IDLE = [
    *((name, {"accept": criterion}, "--accept "
       f"{next(other for other in CRITERIA if reads(other, name))}")
      for criterion in CRITERIA for name in OF_CRITERIA if not reads(criterion, name)),
    *((name, {"proposer": proposer}, f"--proposer {reader}") for proposer in PROPOSERS
      for name, reader in READERS.items() if proposer != reader),
    *((name, {}, "--temperature 0.9") for name in ("sampling", "sample_top_k", "nucleus")),
    *((name, {"block_size": 1}, "--block-size K above 1") for name in (*BLOCKS, "proposer",
                                                                       *READERS)),
    *((name, {"block_size": 4, "min_block": 4}, "a smaller --min-block L") for name in BLOCKS),
    *((name, {"sampling": "speculative", **T}, "--sampling coupled") for name in OF_CRITERIA),
]
"""Settings that others leave without effect, those others, and a part of the remedy."""

MEANT = [
    *({name: SETTINGS[name], "accept": criterion} for criterion in CRITERIA for name in OF_CRITERIA
      if reads(criterion, name)),
    {"proposer": "draft", "draft": "d"}, {"proposer": "ngram", "ngrams": "n"},
    {"proposer": "lookahead", "window": 6, "candidates": 4, "block_size": 3},
    {**T, "sampling": "coupled", "sample_top_k": 5, "nucleus": 0.9},
    {**T, "sampling": "speculative", "sample_top_k": 5, "nucleus": 0.9, "proposer": "draft"},
    {"accept": "distance", "min_block": 3, "block_size": 4, "adaptive": True},
    {"block_size": 1, "seed": 7, "temperature": 0.0},
]
"""Settings that go together."""


@pytest.mark.parametrize(("name", "others", "remedy"), IDLE, ids=str)
def test_a_given_setting_without_effect_is_refused(name, others, remedy):
    given = {**others, name: SETTINGS[name]}
    plain = {**given, name: getattr(DecodeConfig(), name)}
    for values in (given, plain) if plain[name] else (given,):
        shown = "" if values[name] is True else f" {values[name]}"
        with pytest.raises(ConfigError) as refused:
            combined(DecodeConfig(), values, HEADS)
        assert str(refused.value).startswith(f"--{name.replace('_', '-')}{shown} has no effect ")
        assert "leave it out, or give " in str(refused.value)
        assert remedy in str(refused.value)
        assert "\n" not in str(refused.value)
    default = DecodeConfig(**({name: SETTINGS[name]} if name not in ("accept", "min_block")
                              else {}))
    # a default without effect is not refused
    assert combined(default, others, HEADS) == default.changed(others)


@pytest.mark.parametrize("given", MEANT, ids=str)
def test_settings_that_go_together_are_taken(given):
    options = combined(DecodeConfig(), given, HEADS)
    assert {name: getattr(options, name) for name in given} == given
    # The others may be the checkpoint's defaults. Another proposer or minimum block needs another
    # block size.
    for name in set(given) - {"accept", "temperature", "proposer", "min_block", "block_size"}:
        default = DecodeConfig(**{other: value for other, value in given.items() if other != name})
        assert combined(default, {name: given[name]}, HEADS) == options


@pytest.mark.parametrize(("default", "given"), [
    (DecodeConfig(accept="distance", epsilon=2, min_block=2), {"sampling": "speculative", **T}),
    (DecodeConfig(sampling="speculative", temperature=0.9), {"temperature": 0.0}),
    (DecodeConfig(adaptive=True), {"proposer": "lookahead"}),
    (DecodeConfig(accept="distance", epsilon=3), {"block_size": 1}),
])
def test_a_default_that_contradicts_what_is_given_gives_way(default, given):
    options = combined(default, given, HEADS)
    assert {name: getattr(options, name) for name in given} == given


@pytest.mark.slow
def test_a_saved_default_makes_an_option_meaningful(checkpoint, tmp_path, refused, capsys):
    folder = write_checkpoint(tmp_path / "tuned")
    save_default(folder, "cpu", DecodeConfig(accept="top-k", top_k=2, block_size=3, window=7))
    words = ["translate", "dog", "--device", "cpu", "--checkpoint"]
    assert run([*words, str(folder), "--top-k", "3"]) == 0
    assert run([*words, str(folder), "--accept", "exact"]) == 0
    capsys.readouterr()
    assert "--top-k 3 has no effect" in refused(*words, checkpoint, "--top-k", "3")
