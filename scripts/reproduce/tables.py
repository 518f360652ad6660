"""Reproduce the tables and figures of the papers, with their figures beside ours.

Finished measurements are not repeated, so a run that was interrupted continues. With --train, table1 and table2 first
train the networks that they compare. --quick shows in a minute or two that all works.

    python scripts/reproduce/tables.py table2 --train train.npz --data dev.npz --output tables
    python scripts/reproduce/tables.py table1 --train train --data val --test test --output tables
    python scripts/reproduce/tables.py table3-study --ladder tables/ladder --data dev.npz --store survey.db
    python scripts/reproduce/tables.py table3 table3 --store survey.db --output tables
    python scripts/reproduce/tables.py speculative images --data dev.npz --output tables/images
    python scripts/reproduce/tables.py lookahead --text val --faces dev.npz --output tables
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

import lookahead as figure4
import table1 as text
import table2 as pictures
from ladder import RECIPES, costs, quick, read_ladder, train
from series import Series, Table
from speculative import GAMMAS, QUICK_GAMMAS, QUICK_TEMPERATURES, TEMPERATURES, reproduce, write_speculative
from superres import SuperresError, load
from superres.cli.benchmark import image_work, text_work
from superres.config import DEFAULT_CHECKPOINT, DEFAULT_TRANSLATOR
from superres.pipeline.base import Pipeline
from superres.pipeline.translator import Translator
from superres.system.output import prepare_folder
from superres.system.progress import say
from superres.tasks.face_data import read_faces
from superres.tasks.translation import read_pairs
from superres.training.recipes import Recipe
from table3 import make_study, write_table3

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

TRAIN = typer.Option("--train", help="Training data: train the ladder first, or go on with it.")
LADDER = typer.Option(help="Folder of the ladder; OUTPUT/ladder if left out.")
RECIPE = typer.Option(help="Recipe of the ladder.")
QUICK = typer.Option("--quick", help="Two steps of training per network and two examples, to see that all works.")
QUICK_LIMIT = 2
QUICK_NETWORK = {"width": 32, "filter_size": 32, "attention_heads": 1, "encoder_layers": 1, "decoder_layers": 1,
                 "head_filter_size": 32, "conditioning_blocks": 0}
"""Fields of the networks for --quick."""
QUICK_TEXT = {**QUICK_NETWORK, "vocabulary": 320}
"""The same for text; a few sentences give no larger vocabulary."""


@app.callback()
def reproduce_tables() -> None:
    """Reproduce the tables and figures of the papers, with their figures beside ours."""


@app.command()
def table1(
    data: Annotated[Path, typer.Option(help="Development text: PATH.en and PATH.de, or a test set of sacreBLEU.")],
    output: Annotated[Path, typer.Option(help="Folder for table1.json, the tables and plots; a run is resumed.")],
    test: Annotated[Path | None, typer.Option(help="Test text for Table 4 and Figure 4.")] = None,
    train_data: Annotated[Path | None, TRAIN] = None,
    ladder: Annotated[Path | None, LADDER] = None,
    recipe: Annotated[Path, RECIPE] = RECIPES / "table1.json",
    limit: Annotated[int | None, typer.Option(help="Use the first N sentences only.")] = None,
    batch_size: Annotated[int, typer.Option(help="Development sentences per batch.")] = 32,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    is_quick: Annotated[bool, QUICK] = False,
) -> None:
    """Tables 1 and 4: BLEU, mean accepted block size and speed of translation by k."""
    limit, ladder = QUICK_LIMIT if is_quick else limit, ladder or output / "ladder"
    if train_data is not None:
        rungs = Recipe.read(recipe)
        train(quick(rungs, QUICK_TEXT) if is_quick else rungs, train_data, None, ladder)
    translators = {role: Translator.load(folder, device)
                   for role, folder in read_ladder(ladder, text.CHECKPOINTS, text.TRAINED_ON).items()}
    first = next(iter(translators.values()))
    dev = read_pairs(data, first.languages, limit)
    tested = None if test is None else read_pairs(test, first.languages, limit)
    table = text.Table1(output, dev, tested, batch_size, str(first.device))
    measure(table, text.SERIES, translators, ladder)
    _finish(table, ladder, views=2)


@app.command()
def table2(
    data: Annotated[Path, typer.Option(help="Development faces: .npz, folder of images or CelebA root.")],
    output: Annotated[Path, typer.Option(help="Folder for table2.json, table2.md and the plots; a run is resumed.")],
    train_data: Annotated[Path | None, TRAIN] = None,
    ladder: Annotated[Path | None, LADDER] = None,
    recipe: Annotated[Path, RECIPE] = RECIPES / "table2.json",
    limit: Annotated[int | None, typer.Option(help="Use the first N images only.")] = None,
    batch_size: Annotated[int, typer.Option(help="Images per batch.")] = 1,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    is_quick: Annotated[bool, QUICK] = False,
) -> None:
    """Table 2 and Figure 4: mean accepted block size on faces by k, quality, likelihood and speed."""
    limit, ladder = QUICK_LIMIT if is_quick else limit, ladder or output / "ladder"
    if train_data is not None:
        rungs = Recipe.read(recipe)
        train(quick(rungs, QUICK_NETWORK) if is_quick else rungs, train_data, data, ladder)
    upscalers = {role: load(str(folder), device) for role, folder in read_ladder(ladder, pictures.CHECKPOINTS).items()}
    first = next(iter(upscalers.values()))
    pairs = read_faces(data, first.face_task, "valid", limit)
    table = pictures.Table2(output, pairs, batch_size, str(first.device))
    measure(table, pictures.SERIES, upscalers, ladder)
    _finish(table, ladder, views=1)


def measure(table: Table, series: Mapping[str, Series], pipelines: Mapping[str, Pipeline], ladder: Path) -> None:
    """Measure the series of all networks given, their test data, and their curves."""
    for name, one in series.items():
        if one.checkpoint in pipelines:
            table.add(name, pipelines[one.checkpoint])
    for role, pipeline in pipelines.items():
        table.add_test(role, pipeline)
        table.add_curve(role, ladder)
    table.add_differences(pipelines)


def _finish(table: Table, ladder: Path, views: int) -> None:
    """Write the costs of training, the tables and the plots; print the first `views` of them."""
    table.document["costs"] = costs(ladder)
    table.save()
    paths = table.write_views()
    print("\n".join(path.read_text() for path in paths[:views]))
    print(f"written: {table.path}, {', '.join(map(str, paths))}")


@app.command()
def table3_study(
    ladder: Annotated[Path, typer.Option(help="Folder of the ladder of table2: its networks regular and fine-tuned.")],
    data: Annotated[Path, typer.Option(help="Development faces: .npz, folder of images or CelebA root.")],
    store: Annotated[str, typer.Option(help="Store of the survey: SQLite file or database URL.")] = "survey.db",
    study: Annotated[str, typer.Option(help="Name of the study.")] = "table3",
    pairs: Annotated[int, typer.Option(help="Images per comparison, chosen by --seed.")] = 100,
    is_quick: Annotated[bool, typer.Option("--quick", help="Four images per comparison, to try the study.")] = False,
    seed: Annotated[int, typer.Option(help="Seed for pictures, sides, order and resampling.")] = 0,
    batch_size: Annotated[int, typer.Option(help="Images per batch.")] = 16,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Table 3: decode the pictures of its ten comparisons, and store a survey of them, ready to be served."""
    from superres.survey.store import Store

    opened = Store(store, create=True)
    print(make_study(ladder, data, opened, study, 4 if is_quick else pairs, seed, batch_size, device))


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


