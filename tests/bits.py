"""Print digests of all that is computed from the bundled checkpoints, by name, as JSON: see
test_same_bits.py."""

from __future__ import annotations

import hashlib
import json
import sys

import numpy as np
import torch

import superres
from superres.checkpoint import bundled_checkpoints
from superres.config import BeamConfig, DecodeConfig
from superres.decoding.confidence import ConfidentBlockSize
from superres.decoding.plain.noise import Noise
from superres.pipeline.translator import Translator
from tests.proofs.golden.cases import LINES, face

FACES = {"consistent": DecodeConfig(accept="distance", consistent=True),
         "sampled": DecodeConfig(temperature=0.9, nucleus=0.9)}
TEXTS = {"exact": DecodeConfig(), "beam": BeamConfig(4)}


def digest(arrays):
    """Return a digest of the shapes and bytes of arrays."""
    found = hashlib.sha256()
    for array in arrays:
        array = np.asarray(array)
        found.update(str((array.dtype, array.shape)).encode() + array.tobytes())
    return found.hexdigest()[:16]


def digests(name, engine):
    """Yield the digests of what is packed of a checkpoint, of every table of a decode, and of
    decodes."""
    pipeline = superres.load(name, engine=engine, device="cpu")
    native, config = pipeline.scoring, pipeline.model_config
    yield "packed", digest(part for part in native.packed.tensors if isinstance(part, np.ndarray))
    text = isinstance(pipeline, Translator)
    if text:
        source = np.arange(3, 3 + 2 * 40).reshape(2, 40)
    else:
        source = np.resize(face(), (1, *config.source_shape)).reshape(1, -1).astype(np.int64)
    memory = native.encode(source)
    yield "memory", digest(part for part in vars(memory).values() if part is not None)
    # Of a shortlist's weights, whole numbers, those of absent tokens are undefined.
    session = native.session(memory, native.prediction_heads)
    yield "tables", digest(part for name, part in session.rows.items()
                           if name not in session.caches and part.dtype != np.uint8)
    yield "noise", digest([Noise(3, torch.arange(4),
                                 config.vocabulary).gumbel(torch.arange(12).view(4, 3))])
    if (confidence := pipeline.block_sizes.confidence) is not None:
        costs = ConfidentBlockSize(confidence, [1.0, 1.1, 1.2], DecodeConfig(), config.vocabulary)
        yield "confidence", digest(vars(costs.block_costs(1, config.target_shape)).values())
    for way, options in (TEXTS if text else FACES).items():
        # Samples of 12,288 tokens take ten times as long as those of 3,072 tokens, and show the
        # same.
        if native.prediction_heads > 1 and (way != "sampled" or config.target_length < 10_000):
            result = pipeline(LINES if text else np.resize(face(), (1, *config.source_shape)),
                              options)
            yield way, digest([json.dumps(result.texts)] if text else [result.images])


if __name__ == "__main__":
    found = {f"{name}, {engine}, {what}": value for name in bundled_checkpoints()
             if name in sys.argv[1:]
             for engine in ("native", "native-int8") for what, value in digests(name, engine)}
    sys.stdout.write(json.dumps(found))
