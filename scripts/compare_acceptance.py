"""Compare settings of acceptance on the same images: loss of quality and gain in block size.

The grid is `superres.evaluation.comparison.ACCEPTANCE`: exact acceptance (epsilon 0); a constant epsilon of 1, 2, 3, 4,
6 and 8; decreasing and increasing epsilons over the offset; an epsilon per colour; drift budgets. The block size is the
number of prediction heads.

    python scripts/compare_acceptance.py --data dev.npz --limit 100 --output acceptance/

FOLDER/acceptance.json holds the scores, acceptance.md the table, in which "PSNR" and "bits" mark Pareto-optimal
settings, and acceptance.png the plots. The script needs matplotlib: pip install -e ".[train]".
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from matplotlib.figure import Figure

from superres import DecodeConfig, SuperresError, load
from superres.evaluation.comparison import (
    ACCEPTANCE,
    GREEDY,
    as_rows,
    compare,
    comparison_table,
    label,
    pareto_front,
    psnr_to_greedy,
)
from superres.pipeline.options import resolve_options
from superres.system.idle import training_paused
from superres.system.output import figure_png, prepare_folder, write_results
from superres.tasks.face_data import read_faces

Points = dict[DecodeConfig, tuple[float, float]]


def draw(panels: dict[str, Points]) -> bytes:
    """Return a PNG with one panel per measure of quality and one point per setting; labels mark the Pareto front."""
    figure = Figure(figsize=(8 * len(panels), 6), layout="constrained")
    for axis, (title, points) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
        front = sorted(pareto_front(points), key=lambda options: points[options])
        axis.plot(*zip(*(points[options] for options in front), strict=True), color="grey", linewidth=0.8)
        for name in dict.fromkeys(options.accept for options in points):
            axis.scatter(*zip(*(point for options, point in points.items() if options.accept == name), strict=True),
                         label=name, s=25)
        for options in front:
            axis.annotate(label(options), points[options], (4, 4), textcoords="offset points", fontsize=7)
        axis.set(xlabel="mean accepted block size", ylabel=title)
        axis.legend()
    return figure_png(figure)


@training_paused()
def main(
    data: Annotated[Path, typer.Option(help="Prepared .npz, folder of images or CelebA root.")],
    output: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for the results.")],
    checkpoint: Annotated[str, typer.Option(help="Checkpoint name, folder or hub id.")] = "celeba-8to32",
    limit: Annotated[int, typer.Option(help="Images to decode.")] = 100,
    batch_size: Annotated[int, typer.Option(min=1, help="Images per batch.")] = 16,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Decode greedily and with all settings of the grid; write the scores, a table and a plot."""
    prepare_folder(output)
    upscaler = load(checkpoint, device)
    pairs = read_faces(data, upscaler.face_task, "valid", limit)
    settings = [resolve_options(options, upscaler) for options in ACCEPTANCE]
    rows = compare(pairs, upscaler, settings, batch_size)
    sizes = {options: scores["mean_accepted_block_size"] or 0.0 for options, scores in rows.items()}
    by_psnr = {options: (sizes[options], psnr_to_greedy(scores)) for options, scores in rows.items()}
    by_bits = {options: (sizes[options], -(scores["bits_per_dim"] or 0.0)) for options, scores in rows.items()}
    fronts = {"PSNR": pareto_front(by_psnr), "bits": pareto_front(by_bits)}
    marks = {options: ", ".join(name for name, front in fronts.items() if options in front) for options in rows}

    finite = {options: point for options, point in by_psnr.items() if rows[options]["psnr_to_greedy"] is not None}
    panels = {"PSNR to greedy, dB (exact is infinite)": finite,
              "- bits/dim of the decoded images under p1": {o: p for o, p in by_bits.items() if o != GREEDY}}
    report = {"checkpoint": f"{upscaler.name}@{upscaler.revision}", "device": str(upscaler.device),
              "images": len(pairs), "batch_size": batch_size,
              "settings": [{**row, "pareto": mark} for row, mark in zip(as_rows(rows), marks.values(), strict=True)]}
    table = comparison_table(rows, marks)
    write_results(output, {"acceptance.json": report, "acceptance.md": f"{table}\n", "acceptance.png": draw(panels)})
    print(table)


if __name__ == "__main__":
    try:
        typer.run(main)
    except SuperresError as error:
        sys.exit(f"compare_acceptance: {error}")
