"""Adaptive block sizes of a loaded checkpoint; the costs of its steps are measured once per machine."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from superres.config import Confidence, DecodeConfig, reader_of
from superres.decoding.acceptance import CRITERIA
from superres.decoding.block_size import check_options, fastest_size
from superres.decoding.confidence import ConfidentBlockSize, usual
from superres.decoding.cost import measured_costs
from superres.decoding.proposers import PROPOSERS
from superres.decoding.proposers.proposer import Proposer
from superres.errors import ConfigError, OutputError
from superres.interfaces import ScoringModel
from superres.system.json_files import read_json
from superres.system.machine import machine
from superres.system.output import cache_folder, write_result
from superres.system.progress import Progress

GAIN = 1.1
"""Smallest expected speed-up over one token per step for which blocks are decoded. It covers what a decode needs
besides its iterations, such as the heads' memory of a sentence, and the noise of the measured costs."""


class BlockSizes:
    """The adaptive block sizes of one network on one device, one per batch size and decoding settings."""

    confidence: Confidence | None = None

    def __init__(
        self, model: ScoringModel, revision: str, engine: str, device: torch.device,
        measure: Callable[..., tuple[list[float], bool]] = measured_costs,
    ) -> None:
        """Use `model`; `revision`, `engine`, `device` and the machine identify its measured costs in the cache.

        `engine` is `StepModel.code`: each variant of the compiled code has costs of its own.
        """
        self.model, self.revision, self.engine, self.device, self.measure = model, revision, engine, device, measure
        self._sizes: dict[tuple[int, DecodeConfig], int | ConfidentBlockSize] = {}

    def get(
        self, options: DecodeConfig, source: Tensor, padding: Tensor | None = None, proposer: Proposer | None = None,
    ) -> int | ConfidentBlockSize | None:
        """Return the adaptive block size for `source` [B, S]; None if `options` have a fixed block size.

        `proposer` is the one of `options`; None if it needs no resource. Every iteration chooses its own size where the
        probabilities of its proposals are known; other decodes have the size that the measured costs make the fastest.
        That size is 1 wherever blocks would not pay: steps of one token are measured in a session of their own, which
        has no heads and may decode other numbers of rows together.

        The first call per batch size measures the costs, in about half a second, unless this machine has cached them.
        The next process measures costs again that other work on the machine has disturbed, and keeps the earlier ones
        unless its own are steady: so all processes have the same sizes, and a face takes the same steps in all.
        """
        if not options.adaptive or not len(source):
            return None
        # Batch sizes are rounded up to powers of 2 to limit measurements; the seed has no influence.
        batch = 1 << (len(source) - 1).bit_length()
        key = batch, dataclasses.replace(options, seed=0) if options.seed else options  # a copy takes 30 us
        if key not in self._sizes:
            rows = torch.arange(batch, device=source.device) % len(source)
            proposer = proposer or PROPOSERS[options.proposer]()
            masked = None if padding is None else padding[rows]
            costs = self._costs(options, source[rows], masked, proposer)
            least = min(len(costs), max(options.min_block, proposer.least_block))
            size, tokens = fastest_size(costs, least, usual(self.confidence, options))
            if size > least == 1:
                alone = self._costs(dataclasses.replace(options, block_size=1), source[rows], masked, proposer)
                size = size if tokens * alone[0] > GAIN * costs[size - 1] else 1
            if size == 1 or self.confidence is None or not self._is_confident(options):
                self._sizes[key] = size
            else:
                self._sizes[key] = ConfidentBlockSize(
                    self.confidence, costs, options, self.model.vocabulary, self.model.end_token)
        return self._sizes[key]

    def _is_confident(self, options: DecodeConfig) -> bool:
        """Return whether every iteration can choose its block size.

        Proposers other than the heads have no known probabilities. Sampling, and criteria without a rule, have no known
        reach; tokens of text have none but in exact acceptance. On an accelerator, further proposals cost hardly
        anything.
        """
        rule = CRITERIA[options.accept](options).rule
        known = options.proposer == "heads" and rule is not None and (options.is_exact or self.model.end_token is None)
        return known and not options.is_sampling and self.device.type == "cpu"

    def _costs(
        self, options: DecodeConfig, source: Tensor, padding: Tensor | None, proposer: Proposer,
    ) -> list[float]:
        """Return the cached or measured costs of block sizes from 1 on.

        They depend on the size of a draft model or of a table, and not on its values.
        """
        largest = check_options(options, self.model.prediction_heads)
        chosen = DecodeConfig(temperature=options.temperature, sampling=options.sampling, proposer=options.proposer)
        settings = {"revision": self.revision, "engine": self.engine, "device": str(self.device),
                    **machine(self.device), "batch": len(source), "largest": largest, "choice": chosen.to_dict()}
        if proposer.weight_bytes:
            settings["proposer_bytes"] = proposer.weight_bytes
        return cached_costs("measuring the cost of block sizes", settings, largest,
                            lambda: self.measure(self.model, source, chosen, largest, padding, proposer))


def cached_costs(
    name: str, settings: dict[str, Any], count: int, measure: Callable[[], tuple[list[float], bool]],
) -> list[float]:
    """Return `count` positive numbers that belong to `settings`: those in the user's cache, or else measured ones.

    `measure`, a phase of the `name`, also returns whether they are steady. Others are kept until steady ones are known.
    """
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    path = cache_folder() / f"cost-{digest[:16]}.json"
    kept = _kept_costs(path, count)
    if kept is not None and kept[1]:
        return kept[0]
    with Progress(name):
        costs, steady = measure()
    if kept is not None and not steady:
        return kept[0]
    with suppress(OSError, OutputError):  # without a cache, the next process measures again
        path.parent.mkdir(parents=True, exist_ok=True)
        write_result(path, (json.dumps({**settings, "costs": costs, "steady": steady}, indent=1) + "\n").encode())
    return costs


def _kept_costs(path: Path, count: int) -> tuple[list[float], bool] | None:
    """Return the `count` costs in a file, and whether they are steady; None if it is missing or damaged."""
    with suppress(ConfigError):
        known = read_json(path, functools.partial(reader_of(dict[str, Any]), "the costs"), ConfigError, "remove it")
        costs: list[float] = reader_of(list[float], 0)("costs", known.get("costs"))
        if len(costs) == count and min(costs) > 0:
            return costs, known.get("steady") is True
    return None
