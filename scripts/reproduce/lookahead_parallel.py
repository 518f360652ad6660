"""Measure lookahead parallelism (Fu et al. 2024, section 3.4): one of the processes that decode
sentences together.

    torchrun --nproc-per-node 2 scripts/reproduce/lookahead_parallel.py val --limit 20

Every process has the whole network and reads its part of the window's columns and of the
candidates; see `superres.decoding.proposers.lookahead.peers`. Processes with a GPU each exchange
their tokens through NCCL, others through Gloo. The first one prints a JSON line per setting, with
averages per sentence.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.distributed
import typer

sys.path.append(str(Path(__file__).resolve().parents[1]))

from decodes import Decoded, decode
from superres import DecodeConfig, SuperresError
from superres.config import DEFAULT_TRANSLATOR
from superres.decoding.proposers.lookahead.iteration import Layout
from superres.decoding.proposers.lookahead.peers import Peers
from superres.pipeline.translator import Translator
from superres.system.machine import Timer
from superres.system.output import short_digest
from superres.tasks.translation import read_pairs

SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {}, "coupled": {"temperature": 0.9},
    "speculative": {"temperature": 0.9, "sampling": "speculative"}}


def join_group() -> torch.device:
    """Join the other processes that torchrun has started, and return this one's device."""
    if not torch.cuda.is_available():
        torch.distributed.init_process_group("gloo")
        return torch.device("cpu")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.distributed.init_process_group("nccl")
    return torch.device("cuda")


def measured(
    translator: Translator, sources: list[torch.Tensor], options: DecodeConfig, peers: Peers,
) -> dict[str, Any]:
    """Decode all sources with all processes, and return the averages."""
    size, model, timer = options.block_size or 1, translator.scoring, Timer(translator.device)
    decode(model, sources[0], options)  # warms up
    sent, started = (peers.messages, peers.sent_bytes), timer.now()
    decoded = [decode(model, source, options) for source in sources]
    seconds = timer.now() - started
    steps, calls = (sum(getattr(made.traces[0], name) for made in decoded)
                    for name in ("iterations", "model_calls"))
    own = Layout.of(options, size, model.peers).tree.size, tokens_of(decoded)
    everyone: list[Any] = [None] * peers.count
    torch.distributed.all_gather_object(everyone, own)
    if len({tokens for _, tokens in everyone}) > 1:
        raise RuntimeError(f"the processes decoded different tokens with window {options.window}")
    return {
        "sentences": len(sources), "device": translator.device.type,
        "backend": torch.distributed.get_backend(), "processes": peers.count,
        "window": options.window, "block_size": size, "candidates": options.candidates,
        "columns": max(count for count, _ in everyone), "tokens": own[1],
        "steps": steps / len(sources),
        "step_compression": sum(int(made.lengths.sum()) for made in decoded) / steps,
        "messages": (peers.messages - sent[0]) / calls, "bytes": (peers.sent_bytes - sent[1])
        / calls, "seconds": seconds / len(sources),
    }


def tokens_of(decoded: list[Decoded]) -> str:
    """Return a digest of all tokens and of the blocks in which they were accepted."""
    return short_digest(json.dumps([[made.tokens.tolist(), made.traces[0].accepted]
                                    for made in decoded]).encode())


def main(
    data: Annotated[Path, typer.Argument(help="Parallel text PATH.en and PATH.de.")],
    checkpoint: Annotated[str, typer.Option(help="Checkpoint name, folder or hub "
                                            "id.")] = DEFAULT_TRANSLATOR,
    limit: Annotated[int, typer.Option(help="Number of sentences.")] = 20,
    widths: Annotated[str, typer.Option(metavar="W,W,...", help="Values of W = G.")] = "4,8,16",
    ngram_size: Annotated[int, typer.Option(help="N.")] = 4,
) -> None:
    """Decode with greedy choices, coupled sampling and speculative sampling, and print a JSON line
    each."""
    device = join_group()
    peers = Peers()
    translator = Translator.load(checkpoint, device.type, "plain")
    translator.scoring.peers = peers if peers.count > 1 else None
    sources = [torch.from_numpy(translator.codec.encode([line])).to(device)
               for line in read_pairs(data, translator.languages, limit).source if line.strip()]
    for width in map(int, widths.split(",")):
        for sampling, settings in SAMPLINGS.items():
            options = DecodeConfig(
                block_size=ngram_size, proposer="lookahead", window=width, candidates=width,
                **settings)
            row = measured(translator, sources, options, peers)
            if peers.rank == 0:
                print(json.dumps({**row, "sampling": sampling}))


if __name__ == "__main__":
    try:
        typer.run(main)
    except SuperresError as error:
        sys.exit(f"lookahead_parallel: {error}")
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
