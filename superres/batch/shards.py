"""Pack the pictures of a part into a shard: a WebDataset tar file, or a Parquet file.

Equal outputs give equal files: a shard has no time, owner or machine in it. The seconds of decoding
are in the manifest alone.
"""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
from collections.abc import Callable
from typing import Any, Protocol

from superres.batch.rows import Row
from superres.errors import ConfigError

PARQUET_ROWS = 256  # rows of a row group
STATISTICS = ("input", "tokens", "iterations", "model_calls", "mean_accepted_block_size",
              "checkpoint", "crop", "sha256")
"""Fields of a row that a shard has beside the picture."""


class Packer(Protocol):
    """Writes a shard to a file of this machine."""

    def key(self, stem: str) -> str:
        """Return the key of a picture whose output is `stem` with a suffix; `ShardWriter` makes
        keys unique."""

    def add(self, row: Row, name: str, data: bytes) -> None:
        """Add a picture, whose file is `name`, with its row."""

    def finish(self) -> None:
        """Complete the file, or close it if that is not wanted any more."""


class TarPacker:
    """A WebDataset shard: per picture its file and, under the same key, its statistics as JSON."""

    def __init__(self, path: str) -> None:
        self.file = tarfile.open(path, "w", format=tarfile.GNU_FORMAT)  # noqa: SIM115 -- closed by `finish`

    def key(self, stem: str) -> str:
        """See `Packer.key`. The library webdataset ends a key at the first dot and leaves out
        `__NAME__/...`."""
        folder, slash, base = stem.rpartition("/")
        return re.sub(r"^__|[\x00-\x1f\x7f]", "_", f"{folder}{slash}{base.replace('.', '_')}")

    def add(self, row: Row, name: str, data: bytes) -> None:
        self._add(name, data)
        self._add(f"{os.path.splitext(name)[0]}.json",
                  (json.dumps(statistics_of(row)) + "\n").encode())

    def _add(self, name: str, data: bytes) -> None:
        member = tarfile.TarInfo(name)
        member.size, member.mode = len(data), 0o644
        self.file.addfile(member, io.BytesIO(data))

    def finish(self) -> None:
        self.file.close()


class ParquetPacker:
    """A Parquet file: column key, column image as the library datasets stores pictures, and the
    statistics."""

    def __init__(self, path: str) -> None:
        try:
            import pyarrow
            from pyarrow import parquet
        except ImportError as error:
            raise ConfigError("--format parquet needs the `parquet` extra; pip install "
                              "'superres[parquet]'") from error
        self.rows = list[dict[str, Any]]()
        self.schema = pyarrow.schema([
            ("key", pyarrow.string()),
            ("image", pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])),
            ("input", pyarrow.string()), ("tokens", pyarrow.int64()),
            ("iterations", pyarrow.int64()), ("model_calls", pyarrow.int64()),
            ("mean_accepted_block_size", pyarrow.float64()), ("checkpoint", pyarrow.string()),
            ("crop", pyarrow.string()), ("sha256", pyarrow.string()),
        ])
        self.table = pyarrow.Table
        self.file = parquet.ParquetWriter(path, self.schema)

    def key(self, stem: str) -> str:
        return stem

    def add(self, row: Row, name: str, data: bytes) -> None:
        statistics = statistics_of(row)
        crop = statistics.pop("crop")
        self.rows.append({"key": os.path.splitext(name)[0], "image": {"bytes": data, "path": name},
                          **statistics, "crop": None if crop is None else json.dumps(crop)})
        if len(self.rows) == PARQUET_ROWS:
            self._flush()

    def _flush(self) -> None:
        if self.rows:
            self.file.write_table(self.table.from_pylist(self.rows, self.schema))
        self.rows = []

    def finish(self) -> None:
        self._flush()
        self.file.close()


def statistics_of(row: Row) -> dict[str, Any]:
    """Return the fields of a row that stand beside its picture."""
    return {name: getattr(row, name) for name in STATISTICS}


PACKERS: dict[str, Callable[[str], Packer]] = {"webdataset": TarPacker, "parquet": ParquetPacker}
