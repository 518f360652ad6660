"""Predict where blocks pay: the speed-up over greedy decoding by engine, size of the network, batch
size and criterion.

    python scripts/benchmark/where_it_pays.py --output pays
    python scripts/benchmark/where_it_pays.py --output pays --data dev.npz --device cuda
    python scripts/benchmark/where_it_pays.py --output pays --data dev.npz --page
    docs/where-blocks-pay.md

The prediction is checked by whole decodes with the checkpoint. Without --data, it decodes
`scripts/faces`.

An iteration on B rows of W proposals takes T(B, W) seconds, the heads' proposals included. It
yields S_1 + ... + S_W tokens per row, where S_i is the share of blocks of which at least i tokens
are accepted. The expected speed-up is (S_1 + ... + S_W) * T(B, 1) / T(B, W). T depends on the
machine and the network's size but not on the weights, so random weights serve. S depends on the
checkpoint, the criterion and the pictures, but not on the machine.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer

sys.path.append(str(Path(__file__).resolve().parents[1]))

from measurements import (
    ROOT,
    Busy,
    Checkpoint,
    Columns,
    Device,
    Document,
    Line,
    Output,
    Page,
    Panel,
    Row,
    Table,
    Values,
    columns_table,
    draw,
    run,
    values,
)
from superres.cli.benchmark import parse_batches
from superres.config import DEFAULT_CHECKPOINT, DecodeConfig, ModelConfig
from superres.decoding.cost import measured_costs
from superres.decoding.trace import survival_curve
from superres.nn.model import EncoderDecoder
from superres.pipeline.auto import face_task
from superres.pipeline.choose import pick_device, step_model
from superres.pipeline.upscaler import Upscaler
from superres.system.machine import Timer, require_idle
from superres.system.output import markdown_table
from superres.tasks.face_data import read_faces
from superres.tasks.faces import FaceTask
from superres.tasks.pictures import read_image

ENGINES = {"cpu": "plain,native,native-int8", "cuda": "plain,triton,triton-bf16"}
LAYERS = {128: 4, 256: 6, 512: 8, 1024: 12}
"""Decoder layers of a network by its width."""
CRITERIA = {"exact": DecodeConfig(), "epsilon 2": DecodeConfig(accept="distance", epsilon=2)}
CHECKED_ROWS = 8
"""Number of images that are decoded whole in batches, to check the prediction; larger batches take
minutes on a CPU."""
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Colours of Okabe and Ito, which colour-blind people can tell apart."""


def speed_ups(survival: Iterable[float], costs: Sequence[float]) -> list[float]:
    """Return the expected speed-up over greedy decoding at W = 1, 2 and so on, from S_1, S_2, ...
    and T(B, W)."""
    return [tokens * costs[0] / cost for tokens,
            cost in zip(accumulate(survival), costs, strict=False)]


def best_block(survival: Iterable[float], costs: Sequence[float]) -> tuple[int, float]:
    """Return the W with the largest expected speed-up, and this speed-up; the smallest of equals, 1
    if greedy wins."""
    expected = speed_ups(survival, costs)
    return expected.index(max(expected)) + 1, max(expected)


