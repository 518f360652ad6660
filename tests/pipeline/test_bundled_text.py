"""The bundled checkpoint for translation, its draft and its counts: what a user gets from a fresh
clone."""

from __future__ import annotations

import pytest

import superres
from superres.decoding.proposers import PROPOSERS
from superres.evaluation.examples import SENTENCES
from superres.system.folders import bundled_folder

NAME = "multi30k-en-de"
WIDTH = 10


@pytest.fixture(scope="module")
def translator():
    return superres.load(NAME, device="cpu")


@pytest.fixture(scope="module", params=[0.0, 0.9], ids=["greedy", "sampling"])
def sequential(request, translator):
    """One token a step, at the width of the largest block."""
    options = superres.DecodeConfig(block_size=1, temperature=request.param)
    return request.param, translator.decode(SENTENCES, options, width=WIDTH)


def tokens(result):
    return [trace.sequence.tolist() for trace in result.traces]


def test_exact_blocks_equal_one_token_at_a_time_for_every_block_size(translator, sequential):
    temperature, reference = sequential
    for k in (2, 4, 6, 8, 10):
        result = translator.decode(SENTENCES, superres.DecodeConfig(k, temperature=temperature),
                                   width=WIDTH)
        assert tokens(result) == tokens(reference), f"k={k}"
        assert result.texts == reference.texts


@pytest.mark.parametrize("name",
                         [name for name, kind in PROPOSERS.items() if not kind.proposes_tree])
def test_every_proposer_leaves_translations_as_they_are(name, translator, sequential):
    temperature, reference = sequential
    options = superres.DecodeConfig(6, proposer=name, temperature=temperature)
    assert tokens(translator.decode(SENTENCES, options, width=WIDTH)) == tokens(reference)


def test_captions_become_german_in_few_steps(translator):
    lines = ["A dog runs through the snow.", "Two men are talking on the street."]
    result = translator(lines, superres.DecodeConfig())
    first, second = result.texts
    assert "Hund" in first
    assert "Schnee" in first
    assert "Zwei Männer" in second
    assert 2 * sum(line.steps for line in result) < sum(line.tokens for line in result)


def test_a_batch_has_the_same_texts_in_blocks_and_by_default(translator):
    lines = ["A dog runs through the snow.", "Two men are talking on the street."] * 4
    single, chosen = (translator(lines, superres.DecodeConfig(1)),
                      translator(lines, superres.DecodeConfig(2)))
    assert single.texts == chosen.texts == translator(lines).texts
    assert all(trace.iterations == trace.tokens for trace in single.traces)
    assert all(trace.iterations < trace.tokens for trace in chosen.traces)


def test_what_is_bundled_is_small():
    for name in (NAME, "celeba-8to32"):
        draft = bundled_folder() / f"{name}-draft" / "model.safetensors"
        assert draft.stat().st_size <= 5 * 2**20
        assert (bundled_folder() / name / "ngrams.safetensors").stat().st_size <= 5 * 2**20
