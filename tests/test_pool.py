"""The pool of n-grams against a plain list."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from superres.decoding.proposers.lookahead.pool import NgramPool

CAPACITY = 7


class Listed:
    """The latest distinct n-grams of one row; what is known moves to the end and leaves its place empty."""

    def __init__(self):
        self.entries = [None] * CAPACITY

    def add(self, grams):
        kept = [gram if gram not in grams[number + 1 :] else None for number, gram in enumerate(grams)]
        self.entries = [None if entry in grams else entry for entry in self.entries]
        self.entries = (self.entries + kept)[-CAPACITY:]

    def find(self, first, most):
        return [gram[1:] for gram in self.entries[::-1] if gram is not None and gram[0] == first][:most]


@settings(max_examples=60)
@given(st.data(), st.integers(1, 3), st.integers(2, 4), st.integers(1, 5))
def test_the_pool_finds_the_latest_distinct_ngrams_of_each_row(data, rows, size, most):
    pool, plain = NgramPool(rows, size, torch.device("cpu"), CAPACITY), [Listed() for _ in range(rows)]
    for _ in range(data.draw(st.integers(1, 6))):
        count = data.draw(st.integers(1, CAPACITY))
        values = st.lists(st.integers(0, 2), min_size=rows * count * size, max_size=rows * count * size)
        grams = torch.tensor(data.draw(values)).view(rows, count, size)
        pool.add(grams)
        for row in range(rows):
            plain[row].add([tuple(gram) for gram in grams[row].tolist()])
        if data.draw(st.booleans()):
            row = data.draw(st.integers(0, rows - 1))
            pool.clear(torch.tensor([row]))
            plain[row].entries = [None] * CAPACITY
        for first in range(3):
            tokens, known = pool.find(torch.full((rows,), first), most)
            for row in range(rows):
                found = [tuple(gram) for gram in tokens[row][known[row]].tolist()]
                assert found == plain[row].find(first, most)
                assert bool((tokens[row][~known[row]] == 0).all())


def test_rows_that_are_kept_keep_their_ngrams():
    pool = NgramPool(3, 2, torch.device("cpu"), CAPACITY)
    pool.add(torch.tensor([[[0, 1]], [[0, 2]], [[0, 3]]]))
    pool.shrink(torch.tensor([2, 0]))
    assert pool.find(torch.zeros(2, dtype=torch.int64), 1)[0].flatten().tolist() == [3, 1]