@app.command()
def lookahead(
    output: Annotated[Path, typer.Option(help="Folder for lookahead.json, lookahead.md and lookahead.png.")],
    text: Annotated[Path, typer.Option(help="Parallel text: PATH.en and PATH.de.")],
    faces: Annotated[Path, typer.Option(help="Faces: .npz, folder of images or CelebA root.")],
    translator: Annotated[str, typer.Option(help="Checkpoint of the text.")] = DEFAULT_TRANSLATOR,
    upscaler: Annotated[str, typer.Option(help="Checkpoint of the faces.")] = DEFAULT_CHECKPOINT,
    engine: Annotated[str, typer.Option(help="Compiled engine, measured beside plain.")] = "native",
    sentences: Annotated[int, typer.Option(min=1, help="Use the first N sentences.")] = 60,
    images: Annotated[int, typer.Option(min=1, help="Use the first N faces.")] = 8,
    processes: Annotated[str, typer.Option(metavar="N,N,...", help="Numbers of processes.")] = "1,2,4",
    quick: Annotated[bool, typer.Option("--quick", help="Few settings, 8 sentences and one face.")] = False,
) -> None:
    """Figure 4 of Lookahead decoding, Jacobi decoding and lookahead parallelism, each compared with greedy decoding."""
    engines, counts = dict.fromkeys((engine, "plain")), figure4.parse_numbers(processes, "--processes")
    plans, widths = (figure4.QUICK, (4,)) if quick else (figure4.PLANS, (4, 8, 16))
    if quick:
        sentences, images, counts = min(sentences, 8), 1, counts[:2]
    works = [figure4.text_work(text, translator, sentences, [*engines]),
             figure4.image_work(faces, upscaler, images, [*engines])]
    document = figure4.reproduce(
        works, plans, lambda: figure4.run_parallel(text, translator, 4 if quick else 20, counts, widths),
        "tables.py " + " ".join(sys.argv[1:]), say)
    paths = figure4.write_lookahead(document, output)
    print(paths[1].read_text())
    print(f"written: {', '.join(map(str, paths))}")


