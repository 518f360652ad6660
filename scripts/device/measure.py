"""Check and measure decoding on a GPU, one part at a time, as JSON; scripts/device/run.sh runs all
parts.

    python scripts/device/measure.py stream --data dev.npz --output stream.json

Parts: `smoke` (imports, a decode per engine, the encoder), `exact` (blocks equal one token per
    step; widths, batches,
CPU), `benchmark` (that of `superres benchmark images`), `stream` (images per second), `threads`
(two threads decode at once).
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from superres import DecodeConfig, SuperresError, Upscaler
from superres.decoding.batching import feed_of
from superres.errors import ConfigError
from superres.evaluation.benchmark import run_benchmark
from superres.evaluation.workload import image_workload
from superres.pipeline.auto import face_task
from superres.pipeline.choose import pick_device
from superres.system.machine import Timer, machine, peak_bytes
from superres.system.output import prepare_folder, write_result
from superres.tasks.face_data import read_faces

Report = dict[str, Any]
BENCHMARK_SECONDS = 35
"""Time of a benchmark of one engine; what does not fit is left out."""


@dataclass(frozen=True)
class Image:
    """An item of a feed."""

    source: np.ndarray
    key: int


class Run:
    """What every part needs: images, engines, sizes, and the report, which is written after every
    row."""

    def __init__(self, report: Report, output: Path, lr: np.ndarray, checkpoint: str,
                 device: torch.device, engines: list[str], batches: list[int], images: int) -> None:
        self.report, self.output, self.lr, self.checkpoint, self.device = (report, output, lr,
                                                                           checkpoint, device)
        self.engines, self.batches, self.images = engines, batches, images

    def load(self, engine: str, device: str | None = None) -> Upscaler:
        return Upscaler.load(self.checkpoint, device or str(self.device), engine)

    def write(self, name: str, value: object) -> None:
        """Add a value to the report, or to a list in it, print it, and write the report."""
        if isinstance(self.report.get(name), list):
            self.report[name].append(value)
        else:
            self.report[name] = value
        print(name, value, flush=True)
        write_result(self.output, json.dumps(self.report, indent=1).encode())


def smoke(run: Run) -> None:
    """Decode a picture with every engine, and compare the encoder's estimate with that of a CPU, in
    grey levels."""
    for name in run.engines:
        upscaler = run.load(name)
        first, second = (upscaler(run.lr[:1], DecodeConfig(accept="distance", epsilon=2))
                         for _ in range(2))
        run.write(name, {"first_seconds": first.seconds, "seconds": second.seconds,
                         "model_calls": second.traces[0].model_calls})
    source = torch.from_numpy(run.lr[:16].reshape(len(run.lr[:16]), -1)).long()
    with torch.inference_mode():
        expected = run.load("plain", "cpu").model.encode(source).estimate
        found = run.load("plain").model.encode(source.to(run.device)).estimate.cpu()
        run.write("estimate differs from the CPU's", float((found - expected).abs().max()))


def exact(run: Run) -> None:
    """Compare tokens: blocks with one token per step, widths, batches, and all engines with the
    CPU's."""
    lr, greedy = run.lr[: run.images], {}
    for name in run.engines:
        upscaler = run.load(name)
        heads = upscaler.model_config.prediction_heads

        def tokens(options: DecodeConfig, width: int | None = None,
                   upscaler: Upscaler = upscaler) -> np.ndarray:
            return upscaler.decode(lr, options, keys=range(len(lr)),
                                   width=width).images.reshape(len(lr), -1)

        wide, own, blocks = (tokens(DecodeConfig(1), heads), tokens(DecodeConfig(1)),
                             tokens(DecodeConfig(heads)))
        drawn = [tokens(DecodeConfig(size, temperature=0.9), heads) for size in (1, heads)]
        alone = np.concatenate([upscaler(one[None], DecodeConfig(heads)).images.reshape(1, -1)
                                for one in lr[:4]])
        greedy[name] = own
        run.write(name, {
            "images": len(lr),
            "blocks = greedy of their width (must be 1)": same(tokens(DecodeConfig(heads), heads),
                                                               wide),
            "sampled blocks = sequential samples (must be 1)": same(*drawn),
            "greedy of width K = greedy of width 1": same(wide, own), "blocks = greedy of width "
            "1": same(blocks, own), "one at a time = in a batch": same(alone, blocks[: len(alone)]),
        })
    try:
        expected = run.load("native", "cpu")(lr, DecodeConfig(1)).images.reshape(len(lr), -1)
    except SuperresError as error:  # no compiler there
        run.write("native", str(error))
        return
    run.write("tokens equal to the CPU's greedy", {name: float((own == expected).mean())
                                                   for name, own in greedy.items()})


def same(one: np.ndarray, other: np.ndarray) -> float:
    """Return the share of equal rows."""
    return float((one == other).all(1).mean())


