"""Trees of columns, so that one step can verify several continuations (tree attention)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from superres.interfaces import Session


class Tree:
    """A tree of the columns of a step, so that one step can verify several continuations (tree
    attention).

    The position of a column is the root's position plus the column's depth. A column attends to the
    committed tokens, to its ancestors and to itself, and to no other column of the step. This
    visibility mask is the same for all rows.

    Attributes:
        size: M, the number of columns.
        root: the column at the position that a step is given. Columns 0 to `root` form a chain, the
            trunk.
        scored: number of columns that are scored, the first ones; further columns only provide keys
            and values.
        ancestors: int64 [M, L]: the column itself, its parent and so on up to column 0, then -1. L
            is the longest path.
        depth: number of positions from the root to each column, int64 [M]; negative before the
            root.
    """

    def __init__(self, parents: Sequence[int], root: int = 0, scored: int | None = None) -> None:
        """Build a tree from the parent of each column, in any order; the parent is -1 for column 0
        only.

        All columns are scored if `scored` is None. Raises ValueError if the parents do not form a
        tree, or columns 0 to `root` do not form a chain.
        """
        paths = []
        for column in range(len(parents)):
            path = [column]
            while parents[path[-1]] >= 0 and len(path) <= len(parents):  # a cycle is an error
                path.append(parents[path[-1]])
            paths.append(path)
        if not paths or any(path[-1] != 0 for path in paths) or paths[root] != [*range(root, -1,
                                                                                       -1)]:
            raise ValueError(f"no tree from column 0 with a trunk up to column {root}: "
                             f"{list(parents)}")
        longest = max(map(len, paths))
        self.size, self.root, self.scored = (len(paths), root,
                                             len(paths) if scored is None else scored)
        self.ancestors = torch.tensor([path + [-1] * (longest - len(path)) for path in paths])
        self.depth = torch.tensor([len(path) - 1 - root for path in paths])


class TreeSession(Session, Protocol):
    """A session whose steps read the columns of a tree; `width` is the fixed number of columns.

    `step` takes the position of the tree's root, and returns the scores of the first `tree.scored`
    columns. The next step discards all columns that `keep` has not committed.
    """

    tree: Tree

    def keep(self, columns: Tensor) -> None:
        """Commit a path of the latest step to the cache, as if its tokens had been read one after
        another.

        `columns` holds the path of each row from column 0 on, int64 [B, P], P at most `kept` of
        `ScoringModel.tree_session`. The last columns may be rejected ones: moving `position` back
        undoes them.
        """
