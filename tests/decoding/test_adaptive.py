"""Adaptive block sizes: the same tokens at any sizes, the size that pays, and recorded costs."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from fakes import (
    SMALL,
    VARIANTS,
    drafted,
    random_model,
    random_tokens,
)
from hypothesis import given
from hypothesis import strategies as st

from decodes import Numbered, decode, engine_of
from superres.checkpoint import save_checkpoint
from superres.config import CostRecord, DecodeConfig, StepCosts, general_costs
from superres.decoding import cost
from superres.decoding.algorithm import Algorithm
from superres.decoding.batching import Stream, feed_of
from superres.decoding.block_size import fastest_size
from superres.decoding.cost import measured_costs
from superres.decoding.proposers.lookup import LookupProposer
from superres.errors import CheckpointError, ConfigError
from superres.nn.torch_model import StepModel
from superres.pipeline.choose import BlockSizes, record_for
from superres.pipeline.recorded_costs import COSTS, read_costs, save_costs
from superres.pipeline.upscaler import Upscaler
from tests.nn.helpers import check_steps

HEADS = SMALL.prediction_heads


@pytest.mark.parametrize("variant", ["base aids", "plain", "causal attention", "sequential heads",
                                     "text"])
def test_steps_of_changing_width_equal_the_uncached_network(variant):
    check_steps(random_model(VARIANTS[variant]), 5, resized=True)


@given(st.floats(0.0, 1.0), st.integers(1, 10))
def test_the_fastest_size_is_that_of_the_costs_if_four_of_five_proposals_pass(slope, least):
    """A token more costs `slope` of the first."""
    costs = 1 + slope * np.arange(10)
    truth = np.cumsum(0.8 ** np.arange(10)) / costs
    size, tokens = fastest_size(costs, least)
    assert size >= least
    assert tokens == pytest.approx(truth[size - 1] * costs[size - 1])
    assert truth[size - 1] == pytest.approx(truth[least - 1 :].max())


def sizes_of(**batches):
    """Make block sizes by costs of batches: the share of further columns, a step alone, and
    `start`."""
    model = StepModel(random_model(SMALL, dtype=torch.float32))
    model.costs = CostRecord({name[1:]: StepCosts((1.0, 1.0 + slope), alone, start)
                              for name, (slope, alone, start) in batches.items()}, cores=2)
    return BlockSizes(engine_of(model))


def sources(rows):
    return random_tokens(SMALL, rows)[0].numpy()


OPTIONS = DecodeConfig(adaptive=True)


@pytest.mark.parametrize(("alone", "start", "expected"), [
    (1.0, 0.0, HEADS), (0.4, 0.0, 1), (1.0, 0.44 * SMALL.target_length, HEADS),
    (1.0, 0.46 * SMALL.target_length, 1),  # a whole decode would gain less than 8 %
])
def test_blocks_are_decoded_only_where_a_whole_decode_gains(alone, start, expected):
    """Blocks of five tokens take 1.6 and give 3.36."""
    sizes, source = sizes_of(_1=(0.15, alone, start)), sources(3)
    assert HEADS == 5
    assert sizes.get(OPTIONS, source) == expected
    assert sizes.get(DecodeConfig(), source) is None
    # Where blocks of at least two tokens are asked for, there is no choice.
    assert sizes.get(replace(OPTIONS, min_block=2), source) == HEADS
    algorithm = Algorithm(sizes.engine, OPTIONS, adaptive=lambda *found: sizes.get(OPTIONS, *found))
    stream = Stream(algorithm, feed_of([Numbered(row, row) for row in range(3)]),
                    lambda items: (source[[item.row for item in items]], None), 3)
    list(stream.run())
    assert stream.loop.decoder.width == expected


def test_the_costs_are_those_of_the_nearest_batch():
    sizes = sizes_of(_1=(0.15, 1, 0), _8=(9, 1, 0), _64=(0.15, 1, 0))
    found = [sizes.get(OPTIONS, sources(rows)) for rows in (1, 2, 3, 22, 23, 500)]
    assert found == [HEADS, HEADS, 1, 1, HEADS, HEADS]


def test_short_sentences_have_single_tokens_where_blocks_cost_something_at_once():
    sizes = sizes_of(_1=(0.15, 1, 4))
    sizes.engine.end_token = 3
    source, padding = sources(2)[:, :20], np.zeros((2, 20), bool)
    assert sizes.get(OPTIONS, source, padding) == HEADS
    padding[:, 5:] = True
    assert sizes.get(OPTIONS, source, padding) == 1


def test_proposals_cost_what_the_proposer_s_cost():
    """A draft as large as its verifier makes larger blocks slower; proposals that are looked up do
    not."""
    sizes, source = sizes_of(_1=(0.15, 1, 0)), sources(1)
    model = StepModel(sizes.engine.model.model)
    draft = drafted(model)

    def chosen(name, proposer):
        return sizes.get(DecodeConfig(4, proposer=name, adaptive=True), source, None, proposer)

    # In blocks of one token, the draft would not read the tokens that its next proposals depend on.
    assert (chosen("draft", draft), chosen("lookup", LookupProposer())) == (2, 4)
    model.weight_bytes //= 100
    assert chosen("draft", draft) == 4
    draft.draft.costs = CostRecord({"1": StepCosts((1.0,), 1.0)}, cores=2)  # as recorded
    assert chosen("draft", draft) == 2
    assert sizes.get(DecodeConfig(1, proposer="draft", adaptive=True), source, None,
                     draft) == 1


def test_larger_blocks_never_cost_less(monkeypatch):
    engine = engine_of(StepModel(random_model(SMALL, dtype=torch.float32)))
    times = iter([5.0, 2.0, 3.0, 4.0, 6.0] * cost.ROUNDS)
    monkeypatch.setattr(cost, "_least_seconds", lambda *_: next(times))
    assert measured_costs(engine, sources(1), DecodeConfig(), HEADS) == [2.0, 2.0, 3.0, 4.0, 6.0]


@pytest.mark.parametrize(("engine", "variant", "expected"), [
    ("native", "x86-64-v3", "a"), ("native", "x86-64-v2", "a"), ("native", "x86-64-v3-vnni", "b"),
    ("native", "x86-64-v4", "b"), ("native-int8", "aarch64", "c"), ("native", "wasm32", "a"),
    ("plain", "cpu", None),
])
def test_a_class_without_a_record_has_that_of_its_neighbour(engine, variant, expected):
    named = {name: replace(general_costs(0.1), processor=name) for name in "abc"}
    table = {"native": {"x86-64-v3": named["a"], "x86-64-v4": named["b"]},
             "native-int8": {"x86-64-v2": named["c"]}}
    record = record_for(table, engine, variant)
    assert (record and record.processor) == expected


def test_costs_are_saved_for_an_engine_and_variant_and_read_again(tmp_path):
    one = CostRecord({"1": StepCosts((1.5, 2.25), 1.25, 3.5, 1, 8, 4),
                      "64": StepCosts((9.0,), 7.0)}, "a [processor]",
                     2, "2026-01-01", "0123")
    assert read_costs(tmp_path) == {}
    save_costs(tmp_path, "native", "x86-64-v4", general_costs(0.1))
    save_costs(tmp_path, "native", "x86-64-v3", one)
    save_costs(tmp_path, "native", "x86-64-v4", one)
    assert read_costs(tmp_path) == {"native": {"x86-64-v3": one, "x86-64-v4": one}}
    assert "[1.5, 2.25], " in (tmp_path / COSTS).read_text()


BATCH = {"blocks": [1, 2], "alone": 1}


@pytest.mark.parametrize(("record", "message"), [
    ([], "the costs must be an object"), ({"native": 3}, "native in the costs must be an object"),
    ({"native": {"v": {}}}, "CostRecord needs batches"),
    ({"native": {"v": {"batches": {}}}}, "batches must have"),
    *(({"native": {"v": {"batches": {name: BATCH}}}}, message) for name, message in (
        ("one", "whole numbers of rows, not 'one'"), ("0", "must be at least 1"),
        ("9" * 9, "whole numbers of rows"))),
    *(({"native": {"v": {"batches": {"1": {**BATCH, **change}}}}}, message) for change, message in (
        ({"blocks": []}, "must have 1 to 1024 numbers, not 0"),
        ({"blocks": [1, 0]}, "blocks must be a number from"),
        ({"blocks": [1, "2"]}, "blocks must be a number from"),
        ({"blocks": [1] * 2000}, "blocks must have 1 to"), ({"alone": -1}, "alone must be"),
        ({"alone": True}, "alone must be"), ({"threads": 0}, "threads must be at"),
        ({"together": 1e9}, "together must be"), ({"start": 1e99}, "start must be"),
        ({"more": 1}, "setting more"))),
])
def test_a_damaged_file_of_costs_is_refused_in_one_line(record, message, tmp_path):
    save_checkpoint(random_model(SMALL), tmp_path / "c")
    (tmp_path / "c" / COSTS).write_text(json.dumps(record))
    with pytest.raises(CheckpointError, match=r"costs\.json: .*; run superres tune again, or "
                       r"remove the fi") as found:
        Upscaler.load(tmp_path / "c", "cpu", "plain")
    assert message in str(found.value)
    assert "\n" not in str(found.value)


def test_a_fixed_width_is_refused():
    model, source = StepModel(random_model(SMALL)), random_tokens(SMALL, 1)[0]
    with pytest.raises(ConfigError, match=f"leave out the width {HEADS}"):
        decode(model, source, DecodeConfig(adaptive=True), width=HEADS)
