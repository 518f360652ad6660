"""Measure how far back a network for faces looks: the bits per token that context beyond a distance
is worth.

Every token of a true picture is scored by p1 given a picture that is true nearby, and beyond a
distance is a sample of the same input by the same network. The more bits that costs, the more the
network uses what it drew there: a network that looks three rows back cannot let one eye agree with
the other, or the mouth with the pose. Distances are in rows above the token, or in columns to
either side of it, in pixels of the network's own output. Each stage of a cascade is measured by
itself, on true inputs. The folder OUTPUT then has context.json and context.md.

    python scripts/train/context.py --data dev.npz --checkpoint celeba-8to32 --output context
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from torch import Tensor

sys.path.append(str(Path(__file__).resolve().parents[1]))

from measurements import Columns, Document, Row, Table, Values, columns_table, run, values
from superres.checkpoint import find_checkpoint
from superres.config import DEFAULT_CHECKPOINT, DecodeConfig
from superres.evaluation.intervals import half_width
from superres.evaluation.sample_scores import draw_samples, pictures_of
from superres.nn.model import EncoderDecoder
from superres.pictures.read import Pixels
from superres.pipeline.upscaler import Upscaler
from superres.system.output import short_digest
from superres.system.progress import track
from superres.tasks.face_data import FacePairs, read_faces
from superres.tasks.faces import encode

ROWS, COLUMNS = (1, 2, 3, 4, 6), (4,)
"""Distances beyond which the context is replaced, where they leave the token's own cell as it is:
what the network is told of the rest of a cell would be wrong if some of its pixels were
replaced."""
BATCH = 16
"""Pictures of one true picture that are scored together, one per row or column of it."""
SAMPLED = DecodeConfig(temperature=1.0, nucleus=1.0, consistent=True)

Keep = Callable[[int, np.ndarray, np.ndarray], np.ndarray]
"""Whether pixels at (y, x) stay true for the scored row or column of the given number."""


def within_rows(most: int, number: int, y: np.ndarray, _: np.ndarray) -> np.ndarray:
    """Return whether pixels are at most `most` rows above row `number`, or below that."""
    return y >= number - most


def within_columns(most: int, number: int, _: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return whether pixels are at most `most` columns from column `number`."""
    return np.abs(x - number) <= most


def log_probabilities(model: EncoderDecoder, source: Tensor, targets: Tensor,
                      true: Tensor) -> Tensor:
    """Return p1's log2 probabilities of the true tokens [T] given each of the pictures `targets`
    [N, T], [N, T]."""
    with torch.inference_mode():
        parts = [model.scores(model(source.expand(len(part), -1), part)).log_softmax(-1).gather(
            -1, true.expand(len(part), -1).unsqueeze(-1)).squeeze(-1)
                 for part in targets.split(BATCH)]
    return torch.cat(parts).double() / math.log(2)


def cost(model: EncoderDecoder, low: Pixels, high: Pixels, other: Pixels, keep: Keep,
         by_row: bool) -> float:
    """Return the mean bits per token that replacing the pixels of `high` outside `keep` by those of
    `other` costs.

    `low` uint8 [h, w, 3] is the input of both pictures, uint8 [H, W, 3]. Row or column n is scored
    in a picture of its own, in which the pixels that `keep` refuses are replaced. Rows and columns
    in which none is are left out.
    """
    y, x = np.indices(high.shape[:2])
    kept = [keep(number, y, x) for number in range(high.shape[0 if by_row else 1])]
    numbers = [number for number, mask in enumerate(kept) if not mask.all()]
    pictures = np.stack([np.where(kept[number][..., None], high, other) for number in numbers])
    source, true, targets = (torch.from_numpy(encode(images)) for images in (low[None], high[None],
                                                                             pictures))
    before = log_probabilities(model, source, true, true[0])[0].view(high.shape)
    after = log_probabilities(model, source, targets, true[0]).view(len(numbers), *high.shape)
    lines = [(before[n] - after[i, n]) if by_row else (before[:, n] - after[i, :, n]) for i,
             n in enumerate(numbers)]
    return float(torch.stack(lines).mean())


def measure(upscaler: Upscaler, pairs: FacePairs) -> Values:
    """Return the cost and its interval by distance for a network, on all `pairs`."""
    others = pictures_of(draw_samples(pairs.lr, upscaler, SAMPLED, [1], BATCH), 1)[:, 0]
    found: Values = {}
    for by_row, distances, cell in zip((True, False), (ROWS, COLUMNS),
                                       upscaler.model_config.enlargement, strict=True):
        for most in filter(lambda most, cell=cell: most >= cell - 1, distances):
            keep = functools.partial(within_rows if by_row else within_columns, most)
            costs = np.array([cost(upscaler.model, *images, keep, by_row) for images in track(
                [*zip(pairs.lr, pairs.hr, others, strict=True)],
                f"{'rows' if by_row else 'columns'} beyond {most}", "pictures")])
            found[f"{'rows' if by_row else 'columns'}_{most}"] = {
                "bits": float(costs.mean()), "half_width": half_width(costs)}
    return found


def stages(upscaler: Upscaler) -> list[Upscaler]:
    """Return the upscaler of each stage alone."""
    if upscaler.first is None or upscaler.last is None:
        return [upscaler]
    return [*stages(upscaler.first), upscaler.last]


TABLE: Columns = {
    "context that is replaced": ("replaced", 0), "bits per token, 95 %": ("text", 0)}


def views(document: Document) -> dict[str, str]:
    """Return a table per network."""
    return {name: f"{name}:\n\n" + columns_table(
        [{"replaced": f"{kind} beyond {most}", "text": f"{one['bits']:.4f} ± "
          f"{one['half_width']:.4f}"}
         for key, one in row.items() for kind, most in [key.split("_")]], TABLE)
            for name, row in values(document).items()}


def main(
    data: Annotated[Path, typer.Option(help="Faces to score.")],
    output: Annotated[Path, typer.Option(help="Folder for the results.")],
    checkpoint: Annotated[str,
                          typer.Option(help="Bundled checkpoint or folder.")] = DEFAULT_CHECKPOINT,
    limit: Annotated[int, typer.Option(min=2, help="Faces to score.")] = 20,
) -> None:
    """Score true tokens given context that is true nearby only, by every stage of a checkpoint."""
    whole = Upscaler.load(find_checkpoint(checkpoint), "cpu")
    pairs = {one.name: read_faces(data, one.face_task, "valid", limit) for one in stages(whole)}
    digest = short_digest(b"".join(one.hr.tobytes() for one in pairs.values()))
    table = Table("context", output, {"dev": digest, "images": limit})
    table.measure(Row(one.name, functools.partial(measure, one, pairs[one.name]),
                      {"revision": one.revision})
                  for one in stages(whole))
    table.finish()


if __name__ == "__main__":
    run(main)
