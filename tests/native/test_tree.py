"""The native step over a tree, and native iterations of lookahead."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fakes import limits_of, on_native, random_model, random_tokens
from textual import CONFIG, wordy

from decodes import decode
from superres.config import DecodeConfig
from superres.decoding.plain.limited import LimitedModel
from superres.decoding.plain.lookahead.pool import NgramPool
from superres.decoding.proposers.lookahead.proposer import LookaheadProposer
from superres.native.on_torch import TreeSessionOnTorch
from superres.nn.torch_model import StepModel
from superres.sessions import Tree
from tests.native.helpers import KNOWN, NATIVE, compiled, native_model
from tests.nn.helpers import BRANCHY, check_tree_steps, random_tree, read_twice
from tests.proofs.test_consistency import assert_consistent
from tests.proofs.test_native import assert_same_decode, close

pytestmark = compiled

SIZES = [{"window": window, "block_size": size, "candidates": count}
         for window, size, count in ((1, 2, 1), (5, 2, 4), (4, 3, 3), (6, 5, 2))]
CRITERIA = {"exact": {}, "top-k": {"accept": "top-k", "top_k": 2},
            "distance": {"accept": "distance", "epsilon": 1}}
ROWS = 3


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["text", "recurrent heads", "plain", "base aids",
                                     "no remainder", "no neighbourhood", "neighbourhood alone",
                                     "hyperbolic", "keys per pixel"])
def test_the_step_over_a_tree_equals_the_uncached_network(variant):
    config = KNOWN[variant]
    padding = (torch.arange(config.source_length) >= torch.tensor([[7], [3]]) if variant == "text"
               else None)
    draw = torch.Generator().manual_seed(2)
    for tree in (BRANCHY, Tree([-1, 4, 0, 2, 3, 1], scored=2), random_tree(draw, 9)):
        session = native_model(config, threads=2).tree_session(
            random_tokens(config, 2)[0], tree, tree.ancestors.shape[1], padding)
        assert isinstance(session, TreeSessionOnTorch)
        check_tree_steps(random_model(config), tree, padding=padding, steps=8, session=session,
                         close=close)
        with pytest.raises(ValueError, match="columns cannot read 3"):
            session.resize(3)


@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize("variant", ["text", "recurrent heads", "plain", "base aids"])
def test_scores_do_not_depend_on_the_path_by_a_single_bit(variant, precision):
    config = KNOWN[variant]
    source, target = random_tokens(config, 2)
    alone, shared = (native_model(config, precision=precision, threads=count) for count in (1, 2))
    single = read_twice(alone, source, target, [[0]] * 20)
    paths = [[0, 2, 5, 6, 7], [0, 1, 3], [0, 1], [0, 2, 5], [0], [0, 1, 4], [0, 2, 5]]
    assert torch.equal(read_twice(shared, source, target, paths), single)
    chain = alone.session(source, 1)
    inputs = torch.cat([torch.zeros(2, 1, dtype=torch.int64), target], dim=1)
    steps = [chain.step(inputs[:, p : p + 1], torch.full((2,), p)).scores for p in range(20)]
    assert torch.equal(torch.cat(steps, dim=1), single)


def test_trees_with_a_trunk_get_the_plain_step_and_one_line(caplog):
    model, source = native_model(KNOWN["text"]), random_tokens(KNOWN["text"], 1)[0]
    for _ in range(2):
        session = model.tree_session(source, Tree([-1, 0, 1], root=1), 2)
        assert not isinstance(session, TreeSessionOnTorch)
    assert caplog.messages == ["decoding with the plain step in float32, which is slower: the "
                               "native step does not support trees with a trunk"]


class OwnPool(NgramPool):
    """The usual pool, which native iterations do not know."""


@pytest.mark.parametrize(("task", "sizes", "criterion"), [
    *(("text", number, criterion) for number in range(4) for criterion in ("exact", "top-k")),
    *(("limited image", *case) for case in ((0, "exact"), (2, "top-k"), (1, "distance"))),
    *(("image", *case) for case in ((1, "exact"), (3, "top-k"), (2, "distance")))])
def test_native_iterations_are_those_of_the_loop(task, sizes, criterion):
    """Attention in blocks, the neighbourhood and limits of images all depend on a column's path."""
    text, limited = task == "text", task == "limited image"
    config = (replace(CONFIG, **NATIVE) if text
              else replace(KNOWN["base aids"], attention_block_length=5))
    source = random_tokens(config, ROWS)[0]
    options = DecodeConfig(proposer="lookahead", **SIZES[sizes], **CRITERIA[criterion])

    def decoded(kind=on_native, options=options, **more):
        network = (wordy(config, 2, torch.float32) if text  # it ends its sentences
                   else random_model(config, dtype=torch.float32))
        model = kind(network, end_token=1 if text else None)
        return decode(LimitedModel(model, limits_of(config)) if limited else model, source, options,
                      **more)

    native, plain = decoded(), decoded(StepModel)
    assert_same_decode(native, decoded(proposer=LookaheadProposer(OwnPool)))
    if criterion == "exact" or not text:  # torch's scores differ in their last bits
        assert torch.equal(native.tokens, plain.tokens)
    if criterion == "exact":
        assert torch.equal(native.tokens, decoded(options=DecodeConfig(block_size=1)).tokens)
        assert [each.accepted for each in native.traces] == [each.accepted for each in plain.traces]
    if limited:
        assert_consistent(native.tokens, source, config)
