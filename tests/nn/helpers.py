"""Drives sessions as decoders do, along a line or a tree, and compares them with the uncached
network."""

from dataclasses import dataclass, field

import torch
from fakes import random_tokens

from superres.nn.torch_model import StepModel
from superres.sessions import Sampler, Tree


def check_steps(model, width, rows=3, seed=0, most=None, padding=None, session=None, close=None,
                resized=False):
    """Drive a session as the decoder does and compare every accepted position with the uncached
    network.

    In each step a row brings a random number of right tokens, at most `most`, and then wrong ones;
    it moves on by the right ones alone. The first step's tokens are wrong but for the start of the
    sequence. If `resized`, every step has a random width of its own, at most `width`.
    """
    close = close or assert_close
    config, draw = model.config, torch.Generator().manual_seed(seed)
    source, target = random_tokens(config, rows, seed)
    decoded = model(source, target, padding)
    wanted = model.scores(decoded)
    everywhere = torch.arange(config.target_length).expand(rows, -1)
    heads = torch.stack([model.head_scores(decoded, everywhere, h)
                         for h in range(config.prediction_heads)], dim=1)
    session = session or StepModel(model).session(source, width, padding)
    right_ahead = torch.cat([target, torch.zeros(rows, width + config.prediction_heads,
                                                 dtype=torch.int64)], dim=1)
    position, seen = torch.zeros(rows, dtype=torch.int64), torch.zeros(rows, config.target_length,
                                                                       dtype=torch.bool)
    wrong = torch.randint(config.vocabulary, (rows, width), generator=draw)
    output, accepted, start = session.step(wrong, position), torch.ones_like(position), position
    widest = width
    while True:
        place = start.unsqueeze(1) + torch.arange(width)
        judged = (torch.arange(width) < accepted.unsqueeze(1)) & (place < config.target_length)
        row = torch.arange(rows).unsqueeze(1).expand_as(place)[judged]
        close(output.scores[judged], wanted[row, place[judged]])
        seen[row, place[judged]] = True
        if config.prediction_heads > 1:
            check_proposals(session, output, start, accepted, heads, right_ahead, close)
        if bool((position >= config.target_length).all()):
            break
        if resized:
            width = int(torch.randint(1, widest + 1, (), generator=draw))
            session.resize(width)
        missing = (config.target_length - position).clamp(max=min(width, most or width))
        accepted = (torch.rand(rows, generator=draw) * missing).long() + 1
        accepted = torch.minimum(accepted, missing)
        right = right_ahead.gather(1, position.unsqueeze(1) + torch.arange(width))
        wrong = ((right + torch.randint(1, config.vocabulary, right.shape, generator=draw))
                 % config.vocabulary)
        tokens = torch.where(torch.arange(width) < accepted.unsqueeze(1), right, wrong)
        start = position + 1
        output = session.step(tokens, start)
        position = position + accepted
    assert bool(seen.all())


def check_proposals(session, output, start, accepted, heads, right_ahead, close):
    count, length = heads.shape[1] - 1, heads.shape[2]
    index = (accepted - 1).clamp(min=0)
    offset = torch.arange(1, count + 1)
    place = (start + index).unsqueeze(1).expand(-1, count)
    first, right = right_ahead.gather(1, place[:, :1])[:, 0], right_ahead.gather(1, place + offset)
    proposed = proposal_scores(session, output, index, first, right)
    inside = place + offset < length
    row = torch.arange(len(accepted)).unsqueeze(1).expand_as(place)[inside]
    close(proposed[inside], heads[row, offset.expand_as(place)[inside], place[inside]])


def proposal_scores(session, output, index, first, tokens):
    """Return the scores of the heads while `tokens` [B, N] are chosen whatever they say (teacher
    forcing)."""
    choose = TeacherForced(tokens)
    proposed = session.propose(output, index, first, torch.arange(1, tokens.shape[1] + 1), choose)
    assert torch.equal(proposed, tokens)
    return torch.cat(choose.seen, dim=1)


@dataclass
class TeacherForced(Sampler):
    """Chooses `tokens` whatever the scores, and keeps these."""

    tokens: torch.Tensor
    seen: list = field(default_factory=list)

    def __call__(self, scores, offsets):
        self.seen.append(scores)
        return self.tokens[:, offsets - 1]


def assert_close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)


# Trees

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
            place = position[row] + torch.from_numpy(tree.depth)
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
