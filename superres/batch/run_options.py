"""The options of an upscaling run besides those of decoding, and the names of its outputs."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from superres.config import require, require_choice, require_whole
from superres.errors import ConfigError, InvalidInputError
from superres.pipeline.resolved_options import FINISHES, check_keep
from superres.system.paths import Place
from superres.system.places import known_place, public
from superres.tasks.crops import DEFAULT_CROP, FACE, parse_crop

if TYPE_CHECKING:
    from superres.batch.inputs import Input

SOURCES = ("auto", "lowres", "photo")
SUFFIXES = {"png": ".png", "webp-lossless": ".webp", "npz": ".npz"}
"""Suffixes of files by the values of --format that `superres.pictures.write.ENCODERS` has."""

ON_EXISTING = ("skip", "redo", "overwrite", "error")
"""What to do with an existing output. "skip" keeps complete outputs with the same settings, and
raises an error if any output has other settings. "redo" is as "skip", but makes outputs with other
settings and files without a row again. "overwrite" makes all outputs again. "error" fails the
row."""
MOST_SAMPLES = 10_000  # largest number of images that are drawn from an input
LAYOUTS = {"files": "", "webdataset": ".tar", "parquet": ".parquet"}
"""How outputs are stored, and the suffix of a shard."""
KEEP_ALPHA = "keep"
MANIFEST = "manifest.jsonl"
LOCAL_ROWS = 64  # inputs per part where each output is a file of this machine
ROWS = 1000  # default number of inputs per part elsewhere
MOST_ROWS = 100_000


@dataclass(frozen=True)
class BatchOptions:
    """Options of an upscaling run, besides those of decoding; `superres upscale --help` describes
    them.

    Attributes:
        output: place of the outputs, a folder or its URL; created if it is missing.
        layout: a key of `LAYOUTS`.
        rows: most inputs per part; None for `LOCAL_ROWS` or `ROWS`.
        batch_size: images decoded together; None chooses as many as are useful and fit into memory.
        shard: (I, N), 0 <= I < N: do every N-th part, starting with part I.
        manifest: JSON lines file with one row per output; in the output folder if None. A run whose
            outputs are not single files of this machine has a manifest beside each part instead.
        alpha: colour behind transparent parts; or "keep" for outputs as transparent as their
            inputs.
        keep: "likeliest" writes only the likeliest of the samples of an input; None writes all of
            them.
        finish: a way of finishing pictures: see `superres.pipeline.finish`.
        sheet: make each output a sheet of the input, its enlargement and the result, named
            <name>-sheet.
        verify: compare the digests of existing outputs, not only their sizes.
    """

    output: str | Path
    _: KW_ONLY
    layout: str = "files"
    rows: int | None = None
    batch_size: int | None = None
    samples: int = 1
    keep: str | None = None
    source: str = "auto"
    recursive: bool = False
    on_existing: str = "skip"
    shard: tuple[int, int] = (0, 1)
    manifest: Path | None = None
    format: str = "png"
    suffix: str = ""
    keep_tree: bool = False
    alpha: str = "white"
    crop: str = DEFAULT_CROP
    sheet: bool = False
    verify: bool = False
    finish: str = FINISHES[0]

    def __post_init__(self) -> None:
        require_choice("--format", self.layout, list(LAYOUTS))
        require_whole("--batch-size", 1 if self.batch_size is None else self.batch_size)
        require_whole("--samples", self.samples, 1, MOST_SAMPLES)
        check_keep(self.keep, self.samples, self.finish)
        require_choice("--source", self.source, SOURCES)
        self.check_crop()
        require_choice("--on-existing", self.on_existing, [mode for mode in ON_EXISTING
                                                           if mode != "error" or not self.in_parts])
        require_whole("--rows", ROWS if self.rows is None else self.rows, 1, MOST_ROWS)
        require_choice("--format", self.format, list(SUFFIXES))
        require(not set(self.suffix) & {"/", "\\", "\0"}, "--suffix must be part of a file name, "
                f"not {self.suffix!r}")
        if self.alpha != KEEP_ALPHA:
            from PIL import ImageColor  # not before a run: the help has these options, too

            try:
                ImageColor.getrgb(self.alpha)
            except ValueError:
                raise ConfigError("--alpha must be keep or a colour such as white or #808080, not "
                                  f"{self.alpha!r}"
                                  ) from None
        index, count = self.shard
        require(0 <= index < count, "--shard must be I/N with I from 0 to N - 1, such as 0/4, not "
                f"{index}/{count}")
        require_whole("--shard I/N: N", count)

    def check_crop(self, least: int = 1) -> None:
        """Raise ConfigError if the crop is unknown, or its side has fewer than `least` pixels."""
        try:
            parse_crop(self.crop, least)
        except ConfigError as error:
            raise ConfigError(f"--{error}") from None

    @property
    def in_parts(self) -> bool:
        """Whether each part has its own manifest: in a store and in shards."""
        return self.layout != "files" or not self.place.renames

    @functools.cached_property
    def place(self) -> Place:
        """The place of the outputs."""
        return known_place(self.output)

    @property
    def manifest_path(self) -> Path:
        """Path of the manifest; a shard's manifest has the shard in its name."""
        index, count = self.shard
        return self.manifest or Path(self.output) / (
            MANIFEST if count == 1 else f"manifest-{index}-of-{count}.jsonl")

    @functools.cached_property
    def folder(self) -> str:
        """The place of the outputs in full, without a slash at its end."""
        return self.place.full

    def content_options(self) -> dict[str, Any]:
        """Return the options that determine the content of an output, besides those of decoding."""
        names = ["source", "crop", "alpha", "format", "sheet"]
        # Where a part has its own manifest, an input is known by its name alone.
        names += ["layout", "samples", "suffix"] if self.in_parts else []
        keep = None if self.keep is None else f"{self.keep} of {self.samples}"
        finish = None if self.finish == FINISHES[0] else self.finish
        return {**{name: getattr(self, name) for name in names}, "keep": keep, "finish": finish}

    @property
    def per_input(self) -> int:
        """Number of pictures that are written per input, or per face of it."""
        return self.samples if self.keep is None else 1

    @property
    def ending(self) -> str:
        """What follows the number of the sample in an output's name."""
        return f"{self.suffix}{'-sheet' if self.sheet else ''}{SUFFIXES[self.format]}"

    def names(self, entry: Input, face: int = 0) -> list[str]:
        """Return the path of each sample of an input below the folder of the outputs.

        `face` is the number of the face, from 1, if several are found in the input; otherwise 0.
        """
        stem = f"{entry.name}{f'-face{face}' if face else ''}"
        if self.per_input == 1:
            return [f"{stem}{self.ending}"]
        return [f"{stem}-{sample}{self.ending}" for sample in range(1, self.samples + 1)]

    def outputs(self, entry: Input, face: int = 0) -> list[str]:
        """Return the whole path or URL of each sample; [""] for an input that cannot be listed."""
        return [""] if entry.error is not None else [f"{self.folder}/{name}"
                                                     for name in self.names(entry, face)]

    def face_of(self, output: str) -> tuple[str, int]:
        """Return the output's path without "-faceN", and N; 0 if the path has no such part."""
        sample = r"-\d+" if self.per_input > 1 else ""
        found = re.fullmatch(rf"(.+)-face([1-9]\d{{0,3}})({sample}{re.escape(self.ending)})",
                             output, re.DOTALL)
        return (found[1] + found[3], int(found[2])) if found else (output, 0)


