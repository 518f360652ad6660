"""What the tests of pipelines share: inputs, settings that decode in few steps, and what a stream
gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from superres.config import DecodeConfig
from superres.pictures.read import read_image

FACES = Path(__file__).parents[2] / "scripts" / "faces"
FACE = FACES / "face-1.png"
WIDE_STEPS = DecodeConfig(accept="distance", epsilon=255)  # accepts everything: few calls


def face(number=1):
    """Return a drawn face, uint8 [8, 8, 3]."""
    return read_image(FACES / f"face-{number}.png")


def by_item(stream):
    """Return the results of a stream by the identity of their item."""
    return {id(one.item): one for done in stream.run() for one in done}


def images_of(upscaler, results):
    """Return the pictures of results, uint8 [N, S, S, 3]."""
    return upscaler.face_task.decode(np.stack([one.tokens for one in results]))


def left_of(stream):
    """Return the items that a stream has not completed: those under way and those of its feed."""
    rest = iter(lambda: (stream._given(1, True) or [None])[0], None)
    return [*stream.under_way, *rest]
