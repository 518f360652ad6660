"""Reproduce the tables of Stern et al. (2018), with their figures beside ours.

Finished measurements are not repeated, so a run that was interrupted continues. With --train,
table1 and table2 first train the networks that they compare. --quick shows in a minute or two that
all works.

    python scripts/reproduce/tables.py table2 --train train.npz --data dev.npz --output tables
    python scripts/reproduce/tables.py table1 --train train --data val --test test --output tables
    python scripts/reproduce/tables.py table3-study --ladder tables/ladder --data dev.npz
    python scripts/reproduce/tables.py table3 table3 --store survey.db --output tables
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

sys.path.append(str(Path(__file__).resolve().parents[1]))

import table1 as text
import table2 as pictures
import table3 as people
from ladder import RECIPES, read_ladder, train
from measurements import Device, Faces, Limit, Output, Table, Text, run
from superres import load
from superres.pipeline.translator import Translator
from superres.tasks.face_data import read_faces
from superres.tasks.translation import read_pairs

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

TrainData = Annotated[Path | None, typer.Option("--train", help="Training data: train the ladder "
                                                "first, or go on.")]
Ladder = Annotated[Path | None, typer.Option(help="Folder of the ladder; OUTPUT/ladder if left "
                                             "out.")]
RecipeFile = Annotated[Path, typer.Option(help="Recipe of the ladder.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Inputs per batch.")]
Quick = Annotated[bool, typer.Option("--quick", help="A minute or two on the least data, to see "
                                     "that all works.")]
Store = Annotated[str, typer.Option(help="Store of the survey: SQLite file or database URL.")]

QUICK_LIMIT = 2
QUICK_NETWORK = {"width": 32, "filter_size": 32, "attention_heads": 1, "encoder_layers": 1,
                 "decoder_layers": 1, "head_filter_size": 32, "conditioning_blocks": 0}
"""Fields of the networks for --quick."""
QUICK_TEXT = {**QUICK_NETWORK, "vocabulary": 320}
"""The same for text; a few sentences give no larger vocabulary."""


@app.callback()
def reproduce_tables() -> None:
    """Reproduce the tables of Stern et al. (2018), with their figures beside ours."""


@app.command()
def table1(
    data: Text, output: Output,
    test: Annotated[Path | None, typer.Option(help="Test text for Table 4 and Figure 4.")] = None,
    train_data: TrainData = None, ladder: Ladder = None,
    recipe: RecipeFile = RECIPES / "table1.json", limit: Limit = None, batch_size: BatchSize = 32,
    device: Device = "auto", is_quick: Quick = False,
) -> None:
    """Tables 1 and 4: BLEU, mean accepted block size and speed of translation by k."""
    limit, ladder = QUICK_LIMIT if is_quick else limit, ladder or output / "ladder"
    if train_data is not None:
        train(recipe, train_data, None, ladder, QUICK_TEXT if is_quick else None)
    translators = {role: Translator.load(folder, device)
                   for role, folder in read_ladder(ladder, text.CHECKPOINTS,
                                                   text.TRAINED_ON).items()}
    first = next(iter(translators.values()))
    dev = read_pairs(data, first.languages, limit)
    tested = None if test is None else read_pairs(test, first.languages, limit)
    conditions = text.conditions(dev, tested, batch_size, first.device) | ({"quick": True}
                                                                                if is_quick else {})
    table = Table("table1", output, conditions, first.device)
    table.measure(text.rows(dev, tested, translators, ladder, batch_size))
    table.finish()


@app.command()
def table2(
    data: Faces, output: Output, train_data: TrainData = None, ladder: Ladder = None,
    recipe: RecipeFile = RECIPES / "table2.json", limit: Limit = None, batch_size: BatchSize = 1,
    device: Device = "auto", is_quick: Quick = False,
) -> None:
    """Table 2 and Figure 4: mean accepted block size on faces by k, quality, likelihood and
    speed."""
    limit, ladder = QUICK_LIMIT if is_quick else limit, ladder or output / "ladder"
    if train_data is not None:
        train(recipe, train_data, data, ladder, QUICK_NETWORK if is_quick else None)
    upscalers = {role: load(str(folder), device) for role,
                 folder in read_ladder(ladder, pictures.CHECKPOINTS).items()}
    first = next(iter(upscalers.values()))
    pairs = read_faces(data, first.face_task, "valid", limit)
    conditions = pictures.conditions(pairs, batch_size, first.device) | ({"quick": True}
                                                                              if is_quick else {})
    table = Table("table2", output, conditions, first.device)
    table.measure(pictures.rows(pairs, upscalers, ladder, batch_size))
    table.finish()


@app.command()
def table3_study(
    ladder: Annotated[Path, typer.Option(help="Folder of the ladder of table2: its networks "
                                         "regular and fine-tuned.")],
    data: Faces, store: Store = "survey.db",
    study: Annotated[str, typer.Option(help="Name of the study.")] = "table3",
    pairs: Annotated[int, typer.Option(help="Images per comparison, chosen by --seed.")] = 100,
    is_quick: Quick = False,
    seed: Annotated[int, typer.Option(help="Seed for pictures, sides, order and resampling.")] = 0,
    batch_size: BatchSize = 16, device: Device = "auto",
) -> None:
    """Table 3: decode the pictures of its ten comparisons, and store a survey of them, ready to be
    served."""
    from superres.survey.store import Store as Opened

    print(people.make_study(ladder, data, Opened(store, create=True), study,
                            4 if is_quick else pairs, seed, batch_size, device))


@app.command()
def table3(
    study: Annotated[str, typer.Argument(help="Name of the survey's study.")], output: Output,
    store: Store = "survey.db",
) -> None:
    """Table 3: people's preference for blockwise decoding over greedy decoding, from the votes of a
    survey."""
    from superres.survey.report import study_report
    from superres.survey.store import Store as Opened

    opened = Opened(store)
    table = Table("table3", output, {"study": study})
    table.measure(people.rows(study_report(opened, opened.study(study))))
    table.finish()


if __name__ == "__main__":
    run(app)
