"""CTranslate2 translates an exported checkpoint to the tokens of greedy decoding."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
import torch
from fakes import SMALL
from textual import CONFIG, codec, vocabulary, wordy

from superres.checkpoint import save_checkpoint
from superres.cli.main import run
from superres.config import DecodeConfig
from superres.nn.model import EncoderDecoder
from superres.pipeline.translator import Translator
from superres.tasks.translation import VOCABULARY_FILE

ctranslate2 = pytest.importorskip("ctranslate2", reason="ctranslate2 is missing: pip install -e "
                                  "'.[peers]'")

LINES = ["a dog", "a man sees a tree. the dog runs", "tree " * 10, "x", "the man runs. a dog sees "
         "the tree"]


def write(folder, **changes):
    """Write a random network whose sentences end, and return its folder."""
    torch.manual_seed(0)
    model = wordy(replace(CONFIG, **changes), 2, torch.float32)
    save_checkpoint(model, folder, dtype=torch.float32, files={VOCABULARY_FILE: vocabulary()})
    return folder


@pytest.mark.parametrize("changes",
                         [{}, {"norm": "post"}, {"encoder_layers": 2, "prediction_heads": 1}])
def test_an_exported_network_gives_the_tokens_of_greedy_decoding(changes, tmp_path):
    folder, exported = write(tmp_path / "toy", **changes), tmp_path / "made" / "exported"
    assert run(["export", "ctranslate2", str(folder), str(exported)]) == 0
    peer = ctranslate2.Translator(str(exported), compute_type="float32")
    tokens = [codec().pieces.encode(line, out_type=str) for line in LINES]
    found = peer.translate_batch(tokens, beam_size=1, max_decoding_length=CONFIG.target_length)
    expected = Translator.load(folder, "cpu", engine="plain")(LINES, DecodeConfig(block_size=1))
    assert changes or len({len(result.hypotheses[0]) for result in found}) > 1  # some sentences end
    # CTranslate2 has one largest length for all lines, superres one for each source.
    most = [CONFIG.longest_target(len(row) + 1) for row in tokens]
    cut = [result.hypotheses[0][:length] for result, length in zip(found, most, strict=True)]
    assert [codec().pieces.decode(row) for row in cut] == expected.texts


def test_the_readme_of_an_exported_network_runs(tmp_path, capsys):
    exported = tmp_path / "exported"
    assert run(["export", "ctranslate2", str(write(tmp_path / "toy")), str(exported)]) == 0
    assert "written" in capsys.readouterr().err
    code = (exported / "README.md").read_text().split("```")[1].removeprefix("python\n")
    exec(code, {})  # noqa: S102
    expected = Translator.load(tmp_path / "toy", "cpu", engine="plain")(["A dog runs."],
                                                                        DecodeConfig(block_size=1))
    assert capsys.readouterr().out == expected.texts[0] + "\n"


@pytest.mark.parametrize(("config", "message"), [
    (SMALL, "checkpoint toy is for faces; CTranslate2 translates text only"),
    (replace(CONFIG, identity_p1=False, head_layer="per-head"), "p1 of checkpoint toy passes "
     "through its head layer"),
    (replace(CONFIG, attention="local_1d", attention_block_length=8), "no causal attention"),
])
def test_a_network_that_ctranslate2_does_not_know_gets_one_line(config, message, tmp_path, capsys):
    save_checkpoint(EncoderDecoder(config), tmp_path / "toy", files={VOCABULARY_FILE: vocabulary()})
    assert run(["export", "ctranslate2", str(tmp_path / "toy"), str(tmp_path / "exported")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "exported").exists()


def test_a_folder_with_files_and_a_missing_package_are_refused_in_one_line(tmp_path, capsys,
                                                                           monkeypatch):
    write(tmp_path / "toy")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    assert run(["export", "ctranslate2", str(tmp_path / "toy"), str(tmp_path / "full")]) == 2
    assert "full exists and is not an empty folder; choose another one" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine.txt"]
    monkeypatch.setitem(sys.modules, "ctranslate2.specs", None)
    assert run(["export", "ctranslate2", str(tmp_path / "toy"), str(tmp_path / "exported")]) == 2
    assert "pip install 'superres[peers]'" in capsys.readouterr().err
