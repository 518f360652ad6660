"""Train without an end while the machine is idle: rounds of training, each followed by scores on fixed pictures."""

from __future__ import annotations

import dataclasses
import functools
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from accelerate import PartialState

from superres.checkpoint import find_checkpoint, recover_folder
from superres.config import DEFAULT_CHECKPOINT, DecodeConfig, reader_of, require
from superres.decoding.trace import RowTrace, mean_accepted_block_size
from superres.errors import ConfigError
from superres.evaluation.pictures import psnr, ssim
from superres.pipeline.auto import face_task
from superres.pipeline.upscaler import Upscaler
from superres.system.output import lock_file, prepare_folder, short_digest, write_result
from superres.system.progress import say
from superres.system.reading import parse_lines, read_json
from superres.system.training_lock import times_are_measured, training_turn
from superres.tasks.face_data import FacePairs, read_faces
from superres.tasks.faces import FaceTask
from superres.tasks.pictures import Pixels
from superres.training.corpora import Stage
from superres.training.distillation import Report, Stop
from superres.training.recipes import build_trainer
from superres.training.trainer import Trainer

SCORED = 200
"""Largest number of development pictures that a round scores, the first of the data."""
BATCH = 20
BLOCK_SIZE = 10
SCORES = {
    "bits_per_dim": "bits/dim", "greedy_psnr": "PSNR", "greedy_ssim": "SSIM",
    "exact_tokens_per_step": "tokens per step, exact", "epsilon_2_tokens_per_step": "tokens per step, epsilon 2",
}
"""Names of the scores in a row, and in messages. Only bits/dim are better if they are lower."""

Row = dict[str, Any]


def train_continuously(stage: Stage, round_seconds: float, stop: Stop, report: Report) -> Path | None:
    """Train until `stop()` is true, with `round_seconds` of training between two scores; the same call continues.

    The folder `stage.output` gets `report.jsonl`, `checkpoint` (averaged weights of the last round) and `best` (the
    round with the fewest bits/dim among those that are better than the reference in every score). The reference is the
    bundled checkpoint, or `stage.start` if its pictures have other sizes. Training pauses while
    `superres.system.training_lock.training_paused` is in use. `stop()` is called after every step and every scored
    batch, `report` with each record of the history.

    Returns:
        The folder `best`; None if no round has been better.

    Raises:
        SuperresError: data, settings or an earlier run in the folder do not match, or another process trains there.
    """
    require(stage.dev is not None, "give the pictures to score with --dev")
    require(PartialState().num_processes == 1,
            "train continue uses one process; start it without accelerate and torchrun")
    with run_folder(stage.output):
        task = FaceTask.of(stage.network())
        same = stage.start is None or face_task(DEFAULT_CHECKPOINT) == task
        rounds = Rounds(stage.output, read_faces(stage.dev or "", task, "valid", SCORED),
                        DEFAULT_CHECKPOINT if same else str(stage.start))
        trainer = build_trainer(dataclasses.replace(stage, dev=None))

        def must_yield() -> bool:
            return stop() or times_are_measured()

        def is_due() -> bool:
            return trainer.seconds >= float(rounds.rows[-1]["seconds"]) + round_seconds

        while not stop():
            with training_turn(stop):
                if rounds.rows and not is_due():
                    trainer.run(lambda: must_yield() or is_due(), report)
                elif not rounds.rows:
                    rounds.start(must_yield)
                else:
                    _end_round(trainer, rounds, must_yield, report)
        return rounds.best if rounds.best.is_dir() else None


def _end_round(trainer: Trainer, rounds: Rounds, must_yield: Stop, report: Report) -> None:
    """Score a round, unless `must_yield()` becomes true; then the saved state lets the same weights be scored later."""
    trainer.write_checkpoint(trainer.folder / "checkpoint")
    scores = rounds.score(trainer.folder / "checkpoint", must_yield)
    if scores is None:
        return
    record = trainer.record({**scores, "dev_images": len(rounds.pairs)})
    if rounds.is_best(scores):
        trainer.write_checkpoint(rounds.best)
    rounds.add(scores, record)
    report(record)
    trainer.save()


