"""The columns of a step of lookahead decoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from superres.config import DecodeConfig, require
from superres.sessions import Tree


def partition(count: int, rank: int = 0, processes: int = 1) -> range:
    """Return the part of 0..`count` - 1 that belongs to process `rank`; parts differ in size by at
    most one."""
    return range(count * rank // processes, count * (rank + 1) // processes)


class Layout:
    """The meaning of each column of a step (figure 2b of Fu et al.).

    Cell (s, c) of the window, stage s and column c, is a guess of the token s + c places after the
    row's last token. Cell (0, 0) is that last token itself, the root. A cell attends to the cells
    of stage 0 up to its own column, and to the earlier stages of its own column. The tokens of a
    candidate attend to the root and to one another.

    Attributes:
        tree: the columns in this order: tokens that are read again, the root, the candidates, the
            window's last stage, and the window's other stages.
        paths: columns of the root and of each candidate, int64 [G, N].
        guesses: columns of the window's last stage, [W].
        cells: stage and window column of each column of the step after the candidates, int64 [2,
            ...].
    """

    def __init__(self, ngram_size: int, columns: Sequence[int], candidates: int,
                 reread: int = 0) -> None:
        """Lay out a step for n-grams of `ngram_size` tokens and a number of `candidates` to verify.

        `columns` are those of the window whose guesses are predicted, in ascending order. The step
        reads a number of `reread` tokens before the root again.
        """
        last = ngram_size - 2
        parents, paths = [*range(-1, reread)], []
        for _ in range(candidates):
            path = [reread, *range(len(parents), len(parents) + ngram_size - 1)]
            parents += path[:-1]
            paths.append(path)
        stages = [(stage, column) for stage in range(1, last + 1) for column in columns]
        trunk = [(0, column) for column in range(1, columns[-1] + 1)]
        # cells of other stages need no scores
        cells = sorted(trunk + stages, key=lambda cell: cell[0] != last)
        number = {(0, 0): reread,
                  **{cell: column for column, cell in enumerate(cells, len(parents))}}
        parents += [number[(stage - 1, column) if stage else (0, column - 1)] for stage,
                    column in cells]
        guesses = [number[last, column] for column in columns]
        self.paths, self.guesses = np.array(paths), np.array(guesses)
        self.cells = np.ascontiguousarray(np.array(cells, np.int64).reshape(-1, 2).T)
        self.tree = Tree(parents, reread, 1 + max([*guesses, *(path[-1] for path in paths)]))

    @classmethod
    def of(cls, options: DecodeConfig, ngram_size: int, peers: Any = None) -> Layout:  # noqa: ANN401 -- `superres.decoding.plain.lookahead.peers.Peers`
        """Return the layout for `options`, or this process's part of it if `peers` is given.

        Raises:
            ConfigError: there are more processes than columns or candidates.
        """
        window, candidates = options.window, options.candidates
        if peers is None:
            return cls(ngram_size, range(window), candidates)
        rank, count = peers.rank, peers.count
        require(count <= min(window, candidates), f"{count} processes need a window and candidates "
                f"of at least {count}, not {window} and {candidates}; start fewer processes")
        return cls(ngram_size, partition(window, rank, count),
                   len(partition(candidates, rank, count)), ngram_size - 1)
