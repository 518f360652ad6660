"""Predict where blocks pay: the speed-up over greedy decoding by engine, size of the network, batch size and criterion.

    python scripts/benchmark/where_it_pays.py --output pays
    python scripts/benchmark/where_it_pays.py --output pays --data dev.npz --device cuda
    python scripts/benchmark/where_it_pays.py --output pays --data dev.npz --page docs/where-blocks-pay.md

FOLDER/pays.json holds the measurements and predictions, pays.md the tables and pays.png the chart. The prediction is
checked by whole decodes with the checkpoint. Without --data, the faces in `scripts/faces` are decoded. The script needs
matplotlib: pip install -e ".[train]".

An iteration on B rows of W proposals takes T(B, W) seconds, the heads' proposals included. It yields S_1 + ... + S_W
tokens per row, where S_i is the share of blocks of which at least i tokens are accepted. The expected speed-up is
(S_1 + ... + S_W) * T(B, 1) / T(B, W). T depends on the machine and the network's size but not on the weights, so random
weights serve. S depends on the checkpoint, the criterion and the pictures, but not on the machine.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from PIL import Image

from pages import fill_page
from superres.cli.benchmark import parse_batches
from superres.config import DEFAULT_CHECKPOINT, DecodeConfig, ModelConfig
from superres.decoding.cost import measured_costs
from superres.decoding.trace import survival_curve
from superres.errors import SuperresError
from superres.nn.model import EncoderDecoder
from superres.pipeline.auto import face_task
from superres.pipeline.base import pick_device
from superres.pipeline.engines import step_model
from superres.pipeline.upscaler import Upscaler
from superres.system.machine import Timer, machine, require_idle
from superres.system.output import figure_png, markdown_table, number_text, prepare_folder, write_result, write_results
from superres.system.training_lock import training_paused
from superres.tasks.face_data import read_faces
from superres.tasks.faces import FaceTask
from superres.tasks.pictures import read_image

ENGINES = {"cpu": "plain,native,native-bf16,native-int8", "cuda": "plain,graph,graph-bf16"}
PAGE = "measured"
"""Name of the tables in a Markdown page."""
LAYERS = {128: 4, 256: 6, 512: 8, 1024: 12}
"""Decoder layers of a network by its width."""
CRITERIA = {"exact": DecodeConfig(), "epsilon 2": DecodeConfig(accept="distance", epsilon=2)}
CHECKED_ROWS = 8
"""Number of images that are decoded whole in batches, to check the prediction; larger batches take minutes on a CPU."""
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Colours of Okabe and Ito, which colour-blind people can tell apart."""
MARKERS = "osD^vP"

Row = dict[str, Any]


def speed_ups(survival: Iterable[float], costs: Sequence[float]) -> list[float]:
    """Return the expected speed-up over greedy decoding at W = 1, 2 and so on, from S_1, S_2, ... and T(B, W)."""
    return [tokens * costs[0] / cost for tokens, cost in zip(accumulate(survival), costs, strict=False)]


def best_block(survival: Iterable[float], costs: Sequence[float]) -> tuple[int, float]:
    """Return the W with the largest expected speed-up, and this speed-up; the smallest of equals, 1 if greedy wins."""
    expected = speed_ups(survival, costs)
    return expected.index(max(expected)) + 1, max(expected)


