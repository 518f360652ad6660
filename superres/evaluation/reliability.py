"""Find the mask of the pixels that one can rely on, by conformal prediction, and measure its
coverage.

The mask is that of Adame et al. 2025, "Image Super-Resolution with Guarantees via Conformalized
Generative Models" (arXiv 2502.09664): the pixels whose uncertainty is at most t. It is the largest
t for which an error of the mask is controlled, as n calibration faces show. In the paper, the error
is the largest one of all pixels in the mask. Here it is the share of wrong pixels, which differ
from the truth by more than a tolerance. With a coverage of 0.9, the loss of a face is the mean over
its pixels of

    [in the mask] * ([wrong] - 0.1)

which is 0 on average where a tenth of the mask is wrong, and at most 0.9. So by conformal risk
control (Angelopoulos et al. 2024), t is the largest uncertainty with n / (n + 1) * mean loss + 0.9
/ (n + 1) <= 0. Of further faces like these, the expected number of wrong pixels is then at most a
tenth of the expected number of pixels in the mask.

The proof of that needs a loss that never falls as t grows. This one falls while fewer than a tenth
of the pixels of the uncertainty t are wrong, so the bound holds as far as larger uncertainties have
more errors.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from superres.config import COVERAGE, LARGEST_ERROR, Reliability, require
from superres.evaluation.drawing import draw_samples
from superres.pictures.read import Pixels
from superres.pipeline.upscaler import Upscaler
from superres.system.progress import track
from superres.tasks.face_data import FacePairs

BATCH = 16
"""Faces decoded together."""


def threshold_of(uncertainty: np.ndarray, is_wrong: np.ndarray,
                 coverage: float = COVERAGE) -> float:
    """Return the largest uncertainty of the mask; -1 if no pixel can be relied on.

    Args:
        uncertainty: of each pixel of the calibration faces, [N, H, W].
        is_wrong: whether it differs from the truth by more than the tolerance, bool [N, H, W].
        coverage: wanted share of the mask's pixels that are not wrong.
    """
    faces, order = len(uncertainty), uncertainty.ravel().argsort(kind="stable")
    values, loss = (uncertainty.ravel()[order], (is_wrong.ravel()[order] - (1 - coverage)).cumsum()
                    / uncertainty[0].size)
    # pixels of the same uncertainty are in the mask together
    last = np.append(values[1:] != values[:-1], True)
    # the condition of the module's docstring, times n + 1
    within = np.flatnonzero(last & (loss + coverage <= 0))
    return float(values[within[-1]]) if faces and len(within) else -1.0


def least_faces(coverage: float) -> int:
    """Return the smallest number of faces for a calibration.

    With n faces, coverage / n of the share 1 - coverage of wrong pixels is lost to the correction
    for the number of faces. With this number, half of the share is left on each half of the faces.
    """
    return math.ceil(4 * coverage / (1 - coverage) - 1e-9)


def mask_scores(reliable: np.ndarray, is_wrong: np.ndarray) -> dict[str, float | None]:
    """Return the share of the mask's pixels that are right, None if it is empty, and the mask's
    share of all pixels."""
    count = int(reliable.sum())
    return {"coverage": float(1 - is_wrong[reliable].mean()) if count else None,
            "reliable": count / reliable.size}


def judged_faces(upscaler: Upscaler, pairs: FacePairs) -> tuple[np.ndarray, np.ndarray]:
    """Draw faces with the checkpoint's default settings, and return the uncertainty and the error
    of their pixels.

    The error is the difference to the truth in grey levels, as the mean over the colours; both are
    float32 [N, H, W].
    """
    drawn = draw_samples(pairs.lr, upscaler, upscaler.default, [1], BATCH, "drawing faces")
    uncertainty = [batch.uncertainty for batch in track(drawn, "judging faces", "batches")]
    images = np.concatenate([batch.images for batch in drawn])
    return np.concatenate(uncertainty), pixel_error(images, pairs.hr)


def pixel_error(images: Pixels, truth: Pixels) -> np.ndarray:
    """Return the difference of uint8 [N, H, W, 3] in grey levels, as the mean over the colours,
    float32 [N, H, W]."""
    difference: np.ndarray = np.abs(images.astype(np.float32) - truth).mean(axis=-1)
    return difference


def calibrate_mask(
    upscaler: Upscaler, pairs: FacePairs, tolerance: float = LARGEST_ERROR,
    coverage: float = COVERAGE,
) -> tuple[Reliability, dict[str, Any]]:
    """Find the mask on all faces, and report its scores on every other face by the mask of the
    rest.

    Raises:
        ConfigError: there are fewer than `least_faces`, or no pixel can be relied on as often as
            `coverage` asks.
    """
    require(coverage < 1, "no number of faces shows a coverage of 1; give a smaller --coverage")
    least = least_faces(coverage)
    require(len(pairs) >= least,
            f"{len(pairs)} faces are too few for a coverage of {coverage:g}; give at least {least}")
    uncertainty, error = judged_faces(upscaler, pairs)
    is_wrong = error > tolerance
    half = threshold_of(uncertainty[::2], is_wrong[::2], coverage)
    held_out = mask_scores(uncertainty[1::2] <= half, is_wrong[1::2])
    threshold = threshold_of(uncertainty, is_wrong, coverage)
    require(threshold >= 0, f"no pixels are within {tolerance:g} grey levels as often as "
            f"{coverage:g}; give more faces, a larger --tolerance or a smaller --coverage")
    found = Reliability(round(threshold, 4), tolerance, coverage, upscaler.revision)
    report = {"checkpoint": f"{upscaler.name}@{upscaler.revision}", "images": len(pairs),
              **found.to_dict(), "within_tolerance": float(1 - is_wrong.mean()),
              "held_out": {"images": len(pairs) // 2, **held_out}}
    return found, report


def mask_text(report: dict[str, Any]) -> str:
    """Return the report of `calibrate_mask` as lines of text."""
    held_out = report["held_out"]
    right = "no" if held_out["coverage"] is None else f"{held_out['coverage']:.1%}"
    return (f"{report['checkpoint']}: pixels of an uncertainty up to {report['threshold']:.2f} are "
            f"reliable\nof all pixels of {report['images']} faces, "
            f"{report['within_tolerance']:.1%} are within {report['tolerance']:g} grey levels of "
            f"the truth\ncalibrated on every other face, the mask has {held_out['reliable']:.1%} "
            f"of the pixels of the {held_out['images']} held-out ones; {right} of them are within")
