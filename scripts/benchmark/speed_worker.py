"""The process in which scripts/benchmark/speed.py decodes: one per variant of the compiled code,
and per checkout.

Of superres it uses public functions only, so that it measures other releases too; PYTHONPATH says
which. Beside our engines it has CTranslate2 (the `peers` extra), with the weights of the same
checkpoint.
"""

from __future__ import annotations

import functools
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import superres

if TYPE_CHECKING:
    import ctranslate2

    from superres.pipeline.translator import Translator

PEER = "CTranslate2 "
"""Begins the name of an engine of CTranslate2; the type of its numbers follows."""
THREADS = torch.get_num_threads()


def serve() -> None:
    """Answer each line of standard input, the arguments of `answer` as JSON, by a line."""
    for line in sys.stdin:
        print(json.dumps(answer(**json.loads(line))), flush=True)


def answer(checkpoint: str, engine: str, given: dict[str, Any], inputs: list[Any], at_once: int,
           threads: int | None, batch_size: int | None) -> dict[str, Any]:
    """Decode `inputs`, `at_once` per call, and return the seconds, those of the processor, steps,
    tokens and texts.

    `inputs` are pixels of sources or lines of text. Without options `given`, the default decodes.
    `batch_size` is that of text, or None. Steps and tokens are sums over the inputs, by stage.
    CTranslate2 changes the number of threads of the whole process, so that it is set for every
    decode.
    """
    pipeline = loaded(checkpoint, "native" if engine.startswith(PEER) else engine)
    options = pipeline.options(**given) if given else None
    more = {} if batch_size is None else {"batch_size": batch_size}
    peer = loaded_peer(checkpoint, engine.removeprefix(PEER)) if engine.startswith(PEER) else None
    calls = [inputs[start : start + at_once] for start in range(0, len(inputs), at_once)]
    calls = calls if isinstance(inputs[0], str) else [np.array(call, np.uint8) for call in calls]
    torch.set_num_threads(threads or THREADS)
    started, processor_started = time.perf_counter(), time.process_time()
    results = [pipeline(call, options, **more) if peer is None else by_peer(peer, pipeline, call,
                                                                            batch_size or 1)
               for call in calls]
    taken = {"seconds": time.perf_counter() - started,
             "cpu": time.process_time() - processor_started}
    if isinstance(inputs[0], str):
        return {**taken,
                "texts": [text for result in results for text in getattr(result, "texts", result)]}
    rows = [result.stage_traces(row) for result in results for row in range(len(result.images))]
    return {**taken,
            "steps": [sum(trace.iterations for trace in stage)
                      for stage in zip(*rows, strict=True)],
            "tokens": [sum(trace.tokens for trace in stage) for stage in zip(*rows, strict=True)]}


@functools.cache
def loaded(checkpoint: str, engine: str) -> Any:  # noqa: ANN401 -- by the task
    """Load a checkpoint once."""
    return superres.load(checkpoint, "cpu", engine)


@functools.cache
def loaded_peer(checkpoint: str, kind: str) -> ctranslate2.Translator:
    """Load a checkpoint into CTranslate2, as `superres export ctranslate2` writes it."""
    import ctranslate2

    from superres.pipeline.ctranslate2_export import export_ctranslate2

    with tempfile.TemporaryDirectory() as folder:
        export_ctranslate2(checkpoint, Path(folder))
        return ctranslate2.Translator(folder, compute_type=kind, inter_threads=1, intra_threads=1)


def by_peer(peer: ctranslate2.Translator, translator: Translator, lines: list[str],
            batch_size: int) -> list[str]:
    """Translate greedily with CTranslate2, which forms batches of similar lengths, with the tokens
    of `translator`."""
    pieces, network = translator.codec.pieces, translator.model_config
    tokens = [pieces.encode(line, out_type=str) for line in lines]
    results = peer.translate_batch(tokens, beam_size=1, max_batch_size=batch_size,
                                   max_decoding_length=network.target_length)
    # It has no largest length for each source.
    most = [network.longest_target(len(row) + 1) for row in tokens]
    return [pieces.decode(result.hypotheses[0][:length]) for result,
            length in zip(results, most, strict=True)]
