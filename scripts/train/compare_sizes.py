"""Compare sizes of the network for faces: train each for the same time, and weigh bits/dim against decoding time.

The sizes are trained in turns of a few minutes on the same pictures, so that other load slows all alike. On a CPU, the
time is the processor time of all threads, which does not count while other processes use the cores: on two idle cores,
30 minutes last about 15. All are trained with Muon, as `celeba-8to32` is. The learning rate is constant, and the
averaged weights are scored after every turn. The folder OUTPUT then has sizes.json, sizes.md and sizes.png, and a run
folder per size. The same command resumes a comparison that was killed, and with N times the minutes and N times the
turns it continues a finished one.

    python scripts/train/compare_sizes.py --data train.npz --dev dev.npz --output runs/sizes --minutes 30
    python scripts/train/compare_sizes.py --data faces64.npz --dev dev64.npz --output runs/sizes64 --preset face-64
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from scipy.optimize import curve_fit

from continuous import run_folder
from superres.config import PRESETS, DecodeConfig, ModelConfig, reader_of, require
from superres.errors import ConfigError, SuperresError
from superres.nn.likelihood import bits_per_dim
from superres.pipeline.engines import step_model
from superres.pipeline.upscaler import Upscaler
from superres.system.json_files import read_json
from superres.system.output import figure_png, markdown_table, short_digest, write_result, write_results
from superres.tasks.face_data import FacePairs, read_faces
from superres.tasks.faces import FaceTask, encode
from superres.training.build import build_model
from superres.training.data import ImageBatches
from superres.training.stage import Stage
from superres.training.trainer import Trainer

Row = dict[str, Any]

HEAD_SIZE = MAPS = 32
"""Size of an attention head of the `base` preset; divisor of the conditioning widths of the compiled encoder."""
SIZES = {"small": (96, 3), "base": (128, 4), "large": (192, 5)}
"""Width and number of decoder layers by size. One decoder step has about 0.4, 1 and 2.8 times the products of `base`;
the compiled engine decodes all three."""
FACTORS = (1, 2, 5, 10)
"""Multiples of the training time for which bits/dim are extrapolated."""
CLOCK = time.monotonic if torch.cuda.is_available() else time.process_time
"""Clock of the training time."""
FITTED = 5
"""Smallest number of scores after the warm-up to extrapolate from; during the warm-up, no power law holds."""
DECODED = 4
"""Number of pictures whose decoding is timed."""


def network(width: int, layers: int, preset: str = "base") -> ModelConfig:
    """Return a preset with another width, in the same proportions, and number of decoder layers."""
    base = PRESETS[preset]
    maps = MAPS * round(width * base.conditioning_width / base.width / MAPS)
    return dataclasses.replace(
        base, width=width, filter_size=width * base.filter_size // base.width, attention_heads=width // HEAD_SIZE,
        decoder_layers=layers, conditioning_width=maps)


def learning_rate(width: int) -> float:
    """Return the rate of the `base` preset divided by the relative width, as Yang et al. 2022, "Tensor Programs V"."""
    return Stage(steps=1).learning_rate * PRESETS["base"].width / width


def check_study(folder: Path, study: Row) -> None:
    """Write `study`, what all turns have in common; raise ConfigError if the comparison in `folder` has another."""
    path = folder / "study.json"
    if not path.exists():
        write_result(path, json.dumps(study).encode())
    there = read_json(path, functools.partial(reader_of(Row), "the study"), ConfigError, "choose a new --output")
    changed = [f"{name} {there.get(name)} there, {value} now" for name, value in study.items()
               if there.get(name) != value]
    require(not changed, f"{folder} was started with other settings ({'; '.join(changed)}); repeat those, or choose a "
                         "new --output")


def scores_of(trainer: Trainer) -> list[Row]:
    """Return the records with scores in a run's history, one per turn."""
    return [record for record in trainer.history if "bits_per_dim" in record]


def train_in_turns(trainers: dict[str, Trainer], pairs: FacePairs, minutes: float, turns: int) -> None:
    """Train all sizes for `minutes` each, and score them on `pairs` after each of their `turns`."""
    source, target = (torch.from_numpy(encode(images)) for images in (pairs.lr, pairs.hr))
    for turn, (name, trainer) in itertools.product(range(1, turns + 1), trainers.items()):
        if len(scores_of(trainer)) >= turn:
            continue
        end = 60 * minutes * turn / turns
        while trainer.seconds < end:  # not if that was reached before a kill, so that the same weights are scored
            trainer.run(lambda trainer=trainer, end=end: trainer.seconds >= end)
        bits = bits_per_dim(trainer.averaged.eval(), source, target)
        record = trainer.record({"bits_per_dim": float(bits.mean()), "dev_images": len(pairs)})
        trainer.save()
        print(f"{name}, turn {turn} of {turns}: {record['images']} pictures, {record['bits_per_dim']:.3f} bits/dim",
              file=sys.stderr)


