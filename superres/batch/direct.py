"""Upscale a few files without a manifest: read, upscale, save, and say where each result is."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from superres.batch.decode import decoded
from superres.batch.inputs import Input, inputs_of, nothing_in
from superres.batch.opening import open_inputs
from superres.batch.reading import Opened, read_requests
from superres.batch.record import Output, Request, RunSettings, Summary, tell
from superres.batch.run_options import BatchOptions, refuse_shared, replaces_input
from superres.config import DecodeConfig
from superres.errors import OutputError
from superres.pipeline.resolved_options import resolve_options
from superres.system.folders import Inventory
from superres.system.output import write_result
from superres.system.places import known_place, open_place
from superres.system.progress import Progress, say

if TYPE_CHECKING:
    from superres.pipeline.upscaler import Upscaler


def list_few(inputs: Sequence[str], options: BatchOptions) -> list[Input]:
    """Return the pictures of files and archives, each once.

    Raises InvalidInputError if there are none, two have the same output, or an output would replace
    an input.
    """
    entries, inventory = dict[tuple[str, int], Input](), Inventory()
    for place in map(open_place, inputs):
        name = os.path.basename(place.path)
        for entry in inputs_of(place, name, inventory, options.keep_tree):
            entries.setdefault((known_place(entry.input).full, entry.member), entry)
    inventory.finish()
    if not entries:
        raise nothing_in(inputs, recursive=False)
    # No output may be that of another input, or an input.
    names = [(name, entry) for entry in entries.values() if entry.error is None
             for name in options.names(entry)]
    refuse_shared(((name, entry.input) for name, entry in names), options)
    read = {known_place(entry.archive or entry.input).real() for _, entry in names}
    for name, _ in names:
        if known_place(f"{options.folder}/{name}").real() in read:
            raise replaces_input(name, options)
    return list(entries.values())


def upscale_few(entries: Sequence[Input], options: BatchOptions, upscaler: Upscaler,
                decode: DecodeConfig) -> Summary:
    """Upscale inputs into files, and return the counts.

    Raises ConfigError if the checkpoint does not support `decode`. If the disk is full, the summary
    says so.
    """
    from superres.decoding.batching import feed_of  # imports numpy

    started, summary = time.perf_counter(), Summary()
    decode = resolve_options(decode, upscaler, options.samples, options.finish)
    settings = RunSettings.of(upscaler, decode, options)
    rows = min(options.batch_size or upscaler.fitting_rows(decode), len(entries) * options.samples)

    def save(output: Output) -> None:
        if output.data is not None:
            path = Path(output.row.output)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_result(path, output.data)
            say(f"{output.row.input}: written to {os.path.relpath(path)}")
        summary.add(output.row)
        tell(output.row)

    with Progress("upscaling", len(entries) * options.per_input, "images") as progress:
        def moved(under_way: float) -> None:
            progress.to(max(summary.finished + under_way, progress.done))

        try:
            requests = _requests(entries, settings, save)
            for made in decoded(feed_of(requests), settings, upscaler, rows, moved):
                save(made if isinstance(made, Output) else
                     settings.standing(made.item.entry, made.item.output) or settings.output(made))
        except OutputError as error:
            say(str(error))
            summary.stopped = str(error)
    summary.seconds = time.perf_counter() - started
    return summary


def _requests(entries: Sequence[Input], settings: RunSettings,
              save: Callable[[Output], None]) -> Iterator[Request]:
    """Read the inputs, and yield what is to be decoded; `save` gets what exists or cannot be
    made."""
    def opened() -> Iterator[Opened]:
        for turn, (entry, content) in enumerate(open_inputs(entries)):
            found = [settings.standing(entry, output) for output in settings.options.outputs(entry)]
            for one in found:
                if one is not None:
                    save(one)
            if missing := [sample for sample, one in enumerate(found, 1) if one is None]:
                yield turn, entry, missing, content

    for _, made in read_requests(opened(), settings, say):
        for one in made:
            if isinstance(one, Request):
                yield one
            else:
                save(one)