class Rounds:
    """The scores of a run's rounds beside those of a reference, in the run's `report.jsonl`: a row per round.

    The first row has the scores of the checkpoint `reference` (a name or folder). `best` is the folder of the best
    checkpoint.
    """

    def __init__(self, folder: Path, pairs: FacePairs, reference: str = DEFAULT_CHECKPOINT) -> None:
        """Read the report in `folder`; raise ConfigError if it is damaged or has scores on other pictures."""
        self.path, self.best, self.pairs, self.reference = folder / "report.jsonl", folder / "best", pairs, reference
        recover_folder(self.best)
        self.data = short_digest(pairs.hr.tobytes() + pairs.lr.tobytes())
        remedy = "restore it, or choose a new --output"
        self.rows: list[Row] = read_json(
            self.path, functools.partial(reader_of(list[Row]), "the report"), ConfigError, remedy,
            parse=parse_lines) if self.path.exists() else []
        wanted = {"round", "seconds", *SCORES}
        lacking = next((sorted(wanted - row.keys()) for row in self.rows if not wanted <= row.keys()), [])
        require(not lacking, f"{self.path} has a row without {', '.join(lacking)}; {remedy}")
        known = self.rows[0].get("dev") if self.rows else self.data
        require(known == self.data, f"{self.path} has scores on other pictures; repeat the first --dev, or choose a "
                                    "new --output")

    def start(self, must_yield: Stop) -> None:
        """Start the report with the scores of the reference, unless `must_yield()` becomes true."""
        scores = self.score(find_checkpoint(self.reference), must_yield)
        if scores is not None:
            self.write({"round": 0, "checkpoint": self.reference, "dev": self.data, "seconds": 0.0, **scores})
            say(f"{self.reference}: {_text(scores)}")

    def score(self, folder: Path, must_yield: Stop) -> dict[str, float] | None:
        """Return the scores of a checkpoint, or None once `must_yield()` is true, which is called before each batch."""
        say(f"scoring {folder} on {len(self.pairs)} pictures")
        upscaler = Upscaler.load(folder)
        size = min(BLOCK_SIZE, upscaler.model_config.prediction_heads)
        exact, near = DecodeConfig(size), DecodeConfig(size, accept="distance", epsilon=2)
        pictures: list[Pixels] = []
        bits: list[npt.NDArray[np.float64]] = []
        traces: tuple[list[RowTrace], list[RowTrace]] = [], []
        for start in range(0, len(self.pairs), BATCH):
            if must_yield():
                return None
            low, high = (images[start : start + BATCH] for images in (self.pairs.lr, self.pairs.hr))
            results = [upscaler(low, options) for options in (exact, near)]
            pictures.append(results[0].images)  # exact blocks give the greedy pictures
            bits.append(upscaler.bits_per_dim(low, high))
            for known, result in zip(traces, results, strict=True):
                known.extend(result.traces)
        greedy = np.concatenate(pictures)
        values = (np.concatenate(bits).mean(), psnr(greedy, self.pairs.hr).mean(), ssim(greedy, self.pairs.hr).mean(),
                  *map(mean_accepted_block_size, traces))
        return dict(zip(SCORES, map(float, values), strict=True))

    def is_best(self, scores: dict[str, float]) -> bool:
        """Return whether `scores` are better than the reference's and have the fewest bits/dim so far."""
        earlier = [row["bits_per_dim"] for row in self.rows if row.get("beats_bundled")]
        return not self.worse(scores) and scores["bits_per_dim"] < min(earlier, default=np.inf)

    def worse(self, scores: dict[str, float]) -> list[str]:
        """Return the names of the scores in which the reference is better; equal bits/dim count, too."""
        bundled = self.rows[0]
        return [name for name in SCORES if
                (scores[name] >= bundled[name] if name == "bits_per_dim" else scores[name] < bundled[name])]

    def add(self, scores: dict[str, float], record: dict[str, float]) -> None:
        """Write the row of a round, and print it."""
        worse, best, number = self.worse(scores), self.is_best(scores), self.rows[-1]["round"] + 1
        self.write({"round": number, **record, "beats_bundled": not worse, "worse": worse})
        kept = f"; kept as {self.best}" if best else f", but {self.best} has fewer bits/dim"
        verdict = f"not yet better than {self.reference} in {', '.join(SCORES[name] for name in worse)}" if worse \
            else f"BETTER than {self.reference}{kept}"
        say(f"round {number}, step {record['step']}: {_text(scores)}; {verdict}")

    def write(self, row: Row) -> None:
        """Add a row to the report."""
        self.rows.append(row)
        write_result(self.path, "".join(json.dumps(row) + "\n" for row in self.rows).encode())


def _text(scores: dict[str, float]) -> str:
    return ", ".join(f"{label} {scores[name]:.3f}" for name, label in SCORES.items())


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
            raise ConfigError(f"another process trains in {folder}; stop it, or choose another --output") from error
        except OSError:
            pass  # a file system without locks
        for name in ("state", "checkpoint", "best"):
            recover_folder(folder / name)
            for left in folder.glob(f".{name}-*"):
                shutil.rmtree(left, ignore_errors=True)
        yield
