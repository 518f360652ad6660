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
import sys
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from scipy.optimize import curve_fit

sys.path.append(str(Path(__file__).resolve().parents[1]))

from continuous import run_folder
from measurements import Columns, Document, Line, Panel, Row, Table, Values, columns_table, draw, run, values
from superres.config import PRESETS, DecodeConfig, ModelConfig, require
from superres.nn.likelihood import bits_per_dim
from superres.pipeline.engines import step_model
from superres.pipeline.upscaler import Upscaler
from superres.system.output import short_digest
from superres.tasks.face_data import FacePairs, read_faces
from superres.tasks.faces import FaceTask, encode
from superres.training.construction import build_model
from superres.training.data import ImageBatches
from superres.training.stage import Stage
from superres.training.trainer import Trainer

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


def scores_of(trainer: Trainer) -> list[Values]:
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


def summary(name: str, trainer: Trainer, turns: int, seconds: float) -> Values:
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


COLUMNS: Columns = {
    "size": ("size", 0), "width": ("width", 0), "layers": ("decoder_layers", 0),
    "weights": (lambda row: f"{row['weights']:,}", 0), "pictures per second of training": ("images_per_second", 1),
    "s/picture, greedy, native": ("decoding_seconds", 3), "bits/dim": (lambda row: row["bits_per_dim"][-1], 3),
    **{f"at {factor} times the time": (lambda row, factor=factor: range_text(row["extrapolated"][str(factor)]), 0)
       for factor in FACTORS[1:]}}


def range_text(value: tuple[float, float, float] | None) -> str | None:
    """Return an extrapolated value with its range."""
    return None if value is None else "{:.3f} ({:.3f} to {:.3f})".format(*value)


def verdict(rows: list[Values]) -> str:
    """Return a line on the best size now, and with FACTORS[-1] times the training."""
    best = min(rows, key=lambda row: row["bits_per_dim"][-1])
    now = f"After {best['minutes'][-1]:.3g} minutes each, {best['size']} has the fewest bits/dim."
    if any(row["extrapolated"][str(FACTORS[-1])] is None for row in rows):
        return f"{now} Not every size has {FITTED} scores after the warm-up that a curve fits; train for longer."
    last = min(rows, key=lambda row: row["extrapolated"][str(FACTORS[-1])][0])
    base = next((row for row in rows if row["size"] == "base"), rows[0])
    return (f"{now} Extrapolated to {FACTORS[-1]} times the time, it is {last['size']}, whose greedy decoding takes "
            f"{last['decoding_seconds'] / base['decoding_seconds']:.2f} times that of {base['size']}.")


def views(document: Document) -> dict[str, str]:
    """Return a line per size, and a line with the verdict."""
    rows = [*values(document).values()]
    return {"sizes": columns_table(rows, COLUMNS),
            "verdict": f"{verdict(rows)} In brackets: the range if any one point is left out."}


def plots(document: Document) -> dict[str, bytes]:
    """Return a plot of bits/dim against training time and against the time of decoding."""
    training, decoding = list[Line](), list[Line]()
    for number, row in enumerate(values(document).values()):
        colour, bits = f"C{number}", row["bits_per_dim"]
        training.append(Line([*zip(row["minutes"], bits, strict=True)], row["size"], colour))
        decoding.append(Line([(row["decoding_seconds"], bits[-1])], None, colour))
        later = [(row["minutes"][-1] * factor, row["extrapolated"][str(factor)][0]) for factor in FACTORS
                 if row["extrapolated"][str(factor)] is not None]
        training.append(Line(later, None, colour, ":"))
        decoding.append(Line([(row["decoding_seconds"], value) for _, value in later[-1:]], None, colour, "x"))
    return {"sizes.png": draw([
        Panel(training, {"xscale": "log", "xlabel": "minutes of training; dotted: extrapolated", "ylabel": "bits/dim"}),
        Panel(decoding, {"xlabel": f"seconds per picture, greedy; crosses: at {FACTORS[-1]} times the time",
                         "ylabel": "bits/dim", "xlim": (0, None)})], 2, (11, 4.5))}


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
        table = Table("compare_sizes", output, {
            "dev": short_digest(pairs.hr.tobytes() + pairs.lr.tobytes()), "batch_size": batch_size,
            "minutes_per_turn": round(minutes / turns, 6), "preset": preset}, name="sizes")
        table.save()
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
        table.measure(Row(name, functools.partial(summary, name, trainer, turns, seconds[name]), {"turns": turns})
                      for name, trainer in trainers.items())
        table.finish()


if __name__ == "__main__":
    run(main)
