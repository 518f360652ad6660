"""Compare networks for faces: train each for the same time, and weigh bits/dim against decoding
time.

A network is a size of a preset, the preset with keys per pixel, or a cascade of two networks, which
share the time equally. A cascade's bits/dim are those of the final picture given the input. The
networks are trained in turns of a few minutes on the same pictures, so that other load slows all
alike. On a CPU, the time is the processor time of all threads, which does not count while other
processes use the cores: on two idle cores, 30 minutes last about 15. All are trained with Muon, as
`celeba-8to32` is. The learning rate is constant, and the averaged weights are scored after every
turn. The folder OUTPUT then has NAME.json, NAME.md and NAME.png, and a run folder per stage. The
same command resumes a comparison that was killed, and with N times the minutes and N times the
turns it continues a finished one.

    python scripts/train/compare_networks.py --data train.npz --dev dev.npz --output runs/sizes
    --minutes 30 python scripts/train/compare_networks.py ... --output runs/cascade --name cascade
    --networks base,factors-of-two python scripts/train/compare_networks.py --data faces64.npz --dev
    dev64.npz --output runs/sizes64 --preset face-64
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from scipy.optimize import curve_fit

sys.path.append(str(Path(__file__).resolve().parents[1]))

from continuous import run_folder
from measurements import (
    Columns,
    Document,
    Line,
    Panel,
    Row,
    Table,
    Values,
    columns_table,
    draw,
    run,
    values,
)
from superres.config import PRESETS, DecodeConfig, ModelConfig, require
from superres.nn.likelihood import bits_per_dim
from superres.pipeline.choose import step_model
from superres.pipeline.upscaler import Upscaler
from superres.system.output import short_digest
from superres.tasks.face_data import FacePairs, read_faces
from superres.tasks.faces import FaceTask, encode
from superres.training.construction import build_model
from superres.training.data import ImageBatches
from superres.training.stage import Stage
from superres.training.trainer import Trainer

HEAD_SIZE = MAPS = 32
"""Size of an attention head of the `base` preset; divisor of the conditioning widths of the
compiled encoder."""
SIZES = {"small": (96, 3), "base": (128, 4), "large": (192, 5)}
"""Width and number of decoder layers by size. One decoder step has about 0.4, 1 and 2.8 times the
products of `base`; the compiled engine decodes all three."""
PIXELS, FACTORS_OF_TWO = "pixels", "factors-of-two"
NETWORKS = (*SIZES, PIXELS, FACTORS_OF_TWO)
CASCADE = "face-16", "face-32"
"""Presets of the cascade, which takes the place of `base`."""
FACTORS = (1, 2, 5, 10)
"""Multiples of the training time for which bits/dim are extrapolated."""
CLOCK = time.monotonic if torch.cuda.is_available() else time.process_time
"""Clock of the training time."""
FITTED = 5
"""Smallest number of scores after the warm-up to extrapolate from; during the warm-up, no power law
holds."""
DECODED = 4
"""Number of pictures whose decoding is timed."""


def network(width: int, layers: int, preset: str = "base") -> ModelConfig:
    """Return a preset with another width, in the same proportions, and number of decoder layers."""
    base = PRESETS[preset]
    maps = MAPS * round(width * base.conditioning_width / base.width / MAPS)
    return dataclasses.replace(
        base, width=width, filter_size=width * base.filter_size // base.width,
        attention_heads=width // HEAD_SIZE, decoder_layers=layers, conditioning_width=maps)


def stages_of(name: str, preset: str) -> list[ModelConfig]:
    """Return the networks of a comparison's network `name`, several for a cascade."""
    if name in SIZES:
        return [network(*SIZES[name], preset)]
    if name == PIXELS:
        return [dataclasses.replace(PRESETS[preset], attention_keys="pixels")]
    return [PRESETS[stage] for stage in CASCADE]


def learning_rate(width: int) -> float:
    """Return the rate of the `base` preset divided by the relative width, as Yang et al. 2022,
    "Tensor Programs V"."""
    return Stage(steps=1).learning_rate * PRESETS["base"].width / width


def scores_of(trainer: Trainer) -> list[Values]:
    """Return the records with scores in a run's history, one per turn."""
    return [record for record in trainer.history if "bits_per_dim" in record]


