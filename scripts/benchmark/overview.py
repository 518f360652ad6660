"""Measure speed beside quality, for the README: our engines on faces, and beside CTranslate2 on text.

    python scripts/benchmark/overview.py AVX-512 --faces dev.npz --text test_2017_flickr --output docs/measurements
    export SUPERRES_NATIVE=x86-64-v3 CT2_FORCE_CPU_ISA=AVX2 ONEDNN_MAX_CPU_ISA=AVX2  # as where there is no AVX-512
    python scripts/benchmark/overview.py AVX2 --faces dev.npz --text test_2017_flickr --output docs/measurements

Inputs are decoded one at a time, all variants in turns; times are medians over rounds.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

sys.path.append(str(Path(__file__).resolve().parents[1]))

from measurements import Busy, Document, Faces, Output, Row, Table, Text, Values, in_turns, medians, run, values
from superres.evaluation.picture_scores import pooled_psnr
from superres.evaluation.text import bleu
from superres.pipeline.translator import Translator
from superres.pipeline.upscaler import Upscaler
from superres.system.machine import require_idle
from superres.system.output import figure_png, markdown_table
from superres.tasks.face_data import read_faces
from superres.tasks.translation import read_pairs
from translators import by_lines, ours, peers

FACES: dict[str, tuple[str, dict[str, Any]]] = {
    "one token per step": ("native", {"block_size": 1}), "exact blocks": ("native", {}),
    "epsilon 2": ("native", {"accept": "distance", "epsilon": 2}),
    "int8, one token": ("native-int8", {"block_size": 1}), "int8, exact blocks": ("native-int8", {}),
    "int8, epsilon 2": ("native-int8", {"accept": "distance", "epsilon": 2}),
}
"""Engine and decoding options by name, for faces."""
TEXT: dict[str, tuple[str, dict[str, Any]]] = {
    "one token per step": ("native", {"block_size": 1}), "exact blocks": ("native", {"adaptive": True}),
    "int8, one token": ("native-int8", {"block_size": 1}), "int8, exact blocks": ("native-int8", {"adaptive": True}),
}
ROUNDS = 3
TITLES = {"faces": "faces per second, the first stage", "text": "translated captions per second, one thread"}
QUALITY = {"faces": ("{:.2f}", "dB PSNR"), "text": ("{:.1f}", "BLEU")}
COLOURS = {"ours": ("#1b7c4d", "#90d4ae"), "peers": ("#666666", "#c4c4c4")}
"""Of the bars, by class of processors in the order of the measurements."""


def faces_values(data: Path, count: int, timed: int) -> Values:
    """Return seconds per face of `timed` faces, and dB PSNR on `count` faces, by way of decoding."""
    engines = {engine: Upscaler.load("celeba-8to32", "cpu", engine=engine) for engine in ("native", "native-int8")}
    pairs = read_faces(data, engines["native"].face_task, "valid", count)

    def one_by_one(engine: str, given: dict[str, Any]) -> None:
        for source in pairs.lr[:timed]:
            engines[engine](source[None], engines[engine].options(**given))

    times = medians(in_turns({name: partial(one_by_one, *way) for name, way in FACES.items()}, ROUNDS))
    found = dict[str, Values]()
    for name, (engine, given) in FACES.items():
        images = engines[engine](pairs.lr, engines[engine].options(**given)).images
        found[name] = {"seconds": times[name] / timed, "quality": pooled_psnr(images, pairs.hr)}
    return found


def text_values(data: Path, count: int) -> Values:
    """Return seconds per sentence and BLEU on `count` sentences, by way of decoding; all have one thread."""
    pairs = read_pairs(data, ("en", "de"), count)
    lines = list(pairs.source)
    engines = {engine: Translator.load("multi30k-en-de", "cpu", engine=engine) for engine in ("native", "native-int8")}
    compared = {name: partial(ours, engines[engine], engines[engine].options(**given), 1)
                for name, (engine, given) in TEXT.items()} | peers("multi30k-en-de", engines["native"], 1)
    times = medians(in_turns({name: partial(by_lines, way, lines, 1) for name, way in compared.items()}, ROUNDS))
    return {name: {"seconds": times[name] / len(lines), "quality": bleu(way(lines, 32), pairs.target)["score"]}
            for name, way in compared.items()}


def by_variant(document: Document, task: str) -> dict[str, dict[str, Values]]:
    """Return the measurements of a task by variant and class of processors."""
    found = values(document, f"{task}, ")
    return {name: {label: one[name] for label, one in found.items()} for name in next(iter(found.values()), {})}


def views(document: Document) -> dict[str, str]:
    """Return milliseconds per input and quality by variant, a table per task."""
    made = {}
    for task in TITLES:
        labels = list(values(document, f"{task}, "))
        rows = [[name, *(f"{1000 * one['seconds']:.2f} ({one['quality']:.2f})" for one in found.values())]
                for name, found in by_variant(document, task).items()]
        made[task] = markdown_table(["variant, ms and quality", *labels], rows)
    return made


def plots(document: Document) -> dict[str, bytes]:
    """Return the plot of the README: a bar of inputs per second by variant and class of processors."""
    from matplotlib.figure import Figure  # an optional dependency, slow to import

    figure = Figure(figsize=(10, 4), layout="constrained")
    for axes, (task, title) in zip(figure.subplots(1, 2), TITLES.items(), strict=True):
        names = list[str]()
        for place, (name, by_class) in enumerate(by_variant(document, task).items()):
            shades = COLOURS["peers" if name.startswith("CTranslate2") else "ours"]
            for number, one in enumerate(by_class.values()):
                speed = 1 / one["seconds"]
                bar = axes.barh(place + 0.4 * number, speed, 0.4, color=shades[number])
                axes.bar_label(bar, [f"{speed:#.3g}".rstrip(".")], padding=3, fontsize=8)
            qualities = dict.fromkeys(QUALITY[task][0].format(one["quality"]) for one in by_class.values())
            names.append(f"{name}\n{' and '.join(qualities)} {QUALITY[task][1]}")
        axes.set_yticks([place + 0.2 for place in range(len(names))], names, fontsize=8)
        axes.invert_yaxis()
        axes.set_title(title, fontsize=11)
        axes.margins(x=0.12)
        axes.spines[["top", "right"]].set_visible(False)
    labels = zip(("dark", "light"), values(document, "text, "), strict=False)
    classes = " and ".join(f"{shade} {label}" for shade, label in labels)
    figure.suptitle(f"{classes}, one input at a time; green superres, grey another program", fontsize=10)
    return {"speed.png": figure_png(figure)}


def main(
    label: Annotated[str, typer.Argument(help="Class of processors that the compiled code is for, such as AVX-512.")],
    faces: Faces, text: Text, output: Output,
    limit: Annotated[int, typer.Option(min=4, help="Faces and sentences.")] = 100, busy: Busy = False,
) -> None:
    """Measure all variants with the compiled code of this environment."""
    if not busy:
        require_idle()
    table = Table("overview", output, {"limit": limit})
    table.measure([Row(f"faces, {label}", lambda: faces_values(faces, limit, max(limit // 12, 1))),
                   Row(f"text, {label}", lambda: text_values(text, limit))])
    table.finish()


if __name__ == "__main__":
    run(main)
