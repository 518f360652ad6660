"""What a step of several columns costs, in steps of one column: by three models, in which a rule's
speed-up differs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from measurements import MEASUREMENTS
from superres.config import DEFAULT_CHECKPOINT, DecodeConfig
from superres.pipeline.upscaler import Upscaler

H200, H200_COLUMNS = "one launch, bfloat16", 10
"""The kernel whose times of an H200 were recorded, and the columns of its wider steps."""


@dataclass(frozen=True)
class CostModel:
    """A model of the time of a step.

    Attributes:
        time: of a step of n columns, n at least 1, in steps of one column.
        draft: time of a step of a draft model, in the same unit.
    """

    time: Callable[[float], float]
    draft: float

    def speed_up(self, tokens: float, columns: float, draft_calls: int) -> float:
        """Return the speed-up of a rule of so many tokens, columns and draft calls per step."""
        return tokens / (self.time(columns) + draft_calls * self.draft)


def straight(first: float, last: float, columns: int) -> Callable[[float], float]:
    """Return the times on a straight line through those of a step of one column and of
    `columns`."""
    return lambda n: 1 + (last / first - 1) * (n - 1) / (columns - 1)


def recorded_h200(pictures: str) -> tuple[float, float]:
    """Return the recorded microseconds of a step of 1 and of `H200_COLUMNS` columns of so many
    pictures."""
    document, engine = json.loads((MEASUREMENTS / "gpu.json").read_text()), ""
    for row in document["printed"]["pictures-per-second"]["rows"]:
        engine = row[0] or engine
        if (engine, row[1]) == (H200, pictures):
            return float(row[5]), float(row[6])
    raise LookupError(f"gpu.json has no times of {pictures} pictures by {H200}")


def cost_models(upscaler: Upscaler, options: DecodeConfig) -> dict[str, CostModel]:
    """Return the models by name: this CPU, the recorded H200 with one picture and a full batch, and
    the same time for every step.

    Beside the last two, a draft model's step takes its share of the weights, which the step reads.
    """
    costs, draft = upscaler.scoring.costs.of(1), draft_engine(upscaler, options)
    share = 0.0 if draft is None else draft.weight_bytes / upscaler.scoring.weight_bytes

    def on_cpu(n: float) -> float:
        if n == 1:
            return 1.0
        times = costs.up_to(int(np.ceil(n)))
        return float(np.interp(n, np.arange(1, len(times) + 1), times)) / costs.alone

    own = 0.0 if draft is None else draft.costs.of(1).alone / costs.alone
    models = {"cpu": CostModel(on_cpu, own), "flat": CostModel(lambda n: 1.0, share)}
    if upscaler.name == DEFAULT_CHECKPOINT:  # the network of the recorded times
        for name, pictures in (("h200", "1"), ("h200_full", "1,024")):
            models[name] = CostModel(straight(*recorded_h200(pictures), H200_COLUMNS), share)
    return models


def draft_engine(upscaler: Upscaler, options: DecodeConfig) -> Any:  # noqa: ANN401 -- an `Engine`
    """Return the engine of the draft model that proposes; None without one."""
    return getattr(upscaler.proposers.get(options), "draft", None)