def stage_pairs(pairs: FacePairs, task: FaceTask) -> FacePairs:
    """Return the pictures at the sizes of a stage; the inputs of the first stage are those of
    `pairs`."""
    high, low = task.both_sizes(pairs.hr)
    return FacePairs(high, pairs.lr if task.source == pairs.lr.shape[1] else low, pairs.ids)


def train_in_turns(networks: dict[str, list[Trainer]], pairs: FacePairs, minutes: float,
                   turns: int) -> None:
    """Train all networks for `minutes` each, and score them on `pairs` after each of their
    `turns`."""
    for turn, (name, trainers) in itertools.product(range(1, turns + 1), networks.items()):
        for trainer in trainers:
            if len(scores_of(trainer)) < turn:
                train_turn(trainer, 60 * minutes * turn / turns / len(trainers), pairs)
        row = whole_scores(trainers)[turn - 1]
        print(f"{name}, turn {turn} of {turns}: {row['images']} pictures, "
              f"{row['bits_per_dim']:.3f} bits/dim",
              file=sys.stderr)


def train_turn(trainer: Trainer, end: float, pairs: FacePairs) -> None:
    """Train a network or stage until it has been trained for `end` seconds, and score it."""
    # not if that was reached before a kill, so that the same weights are scored
    while trainer.seconds < end:
        trainer.run(lambda: trainer.seconds >= end)
    own = stage_pairs(pairs, FaceTask.of(trainer.model.config))
    bits = bits_per_dim(trainer.averaged.eval(),
                        *(torch.from_numpy(encode(images)) for images in (own.lr, own.hr)))
    trainer.record({"bits_per_dim": float(bits.mean()), "dev_images": len(pairs)})
    trainer.save()


def whole_scores(trainers: list[Trainer]) -> list[dict[str, float]]:
    """Return the sums over a network's stages, one per turn; bits are those per token of the final
    picture."""
    shares = [trainer.model.config.target_length / trainers[-1].model.config.target_length
              for trainer in trainers]
    # the last turn of a cascade may not be complete
    turns = zip(*map(scores_of, trainers), strict=False)
    return [{"seconds": sum(one["seconds"] for one in turn),
             "images": sum(one["images"] for one in turn),
             "bits_per_dim": sum(share * one["bits_per_dim"] for share,
                                 one in zip(shares, turn, strict=True)),
             "warm": all(one["step"] > trainer.settings.warmup_steps
                         for one, trainer in zip(turn, trainers, strict=True))} for turn in turns]


def upscaler_of(trainers: list[Trainer], name: str) -> Upscaler:
    """Return an upscaler of a network, by the compiled engine."""
    first, *later = (Upscaler(trainer.averaged, name, device="cpu", engine="native")
                     for trainer in trainers)
    return functools.reduce(lambda cascade, stage: stage.after(cascade, name), later, first)


def decoding_seconds(networks: dict[str, list[Trainer]], pairs: FacePairs,
                     rounds: int) -> dict[str, float]:
    """Return the seconds per picture of greedy decoding, one picture at a time, the shortest of
    several rounds."""
    upscalers = {name: upscaler_of(trainers, name) for name, trainers in networks.items()}
    shortest = dict.fromkeys(networks, float("inf"))
    for _, (name, upscaler) in itertools.product(range(rounds), upscalers.items()):
        seconds = sum(upscaler(picture[None], DecodeConfig(1)).seconds
                      for picture in pairs.lr[:DECODED])
        shortest[name] = min(shortest[name], seconds / min(DECODED, len(pairs)))
    return shortest


def extrapolated(minutes: np.ndarray, bits: np.ndarray, end: float) -> tuple[float, float,
                                                                             float] | None:
    """Extrapolate a curve of `bits` per dim, float64 [N], to the time `end` by a + b * minutes**-c.

    Returns:
        The value at `end`, and the smallest and the largest value if any one point is left out;
        None for fewer than `FITTED` points, or if no curve fits.
    """
    def value(chosen: np.ndarray) -> float:
        start = (bits.min() - 0.1, bits.max() - bits.min() + 0.1, 0.5)
        fitted, _ = curve_fit(lambda t, a, b, c: a + b * t**-c, minutes[chosen], bits[chosen],
                              start, bounds=((0, 0, 0.05), (16, 64, 3)), maxfev=20000)
        return float(fitted[0] + fitted[1] * end ** -fitted[2])

    if len(minutes) < FITTED:
        return None
    everything = np.arange(len(minutes))
    try:
        without = [value(np.delete(everything, place)) for place in everything]
        return value(everything), min(without), max(without)
    except RuntimeError:  # no convergence
        return None


