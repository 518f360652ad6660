"""Whole iterations on a GPU that is not there: all tensors are on it, the host reads nothing, and kernels are counted.

`tests/test_gpu.py` decodes in the same ways where there is a GPU.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import product

import pytest
import torch
from fake_gpu import CUDA, Capture, Captures, fake_gpu
from fakes import VARIANTS, criterion_options, draft_of, ngrams_of

from superres.checkpoint import bundled_folder, read_network
from superres.config import DecodeConfig, ModelConfig
from superres.decoding.acceptance import CRITERIA
from superres.decoding.block_size import check_options
from superres.decoding.loop import decoding_type, opened_loop
from superres.decoding.proposers import PROPOSERS
from superres.decoding.proposers.proposer import with_proposer_state
from superres.decoding.sum_limits import LimitedModel, Limits
from superres.nn.cuda_graph import GraphModel
from superres.nn.model import EncoderDecoder
from superres.tasks.consistency import cell_limits

ROWS, END_TOKEN = 3, 3
KINDS = {
    "faces": replace(VARIANTS["sequential heads"], free_scores=False),
    "text": replace(VARIANTS["text"], source_shape=(21,)),
}
SAMPLING = {
    "greedy": {}, "sampled": {"temperature": 0.8}, "speculative": {"temperature": 0.8, "sampling": "speculative"},
}
FILTERS = {"nucleus": 0.9, "sample_top_k": 4}
LOOKAHEAD = {"block_size": 3, "window": 5, "candidates": 3}


@dataclass(frozen=True)
class Case:
    """An iteration to check: of which network, decoded how, and by which variant of the engine."""

    config: ModelConfig = KINDS["faces"]
    options: DecodeConfig = field(default_factory=DecodeConfig)
    limited: bool = False
    engine: dict = field(default_factory=dict)

    @property
    def is_text(self):
        return len(self.config.source_shape) == 1


def bundled(name, **options):
    """Return an iteration of a bundled checkpoint; faces are limited to their input, as they are by default."""
    return Case(read_network(bundled_folder() / name), DecodeConfig(**options), limited=name == "celeba-8to32")


CASES = {
    **{f"{kind}, {proposer}, {name}": Case(KINDS[kind], DecodeConfig(
        proposer=proposer, **SAMPLING[name], **(LOOKAHEAD if proposer == "lookahead" else {})))
       for (kind, name), proposer in product((("faces", "speculative"), ("text", "sampled")), PROPOSERS)},
    **{f"faces, {accept}, sampled": Case(options=criterion_options(accept, **SAMPLING["sampled"]))
       for accept in CRITERIA},
    **{f"limited, {name}": Case(options=DecodeConfig(**SAMPLING[name], **FILTERS), limited=True)
       for name in ("sampled", "speculative")},
    "one token per step": Case(options=DecodeConfig(1)),
    "minimum block": Case(options=DecodeConfig(min_block=2)),
    "bfloat16": Case(engine={"half": True}),
    "attention of three operations": Case(engine={"fused_attention": False}),
    **{f"network: {name}": Case(VARIANTS[name]) for name in (
        "base aids", "no neighbourhood", "hyperbolic", "post-norm", "own layer for p1", "as published",
        "causal attention", "recurrent heads")},
    "celeba-8to32, k = 1": bundled("celeba-8to32", block_size=1),
    "celeba-8to32, epsilon 2, k = 10": bundled("celeba-8to32", accept="distance", epsilon=2),
    "celeba-8to32, sampled, k = 10": bundled("celeba-8to32", temperature=0.9),
    "multi30k-en-de, k = 1": bundled("multi30k-en-de", block_size=1),
    "multi30k-en-de, heads": bundled("multi30k-en-de"),
    "multi30k-en-de, lookahead": bundled("multi30k-en-de", proposer="lookahead"),
}


class Opened:
    """A model on the GPU with a proposer, and what its loops capture."""

    def __init__(self, case, graph, captures, proposer):
        self.case, self.captures, self.proposer, model = case, captures, proposer, graph
        if case.limited:
            limits = cell_limits(case.config.source_shape, case.config.target_shape, case.config.vocabulary)
            model = LimitedModel(model, Limits.of(limits, CUDA))
        self.model = with_proposer_state(model, proposer)
        self.block_size = check_options(case.options, model.prediction_heads, model.length)

    def session(self, rows=ROWS):
        source = torch.zeros(rows, self.case.config.source_length, dtype=torch.int64, device=CUDA)
        padding = source.bool() if self.case.is_text else None
        return decoding_type(self.proposer, self.block_size).open_session(
            self.model, source, self.case.options, self.block_size, None, padding)

    def loop(self, adaptive=None):
        keys, options = torch.arange(ROWS, device=CUDA), self.case.options
        return opened_loop(self.model, self.session(), options, keys, self.block_size, self.proposer, adaptive)

    def kernels(self, loop):
        """Do one iteration, and return the number of its kernels."""
        before = len(self.captures.kernels)
        with Capture() as capture:
            loop.run(1)
        return self.captures.kernels[-1] if len(self.captures.kernels) > before else capture.kernels


@contextmanager
def opened(case):
    """Open `case` on the GPU within the context."""
    captures = Captures()
    graph = GraphModel(EncoderDecoder(case.config).eval().requires_grad_(False),
                       END_TOKEN if case.is_text else None, capture=captures, **case.engine)
    name, models = case.options.proposer, [graph]
    resource = {"draft": draft_of, "ngram": ngrams_of}[name](graph) if PROPOSERS[name].resource else None
    if name == "draft":
        models.append(resource)
    with fake_gpu(*models):
        yield Opened(case, graph, captures, PROPOSERS[name](*([] if resource is None else [resource])))


KERNELS = {
    "celeba-8to32, k = 1": 147, "celeba-8to32, epsilon 2, k = 10": 262, "celeba-8to32, sampled, k = 10": 639,
    "multi30k-en-de, k = 1": 121, "multi30k-en-de, heads": 376, "multi30k-en-de, lookahead": 246,
}
"""Number of kernels of one iteration on a GPU. More of them take more time."""


@pytest.mark.filterwarnings("ignore:CUDA is not available")
@pytest.mark.parametrize("name", CASES)
def test_an_iteration_stays_on_the_gpu_and_launches_as_many_kernels_as_recorded(name):
    with opened(CASES[name]) as case, case.loop() as loop:
        if not loop.is_captured:
            loop.run(1)  # may copy tables to the device
        kernels = case.kernels(loop)
    assert 0 < kernels == KERNELS.get(name, kernels), "if it has to be, write down the new number"
    assert loop.is_captured == PROPOSERS[case.case.options.proposer].stateless


@pytest.mark.parametrize("name", ["limited, speculative", "text, lookahead, sampled"])
def test_rows_and_block_sizes_change_on_the_gpu(name):
    with opened(CASES[name]) as case:
        with case.loop() as loop:
            loop.run(1)
            rows = torch.arange(2, device=CUDA)
            loop.replace(rows, case.session(2), rows, rows + 7)
            case.kernels(loop)
        with case.loop() as again:  # the kept loop begins anew
            assert again is loop
            case.kernels(loop)
        if "lookahead" in name:
            return
        with case.loop(case.block_size) as loop:
            for size in (1, case.block_size):
                loop.resize(size)
                case.kernels(loop)
                assert loop.plain.session.width == size


ON_HOST = torch.arange(2)
FAULTS = {
    "_local_scalar_dense reads": lambda x: float(x[0]),
    "index by a mask": lambda x: x[x > 0],
    "add uses a tensor on the host": lambda x: x + ON_HOST,
    "copy_ uses a tensor on the host": lambda x: x.copy_(ON_HOST),
    "the kernel would copy the mask first": lambda x: torch.nn.functional.scaled_dot_product_attention(
        *3 * [x.view(1, 1, 2, 1)], x.new_zeros(1, 1, 2, 2)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_work_that_a_graph_cannot_capture_is_refused(fault):
    with fake_gpu(), pytest.raises(AssertionError, match=fault):
        Captures()(lambda: FAULTS[fault](torch.ones(2, device=CUDA)))()