def network_of(config: ModelConfig, width: int) -> ModelConfig:
    """Return the settings of a network of another width, with layers in proportion.

    The encoder has no layers, because no iteration reads it.
    """
    layers = next(count for size, count in sorted(LAYERS.items(), reverse=True) if width >= size or size == min(LAYERS))
    return dataclasses.replace(
        config, width=width, filter_size=4 * width, head_filter_size=2 * width, attention_heads=max(width // 32, 1),
        decoder_layers=layers, encoder_layers=0)


def iteration_costs(
    upscaler: Upscaler, sources: np.ndarray, engines: Sequence[str], widths: Sequence[int], batches: Sequence[int],
    report: Callable[[str], None],
) -> list[Row]:
    """Measure T(B, W) of every engine, network and batch size; `upscaler` is measured itself at its own width.

    `sources` are uint8 [N, source, source, 3]. `report` is called with the name of the next measurement.

    Returns:
        One row per engine, network and batch size; `costs` are the seconds per iteration at W = 1, 2 and so on.
    """
    own = upscaler.model_config
    rows = []
    for width in sorted({*widths, own.width}):
        config = own if width == own.width else network_of(own, width)
        torch.manual_seed(0)
        model = upscaler.model if config is own else EncoderDecoder(config).to(upscaler.device).eval()
        for engine in engines:
            scoring = step_model(model, None, engine)
            for batch in batches:
                report(f"{engine}, width {width}, batch {batch}")
                source = upscaler.source_tokens(sources[np.arange(batch) % len(sources)])
                costs, _ = measured_costs(scoring, source, DecodeConfig(), own.prediction_heads)
                rows.append({
                    "engine": scoring.engine, "network_width": width, "layers": config.decoder_layers, "batch": batch,
                    "weights": sum(weight.numel() for weight in model.decoder.parameters()), "costs": costs})
    return rows


def predictions(costs: Sequence[Row], survival: dict[str, list[float]]) -> list[Row]:
    """Return the rows of `iteration_costs`, one per criterion, with the best W and its expected speed-up."""
    return [{**row, "criterion": criterion, **dict(zip(
        ("block_size", "speed_up"), best_block(shares, row["costs"]), strict=True))}
        for row in costs for criterion, shares in survival.items()]


def whole_decodes(
    upscaler: Upscaler, sources: np.ndarray, predicted: Sequence[Row], survival: dict[str, list[float]],
    report: Callable[[str], None],
) -> list[Row]:
    """Decode `CHECKED_ROWS` images by the engine of `upscaler`, and return predicted beside measured speed-ups.

    Returns:
        One row per batch size, criterion and W: the best W, and the number of prediction heads. `decoder` is the
        measured speed-up without the encoder, and `whole` includes the encoder.
    """
    heads, rows = upscaler.model_config.prediction_heads, list[Row]()

    @functools.cache
    def seconds(batch: int, options: DecodeConfig) -> float:
        batches = np.arange(CHECKED_ROWS // batch * batch).reshape(-1, batch) % len(sources)
        upscaler(sources[batches[0]], options)  # warms up
        return statistics.mean(upscaler(sources[chosen], options).seconds for chosen in batches)

    for cell in predicted:
        if (cell["engine"], cell["network_width"]) != (upscaler.engine, upscaler.model_config.width) or (
                cell["batch"] > CHECKED_ROWS):
            continue
        criterion, batch = cell["criterion"], cell["batch"]
        report(f"{upscaler.engine}, whole pictures, batch {batch}, {criterion}")
        greedy, encoder = seconds(batch, DecodeConfig(1)), _encoder_seconds(upscaler, sources[np.zeros(batch, int)])
        expected = speed_ups(survival[criterion], cell["costs"])
        for size in sorted({1, cell["block_size"], heads}):
            taken = greedy if size == 1 else seconds(
                batch, dataclasses.replace(CRITERIA[criterion], block_size=size))
            rows.append({"engine": upscaler.engine, "batch": batch, "criterion": criterion, "block_size": size,
                         "predicted": expected[size - 1], "decoder": (greedy - encoder) / (taken - encoder),
                         "whole": greedy / taken, "seconds_per_image": taken / batch,
                         "is_best": size == cell["block_size"]})
    return rows


def _encoder_seconds(upscaler: Upscaler, images: np.ndarray) -> float:
    """Return the least time to encode a batch and to open its session, in seconds."""
    timer, tokens = Timer(upscaler.device), upscaler.source_tokens(images)
    with torch.inference_mode():
        return min(timer.once(lambda: upscaler.scoring.session(tokens, 1)) for _ in range(5))


def run_study(
    checkpoint: str, sources: np.ndarray, device: str, engines: Sequence[str], widths: Sequence[int],
    batches: Sequence[int], report: Callable[[str], None],
) -> Row:
    """Measure T and S, predict the speed-ups, and check the prediction by whole decodes with the checkpoint."""
    report("survival curves")
    upscaler = Upscaler.load(checkpoint, device)
    heads = upscaler.model_config.prediction_heads
    survival = {name: survival_curve(upscaler(sources, options).traces, heads) for name, options in CRITERIA.items()}
    rows = predictions(iteration_costs(upscaler, sources, engines, widths, batches, report), survival)
    checked = [row for engine in engines
               for row in whole_decodes(Upscaler.load(checkpoint, device, engine), sources, rows, survival, report)]
    return {"machine": machine(upscaler.device), "checkpoint": f"{upscaler.name}@{upscaler.revision}",
            "width": upscaler.model_config.width, "images": len(sources), "survival": survival, "predictions": rows,
            "checked": checked}


def pays_markdown(report: Row) -> str:
    """Return the report of `run_study` as Markdown."""
    rows = report["predictions"]
    networks = {row["network_width"]: row for row in rows}
    header = [f"width {width}, {row['layers']} layers, {row['weights'] / 1e6:.1f} M" for width, row in networks.items()]
    lines: dict[tuple[str, int, str], list[str]] = {}
    for row in sorted(rows, key=lambda row: (list(report["survival"]).index(row["criterion"]), row["batch"])):
        lines.setdefault((row["criterion"], row["batch"], row["engine"]), []).append(
            "greedy" if row["block_size"] == 1 else f"{row['speed_up']:.2f} (W = {row['block_size']})")
    cells = [[criterion, str(batch), engine, *own] for (criterion, batch, engine), own in lines.items()]
    checks = [[row["engine"], str(row["batch"]), row["criterion"],
               f"{row['block_size']}{', best' if row['is_best'] else ''}",
               *(number_text(row[name], 2) for name in ("predicted", "decoder", "whole"))]
              for row in report["checked"] if row["block_size"] > 1]
    curves = [[name, *(number_text(share, 2) for share in shares)] for name, shares in report["survival"].items()]
    properties = ", ".join(f"{name} {value}" for name, value in report["machine"].items() if value is not None)
    return "\n\n".join([
        f"{report['checkpoint']}, {report['images']} faces; {properties}.",
        "Expected speed-up over greedy decoding, and its block size W:",
        markdown_table(["criterion", "batch", "engine", *header], cells),
        "The prediction beside whole decodes with the checkpoint:",
        markdown_table(["engine", "batch", "criterion", "W", "predicted", "measured", "with the encoder"], checks),
        "Share of blocks of which at least i tokens are accepted:",
        markdown_table(["i", *map(str, range(1, len(curves[0])))], curves),
    ]) + "\n"


def pays_plot(report: Row) -> bytes:
    """Return a PNG of the expected speed-up by width, with a panel per criterion and batch size, a line per engine."""
    from matplotlib.figure import Figure

    rows = report["predictions"]
    batches, engines, widths = (list(dict.fromkeys(row[name] for row in rows))
                                for name in ("batch", "engine", "network_width"))
    criteria = list(report["survival"])
    figure = Figure(figsize=(3.6 * len(batches) + 1, 3.1 * len(criteria) + 1.2), layout="constrained")
    panels = figure.subplots(len(criteria), len(batches), squeeze=False, sharex=True, sharey=True)
    for line, criterion in zip(panels, criteria, strict=True):
        for axes, batch in zip(line, batches, strict=True):
            axes.axhline(1, color="black", linewidth=1)
            for engine, colour, marker in zip(engines, COLOURS, MARKERS, strict=False):
                own = [row for row in rows if (row["criterion"], row["batch"], row["engine"]) == (
                    criterion, batch, engine)]
                axes.plot([row["network_width"] for row in own], [row["speed_up"] for row in own], color=colour,
                          marker=marker, markersize=5, label=f"{engine}, predicted")
                measured = [row["decoder"] for row in report["checked"] if row["is_best"] and (
                    row["criterion"], row["batch"], row["engine"]) == (criterion, batch, engine)]
                axes.plot([report["width"]] * len(measured), measured, linestyle="", color=colour, marker=marker,
                          markersize=10, markerfacecolor="none", markeredgewidth=1.5, zorder=3)
            axes.set_xscale("log", base=2)
            axes.set_xticks(widths, [str(width) for width in widths])
            axes.grid(axis="y", color="0.9")
            axes.set_title(f"{criterion}, batch {batch}", fontsize=10)
        line[0].set_ylabel("speed-up over greedy (times)")
    for axes in panels[-1]:
        axes.set_xlabel("width of the network (units)")
    panels[0][0].set_ylim(0, None)
    handles, labels = panels[0][0].get_legend_handles_labels()
    handles += panels[0][0].plot([], [], linestyle="", marker="o", markersize=10, markerfacecolor="none", color="black")
    figure.legend(handles, [*labels, "whole decodes, measured"], loc="outside lower center", ncols=len(handles),
                  fontsize=9, frameon=False)
    figure.suptitle("Blocks pay where a line is above 1; at 1, greedy decoding is at least as fast", fontsize=12)
    return figure_png(figure)


def read_sources(data: Path | None, limit: int, task: FaceTask) -> np.ndarray:
    """Return inputs, uint8 [N, source, source, 3]: those of `data`, or the faces in `scripts/faces`."""
    if data is not None:
        return read_faces(data, task, "valid", limit).lr
    return np.stack([task.to_source(read_image(path))
                     for path in sorted((Path(__file__).parents[1] / "faces").glob("*.png"))])


@training_paused()
def main(
    output: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for pays.json, pays.md and pays.png.")],
    data: Annotated[Path | None, typer.Option(help="Prepared .npz, folder of images or CelebA root.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Images of --data to decode.")] = 8,
    checkpoint: Annotated[str, typer.Option(help="Checkpoint name, folder or hub id.")] = DEFAULT_CHECKPOINT,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    engines: Annotated[str | None, typer.Option(metavar="NAME,NAME...", help="Engines; all of the device if left "
                                                "out.")] = None,
    widths: Annotated[str, typer.Option(metavar="D,D,...", help="Widths of the networks, multiples of 32.")] = ",".join(
        map(str, LAYERS)),
    batches: Annotated[str, typer.Option(metavar="B,B,...", help="Batch sizes.")] = "1,8,32",
    busy: Annotated[bool, typer.Option("--busy", help="Measure even if other processes use the processor.")] = False,
    page: Annotated[Path | None, typer.Option(help="Markdown page whose tables and picture to replace.")] = None,
) -> None:
    """Measure, predict, check, and write the tables and the chart."""
    if not busy:
        require_idle()
    prepare_folder(output)
    chosen = (engines or ENGINES[pick_device(device).type]).split(",")
    started = time.perf_counter()

    def say(line: str) -> None:
        print(f"{time.perf_counter() - started:4.0f} s  {line}", file=sys.stderr)

    sizes, rows = parse_batches(widths), parse_batches(batches)
    report = run_study(checkpoint, read_sources(data, limit, face_task(checkpoint)), device, chosen, sizes, rows, say)
    tables = pays_markdown(report)
    chart = pays_plot(report)
    write_results(output, {"pays.json": report, "pays.md": tables, "pays.png": chart})
    if page is not None:
        fill_page(page, PAGE, tables)
        picture = io.BytesIO()
        Image.open(io.BytesIO(chart)).convert("RGB").save(picture, "WEBP", lossless=True)
        write_result(page.parent / "pictures" / "where-blocks-pay.webp", picture.getvalue(), "--page")
    print(tables)


if __name__ == "__main__":
    try:
        typer.run(main)
    except SuperresError as error:
        sys.exit(f"where_it_pays: {error}")