def summary(name: str, trainers: list[Trainer], turns: int, seconds: float) -> Values:
    """Return what is known of a network after `turns`, even if it has been trained for longer."""
    records, configs = (whole_scores(trainers)[:turns],
                        [trainer.model.config for trainer in trainers])
    minutes, bits = (np.array([record[key] for record in records]) for key in ("seconds",
                                                                               "bits_per_dim"))
    minutes, warm = minutes / 60, np.array([record["warm"] for record in records], bool)
    return {
        "size": name, "width": joined(config.width for config in configs),
        "decoder_layers": joined(config.decoder_layers for config in configs),
        "weights": sum(weight.numel() for trainer in trainers
                       for weight in trainer.model.parameters()),
        "learning_rate": joined(trainer.settings.learning_rate for trainer in trainers),
        "decoding_seconds": seconds, "images_per_second": records[-1]["images"]
        / records[-1]["seconds"], "minutes": minutes.tolist(), "bits_per_dim": bits.tolist(),
        "extrapolated": {str(factor): extrapolated(minutes[warm], bits[warm],
                                                   factor * float(minutes[-1]))
                         for factor in FACTORS},
    }


def joined(numbers: Iterable[float]) -> float | str:
    """Return the only one of `numbers`, or all as text, of a cascade's stages."""
    known = list(numbers)
    return known[0] if len(known) == 1 else " and ".join(f"{number:g}" for number in known)


COLUMNS: Columns = {
    "network": ("size", 0), "width": ("width", 0), "layers": ("decoder_layers", 0),
    "weights": (lambda row: f"{row['weights']:,}", 0), "pictures per second of "
    "training": ("images_per_second", 1), "s/picture, greedy, native": ("decoding_seconds", 3),
    "bits/dim": (lambda row: row["bits_per_dim"][-1], 3),
    **{f"at {factor} times the "
       "time": (lambda row, factor=factor: range_text(row["extrapolated"][str(factor)]), 0)
       for factor in FACTORS[1:]}}


def range_text(value: tuple[float, float, float] | None) -> str | None:
    """Return an extrapolated value with its range."""
    return None if value is None else "{:.3f} ({:.3f} to {:.3f})".format(*value)


def verdict(rows: list[Values]) -> str:
    """Return a line on the best network now, and with FACTORS[-1] times the training."""
    best = min(rows, key=lambda row: row["bits_per_dim"][-1])
    now = f"After {best['minutes'][-1]:.3g} minutes each, {best['size']} has the fewest bits/dim."
    if any(row["extrapolated"][str(FACTORS[-1])] is None for row in rows):
        return (f"{now} Not every network has {FITTED} scores after the warm-up that a curve fits; "
                "train for longer.")
    last = min(rows, key=lambda row: row["extrapolated"][str(FACTORS[-1])][0])
    base = next((row for row in rows if row["size"] == "base"), rows[0])
    return (f"{now} Extrapolated to {FACTORS[-1]} times the time, it is {last['size']}, whose "
            f"greedy decoding takes {last['decoding_seconds'] / base['decoding_seconds']:.2f} "
            f"times that of {base['size']}.")


def views(document: Document) -> dict[str, str]:
    """Return a line per network, its bits/dim after every turn, and a line with the verdict."""
    rows, step = [*values(document).values()], document["conditions"]["minutes_per_turn"]
    turns: Columns = {"bits/dim after": ("size", 0), **{
        f"{step * (turn + 1):g} minutes": (lambda row, turn=turn: row["bits_per_dim"][turn], 3)
        for turn in range(max(len(row["bits_per_dim"]) for row in rows))}}
    return {"sizes": columns_table(rows, COLUMNS), "turns": columns_table(rows, turns),
            "verdict": f"{verdict(rows)} In brackets: the range if any one point is left out."}


