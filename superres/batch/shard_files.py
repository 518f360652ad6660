"""Write the outputs of a part: as a WebDataset tar file, a Parquet file, or one file per picture.

Equal outputs give equal files: a shard has no time, owner or machine in it. The seconds of decoding are in the manifest
alone.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import re
import tarfile
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from superres.batch.manifest import Row
from superres.errors import ConfigError
from superres.system.places import move_to, write_place

WRITERS = 8  # threads that write pictures to a store
WAITING = 64  # pictures that wait for these threads
PARQUET_ROWS = 256  # rows of a row group
STATISTICS = ("input", "tokens", "iterations", "model_calls", "mean_accepted_block_size", "checkpoint", "crop",
              "sha256")
"""Fields of a row that a shard has beside the picture."""


class PartWriter(Protocol):
    """Writes the pictures of one part."""

    def named(self, name: str) -> str:
        """Return the name under which `add` gets the picture whose output is `name`."""

    def add(self, row: Row, name: str, data: bytes) -> None:
        """Add a picture, whose file is `name`, with its row."""

    def finish(self) -> None:
        """Write what was added to its place, whole; raises as `superres.system.places.write_place`."""

    def close(self) -> None:
        """Give up what is not finished."""


class TarWriter:
    """A WebDataset shard: per picture its file and, under the same key, its statistics as JSON. Keys are unique."""

    def __init__(self, place: str, scratch: str) -> None:
        self.place, self.path = place, os.path.join(scratch, "shard.tar")
        self.file = tarfile.open(self.path, "w", format=tarfile.GNU_FORMAT)  # noqa: SIM115 -- closed by `finish`
        self.keys = set[str]()

    def named(self, name: str) -> str:
        """See `PartWriter.named`. The library webdataset ends a key at the first dot and leaves out `__NAME__/...`."""
        stem, suffix = os.path.splitext(name)
        folder, slash, base = stem.rpartition("/")
        key = re.sub(r"^__|[\x00-\x1f\x7f]", "_", f"{folder}{slash}{base.replace('.', '_')}")
        key = next(one for one in itertools.chain([key], (f"{key}-{again}" for again in itertools.count(2)))
                   if one not in self.keys)
        self.keys.add(key)
        return f"{key}{suffix}"

    def add(self, row: Row, name: str, data: bytes) -> None:
        """See `PartWriter.add`."""
        self._add(name, data)
        self._add(f"{os.path.splitext(name)[0]}.json", (json.dumps(statistics_of(row)) + "\n").encode())

    def _add(self, name: str, data: bytes) -> None:
        member = tarfile.TarInfo(name)
        member.size, member.mode = len(data), 0o644
        self.file.addfile(member, io.BytesIO(data))

    def finish(self) -> None:
        """See `PartWriter.finish`."""
        self.file.close()
        move_to(self.path, self.place)

    def close(self) -> None:
        """See `PartWriter.close`."""
        self.file.close()


class ParquetWriter:
    """A Parquet file: column key, column image as the library datasets stores pictures, and the statistics."""

    def __init__(self, place: str, scratch: str) -> None:
        try:
            import pyarrow
            from pyarrow import parquet
        except ImportError as error:
            raise ConfigError("--format parquet needs the extra parquet; pip install 'superres[parquet]'") from error
        self.place, self.path, self.rows = place, os.path.join(scratch, "shard.parquet"), list[dict[str, Any]]()
        self.schema = pyarrow.schema([
            ("key", pyarrow.string()),
            ("image", pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])),
            ("input", pyarrow.string()), ("tokens", pyarrow.int64()), ("iterations", pyarrow.int64()),
            ("model_calls", pyarrow.int64()), ("mean_accepted_block_size", pyarrow.float64()),
            ("checkpoint", pyarrow.string()), ("crop", pyarrow.string()), ("sha256", pyarrow.string()),
        ])
        self.table = pyarrow.Table
        self.file = parquet.ParquetWriter(self.path, self.schema)

    def named(self, name: str) -> str:
        """See `PartWriter.named`."""
        return name

    def add(self, row: Row, name: str, data: bytes) -> None:
        """See `PartWriter.add`."""
        statistics = statistics_of(row)
        crop = statistics.pop("crop")
        self.rows.append({"key": os.path.splitext(name)[0], "image": {"bytes": data, "path": name}, **statistics,
                          "crop": None if crop is None else json.dumps(crop)})
        if len(self.rows) == PARQUET_ROWS:
            self._flush()

    def _flush(self) -> None:
        if self.rows:
            self.file.write_table(self.table.from_pylist(self.rows, self.schema))
        self.rows = []

    def finish(self) -> None:
        """See `PartWriter.finish`."""
        self._flush()
        self.file.close()
        move_to(self.path, self.place)

    def close(self) -> None:
        """See `PartWriter.close`."""
        self.file.close()


class FilesWriter:
    """One file per picture below `folder`, several at a time."""

    def __init__(self, folder: str) -> None:
        self.folder, self.waiting = folder, list[Future[bool]]()
        self.pool = ThreadPoolExecutor(WRITERS, "superres-writing")

    def named(self, name: str) -> str:
        """See `PartWriter.named`."""
        return name

    def add(self, row: Row, name: str, data: bytes) -> None:
        """See `PartWriter.add`."""
        if len(self.waiting) >= WAITING:
            self.waiting.pop(0).result()
        self.waiting.append(self.pool.submit(write_place, f"{self.folder}/{name}", data))

    def finish(self) -> None:
        """See `PartWriter.finish`."""
        for future in self.waiting:
            future.result()
        self.close()

    def close(self) -> None:
        """See `PartWriter.close`."""
        self.pool.shutdown(cancel_futures=True)


def statistics_of(row: Row) -> dict[str, Any]:
    """Return the fields of a row that stand beside its picture."""
    return {name: getattr(row, name) for name in STATISTICS}


def writer_for(layout: str, output: str, shard: str) -> Callable[[str], PartWriter]:
    """Return a function that opens the writer of a part, which gets a folder of this machine for its own files."""
    if layout == "webdataset":
        return lambda scratch: TarWriter(shard, scratch)
    if layout == "parquet":
        return lambda scratch: ParquetWriter(shard, scratch)
    return lambda scratch: FilesWriter(output.rstrip("/"))
