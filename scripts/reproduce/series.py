"""Series of measurements by block size, and a table of several series that is measured piece by piece."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from superres.checkpoint import weights_digest
from superres.config import BeamConfig, DecodeConfig, require
from superres.errors import ConfigError
from superres.system.machine import machine
from superres.system.output import number_text, prepare_folder, write_results
from superres.system.progress import say

if TYPE_CHECKING:
    import torch

    from superres.pipeline.base import Pipeline

Cell = dict[str, Any]

BLOCK_SIZES = (1, 2, 4, 6, 8, 10)
"""Block sizes k of the tables of the paper."""
PAPER = "Stern, Shazeer and Uszkoreit: Blockwise Parallel Decoding for Deep Autoregressive Models, NeurIPS 2018"
EXACT = DecodeConfig()
ACCEPTED = "mean_accepted_block_size"


@dataclass(frozen=True)
class Series:
    """Measurements of one network with one criterion at increasing block sizes: a column of a table of the paper.

    `checkpoint` is the role of the network, the name of its rung in the ladder. `paper` has the paper's scores by block
    size k and name of the score. Block sizes above the network's number of prediction heads are omitted.
    """

    checkpoint: str
    decode: DecodeConfig = EXACT
    paper: dict[int, dict[str, float]] = field(default_factory=dict)
    block_sizes: tuple[int, ...] = BLOCK_SIZES

    def variants(self, prediction_heads: int) -> dict[int, DecodeConfig]:
        """Return the settings by block size k, greedy decoding (k = 1) first."""
        return {k: dataclasses.replace(self.decode, block_size=k) for k in self.block_sizes if k <= prediction_heads}


class Table:
    """Measurements of several series in `<name>.json`, the source of tables and plots.

    Each series is written after its measurement. It is not measured again with the same revision of its checkpoint and
    the same settings, so a run that was interrupted continues.
    """

    name: ClassVar[str]

    def __init__(self, folder: Path, run: dict[str, Any], names: Sequence[str], device: torch.device) -> None:
        """Open a folder of results, or start a new one.

        `run` has the common conditions of all measurements, serialisable as JSON, and `names` the names of all series
        in the order of the document.

        Raises:
            ConfigError: the folder has measurements with another `run`, its document cannot be read, or the batch size
                is not positive.
            OutputError: the folder cannot be written.
        """
        require(run["batch_size"] >= 1, f"--batch-size must be at least 1, not {run['batch_size']}")
        self.folder, self.names, self.path = folder, names, folder / f"{self.name}.json"
        self.document: dict[str, Any] = {
            "paper": PAPER, "run": run, "command": command_text(sys.argv[1:]), "costs": [], "curves": {},
            "differences": {}, "series": {}}
        prepare_folder(folder)
        if self.path.exists():
            try:
                document = json.loads(self.path.read_text())
                before = dict(document["run"])
                series = {name: document["series"][name] for name in names if name in document["series"]}
                curves = dict(document["curves"])
            except (OSError, ValueError, TypeError, KeyError) as error:
                message = f"{self.path} cannot be read ({error!r}); remove it or choose another --output"
                raise ConfigError(message) from error
            changed = [f"{name} {before.get(name)}, not {run[name]}" for name in run if before.get(name) != run[name]]
            require(not changed, f"{self.path} was measured with {', '.join(changed)}; choose another --output")
            self.document |= {"series": series, "curves": curves}
        self.document["machine"] = machine(device)

    def measure(
        self, name: str, pipeline: Pipeline, variants: Mapping[int, DecodeConfig | BeamConfig],
        cells: Callable[[], list[Cell]],
    ) -> None:
        """Measure the series `name` of these variants by `cells()`, unless it has been, and write the document.

        Raises:
            OutputError: the file cannot be written.
        """
        entry = self.document["series"].get(name, {"revision": None, "cells": []})
        configs = [variant.to_dict() for variant in variants.values()]
        if entry["revision"] == pipeline.revision and [cell["config"] for cell in entry["cells"]] == configs:
            say(f"{name}: already measured")
            return
        say(f"{name}: {pipeline.name}@{pipeline.revision}, k = {', '.join(str(k) for k in variants if k)}")
        entry = {"checkpoint": pipeline.name, "revision": pipeline.revision, "engine": pipeline.engine,
                 "cells": cells()}
        measured = {**self.document["series"], name: entry}
        self.document["series"] = {n: measured[n] for n in self.names if n in measured}
        self.save()

    def measure_curve(self, role: str, snapshots: Mapping[int, Path], scores: Callable[[Path], Cell]) -> None:
        """Measure what the network `role` accepts after each number of steps, unless that has been measured."""
        known = {point["step"]: point for point in self.document["curves"].get(role, [])}
        points = []
        for step, folder in snapshots.items():
            digest = weights_digest(folder)
            point = known.get(step, {})
            if point.get("weights") != digest:
                say(f"{role} after {step} steps")
                point = {"step": step, "weights": digest, **scores(folder)}
            points.append(point)
        self.document["curves"][role] = points
        self.save()

    def add(self, name: str, pipeline: Any) -> None:  # noqa: ANN401 -- a translator or an upscaler
        """Measure the series `name` with its network."""
        raise NotImplementedError

    def add_test(self, role: str, pipeline: Any) -> None:  # noqa: ANN401
        """Measure the network `role` on test data, if the table has any."""

    def add_curve(self, role: str, ladder: Path) -> None:
        """Measure what the snapshots of the network `role` accept at its largest block size."""
        raise NotImplementedError

    def add_differences(self, pipelines: Mapping[str, Any]) -> None:
        """Measure the differences of scores on the same examples, for claims that need them."""

    def save(self) -> None:
        """Write the document; raise OutputError if that is not possible."""
        write_results(self.folder, {self.path.name: self.document})

    def views(self) -> dict[str, str | bytes]:
        """Return the tables and plots, by file name."""
        raise NotImplementedError

    def write_views(self) -> list[Path]:
        """Write the tables and plots, and return their paths; raise OutputError if a file cannot be written."""
        return write_results(self.folder, self.views())


@dataclass(frozen=True)
class Claim:
    """A statement of the paper: at block size k, the `score` of one series is more than `factor` times another's."""

    text: str
    better: str
    other: str
    block_size: int
    factor: float = 1.0
    score: str = ACCEPTED
    other_block_size: int | None = None

    def row(
        self, series: Mapping[str, Series], measured: Mapping[str, Any], differences: Mapping[str, Any],
    ) -> list[str]:
        """Return the claim, the paper's two scores and ours with intervals, and the verdict.

        `differences` has the difference of the scores on the same examples, by the text of a claim: it decides where it
        is known.
        """
        places = ((self.better, self.block_size), (self.other, self.other_block_size or self.block_size))
        theirs = [series[name].paper.get(k, {}).get(self.score) for name, k in places]
        ours = [_found(measured, name, k) for name, k in places]
        text = self.text if self.factor == 1 else f"{self.text} (more than {self.factor:g} times)"
        known = differences.get(self.text)
        if known is None:
            return [text, " and ".join(number_text(value, 2) for value in theirs),
                    " and ".join(with_half(cell, self.score, 2) for cell in ours), self.verdict(*ours)]
        shown = f"{known['difference']:+.2f} +-{known['half_width']:.2f}"
        return [text, " and ".join(number_text(value, 2) for value in theirs),
                f"{' and '.join(number_text(cell.get(self.score), 2) for cell in ours)} ({shown})",
                _decided(known["difference"], known["half_width"])]

    def verdict(self, better: Cell, other: Cell) -> str:
        """Return whether the claim holds, beyond the intervals of both scores."""
        if better.get(self.score) is None or other.get(self.score) is None:
            return "not measured"
        difference = better[self.score] - self.factor * other[self.score]
        halves = [cell.get(f"{self.score}_half_width") or 0.0 for cell in (better, other)]
        noise = (halves[0] ** 2 + (self.factor * halves[1]) ** 2) ** 0.5
        return _decided(difference, noise)


def _decided(difference: float, noise: float) -> str:
    return "undecided" if abs(difference) <= noise else "holds" if difference > 0 else "does not hold"


def _found(measured: Mapping[str, Any], name: str, block_size: int) -> Cell:
    cells: list[Cell] = measured.get(name, {"cells": []})["cells"]
    return next((cell for cell in cells if cell["block_size"] == block_size), {})


def with_half(cell: Cell, score: str, digits: int) -> str:
    """Return a score with half the width of its 95 % interval as text, such as "1.66 +-0.02"."""
    half = cell.get(f"{score}_half_width")
    return number_text(cell.get(score), digits) + ("" if half is None else f" +-{half:.{digits}f}")


def command_text(words: Sequence[str]) -> str:
    """Return a command line of `tables.py` without the folders of its paths."""
    return " ".join(["python scripts/reproduce/tables.py", *(Path(word).name or word for word in words)])
