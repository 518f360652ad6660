"""Read the pictures in a Parquet file, in the process that reads archives
(`superres.batch.containers`).

pyarrow takes the memory that a page claims, and its native code may end the process.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from typing import Any

from superres.errors import ConfigError, plain
from superres.system.unpacking import Gate

BATCH_ROWS = 16  # rows that are read together
# columns of pictures, the first one counts
IMAGES = ("image", "png", "jpg", "jpeg", "webp", "bytes")
KEYS = ("key", "__key__", "id", "path", "file_name")  # columns of keys
BUFFER_BYTES = 1 << 20  # bytes of a column that are read together
MOST_KEY = 1000  # characters of a key, more are cut


def prepare(label: str) -> None:
    """Load pyarrow, before memory is limited; `label` names the file in the ConfigError without the
    parquet extra."""
    if importlib.util.find_spec("pyarrow") is None:
        raise ConfigError(f"{label} is a Parquet file, which needs the parquet extra; pip install "
                          "'superres[parquet]'")
    # others reserve address space, which the limit counts
    os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"
    importlib.import_module("pyarrow.parquet")
    sys.modules["pyarrow"].set_cpu_count(1)


def rows(path: str, gate: Gate) -> Iterator[tuple[str | None, bytes, str | None]]:
    """Yield the key, None without one, the encoded picture of each row of the file `path`, and why
    there is none.

    Raises errors of pyarrow, or ValueError, for a file that is damaged or lacks a column of
    pictures.
    """
    from pyarrow import parquet

    # not a whole row group at once
    opened = parquet.ParquetFile(path, buffer_size=BUFFER_BYTES, pre_buffer=False)
    gate.let(opened.metadata.num_rows)
    image, key = _columns(opened.schema_arrow)
    for batch in opened.iter_batches(BATCH_ROWS, columns=[image] if key is None else [image, key],
                                     use_threads=False):
        for row in batch.to_pylist():
            stored: Any = row[image] or b""
            own = problem = None
            if isinstance(stored, dict):  # as the library datasets stores images
                stored, own = stored.get("bytes") or b"", stored.get("path")
                if own and not stored:
                    problem = ("is only a path in the file, without the picture; save the file "
                               "with its pictures in it")
            gate.let(unpacked=len(stored))
            name = row[key] if key is not None else own
            name = name.decode(errors="replace") if isinstance(name, bytes) else name
            yield None if name is None else str(name)[:MOST_KEY], stored, problem


def _columns(schema: Any) -> tuple[str, str | None]:  # noqa: ANN401 -- of pyarrow
    """Return the names of the columns of the pictures and of their keys, None without keys."""
    kinds = {field.name: field.type for field in schema}
    images = [name for name, kind in kinds.items() if _holds_bytes(kind)]
    image = next((name for name in IMAGES if name in images),
                 images[0] if len(images) == 1 else None)
    if image is None:
        found = ", ".join(f"{name}: {kind}" for name, kind in kinds.items())
        raise ValueError("it needs a column image of encoded pictures (binary), and has "
                         f"{plain(found) or 'none'}")
    return image, next((name for name in KEYS if name in kinds), None)


def _holds_bytes(kind: Any, in_struct: bool = False) -> bool:  # noqa: ANN401 -- of pyarrow
    """Return whether a column's type is a kind of binary, or the struct as which the library
    datasets stores images."""
    from pyarrow import types

    if types.is_dictionary(kind):
        return _holds_bytes(kind.value_type, in_struct)
    if types.is_struct(kind) and not in_struct:
        place = kind.get_field_index("bytes")
        return place >= 0 and _holds_bytes(kind.field(place).type, True)
    return any(check(kind) for check in (types.is_binary, types.is_large_binary,
                                         types.is_fixed_size_binary, types.is_binary_view))
