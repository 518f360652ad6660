"""A run of a batch: it decides which outputs to make, and a thread writes the results to disk."""

from __future__ import annotations

import hashlib
import os
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any

from superres.batch.commit import GROUP, Staging, locked
from superres.batch.inputs import Input
from superres.batch.manifest import Manifest, Row
from superres.batch.plan import BatchOptions
from superres.batch.reading import Wanted
from superres.batch.record import Output, Request, RunSettings, Summary
from superres.errors import OutputError
from superres.system.output import prepare_folder
from superres.system.progress import Progress, say

if TYPE_CHECKING:
    from superres.decoding.batching import Result

IDLE_SECONDS = 2.0  # longest time in seconds that a finished output waits to be committed together with other outputs
PHOTO_LINES = 20  # number of photos whose crops are printed; the manifest records all of them
QUEUE = 256  # number of finished outputs that may wait for the disk before decoding blocks


class BatchRun:
    """The state of a run: plan, lock, manifest and the writing thread. A context manager.

    Attributes:
        count: number of the planned outputs, one per input and sample. Output n of face f, which is found only when the
            input is read, has the number n + f * count.
        summary: counts so far.
        error: the error after which no more outputs are written, or None.
    """

    def __init__(
        self, entries: Sequence[Input], options: BatchOptions, settings: RunSettings, group: int = GROUP,
    ) -> None:
        """Prepare the run without touching any file; `group` is as in `Staging`."""
        self.entries, self.options, self.settings, self.group = entries, options, settings, group
        self.summary = Summary()
        self.error: BaseException | None = None
        self.count, self._photos = len(entries) * options.samples, 0
        self.total = sum(1 if entry.error is not None else options.samples for entry in entries)
        self._moving = threading.Lock()
        self._queue: queue.Queue[Any] = queue.Queue(QUEUE)

    def __enter__(self) -> BatchRun:
        """Take the lock, read the manifest and start the writing thread.

        Raises OutputError if another run is writing there, the folder or the manifest cannot be written, or outputs
        were made with other settings, and InvalidInputError if the manifest is damaged.
        """
        self._started = time.perf_counter()
        output = self.options.output
        prepare_folder(output)
        with ExitStack() as stack:
            stack.enter_context(locked(output, self.options.shard))
            self.manifest = Manifest(self.options.manifest_path, self.count, self._keys(), self.options.face_of)
            stack.callback(self.manifest.close)
            self._refuse_changes()
            self._staging = Staging(output, self.manifest, self.options.shard, self._report, self.group)
            stack.callback(self._staging.close)
            self._progress = stack.enter_context(Progress("upscaling", self.total, "images"))
            self._stack = stack.pop_all()
        self._writer = threading.Thread(target=self._write, name="superres-writing", daemon=True)
        self._writer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None,
    ) -> None:
        """Commit all results; a completed run also sorts its manifest."""
        with self._stack:
            self._queue.put(None)
            self._writer.join()
            if self.error is None and kind is None:
                try:
                    self.manifest.finish()
                except OutputError as caught:
                    self.error = caught
            if isinstance(self.error, OutputError):
                self.summary.stopped = str(self.error)
                say(f"{self.error}; stopped; finished outputs are kept, and the same command resumes the run")
            elif self.error is not None and kind is None:
                raise self.error
        self.summary.seconds = time.perf_counter() - self._started

    def read(self, number: int) -> None:
        """See `superres.batch.upscaling.Sink`."""

    def put(self, result: Result[Request] | Output) -> None:
        """Queue a decoded image or an output; block while the queue is full."""
        self._queue.put(result)

    def cropped(self, line: str, more: int) -> None:
        """Say how a photo was cropped, and add the outputs of its further faces to the total."""
        self._extend(more)
        self._photos += 1
        if self._photos <= PHOTO_LINES:
            say(line)
        elif self._photos == PHOTO_LINES + 1:
            say(f"the crops of further photos are in {self.manifest.path}")

    def wanted(self) -> Iterator[Wanted]:
        """Yield the outputs to make; report all other outputs."""
        for index, entry in enumerate(self.entries):
            if self.error is not None:
                return
            first, samples = index * self.options.samples, []
            for sample, output in enumerate(self.options.outputs(entry), 1):
                planned = first + sample - 1
                outputs = [(planned + face * self.count, self.options.outputs(entry, face)[sample - 1])
                           for face in self.manifest.known_faces(planned)]
                outputs = outputs or [(planned, output)]
                unchanged = [self._unchanged(number, entry.input, path) for number, path in outputs]
                # If one of a photo's faces is missing, it is read again, and `_write_result` keeps the other faces.
                if None in unchanged:
                    samples.append(sample)
                    continue
                self._extend(len(outputs) - 1)
                for result in unchanged:
                    self._queue.put(result)
            if samples:
                yield first, entry, samples

    def progress(self, under_way: float) -> None:
        """Show the progress; `under_way` is the amount of work in progress, in images."""
        with self._moving:
            self._progress.to(max(self.summary.finished + under_way, self._progress.done))

    def _extend(self, more: int) -> None:
        """Add outputs to the total."""
        with self._moving:
            self._progress.total = (self._progress.total or 0) + more

    def _keys(self) -> Iterator[str]:
        for entry in self.entries:
            outputs = self.options.outputs(entry)
            yield from (output or entry.input for output in outputs)
            yield from [""] * (self.options.samples - len(outputs))

    def _refuse_changes(self) -> None:
        """Raise OutputError if outputs were made with other settings and --on-existing is skip."""
        if self.options.on_existing != "skip":
            return
        count, example = 0, ""
        for number in self.manifest.numbers():
            row = self.manifest.row(number)
            differences = self.settings.differences(row) if row is not None and row.status == "ok" else []
            if row is not None and differences and os.path.lexists(row.output):
                count += 1
                example = example or "; ".join(differences)
        if count:
            raise OutputError(f"{count} of the outputs in {self.options.output} were made with other settings "
                              f"({example}); repeat those settings, choose another --output, or give "
                              "--on-existing redo")

    def _unchanged(self, number: int, input: str, output: str) -> Output | None:
        """Return an output that is not to be made, or None to make it."""
        mode, row = self.options.on_existing, self.manifest.row(number)
        if mode == "overwrite" or not (os.path.isfile(output) or os.path.islink(output)):
            return None
        if mode == "error":
            return self.settings.failed(
                number, input, output, f"{output} exists already; use --on-existing skip or overwrite")
        unchanged = Output(number, Row(input, output, "skipped"))
        if row is None or row.status != "ok":
            return unchanged if mode == "skip" else None
        return None if self.settings.differences(row) or not _has_digest(output, row.sha256) else unchanged

    def _write(self) -> None:
        """Write queued results to disk until None arrives; the body of the writing thread."""
        while True:
            try:
                result = self._queue.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                result = ()
            try:
                if self.error is None:
                    self._write_result(result)
            except BaseException as error:  # the other threads continue to put results, and check `error`
                self.error = error
            if result is None:
                return

    def _write_result(self, result: Any) -> None:  # noqa: ANN401 -- as for `put`, or None or ()
        if result is None or result == ():
            self._staging.commit()
            self._staging.commit()  # the failed rows of outputs that could not be renamed
            return
        output: Output = result if isinstance(result, Output) else self.settings.output(result)
        row = output.row
        if output.data is not None:
            # Whether the output of one of several faces exists is known only now.
            unchanged = self._unchanged(output.number, row.input, row.output) if output.number >= self.count else None
            if unchanged is None:
                self._staging.add(output)
                return
            output, row = unchanged, unchanged.row
        if row.error is not None:
            say(row.error if row.input in row.error else f"{row.input}: {row.error}")
        before = self.manifest.row(output.number)
        exists = row.status == "skipped" or os.path.lexists(row.output)
        if before is not None and before.status == "ok" and exists:
            self._report(row)  # the output exists, and its row in the manifest stays valid
        else:
            self._staging.add(output)

    def lost(self, number: int, reason: str) -> None:
        """Queue the failed output of a number in the plan."""
        entry = self.entries[number // self.options.samples]
        output = self.options.outputs(entry)[number % self.options.samples]
        self.put(self.settings.failed(number, entry.input, output, reason))

    def _report(self, row: Row) -> None:
        self.summary.add(row)
        self.progress(0.0)


def _has_digest(path: str, sha256: str | None) -> bool:
    """Return whether a file exists and has the digest `sha256`."""
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest() == sha256
    except OSError:
        return False
