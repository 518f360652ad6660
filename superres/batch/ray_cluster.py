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
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from superres.batch.inputs import Input
from superres.batch.plan import BatchOptions
from superres.batch.reading import Wanted
from superres.batch.record import Output, Request, RunSettings, Summary
from superres.batch.run import BatchRun
from superres.batch.upscaling import Decoding, read_ahead
from superres.config import DecodeConfig
from superres.errors import CheckpointError, ClusterError, ConfigError
from superres.pipeline.options import resolve_options

if TYPE_CHECKING:
    from superres.decoding.batching import Result
    from superres.pipeline.upscaler import Upscaler

BLOCK = 64
"""Inputs per block, the unit of work of an actor; a block is decoded again if its actor dies."""
CPUS = 2
"""Default number of processors per actor."""


@dataclass(frozen=True)
class Cluster:
    """The cluster, and the checkpoint that its actors load.

    Attributes:
        address: address of the cluster; "auto" for this machine's cluster, "local" to start one for this run.
        workers: number of actors; None for one per GPU, or one per `CPUS` processors without GPUs.
        checkpoint: name, folder or hub id, valid on the actors' machines.
        device: "auto", "cpu" or "cuda".
        engine: a name in `superres.config.ENGINE_NAMES`.
    """

    address: str
    workers: int | None = None
    checkpoint: str = "celeba-8to32"
    device: str = "auto"
    engine: str = "auto"


@dataclass
class Collector:
    """The sink of an actor: encodes finished images as files and collects them until the block is done."""

    settings: RunSettings
    made: list[Output] = field(default_factory=list)
    photos: list[tuple[str, int]] = field(default_factory=list)
    error: BaseException | None = None

    def put(self, result: Result[Request] | Output) -> None:
        """See `superres.batch.run.BatchRun.put`."""
        self.made.append(result if isinstance(result, Output) else self.settings.output(result))

    def cropped(self, line: str, more: int) -> None:
        """See `superres.batch.run.BatchRun.cropped`."""
        self.photos.append((line, more))

    def progress(self, under_way: float) -> None:
        """See `superres.batch.run.BatchRun.progress`."""


class Worker:
    """An actor: loads the model once and decodes blocks of inputs."""

    def __init__(self, cluster: Cluster, settings: RunSettings, count: int, folder: str) -> None:
        """Load the model.

        Args:
            cluster: the model to load.
            settings: settings that determine the outputs.
            count: number of the planned outputs of the run.
            folder: folder that relative paths refer to.

        Raises:
            CheckpointError: the checkpoint of that name on this machine is another one.
        """
        from superres.pipeline.upscaler import Upscaler

        if os.path.isdir(folder):
            os.chdir(folder)
        self.settings, self.count = settings, count
        self.upscaler = Upscaler.load(cluster.checkpoint, cluster.device, cluster.engine)
        here = f"{self.upscaler.name}@{self.upscaler.revision}"
        if here != settings.checkpoint:
            raise CheckpointError(f"checkpoint {here} on {os.uname().nodename} is not {settings.checkpoint}; copy "
                                  "the same checkpoint to every machine")
        self.rows = settings.options.batch_size or self.upscaler.fitting_rows(settings.decode)

    def __call__(self, block: dict[str, Any]) -> dict[str, Any]:
        """Read and decode the inputs in column "wanted", and return the files in column "made"."""
        wanted = [one for part in block["wanted"] for one in pickle.loads(part)]  # noqa: S301 -- from this run itself
        collector = Collector(self.settings)
        count = sum(len(samples) for _, _, samples in wanted)
        rows = min(self.rows, count)
        with read_ahead(iter(wanted), collector, self.count, rows) as feed:
            Decoding(collector, self.upscaler, feed, self.settings.decode, rows).run_all()
        return {"made": np.array([pickle.dumps((collector.made, collector.photos))], dtype=object)}


def upscale_on_cluster(
    entries: Sequence[Input], upscaler: Upscaler, options: BatchOptions, decode: DecodeConfig, cluster: Cluster,
    block: int = BLOCK,
) -> Summary:
    """Do the work of `superres.batch.upscaling.upscale_files` with actors of a Ray cluster.

    Args:
        entries: the inputs.
        upscaler: the checkpoint on this machine, which the actors' checkpoints must equal.
        options: options of the run.
        decode: decoding settings.
        cluster: the cluster and the model for its actors.
        block: inputs per block.

    Raises:
        ConfigError: the checkpoint does not support `decode`, or Ray is not installed.
        ClusterError: there is no such cluster, or it fails.
        InvalidInputError: the manifest is damaged.
        OutputError: as for `superres.batch.upscaling.upscale_files`.
    """
    ray = _import_ray()
    decode = resolve_options(decode, upscaler, options.samples)
    # An actor may run in another folder.
    options = replace(options, output=Path(os.path.abspath(options.output)))
    settings = RunSettings(f"{upscaler.name}@{upscaler.revision}", decode, options, upscaler.face_task)
    with BatchRun(entries, options, settings) as run:
        wanted = [pickle.dumps(part) for part in _blocks(run.wanted(), block)]
        if wanted:
            with _connected(ray, cluster):
                _decode(ray, run, wanted, cluster)
    return run.summary


def _import_ray() -> ModuleType:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no prompt and no usage reports
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # errors also arrive as exceptions
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise ConfigError("--ray needs the extra ray; pip install 'superres[ray]'") from error
    module: ModuleType = ray
    return module


def _blocks(wanted: Iterator[Wanted], size: int) -> Iterator[list[Wanted]]:
    while block := list(itertools.islice(wanted, size)):
        yield block


@contextmanager
def _connected(ray: ModuleType, cluster: Cluster) -> Iterator[None]:
    """Connect to the cluster or start one; raise its errors as a ClusterError of one line."""
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
        raise ClusterError(f"the Ray cluster at {cluster.address} failed ({reason}); finished outputs are kept, and "
                           "the same command resumes the run") from error
    finally:
        if not already:
            ray.shutdown()


def _decode(ray: ModuleType, run: BatchRun, wanted: list[bytes], cluster: Cluster) -> None:
    """Let the actors decode the blocks `wanted`, and pass the results to `run`."""
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    resources = ray.cluster_resources()
    gpus = int(resources.get("GPU", 0)) if cluster.device != "cpu" else 0
    cpus = int(resources.get("CPU", 1))
    workers = min(cluster.workers or gpus or max(1, cpus // CPUS), len(wanted))
    share = {"num_gpus": gpus / workers if workers > gpus else 1.0} if gpus else {"num_cpus": max(1, cpus // workers)}
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
