"""Draw the moving picture of the README: one face, decoded one token per step, in exact blocks, and within epsilon 2.

Every frame shows all decodes after the same number of steps, so their lengths have the true ratio.

    python scripts/draw_decode.py --output .github/pictures/decode.webp
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from PIL import Image, ImageDraw, ImageFont

from superres import Upscaler
from superres.config import require
from superres.pipeline.upscaler import Upscaled
from superres.tasks.metadata import marked
from superres.tasks.pictures import Pixels, read_image
from superres.web.drawing import steps_of

SIDE, GAP, HEAD, FOOT = 256, 12, 30, 30
"""Pixels of a panel, between panels, and of the lines above and below it."""
EMPTY = 205
"""Grey level of pixels that are not decoded."""
PAPER, INK, FAINT = (255, 255, 255), (25, 25, 25), (105, 105, 105)


@dataclass(frozen=True)
class Panel:
    """A decode, its name, and what is said of its picture."""

    name: str
    result: Upscaled
    about: str

    @property
    def steps(self) -> int:
        """Number of steps of all stages."""
        return steps_of(self.result)

    def after(self, steps: int) -> Pixels:
        """Return the picture after a number of steps, uint8 [H, W, 3]."""
        side = self.result.images.shape[1]
        shown = np.full((side, side, 3), EMPTY, np.uint8)
        for stage in self.result.stages:
            accepted = stage.traces[0].accepted
            picture = stage.images[0].copy()
            tokens = int(np.sum(accepted[:steps]))
            below = shown if len(picture) == side else np.full_like(picture, EMPTY)
            picture.reshape(-1)[tokens:] = below.reshape(-1)[tokens:]
            shown = picture.repeat(side // len(picture), 0).repeat(side // len(picture), 1)
            steps = max(steps - len(accepted), 0)
            if not steps:
                break
        return shown


def draw(source: Pixels, panels: list[Panel], steps: int) -> Image.Image:
    """Return a frame: the input, and all decodes after `steps` steps."""
    font, small = (ImageFont.load_default(size) for size in (17, 15))
    frame = Image.new("RGB", ((SIDE + GAP) * (len(panels) + 1) + GAP, HEAD + SIDE + FOOT), PAPER)
    pen = ImageDraw.Draw(frame)
    columns = [(f"input, {len(source)}x{len(source)}", source, "")]
    for panel in panels:
        made = min(steps, panel.steps)
        ended = f", {panel.about}" if made == panel.steps else ""
        columns.append((panel.name, panel.after(made), f"{made:,} steps{ended}"))
    for number, (name, picture, below) in enumerate(columns):
        left = GAP + number * (SIDE + GAP)
        frame.paste(Image.fromarray(picture).resize((SIDE, SIDE), Image.Resampling.NEAREST), (left, HEAD))
        pen.text((left, 5), name, INK, font)
        pen.text((left, HEAD + SIDE + 6), below, FAINT, small)
    return frame


def main(
    output: Annotated[Path, typer.Option(help="Animated WebP to write.")],
    face: Annotated[Path, typer.Option(help="Input of the network's size.")] = Path("scripts/faces/face-6.png"),
    checkpoint: Annotated[str, typer.Option(help="Checkpoint name or folder.")] = "celeba-8to64",
    block_size: Annotated[int, typer.Option(help="Block size k of exact decoding.")] = 10,
    frames: Annotated[int, typer.Option(help="Number of frames of the longest decode.")] = 150,
    rate: Annotated[float, typer.Option(help="Frames per second.")] = 15.0,
) -> None:
    """Decode a face in three ways, and draw all of them growing side by side."""
    upscaler, source = Upscaler.load(checkpoint), read_image(face)
    decoded = [upscaler(source[None], upscaler.options(**given)) for given in (
        {"block_size": 1}, {"block_size": block_size, "adaptive": False},
        {"accept": "distance", "epsilon": 2, "adaptive": False})]
    require(bool((decoded[0].images == decoded[1].images).all()), "exact blocks changed the picture")
    away = float(np.abs(decoded[2].images.astype(float) - decoded[0].images).mean())
    names = "one token per step", f"exact blocks, up to {block_size}", "blocks within epsilon 2"
    ends = "done", "the same picture", f"{away:.1f} grey levels away"
    panels = [Panel(*parts) for parts in zip(names, decoded, ends, strict=True)]
    most = max(panel.steps for panel in panels)
    drawn = [draw(source, panels, round(most * number / frames)) for number in range(frames + 1)]
    output.parent.mkdir(parents=True, exist_ok=True)
    times = [round(1000 / rate)] * frames + [4000]
    drawn[0].save(output, save_all=True, append_images=drawn[1:], duration=times, loop=0, lossless=True, method=6,
                  minimize_size=True, xmp=marked(None))
    print(f"{output}: {output.stat().st_size / 1e3:.0f} kB; " + ", ".join(
        f"{panel.name} {panel.steps:,} steps" for panel in panels))


if __name__ == "__main__":
    typer.run(main)