def benchmark(run: Run) -> None:
    """Measure every engine by block size and batch, beside other ways, and the limits of the
    device."""
    for name in run.engines:
        run.write(name, run_benchmark(image_workload(run.load(name), run.lr), run.batches, 3,
                                     seconds=BENCHMARK_SECONDS))


def stream(run: Run) -> None:
    """Decode a stream of four images per row, and report images per second and the peak memory."""
    run.report["streams"] = []
    for name in run.engines:
        upscaler = run.load(name)
        heads = upscaler.model_config.prediction_heads
        for way, options in {"exact": DecodeConfig(heads),
                             "epsilon 2": DecodeConfig(heads, accept="distance",
                                                       epsilon=2)}.items():
            for batch in run.batches:
                images, seconds = run.lr[np.arange(4 * batch) % len(run.lr)], list[float]()

                def decode(images: np.ndarray, upscaler: Upscaler = upscaler,
                           options: DecodeConfig = options, batch: int = batch) -> None:
                    feed = feed_of(map(Image, images, range(len(images))))
                    if (sum(len(done) for done in upscaler.refilled(feed, options, batch).run())
                        != len(images)):
                        raise RuntimeError("images of the stream are missing")

                decode(images[: batch + 1])
                peak = peak_bytes(run.device, lambda decode=decode, images=images, seconds=seconds: seconds.append(
                    Timer(run.device).once(lambda: decode(images))))
                run.write("streams", {"engine": name, "decoding": way, "batch": batch,
                                      "images": len(images), "images_per_second": len(images)
                                      / seconds[0], "MiB": peak / 2**20})


def threads(run: Run) -> None:
    """Decode in two threads at once, at sizes of their own; the tokens must be those of one
    thread."""
    engine = run.engines[-1]
    heads = run.load(engine).model_config.prediction_heads
    jobs = [(run.lr[:rows], DecodeConfig(max(heads - less, 1), accept="distance", epsilon=2))
            for rows, less in ((1, 0), (3, 1), (2, 2), (1, 3))]
    alone, shared = run.load(engine), run.load(engine)
    expected, found, errors = ([alone(*job).images for job in jobs], dict[int, np.ndarray](),
                               list[str]())

    def work(numbers: tuple[int, ...]) -> None:
        try:
            for number in numbers:
                found[number] = shared(*jobs[number]).images
        except Exception:  # a thread's error is a result
            errors.append(traceback.format_exc(limit=3))

    both = [threading.Thread(target=work, args=(numbers,)) for numbers in ((0, 2), (1, 3))]
    for one in both:
        one.start()
    for one in both:
        one.join()
    run.write("threads", {"errors": errors, "equal (must be true)": [
        number in found and bool((found[number] == images).all()) for number,
        images in enumerate(expected)]})


PARTS = {"smoke": smoke, "exact": exact, "benchmark": benchmark, "stream": stream,
         "threads": threads}


class Warnings(logging.Handler):
    """Keeps the package's warnings for the report."""

    def __init__(self, messages: list[str]) -> None:
        super().__init__()
        self.messages = messages

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message once."""
        if record.getMessage() not in self.messages:
            self.messages.append(record.getMessage())


def main(
    part: Annotated[str, typer.Argument(help=f"One of {', '.join(PARTS)}.")],
    data: Annotated[Path, typer.Option(help="Faces: .npz, folder of images or CelebA root.")],
    output: Annotated[Path, typer.Option(help="JSON file to write.")],
    device: Annotated[str, typer.Option(help="cuda or cpu.")] = "cuda",
    checkpoint: Annotated[str, typer.Option(help="Checkpoint name, folder or hub "
                                            "id.")] = "celeba-8to32",
    engines: Annotated[str,
                       typer.Option(help="Engines, separated by "
                                    "commas.")] = "plain,triton,triton-bf16",
    batches: Annotated[str, typer.Option(help="Batch sizes, separated by commas.")] = "1,64,1024",
    images: Annotated[int, typer.Option(min=1, help="Images to compare.")] = 16,
) -> None:
    """Run a part, and write its report after every row, with the error that ended it if there was
    one."""
    where = pick_device(device)
    if part not in PARTS:
        raise ConfigError(f"unknown part {part!r}; choose one of {', '.join(PARTS)}")
    prepare_folder(output.parent)
    report: Report = {"part": part, "machine": machine(where), "warnings": []}
    logging.getLogger("superres").addHandler(Warnings(report["warnings"]))
    lr = read_faces(data, face_task(checkpoint), "valid").lr
    run = Run(report, output, lr, checkpoint, where, engines.split(","),
              [int(size) for size in batches.split(",")], images)
    started = Timer(where).now()
    try:
        PARTS[part](run)
    except Exception:
        run.write("error", traceback.format_exc())
        raise
    run.write("seconds", Timer(where).now() - started)


if __name__ == "__main__":
    try:
        typer.run(main)
    except SuperresError as error:
        sys.exit(f"measure: {error}")
