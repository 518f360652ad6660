"""Decodes whose results are on record: small networks with every engine, criterion, proposer and
way of sampling.

`PYTHONPATH=.:tests:scripts python -m tests.proofs.golden.cases` adds the cases that are not on
record yet. With `--all` it records every case anew, which only a change that is meant to change
tokens may do.
"""

from __future__ import annotations

import functools
import hashlib
import json
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import torch
from fakes import (
    VARIANTS,
    Waiting,
    criterion_options,
    on_native,
    proposer_for,
    random_model,
    random_tokens,
    stacked,
)
from PIL import Image

from decodes import algorithm_of, decode
from superres.config import BeamConfig, DecodeConfig
from superres.decoding.acceptance import CRITERIA
from superres.decoding.batching import Stream, feed_of
from superres.decoding.plain.beam import beam_search
from superres.decoding.proposers import PROPOSERS
from superres.nn.torch_model import StepModel
from superres.pipeline.translator import Translator
from superres.pipeline.upscaler import Upscaler

ROOT = Path(__file__).parents[3]
RECORD = Path(__file__).with_name("record.json")
ROWS = 5
HEADS = VARIANTS["sequential heads"]
TEXT = {name: VARIANTS[name] for name in ("text", "recurrent heads")}
WIDER = {"width": 32, "filter_size": 64, "head_filter_size": 32}  # what compiled code wants
END = 2

WAYS = {
    "greedy": DecodeConfig(block_size=1),
    **{name: criterion_options(name) for name in CRITERIA},
    "minimum block": DecodeConfig(min_block=2),
    "k = 3": DecodeConfig(block_size=3),
    "gumbel": DecodeConfig(temperature=0.8, seed=3),
    "gumbel, top-k and nucleus": DecodeConfig(temperature=0.8, sample_top_k=4, nucleus=0.8),
    "gumbel, one by one": DecodeConfig(temperature=0.8, block_size=1),
    "speculative": DecodeConfig(temperature=0.8, sampling="speculative", nucleus=0.9, seed=3),
    "speculative, draft": DecodeConfig(temperature=0.8, sampling="speculative", proposer="draft"),
    "speculative, lookahead": DecodeConfig(temperature=0.8, sampling="speculative",
                                           proposer="lookahead"),
    **{f"proposer {name}": DecodeConfig(proposer=name) for name in PROPOSERS if name != "heads"},
}
"""Decoding settings of the small networks."""

PICTURES = {
    "greedy": DecodeConfig(block_size=1), "exact": DecodeConfig(),
    "epsilon 2": DecodeConfig(accept="distance"),
    "top-k": DecodeConfig(accept="top-k", block_size=6),
    "gumbel": DecodeConfig(temperature=0.9, seed=7),
    "n-grams": DecodeConfig(proposer="ngram", block_size=4),
    "consistent": DecodeConfig(accept="distance", consistent=True),
}
"""Decoding settings of the bundled checkpoint for faces."""

SENTENCES = {
    "greedy": DecodeConfig(block_size=1), "exact": DecodeConfig(),
    "top-k": DecodeConfig(accept="top-k", top_k=3), "draft": DecodeConfig(proposer="draft"),
    "lookup": DecodeConfig(proposer="lookup"), "lookahead": DecodeConfig(proposer="lookahead"),
    "beam 4": BeamConfig(4),
}
"""Decoding settings of the bundled checkpoint for text."""

LINES = ["A dog runs through the snow.", "Two men are talking on the street.", "A girl in a red "
         "shirt eats ice cream."]


def digest(tokens, lengths, accepted):
    """Return what is put on record of a decode: a digest of its tokens and blocks, and how many
    there were."""
    rows = [np.asarray(row[:length], np.int64).tobytes() for row,
            length in zip(tokens, lengths, strict=True)]
    text = hashlib.sha256(b"".join(rows)).hexdigest()[:16]
    blocks = hashlib.sha256(json.dumps(accepted).encode()).hexdigest()[:16]
    return {"tokens": text, "blocks": blocks, "iterations": sum(map(len, accepted))}


def of_decoded(decoded):
    """Return the record of a `Decoded`."""
    return digest(decoded.tokens.tolist(), decoded.lengths.tolist(),
                  [trace.accepted for trace in decoded.traces])


def refilled(model, source, options, proposer):
    """Decode sequences two at a time, each as soon as there is room."""
    feed = feed_of([Waiting(one, key, key) for key, one in enumerate(source)])
    decoder = Stream(algorithm_of(model, options, proposer), feed, stacked, 2)
    finished = [one for some in decoder.run() for one in some]
    finished.sort(key=lambda one: one.item.tag)
    tokens = [one.tokens.tolist() for one in finished]
    return digest(tokens, [one.trace.tokens for one in finished],
                  [one.trace.accepted for one in finished])


