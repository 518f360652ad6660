"""What an upscaling run will do: its inputs in a stable order and the output path of each, settled first."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from superres.config import require
from superres.errors import ConfigError, InvalidInputError
from superres.tasks.faces import IMAGE_SUFFIXES, SOURCES

ON_EXISTING = ("skip", "overwrite", "error")
"""What to do with an output file that exists already; "error" fails its row."""


@dataclass(frozen=True)
class BatchOptions:
    """Where the inputs' outputs go and how the work is cut up.

    Attributes:
        output: folder of the outputs; made where it is missing.
        batch_size: images decoded together.
        samples: pictures drawn from each input.
        source: how an input becomes 8x8, a name in `superres.tasks.faces.SOURCES`.
        recursive: descend into the sub-folders of an input folder.
        on_existing: a name in `ON_EXISTING`.
        shard: (I, N), 0 <= I < N: take every N-th input, starting with number I.
        manifest: JSON lines file with a row an output; replaced by each run.
    """

    output: Path
    batch_size: int = 16
    samples: int = 1
    source: str = "auto"
    recursive: bool = False
    on_existing: str = "skip"
    shard: tuple[int, int] = (0, 1)
    manifest: Path | None = None

    def __post_init__(self) -> None:
        require(self.batch_size >= 1, f"--batch-size must be at least 1, not {self.batch_size}")
        require(self.samples >= 1, f"--samples must be at least 1, not {self.samples}")
        require_choice("--source", self.source, SOURCES)
        require_choice("--on-existing", self.on_existing, ON_EXISTING)
        index, count = self.shard
        require(0 <= index < count, f"--shard must be I/N with I from 0 to N - 1, such as 0/4, not {index}/{count}")


@dataclass(frozen=True)
class Job:
    """One input file and the output path of each of its samples."""

    input: Path
    outputs: tuple[Path, ...]


def require_choice(option: str, value: str, names: Sequence[str]) -> None:
    """Raise ConfigError unless `value` is one of `names`."""
    require(value in names, f"{option} must be one of {', '.join(names)}, not {value!r}")


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


def list_inputs(inputs: Sequence[Path], recursive: bool, excluded: Path) -> list[Path]:
    """Return the files among and within `inputs` in a stable order, each once.

    A file that is named is taken as it is, whether it exists or not; a folder gives its images sorted by name, then
    those of its sub-folders. Hidden names and the folder `excluded` (the outputs) are left out, and each real folder is
    entered only once, whatever the symbolic links.

    Raises:
        InvalidInputError: a folder cannot be listed, or nothing was found.
    """
    files: dict[str, Path] = {}
    entered = {os.path.realpath(excluded)}
    for path in inputs:
        if os.path.isdir(path) and os.path.realpath(path) == os.path.realpath(excluded):
            raise InvalidInputError(f"{path} is both an input and the output folder; choose another with --output")
        for file in _walk(path, recursive, entered) if os.path.isdir(path) else [path]:
            files.setdefault(os.path.abspath(file), file)
    if not files:
        hint = "" if recursive else "; add --recursive to look into sub-folders"
        raise InvalidInputError(f"no image ({' '.join(sorted(IMAGE_SUFFIXES))}) in {', '.join(map(str, inputs))}{hint}")
    return list(files.values())


def _walk(folder: Path, recursive: bool, entered: set[str]) -> Iterator[Path]:
    def refuse(error: OSError) -> None:
        raise InvalidInputError(f"cannot list the folder {error.filename}: {error.strerror}")

    for parent, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        if os.path.realpath(parent) in entered:
            folders.clear()
            continue
        entered.add(os.path.realpath(parent))
        folders[:] = sorted(name for name in folders if not name.startswith(".")) if recursive else []
        for name in sorted(names):
            path = Path(parent, name)
            # A pipe or device would block for ever; a dangling link is kept, so that its row says so.
            regular = path.is_file() or not path.exists()
            if regular and not name.startswith(".") and path.suffix.lower() in IMAGE_SUFFIXES:
                yield path


def plan(inputs: Sequence[Path], options: BatchOptions) -> list[Job]:
    """Return this shard's jobs; every output path is settled and no two are equal.

    Raises:
        InvalidInputError: nothing to do, two inputs would have the same output, or an output would replace an input.
    """
    jobs = [Job(path, _output_paths(path, options)) for path in list_inputs(inputs, options.recursive, options.output)]
    named = {os.path.realpath(job.input): job.input for job in jobs}
    if options.manifest is not None and os.path.realpath(options.manifest) in named:
        raise InvalidInputError(f"the manifest {options.manifest} is one of the inputs; choose another --manifest")
    owners: dict[Path, Path] = {}
    for job in jobs:
        for output in job.outputs:
            first = owners.setdefault(output, job.input)
            if first is not job.input:
                raise InvalidInputError(f"{first} and {job.input} would both be written to {output}; rename one "
                                        "of them or upscale them into separate folders")
            if os.path.realpath(output) in named:
                raise InvalidInputError(f"the output {output} would replace an input; choose another --output")
    # The clash is looked for in all jobs, so that every shard of a run gives the same answer.
    index, count = options.shard
    return jobs[index::count]


def _output_paths(path: Path, options: BatchOptions) -> tuple[Path, ...]:
    if options.samples == 1:
        return (options.output / f"{path.stem}.png",)
    return tuple(options.output / f"{path.stem}-{sample}.png" for sample in range(1, options.samples + 1))
