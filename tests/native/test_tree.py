"""The native step over a tree, and native iterations of lookahead."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from fakes import NATIVE, VARIANTS, limits_of, random_model, random_tokens
from textual import CONFIG, wordy

from decodes import decode
from superres.config import DecodeConfig
from superres.decoding.proposers.lookahead.pool import NgramPool
from superres.decoding.proposers.lookahead.proposer import LookaheadProposer
from superres.decoding.sum_limits import LimitedModel
from superres.interfaces import Tree
from superres.native import build
from superres.native.model import NativeModel, NativeTreeSession
from superres.nn.torch_model import StepModel
from tests.nn.helpers import BRANCHY, check_tree_steps, random_tree, read_twice
from tests.proofs.test_consistency import assert_consistent
from tests.proofs.test_native import assert_same_decode, close

pytestmark = pytest.mark.skipif(build.compiler() is None, reason="no C++ compiler on this machine")

KNOWN = {name: replace(VARIANTS[name], **NATIVE) for name in (
    "text", "recurrent heads", "plain", "base aids", "no remainder", "no neighbourhood",
    "neighbourhood alone", "hyperbolic", "keys per pixel")}
SIZES = [{"window": 1, "block_size": 2, "candidates": 1},
         {"window": 5, "block_size": 2, "candidates": 4},
         {"window": 4, "block_size": 3, "candidates": 3},
         {"window": 6, "block_size": 5, "candidates": 2}]
SENTENCES = replace(CONFIG, **NATIVE)
ROWS = 3


@pytest.mark.parametrize("variant", KNOWN)
def test_the_step_over_a_tree_equals_the_uncached_network(variant):
    config = KNOWN[variant]
    padding = (torch.arange(config.source_length) >= torch.tensor([[7], [3]]) if variant == "text"
               else None)
    draw = torch.Generator().manual_seed(2)
    for tree in (BRANCHY, Tree([-1, 4, 0, 2, 3, 1], scored=2), random_tree(draw, 9)):
        session = NativeModel(random_model(config, dtype=torch.float32), threads=2).tree_session(
            random_tokens(config, 2)[0], tree, tree.ancestors.shape[1], padding)
        assert isinstance(session, NativeTreeSession)
        check_tree_steps(random_model(config), tree, padding=padding, steps=8, session=session,
                         close=close)
        with pytest.raises(ValueError, match="columns cannot read 3"):
            session.resize(3)


@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize("variant", ["text", "recurrent heads", "plain", "base aids"])
def test_scores_do_not_depend_on_the_path_by_a_single_bit(variant, precision):
    config = KNOWN[variant]
    model = random_model(config, dtype=torch.float32)
    source, target = random_tokens(config, 2)
    make = partial(NativeModel, model, precision=precision)
    single = read_twice(make(threads=1), source, target, [[0]] * 20)
    paths = [[0, 2, 5, 6, 7], [0, 1, 3], [0, 1], [0, 2, 5], [0], [0, 1, 4], [0, 2, 5]]
    assert torch.equal(read_twice(make(threads=2), source, target, paths), single)
    chain = make(threads=1).session(source, 1)
    inputs = torch.cat([torch.zeros(2, 1, dtype=torch.int64), target], dim=1)
    steps = [chain.step(inputs[:, p : p + 1], torch.full((2,), p)).scores for p in range(20)]
    assert torch.equal(torch.cat(steps, dim=1), single)


def test_trees_with_a_trunk_get_the_plain_step_and_one_line(caplog):
    model, source = (NativeModel(random_model(KNOWN["text"], dtype=torch.float32)),
                     random_tokens(KNOWN["text"], 1)[0])
    for _ in range(2):
        assert not isinstance(model.tree_session(source, Tree([-1, 0, 1], root=1), 2),
                              NativeTreeSession)
    (record,) = caplog.records
    assert record.getMessage() == ("decoding with the plain step in float32, which is slower: the "
                                   "native step does not support trees with a trunk")


def sentences(kind=NativeModel):
    """Return a model that ends its sentences, and sources."""
    return kind(wordy(SENTENCES, 2, torch.float32), end_token=1), random_tokens(SENTENCES, ROWS)[0]


class OwnPool(NgramPool):
    """The usual pool, which native iterations do not know."""


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("criterion", [{}, {"accept": "top-k", "top_k": 2}])
def test_native_iterations_are_those_of_the_loop(sizes, criterion):
    options = DecodeConfig(proposer="lookahead", **sizes, **criterion)
    model, source = sentences()
    native = decode(model, source, options)
    single = decode(model, source, options, proposer=LookaheadProposer(OwnPool))
    assert_same_decode(native, single)
    if not criterion:
        assert torch.equal(native.tokens, decode(model, source, DecodeConfig(block_size=1)).tokens)
        plain = decode(sentences(StepModel)[0], source, options)
        assert torch.equal(native.tokens, plain.tokens)
        assert [trace.accepted for trace in native.traces] == [trace.accepted
                                                               for trace in plain.traces]


@pytest.mark.parametrize(("sizes", "limited", "criterion"), [
    (SIZES[0], True, {}), (SIZES[1], False, {}), (SIZES[2], True, {"accept": "top-k", "top_k": 2}),
    (SIZES[3], False, {"accept": "top-k", "top_k": 2}),
    (SIZES[1], True, {"accept": "distance", "epsilon": 1}),
    (SIZES[2], False, {"accept": "distance", "epsilon": 1})])
def test_native_iterations_of_images_are_those_of_the_loop(sizes, limited, criterion):
    """Attention in blocks, the neighbourhood and limits all depend on a column's path."""
    config = replace(KNOWN["base aids"], attention_block_length=5)
    source, options = random_tokens(config, ROWS)[0], DecodeConfig(proposer="lookahead", **sizes,
                                                                   **criterion)

    def model(kind):
        made = kind(random_model(config, dtype=torch.float32))
        return LimitedModel(made, limits_of(config)) if limited else made

    native = decode(model(NativeModel), source, options)
    assert_same_decode(native, decode(model(NativeModel), source, options,
                                      proposer=LookaheadProposer(OwnPool)))
    assert torch.equal(native.tokens, decode(model(StepModel), source, options).tokens)
    if not criterion:
        assert torch.equal(native.tokens,
                           decode(model(NativeModel), source, DecodeConfig(block_size=1)).tokens)
    if limited:
        assert_consistent(native.tokens, source, config)
