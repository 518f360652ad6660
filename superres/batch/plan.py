"""What an upscaling run will do: its inputs in a stable order and the output path of each, settled first."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import ImageColor

from superres.batch.image_files import FORMATS
from superres.batch.inputs import Job, find_jobs, once, require_some
from superres.config import require, require_choice, require_whole
from superres.errors import ConfigError, InvalidInputError
from superres.tasks.faces import SOURCES

ON_EXISTING = ("skip", "redo", "overwrite", "error")
"""What to do with an output that exists: nothing if it is whole and made with the same settings ("skip", which refuses
to go on where they were others; "redo" makes those anew, and files that the manifest does not know), make it anew in
any case ("overwrite"), or fail its row ("error")."""
METADATA = ("strip", "keep")
"""What becomes of an input's EXIF and XMP, and whether the output names its colour space where the input did."""
MOST_SAMPLES = 10_000
"""Most pictures that are drawn from an input."""
KEEP_ALPHA = "keep"
MANIFEST = "manifest.jsonl"


@dataclass(frozen=True)
class BatchOptions:
    """Where the inputs' outputs go and how the work is cut up.

    Attributes:
        output: folder of the outputs; made where it is missing.
        batch_size: images decoded together; as many as are useful and fit into the memory if None.
        samples: pictures drawn from each input.
        source: how an input becomes 8x8, a name in `superres.tasks.faces.SOURCES`.
        recursive: descend into the sub-folders of an input folder.
        on_existing: a name in `ON_EXISTING`.
        shard: (I, N), 0 <= I < N: take every N-th input, starting with number I.
        manifest: JSON lines file with a row an output; in the output folder if None.
        format: a name in `superres.batch.image_files.FORMATS`.
        suffix: added to the names of the outputs.
        keep_tree: the outputs of a folder's sub-folders go into sub-folders of the same names.
        alpha: colour under transparent parts, or "keep": the output is as transparent as the input.
        metadata: a name in `METADATA`.
    """

    output: Path
    batch_size: int | None = None
    samples: int = 1
    source: str = "auto"
    recursive: bool = False
    on_existing: str = "skip"
    shard: tuple[int, int] = (0, 1)
    manifest: Path | None = None
    format: str = "png"
    suffix: str = ""
    keep_tree: bool = False
    alpha: str = "white"
    metadata: str = "strip"

    def __post_init__(self) -> None:
        require_whole("--batch-size", 1 if self.batch_size is None else self.batch_size)
        require_whole("--samples", self.samples, 1, MOST_SAMPLES)
        require_choice("--source", self.source, SOURCES)
        require_choice("--on-existing", self.on_existing, ON_EXISTING)
        require_choice("--format", self.format, list(FORMATS))
        require_choice("--metadata", self.metadata, METADATA)
        require(not set(self.suffix) & {"/", "\\", "\0"}, f"--suffix must be part of a file name, not {self.suffix!r}")
        if self.alpha != KEEP_ALPHA:
            try:
                ImageColor.getrgb(self.alpha)
            except ValueError:
                raise ConfigError(f"--alpha must be keep or a colour such as white or #808080, not {self.alpha!r}"
                                  ) from None
        index, count = self.shard
        require(0 <= index < count, f"--shard must be I/N with I from 0 to N - 1, such as 0/4, not {index}/{count}")
        require_whole("--shard I/N: N", count)

    @property
    def manifest_path(self) -> Path:
        """Where the manifest is; that of a shard tells which."""
        if self.manifest is not None:
            return self.manifest
        index, count = self.shard
        return self.output / (MANIFEST if count == 1 else f"manifest-{index}-of-{count}.jsonl")

    def deciding(self) -> dict[str, Any]:
        """Return those options that decide what an output holds, besides its decoding."""
        return {"source": self.source, "alpha": self.alpha, "metadata": self.metadata, "format": self.format}

    def outputs(self, job: Job) -> list[str]:
        """Return the absolute path of each sample of an input; one that cannot be listed has a nameless one."""
        folder, ending = _absolute(self.output), self.suffix + FORMATS[self.format].suffix
        if job.error is not None:
            return [""]
        if self.samples == 1:
            return [f"{folder}/{job.name}{ending}"]
        return [f"{folder}/{job.name}-{sample}{ending}" for sample in range(1, self.samples + 1)]


@functools.lru_cache(maxsize=64)
def _absolute(folder: Path) -> str:
    return os.path.abspath(folder)


def parse_batch_size(text: str) -> int | None:
    """Return the number in "N", or None for "auto"; the range is checked by `BatchOptions`.

    Raises:
        ConfigError: it is neither.
    """
    try:
        return None if text == "auto" else int(text)
    except ValueError:
        raise ConfigError(f"--batch-size must be a whole number or auto, not {text!r}") from None


def parse_shard(text: str) -> tuple[int, int]:
    """Return (I, N) of "I/N"; the range is checked by `BatchOptions`.

    Raises:
        ConfigError: the text is not two whole numbers with a slash between them.
    """
    try:
        index, count = text.split("/")
        return int(index), int(count)
    except ValueError:
        raise ConfigError(f"--shard must be I/N, such as 0/4 for the first of four, not {text!r}") from None


def plan(inputs: Sequence[Path | str], options: BatchOptions, listed: Sequence[str] = ()) -> list[Job]:
    """Return this shard's jobs; every output path is settled and no two are equal.

    Args:
        inputs: files, folders, archives and globs.
        options: where the outputs go.
        listed: more files, folders and archives.

    Raises:
        InvalidInputError: nothing to do, two inputs would have the same output, or an output would replace an input.
    """
    found = find_jobs([str(path) for path in inputs], listed, options.recursive, options.keep_tree, options.output)
    jobs = list(once(found))
    require_some(jobs, [*inputs, *(["the list"] if listed or not inputs else [])], options.recursive)
    _refuse_clashes(jobs, options)
    # The clash is looked for in all jobs, so that every shard of a run gives the same answer.
    index, count = options.shard
    return jobs[index::count]


def _refuse_clashes(jobs: list[Job], options: BatchOptions) -> None:
    real = _RealPaths()
    named = {real(job.archive or job.input) for job in jobs}
    manifest = real(str(options.manifest_path))
    if manifest in named:
        raise InvalidInputError(f"the manifest {options.manifest_path} is one of the inputs; choose another --manifest")
    owners: dict[str, str] = {}
    for job in jobs:
        for output in options.outputs(job) if job.error is None else []:
            first = owners.setdefault(output, job.input)
            if first is not job.input:
                raise InvalidInputError(f"{first} and {job.input} would both be written to {output}; rename one "
                                        "of them, add --keep-tree, or upscale them into separate folders")
            if real(output) in named:
                raise InvalidInputError(f"the output {output} would replace an input; choose another --output")
            if real(output) == manifest:
                raise InvalidInputError(f"the manifest {options.manifest_path} is one of the outputs; choose another "
                                        "--manifest")


class _RealPaths:
    """Real paths of many files, each folder looked up once."""

    def __init__(self) -> None:
        self.folders: dict[str, str] = {}

    def __call__(self, path: str) -> str:
        """Return the path without symbolic links."""
        if os.path.islink(path):
            return os.path.realpath(path)
        parent, name = os.path.split(path)
        if parent not in self.folders:
            self.folders[parent] = os.path.realpath(parent)
        return f"{self.folders[parent]}/{name}"
