"""The process in which scripts/benchmark/speed.py decodes: one per variant of the compiled code,
and per checkout.

Of superres it uses public functions only, so that it measures other releases too; PYTHONPATH says
which. Beside our engines it has CTranslate2, with the weights of the same checkpoint.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from typing import Any

import numpy as np
import torch

import superres

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
    is_peer, is_text = engine.startswith(PEER), isinstance(inputs[0], str)
    pipeline = loaded(checkpoint, "native" if is_peer else engine)
    if is_peer:
        import peers  # optional dependencies

        peer = peers.ctranslate2_of(checkpoint, engine.removeprefix(PEER))
        decode = functools.partial(peers.by_ctranslate2, peer, pipeline, batch_size=batch_size or 1)
    else:
        options = pipeline.options(**given) if given else None
        more = {} if batch_size is None else {"batch_size": batch_size}
        decode = functools.partial(pipeline, options=options, **more)
    calls = [inputs[start : start + at_once] for start in range(0, len(inputs), at_once)]
    calls = calls if is_text else [np.array(call, np.uint8) for call in calls]
    torch.set_num_threads(threads or THREADS)
    if hasattr(superres, "set_threads"):  # older releases follow torch's number
        superres.set_threads(threads or THREADS)

    started, processor_started = time.perf_counter(), time.process_time()
    results = [decode(call) for call in calls]
    taken = {"seconds": time.perf_counter() - started,
             "cpu": time.process_time() - processor_started}

    if is_text:
        texts = [text for result in results for text in getattr(result, "texts", result)]
        return {**taken, "texts": texts}
    stages = [*zip(*(result.stage_traces(row) for result in results
                     for row in range(len(result.images))), strict=True)]
    return {**taken, **{name: [sum(getattr(trace, kind) for trace in stage) for stage in stages]
                        for name, kind in (("steps", "iterations"), ("tokens", "tokens"))}}


@functools.cache
def loaded(checkpoint: str, engine: str) -> Any:  # noqa: ANN401 -- by the task
    """Load a checkpoint once."""
    return superres.load(checkpoint, "cpu", engine)
