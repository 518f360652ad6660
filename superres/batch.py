"""Upscaling of files and folders: what `superres upscale` does, without its options' spelling.

`upscale_files` reads, decodes and writes what `superres.batch_plan.plan` has listed, batch by batch. One bad input
costs its own row and nothing else.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

import numpy as np
import numpy.typing as npt
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from tqdm import tqdm

from superres.batch_plan import BatchOptions, Job
from superres.config import DecodeConfig, require
from superres.decoding.blockwise import check_options
from superres.errors import OutputError, SuperresError
from superres.output import prepare_folder, write_atomically
from superres.tasks.faces import Source, read_image, to_source

if TYPE_CHECKING:
    from superres.pipeline import Upscaled, Upscaler

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Row:
    """A line of the manifest; the numbers are None unless the image was decoded by this run.

    `seconds` is the image's share of its batch's decoding time. `config` holds the decoding settings with the block
    size filled in; it is None for a skipped output, which may have been made with other settings.
    """

    input: str
    output: str
    status: str
    error: str | None = None
    tokens: int | None = None
    iterations: int | None = None
    model_calls: int | None = None
    mean_accepted_block_size: float | None = None
    seconds: float | None = None
    checkpoint: str | None = None
    config: dict[str, Any] | None = None
    seed: int | None = None


@dataclass
class Summary:
    """Counts of a run; `tokens` and `iterations` are sums over the decoded images."""

    done: int = 0
    skipped: int = 0
    failed: int = 0
    tokens: int = 0
    iterations: int = 0
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """0 when no output failed, else 1."""
        return 1 if self.failed else 0

    @property
    def mean_accepted_block_size(self) -> float | None:
        """Generated tokens / decoding iterations over all images; None when nothing was decoded."""
        return self.tokens / self.iterations if self.iterations else None

    def add(self, row: Row) -> None:
        """Count `row`."""
        self.done += row.status == "ok"
        self.skipped += row.status == "skipped"
        self.failed += row.status == "failed"
        self.tokens += row.tokens or 0
        self.iterations += row.iterations or 0

    def line(self) -> str:
        """Return the counts as one line for people."""
        counts = f"{self.done} done, {self.skipped} skipped, {self.failed} failed"
        if self.mean_accepted_block_size is None:
            return counts
        rate = self.done / max(self.seconds, 1e-9)
        return f"{counts}; {rate:.2f} images/s, mean accepted block size {self.mean_accepted_block_size:.2f}"


def image_key(source: Pixels, sample: int) -> int:
    """Return the 63-bit number that keys the sampling noise of an image.

    It depends on the pixels and the number of the sample only, so that a picture does not change with the file's name,
    the order of the inputs, the batch or the shard.

    Args:
        source: uint8 [8,8,3].
        sample: number of the sample, from 1.
    """
    digest = hashlib.sha256(np.ascontiguousarray(source).tobytes() + sample.to_bytes(8, "big")).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def resolve_options(decode: DecodeConfig, upscaler: Upscaler, samples: int = 1) -> DecodeConfig:
    """Return `decode` with the block size filled in, having checked it against the checkpoint.

    Raises:
        ConfigError: the block size does not fit the checkpoint, or greedy decoding is asked for several samples.
    """
    block_size = check_options(decode, upscaler.model_config.prediction_heads)
    check_samples(decode, samples)
    return dataclasses.replace(decode, block_size=block_size)


def check_samples(decode: DecodeConfig, samples: int) -> None:
    """Raise ConfigError where several samples of an image would all be the same."""
    require(samples == 1 or decode.is_sampling, f"--samples {samples} at temperature 0 would draw the same picture "
            f"{samples} times; add --temperature 0.9 or leave --samples at 1")


def encode_png(image: Pixels, record: dict[str, Any]) -> bytes:
    """Return `image` (uint8 [H,W,3]) as PNG bytes with `record` as JSON in the text field "superres"."""
    info = PngInfo()
    info.add_text("Software", "superres")
    info.add_text("superres", json.dumps(record))
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG", pnginfo=info)
    return buffer.getvalue()


def say(message: str) -> None:
    """Print `message` as one line on standard error, above a progress bar if there is one."""
    tqdm.write(f"superres: {_one_line(message)}", file=sys.stderr)


def _one_line(message: str) -> str:
    return " ".join(message.split())


def upscale_files(jobs: Sequence[Job], upscaler: Upscaler, options: BatchOptions, decode: DecodeConfig) -> Summary:
    """Upscale the inputs of `jobs` and return the counts; what happens to each output is a row of the manifest.

    A failure is one line on standard error. The progress bar is shown on a terminal only.

    Raises:
        ConfigError: `decode` does not fit the checkpoint.
        OutputError: the output folder or the manifest cannot be written at all.
    """
    decode = resolve_options(decode, upscaler, options.samples)
    prepare_folder(options.output)
    started = time.perf_counter()
    with ExitStack() as stack:
        manifest = stack.enter_context(_open_manifest(options.manifest)) if options.manifest else None
        bar = stack.enter_context(tqdm(total=sum(len(job.outputs) for job in jobs), unit="image", disable=None,
                                       bar_format="{l_bar}{bar}| {n:.1f}/{total} [{elapsed}<{remaining}]"))
        run = _Run(upscaler, options, decode, manifest, bar)
        for job in jobs:
            run.take(job)
        run.flush()
    run.summary.seconds = time.perf_counter() - started
    return run.summary


def _open_manifest(path: Path) -> TextIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("w", encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot write the manifest {path}: {error.strerror}; choose another --manifest") from error


@dataclass
class _Item:
    """One output on its way; `row` says what became of it."""

    input: Path
    output: Path
    sample: int
    source: Pixels | None = None
    row: Row | None = None

    @property
    def waits(self) -> bool:
        return self.row is None


@dataclass
class _Run:
    """State of `upscale_files`: the outputs not yet reported, in the order of the inputs."""

    upscaler: Upscaler
    options: BatchOptions
    decode: DecodeConfig
    manifest: TextIO | None
    bar: tqdm[Any]
    summary: Summary = field(default_factory=Summary)
    pending: list[_Item] = field(default_factory=list)
    waiting: int = 0
    batch_size: int = 0
    unwritable: str | None = None

    def __post_init__(self) -> None:
        self.batch_size = self.options.batch_size

    def take(self, job: Job) -> None:
        """Read the input of `job` if one of its outputs is to be made, and decode whenever a batch is full."""
        items = [_Item(job.input, output, sample) for sample, output in enumerate(job.outputs, 1)]
        for item in items:
            if self.options.on_existing == "skip" and item.output.is_file():
                item.row = Row(str(item.input), str(item.output), "skipped")
            elif self.options.on_existing == "error" and item.output.exists():
                self._fail([item], f"{item.output} exists already; use --on-existing skip or overwrite")
        needed = [item for item in items if item.waits]
        if needed and self.unwritable:
            self._fail(needed, self.unwritable, quiet=True)
        elif needed:
            self._read(job.input, needed)
        for item in items:
            self.pending.append(item)
            self.waiting += item.waits
            if self.waiting == 0 or self.waiting >= self.batch_size:
                self.flush()

    def flush(self) -> None:
        """Decode what waits and report everything pending."""
        waiting = [item for item in self.pending if item.waits]
        while waiting:
            batch = waiting[:self.batch_size]
            if self._decode(batch):
                waiting = waiting[len(batch):]
        for row in filter(None, (item.row for item in self.pending)):
            self._report(row)
        self.pending, self.waiting = [], 0

    def _read(self, path: Path, items: list[_Item]) -> None:
        try:
            source = to_source(read_image(path), cast(Source, self.options.source))
        except (SuperresError, OSError, ValueError, MemoryError) as error:
            self._fail(items, str(error))
            return
        for item in items:
            item.source = source

    def _decode(self, items: list[_Item]) -> bool:
        """Decode and save `items`; return False if they are to be tried again because the batch size was lowered."""
        sources = np.stack([item.source for item in items if item.source is not None])
        keys = [image_key(source, item.sample) for source, item in zip(sources, items, strict=True)]
        finished = self.bar.n

        def progress(done: int, total: int) -> None:
            self.bar.update(finished + len(items) * done / max(total, 1) - self.bar.n)

        try:
            result = self.upscaler(sources, self.decode, keys=keys, progress=progress)
        except (RuntimeError, MemoryError) as error:
            self.bar.n = finished
            message, out_of_memory = str(error) or type(error).__name__, _is_out_of_memory(error)
        else:
            self._save(items, result)
            return True
        if not out_of_memory or len(items) == 1:
            self._fail(items, f"decoding failed: {message}")
            return True
        self.batch_size = (len(items) + 1) // 2
        say(f"out of memory with a batch of {len(items)}; going on with {self.batch_size} (--batch-size)")
        return False

    def _save(self, items: list[_Item], result: Upscaled) -> None:
        for item, image, trace in zip(items, result.images, result.traces, strict=True):
            record = {"checkpoint": self._checkpoint, "config": self.decode.to_dict(), "sample": item.sample}
            try:
                write_atomically(item.output, encode_png(image, record))
            except OSError as error:
                self._fail([item], f"cannot write {item.output}: {error.strerror}")
                self._check_folder()
                continue
            item.row = Row(str(item.input), str(item.output), "ok", None, trace.tokens, trace.iterations,
                           trace.model_calls, trace.mean_accepted_block_size, result.seconds / len(items),
                           self._checkpoint, self.decode.to_dict(), self.decode.seed)

    def _check_folder(self) -> None:
        """Note when the folder takes nothing more (a full disc), so that the rest is not decoded in vain."""
        try:
            prepare_folder(self.options.output)
        except OutputError as error:
            if self.unwritable is None:
                say(f"{error}; the remaining inputs are not upscaled")
            self.unwritable = str(error)

    @property
    def _checkpoint(self) -> str:
        return f"{self.upscaler.name}@{self.upscaler.revision}"

    def _fail(self, items: list[_Item], message: str, quiet: bool = False) -> None:
        """Mark `items` (samples of one input, or a batch) as failed, with one line on standard error."""
        message = _one_line(message)
        for item in items:
            item.row = Row(str(item.input), str(item.output), "failed", message, checkpoint=self._checkpoint,
                           config=self.decode.to_dict(), seed=self.decode.seed)
        names = list(dict.fromkeys(str(item.input) for item in items))
        if not quiet:
            label = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
            say(message if names[0] in message else f"{label}: {message}")

    def _report(self, row: Row) -> None:
        self.summary.add(row)
        self.bar.update(self.summary.done + self.summary.skipped + self.summary.failed - self.bar.n)
        if self.manifest is None:
            return
        try:
            self.manifest.write(json.dumps(dataclasses.asdict(row)) + "\n")
            self.manifest.flush()
        except OSError as error:
            raise OutputError(f"cannot write the manifest {self.options.manifest}: {error.strerror}") from error


def _is_out_of_memory(error: Exception) -> bool:
    message = str(error).lower()
    return isinstance(error, MemoryError) or "out of memory" in message or "can't allocate memory" in message
