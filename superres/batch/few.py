"""Upscale a few files without a manifest: read, decode, write, and say where each result is."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from superres.batch.inputs import Input
from superres.batch.opening import open_inputs
from superres.batch.parts import Plan
from superres.batch.reading import Opened
from superres.batch.record import Output, Request, RunSettings, Summary
from superres.batch.rows import Row
from superres.batch.run import decode_all
from superres.config import DecodeConfig
from superres.errors import OutputError
from superres.pipeline.resolved_options import resolve_options
from superres.system.output import write_result
from superres.system.progress import Progress, say

if TYPE_CHECKING:
    from superres.decoding.batching import Result
    from superres.pipeline.upscaler import Upscaler


def upscale_few(plan: Plan, upscaler: Upscaler, decode: DecodeConfig) -> Summary:
    """Upscale the inputs of a plan into files, and return the counts.

    Raises ConfigError if the checkpoint does not support `decode`. If the disk is full, the summary
    says so.
    """
    started, options = time.perf_counter(), plan.options
    decode = resolve_options(decode, upscaler, options.samples, options.finish)
    with Progress("upscaling", plan.count * options.per_input, "images") as progress:
        files = _Files(RunSettings.of(upscaler, decode, options), progress)
        rows = min(options.batch_size or upscaler.fitting_rows(decode),
                   plan.count * options.samples)
        try:
            decode_all(files.opened(plan.entries()), files, upscaler, rows)
        except OutputError as error:
            say(str(error))
            files.summary.stopped = str(error)
    files.summary.seconds = time.perf_counter() - started
    return files.summary


class _Files:
    """Writes each result as soon as it is made: a `superres.batch.run.Sink`."""

    def __init__(self, settings: RunSettings, progress: Progress) -> None:
        self.settings, self.summary, self._progress = settings, Summary(), progress
        self.error: BaseException | None = None

    def opened(self, entries: Iterator[Input]) -> Iterator[Opened]:
        """Open the inputs whose outputs are to be made."""
        options = self.settings.options
        for turn, (entry, content) in enumerate(open_inputs(entries)):
            outputs = options.outputs(entry)
            samples = [sample for sample, output in enumerate(outputs, 1)
                       if not self._stands(entry, output)]
            if samples:
                yield turn, entry, samples, content

    def _stands(self, entry: Input, output: str) -> bool:
        """Return whether an output exists and is not to be replaced, and report it."""
        standing = self.settings.standing(entry, output)
        if standing is not None:
            self._report(standing.row)
        return standing is not None

    def read(self, turn: int, count: int) -> None:
        ...

    def put(self, result: Result[Request] | Output) -> None:
        output = result if isinstance(result, Output) else self.settings.output(result)
        if output.data is not None:
            if isinstance(result, Output) or not self._stands(result.item.entry, output.row.output):
                Path(output.row.output).parent.mkdir(parents=True, exist_ok=True)
                write_result(Path(output.row.output), output.data)
                self._report(output.row)
                say(f"{output.row.input}: written to {os.path.relpath(output.row.output)}")
        else:
            self._report(output.row)

    def _report(self, row: Row) -> None:
        self.summary.add(row)
        if row.error is not None:
            say(row.error if row.input in row.error else f"{row.input}: {row.error}")

    def cropped(self, line: str) -> None:
        say(line)

    def progress(self, under_way: float) -> None:
        self._progress.to(max(self.summary.finished + under_way, self._progress.done))
