"""Plan an upscaling run: list its inputs in a stable order and fix the output path of each."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import ImageColor

from superres.batch.inputs import LOCAL, Input, distinct, find_inputs, require_inputs
from superres.config import require, require_choice, require_whole
from superres.errors import ConfigError, InvalidInputError
from superres.tasks.faces import SOURCES
from superres.tasks.image_files import FORMATS, SUFFIXES
from superres.tasks.photos import DEFAULT_CROP, FACE, parse_crop

ON_EXISTING = ("skip", "redo", "overwrite", "error")
"""What to do with an existing output. "skip" keeps complete outputs with the same settings, and raises an error if any
output has other settings. "redo" is as "skip", but makes outputs with other settings and files without a row again.
"overwrite" makes all outputs again. "error" fails the row."""
METADATA = ("strip", "keep")
"""Whether an output copies what describes the picture in the input's metadata, and names the colour space if the input
does."""
MOST_SAMPLES = 10_000  # largest number of images that are drawn from an input
KEEP_ALPHA = "keep"
MANIFEST = "manifest.jsonl"


@dataclass(frozen=True)
class BatchOptions:
    """Options of an upscaling run, besides those of decoding; `superres upscale --help` describes them.

    Attributes:
        output: folder of the outputs; created if it is missing.
        batch_size: images decoded together; None chooses as many as are useful and fit into memory.
        shard: (I, N), 0 <= I < N: take every N-th input, starting with number I.
        manifest: JSON lines file with one row per output; in the output folder if None.
        alpha: colour behind transparent parts; or "keep" for outputs as transparent as their inputs.
        sheet: make each output a sheet of the input, its enlargement and the result, named <name>-sheet.
        place: of a run in parts, the place of the outputs, instead of `output`.
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
    crop: str = DEFAULT_CROP
    sheet: bool = False
    place: str | None = None

    def __post_init__(self) -> None:
        require_whole("--batch-size", 1 if self.batch_size is None else self.batch_size)
        require_whole("--samples", self.samples, 1, MOST_SAMPLES)
        require_choice("--source", self.source, SOURCES)
        self.check_crop()
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

    def check_crop(self, least: int = 1) -> None:
        """Raise ConfigError if the crop is unknown, or its side has fewer than `least` pixels."""
        try:
            parse_crop(self.crop, least)
        except ConfigError as error:
            raise ConfigError(f"--{error}") from None

    @property
    def manifest_path(self) -> Path:
        """Path of the manifest; a shard's manifest has the shard in its name."""
        index, count = self.shard
        return self.manifest or self.output / (MANIFEST if count == 1 else f"manifest-{index}-of-{count}.jsonl")

    def content_options(self) -> dict[str, Any]:
        """Return the options that determine the content of an output, besides those of decoding."""
        return {name: getattr(self, name) for name in ("source", "crop", "alpha", "metadata", "format", "sheet")}

    @property
    def ending(self) -> str:
        """What follows the number of the sample in an output's name."""
        return f"{self.suffix}{'-sheet' if self.sheet else ''}{SUFFIXES[self.format]}"

    def names(self, entry: Input, face: int = 0) -> list[str]:
        """Return the path of each sample of an input below the folder of the outputs.

        `face` is the number of the face, from 1, if several are found in the input; otherwise 0.
        """
        stem = f"{entry.name}{f'-face{face}' if face else ''}"
        if self.samples == 1:
            return [f"{stem}{self.ending}"]
        return [f"{stem}-{sample}{self.ending}" for sample in range(1, self.samples + 1)]

    def outputs(self, entry: Input, face: int = 0) -> list[str]:
        """Return the whole path or URL of each sample; [""] for an input that cannot be listed."""
        if entry.error is not None:
            return [""]
        folder = _absolute(self.output) if self.place is None else self.place.rstrip("/")
        return [f"{folder}/{name}" for name in self.names(entry, face)]

    def face_of(self, output: str) -> tuple[str, int]:
        """Return the output's path without "-faceN", and N; 0 if the path has no such part."""
        sample = r"-\d+" if self.samples > 1 else ""
        found = re.fullmatch(rf"(.+)-face([1-9]\d{{0,3}})({sample}{re.escape(self.ending)})", output, re.DOTALL)
        return (found[1] + found[3], int(found[2])) if found else (output, 0)


