"""Read the pictures in a Parquet file in a process of their own, whose memory is bounded.

pyarrow takes the memory that a page claims, and its native code may end the process: neither must happen to the caller.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from superres.errors import ConfigError, plain
from superres.system.confined import Confined, Values, limit
from superres.system.unpacking import Gate

BATCH_ROWS = 16  # rows that are read together
IMAGES = ("image", "png", "jpg", "jpeg", "webp", "bytes")  # columns of pictures, the first one counts
KEYS = ("key", "__key__", "id", "path", "file_name")  # columns of keys
BUFFER_BYTES = 1 << 20  # bytes of a column that are read together
MOST_KEY = 10_000  # characters of a key, more are cut
FREE_MEMORY = 300_000_000  # bytes that reading any file may take beyond the interpreter
MEMORY_PER_BYTE = 8  # further bytes of memory per byte of the file
MOST_MEMORY = 4_000_000_000
READER = Confined("superres.batch.parquet_rows:rows")


def parquet_rows(path: str, label: str) -> Iterator[tuple[str | None, bytes]]:
    """Yield the key, None without one, and the encoded picture of each row of the file `path`.

    `label` names the file in errors. Raises ConfigError without the parquet extra, and ValueError for a file that is
    damaged, lacks a column of pictures, or takes too much memory.
    """
    if importlib.util.find_spec("pyarrow") is None:
        raise ConfigError(f"{label} is a Parquet file, which needs the parquet extra; pip install 'superres[parquet]'")
    gate = Gate.of(path)
    with closing(READER(path=path)) as found:
        for row in found:
            gate.let(1, len(row["picture"]))
            yield row["key"], row["picture"]


def rows(path: str) -> Iterator[Values]:
    """Yield the rows of a file, in a process that `READER` starts."""
    size = os.path.getsize(path)
    most = min(FREE_MEMORY + MEMORY_PER_BYTE * size, MOST_MEMORY)
    try:
        yield from _rows(path, size, most)
    except MemoryError:
        raise ValueError(f"it takes over {most // 1_000_000:,} MB of memory to unpack") from None


def _rows(path: str, size: int, most_memory: int) -> Iterator[Values]:
    os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"  # others reserve address space, which the limit counts
    import pyarrow as pa
    from pyarrow import parquet

    pa.set_cpu_count(1)
    limit(most_memory)
    opened = parquet.ParquetFile(path, buffer_size=BUFFER_BYTES, pre_buffer=False)  # not a whole row group at once
    groups = (opened.metadata.row_group(number).total_byte_size for number in range(opened.num_row_groups))
    Gate(size).let(opened.metadata.num_rows, sum(groups))
    image, key = _columns(opened.schema_arrow)
    for batch in opened.iter_batches(BATCH_ROWS, columns=[image] if key is None else [image, key], use_threads=False):
        for row in batch.to_pylist():
            stored: Any = row[image] or b""
            own = None
            if isinstance(stored, dict):  # as the library datasets stores images
                stored, own = stored.get("bytes") or b"", stored.get("path")
            name = row[key] if key is not None else own
            name = name.decode(errors="replace") if isinstance(name, bytes) else name
            yield {"key": None if name is None else str(name)[:MOST_KEY], "picture": stored}


def _columns(schema: Any) -> tuple[str, str | None]:  # noqa: ANN401 -- of pyarrow
    """Return the names of the columns of the pictures and of their keys, None without keys."""
    kinds = {field.name: field.type for field in schema}
    images = [name for name, kind in kinds.items() if _holds_bytes(kind)]
    image = next((name for name in IMAGES if name in images), images[0] if len(images) == 1 else None)
    if image is None:
        found = ", ".join(f"{name}: {kind}" for name, kind in kinds.items())
        raise ValueError(f"it needs a column image of encoded pictures (binary), and has {plain(found) or 'none'}")
    return image, next((name for name in KEYS if name in kinds), None)


def _holds_bytes(kind: Any, in_struct: bool = False) -> bool:  # noqa: ANN401 -- of pyarrow
    """Return whether a column's type is a kind of binary, or the struct as which the library datasets stores images."""
    from pyarrow import types

    if types.is_dictionary(kind):
        return _holds_bytes(kind.value_type, in_struct)
    if types.is_struct(kind) and not in_struct:
        place = kind.get_field_index("bytes")
        return place >= 0 and _holds_bytes(kind.field(place).type, True)
    return any(check(kind) for check in (types.is_binary, types.is_large_binary, types.is_fixed_size_binary,
                                         types.is_binary_view))
