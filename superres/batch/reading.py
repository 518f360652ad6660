"""Read the inputs of a batch: from a file to the network's input."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from typing import TypeAlias

import numpy as np

from superres.batch.archives import Content
from superres.batch.inputs import Input
from superres.batch.record import Output, Request, RunSettings
from superres.batch.run_options import KEEP_ALPHA, BatchOptions
from superres.errors import PlaceError, SuperresError
from superres.pictures.read import Picture, Pixels
from superres.pictures.untrusted import read_untrusted
from superres.system.progress import say
from superres.tasks.crops import Crop
from superres.tasks.faces import FaceTask
from superres.tasks.photos import choose_crops, crop_note, input_of

Opened: TypeAlias = tuple[int, Input, list[int], Content | SuperresError]
"""An input's number among those of the run, the input, the numbers (from 1) of its samples to make,
and its content, or the error why it cannot be read."""
Made: TypeAlias = tuple[int, list[Request | Output]]
"""An input's number among those of the run, and all its outputs: to be decoded, or failed."""


def read_requests(opened: Iterable[Opened], settings: RunSettings,
                  cropped: Callable[[str], None]) -> Iterator[Made]:
    """Yield the requests of each input: one per crop and sample, or a failed output per sample.

    `cropped` gets, for a photo, the line that says how it was cropped.
    """
    options, task = settings.options, settings.task
    if options.source == "photo":
        # reduces pictures of the size of a later stage's input, too
        task = replace(task, between=())
    for turn, entry, samples, content in opened:
        made = list[Request | Output]()
        try:
            picture, crops = _open(entry, content, options, task)
            reduced = [_reduced(picture, crop, options, task) for crop in crops]
        except PlaceError:
            raise
        except (SuperresError, OSError, ValueError, MemoryError) as error:
            message, outputs = (" ".join(str(error).split()) or type(error).__name__,
                                options.outputs(entry))
            reason = message if entry.input in message else f"{entry.input}: {message}"
            made += [settings.failed(entry, outputs[sample - 1], reason, turn, index)
                     for index, sample in enumerate(samples)]
            yield turn, made
            continue
        for line in picture.notes:
            say(f"{entry.input}: {line}")
        note = crop_note(entry.input, picture.rgb, crops, task)
        if note is not None:
            cropped(note)
        for crop, small in zip(crops, reduced, strict=True):
            outputs, record = (options.outputs(entry, crop.face),
                               None if note is None else asdict(crop))
            made += [Request(turn, len(made) + index, sample, entry, outputs[sample - 1], small,
                             record)
                     for index, sample in enumerate(samples)]
        yield turn, made


def _open(
    entry: Input, content: Content | SuperresError, options: BatchOptions, task: FaceTask,
) -> tuple[Picture, list[Crop]]:
    """Return the picture of an input and its squares; raise the error why there is none."""
    if isinstance(content, SuperresError):
        raise content
    if isinstance(content, np.ndarray):
        picture = Picture(content)
    else:
        background = "white" if options.alpha == KEEP_ALPHA else options.alpha
        picture = read_untrusted(content, entry.input, background=background, least=task.source)
    if options.source == "lowres":
        task.to_source(picture.rgb)  # refuses other sizes
    return picture, choose_crops(picture.rgb, task, options.crop)


def _reduced(picture: Picture, crop: Crop, options: BatchOptions, task: FaceTask) -> Picture:
    """Return a square as the network's input; the transparency has the output's size."""
    source, alpha = input_of(picture.rgb, crop, task), None
    if options.alpha == KEEP_ALPHA and picture.alpha is not None:
        low = input_of(picture.alpha[:, :, None], crop, task)
        large = task.enlarge(np.repeat(low[None], 3, axis=3), "bicubic")
        source, alpha = unblend(source, low), large[0, :, :, 0]
    return Picture(source, alpha)


def unblend(pixels: Pixels, alpha: Pixels) -> Pixels:
    """Return the colours that blend to `pixels` [H, W, 3] with `alpha` [H, W, 1] over white; white
    where alpha is 0."""
    weight = np.maximum(alpha.astype(np.float64), 1) / 255
    colour = (pixels - 255 * (1 - weight)) / weight
    return np.where(alpha == 0, 255, colour.round().clip(0, 255)).astype(np.uint8)
