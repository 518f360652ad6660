"""Draw README's moving picture: a face decoded one token per step, in exact blocks and within
epsilon 2.

    python scripts/draw_decode.py

The face is that of scikit-image's astronaut, the first of `scripts/photos`, beside the photo.
"""

from __future__ import annotations

import io
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from PIL import Image, ImageDraw, ImageFont

from demo import read_photographs
from measurements import Checkpoint, run
from superres import Upscaler
from superres.config import DEFAULT_CASCADE
from superres.pictures.mark import marked
from superres.pictures.read import Pixels
from superres.pipeline.upscaler import Upscaled
from superres.system.output import write_result
from superres.tasks.faces import FaceTask, image_key

ROOT = Path(__file__).parent.parent
BLOCK = 10
FRAMES, FRAME_MS, LAST_MS = 90, 80, 3000
PANEL, GAP, LINE = 256, 12, 30
"""Sides of a picture, of the space around it and of a line of text, in pixels."""


@dataclass
class Decode:
    """A finished decode of one face, and its name and end on the picture."""

    name: str
    result: Upscaled
    end: str = ""

    def text(self, step: int) -> str:
        """Return what stands below the picture after a step."""
        steps = len(self.result.ends(0))
        return f"{min(step, steps):,} steps" + (f", {self.end}" if self.end and step >= steps
                                                else "")


def decode(upscaler: Upscaler, source: Pixels) -> list[Decode]:
    """Decode an input, uint8 [source, source, 3], in three ways."""
    ways = {"one token per step": upscaler.options().sequential(),
            f"exact blocks, up to {BLOCK}": upscaler.options(block_size=BLOCK, adaptive=False),
            "blocks within epsilon 2": upscaler.options(accept="distance", epsilon=2)}
    found = [Decode(name, upscaler.decode(source[None], options, keys=[image_key(source, 1)]))
             for name, options in ways.items()]
    first = found[0].result.images.astype(float)
    for other in found[1:]:
        away = float(np.abs(other.result.images - first).mean())
        other.end = f"{away:.1f} grey levels away" if away else "the same picture"
    return found


def draw_frame(step: int, decodes: list[Decode], source: Pixels, truth: Pixels,
               task: FaceTask) -> Image.Image:
    """Return all pictures after a step, side by side between the input and the photo."""
    panels = [(f"input, {task.source_size}", source, ""),
              *((decode.name, decode.result.after(0, step), decode.text(step))
                for decode in decodes),
              ("the photo", truth, "")]
    frame = Image.new("RGB", (len(panels) * (PANEL + GAP) + GAP, PANEL + 2 * LINE), "white")
    draw, font, small = (ImageDraw.Draw(frame), ImageFont.load_default(17),
                         ImageFont.load_default(15))
    for number, (name, picture, text) in enumerate(panels):
        left = GAP + number * (PANEL + GAP)
        frame.paste(Image.fromarray(picture).resize((PANEL, PANEL), Image.Resampling.NEAREST),
                    (left, LINE))
        draw.text((left, 6), name, fill="black", font=font)
        draw.text((left, LINE + PANEL + 6), text, fill="#555", font=small)
    return frame


def main(
    checkpoint: Checkpoint = DEFAULT_CASCADE,
    output: Annotated[Path, typer.Option(help="File for the picture.")] = ROOT / ".github"
    / "pictures" / "decode.webp",
) -> None:
    """Decode the face and draw the moving picture."""
    upscaler = Upscaler.load(checkpoint, "cpu")
    task = upscaler.face_task
    face = next(iter(read_photographs(task).values()))
    source, truth = task.source_of(face), task.target_of(face)
    decodes = decode(upscaler, source)
    steps = np.linspace(0, max(len(decode.result.ends(0)) for decode in decodes),
                        FRAMES + 1).astype(int)
    first, *others = (draw_frame(int(step), decodes, source, truth, task) for step in steps)
    content = io.BytesIO()
    first.save(content, "WEBP", save_all=True, append_images=others, quality=60, method=6,
               minimize_size=True, loop=0, xmp=marked(),
               duration=[*itertools.repeat(FRAME_MS, FRAMES), LAST_MS])
    write_result(output, content.getvalue())
    print(output, flush=True)


if __name__ == "__main__":
    run(main)