def decoding_seconds(trainers: dict[str, Trainer], pairs: FacePairs, rounds: int) -> dict[str, float]:
    """Return the seconds per picture of greedy decoding, one picture at a time, the shortest of several rounds."""
    upscalers = {name: Upscaler(trainer.averaged, name, device="cpu", engine="native")
                 for name, trainer in trainers.items()}
    shortest = dict.fromkeys(trainers, float("inf"))
    for _, (name, upscaler) in itertools.product(range(rounds), upscalers.items()):
        seconds = sum(upscaler(picture[None], DecodeConfig(1)).seconds for picture in pairs.lr[:DECODED])
        shortest[name] = min(shortest[name], seconds / min(DECODED, len(pairs)))
    return shortest


def extrapolated(minutes: np.ndarray, bits: np.ndarray, end: float) -> tuple[float, float, float] | None:
    """Extrapolate a curve of `bits` per dim, float64 [N], to the time `end` by a + b * minutes**-c.

    Returns:
        The value at `end`, and the smallest and the largest value if any one point is left out; None for fewer than
        `FITTED` points, or if no curve fits.
    """
    def value(chosen: np.ndarray) -> float:
        start = (bits.min() - 0.1, bits.max() - bits.min() + 0.1, 0.5)
        fitted, _ = curve_fit(lambda t, a, b, c: a + b * t**-c, minutes[chosen], bits[chosen], start,
                              bounds=((0, 0, 0.05), (16, 64, 3)), maxfev=20000)
        return float(fitted[0] + fitted[1] * end ** -fitted[2])

    if len(minutes) < FITTED:
        return None
    everything = np.arange(len(minutes))
    try:
        without = [value(np.delete(everything, place)) for place in everything]
        return value(everything), min(without), max(without)
    except RuntimeError:  # no convergence
        return None


def summary(name: str, trainer: Trainer, turns: int, seconds: float) -> Row:
    """Return what is known of a size after `turns`, even if it has been trained for longer."""
    records, config = scores_of(trainer)[:turns], trainer.model.config
    minutes, bits = (np.array([record[key] for record in records]) for key in ("seconds", "bits_per_dim"))
    minutes = minutes / 60
    warm = np.array([record["step"] > trainer.settings.warmup_steps for record in records])
    return {
        "size": name, "width": config.width, "decoder_layers": config.decoder_layers,
        "weights": sum(weight.numel() for weight in trainer.model.parameters()),
        "learning_rate": trainer.settings.learning_rate, "decoding_seconds": seconds,
        "images_per_second": records[-1]["images"] / records[-1]["seconds"],
        "minutes": minutes.tolist(), "bits_per_dim": bits.tolist(),
        "extrapolated": {str(factor): extrapolated(minutes[warm], bits[warm], factor * float(minutes[-1]))
                         for factor in FACTORS},
    }


def table(rows: list[Row]) -> str:
    """Return the sizes as a Markdown table, and a line with the verdict."""
    head = ["size", "width", "layers", "weights", "pictures per second of training", "s/picture, greedy, native",
            "bits/dim", *(f"at {factor} times the time" for factor in FACTORS[1:])]
    lines = [
        [row["size"], str(row["width"]), str(row["decoder_layers"]), f"{row['weights']:,}",
         f"{row['images_per_second']:.1f}", f"{row['decoding_seconds']:.3f}", f"{row['bits_per_dim'][-1]:.3f}",
         *("{:.3f} ({:.3f} to {:.3f})".format(*value) if (value := row["extrapolated"][str(factor)]) else "-"
           for factor in FACTORS[1:])]
        for row in rows
    ]
    best = min(rows, key=lambda row: row["bits_per_dim"][-1])
    verdict = f"After {best['minutes'][-1]:.3g} minutes each, {best['size']} has the fewest bits/dim."
    far = [row for row in rows if row["extrapolated"][str(FACTORS[-1])] is not None]
    if len(far) == len(rows):
        last = min(far, key=lambda row: row["extrapolated"][str(FACTORS[-1])][0])
        base = next((row for row in rows if row["size"] == "base"), rows[0])
        cost = last["decoding_seconds"] / base["decoding_seconds"]
        verdict += (f" Extrapolated to {FACTORS[-1]} times the time, it is {last['size']}, whose greedy decoding takes "
                    f"{cost:.2f} times that of {base['size']}.")
    else:
        verdict += f" Not every size has {FITTED} scores after the warm-up that a curve fits; train for longer."
    return f"{markdown_table(head, lines)}\n\n{verdict} In brackets: the range if any one point is left out.\n"


