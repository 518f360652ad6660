"""Score the pictures of a checkpoint by all measures, by way of decoding: similarity, detail and
recognised faces.

The ways are those of `superres upscale`: within the checkpoint's limits, and samples from its
likeliest tokens, unless the name says otherwise. Differences are from exact pictures, which are
those of greedy decoding.

    python scripts/benchmark/face_scores.py --data dev64.npz --limit 100

One way alone, with sheets for raters who must not know which picture is which:

    python scripts/benchmark/face_scores.py --data dev64.npz --way "finished, mean" --blind
"""

from __future__ import annotations

import dataclasses
import json
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from PIL import Image

sys.path.append(str(Path(__file__).resolve().parents[1]))

from measurements import (
    Checkpoint,
    Columns,
    Device,
    Document,
    Engine,
    Faces,
    Limit,
    Output,
    Page,
    Row,
    Table,
    Values,
    columns_table,
    run,
    values,
)
from superres import DecodeConfig
from superres.config import DEFAULT_CASCADE
from superres.evaluation.detail import bands, swings
from superres.evaluation.drawing import draw_samples
from superres.evaluation.picture_scores import BASELINE, GREEDY, all_entries, compared_scores
from superres.evaluation.recognition import Recogniser, recognition_scores
from superres.evaluation.sample_scores import likeliest_of, pictures_of
from superres.pictures.read import Picture, Pixels
from superres.pictures.write import encode_png
from superres.pipeline.resolved_options import FINISHES
from superres.pipeline.upscaler import Upscaler
from superres.system.output import short_digest, write_result
from superres.system.progress import track
from superres.tasks.face_data import FacePairs, read_faces
from superres.tasks.faces import FaceTask

LIKELIEST, SAMPLES = "likeliest of four at temperature 0.7", 4
"""The way that draws several samples, and their number."""
BLIND = 6  # faces per sheet for raters; the seed of their order
WAYS: dict[str, dict[str, Any]] = {
    GREEDY: {}, "epsilon 2": {"accept": "distance", "epsilon": 2},
    "sampled at temperature 0.7": {"temperature": 0.7}, LIKELIEST: {"temperature": 0.7},
    "first stage sampled at temperature 0.9": {"temperature": 0.9, "later_temperature": 0},
    "sampled at temperature 0.9": {"temperature": 0.9},
    "sampled at temperature 1, all tokens": {"temperature": 1.0, "nucleus": 1.0},
    **{f"finished, {finish}": {} for finish in FINISHES[1:]},
}
NAMES = {GREEDY: "exact, the tokens of greedy", BASELINE: "Lanczos", "truth": "true pictures"}


def drawn(
    upscaler: Upscaler, pairs: FacePairs, way: str, options: DecodeConfig, batch_size: int,
    folder: Path,
) -> Pixels:
    """Return one picture per input, uint8 [N,H,W,3].

    They are read from `folder` if an interrupted run has left them there.
    """
    samples, finish = SAMPLES if way == LIKELIEST else 1, way.removeprefix("finished, ")
    made_by = (f"{upscaler.name}@{upscaler.revision} {upscaler.scoring.code} {options.to_dict()} "
               f"{samples}")
    made_by += f" {finish}" if finish != way else ""
    path = folder / f"{short_digest(pairs.lr.tobytes() + made_by.encode())}.png"
    if not path.exists():
        if finish != way:
            starts = track(range(0, len(pairs), batch_size), way, "batches")
            batches = [upscaler(pairs.lr[i:i + batch_size], options, finish=finish) for i in starts]
        else:
            batches = draw_samples(pairs.lr, upscaler, options, range(1, samples + 1), batch_size)
        pictures = pictures_of(batches, 1)[:, 0] if samples == 1 else likeliest_of(batches, samples)
        write_result(path, encode_png(Picture(pictures.reshape(-1, *pictures.shape[2:])), {}),
                     "--output")
    with Image.open(path) as column:
        return np.asarray(column).reshape(pairs.hr.shape)


def draw_blind(pictures: dict[str, Pixels], folder: Path) -> None:
    """Write sheets of `BLIND` rows, a face each, whose ways stand in an order drawn by chance, and
    that order apart."""
    rng, names = np.random.default_rng(BLIND), list(pictures)
    orders = [rng.permutation(len(names)).tolist() for _ in pictures[names[0]]]
    rows = [np.concatenate([np.pad(pictures[names[place]][face].repeat(4, 0).repeat(4, 1),
                                   ((8, 8), (8, 8), (0, 0)))
                            for place in order], axis=1) for face, order in enumerate(orders)]
    (folder / "blind").mkdir(parents=True, exist_ok=True)
    for first in range(0, len(rows), BLIND):
        sheet = Picture(np.concatenate(rows[first:first + BLIND]))
        write_result(folder / "blind" / f"faces-{first:03d}.png", encode_png(sheet, {}), "--output")
    key = {f"face {face}": [names[place] for place in order] for face, order in enumerate(orders)}
    write_result(folder / "key-of-blind.json", json.dumps(key, indent=1).encode(), "--output")


