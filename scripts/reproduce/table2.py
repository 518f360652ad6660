"""Reproduce Table 2 of Stern et al. (2018): mean accepted block size by block size, with quality and time."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from superres.config import BeamConfig, DecodeConfig, require
from superres.decoding.trace import survival_curve
from superres.errors import ConfigError
from superres.evaluation.pictures import agreement, decode_interleaved, mean_bits_per_dim, picture_scores
from superres.system.output import figure_png, markdown_table, number_text, prepare_folder, short_digest, write_results
from superres.system.progress import say
from superres.tasks.face_data import FacePairs
from superres.tasks.pictures import Pixels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from superres.pipeline.base import Pipeline
    from superres.pipeline.upscaler import Upscaler

BLOCK_SIZES = (1, 2, 4, 6, 8, 10)
"""Block sizes k of the paper's table."""
PAPER = "Stern, Shazeer and Uszkoreit: Blockwise Parallel Decoding for Deep Autoregressive Models, NeurIPS 2018"
FIGURE_4 = (5.3, 4.0)
"""Mean accepted block size and wall-clock speed-up of the paper's fastest setting, k = 6 (section 7.3)."""
SCORED = 100
"""Number of images whose bits/dim are measured, the first; scoring an image takes longer than decoding it."""
EXACT = DecodeConfig()
APPROXIMATE = DecodeConfig(accept="distance", epsilon=2)


@dataclass(frozen=True)
class Series:
    """Measurements of one network with one criterion at increasing block sizes: a column of a table of the paper.

    `checkpoint` is the role of the network, an option of the script. `paper` has the paper's figures by block size k.
    Block sizes above the network's number of prediction heads are omitted.
    """

    checkpoint: str
    decode: DecodeConfig
    paper: dict[int, Any] = field(default_factory=dict)
    block_sizes: tuple[int, ...] = BLOCK_SIZES

    def variants(self, prediction_heads: int) -> dict[int, DecodeConfig]:
        """Return the settings by block size k, greedy decoding (k = 1) first."""
        return {k: dataclasses.replace(self.decode, block_size=k) for k in self.block_sizes if k <= prediction_heads}


SERIES: dict[str, Series] = {
    "regular": Series("regular", EXACT, {1: 1.00, 2: 1.07, 4: 1.08, 6: 1.09, 8: 1.09, 10: 1.10}),
    "approximate": Series("regular", APPROXIMATE, {2: 1.24, 4: 1.36, 6: 1.38, 8: 1.49, 10: 1.40}),
    "fine-tuned": Series("fine-tuned", EXACT, {2: 1.59, 4: 2.11, 6: 2.23, 8: 2.17, 10: 2.04}),
    "both": Series("fine-tuned", APPROXIMATE, {2: 1.96, 4: 3.75, 6: 5.25, 8: 6.36, 10: 6.79}),
    "regular, sequential heads": Series("sequential-regular", EXACT),
    "approximate, sequential heads": Series("sequential-regular", APPROXIMATE),
    "fine-tuned, sequential heads": Series("sequential-fine-tuned", EXACT),
    "both, sequential heads": Series("sequential-fine-tuned", APPROXIMATE),
}
"""The paper's four columns with its heads, and the same with sequential heads that learn from p1.

The paper's figures are mean accepted block sizes (1,000,000 training steps, 250,000 for heads, a network per k)."""

CHECKPOINTS = tuple(dict.fromkeys(series.checkpoint for series in SERIES.values()))
"""Roles of the networks."""
COLOURS = {name: f"C{number}" for number, name in enumerate(SERIES)}
COMMON = ("images_seen", "start_digest", "data_digest")
"""Entries of a training record in which the networks may not differ; nor may they in settings other than VARIED."""
VARIED = ("freeze_base", "head_loss", "head_target")
"""Settings of training in which the networks may differ."""


