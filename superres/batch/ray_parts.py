"""Upscale in parts on a Ray cluster whose machines share no disc.

Ray Data reads the inputs of parts in tasks, an actor pool decodes them, one model per actor, and Ray Data writes shards
and manifests in tasks, each on any machine. This process holds numbers of parts, and no picture. If a machine is lost,
the parts that have no manifest are done again; a part has the same content whoever writes it.
"""

from __future__ import annotations

import logging
import pickle
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from superres.batch.manifest import Row
from superres.batch.part_run import COUNT, PartFile, open_part, report_of, wanted_parts
from superres.batch.parts import PLAN_BYTES, Job, done_parts, read_part
from superres.batch.plan import BatchOptions
from superres.batch.ray_cluster import Cluster, Worker, connected, import_ray, pool_of
from superres.batch.record import Output, RunSettings, Summary
from superres.batch.upscaling import decode_all
from superres.config import DecodeConfig
from superres.errors import SuperresError, first_line
from superres.pipeline.options import resolve_options
from superres.system.places import read_place
from superres.system.progress import say

if TYPE_CHECKING:
    from superres.pipeline.upscaler import Upscaler

MOST_BLOCKS = 10_000  # blocks of numbers of parts; a block of several parts is decoded again as a whole
FRUITLESS = 3  # executions in succession after which a run ends in which no part was finished


def upscale_parts_on_cluster(
    job: Job, upscaler: Upscaler, options: BatchOptions, decode: DecodeConfig, cluster: Cluster, redo: bool = False,
) -> Summary:
    """Do the work of `superres.batch.part_run.upscale_parts` on a Ray cluster.

    Every machine must reach the places and have the checkpoint. Raises as `upscale_parts`, SuperresError if the cluster
    fails again and again without finishing a part, and ConfigError if Ray is not installed.
    """
    started, ray = time.perf_counter(), import_ray()
    decode = resolve_options(decode, upscaler, options.samples)
    settings = RunSettings(f"{upscaler.name}@{upscaler.revision}", decode, options, upscaler.face_task)
    wanted, _ = wanted_parts(job, options, settings, redo)
    if wanted:
        with connected(ray, cluster):
            _persist(ray, job, settings, cluster, wanted)
    summary = Summary()
    for number in wanted:
        counts, failures = report_of(_rows(job, number))
        summary.include(counts)
        for line in failures:
            say(line)
    summary.seconds = time.perf_counter() - started
    return summary


def _persist(ray: ModuleType, job: Job, settings: RunSettings, cluster: Cluster, wanted: Sequence[int]) -> None:
    """Execute until all parts are done; raise the error if several executions in succession finish none."""
    left, fruitless = list(wanted), 0
    while left:
        problem: Exception | None = None
        try:
            _execute(ray, job, settings, cluster, left)
        except Exception as error:  # of the cluster, or of a task
            problem = error
        done = done_parts(job, wanted[-1] + 1)
        before, left = len(left), [number for number in left if not done[number]]
        fruitless = 0 if len(left) < before else fruitless + 1
        if left and fruitless == FRUITLESS:
            raise problem or SuperresError(f"the cluster finished none of {len(left)} parts; finished parts are kept")
        if left:
            reason = "" if problem is None else f" ({_reason(problem)})"
            say(f"the cluster lost work{reason}; continuing with {len(left)} of {len(wanted)} parts")


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return " ".join((lines[-1] if lines else first_line(error)).split())[:200]


def _execute(ray: ModuleType, job: Job, settings: RunSettings, cluster: Cluster, parts: Sequence[int]) -> None:
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    context.target_max_block_size = None  # a part is not divided
    workers, share = pool_of(ray, cluster, len(parts))
    numbers = ray.data.from_items([{"part": part} for part in parts], override_num_blocks=min(len(parts), MOST_BLOCKS))
    opened = numbers.map(Reader(job, settings), num_cpus=READING_CPUS, concurrency=2 * workers)
    made = opened.map_batches(
        PartWorker, batch_size=1, fn_constructor_args=(cluster, settings, COUNT, ""), zero_copy_batch=False,
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=workers), max_restarts=0, max_task_retries=0,
        scheduling_strategy="SPREAD", **share)
    made.write_datasink(sink_of(ray, job), ray_remote_args={"num_cpus": READING_CPUS}, concurrency=2 * workers)


READING_CPUS = 0.05
"""Share of a processor that a task of reading or writing asks for: it waits most of the time."""


@dataclass(frozen=True)
class Reader:
    """A task: reads the inputs of a part."""

    job: Job
    settings: RunSettings

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return the part's number and its opened inputs."""
        part = read_part(self.job, int(row["part"]))
        opened = list(open_part(self.job, part, self.settings.options, 0))
        return {"part": part.number, "opened": pickle.dumps(opened)}


class PartWorker(Worker):
    """An actor: decodes parts."""

    def __call__(self, block: dict[str, Any]) -> dict[str, Any]:
        """Decode the inputs in column "opened", and return the outputs in column "made"."""
        made = [self._made(pickle.loads(opened)) for opened in block["opened"]]  # noqa: S301 -- from this run itself
        return {"part": block["part"], "made": np.array([pickle.dumps(one) for one in made], dtype=object)}

    def _made(self, opened: list[Any]) -> list[Output]:
        self.made, self.photos = list[Output](), list[tuple[str, int]]()
        rows = min(self.rows, max(1, sum(len(samples) for _, _, samples, _ in opened)))
        decode_all(iter(opened), self, self.upscaler, rows)
        samples = self.settings.options.samples
        return sorted(self.made, key=lambda output: (output.number % COUNT // samples, output.number))


def sink_of(ray: ModuleType, job: Job) -> Any:  # noqa: ANN401 -- of Ray
    """Return the object by which Ray Data writes parts."""

    class PartSink(ray.data.Datasink):  # type: ignore[misc,name-defined]  # Ray has no types
        def write(self, blocks: Iterable[Any], ctx: Any) -> list[int]:  # noqa: ANN401
            written = []
            for block in blocks:
                for row in ray.data.block.BlockAccessor.for_block(block).iter_rows(public_row_format=True):
                    write_part(job, int(row["part"]), pickle.loads(row["made"]))  # noqa: S301 -- from this run itself
                    written.append(int(row["part"]))
            return written

    return PartSink()


def write_part(job: Job, part: int, outputs: Iterable[Output]) -> None:
    """Write the outputs of a part and its manifest."""
    file = PartFile(job, part)
    try:
        for output in outputs:
            file.add(output)
        file.finish()
    finally:
        file.close()


def _rows(job: Job, part: int) -> Iterator[Row]:
    yield from map(Row.parse, read_place(job.manifest(part), PLAN_BYTES).splitlines())
