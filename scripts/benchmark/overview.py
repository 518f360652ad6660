"""Measure speed beside quality, for the README: our engines, transformers and CTranslate2, on faces and on text.

    python scripts/benchmark/overview.py measure wide.json --faces dev.npz --text test_2017_flickr
    export SUPERRES_NATIVE=x86-64-v3 CT2_FORCE_CPU_ISA=AVX2 ONEDNN_MAX_CPU_ISA=AVX2  # as where there is no AVX-512
    python scripts/benchmark/overview.py measure narrow.json --faces dev.npz --text test_2017_flickr
    python scripts/benchmark/overview.py draw wide.json narrow.json --output overview.webp

Inputs are decoded one at a time, all variants in turns; times are medians over rounds. transformers' GPT-2 has the size
of our network and random weights, so it has a speed and no quality.
"""

from __future__ import annotations

import io
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from PIL import Image

from engines import generation_cost
from superres.errors import SuperresError
from superres.evaluation.pictures import pooled_psnr
from superres.evaluation.text import bleu
from superres.pipeline.export import export_ctranslate2
from superres.pipeline.translator import Translator
from superres.pipeline.upscaler import Upscaler
from superres.system.machine import Timer, machine, require_idle
from superres.system.output import figure_png, write_result
from superres.tasks.face_data import read_faces
from superres.tasks.translation import read_pairs
from translators import ours, seconds, theirs

Row = dict[str, Any]
FACES: dict[str, tuple[str, dict[str, Any]]] = {
    "one token per step": ("native", {"block_size": 1}), "exact blocks": ("native", {}),
    "epsilon 2": ("native", {"accept": "distance", "epsilon": 2}),
    "int8, exact blocks": ("native-int8", {}),
    "int8, epsilon 2": ("native-int8", {"accept": "distance", "epsilon": 2}),
}
"""Engine and decoding options by name, for faces."""
TEXT: dict[str, tuple[str, dict[str, Any]]] = {
    "one token per step": ("native", {"block_size": 1}), "exact blocks": ("native", {"adaptive": True}),
    "int8, one token": ("native-int8", {"block_size": 1}), "int8, exact blocks": ("native-int8", {"adaptive": True}),
}
ROUNDS = 3
COLOURS = (("#1b7a4b", "#8fd3b0"), ("#666666", "#c4c4c4"))
"""Colours of the bars of superres and of others, for the first report and the second."""


