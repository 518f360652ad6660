"""Pack what a machine with a GPU and without a network needs for its minutes: faces, and the wheels
that it lacks; unpack the faces there.

    python scripts/device/faces.py pack train.npz dev.npz
    python scripts/device/faces.py unpack build/device/faces faces.npz

The folder `build/device`, which git ignores, travels with the working tree, and
`scripts/device/run.sh` reads it. Faces travel as lossless WebP mosaics, from `--first` on, until
tree and folder reach the limit. While a machine stays, a second call brings the faces that follow.
"""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from PIL import Image

sys.path.append(str(Path(__file__).resolve().parents[1]))

from measurements import ROOT, run
from superres.config import DEFAULT_CHECKPOINT, require
from superres.pipeline.auto import face_task
from superres.system.output import prepare_folder, write_result, write_results
from superres.tasks.face_data import FacePairs, read_faces, write_npz

GRID = 32
FACES = GRID * GRID
"""Number of faces of a mosaic."""
MIB = 1 << 20

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


def mosaic(faces: np.ndarray) -> bytes:
    """Return up to FACES faces, uint8 [N, side, side, 3], as a WebP."""
    side, buffer = faces.shape[1], io.BytesIO()
    tiles = np.zeros((GRID, GRID, side, side, 3), np.uint8)
    tiles.reshape(FACES, side, side, 3)[: len(faces)] = faces
    sheet = tiles.swapaxes(1, 2).reshape(GRID * side, GRID * side, 3)
    Image.fromarray(sheet).save(buffer, "WEBP", lossless=True, quality=100, method=4)
    return buffer.getvalue()


def tiles_of(path: Path) -> np.ndarray:
    """Return the faces of a mosaic, uint8 [N, side, side, 3]; its name ends with their number."""
    with Image.open(path) as image:
        sheet = np.asarray(image.convert("RGB"))
    side = len(sheet) // GRID
    tiles = sheet.reshape(GRID, side, GRID, side, 3).swapaxes(1, 2).reshape(FACES, side, side, 3)
    return tiles[: int(path.stem.split("-")[-1])]


def bytes_of(files: list[Path]) -> int:
    """Return the bytes of files."""
    return sum(file.stat().st_size for file in files if file.is_file())


def tree_files() -> list[Path]:
    """Return the files that travel with the tree: tracked ones, and others that git does not
    ignore."""
    listed = subprocess.run(["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT,
                            capture_output=True, text=True, check=True)
    return [ROOT / name for name in listed.stdout.split("\0") if name]


@app.command()
def pack(
    data: Annotated[Path, typer.Argument(help="Training faces: .npz, folder or CelebA root.")],
    dev: Annotated[Path, typer.Argument(help="Faces to score and to decode.")],
    output: Annotated[Path, typer.Option(help="Folder to fill.")] = ROOT / "build" / "device",
    checkpoint: Annotated[str, typer.Option(help="Checkpoint to train, whose sizes the faces "
                                            "get.")] = DEFAULT_CHECKPOINT,
    first: Annotated[int, typer.Option(min=0, help="Number of the first mosaic.")] = 0,
    limit_mib: Annotated[float, typer.Option(help="Limit of tree and folder together.")] = 62,
    wheels: Annotated[str, typer.Option(help="Packages that the machine lacks, separated by "
                                        "commas.")] = "platformdirs",
) -> None:
    """Fill the folder, and print what it has and how large it is."""
    task, folder = face_task(checkpoint), output / "faces"
    prepare_folder(folder)
    for name in filter(None, wheels.split(",")):
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
                        "--only-binary=:all:", "--dest", output / "wheels", name], check=True)
    known = read_faces(dev, task, "valid", 256)
    write_npz(FacePairs(known.hr, known.lr, known.ids), output / "dev.npz")
    write_result(output / "checkpoint.txt", f"{checkpoint}\n".encode())
    for old in folder.iterdir():
        old.unlink()

    pairs, packed = read_faces(data, task, "train"), 0
    room = limit_mib * MIB - bytes_of([*tree_files(), *output.rglob("*")])
    for number in range(first, -(-len(pairs) // FACES)):
        part = slice(number * FACES, (number + 1) * FACES)
        count = len(pairs.ids[part])
        files = {f"{number:03d}-{kind}-{count}.webp": mosaic(faces[part])
                 for kind, faces in (("hr", pairs.hr), ("lr", pairs.lr))}
        room -= sum(map(len, files.values()))
        if room < 0:
            break
        write_results(folder, files)
        packed += count
    require(packed > 0, f"no mosaic of {FACES:,} faces fits below {limit_mib:g} MiB beside the "
            "tree; leave checkpoints that are not trained out of the tree")
    size = bytes_of([*tree_files(), *output.rglob("*")]) / MIB
    print(f"{output}: {packed:,} of {len(pairs):,} faces of {task.target_size} for {checkpoint}; "
          f"tree and folder have {size:.1f} of {limit_mib:g} MiB")


@app.command()
def unpack(
    folder: Annotated[Path, typer.Argument(help="Folder of mosaics.")],
    output: Annotated[Path, typer.Argument(help="The .npz to write.")],
) -> None:
    """Write the faces of all mosaics as one .npz."""
    high, low = (np.concatenate([tiles_of(path) for path in sorted(folder.glob(f"*-{kind}-*"))])
                 for kind in ("hr", "lr"))
    write_npz(FacePairs(high, low, np.arange(len(high), dtype=np.int32)), output)


if __name__ == "__main__":
    run(app)
