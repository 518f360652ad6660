"""Adaptive block sizes of a loaded checkpoint, by the costs of its steps on this machine, which are measured once."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from superres.config import DecodeConfig
from superres.decoding.block_size import AdaptiveBlockSize
from superres.decoding.cost import measured_costs
from superres.errors import OutputError
from superres.interfaces import ScoringModel
from superres.system.machine import cache_folder, machine
from superres.system.output import write_result


class BlockSizes:
    """The adaptive block sizes of one network on one device: one for each batch size and settings, which remembers."""

    def __init__(
        self, model: ScoringModel, revision: str, engine: str, device: torch.device,
        measure: Callable[..., list[float]] = measured_costs,
    ) -> None:
        """Serve `model`, whose costs are kept under its `revision` and `engine` and the machine's name."""
        self.model, self.revision, self.engine, self.device = model, revision, engine, device
        self.measure = measure
        self.known: dict[tuple[int, DecodeConfig], AdaptiveBlockSize] = {}

    def get(self, options: DecodeConfig, source: Tensor, padding: Tensor | None = None) -> AdaptiveBlockSize | None:
        """Return what chooses block sizes for `source` [B, S], or None where `options` ask for a fixed one.

        The first call for a batch size measures, unless this machine has done so before: about half a second.
        """
        if not options.adaptive or not len(source):
            return None
        # Last batches have any size, which is not worth a measurement each; and seeds differ from call to call.
        batch = 1 << (len(source) - 1).bit_length()
        key = batch, dataclasses.replace(options, seed=0)
        if key not in self.known:
            rows = torch.arange(batch, device=source.device) % len(source)
            costs = self._costs(options, source[rows], None if padding is None else padding[rows])
            self.known[key] = AdaptiveBlockSize(costs, options.min_block)
        return self.known[key]

    def _costs(self, options: DecodeConfig, source: Tensor, padding: Tensor | None) -> list[float]:
        largest = options.block_size or self.model.prediction_heads
        chosen = DecodeConfig(temperature=options.temperature, noise=options.noise)
        what = {"revision": self.revision, "engine": self.engine, "device": str(self.device), **machine(self.device),
                "batch": len(source), "largest": largest, "choice": chosen.to_dict()}
        digest = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()
        path = cache_folder() / f"cost-{digest[:16]}.json"
        kept = _read(path, largest)
        if kept is not None:
            return kept
        costs = self.measure(self.model, source, chosen, largest, padding)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_result(path, (json.dumps({**what, "costs": costs}, indent=1) + "\n").encode())
        except (OSError, OutputError):
            pass  # a home that cannot be written: measured again next time
        return costs


def _read(path: Path, largest: int) -> list[float] | None:
    """Return the costs that `path` holds; None if it is not there or not whole."""
    try:
        costs = [float(cost) for cost in json.loads(path.read_text(encoding="utf-8"))["costs"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return costs if len(costs) == largest and min(costs) > 0 else None