def in_turns(variants: dict[str, Callable[[], object]], clock: Timer) -> dict[str, float]:
    """Return the median seconds of every variant over ROUNDS rounds, after an untimed one."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(ROUNDS + 1):
        for name, run in variants.items():
            taken = clock.once(run)
            if number:
                times[name].append(taken)
    return {name: statistics.median(found) for name, found in times.items()}


def faces_rows(data: Path, count: int, timed: int) -> list[Row]:
    """Return seconds per face of `timed` faces, and dB PSNR on `count` faces, by way of decoding."""
    engines = {engine: Upscaler.load("celeba-8to32", "cpu", engine=engine) for engine in ("native", "native-int8")}
    pairs = read_faces(data, engines["native"].face_task, "valid", count)

    def one_by_one(engine: str, given: dict[str, Any]) -> None:
        for source in pairs.lr[:timed]:
            engines[engine](source[None], engines[engine].options(**given))

    clock = Timer(torch.device("cpu"))
    times = in_turns({name: partial(one_by_one, *way) for name, way in FACES.items()}, clock)
    rows = []
    for name, (engine, given) in FACES.items():
        images = engines[engine](pairs.lr, engines[engine].options(**given)).images
        rows.append({"name": name, "seconds": times[name] / timed, "quality": pooled_psnr(images, pairs.hr)})
    peer = generation_cost(engines["native"].model_config, clock, assisted=False)
    return [*rows, {"name": "transformers: GPT-2 of the same size", "seconds": peer["seconds"], "quality": None}]


def text_rows(data: Path, count: int) -> list[Row]:
    """Return seconds per sentence and BLEU on `count` sentences, by way of decoding; all have one thread."""
    import ctranslate2

    pairs = read_pairs(data, ("en", "de"), count)
    lines = list(pairs.source)
    engines = {engine: Translator.load("multi30k-en-de", "cpu", engine=engine) for engine in ("native", "native-int8")}
    with tempfile.TemporaryDirectory() as folder:
        export_ctranslate2("multi30k-en-de", Path(folder))
        peers = {f"CTranslate2, {kind}": partial(theirs, ctranslate2.Translator(
            folder, compute_type=kind, inter_threads=1, intra_threads=1), engines["native"])
            for kind in ("float32", "int8")}
    ways = {name: partial(ours, engines[engine], engines[engine].options(**given), 1)
            for name, (engine, given) in TEXT.items()}
    clock = Timer(torch.device("cpu"))
    compared = ways | peers
    times = in_turns({name: partial(seconds, way, lines, 1) for name, way in compared.items()}, clock)
    return [{"name": name, "seconds": times[name] / len(lines), "quality": bleu(way(lines, 32), pairs.target)["score"]}
            for name, way in compared.items()]


def measure(
    output: Annotated[Path, typer.Argument(help="JSON file for the measurements.")],
    faces: Annotated[Path, typer.Option(help="Faces with the truth: .npz, folder of images or CelebA root.")],
    text: Annotated[Path, typer.Option(help="Parallel text: PATH.en and PATH.de.")],
    limit: Annotated[int, typer.Option(min=4, help="Faces and sentences.")] = 100,
    busy: Annotated[bool, typer.Option("--busy", help="Measure even if other processes use the processor.")] = False,
) -> None:
    """Measure all variants with the compiled code of this environment."""
    if not busy:
        require_idle()
    rows = {"faces": faces_rows(faces, limit, max(limit // 12, 1)), "text": text_rows(text, limit)}
    report = {"machine": machine(torch.device("cpu")), "limit": limit, **rows}
    write_result(output, (json.dumps(report, indent=1) + "\n").encode())
    for task, found in rows.items():
        for row in found:
            print(f"{task:6} {row['name']:40} {1000 * row['seconds']:9.2f} ms  {row['quality'] or 0:6.2f}")


def draw_plot(reports: Sequence[Row]) -> bytes:
    """Return a PNG: a bar of speed per variant and report, with the quality beside the name of the variant."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.4), layout="constrained")
    panels = figure.subplots(1, 2)
    thick = 0.8 / len(reports)
    for axes, task, title in zip(panels, ("faces", "text"), (
            "faces per second, the first stage", "translated captions per second, one thread"), strict=True):
        names = [f"{row['name']}\n{quality_text(task, [report[task][place]['quality'] for report in reports])}"
                 for place, row in enumerate(reports[0][task])]
        for number, report in enumerate(reports):
            speeds = [1 / row["seconds"] for row in report[task]]
            peers = [row["name"].startswith(("CTranslate2", "transformers")) for row in report[task]]
            places = [place + (number - (len(reports) - 1) / 2) * thick for place in range(len(speeds))]
            bars = axes.barh(places, speeds, thick, color=[COLOURS[is_peer][number] for is_peer in peers])
            axes.bar_label(bars, [f"{speed:#.3g}".rstrip(".") for speed in speeds], padding=3, fontsize=8)
        axes.set_yticks(range(len(names)), names, fontsize=8)
        axes.invert_yaxis()
        axes.set_title(title, fontsize=11)
        axes.margins(x=0.12)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle("dark: AVX-512, light: AVX2, forced on the same machine; green: superres, grey: others; one input "
                    "at a time", fontsize=10)
    return figure_png(figure)


def quality_text(task: str, qualities: Sequence[float | None]) -> str:
    """Return the quality of a variant by report, with its unit; once, if all are equal."""
    found = [f"{quality:.2f}" if task == "faces" else f"{quality:.1f}" for quality in qualities if quality is not None]
    if not found:
        return "random weights"
    return f"{' / '.join(dict.fromkeys(found))} {'dB PSNR' if task == 'faces' else 'BLEU'}"


def draw(
    reports: Annotated[list[Path], typer.Argument(help="Reports of `measure`, one per class of processors.")],
    output: Annotated[Path, typer.Option(help="WebP to write.")],
) -> None:
    """Draw the plot of the README."""
    picture = Image.open(io.BytesIO(draw_plot([json.loads(path.read_text()) for path in reports]))).convert("RGB")
    content = io.BytesIO()
    picture.resize((1000, round(1000 * picture.height / picture.width)), Image.Resampling.LANCZOS).save(
        content, "WEBP", quality=92, method=6)
    write_result(output, content.getvalue())


app = typer.Typer(add_completion=False, rich_markup_mode=None)
app.command()(measure)
app.command()(draw)

if __name__ == "__main__":
    try:
        app()
    except SuperresError as error:
        sys.exit(f"overview: {error}")
