"""Unpack a run that `scripts/device/run.sh train` trained, and score it beside the checkpoint that
it started from.

python scripts/device/receive.py OUT/run.tar.gz.* --dev dev.npz --output runs/device
"""

from __future__ import annotations

import io
import sys
import tarfile
from pathlib import Path
from typing import Annotated

import typer

from superres import SuperresError
from superres.checkpoint import read_training
from superres.errors import InvalidInputError
from superres.pipeline.auto import face_task
from superres.system.output import prepare_folder
from superres.tasks.face_data import read_faces

sys.path.append(str(Path(__file__).parents[1] / "train"))

from continuous import SCORED, Rounds


def main(
    parts: Annotated[list[Path], typer.Argument(help="The parts run.tar.gz.0, run.tar.gz.1 and so "
                                                "on.")],
    dev: Annotated[Path, typer.Option(help="Faces to score, that were not trained on.")],
    output: Annotated[Path, typer.Option(help="Folder for the run.")],
    reference: Annotated[str, typer.Option(help="Checkpoint to compare with.")] = "celeba-8to32",
) -> None:
    """Print the scores of both checkpoints and whether the new one is better in all; exit 1 if it
    is not."""
    prepare_folder(output)
    content = b"".join(part.read_bytes() for part in sorted(parts, key=lambda part: part.name))
    try:
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            archive.extractall(output, filter="data")
    except tarfile.TarError as error:
        raise InvalidInputError(f"the parts are no complete archive ({error}); give all of "
                                "run.tar.gz.*") from error
    rounds = Rounds(output, read_faces(dev, face_task(reference), "valid", SCORED), reference)
    scores = rounds.score(output / "checkpoint")
    rounds.add(scores, {"step": read_training(output / "checkpoint")[-1]["steps"]})
    raise typer.Exit(1 if rounds.worse(scores) else 0)


if __name__ == "__main__":
    try:
        typer.run(main)
    except SuperresError as error:
        sys.exit(f"receive: {error}")
