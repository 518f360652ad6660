"""Drives sessions as the decoder does, and compares them with the uncached network."""

from dataclasses import dataclass, field

import torch
from fakes import random_tokens

from superres.interfaces import Sampler
from superres.nn.torch_model import StepModel


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
