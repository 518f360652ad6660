"""Upscale the parts of a run on a Ray cluster: an actor reads and decodes a part, and writes it
where that is a store.

Ray Data maps the parts to a pool of actors, each of which loads the model once; that is all. The
actors read the inputs, so their places must be valid on every machine. The files of a folder are
written by this process. If a machine is lost, its parts are done again; a part has the same content
whoever writes it.
"""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from superres.batch.opening import open_parts
from superres.batch.part_store import part_writer
from superres.batch.parts import Part
from superres.batch.record import Output, RunSettings
from superres.batch.run import Run, decode_all
from superres.errors import CheckpointError, ConfigError, SuperresError, first_line
from superres.system.progress import say

if TYPE_CHECKING:
    from superres.batch.decode import Made

CPUS = 2  # default number of processors per actor
FRUITLESS = 3  # executions in succession after which a run ends in which no part was finished


@dataclass(frozen=True)
class Cluster:
    """The cluster, and the checkpoint that its actors load.

    Attributes:
        address: address of the cluster; "auto" for this machine's cluster, "local" to start one for
            this run.
        workers: number of actors; None for one per GPU, or one per `CPUS` processors without GPUs.
        checkpoint: name, folder or hub id, valid on the actors' machines.
    """

    address: str
    workers: int | None
    checkpoint: str
    device: str
    engine: str

    def decode(self, run: Run) -> None:
        """Do the parts of a run on the cluster; see `decode_on_cluster`."""
        decode_on_cluster(run, self)


class Worker:
    """An actor: loads the model once, and decodes parts. It is a `superres.batch.run.Sink`.

    `folder` is that to which relative paths refer. Raises CheckpointError if the checkpoint of that
    name on this machine is another one.
    """

    def __init__(self, cluster: Cluster, settings: RunSettings, folder: str) -> None:
        from superres.pipeline.upscaler import Upscaler

        if os.path.isdir(folder):
            os.chdir(folder)
        self.error: BaseException | None = None
        self.upscaler = Upscaler.load(cluster.checkpoint, cluster.device, cluster.engine,
                                      settings.task.target, settings.task.source)
        here = f"{self.upscaler.name}@{self.upscaler.revision}"
        if here != settings.checkpoint:
            raise CheckpointError(f"checkpoint {here} on {os.uname().nodename} is not "
                                  f"{settings.checkpoint}; copy the same checkpoint to every "
                                  "machine")
        self.settings = replace(settings, engine=self.upscaler.engine)
        self.rows = settings.options.batch_size or self.upscaler.fitting_rows(settings.decode)

    def __call__(self, block: dict[str, Any]) -> dict[str, Any]:
        """Do the parts in column "part", and return what was made in column "made"."""
        made = [pickle.dumps(self.made(pickle.loads(part))) for part in block["part"]]  # noqa: S301 -- this run's
        return {"made": np.array(made, dtype=object)}

    def made(self, part: Part) -> tuple[int, Any, list[tuple[int, int]], list[str]]:
        """Return the turn of a part, its outputs (or the rows of what was written), their counts
        and photos' lines."""
        self.counts, self.outputs, self.lines = list[tuple[int, int]](), list[Output](), list[str]()
        opened = (found for _, found in open_parts([part]) if found is not None and found[2])
        decode_all(opened, self, self.upscaler, self.rows)
        self.outputs.sort(key=lambda output: (output.turn, output.index))
        if not self.settings.options.in_parts:
            return part.turn, self.outputs, self.counts, self.lines
        writer = part_writer(self.settings.options, part)
        try:
            for output in self.outputs:
                writer.add(output)
            rows = writer.finish()
        finally:
            writer.give_up()
        return part.turn, rows, [], self.lines

    def read(self, turn: int, count: int) -> None:
        self.counts.append((turn, count))

    def put(self, made: Made) -> None:
        self.outputs.append(made if isinstance(made, Output) else self.settings.output(made))

    def cropped(self, line: str) -> None:
        self.lines.append(line)

    def progress(self, under_way: float) -> None:
        ...


