"""What tests/decoding/test_lookahead.py decodes, by itself and as one of several processes."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.distributed
from fakes import VARIANTS, limits_of, random_model, random_tokens
from textual import CONFIG, wordy

from decodes import decode
from superres.config import DecodeConfig
from superres.decoding.plain.limited import LimitedModel
from superres.decoding.plain.lookahead.peers import Peers
from superres.nn.torch_model import StepModel

LOOKAHEAD = {"proposer": "lookahead", "window": 5, "candidates": 3}
WAYS = {
    "greedy": DecodeConfig(block_size=2, **LOOKAHEAD),
    "longer": DecodeConfig(block_size=5, **LOOKAHEAD),
    "coupled": DecodeConfig(block_size=3, temperature=0.4, seed=5, **LOOKAHEAD),
    "relaxed": DecodeConfig(block_size=4, accept="top-k", top_k=2, **LOOKAHEAD),
    "speculative": DecodeConfig(block_size=4, temperature=0.3, seed=6, sampling="speculative",
                                **LOOKAHEAD),
}
VARIANTS_HERE = ("text", "sentences", "limited")


def model_and_source(variant):
    """Return a network and sources for three rows."""
    if variant == "sentences":
        return StepModel(wordy(CONFIG, 2), end_token=1), random_tokens(CONFIG, 3, seed=5)[0]
    if variant == "limited":
        model, source = model_and_source("base aids")
        return LimitedModel(model, limits_of(model.model.config)), source
    return StepModel(random_model(VARIANTS[variant])), random_tokens(VARIANTS[variant], 3)[0]


def decode_all(peers=None):
    """Return tokens and accepted block sizes of every variant and way."""
    made = {}
    for variant in VARIANTS_HERE:
        model, source = model_and_source(variant)
        (model.model if isinstance(model, LimitedModel) else model).peers = peers
        for way, options in WAYS.items():
            decoded = decode(model, source, options)
            made[f"{variant}, {way}"] = [decoded.tokens.tolist(),
                                         [trace.accepted for trace in decoded.traces]]
    return made


class Counted(Peers):
    """Notes how many numbers each call gathers."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def gather(self, values):
        assert values.dtype == torch.int64
        self.sizes.append(values.numel())
        return super().gather(values)


def main(folder):
    """Decode as one of several processes."""
    torch.distributed.init_process_group("gloo")
    peers = Counted()
    made = decode_all(peers)
    torch.distributed.destroy_process_group()
    (Path(folder) / f"{peers.rank}.json").write_text(json.dumps({
        "made": made, "gathered": max(peers.sizes), "sizes": peers.sizes,
        "messages": peers.messages, "bytes": peers.sent_bytes}))


if __name__ == "__main__":
    main(sys.argv[1])
