"""Train base and heads of a checkpoint further, without an end, while the machine is otherwise
idle.

After every round, the averaged weights are scored on the first 200 faces of --dev, beside a
reference: the bundled checkpoint, or --start if its pictures have other sizes. The folder OUTPUT
    gets `checkpoint` (the last round), `best`
(of the rounds that are no worse than the reference in any score, the one with the fewest bits/dim),
and `report.jsonl`, a row per round. Stop with Ctrl-C; the same command continues, after a kill,
too.

    python scripts/train/continuous.py --data train.npz --dev dev.npz --output runs/forever
    python scripts/train/continuous.py --data train64.npz --dev dev.npz --output runs/crops
    --crop-share 0.25
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer
from typer import Option

from superres.checkpoint import find_checkpoint, recover_folder
from superres.cli.options import option_of, with_options
from superres.config import DEFAULT_CHECKPOINT, DecodeConfig, reader_of, require, settings_of
from superres.decoding.trace import RowTrace, mean_accepted_block_size
from superres.errors import ConfigError, SuperresError
from superres.evaluation.picture_scores import psnr, ssim
from superres.pictures.read import Pixels
from superres.pipeline.auto import face_task
from superres.pipeline.upscaler import Upscaler
from superres.system import signals
from superres.system.json_files import parse_lines, read_json
from superres.system.output import lock_file, prepare_folder, short_digest, write_result
from superres.system.progress import Progress, say
from superres.tasks.face_data import FacePairs, read_faces
from superres.tasks.faces import FaceTask
from superres.training.corpora import network_of
from superres.training.recipes import build_trainer, stage_of
from superres.training.stage import Stage
from superres.training.trainer import Trainer

SCORED = 200
"""Largest number of development pictures that a round scores, the first of the data."""
BATCH = 20
BLOCK_SIZE = 10
SCORES = {
    "bits_per_dim": "bits/dim", "greedy_psnr": "PSNR", "greedy_ssim": "SSIM",
    "exact_tokens_per_step": "tokens per step, exact", "epsilon_2_tokens_per_step": "tokens per "
    "step, epsilon 2",
}
"""Names of the scores in a row, and in messages. Only bits/dim are better if they are lower."""

Row = dict[str, Any]


class Rounds:
    """The scores of a run's rounds in the folder's `report.jsonl`; the first row has those of
    `reference`."""

    def __init__(self, folder: Path, pairs: FacePairs, reference: str = DEFAULT_CHECKPOINT) -> None:
        """Read the report in `folder`, or start it by scoring the checkpoint `reference`.

        Raises:
            ConfigError: the report is damaged, or has scores on other pictures.
        """
        self.path, self.best, self.pairs, self.reference = (folder / "report.jsonl",
                                                            folder / "best", pairs, reference)
        self.rows: list[Row] = []
        data, remedy = (short_digest(pairs.hr.tobytes() + pairs.lr.tobytes()), "restore it, or "
                        "choose a new --output")
        if not self.path.exists():
            scores = self.score(find_checkpoint(reference))
            say(f"{reference}: {_text(scores)}")
            self._write({"round": 0, "checkpoint": reference, "dev": data, "seconds": 0.0,
                         **scores})
        self.rows = read_json(self.path, functools.partial(reader_of(list[Row]), "the report"),
                              ConfigError, remedy, parse=parse_lines)
        wanted = {"round", "seconds", *SCORES}
        require(bool(self.rows) and all(wanted <= row.keys() for row in self.rows),
                f"{self.path} has no row, or one without {', '.join(sorted(wanted))}; {remedy}")
        require(self.rows[0].get("dev") == data, f"{self.path} has scores on other pictures; "
                "repeat the first --dev, or choose a new --output")

    def score(self, folder: Path) -> dict[str, float]:
        """Return the scores of a checkpoint; KeyboardInterrupt after a signal."""
        upscaler = Upscaler.load(folder)
        size = min(BLOCK_SIZE, upscaler.model_config.prediction_heads)
        exact, near = DecodeConfig(size), DecodeConfig(size, accept="distance", epsilon=2)
        pictures: list[Pixels] = []
        bits: list[npt.NDArray[np.float64]] = []
        traces: tuple[list[RowTrace], list[RowTrace]] = [], []
        with Progress(f"scoring {folder}", len(self.pairs), "pictures") as progress:
            for start in range(0, len(self.pairs), BATCH):
                if signals.stopping():
                    raise KeyboardInterrupt
                low, high = (images[start : start + BATCH] for images in (self.pairs.lr,
                                                                          self.pairs.hr))
                results = [upscaler(low, options) for options in (exact, near)]
                pictures.append(results[0].images)  # exact blocks give the greedy pictures
                bits.append(upscaler.bits_per_dim(low, high))
                for known, result in zip(traces, results, strict=True):
                    known.extend(result.traces)
                progress.update(len(low))
        greedy = np.concatenate(pictures)
        values = (np.concatenate(bits).mean(), psnr(greedy, self.pairs.hr).mean(),
                  ssim(greedy, self.pairs.hr).mean(), *map(mean_accepted_block_size, traces))
        return dict(zip(SCORES, map(float, values), strict=True))

    def worse(self, scores: dict[str, float]) -> list[str]:
        """Return the names of the scores in which the reference is better; equal bits/dim count,
        too."""
        reference = self.rows[0]
        return [name for name in SCORES if
                (scores[name] >= reference[name] if name == "bits_per_dim" else scores[name]
                 < reference[name])]

    def add(self, scores: dict[str, float], record: dict[str, float]) -> bool:
        """Write the row of a round and print it; return whether it is the best."""
        worse, number = self.worse(scores), self.rows[-1]["round"] + 1
        least = min((row["bits_per_dim"] for row in self.rows[1:] if not row.get("worse")),
                    default=np.inf)
        best = not worse and scores["bits_per_dim"] < least
        self._write({"round": number, **record, **scores, "worse": worse})
        verdict = f"worse than {self.reference} in {', '.join(SCORES[name] for name in worse)}" if worse else \
            f"better than {self.reference}{'' if best else f', but {self.best} has fewer bits/dim'}"
        say(f"round {number}, step {record['step']}: {_text(scores)}; {verdict}")
        return best

    def _write(self, row: Row) -> None:
        self.rows.append(row)
        write_result(self.path, "".join(json.dumps(row) + "\n" for row in self.rows).encode())


def _text(scores: dict[str, float]) -> str:
    return ", ".join(f"{label} {scores[name]:.3f}" for name, label in SCORES.items())


def lowest_priority() -> None:
    """Compute only while the processor is otherwise idle; threads that start later do, too."""
    with suppress(OSError, AttributeError):  # some systems have no priorities
        os.nice(19)
    with suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    # Linux may give every session a fair share, whatever the priority of its processes. A session
    # that is not this process's own has other programs, too.
    with suppress(OSError, AttributeError):
        if os.getsid(0) == os.getpid():
            Path("/proc/self/autogroup").write_text("19")


@contextmanager
def run_folder(folder: Path) -> Iterator[None]:
    """Let one process at a time train in `folder`, and remove what a killed one left half-written.

    Raises:
        ConfigError: another process trains there.
        OutputError: the folder cannot be written.
    """
    prepare_folder(folder)
    with open(folder / "run.lock", "ab") as file:
        try:
            lock_file(file)
        except BlockingIOError as error:
            raise ConfigError(f"another process trains in {folder}; stop it, or choose another "
                              "--output") from error
        except OSError:
            pass  # a file system without locks
        for name in ("state", "checkpoint", "best"):
            recover_folder(folder / name)
            for left in folder.glob(f".{name}-*"):
                shutil.rmtree(left, ignore_errors=True)
        yield


def train_rounds(trainer: Trainer, rounds: Rounds, round_seconds: float) -> None:
    """Train and score until a signal. A round that a signal ends while it is scored is scored by
    the next run."""
    with Progress("training", unit="s") as progress:
        progress.resume(trainer.seconds)

        def is_due() -> bool:
            progress.to(trainer.seconds, f"step {trainer.step}")
            return trainer.seconds >= float(rounds.rows[-1]["seconds"]) + round_seconds

        while not signals.stopping():
            if not is_due():
                trainer.run(lambda: signals.stopping() or is_due())
                continue
            trainer.write_checkpoint(trainer.folder / "checkpoint")
            scores = rounds.score(trainer.folder / "checkpoint")
            record = trainer.record({**scores, "dev_images": len(rounds.pairs)})
            if rounds.add(scores, record):
                trainer.write_checkpoint(rounds.best)
            trainer.save()


NAMES = ("data", "dev", "output", "start", "own", "crops", "crop_share", "turned_share",
         "doubled_share", "drawn", "input_noise", "limit", "batch_size", "learning_rate",
         "optimizer", "precision", "threads", "device", "compiled", "gradient_checkpointing",
         "seed")
"""Settings of `Stage` that are options."""
DEFAULTS = {"data": ..., "dev": ..., "output": ..., "start": DEFAULT_CHECKPOINT,
            "learning_rate": 3e-4, "optimizer": "muon"}
"""Defaults that differ from those of `Stage`; `...` is required."""


def train(round_minutes: float, **options: Any) -> None:  # noqa: ANN401 -- settings of `Stage`
    """Train until a signal, with a score every `round_minutes`; `options` are the settings
    NAMES."""
    lowest_priority()
    values = {**DEFAULTS, **{name: value for name, value in options.items() if value is not None}}
    # On its own pictures no token is true, and without a teacher the heads' loss would change p1.
    # The averaged weights, a mean over about 2,000 steps, take the place of the decay of the
    # learning rate.
    own = {"stage": "heads"} if values.get("own") is None else {"stage": "distil",
                                                                "teacher": values["start"]}
    stage = stage_of({**values, **own, "endless": True, "ema_decay": 0.9995})
    task = FaceTask.of(network_of(stage))
    with signals.handled(), signals.deferred(), run_folder(stage.output):
        trainer = build_trainer(stage)
        reference = (DEFAULT_CHECKPOINT if face_task(DEFAULT_CHECKPOINT) == task
                     else str(stage.start))
        pairs = read_faces(stage.dev or stage.data, task, "valid", SCORED)
        train_rounds(trainer, Rounds(stage.output, pairs, reference), 60 * round_minutes)
    say(f"{stage.output}: stopped and saved; the same command continues")


def command(
    context: typer.Context,
    round_minutes: Annotated[float, Option(min=0.01, help="Minutes of training between two "
                                           "scores.")] = 60,
) -> None:
    """Train further without an end, with a score after every round."""
    train(round_minutes, **{name: context.params[name] for name in NAMES})


ABOUT = settings_of(Stage)
main = with_options(command, [option_of(name, replace(ABOUT[name], panel="Options"),
                                        DEFAULTS.get(name,
                                                     None if ABOUT[name].unset else getattr(Stage,
                                                                                            name)))
                              for name in NAMES])


if __name__ == "__main__":
    try:
        typer.run(main)
    except SuperresError as error:
        sys.exit(f"continuous: {error}")
    except KeyboardInterrupt:
        sys.exit("continuous: stopped; the same command continues")
