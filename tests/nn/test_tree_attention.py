"""A step over a tree computes for every column what the uncached network computes for its path, and
keeps one path."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fakes import PLAIN, SMALL, VARIANTS, random_model, random_tokens
from hypothesis import given, settings
from hypothesis import strategies as st

from superres.config.tables import slot_count
from superres.nn.torch_model import StepModel
from superres.sessions import Tree
from tests.nn.helpers import BRANCHY, check_tree_steps, random_tree, read_twice

WIDE = replace(SMALL, source_shape=(2, 4, 3), target_shape=(4, 8, 3), attention_block_length=8)

@pytest.mark.parametrize("variant", VARIANTS)
def test_columns_of_a_tree_equal_the_uncached_forward_of_their_paths(variant):
    check_tree_steps(random_model(VARIANTS[variant]), BRANCHY, steps=8)


@pytest.mark.parametrize("config", [WIDE, replace(WIDE, **PLAIN, norm="post")],
                         ids=["aids", "plain"])
@pytest.mark.parametrize("most", [2])
def test_paths_across_attention_blocks_and_many_wraps_of_the_ring_see_what_they_should(config,
                                                                                       most):
    tree = random_tree(torch.Generator().manual_seed(1), 12)
    assert config.target_length > 4 * slot_count(config, most)
    check_tree_steps(random_model(config), tree, rows=1, most=most)


@settings(max_examples=8)
@given(st.integers(0, 1000), st.integers(1, 9), st.integers(0, 3), st.integers(1, 3),
       st.integers(1, 9), st.sampled_from(sorted(VARIANTS)))
def test_rolling_back_any_path_of_any_tree_leaves_what_was_read_in_place(seed, size, root, rows,
                                                                         block_length, variant):
    config = replace(VARIANTS[variant], attention_block_length=block_length)
    tree = random_tree(torch.Generator().manual_seed(seed), size + root, root)
    check_tree_steps(random_model(config, seed), tree, rows, seed, steps=6)


def test_columns_that_are_not_scored_are_seen_all_the_same():
    tree = Tree([-1, 4, 0, 2, 3, 1], scored=2)
    check_tree_steps(random_model(SMALL), tree, steps=6)


@pytest.mark.parametrize("variant", VARIANTS)
def test_float32_scores_do_not_depend_on_the_path_by_a_single_bit(variant):
    # With fewer outputs, MKL's products depend on the row that they stand in.
    config = replace(VARIANTS[variant], vocabulary=16)
    model = StepModel(random_model(config, dtype=torch.float32))
    source, target = random_tokens(config, 2)
    single = read_twice(model, source, target, [[0]] * 20)
    assert torch.equal(read_twice(model, source, target,
                                  [[0, 2, 5, 6, 7], [0, 1, 3], [0, 1], [0, 2, 5], [0], [0, 1, 4],
                                   [0, 2, 5]]), single)


@pytest.mark.parametrize(("parents", "root"),
                         [([], 0), ([0, -1], 0), ([-1, -1], 0), ([-1, 2, 1], 0), ([-1, 0, 0], 2)])
def test_what_is_no_tree_is_refused(parents, root):
    with pytest.raises(ValueError, match="no tree"):
        Tree(parents, root)


def test_a_tree_keeps_its_width():
    session = StepModel(random_model(SMALL)).tree_session(random_tokens(SMALL, 1)[0], BRANCHY, 2)
    session.resize(BRANCHY.size)
    with pytest.raises(ValueError, match="8 columns cannot read 3"):
        session.resize(3)
