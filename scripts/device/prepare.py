"""Pack what a machine with a GPU and without a network needs for its minutes: pictures, and the
wheels that it lacks.

    python scripts/device/prepare.py --data train.npz --dev dev.npz

The folder `build/device`, which git ignores, then travels with the working tree, and
`scripts/device/run.sh` reads it there. Training pictures are packed from the mosaic `--first` on,
until tree and folder reach the limit of what travels. While a machine stays, a second call brings
it the pictures that follow.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from mosaics import FACES, pack
from superres import SuperresError
from superres.errors import ConfigError
from superres.pipeline.auto import face_task
from superres.system.output import prepare_folder, write_result, write_results
from superres.tasks.face_data import FacePairs, read_faces, write_npz

ROOT = Path(__file__).parents[2]
MIB = 1 << 20


def tree_bytes(root: Path = ROOT) -> int:
    """Return the bytes of the files that travel with the tree: tracked ones, and others that git
    does not ignore."""
    listed = subprocess.run(["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=root,
                            capture_output=True, text=True, check=True)
    files = [root / name for name in listed.stdout.split("\0") if name]
    return sum(file.stat().st_size for file in files if file.is_file())


def folder_bytes(folder: Path) -> int:
    """Return the bytes of the files in a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def fetch_wheels(names: list[str], folder: Path) -> None:
    """Download the wheels of packages that run on every platform."""
    prepare_folder(folder)
    for name in names:
        if not list(folder.glob(f"{name}-*.whl")):
            subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
                            "--only-binary=:all:", "--dest", folder, name], check=True)


def main(
    data: Annotated[Path, typer.Option(help="Training faces: .npz, folder of images or CelebA "
                                       "root.")],
    dev: Annotated[Path, typer.Option(help="Faces to score and to decode.")],
    output: Annotated[Path, typer.Option(help="Folder to fill.")] = ROOT / "build" / "device",
    checkpoint: Annotated[str, typer.Option(help="Checkpoint to train, whose sizes the faces "
                                            "get.")] = "celeba-8to32",
    own: Annotated[Path | None, typer.Option(help="Pictures that the checkpoint drew, from "
                                             "'superres train decode'; "
                                             "they travel as own.npz.")] = None,
    first: Annotated[int, typer.Option(min=0, help="Number of the first mosaic.")] = 0,
    dev_limit: Annotated[int, typer.Option(min=1, help="Number of the faces of --dev.")] = 256,
    limit_mib: Annotated[float, typer.Option(help="Limit of the tree and the folder together, in "
                                             "MiB.")] = 62,
    wheels: Annotated[str, typer.Option(help="Packages that the machine lacks, separated by "
                                        "commas; '' for none.")] =
    "platformdirs",
) -> None:
    """Fill the folder, and print what it has and how large it is."""
    task = face_task(checkpoint)
    fetch_wheels([name for name in wheels.split(",") if name], output / "wheels")
    known = read_faces(dev, task, "valid", dev_limit)
    write_npz(FacePairs(known.hr, known.lr, known.ids), output / "dev.npz")
    if own is not None:
        drawn = read_faces(own, task, "train")
        write_npz(FacePairs(drawn.hr, drawn.lr, drawn.ids), output / "own.npz")
    pairs, folder = read_faces(data, task, "train"), output / "faces"
    prepare_folder(folder)
    for old in folder.iterdir():
        old.unlink()
    room = limit_mib * MIB - tree_bytes() - folder_bytes(output)
    packed = 0
    for number in range(first, -(-len(pairs) // FACES)):
        files = pack(pairs, number)
        room -= sum(map(len, files.values()))
        if room < 0:
            break
        write_results(folder, files)
        packed += len(pairs.ids[number * FACES : (number + 1) * FACES])
    if not packed:
        raise ConfigError(f"no mosaic of {FACES:,} faces fits below {limit_mib:g} MiB beside the "
                          f"tree of {tree_bytes() / MIB:.1f} MiB; leave checkpoints that are not "
                          "trained out of the tree")
    write_result(output / "checkpoint.txt", f"{checkpoint}\n".encode())
    print(f"{output}: {packed:,} of {len(pairs):,} faces of {task.target_size} for {checkpoint}; "
          f"tree and folder have {(tree_bytes() + folder_bytes(output)) / MIB:.1f} of "
          f"{limit_mib:g} MiB")


if __name__ == "__main__":
    try:
        typer.run(main)
    except SuperresError as error:
        sys.exit(f"prepare: {error}")