def plots(document: Document) -> dict[str, bytes]:
    """Return a plot of bits/dim against training time and against the time of decoding."""
    training, decoding = list[Line](), list[Line]()
    for number, row in enumerate(values(document).values()):
        colour, bits = f"C{number}", row["bits_per_dim"]
        training.append(Line([*zip(row["minutes"], bits, strict=True)], row["size"], colour))
        decoding.append(Line([(row["decoding_seconds"], bits[-1])], None, colour))
        later = [(row["minutes"][-1] * factor, row["extrapolated"][str(factor)][0])
                 for factor in FACTORS
                 if row["extrapolated"][str(factor)] is not None]
        training.append(Line(later, None, colour, ":"))
        decoding.append(Line([(row["decoding_seconds"], value) for _, value in later[-1:]], None,
                             colour, "x"))
    return {"sizes.png": draw([
        Panel(training, {"xscale": "log", "xlabel": "minutes of training; dotted: extrapolated",
                         "ylabel": "bits/dim"}),
        Panel(decoding, {"xlabel": f"seconds per picture, greedy; crosses: at {FACTORS[-1]} times "
                         "the time", "ylabel": "bits/dim", "xlim": (0, None)})], 2, (11, 4.5))}


def trainer_of(config: ModelConfig, pairs: FacePairs, batch_size: int, folder: Path) -> Trainer:
    """Return the run of a network or stage on `pairs`, reduced to its sizes."""
    settings = Stage(endless=True, batch_size=batch_size, optimizer="muon",
                     learning_rate=learning_rate(config.width))
    model = build_model(config, settings)
    # a missing compiler is refused now, not after the training
    step_model(model.eval(), engine="native")
    own = stage_pairs(pairs, FaceTask.of(config))
    return Trainer(model, settings, ImageBatches(own.lr, own.hr, batch_size, 0), folder,
                   clock=CLOCK)


def main(
    data: Annotated[Path, typer.Option(help="Faces to train on: .npz, folder of images or CelebA "
                                       "root.")],
    dev: Annotated[Path, typer.Option(help="Faces to score.")],
    output: Annotated[Path, typer.Option(help="Folder for runs and results.")],
    minutes: Annotated[float, typer.Option(help="Training time of each network; processor time on "
                                           "a CPU.")] = 30,
    turns: Annotated[int, typer.Option(min=1, help="Number of turns, and of scores, of each "
                                       "network.")] = 10,
    limit: Annotated[int, typer.Option(min=1, help="Dev images to score.")] = 100,
    batch_size: Annotated[int, typer.Option(min=1, help="Images per training step.")] = 4,
    rounds: Annotated[int, typer.Option(min=1, help="Timings of decoding.")] = 5,
    networks: Annotated[str,
                        typer.Option(help="Comma-separated networks: "
                                     f"{', '.join(NETWORKS)}.")] = ",".join(SIZES),
    preset: Annotated[str, typer.Option(help="Network for faces that the others are compared "
                                        "with.")] = "base",
    name: Annotated[str, typer.Option(help="Name of the measurements.")] = "sizes",
) -> None:
    """Train the networks in turns, score them, time their decoding, and write the measurements."""
    require(0 < minutes < float("inf"), f"--minutes must be positive and finite, not {minutes}")
    names = networks.split(",")
    for one in names:
        require(one in NETWORKS, f"unknown network {one!r}; known: {', '.join(NETWORKS)}")
    require(preset in PRESETS and PRESETS[preset].task == FaceTask.name,
            f"--preset must be that of a network for faces, not {preset!r}")
    require(FACTORS_OF_TWO not in names or preset == "base",
            f"{FACTORS_OF_TWO} enlarges as the base preset does, not as {preset}; leave out one of "
            "them")
    task = FaceTask.of(PRESETS[preset])
    pairs, true = read_faces(dev, task, "valid", limit), read_faces(data, task)
    with run_folder(output):
        table = Table("compare_networks", output, {
            "dev": short_digest(pairs.hr.tobytes() + pairs.lr.tobytes()), "batch_size": batch_size,
            "minutes_per_turn": round(minutes / turns, 6), "preset": preset}, name=name)
        table.save()
        trained = {one: [trainer_of(config, true, batch_size, output / f"{one}{number or ''}")
                         for number, config in enumerate(stages_of(one, preset))] for one in names}
        train_in_turns(trained, pairs, minutes, turns)
        seconds = decoding_seconds(trained, pairs, rounds)
        table.measure(Row(one, functools.partial(summary, one, trainers, turns, seconds[one]),
                          {"turns": turns})
                      for one, trainers in trained.items())
        table.finish()


if __name__ == "__main__":
    run(main)
