"""A step over a tree computes for every column what the uncached network computes for its path, and
keeps one path."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fakes import PLAIN, SMALL, VARIANTS, random_model, random_tokens
from hypothesis import given, settings
from hypothesis import strategies as st
from stepping import assert_close

from superres.interfaces import Tree
from superres.nn.cache import slot_count
from superres.nn.torch_model import StepModel

WIDE = replace(SMALL, source_shape=(2, 4, 3), target_shape=(4, 8, 3), attention_block_length=8)
BRANCHY = Tree([-1, 0, 0, 1, 1, 2, 5, 6])
"""Two branches from the root, one of which branches again; the other is the longest path, five
columns."""


def random_tree(draw, size, root=0):
    behind = (int(torch.randint(root, column, (), generator=draw)) for column in range(root + 1,
                                                                                       size))
    return Tree([-1, *range(root), *behind], root)


def path_of(tree, column):
    """Return the columns from column 0 to `column`."""
    return [c for c in tree.ancestors[column].tolist() if c >= 0][::-1]


def read_from(committed, tokens, start, path):
    """Return the tokens that the last column of a path sees: what was committed before the step,
    and the path's."""
    own = [int(tokens[column]) for place, column in enumerate(path, start) if place > 0]
    return committed[: max(start - 1, 0)] + own


def check_tree_steps(
    model, tree, rows=2, seed=0, most=None, padding=None, steps=None, session=None,
    close=assert_close,
):
    """Read trees of random tokens, keep random paths, and compare all columns' scores with the
    uncached network's.

    A row keeps a random path from column 0, and goes on from a random column of it (as if the end
    had been rejected).
    """
    config, draw = model.config, torch.Generator().manual_seed(seed)
    source, _ = random_tokens(config, rows, seed)
    longest = tree.ancestors.shape[1]
    session = session or StepModel(model).tree_session(source, tree, most or longest, padding)
    committed = [[] for _ in range(rows)]
    position = torch.zeros(rows, dtype=torch.int64)
    while bool((position < config.target_length).any()) and steps != 0:
        steps = None if steps is None else steps - 1
        tokens = torch.randint(config.vocabulary, (rows, tree.size), generator=draw)
        for row in range(rows):  # what is read again is what was committed
            for column in range(tree.root + 1):
                place = int(position[row]) - tree.root + column
                if 0 < place <= len(committed[row]):
                    tokens[row, column] = committed[row][place - 1]
        output = session.step(tokens, position)
        kept = []
        for row in range(rows):
            start = int(position[row]) - tree.root
            targets = torch.zeros(tree.size, config.target_length, dtype=torch.int64)
            place = (position[row] + tree.depth)
            for column in range(tree.size):
                seen = read_from(committed[row], tokens[row], start,
                                 path_of(tree, column))[: config.target_length]
                targets[column, : len(seen)] = torch.tensor(seen)
            inside = (place >= 0) & (place < config.target_length) & (torch.arange(tree.size)
                                                                      < tree.scored)
            own = None if padding is None else padding[row : row + 1].expand(tree.size, -1)
            decoded = model(source[row : row + 1].expand(tree.size, -1), targets, own)
            wanted = model.head_scores(
                decoded, place.clamp(0, config.target_length - 1).unsqueeze(1), 0
            )[:, 0]
            close(output.scores[row][inside[: tree.scored]], wanted[inside])
            path = path_of(tree, int(torch.randint(tree.root, tree.size, (), generator=draw)))[
                : most or longest]
            kept.append((path + [0] * longest)[: most or longest])
            last = int(torch.randint(min(tree.root, len(path) - 1), len(path), (), generator=draw))
            committed[row] = read_from(committed[row], tokens[row], start, path[: last + 1])
            position[row] = start + last + 1
        session.commit(torch.tensor(kept))


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


def read_twice(model, source, target, paths):
    """Read `target` along `paths`, one after another, with chance tokens beside it; return the
    scores of its tokens."""
    session = model.tree_session(source, BRANCHY, 5)
    draw, scores, place = torch.Generator().manual_seed(len(paths)), [], 0
    for path in paths:
        tokens = torch.randint(model.vocabulary, (len(source), BRANCHY.size), generator=draw)
        for offset, column in enumerate(path, place):
            tokens[:, column] = target[:, max(offset - 1, 0)]
        output = session.step(tokens, torch.full((len(source),), place))
        scores += [output.scores[:, column] for column in path]
        session.commit(torch.tensor(path).expand(len(source), -1))
        place += len(path)
    return torch.stack(scores, dim=1)


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