def plot(rows: list[Row]) -> bytes:
    """Return a PNG of bits/dim against training time and against the time of decoding."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for number, row in enumerate(rows):
        left.plot(row["minutes"], row["bits_per_dim"], marker="o", color=f"C{number}", label=row["size"])
        right.plot(row["decoding_seconds"], row["bits_per_dim"][-1], marker="o", color=f"C{number}")
        later = [(row["minutes"][-1] * factor, row["extrapolated"][str(factor)][0]) for factor in FACTORS
                 if row["extrapolated"][str(factor)] is not None]
        if later:
            left.plot(*zip(*later, strict=True), linestyle=":", color=f"C{number}")
            right.plot(row["decoding_seconds"], later[-1][1], marker="x", color=f"C{number}")
    left.set(xscale="log", xlabel="minutes of training; dotted: extrapolated", ylabel="bits/dim")
    right.set(xlabel=f"seconds per picture, greedy; crosses: at {FACTORS[-1]} times the time", xlim=(0, None))
    left.legend()
    return figure_png(figure)


def main(
    data: Annotated[Path, typer.Option(help="Faces to train on: .npz, folder of images or CelebA root.")],
    dev: Annotated[Path, typer.Option(help="Faces to score.")],
    output: Annotated[Path, typer.Option(help="Folder for runs and results.")],
    minutes: Annotated[float, typer.Option(help="Training time of each size; processor time on a CPU.")] = 30,
    turns: Annotated[int, typer.Option(min=1, help="Number of turns, and of scores, of each size.")] = 10,
    limit: Annotated[int, typer.Option(min=1, help="Dev images to score.")] = 100,
    batch_size: Annotated[int, typer.Option(min=1, help="Images per training step.")] = 4,
    rounds: Annotated[int, typer.Option(min=1, help="Timings of decoding.")] = 5,
    sizes: Annotated[str, typer.Option(help="Comma-separated sizes.")] = ",".join(SIZES),
    preset: Annotated[str, typer.Option(help="Network for faces whose width and layers are changed.")] = "base",
) -> None:
    """Train the sizes in turns, score them, time their decoding, and write the measurements."""
    require(0 < minutes < float("inf"), f"--minutes must be positive and finite, not {minutes}")
    names = sizes.split(",")
    for name in names:
        require(name in SIZES, f"unknown size {name!r}; known: {', '.join(SIZES)}")
    require(preset in PRESETS and PRESETS[preset].task == FaceTask.name,
            f"--preset must be that of a network for faces, not {preset!r}")
    task = FaceTask.of(PRESETS[preset])
    pairs, true = read_faces(dev, task, "valid", limit), read_faces(data, task)
    with run_folder(output):
        check_study(output, {
            "dev": short_digest(pairs.hr.tobytes() + pairs.lr.tobytes()),
            "minutes_per_turn": round(minutes / turns, 6), "preset": preset})
        batches = ImageBatches(true.lr, true.hr, batch_size, 0)
        trainers: dict[str, Trainer] = {}
        for name in names:
            config = network(*SIZES[name], preset)
            settings = Stage(endless=True, batch_size=batch_size, optimizer="muon",
                                   learning_rate=learning_rate(config.width))
            model = build_model(config, settings)
            step_model(model.eval(), engine="native")  # a missing compiler is refused now, not after the training
            trainers[name] = Trainer(model, settings, batches, output / name, clock=CLOCK)
        train_in_turns(trainers, pairs, minutes, turns)
        seconds = decoding_seconds(trainers, pairs, rounds)
        rows = [summary(name, trainer, turns, seconds[name]) for name, trainer in trainers.items()]
        report = {"images": len(pairs), "minutes": minutes, "batch_size": batch_size, "sizes": rows}
        write_results(output, {"sizes.json": report, "sizes.md": table(rows), "sizes.png": plot(rows)})
        print(table(rows), end="")


if __name__ == "__main__":
    try:
        typer.run(main)
    except SuperresError as error:
        sys.exit(f"compare_sizes: {error}")
