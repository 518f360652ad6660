"""Read safetensors files as NumPy arrays; the format's library checks them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from superres.system.json_files import require_regular

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
