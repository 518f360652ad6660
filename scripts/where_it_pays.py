"""Predict where blocks pay: the speed-up over greedy decoding by engine, size of the network, batch size and criterion.

    python scripts/where_it_pays.py --output pays
    python scripts/where_it_pays.py --output pays --data dev.npz --device cuda
    python scripts/where_it_pays.py --output pays --data dev.npz --page docs/where-blocks-pay.md  # fills that page

FOLDER/pays.json holds the measurements and predictions, pays.md the tables and pays.png the chart. The prediction is
checked by whole decodes with the checkpoint. Without --data, the faces in `scripts/faces` are decoded. The script needs
matplotlib: pip install -e ".[train]".
"""

from __future__ import annotations

import io
import sys
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from PIL import Image

from superres.cli.benchmark import parse_batches
from superres.config import DEFAULT_CHECKPOINT
from superres.errors import InvalidInputError, SuperresError
from superres.evaluation.where_it_pays import LAYERS, pays_markdown, pays_plot, run_study
from superres.pipeline.auto import face_task
from superres.pipeline.base import pick_device
from superres.system.idle import training_paused
from superres.system.machine import require_idle
from superres.system.output import prepare_folder, write_result, write_results
from superres.tasks.face_data import read_faces
from superres.tasks.faces import FaceTask
from superres.tasks.pictures import read_image

ENGINES = {"cpu": "plain,native,native-bf16,native-int8", "cuda": "plain,graph,graph-bf16"}

MARK = "<!-- measured -->"
"""Mark of a Markdown page; the tables replace the text below it."""


def read_sources(data: Path | None, limit: int, task: FaceTask) -> np.ndarray:
    """Return inputs, uint8 [N, source, source, 3]: those of `data`, or the faces in `scripts/faces`."""
    if data is not None:
        return read_faces(data, task, "valid", limit).lr
    return np.stack([task.to_source(read_image(path), "lowres")
                     for path in sorted((Path(__file__).parent / "faces").glob("*.png"))])


def fill_page(page: Path, tables: str, chart: bytes) -> None:
    """Replace the tables of a Markdown page, and its picture pictures/where-blocks-pay.webp.

    Raises:
        InvalidInputError: the page lacks the mark of the tables.
    """
    text, mark, _ = page.read_text().partition(MARK)
    if not mark:
        raise InvalidInputError(f"{page} has no line {MARK}; add it above the tables")
    picture = io.BytesIO()
    Image.open(io.BytesIO(chart)).convert("RGB").save(picture, "WEBP", lossless=True)
    write_result(page, f"{text}{mark}\n\n{tables}".encode(), "--page")
    write_result(page.parent / "pictures" / "where-blocks-pay.webp", picture.getvalue(), "--page")


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
    page: Annotated[Path | None, typer.Option(help=f"Markdown page whose tables below {MARK} to replace.")] = None,
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
        fill_page(page, tables, chart)
    print(tables)


if __name__ == "__main__":
    try:
        typer.run(main)
    except SuperresError as error:
        sys.exit(f"where_it_pays: {error}")