def check_ladder(records: dict[str, list[dict[str, Any]]]) -> None:
    """Check that networks differ only in their heads' kind and loss, and in whether the base was frozen.

    Their base must never have been trained together with heads, or it would know how to serve them, frozen or not.

    `records` has the rows of the networks' training, from `superres.checkpoint.read_training`, by role.

    Raises:
        ConfigError: they were not trained from one base in the same way.
    """
    remedy = "with scripts/train/recipes/table2.json"
    one, first = next(iter(records.items()))
    for role, rows in records.items():
        require(bool(rows), f"the checkpoint for --{role} has no training.jsonl; train it {remedy}")
        with_heads = [row["stage"] for row in rows[:-1] if row["stage"] != "base"]
        require(not with_heads, f"the base of --{role} was trained with heads before (stage "
                                f"{', '.join(with_heads)}); train it from random weights {remedy}")
        require(rows[:-1] == first[:-1], f"--{role} and --{one} do not start from the same base; train them {remedy}")
        here, there = ({name: row.get(name) for name in COMMON} | row["settings"] for row in (rows[-1], first[-1]))
        different = [f"{name} {here[name]!r}, not {there.get(name)!r}" for name in here
                     if name not in VARIED and here[name] != there.get(name)]
        require(not different, f"--{role} was trained otherwise than --{one} ({', '.join(different)}); train them "
                               f"{remedy}")


def measure(series: Series, pairs: FacePairs, upscaler: Upscaler, batch_size: int) -> list[dict[str, Any]]:
    """Decode with all block sizes of `series` in alternation, and return one cell per block size, serialisable as JSON.

    Speed-up and agreement are relative to greedy decoding with the same network in the same run. bits/dim is under the
    p1 of this network.
    """
    variants = series.variants(upscaler.model_config.prediction_heads)
    decoded = decode_interleaved(pairs.lr, upscaler, {str(k): variant for k, variant in variants.items()}, batch_size)
    scored = dict[bytes, float]()  # exact acceptance makes the same images with every block size

    def bits(images: Pixels) -> float:
        first = images[:SCORED]
        key = first.tobytes()
        if key not in scored:
            scored[key] = mean_bits_per_dim(pairs.lr[:SCORED], first, upscaler, batch_size)
        return scored[key]

    greedy = decoded["1"]
    return [{
        "block_size": k, "config": variants[k].to_dict(), **result.statistics(),
        "speed_up": greedy.seconds_per_image / max(result.seconds_per_image, 1e-9),
        **picture_scores(result.images, pairs), **agreement(result.images, greedy.images, pairs.hr),
        "bits_per_dim_truth": bits(pairs.hr), "bits_per_dim_decoded": bits(result.images),
        "survival": survival_curve(result.traces, k), "paper_mean_accepted_block_size": series.paper.get(k),
    } for k, result in zip(variants, decoded.values(), strict=True)]


