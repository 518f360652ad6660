"""How much detail pictures have, at which sizes and where: what PSNR does not see.

All measures are of the luminance (ITU-R BT.601, 0 to 255) of uint8 pictures [N,H,W,3], of which N
is at least 1.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from superres.evaluation.intervals import Estimate
from superres.evaluation.perceptual import Scores
from superres.pictures.read import Pixels
from superres.tasks.faces import FaceTask

LUMINANCE = np.array([0.299, 0.587, 0.114])


def luminance(images: Pixels) -> Scores:
    """Return the luminance, float64 [N,H,W]."""
    values: Scores = images @ LUMINANCE
    return values


def mean_gradient(images: Pixels) -> Scores:
    """Return each picture's mean gradient magnitude in grey levels per pixel, float64 [N].

    The gradient is the difference to the next pixel to the right and to the one below, of all
    pixels that have both.
    """
    values = luminance(images)
    across, down = np.diff(values, axis=2)[:, :-1], np.diff(values, axis=1)[:, :, :-1]
    magnitude: Scores = np.hypot(across, down).mean(axis=(1, 2))
    return magnitude


def gradient_by_position(images: Pixels, cell: int, axis: int) -> Scores:
    """Return each picture's mean absolute difference of neighbours by their position in a cell,
    float64 [N,cell].

    Neighbours lie along `axis`, 1 (downwards) or 2 (across), and cells have `cell` pixels along it.
    Position i is the difference of the pixels i and i + 1 of a cell; the last position is that of a
    cell's last pixel and the next cell's first.
    """
    steps = np.abs(np.diff(luminance(images), axis=axis)).mean(axis=3 - axis)  # [N, side - 1]
    return np.stack([steps[:, i::cell].mean(axis=1) for i in range(min(cell, steps.shape[1]))],
                    axis=1)


def swing(images: Pixels, cell: int, axis: int) -> Estimate:
    """Return by how many per cent the mean gradient swings with the position in a cell of the
    input.

    It is 100 * (largest - smallest) / mean over the positions of `gradient_by_position`, each
    averaged over all pictures. Seams of cells make it large; of photographs it is not 0, since
    faces lie alike in their crops. On the first 100 faces of `celeba-8to64`, across and down: true
    pictures 5 and 15, greedy ones 26 and 31. With fewer pictures it is larger by chance. The
    interval holds for the given largest and smallest positions.
    """
    gradient = gradient_by_position(images, cell, axis)
    means = gradient.mean(axis=0)
    largest, smallest = gradient[:, means.argmax()], gradient[:, means.argmin()]
    return Estimate.ratio(100 * (largest - smallest), gradient.mean(axis=1))


def swings(images: Pixels, task: FaceTask) -> dict[str, Estimate]:
    """Return the `swing` in both directions."""
    cell = task.target // task.source
    return {"swing_across": swing(images, cell, 2), "swing_down": swing(images, cell, 1)}


def bands(task: FaceTask) -> dict[str, tuple[float, float]]:
    """Return the radial frequencies, above the first and up to the second, in cycles per picture,
    by a band's name.

    The first band ends at the input's Nyquist frequency, and each other one an octave higher; the
    last has all that is left. From 6 to 18 pixels: 0 to 3, 3 to 6 and above 6.
    """
    edges, edge = [0.0], task.source / 2
    while edge < task.target / 2:
        edges.append(edge)
        edge *= 2
    inner = {f"power_{low:g}_to_{high:g}": (low, high) for low, high in pairwise(edges)}
    return {**inner, f"power_over_{edges[-1]:g}": (edges[-1], np.inf)}


def band_power(images: Pixels, task: FaceTask) -> dict[str, Scores]:
    """Return each picture's power in each of the `bands`, float64 [N] by name.

    It is that of the cosine transform, which continues a picture by its mirror image: the picture's
    borders are no edges. A coefficient k has k / 2 cycles per picture. The mean luminance is in no
    band.
    """
    from scipy import fft  # slow to import

    power = np.square(fft.dctn(luminance(images), axes=(1, 2), norm="ortho"))
    cycles = np.arange(task.target) / 2
    radius = np.hypot(cycles[:, None], cycles)
    return {name: power[:, (low < radius) & (radius <= high)].sum(axis=1)
            for name, (low, high) in bands(task).items()}


def detail_scores(images: Pixels, references: Pixels, task: FaceTask) -> dict[str, Estimate]:
    """Return the detail of pictures of `task` beside that of the true pictures `references`.

    "detail" is the mean gradient magnitude over the truth's, then there are the `swings`, and then
    the power of each band over the truth's in dB. The ratios are of sums over all pictures.
    """
    own, true = band_power(images, task), band_power(references, task)
    power = {name: Estimate.ratio(own[name], true[name]).decibels() for name in own}
    return {"detail": Estimate.ratio(mean_gradient(images), mean_gradient(references)),
            **swings(images, task), **power}
