"""The resumable state of a run: weights, averaged weights, moments of the optimisers, and
position."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from superres.checkpoint import replaced_folder
from superres.config import REQUIRED, Config, ModelConfig, setting
from superres.errors import CheckpointError
from superres.nn.model import EncoderDecoder
from superres.system.json_files import read_json
from superres.system.tensor_files import read_arrays, read_weights, reading
from superres.training.stage import Stage

Optimizers = Sequence[torch.optim.Optimizer]


@dataclass(frozen=True)
class SavedState(Config):
    """The position and settings of a run, in its `state.json`."""

    model: ModelConfig
    settings: Stage
    history: list[dict[str, float]]
    start_digest: str | None
    data_digest: str
    losses: dict[str, list[float]]
    step: int = setting(REQUIRED, least=0, most=2**53)
    seconds: float = setting(REQUIRED, least=0)

    @classmethod
    def read(cls, folder: Path) -> SavedState:
        """Read the `state.json` in a folder; raise CheckpointError if that is not possible."""
        return read_json(folder / "state.json", cls.from_dict, CheckpointError,
                         "choose a new run folder")


def write_state(
    folder: Path, position: Mapping[str, Any], model: EncoderDecoder, averaged: EncoderDecoder,
    optimizers: Optimizers,
) -> None:
    """Replace the state in `folder` atomically; if that raises OutputError, the previous state is
    intact.

    `position` has the fields of `SavedState`, as JSON.
    """
    moments = {f"{numbers[index]}.{name}": value for numbers, optimizer in _numbered(optimizers)
               for index, values in optimizer.state_dict()["state"].items()
               for name, value in values.items()}
    with replaced_folder(folder) as fresh:
        for name, tensors in (("model", model.state_dict()), ("averaged", averaged.state_dict()),
                              ("optimizer", moments)):
            save_file({key: value.detach().cpu().contiguous() for key, value in tensors.items()},
                      fresh / f"{name}.safetensors")
        (fresh / "state.json").write_text(json.dumps(position))


def load_tensors(folder: Path, model: EncoderDecoder, averaged: EncoderDecoder,
                 optimizers: Optimizers) -> None:
    """Load the weights and moments of the state in `folder`; raise CheckpointError if they are
    damaged."""
    for network, name in ((model, "model.safetensors"), (averaged, "averaged.safetensors")):
        dtype = np.float64 if network.signal.dtype == torch.float64 else np.float32
        arrays, _ = read_weights(folder / name, network.config, dtype)
        network.load_state_dict({key: torch.from_numpy(one) for key, one in arrays.items()})
    moments: dict[int, dict[str, Tensor]] = {}
    path = folder / "optimizer.safetensors"
    with reading(path):
        stored = read_arrays(path)
    for key, array in stored.items():
        number, name = key.split(".", 1)
        moments.setdefault(int(number), {})[name] = torch.from_numpy(array)
    for numbers, optimizer in _numbered(optimizers):
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        # Fused steps on a GPU need moments whose layout is that of their weights.
        known = {index: {name: torch.empty_like(weight, dtype=value.dtype).copy_(value)
                         if value.dim() else value
                         for name, value in moments[number].items()}
                 for index, (number, weight) in enumerate(zip(numbers, weights, strict=True))
                 if number in moments}
        optimizer.load_state_dict({"state": known,
                                   "param_groups": optimizer.state_dict()["param_groups"]})


def _numbered(optimizers: Optimizers) -> Iterator[tuple[range, torch.optim.Optimizer]]:
    """Yield each optimiser with the numbers of its weights, which name their moments in a saved
    state."""
    first = 0
    for optimizer in optimizers:
        numbers = range(first,
                        first + sum(len(group["params"]) for group in optimizer.param_groups))
        yield numbers, optimizer
        first = numbers.stop