def refuse_shared(owners: Iterable[tuple[str, str]], options: BatchOptions) -> None:
    """Raise InvalidInputError if two inputs would have the same output, or a face of one that of
    another; `owners` are names of outputs with their inputs."""
    first = dict[str, str]()
    for name, owner in owners:
        if first.setdefault(name, owner) is not owner:
            remedy = ("or upscale them into separate places" if options.in_parts
                      else "add --keep-tree, or upscale them into separate folders")
            raise InvalidInputError(f"{public(first[name])} and {public(owner)} would both be "
                                    f"written to {options.folder}/{name}; rename one of them, "
                                    f"{remedy}")
    for name, owner in first.items():
        whole, face = (options.face_of(name) if options.crop == FACE and "-face" in name
                       else (name, 0))
        if face and whole in first:
            raise InvalidInputError(
                f"{public(first[whole])} may show several faces, and then face {face} and "
                f"{public(owner)} would both be written to {options.folder}/{name}; rename one of "
                "them, or give --crop centre")


def replaces_input(name: str, options: BatchOptions) -> InvalidInputError:
    """Return the error of an output that is an input."""
    return InvalidInputError(f"the output {options.folder}/{name} would replace an input; choose "
                             "another --output")


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
        raise ConfigError("--shard must be I/N, such as 0/4 for the first of four, not "
                          f"{text!r}") from None
