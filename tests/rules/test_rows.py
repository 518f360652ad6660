"""Rules that decode several rows of a picture at once."""

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from fakes import VARIANTS, random_model, random_tokens

import pjd
import zipar
from decodes import decode
from rows import Rows
from superres.config import DecodeConfig
from superres.nn.torch_model import StepModel

KEYS = torch.tensor([3, 9])
ROWS, COLUMNS, CHANNELS = 4, 4, 3  # of the pictures here
GREEDY = DecodeConfig(block_size=1)
SAMPLED = DecodeConfig(block_size=1, temperature=0.7, nucleus=0.9, seed=4)


def opened(variant="base aids"):
    return StepModel(random_model(VARIANTS[variant])), random_tokens(VARIANTS[variant], 2)[0]


@pytest.mark.parametrize("variant", ["base aids", "causal attention", "keys per pixel", "plain"])
@pytest.mark.parametrize("options", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("adaptive", [False, True])
def test_a_window_of_the_whole_row_is_raster_decoding(variant, options, adaptive):
    model, source = opened(variant)
    found = zipar.decode(model, source, options, KEYS, window=COLUMNS, adaptive=adaptive)
    assert found.tokens.tolist() == decode(model, source, options, keys=KEYS).tokens.tolist()
    assert [trace.accepted for trace in found.traces] == [[1] * model.length] * 2


@pytest.mark.parametrize("window", [1, 2, 3])
def test_zipar_takes_the_steps_of_its_schedule(window):
    model, source = opened()
    found = zipar.decode(model, source, SAMPLED, KEYS, window=window, adaptive=False)
    assert [trace.iterations for trace in found.traces] == [
        CHANNELS * (window * (ROWS - 1) + COLUMNS)] * 2
    assert [trace.tokens for trace in found.traces] == [model.length] * 2
    # The first row misses nothing.
    assert torch.equal(found.tokens[:, : COLUMNS * CHANNELS],
                       decode(model, source, SAMPLED, keys=KEYS).tokens[:, : COLUMNS * CHANNELS])
    # An adaptive window is a pixel larger at least: a first token waits for it.
    waits = zipar.decode(model, source, SAMPLED, KEYS, window=window, adaptive=True)
    assert all(trace.iterations >= CHANNELS * ((window + 1) * (ROWS - 1) + COLUMNS)
               for trace in waits.traces)


@pytest.mark.parametrize("window", [1, 3, 8, 20])
@pytest.mark.parametrize("variant", ["base aids", "causal attention"])
def test_greedy_drafts_of_one_row_at_a_time_give_the_rasters_tokens(window, variant):
    """A distribution of one token makes the criterion equality: Jacobi decoding."""
    model, source = opened(variant)
    found = pjd.decode(model, source, GREEDY, KEYS, context=COLUMNS * CHANNELS, window=window)
    assert found.tokens.tolist() == decode(model, source, GREEDY).tokens.tolist()
    steps = [trace.iterations for trace in found.traces]
    assert steps == [model.length] * 2 if window == 1 else max(steps) < model.length


def test_a_batch_of_drafts_is_decoded_as_its_pictures_are_alone():
    model, source = opened()
    run = partial(pjd.decode, model, options=SAMPLED, context=6, window=4)
    together = run(source=source, keys=KEYS)
    for row, trace in enumerate(together.traces):
        alone = run(source=source[row : row + 1], keys=KEYS[row : row + 1])
        assert alone.tokens[0].tolist() == together.tokens[row].tolist()
        assert alone.traces[0].accepted == trace.accepted
        assert sorted(trace.sequence.tolist()) == sorted(together.tokens[row].tolist())
        assert trace.positions == [sum(trace.accepted[:i]) for i in range(trace.iterations)]


@pytest.mark.parametrize("rule", [
    partial(zipar.decode, window=1, adaptive=False), partial(zipar.decode, window=1, adaptive=True),
    partial(pjd.decode, context=3, window=4)], ids=["fixed", "adaptive", "drafts"])
def test_no_column_reads_what_is_not_decided(rule, monkeypatch):
    """Other tokens where none is decided, in the cache and as drafts of the first row, change no
    score but those of these drafts' row."""
    model, source = opened()
    read, drafts = Rows.read, []

    def read_twice(rows, place, stand_in):
        session, tokens, finished = rows.session, rows.tokens, rows.finished
        first = rows.top.clamp(max=ROWS - 1) * rows.width
        everywhere = torch.arange(model.length).expand(2, -1)
        decided = rows.column <= rows.count[:, rows.row]  # [B, T]
        rows.session = copy.deepcopy(session)
        rows.session.read_at(torch.where(decided, tokens.gather(1, first), 5),
                             torch.where(decided, first, everywhere),
                             torch.ones(2, model.length, dtype=torch.bool))
        ours = ~decided & (rows.row == rows.top)
        rows.tokens = F.pad(torch.where(ours, 5 - tokens[:, :-2], tokens[:, :-2]), (0, 2))
        other = read(rows, place, stand_in)
        rows.session, rows.tokens, rows.finished = session, tokens, finished
        scores = read(rows, place, stand_in)
        drafts.append(ours.gather(1, place.clamp(min=0)) & (place >= 0))
        torch.testing.assert_close(other[~drafts[-1]], scores[~drafts[-1]])
        return scores

    monkeypatch.setattr(Rows, "read", read_twice)
    rule(model, source, SAMPLED, KEYS)
    assert any(step.any() for step in drafts) == (rule.func is pjd.decode)