def small(make, config, options, in_turn=False):
    """Decode random sources with the engine `make` of a small network, as a batch or two at a
    time."""
    model, source = make(config), random_tokens(config, ROWS)[0]
    proposer = proposer_for(options.proposer, model)
    if in_turn:
        return refilled(model, source, options, proposer)
    return of_decoded(decode(model, source, options, proposer=proposer))


def plain(config, end_token=None):
    """Return the plain engine of a random network."""
    return StepModel(random_model(config), end_token)


def searched(config):
    """Search the best targets of random sources with a small network."""
    found = beam_search(plain(config, END), random_tokens(config, ROWS)[0], BeamConfig(3))
    return digest(found.tokens.tolist(), found.lengths.tolist(), [])


ENGINES = {
    "native": lambda config: on_native(random_model(config, dtype=torch.float32)),
    "native-int8": lambda config: on_native(random_model(config, dtype=torch.float32),
                                            precision="int8"),
}
"""Engines beside the plain one, which all other small networks are decoded with."""


@functools.cache
def upscaler(engine):
    """Return the bundled checkpoint for faces."""
    return loaded(Upscaler, engine)


@functools.cache
def translator(engine):
    """Return the bundled checkpoint for text."""
    return loaded(Translator, engine)


def loaded(kind, engine):
    """Load a bundled checkpoint; for torch in float64, since the order of its sums depends on the
    processor."""
    pipeline = kind.load(device="cpu", engine=engine)
    if engine == "plain":
        pipeline.model.double()
    return pipeline


def face():
    """Return a drawn face, reduced to 8x8."""
    picture = Image.open(Path(__file__).with_name("face.png")).convert("RGB")
    return np.asarray(picture.resize((8, 8), Image.Resampling.BOX))


def upscaled(engine, options):
    """Upscale a face with the bundled checkpoint."""
    result = upscaler(engine)(face()[None], options)
    return digest([result.images.flatten()], [result.images.size],
                  [trace.accepted for trace in result.traces])


def translated(engine, options):
    """Translate some lines with the bundled checkpoint."""
    result = translator(engine)(LINES, options)
    rows = [list(text.encode()) for text in result.texts]
    return digest(rows, map(len, rows),
                  [trace.accepted for trace in result.traces])


def _cases():
    for way, options in WAYS.items():
        yield f"plain, {way}", functools.partial(small, plain, HEADS, options)
        yield f"plain, refilled, {way}", functools.partial(small, plain, HEADS, options, True)
    for name, config in TEXT.items():
        ending = functools.partial(plain, end_token=END)
        yield f"plain, {name}", functools.partial(small, ending, config, DecodeConfig())
        yield f"plain, refilled, {name}", functools.partial(small, ending, config, DecodeConfig(),
                                                            True)
        yield f"plain, beam, {name}", functools.partial(searched, config)
    for name, config in VARIANTS.items():
        yield f"plain, network {name}", functools.partial(small, plain, config, DecodeConfig())
    for engine, make in ENGINES.items():
        for way in ("greedy", "exact", "distance", "top-k", "gumbel", "speculative",
                    "proposer jacobi", "proposer draft"):
            yield f"{engine}, {way}", functools.partial(small, make, replace(HEADS, **WIDER),
                                                        WAYS[way])
        yield f"{engine}, refilled", functools.partial(small, make, replace(HEADS, **WIDER),
                                                       WAYS["exact"], True)
        yield f"{engine}, text", functools.partial(small, make, replace(TEXT["text"], **WIDER),
                                                   WAYS["exact"])
    for way, options in PICTURES.items():
        yield f"faces, native, {way}", functools.partial(upscaled, "native", options)
    for engine, way in product(("plain", "native-int8"), ("epsilon 2", "consistent")):
        yield f"faces, {engine}, {way}", functools.partial(upscaled, engine, PICTURES[way])
    for engine in ("native", "plain"):
        for way, options in SENTENCES.items():
            yield f"text, {engine}, {way}", functools.partial(translated, engine, options)


CASES = dict(_cases())
"""What returns the record of a decode, by name."""


def main():
    """Write the record."""
    record = ({} if "--all" in sys.argv[1:] or not RECORD.exists()
              else json.loads(RECORD.read_text()))
    for name, case in CASES.items():
        if name not in record:
            record[name] = case()
    lines = [f"  {json.dumps(name)}: {json.dumps(record[name])}" for name in CASES
             if name in record]
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