@functools.lru_cache(maxsize=64)
def _absolute(folder: Path) -> str:
    return os.path.abspath(folder)


def parse_batch_size(text: str) -> int | None:
    """Return the number in "N", or None for "auto"; anything else is a ConfigError."""
    try:
        return None if text == "auto" else int(text)
    except ValueError:
        raise ConfigError(f"--batch-size must be a whole number or auto, not {text!r}") from None


def parse_shard(text: str) -> tuple[int, int]:
    """Return (I, N) of "I/N"; anything but two whole numbers is a ConfigError."""
    try:
        index, count = text.split("/")
        return int(index), int(count)
    except ValueError:
        raise ConfigError(f"--shard must be I/N, such as 0/4 for the first of four, not {text!r}") from None


def plan(
    inputs: Sequence[Path | str], options: BatchOptions, listed: Sequence[str] = (),
    allowed: frozenset[tuple[str, str]] = frozenset({LOCAL}),
) -> list[Input]:
    """Return this shard's part of `inputs` and `listed`, as for `find_inputs`; all output paths are distinct.

    Raises InvalidInputError if there are no inputs, two inputs have the same output, or an output would replace an
    input.
    """
    found = find_inputs([str(path) for path in inputs], listed, options.recursive, options.keep_tree, options.output,
                        allowed)
    entries = list(distinct(found))
    require_inputs(entries, [*inputs, *(["the list"] if listed or not inputs else [])], options.recursive)
    _refuse_clashes(entries, options)
    # All entries are checked for clashes, so that every shard of a run gives the same answer.
    index, count = options.shard
    return entries[index::count]


def _refuse_clashes(entries: list[Input], options: BatchOptions) -> None:
    folders: dict[str, str] = {}

    def real(path: str) -> str:
        """Return the path without symbolic links; each folder is resolved once."""
        if os.path.islink(path):
            return os.path.realpath(path)
        parent, name = os.path.split(path)
        if parent not in folders:
            folders[parent] = os.path.realpath(parent)
        return f"{folders[parent]}/{name}"

    named = {real(entry.archive or entry.input) for entry in entries}
    manifest = real(str(options.manifest_path))
    if manifest in named:
        raise InvalidInputError(f"the manifest {options.manifest_path} is one of the inputs; choose another --manifest")
    owners: dict[str, str] = {}
    for entry in entries:
        for output in options.outputs(entry) if entry.error is None else []:
            first = owners.setdefault(output, entry.input)
            if first is not entry.input:
                raise InvalidInputError(f"{first} and {entry.input} would both be written to {output}; rename one "
                                        "of them, add --keep-tree, or upscale them into separate folders")
            if real(output) in named:
                raise InvalidInputError(f"the output {output} would replace an input; choose another --output")
            if real(output) == manifest:
                raise InvalidInputError(f"the manifest {options.manifest_path} is one of the outputs; choose another "
                                        "--manifest")
    _refuse_face_clashes(owners, options)


def _refuse_face_clashes(owners: dict[str, str], options: BatchOptions) -> None:
    """Refuse an input, among the `owners` of outputs, whose output could be that of another input's face."""
    for output in owners if options.crop == FACE else ():
        whole, face = options.face_of(output) if "-face" in output else (output, 0)
        if face and whole in owners:
            raise InvalidInputError(f"{owners[whole]} may show several faces, and then face {face} and "
                                    f"{owners[output]} would both be written to {output}; rename one of them, or give "
                                    "--crop centre")
