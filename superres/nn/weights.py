"""Files of weights: names, shapes, types and numbers are checked before a network takes them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from superres.errors import CheckpointError, plain
from superres.interfaces import Network
from superres.nn.model import EncoderDecoder
from superres.system.json_files import require_regular

WEIGHT_TYPES = ("F64", "F32", "F16", "BF16")
"""Accepted types of tensors in model.safetensors."""


def read_tensors(path: Path, model: torch.nn.Module | None = None) -> dict[str, Tensor]:
    """Read a safetensors file, after a comparison of names, shapes and types with those of `model`,
    if given.

    Raises CheckpointError if the file is missing or damaged, or does not match `model`.
    """
    try:
        require_regular(path)
        if model is not None:
            with safe_open(path, framework="pt") as file:
                found = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 -- not a dictionary
                shapes = {name: tuple(value.get_shape()) for name, value in found.items()}
                types = {name: value.get_dtype() for name, value in found.items()}
            _compare(model.state_dict(), shapes, str(path))
            if wrong := [name for name, kind in types.items() if kind not in WEIGHT_TYPES]:
                raise CheckpointError(f"{path}: tensor {wrong[0]} is of type {types[wrong[0]]}, "
                                      f"not {', '.join(WEIGHT_TYPES)}; fetch the checkpoint again")
        return load_file(path)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing; fetch the checkpoint again") from error
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged ({plain(str(error))}); fetch the checkpoint "
                              "again") from error


def load_weights(model: torch.nn.Module, weights: dict[str, Tensor], origin: str,
                 optional: str | None = None) -> None:
    """Copy `weights`, by name, into `model` after a check of names and shapes; tensors on the meta
    device are replaced.

    Error messages name `origin`. The model keeps its own tensors of names with the prefix
    `optional` that are missing. Raises CheckpointError if names or shapes differ, or a weight is
    not finite.
    """
    own = model.state_dict()
    _compare(own, {name: tuple(weight.shape) for name, weight in weights.items()}, origin, optional)
    values = dict(own)
    for name, weight in weights.items():
        if own[name].is_meta:
            values[name] = torch.empty_strided(own[name].shape, own[name].stride(),
                                               dtype=own[name].dtype).copy_(weight)
        else:
            values[name] = weight.to(own[name].dtype)
    for name, value in values.items():
        if value.numel() and not all(math.isfinite(bound) for bound in torch.aminmax(value)):
            raise CheckpointError(f"{origin}: tensor {name} holds numbers that are not finite; "
                                  "fetch the checkpoint again")
    model.load_state_dict(values, assign=any(value.is_meta for value in own.values()))


def _compare(
    own: Mapping[str, Tensor], found: Mapping[str, tuple[int, ...]], origin: str,
    optional: str | None = None,
) -> None:
    """Raise a CheckpointError if the shapes of a network's tensors differ from those in a file; see
    `load_weights`."""
    required = {name for name in own if optional is None or not name.startswith(optional)
                or name in found}
    missing, extra = sorted(required - set(found)), sorted(set(found) - set(own))
    shapes = sorted(name for name in required & set(found) if found[name] != own[name].shape)
    problems = {"lacks tensors": missing, "has extra tensors": extra, "has tensors of another "
                "shape": shapes}
    for problem, names in problems.items():
        if names:
            listed = ", ".join(map(plain, names[:3])) + (f" and {len(names) - 3} "
                                                         "more" if len(names) > 3 else "")
            raise CheckpointError(f"{origin} {problem}: {listed}; the weights do not belong to "
                                  "this config.json")


def network_of(model: EncoderDecoder, revision: str = "") -> Network:
    """Return the settings and weights of a module; the arrays share its memory where they are
    contiguous float32 on the CPU."""
    arrays = {name: value.detach().float().cpu().contiguous().numpy()
              for name, value in model.state_dict().items()}
    return Network(model.config, arrays, revision, model)


def module_of(network: Network) -> EncoderDecoder:
    """Stand-in until the merge."""
    return network.module