class Task(str, Enum):
    """What to decode."""

    images = "images"
    text = "text"


@app.command()
def speculative(
    task: Annotated[Task, typer.Argument(help="What to decode.")],
    output: Annotated[Path, typer.Option(help="Folder for speculative.json, speculative.md and speculative.png.")],
    data: Annotated[Path | None, typer.Option(help="Images, or parallel text PATH.en and PATH.de; examples if left "
                                              "out.")] = None,
    checkpoint: Annotated[str | None, typer.Option(help="Checkpoint name, folder or hub id; the bundled one if left "
                                                   "out.")] = None,
    draft: Annotated[list[str] | None, typer.Option(metavar="NAME|DIR", help="A draft model; give it again for more. "
                                                    "The one beside the checkpoint if left out.")] = None,
    rows: Annotated[int | None, typer.Option(min=1, help="Rows for alpha; 8 images or 200 sentences if left "
                                             "out.")] = None,
    count: Annotated[int | None, typer.Option(min=1, help="Rows for times; 3 images or 40 sentences if left "
                                              "out.")] = None,
    is_quick: Annotated[bool, typer.Option("--quick", help="Few rows, temperatures 0 and 1, gamma 1 and 3.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    engine: Annotated[str, typer.Option(help="Engine of decoding.")] = "auto",
    page: Annotated[Path | None, typer.Option(help="Markdown page whose tables of this task to replace.")] = None,
) -> None:
    """Speculative decoding: alpha, tokens per step, time and operations by draft, predicted and measured."""
    is_image = task is Task.images
    rows = rows or (1 if is_image else 8) * (1 if is_quick else 8 if is_image else 25)
    count = min(count or (1 if is_image else 4) * (1 if is_quick else 3 if is_image else 10), rows)
    name = checkpoint or (DEFAULT_CHECKPOINT if is_image else DEFAULT_TRANSLATOR)
    work = image_work(name, device, engine, data, rows) if is_image else text_work(name, device, engine, data)
    prepare_folder(output)
    report = reproduce(work, draft or [], rows=rows, count=count,
                       temperatures=QUICK_TEMPERATURES if is_quick else TEMPERATURES,
                       gammas=QUICK_GAMMAS if is_quick else GAMMAS)
    paths = write_speculative(report, output, page)
    print(paths[1].read_text())
    print(f"written: {', '.join(map(str, paths))}")


if __name__ == "__main__":
    try:
        app()
    except SuperresError as error:
        sys.exit(f"tables: {error}")