class Table:
    """Measurements of several series in `<name>.json`, the source of tables and plots.

    Each series is written after its measurement. It is not measured again with the same revision of its checkpoint and
    the same settings, so series can be added one by one.
    """

    name: ClassVar[str]

    def __init__(self, folder: Path, run: dict[str, Any], names: Sequence[str]) -> None:
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
        self.document: dict[str, Any] = {"paper": PAPER, "run": run, "series": {}}
        prepare_folder(folder)
        if self.path.exists():
            try:
                document = json.loads(self.path.read_text())
                before = dict(document["run"])
                series = {name: document["series"][name] for name in names if name in document["series"]}
            except (OSError, ValueError, TypeError, KeyError) as error:
                message = f"{self.path} cannot be read ({error!r}); remove it or choose another --output"
                raise ConfigError(message) from error
            changed = [f"{name} {before.get(name)}, not {run[name]}" for name in run if before.get(name) != run[name]]
            require(not changed, f"{self.path} was measured with {', '.join(changed)}; choose another --output")
            self.document["series"] = series

    def measure(
        self, name: str, pipeline: Pipeline, variants: Mapping[int, DecodeConfig | BeamConfig],
        cells: Callable[[], list[dict[str, Any]]],
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
        entry = {"checkpoint": pipeline.name, "revision": pipeline.revision, "cells": cells()}
        measured = {**self.document["series"], name: entry}
        self.document["series"] = {n: measured[n] for n in self.names if n in measured}
        write_results(self.folder, {self.path.name: self.document})

    def views(self) -> dict[str, str | bytes]:
        """Return the tables and plots, by file name."""
        raise NotImplementedError

    def write_views(self) -> list[Path]:
        """Write the tables and plots, and return their paths; raise OutputError if a file cannot be written."""
        return write_results(self.folder, self.views())


class Table2(Table):
    """Measurements of faces."""

    name = "table2"

    def __init__(self, folder: Path, pairs: FacePairs, batch_size: int, device: str) -> None:
        """See `Table`."""
        self.pairs, self.batch_size = pairs, batch_size
        digest = short_digest(pairs.hr.tobytes() + pairs.lr.tobytes())
        run = {"data": digest, "images": len(pairs), "batch_size": batch_size, "device": device}
        super().__init__(folder, run, list(SERIES))

    def add(self, name: str, upscaler: Upscaler) -> None:
        """Measure the series `name` with its network; see `Table.measure`."""
        self.measure(name, upscaler, SERIES[name].variants(upscaler.model_config.prediction_heads),
                     lambda: measure(SERIES[name], self.pairs, upscaler, self.batch_size))

    def views(self) -> dict[str, str | bytes]:
        """See `Table.views`."""
        return {"table2.md": table2_markdown(self.document),
                **{name: _png(draw, self.document["series"]) for name, draw in PLOTS.items()}}


COLUMNS = {
    "mean accepted block size": ("mean_accepted_block_size", 2), "model calls": ("model_calls_per_image", 1),
    "s/image": ("seconds_per_image", 3), "speed-up": ("speed_up", 2), "PSNR, dB": ("psnr", 2), "SSIM": ("ssim", 3),
    "consistency": ("consistency_rmse", 2), "LR-PSNR, dB": ("lr_psnr", 2), "PSNR to greedy, dB": ("psnr_to_greedy", 2),
    "equal tokens": ("equal_tokens", 4), "bits/dim, truth": ("bits_per_dim_truth", 3),
    "bits/dim, decoded": ("bits_per_dim_decoded", 3),
}
"""Entry of a cell and number of decimals, by heading of the detailed table."""


def table2_markdown(document: dict[str, Any]) -> str:
    """Return Table 2 as Markdown, with the paper's figures below ours, and a table of all scores."""
    series, run = document["series"], document["run"]
    accepted: list[list[str]] = []
    details: list[list[str]] = []
    for name, entry in series.items():
        cells = {cell["block_size"]: cell for cell in entry["cells"]}
        means = {k: cell["mean_accepted_block_size"] for k, cell in cells.items()}
        accepted.append([f"**{name}**", *(number_text(means.get(k), 2) for k in BLOCK_SIZES)])
        if SERIES[name].paper:
            accepted.append([f"{name}, paper", *(number_text(SERIES[name].paper.get(k), 2) for k in BLOCK_SIZES)])
        for k, cell in cells.items():
            details.append([name, str(k), *(number_text(cell[key], digits) for key, digits in COLUMNS.values())])
    networks = {SERIES[name].checkpoint: f"{entry['checkpoint']}@{entry['revision']}" for name, entry in series.items()}
    missing = [f"{name} (needs --{SERIES[name].checkpoint})" for name in SERIES if name not in series]
    parts = [
        "# Table 2: mean accepted block size",
        f"{run['images']} images (data {run['data']}), batches of {run['batch_size']}, {run['device']}. "
        f"Networks: {', '.join(f'{role} {network}' for role, network in networks.items())}.",
        *([f"Missing: {', '.join(missing)}."] if missing else []),
        markdown_table(["k", *map(str, BLOCK_SIZES)], accepted),
        f"The paper's figures: {document['paper']}, Table 2; CelebA development set, one network per k. "
        "Our figures: one base; from it, each network was trained for as many steps on the same data, and serves all "
        "k with its first k prediction heads. The paper's heads, one dense layer, learn the true tokens, one random "
        "head of p1..pk per minibatch (p2..pk on the frozen base). Sequential heads learn the distributions of p1, all "
        "at once, beside p1's own loss. The networks differ in nothing else.",
        "## Quality and cost",
        markdown_table(["series", "k", *COLUMNS], details),
        "PSNR and SSIM compare with the true image. Consistency is the RMSE to the input after reduction, in grey "
        "levels. Greedy decoding, for PSNR and speed-up, is the same network at k = 1 in the same run. bits/dim is "
        f"under the p1 of this network, on the first {min(SCORED, run['images'])} images.",
    ]
    return "\n\n".join(parts) + "\n"


def _draw_survival(figure: Figure, series: dict[str, Any]) -> None:
    axes = figure.subplots()
    for name, entry in series.items():
        cell = entry["cells"][-1]
        places = range(1, cell["block_size"] + 1)
        axes.plot(places, cell["survival"], marker="o", label=f"{name}, k = {cell['block_size']}", color=COLOURS[name])
    axes.set(xlabel="i", ylabel="share of iterations that accept at least i tokens", ylim=(0, 1.05))
    axes.grid(alpha=0.3)
    axes.legend()


def _draw_quality(figure: Figure, series: dict[str, Any]) -> None:
    panels = {"psnr": "PSNR to the truth, dB", "ssim": "SSIM", "psnr_to_greedy": "PSNR to its own greedy output, dB",
              "bits_per_dim_decoded": "bits/dim of the decoded image"}
    grid = figure.subplots(2, 2)
    for axes, (key, title) in zip(grid.flat, panels.items(), strict=True):
        _draw_cells(axes, series, key, title)
    figure.legend(*grid.flat[0].get_legend_handles_labels(), loc="outside upper center", ncols=4)


def _draw_wall_clock(figure: Figure, series: dict[str, Any]) -> None:
    axes = figure.subplots()
    _draw_cells(axes, series, "speed_up", "wall-clock speed-up over greedy")
    axes.plot(*FIGURE_4, marker="*", markersize=12, color="black", linestyle="none", label="paper, both, k = 6")
    axes.axline((1, 1), slope=1, color="grey", linewidth=1, linestyle=":")
    axes.legend()


def _draw_cells(axes: Axes, series: dict[str, Any], key: str, title: str) -> None:
    """Plot the entry `key` of all cells against mean accepted block size; cells without a value are omitted."""
    for name, entry in series.items():
        known = [cell for cell in entry["cells"] if cell[key] is not None]
        x, y = ([cell[column] for cell in known] for column in ("mean_accepted_block_size", key))
        axes.plot(x, y, marker="o", label=name, color=COLOURS[name])
    axes.set(xlabel="mean accepted block size", ylabel=title)
    axes.grid(alpha=0.3)


PLOTS: dict[str, Callable[[Figure, dict[str, Any]], None]] = {
    "survival.png": _draw_survival, "quality.png": _draw_quality, "wall_clock.png": _draw_wall_clock,
}
"""Functions that draw the plots, by file name; `wall_clock.png` is Figure 4 of the paper."""


def _png(draw: Callable[[Figure, dict[str, Any]], None], series: dict[str, Any]) -> bytes:
    from matplotlib.figure import Figure  # an optional dependency, slow to import

    figure = Figure(figsize=(9, 6), layout="constrained")
    draw(figure, series)
    return figure_png(figure)