def network_of(config: ModelConfig, width: int) -> ModelConfig:
    """Return the settings of a network of another width, with layers in proportion.

    The encoder has no layers, because no iteration reads it.
    """
    layers = next(count for size, count in sorted(LAYERS.items(), reverse=True) if width >= size
                  or size == min(LAYERS))
    return dataclasses.replace(
        config, width=width, filter_size=4 * width, head_filter_size=2 * width,
        attention_heads=max(width // 32, 1), decoder_layers=layers, encoder_layers=0)


def cost_rows(
    upscaler: Upscaler, sources: np.ndarray, engines: Sequence[str], widths: Sequence[int],
    batches: Sequence[int],
) -> Iterator[Row]:
    """Return a row per engine, network and batch size: T(B, W) at W = 1, 2 and so on, in seconds.

    `upscaler` is measured itself at its own width. `sources` are uint8 [N, source, source, 3].
    """
    own = upscaler.model_config
    for width in sorted({*widths, own.width}):
        config = own if width == own.width else network_of(own, width)
        torch.manual_seed(0)
        model = upscaler.model if config is own else EncoderDecoder(config).to(
            upscaler.device).eval()
        for engine in engines:
            scoring = step_model(model, None, engine)
            for batch in batches:
                source = upscaler.source_tokens(sources[np.arange(batch) % len(sources)])

                def costs(scoring: object = scoring, source: torch.Tensor = source,
                          batch: int = batch, config: ModelConfig = config,
                          model: EncoderDecoder = model) -> Values:
                    return {"engine": scoring.engine, "network_width": config.width,
                            "layers": config.decoder_layers, "batch": batch,
                            "weights": sum(one.numel() for one in model.decoder.parameters()),
                            "costs": measured_costs(scoring, source, DecodeConfig(),
                                                    own.prediction_heads)}

                yield Row(f"costs {engine}, width {width}, batch {batch}", costs,
                          {"code": scoring.code})


def predictions(document: Document) -> list[Values]:
    """Return the costs of a document once per criterion, with the best W and its expected
    speed-up."""
    found = []
    for row in values(document, "costs ").values():
        for criterion, shares in values(document)["survival"].items():
            size, gain = best_block(shares, row["costs"])
            found.append({**row, "criterion": criterion, "block_size": size, "speed_up": gain})
    return found


def whole_decodes(upscaler: Upscaler, sources: np.ndarray, document: Document) -> Values:
    """Decode `CHECKED_ROWS` images by the engine of `upscaler`, and return predicted beside
    measured speed-ups.

    Returns:
        `rows`, one per batch size, criterion and W: the best W, and the number of prediction heads.
        `decoder` is the measured speed-up without the encoder, and `whole` includes the encoder.
    """
    heads, rows, survival = (upscaler.model_config.prediction_heads, list[Values](),
                             values(document)["survival"])

    @functools.cache
    def seconds(batch: int, options: DecodeConfig) -> float:
        batches = np.arange(CHECKED_ROWS // batch * batch).reshape(-1, batch) % len(sources)
        upscaler(sources[batches[0]], options)  # warms up
        return statistics.mean(upscaler(sources[chosen], options).seconds for chosen in batches)

    for cell in predictions(document):
        criterion, batch = cell["criterion"], cell["batch"]
        if (cell["engine"], cell["network_width"]) != (upscaler.engine,
                                                       upscaler.model_config.width) or (
                                                           batch > CHECKED_ROWS):
            continue
        greedy, encoder = (seconds(batch, DecodeConfig(1)),
                           _encoder_seconds(upscaler, sources[np.zeros(batch, int)]))
        expected = speed_ups(survival[criterion], cell["costs"])
        for size in sorted({1, cell["block_size"], heads}):
            taken = greedy if size == 1 else seconds(
                batch, dataclasses.replace(CRITERIA[criterion], block_size=size))
            rows.append({"engine": upscaler.engine, "batch": batch, "criterion": criterion,
                         "block_size": size, "predicted": expected[size - 1],
                         "decoder": (greedy - encoder) / (taken - encoder), "whole": greedy / taken,
                         "seconds_per_image": taken / batch, "is_best": size == cell["block_size"]})
    return {"rows": rows}


def _encoder_seconds(upscaler: Upscaler, images: np.ndarray) -> float:
    """Return the least time to encode a batch and to open its session, in seconds."""
    timer, tokens = Timer(upscaler.device), upscaler.source_tokens(images)
    with torch.inference_mode():
        return min(timer.once(lambda: upscaler.scoring.session(tokens, 1)) for _ in range(5))


CHECKED: Columns = {
    "engine": ("engine", 0), "batch": ("batch", 0), "criterion": ("criterion", 0),
    "W": (lambda row: f"{row['block_size']}{', best' if row['is_best'] else ''}", 0),
    "predicted": ("predicted", 2), "measured": ("decoder", 2), "with the encoder": ("whole", 2),
}


def views(document: Document) -> dict[str, str]:
    """Return the expected speed-up with its W, the check by whole decodes, and the survival
    curves."""
    rows, survival = predictions(document), values(document)["survival"]
    networks = {row["network_width"]: row for row in rows}
    header = [f"width {width}, {row['layers']} layers, {row['weights'] / 1e6:.1f} M" for width,
              row in networks.items()]
    lines: dict[tuple[str, int, str], list[str]] = {}
    for row in sorted(rows, key=lambda row: (list(survival).index(row["criterion"]), row["batch"])):
        lines.setdefault((row["criterion"], row["batch"], row["engine"]), []).append(
            "greedy" if row["block_size"] == 1 else f"{row['speed_up']:.2f} (W = "
            f"{row['block_size']})")
    checked = [row for found in values(document, "checked ").values() for row in found["rows"]
               if row["block_size"] > 1]
    shares = [[name, *(f"{share:.2f}" for share in curve)] for name, curve in survival.items()]
    return {"expected": markdown_table(["criterion", "batch", "engine", *header], [
        [criterion, str(batch), engine, *own] for (criterion, batch, engine),
        own in lines.items()]),
            "checked": columns_table(checked, CHECKED),
            "survival": markdown_table(["i", *map(str, range(1, len(shares[0])))], shares)}


def plots(document: Document) -> dict[str, bytes]:
    """Return the expected speed-up by width, with a panel per criterion and batch size, a line per
    engine."""
    rows, panels = predictions(document), list[Panel]()
    batches, engines = (list(dict.fromkeys(row[name] for row in rows)) for name in ("batch",
                                                                                    "engine"))
    for criterion in values(document)["survival"]:
        for batch in batches:
            lines = [Line([(row["network_width"], row["speed_up"]) for row in rows if (
                row["criterion"], row["batch"], row["engine"]) == (criterion, batch, engine)],
                          engine, colour)
                     for engine, colour in zip(engines, COLOURS, strict=False)]
            panels.append(Panel([*lines, Line([(row["network_width"], 1) for row in rows], None,
                                              "black", "-")], {
                                                  "title": f"{criterion}, batch {batch}",
                                                  "xscale": "log", "ylim": (0, None),
                                                  "xlabel": "width of the network (units)",
                                                  "ylabel": "speed-up over greedy (times)"}))
    return {"where-blocks-pay.png": draw(panels, len(batches),
                                         (3.6 * len(batches) + 1, 3.1 * 2 + 1.2))}


def read_sources(data: Path | None, limit: int, task: FaceTask) -> np.ndarray:
    """Return inputs, uint8 [N, source, source, 3]: those of `data`, or the faces in
    `scripts/faces`."""
    if data is not None:
        return read_faces(data, task, "valid", limit).lr
    return np.stack([task.to_source(read_image(path))
                     for path in sorted((ROOT / "scripts" / "faces").glob("*.png"))])


def main(
    output: Output,
    data: Annotated[Path | None, typer.Option(help="Prepared .npz, folder of images or CelebA "
                                              "root.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Images of --data to decode.")] = 8,
    checkpoint: Checkpoint = DEFAULT_CHECKPOINT, device: Device = "auto",
    engines: Annotated[str | None, typer.Option(metavar="NAME,NAME...", help="Engines; all of the "
                                                "device if left out.")] = None,
    widths: Annotated[str, typer.Option(metavar="D,D,...", help="Widths of the networks, multiples "
                                        "of 32.")] = ",".join(
                                            map(str, LAYERS)),
    batches: Annotated[str, typer.Option(metavar="B,B,...", help="Batch sizes.")] = "1,8,32",
    busy: Busy = False, page: Page = None,
) -> None:
    """Measure T and S, predict the speed-ups, and check the prediction by whole decodes with the
    checkpoint."""
    if not busy:
        require_idle()
    names = (engines or ENGINES[pick_device(device).type]).split(",")
    sources = read_sources(data, limit, face_task(checkpoint))
    upscaler = Upscaler.load(checkpoint, device)
    table = Table("where_it_pays", output, {"checkpoint": f"{upscaler.name}@{upscaler.revision}",
                                            "images": len(sources)}, upscaler.device,
                  "where-blocks-pay")
    heads = upscaler.model_config.prediction_heads
    table.measure(
        [Row("survival", lambda: {name: survival_curve(upscaler(sources, options).traces, heads)
                                  for name, options in CRITERIA.items()})])
    table.measure(cost_rows(upscaler, sources, names, parse_batches(widths),
                            parse_batches(batches)))
    table.measure(Row(f"checked {name}", lambda name=name: whole_decodes(
        Upscaler.load(checkpoint, device, name), sources, table.document)) for name in names)
    table.finish(page)


if __name__ == "__main__":
    run(main)
