"""Measure Lookahead decoding with different sizes: step compression and time, one sentence at a time.

    python scripts/benchmark/lookahead.py --data val --limit 200 --sizes 10,4,10 --sizes 15,5,15
    torchrun --nproc-per-node 2 scripts/benchmark/lookahead.py --data val --limit 200   # branches over two processes

The step compression S of the paper is tokens / steps. The time is compared with greedy decoding by the plain engine,
on which Lookahead runs, and by the fastest engine.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Annotated

import torch
import torch.distributed
import typer
from tqdm import tqdm

from cost_model import branches
from superres import DecodeConfig, SuperresError
from superres.config import DEFAULT_TRANSLATOR
from superres.errors import ConfigError
from superres.interfaces import Peers
from superres.pipeline.translator import Translator
from superres.system.training_lock import training_paused
from superres.tasks.translation import read_pairs

SIZES = ["5,3,5", "10,3,10", "10,4,10", "15,4,15", "15,5,15"]


def parse_sizes(text: str) -> DecodeConfig:
    """Return the decoding settings for "W,N,G"; raise ConfigError if the text has another form."""
    try:
        window, size, candidates = map(int, text.split(","))
    except ValueError:
        raise ConfigError(f"--sizes takes W,N,G such as 10,4,10, not {text!r}") from None
    return DecodeConfig(block_size=size, proposer="lookahead", window=window, candidates=candidates)


@training_paused()
def main(
    data: Annotated[str, typer.Option(help="Parallel text PATH.en and PATH.de.")],
    checkpoint: Annotated[str, typer.Option(help="Checkpoint name, folder or hub id.")] = DEFAULT_TRANSLATOR,
    limit: Annotated[int, typer.Option(help="Number of sentences.")] = 200,
    sizes: Annotated[list[str], typer.Option(help="Sizes W,N,G; repeatable.")] = SIZES,
) -> None:
    """Print a JSON line per setting."""
    settings = {text: parse_sizes(text) for text in sizes}
    peers = None
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:  # started by torchrun
        torch.distributed.init_process_group("gloo")
        peers = Peers()
    plain, fastest = (Translator.load(checkpoint, "cpu", engine) for engine in ("plain", "auto"))
    plain.scoring.peers = peers
    greedy = DecodeConfig(block_size=1)
    runs = {"greedy": (plain, greedy), f"greedy, {fastest.engine}": (fastest, greedy),
            **{text: (plain, options) for text, options in settings.items()}}
    for translator, options in runs.values():  # checks all settings, and warms up
        translator(["A dog runs."], options)
    lines = read_pairs(data, plain.languages, limit).source
    texts: dict[str, list[str]] = {name: [] for name in runs}
    tokens, steps, seconds = (dict.fromkeys(runs, 0.0) for _ in range(3))
    for line in tqdm(lines, "translating", unit="sentence", disable=None):
        for name, (translator, options) in runs.items():
            started = time.perf_counter()
            made = translator([line], options)
            seconds[name] += time.perf_counter() - started
            texts[name] += made.texts
            tokens[name] += sum(made.tokens)
            steps[name] += sum(trace.iterations for traces in made.traces for trace in traces)
    for name, (translator, options) in runs.items():
        if peers is None or peers.rank == 0:
            print(json.dumps({
                "way": name, "engine": translator.engine, "processes": 1 if peers is None else peers.count,
                "columns": branches(options, options.block_size or 1)[1],
                "step_compression": tokens[name] / steps[name],
                "model_calls": steps[name] / len(lines) + 1, "seconds": seconds[name] / len(lines),
                "speed_up": seconds["greedy"] / seconds[name],
                "equal_sentences": sum(a == b for a, b in zip(texts[name], texts["greedy"], strict=True)) / len(lines),
            }))


if __name__ == "__main__":
    try:
        typer.run(main)
    except SuperresError as error:
        sys.exit(f"lookahead: {error}")
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
