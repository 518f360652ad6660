"""A step over a tree computes for every column what the uncached network computes for its path, and keeps one path."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fakes import SMALL, VARIANTS, random_model, random_tokens
from stepping import assert_close

from superres.nn.step import StepModel
from superres.scoring import Tree

WIDE = replace(SMALL, source_shape=(2, 4, 3), target_shape=(4, 8, 3), attention_block_length=8)
BRANCHY = Tree([-1, 0, 0, 1, 1, 2, 5, 6])
"""Two branches from the root, one of which branches again; the other is the longest path, five columns."""


def random_tree(draw, size, root=0):
    behind = (int(torch.randint(root, column, (), generator=draw)) for column in range(root + 1, size))
    return Tree([-1, *range(root), *behind], root)


def path_of(tree, column):
    """Return the columns from column 0 to `column`."""
    return [c for c in tree.ancestors[column].tolist() if c >= 0][::-1]


def read_from(committed, tokens, start, path):
    """Return the tokens that the last column of a path sees: what was committed before the step, and the path's."""
    own = [int(tokens[column]) for place, column in enumerate(path, start) if place > 0]
    return committed[: max(start - 1, 0)] + own


def check_tree_steps(model, tree, rows=2, seed=0, most=None, padding=None, steps=None, close=assert_close):
    """Read trees of random tokens, keep random paths, and compare all columns' scores with the uncached network's.

    A row keeps a random path from column 0, and goes on from a random column of it (as if the end had been rejected).
    """
    config, draw = model.config, torch.Generator().manual_seed(seed)
    source, _ = random_tokens(config, rows, seed)
    longest = tree.ancestors.shape[1]
    session = StepModel(model).tree_session(source, tree, most or longest, padding)
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
                seen = read_from(committed[row], tokens[row], start, path_of(tree, column))[: config.target_length]
                targets[column, : len(seen)] = torch.tensor(seen)
            inside = (place >= 0) & (place < config.target_length) & (torch.arange(tree.size) < tree.scored)
            own = None if padding is None else padding[row : row + 1].expand(tree.size, -1)
            decoded = model(source[row : row + 1].expand(tree.size, -1), targets, own)
            wanted = model.head_scores(decoded, place.clamp(0, config.target_length - 1).unsqueeze(1), 0)[:, 0]
            close(output.scores[row][inside[: tree.scored]], wanted[inside])
            path = path_of(tree, int(torch.randint(tree.root, tree.size, (), generator=draw)))[: most or longest]
            kept.append((path + [0] * longest)[: most or longest])
            last = int(torch.randint(min(tree.root, len(path) - 1), len(path), (), generator=draw))
            committed[row] = read_from(committed[row], tokens[row], start, path[: last + 1])
            position[row] = start + last + 1
        session.keep(torch.tensor(kept))


@pytest.mark.parametrize("variant", VARIANTS)
def test_columns_of_a_tree_equal_the_uncached_forward_of_their_paths(variant):
    check_tree_steps(random_model(VARIANTS[variant]), BRANCHY)