def measure(
    upscaler: Upscaler, pairs: FacePairs, ways: dict[str, DecodeConfig], batch_size: int,
    folder: Path, recogniser: Recogniser | None, blind: bool = False,
) -> Values:
    """Return the scores of the pictures by way, of Lanczos and of the true pictures; with sheets if
    `blind`."""
    pictures = {way: drawn(upscaler, pairs, way, options, batch_size, folder) for way,
                options in ways.items()}
    if blind:
        draw_blind(pictures, folder)
    pictures[BASELINE] = pairs.task.enlarge(pairs.lr, BASELINE)
    scores: dict[str, Any] = {**compared_scores(pictures, pairs),
                              "truth": all_entries(swings(pairs.hr, pairs.task))}
    if recogniser is None:
        return {"methods": scores}
    found, recognised = recognition_scores(recogniser, pictures, pairs.hr)
    return {"faces_found": found, "methods": {name: own | recognised[name] for name,
                                              own in scores.items()}}


def percent(name: str) -> Any:  # noqa: ANN401 -- a column
    """Return a column of the share `name` and half the width of its interval, in per cent."""
    return (lambda row: f"{100 * row[name]:.1f} ±{100 * row[f'{name}_half_width']:.1f}"), 1


def views(document: Document) -> dict[str, str]:
    """Return similarity to the truth, detail, and recognised faces, with a line per way."""
    (found,) = values(document).values()
    conditions = document["conditions"]
    rows = [{"way": NAMES.get(way, way), **own} for way, own in found["methods"].items()]
    scored = [row for row in rows if "psnr" in row]
    power: Columns = {f"{name.removeprefix('power_').replace('_', ' ')}, dB": (name, 1)
                      for name in bands(FaceTask(conditions["source"], conditions["target"]))}
    above = f"above_{GREEDY}"
    parts = {
        "similarity": columns_table(scored, {
            "": ("way", 0), "PSNR, dB": ("psnr", 2), "above exact": (f"psnr_{above}", 2),
            "SSIM": ("ssim", 3), "SSIM above exact": (f"ssim_{above}", 3),
            "ST-LPIPS": ("st_lpips", 3), "ST-LPIPS above exact": (f"st_lpips_{above}", 3),
            "LR-PSNR, dB": ("lr_psnr", 2)}),
        "detail": columns_table(rows, {
            "": ("way", 0), "detail": ("detail", 2), "above exact": (f"detail_{above}", 3),
            "swing across, %": ("swing_across", 0), "swing down, %": ("swing_down", 0)}),
        "power": columns_table(scored, {"": ("way", 0), **power}),
    }
    if "faces_found" in found:
        parts["recognised"] = columns_table(rows, {
            "": ("way", 0), "the same person, %": percent("same_person"),
            "a stranger, %": percent("stranger")})
    return parts


def main(
    data: Faces, output: Output = Path("face-scores"), limit: Limit = None, page: Page = None,
    batch_size: Annotated[int, typer.Option(help="Images per batch.")] = 25,
    checkpoint: Checkpoint = DEFAULT_CASCADE, device: Device = "auto", engine: Engine = "auto",
    same_person: Annotated[bool, typer.Option(help="Score recognised faces.")] = True,
    way: Annotated[list[str], typer.Option(help="Measure this way, and no others but those "
                                           "named.")] = [],  # noqa: B006
    blind: Annotated[bool, typer.Option(help="Draw sheets for raters, and write the order of the "
                                        "ways apart.")] = False,
    name: Annotated[str, typer.Option(help="First part of the tables' names.")] = "face-scores",
) -> None:
    """Draw and score the pictures."""
    recogniser = Recogniser() if same_person else None
    upscaler = Upscaler.load(checkpoint, device, engine)
    pairs, network = read_faces(data, upscaler.face_task, "valid", limit), upscaler.model_config
    default = DecodeConfig(consistent=network.consistent, nucleus=network.nucleus)
    ways = {one: dataclasses.replace(default, **options) for one, options in WAYS.items()
            if one in [GREEDY, *way] or not way}
    table = Table("face_scores", output, {
        "checkpoint": f"{upscaler.name}@{upscaler.revision}", "code": upscaler.scoring.code,
        "images": len(pairs), "data": short_digest(pairs.lr.tobytes()), "source": pairs.task.source,
        "target": pairs.task.target,
    }, upscaler.device, f"{name}-{upscaler.name}")
    settings = {one: options.to_dict() for one, options in ways.items()}
    table.measure([Row("scores", partial(measure, upscaler, pairs, ways, batch_size, output,
                                         recogniser, blind),
                       {"same_person": same_person, **settings})])
    table.finish(page)


if __name__ == "__main__":
    run(main)
