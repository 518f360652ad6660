"""Reproduce the tables of the paper, with the paper's figures beside ours.

Finished measurements are not repeated, so checkpoints can be added one by one.

    python scripts/reproduce/tables.py table2 --data dev.npz --output tables --ladder runs/table2
    python scripts/reproduce/tables.py table1 --data val --test test --output tables --both runs/both/checkpoint
    python scripts/reproduce/tables.py table3 STUDY --store survey.db --output tables
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from superres import SuperresError, load
from superres.checkpoint import find_checkpoint, read_training
from superres.config import require
from superres.pipeline.translator import Translator
from superres.system.output import write_results
from superres.system.training_lock import training_paused
from superres.tasks.face_data import read_faces
from superres.tasks.translation import read_pairs
from table1 import SERIES as TEXT_SERIES
from table1 import Table1
from table2 import SERIES, Table2, check_ladder
from table3 import write_table3

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.callback()
def reproduce_tables() -> None:
    """Reproduce the tables of the paper, with the paper's figures beside ours."""


@app.command()
@training_paused()
def table1(
    data: Annotated[Path, typer.Option(help="Development text: PATH.en and PATH.de, or a test set of sacreBLEU.")],
    output: Annotated[Path, typer.Option(help="Folder for table1.json, the tables and the plot; a run is resumed.")],
    test: Annotated[Path | None, typer.Option(help="Test text for Table 4.")] = None,
    regular: Annotated[str | None, typer.Option(help="Heads on the frozen base.")] = None,
    distillation: Annotated[str | None, typer.Option(help="Heads on a frozen base of distilled text.")] = None,
    fine_tuning: Annotated[str | None, typer.Option(help="Heads with fine-tuning.")] = None,
    both: Annotated[str | None, typer.Option(help="Heads with fine-tuning on distilled text.")] = None,
    limit: Annotated[int | None, typer.Option(help="Use the first N sentences only.")] = None,
    batch_size: Annotated[int, typer.Option(help="Development sentences per batch.")] = 32,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Tables 1 and 4: BLEU, mean accepted block size and speed of translation by k. Give at least one checkpoint."""
    given = {"regular": regular, "distillation": distillation, "fine-tuning": fine_tuning, "both": both}
    translators = {role: Translator.load(name, device) for role, name in given.items() if name is not None}
    require(bool(translators), f"no checkpoint to measure; give at least one of --{', --'.join(given)}")
    first = next(iter(translators.values()))
    dev = read_pairs(data, first.languages, limit)
    tested = None if test is None else read_pairs(test, first.languages, limit)
    table = Table1(output, dev, tested, batch_size, str(first.device))
    for name, series in TEXT_SERIES.items():
        if series.checkpoint in translators:
            table.add(name, translators[series.checkpoint])
    for role, translator in translators.items():
        table.add_test(role, translator)
    views = table.write_views()
    print("\n".join(view.read_text() for view in views[:2]))
    print(f"written: {table.path}, {', '.join(map(str, views))}")


@app.command()
@training_paused()
def table2(
    data: Annotated[Path, typer.Option(help="Development faces: .npz, folder of images or CelebA root.")],
    output: Annotated[Path, typer.Option(help="Folder for table2.json, table2.md and the plots; a run is resumed.")],
    ladder: Annotated[Path | None, typer.Option(help="Folder of a run of scripts/train/recipes/table2.json: all four "
                                                     "networks.")] = None,
    regular: Annotated[str | None, typer.Option(help="The paper's heads on the frozen base.")] = None,
    fine_tuned: Annotated[str | None, typer.Option(help="The paper's heads with fine-tuning.")] = None,
    sequential_regular: Annotated[str | None, typer.Option(help="Sequential heads on the frozen base.")] = None,
    sequential_fine_tuned: Annotated[str | None, typer.Option(help="Sequential heads with fine-tuning.")] = None,
    limit: Annotated[int | None, typer.Option(help="Use the first N images only.")] = None,
    batch_size: Annotated[int, typer.Option(help="Images per batch.")] = 16,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Table 2: mean accepted block size on faces by k, quality, likelihood and time.

    Give --ladder, or at least one checkpoint. All must have been trained in the same way from one base.
    """
    given = {"regular": regular, "fine-tuned": fine_tuned, "sequential-regular": sequential_regular,
             "sequential-fine-tuned": sequential_fine_tuned}
    if ladder is not None:
        given = {role: name or str(ladder / role / "checkpoint") for role, name in given.items()}
    folders = {role: find_checkpoint(name) for role, name in given.items() if name is not None}
    require(bool(folders), f"no checkpoint to measure; give --ladder, or at least one of --{', --'.join(given)}")
    records = {role: read_training(folder) for role, folder in folders.items()}
    check_ladder(records)
    upscalers = {role: load(str(folder), device) for role, folder in folders.items()}
    first = next(iter(upscalers.values()))
    pairs = read_faces(data, first.face_task, "valid", limit)
    table = Table2(output, pairs, batch_size, str(first.device))
    for name, series in SERIES.items():
        if series.checkpoint in upscalers:
            table.add(name, upscalers[series.checkpoint])
    trained = [{"rung": role, **rows[-1]} for role, rows in records.items()]
    write_results(output, {"training.jsonl": "".join(json.dumps(row) + "\n" for row in trained)})
    views = table.write_views()
    print(views[0].read_text())
    print(f"written: {table.path}, {', '.join(map(str, views))}")


@app.command()
def table3(
    study: Annotated[str, typer.Argument(help="Name of the survey's study.")],
    output: Annotated[Path, typer.Option(help="Folder for table3.json, table3.md and table3.png.")],
    store: Annotated[str, typer.Option(help="Store of the survey: SQLite file or database URL.")] = "survey.db",
) -> None:
    """Table 3: people's preference for blockwise decoding over greedy decoding, from the votes of a survey."""
    from superres.survey.report import study_report
    from superres.survey.store import Store

    opened = Store(store)
    paths = write_table3(study_report(opened, opened.study(study)), output)
    print(paths[1].read_text())
    print(f"written: {', '.join(map(str, paths))}")


if __name__ == "__main__":
    try:
        app()
    except SuperresError as error:
        sys.exit(f"tables: {error}")
