"""Read safetensors files, such as a network's weights, as NumPy arrays; the format's library checks
them."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from superres.config import ModelConfig
from superres.config.parameters import check_shapes, parameter_shapes
from superres.errors import CheckpointError, plain
from superres.system.json_files import MOST_BYTES, read_file, require_regular
from superres.system.output import short_digest

FloatT = TypeVar("FloatT", np.float32, np.float64)
WEIGHT_TYPES = ("F64", "F32", "F16", "BF16")
"""Accepted types of a network's weights in a file."""
KINDS: dict[str, npt.DTypeLike] = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "I64": np.int64, "I32": np.int32,
    "I16": np.int16, "I8": np.int8, "U64": np.uint64, "U32": np.uint32, "U16": np.uint16,
    "U8": np.uint8, "BOOL": np.bool_}


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as it is in a file: its type by the format's name, its shape and its bytes."""

    kind: str
    shape: tuple[int, ...]
    data: bytearray

    def array(self) -> npt.NDArray[Any]:
        """Return it as an array, of float32 if it is of bfloat16, which may share its memory;
        ValueError if NumPy has no such type."""
        if self.kind == "BF16":  # the upper halves of float32 numbers
            wide = np.frombuffer(self.data, np.uint16).astype(np.uint32)
            wide <<= 16
            return wide.view(np.float32).reshape(self.shape)
        if self.kind not in KINDS:
            raise ValueError(f"type {self.kind} is not supported")
        return np.frombuffer(self.data, KINDS[self.kind]).reshape(self.shape)


def parse_tensors(content: bytes) -> dict[str, StoredTensor]:
    """Return the tensors of a safetensors file by name; ValueError if it is damaged."""
    from safetensors import SafetensorError, deserialize  # a survey has no such package

    try:
        return {name: StoredTensor(found["dtype"], tuple(found["shape"]), found["data"])
                for name, found in deserialize(content)}  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        raise ValueError(str(error)) from error


def read_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of a regular safetensors file by name.

    Raises OSError if it cannot be read, and ValueError if it is damaged or NumPy lacks a type.
    """
    require_regular(path)
    return {name: one.array() for name, one in parse_tensors(path.read_bytes()).items()}


def read_weights(
    path: Path, config: ModelConfig, dtype: type[FloatT] = np.float32,  # type: ignore[assignment]
) -> tuple[dict[str, npt.NDArray[FloatT]], str]:
    """Read the weights of a network of `config`: arrays of type `dtype` by name, and the file's
    digest.

    The names and shapes of all tensors must match exactly. They are compared before a tensor is
    converted, and no more is read than such weights can take. Raises CheckpointError if the file is
    missing or damaged, the tensors do not match, or a weight is not finite.
    """
    shapes = parameter_shapes(config)
    with reading(path):
        most = MOST_BYTES + 8 * sum(map(math.prod, shapes.values()))  # of a header and F64
        content = read_file(path, min(most, os.path.getsize(path)))
        digest, stored = short_digest(content), parse_tensors(content)
    del content
    check_shapes(shapes, {name: one.shape for name, one in stored.items()}, str(path))
    if wrong := [name for name, one in stored.items() if one.kind not in WEIGHT_TYPES]:
        raise CheckpointError(f"{path}: tensor {wrong[0]} is of type {stored[wrong[0]].kind}, "
                              f"not {', '.join(WEIGHT_TYPES)}; fetch the checkpoint again")
    arrays = dict[str, npt.NDArray[FloatT]]()
    for name in shapes:
        with np.errstate(all="ignore"):  # a float64 may become infinite
            arrays[name] = stored.pop(name).array().astype(dtype, copy=False)
        if not np.isfinite(arrays[name]).all():
            raise CheckpointError(f"{path}: tensor {name} holds numbers that are not finite; "
                                  "fetch the checkpoint again")
    return arrays, digest


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Name the safetensors file `path` in a CheckpointError if the block finds it missing or
    damaged."""
    try:
        yield
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing; fetch the checkpoint again") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged ({plain(str(error))}); fetch the checkpoint "
                              "again") from error