def decode_on_cluster(run: Run, cluster: Cluster) -> None:
    """Do the parts of a run on a cluster.

    The actors' checkpoints must equal that of the run. Raises SuperresError if there is no such
    cluster, or it fails again and again without finishing a part; ConfigError if Ray is not
    installed.
    """
    ray = import_ray()
    left, fruitless = {part.turn: part for part in run.parts()}, 0
    if not left:
        return
    with connected(ray, cluster):
        while left and run.error is None:
            problem, before = None, len(left)
            try:
                _execute(ray, run, cluster, left)
            except Exception as error:  # of the cluster, or of a task
                problem = error
            fruitless = 0 if len(left) < before else fruitless + 1
            if left and fruitless == FRUITLESS:
                raise problem or SuperresError(f"the cluster finished none of {len(left)} parts; "
                                               "finished results are kept, and the same command "
                                               "resumes the run")
            if left and run.error is None:
                say(f"the cluster lost work{_reason(problem)}; continuing with {len(left)} parts")


def _reason(error: Exception | None) -> str:
    if error is None:
        return ""
    lines = str(error).strip().splitlines()
    return f" ({' '.join((lines[-1] if lines else first_line(error)).split())[:200]})"


def import_ray() -> ModuleType:
    """Import Ray, or raise ConfigError."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no prompt and no usage reports
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # errors also arrive as exceptions
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise ConfigError("--ray needs the ray extra; pip install 'superres[ray]'") from error
    module: ModuleType = ray
    return module


@contextmanager
def connected(ray: ModuleType, cluster: Cluster) -> Iterator[None]:
    """Connect to the cluster or start one; raise its errors as a SuperresError of one line."""
    own: dict[str, Any] = {}
    if cluster.address == "local":
        own = {"include_dashboard": False,
               "num_cpus": max(cluster.workers or 0, os.cpu_count() or 1)}
    already = ray.is_initialized()
    try:
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR",
                 ignore_reinit_error=True, **own)
        yield
    except (ray.exceptions.RayError, ConnectionError) as error:
        # The last line of an actor's traceback names the cause.
        reason = " ".join((str(error).strip().splitlines() or [type(error).__name__])[-1].split())
        raise SuperresError(f"the Ray cluster at {cluster.address} failed ({reason}); finished "
                            "outputs are kept, and the same command resumes the run") from error
    finally:
        if not already:
            ray.shutdown()


def pool_of(ray: ModuleType, cluster: Cluster, most: int) -> tuple[int, dict[str, float]]:
    """Return the number of actors, at most `most`, and the share of a processor or GPU that each
    asks for.

    On CPUs some of a processor is left to the tasks that read and write.
    """
    resources = ray.cluster_resources()
    gpus = int(resources.get("GPU", 0)) if cluster.device != "cpu" else 0
    cpus = int(resources.get("CPU", 1))
    workers = min(cluster.workers or gpus or max(1, cpus // CPUS), most)
    if gpus:
        return workers, {"num_gpus": gpus / workers if workers > gpus else 1.0}
    share = max(1, cpus // workers)
    return workers, {"num_cpus": 0.8 if share == 1 else share - 1}


def _execute(ray: ModuleType, run: Run, cluster: Cluster, left: dict[int, Part]) -> None:
    """Map the parts `left`, and remove the parts that are done."""
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    context.target_max_block_size = None  # a part is not divided
    workers, share = pool_of(ray, cluster, len(left))
    if os.path.isdir(cluster.checkpoint):
        cluster = replace(cluster, checkpoint=os.path.abspath(cluster.checkpoint))
    parts = [{"part": pickle.dumps(part)} for part in left.values()]
    made = ray.data.from_items(parts, override_num_blocks=len(parts)).map_batches(
        Worker, batch_size=1, fn_constructor_args=(cluster, run.settings, os.getcwd()),
        zero_copy_batch=False, compute=ray.data.ActorPoolStrategy(size=workers), **share)
    for row in made.iter_rows():
        turn, results, counts, lines = pickle.loads(row["made"])  # noqa: S301 -- from this run's own actors
        part = left.pop(turn, None)
        if part is None:
            continue  # it was decoded twice
        for line in lines:
            run.cropped(line)
        if run.settings.options.in_parts:
            run.written(results)
        else:
            _pass_on(run, part, results, dict(counts))
        if run.error is not None:
            return


def _pass_on(run: Run, part: Part, outputs: Sequence[Output], counts: dict[int, int]) -> None:
    run.begin(part)
    for turn in range(part.turn, part.turn + len(part.entries)):
        run.read(turn, counts.get(turn, 0))
    for output in outputs:
        run.put(output)
    run.end(part)
