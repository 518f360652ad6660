"""Upscale on a Ray cluster: actors read and decode; this process maintains the manifest and writes the outputs.

Ray Data distributes blocks of inputs to a pool of actors, each of which loads the model once. If an actor dies, another
one processes its block. The actors read the inputs, so the paths must be valid on every machine. Only this process
writes outputs, with the same code and the same results as without Ray.
"""

from __future__ import annotations

import itertools
import logging
import os
import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from superres.batch.inputs import Input
from superres.batch.plan import BatchOptions
from superres.batch.reading import open_wanted
from superres.batch.record import Output, Request, RunSettings, Summary
from superres.batch.run import BatchRun
from superres.batch.upscaling import decode_all
from superres.config import DecodeConfig
from superres.errors import CheckpointError, ConfigError, SuperresError
from superres.pipeline.options import resolve_options

if TYPE_CHECKING:
    from superres.decoding.batching import Result
    from superres.pipeline.upscaler import Upscaler

BLOCK = 64  # inputs per block, the unit of work of an actor; a block is decoded again if its actor dies
CPUS = 2  # default number of processors per actor


@dataclass(frozen=True)
class Cluster:
    """The cluster, and the checkpoint that its actors load.

    Attributes:
        address: address of the cluster; "auto" for this machine's cluster, "local" to start one for this run.
        workers: number of actors; None for one per GPU, or one per `CPUS` processors without GPUs.
        checkpoint: name, folder or hub id, valid on the actors' machines.
    """

    address: str
    workers: int | None
    checkpoint: str
    device: str
    engine: str


class Worker:
    """An actor: loads the model once, decodes blocks of inputs, and encodes finished images as files.

    `count` is the number of the planned outputs of the run, and `folder` that to which relative paths refer. Raises
    CheckpointError if the checkpoint of that name on this machine is another one.
    """

    def __init__(self, cluster: Cluster, settings: RunSettings, count: int, folder: str) -> None:
        from superres.pipeline.upscaler import Upscaler

        if os.path.isdir(folder):
            os.chdir(folder)
        self.settings, self.count = settings, count
        self.error: BaseException | None = None
        loaded = Upscaler.load(cluster.checkpoint, cluster.device, cluster.engine)
        self.upscaler = loaded.at_size(settings.task.target).from_size(settings.task.source)
        here = f"{self.upscaler.name}@{self.upscaler.revision}"
        if here != settings.checkpoint:
            raise CheckpointError(f"checkpoint {here} on {os.uname().nodename} is not {settings.checkpoint}; copy "
                                  "the same checkpoint to every machine")
        self.rows = settings.options.batch_size or self.upscaler.fitting_rows(settings.decode)

    def __call__(self, block: dict[str, Any]) -> dict[str, Any]:
        """Read and decode the inputs in column "wanted", and return the files in column "made"."""
        wanted = [one for part in block["wanted"] for one in pickle.loads(part)]  # noqa: S301 -- from this run itself
        self.made, self.photos = list[Output](), list[tuple[str, int]]()
        rows = min(self.rows, sum(len(samples) for _, _, samples in wanted))
        decode_all(open_wanted(wanted), self, self.upscaler, rows)
        return {"made": np.array([pickle.dumps((self.made, self.photos))], dtype=object)}

    def read(self, number: int) -> None:
        """See `superres.batch.upscaling.Sink`."""

    def put(self, result: Result[Request] | Output) -> None:
        """See `superres.batch.upscaling.Sink`."""
        self.made.append(result if isinstance(result, Output) else self.settings.output(result))

    def cropped(self, line: str, more: int) -> None:
        """See `superres.batch.upscaling.Sink`."""
        self.photos.append((line, more))

    def progress(self, under_way: float) -> None:
        """See `superres.batch.upscaling.Sink`."""


def upscale_on_cluster(
    entries: Sequence[Input], upscaler: Upscaler, options: BatchOptions, decode: DecodeConfig, cluster: Cluster,
    block: int = BLOCK,
) -> Summary:
    """Do the work of `superres.batch.upscaling.upscale_files` with actors of a Ray cluster, `block` inputs per block.

    The actors' checkpoints must equal that of `upscaler`. Raises SuperresError if there is no such cluster or it fails,
    ConfigError if Ray is not installed, and the errors of `upscale_files`.
    """
    ray = import_ray()
    decode = resolve_options(decode, upscaler, options.samples)
    # An actor may run in another folder.
    options = replace(options, output=Path(os.path.abspath(options.output)))
    settings = RunSettings(f"{upscaler.name}@{upscaler.revision}", decode, options, upscaler.face_task)
    with BatchRun(entries, options, settings) as run:
        inputs = run.wanted()
        wanted = [pickle.dumps(part) for part in iter(lambda: list(itertools.islice(inputs, block)), [])]
        if wanted:
            with connected(ray, cluster):
                _decode(ray, run, wanted, cluster)
    return run.summary


def import_ray() -> ModuleType:
    """Import Ray, or raise ConfigError."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no prompt and no usage reports
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # errors also arrive as exceptions
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise ConfigError("--ray needs the extra ray; pip install 'superres[ray]'") from error
    module: ModuleType = ray
    return module


@contextmanager
def connected(ray: ModuleType, cluster: Cluster) -> Iterator[None]:
    """Connect to the cluster or start one; raise its errors as a SuperresError of one line."""
    own: dict[str, Any] = {}
    if cluster.address == "local":
        own = {"include_dashboard": False, "num_cpus": max(cluster.workers or 0, os.cpu_count() or 1)}
    already = ray.is_initialized()
    try:
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR", ignore_reinit_error=True, **own)
        yield
    except (ray.exceptions.RayError, ConnectionError) as error:
        # The last line of an actor's traceback names the cause.
        reason = " ".join((str(error).strip().splitlines() or [type(error).__name__])[-1].split())
        raise SuperresError(f"the Ray cluster at {cluster.address} failed ({reason}); finished outputs are kept, and "
                            "the same command resumes the run") from error
    finally:
        if not already:
            ray.shutdown()


def pool_of(ray: ModuleType, cluster: Cluster, most: int) -> tuple[int, dict[str, float]]:
    """Return the number of actors, at most `most`, and the share of a processor or GPU that each asks for.

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


def _decode(ray: ModuleType, run: BatchRun, wanted: list[bytes], cluster: Cluster) -> None:
    """Let the actors decode the blocks `wanted`, and pass the results to `run`."""
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    workers, share = pool_of(ray, cluster, len(wanted))
    folder = os.getcwd()
    if os.path.isdir(cluster.checkpoint):
        cluster = replace(cluster, checkpoint=os.path.abspath(cluster.checkpoint))
    data = ray.data.from_items([{"wanted": block} for block in wanted], override_num_blocks=len(wanted))
    made = data.map_batches(
        Worker, batch_size=1, fn_constructor_args=(cluster, run.settings, run.count, folder), zero_copy_batch=False,
        compute=ray.data.ActorPoolStrategy(size=workers), **share,
    )
    missing = {number + sample - 1 for block in wanted for number, _, samples in pickle.loads(block)  # noqa: S301
               for sample in samples}
    for row in made.iter_rows():
        results, photos = pickle.loads(row["made"])  # noqa: S301 -- from this run's own actors
        planned = {result.number % run.count for result in results}
        if planned <= missing:  # a block that was decoded twice counts once
            missing -= planned
            for photo in photos:
                run.cropped(*photo)
            for result in results:
                run.put(result)
        run.progress(0.0)
        if run.error is not None:
            return
    for number in sorted(missing):
        run.lost(number, "the cluster lost this output; repeat the command to make it")
