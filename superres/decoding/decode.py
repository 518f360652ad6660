"""Decode a batch: check the options, open a loop, and run it until all rows are complete."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeAlias

import torch
from torch import Tensor

from superres.config import DecodeConfig
from superres.decoding.acceptance import CRITERIA
from superres.decoding.block_size import AdaptiveBlockSize
from superres.decoding.confidence import ConfidentBlockSize
from superres.decoding.graph_cache import keep
from superres.decoding.loop import BlockwiseLoop, Decoded, decoding_type
from superres.decoding.noise import noise_keys
from superres.decoding.proposers import PROPOSERS
from superres.decoding.proposers.base import Proposer, with_proposer_state
from superres.errors import ConfigError
from superres.interfaces import ScoringModel, Session

DONE_CHECK_INTERVAL = 16
"""Number of iterations between two checks for complete rows; between them nothing is read from the device."""

END_CHECK_INTERVAL = 4
"""The same on an accelerator if an end token may end a row: a sentence takes only a few iterations."""

BlockSizeChooser: TypeAlias = AdaptiveBlockSize | ConfidentBlockSize
"""Chooses the block size while decoding: every few iterations by what was accepted, or every iteration."""

DEFAULT_BLOCK_SIZE = 5  # Block size if neither the options nor the number of prediction heads determine it


def check_options(options: DecodeConfig, prediction_heads: int, length: int | None = None) -> int:
    """Return the block size that `options` ask of a model of `prediction_heads` and targets of `length` tokens.

    Raises:
        ConfigError: the block size exceeds the prediction heads that the proposer uses, or the target; the minimum
            block exceeds the block size; or the criterion or the proposer cannot use its settings.
    """
    CRITERIA[options.accept](options)
    kind = PROPOSERS[options.proposer]
    by_heads = prediction_heads if kind.uses_heads or prediction_heads > 1 else DEFAULT_BLOCK_SIZE
    block_size = options.block_size or (None if options.adaptive else kind.block_size) or by_heads
    if block_size > prediction_heads and kind.uses_heads:
        raise ConfigError(f"block size {block_size} is more than the {prediction_heads} prediction heads; "
                          f"use {prediction_heads} or less")
    if length is not None and block_size > length:
        raise ConfigError(f"block size {block_size} is more than the {length} target tokens that the cache is made "
                          f"for; use {length} or less")
    if options.adaptive and kind.proposes_tree:
        raise ConfigError(f"the block size of {options.proposer} is the length of its n-grams and cannot be adaptive; "
                          "leave adaptive out, or choose another proposer")
    if options.min_block > block_size:
        raise ConfigError(f"min-block {options.min_block} is larger than the block size {block_size}")
    if length is not None:
        kind.check_options(options, block_size, length)
    return block_size


def check_interval(end_token: int | None, kind: str) -> int:
    """Return the number of iterations between two checks for complete rows on a device of `kind` ("cpu", "cuda").

    Iterations past an end token are wasted, and on a CPU a check costs nothing.
    """
    if end_token is None:
        return DONE_CHECK_INTERVAL
    return 1 if kind == "cpu" else END_CHECK_INTERVAL


@torch.inference_mode()
def iterations(
    model: ScoringModel, source: Tensor, options: DecodeConfig, *, padding: Tensor | None = None,
    keys: Sequence[int] | Tensor | None = None, width: int | None = None, proposer: Proposer | None = None,
    adaptive: BlockSizeChooser | None = None,
) -> Iterator[BlockwiseLoop]:
    """Decode a batch blockwise, and yield the loop every `check_interval` iterations.

    The loop is the same object each time: first before any token is committed, last when every row is `complete`.
    Closing the iterator stops the decoding. The result must be read before the iterator is advanced past the last time,
    since a captured loop then serves the next decode.

    Args:
        model: the model.
        source: source tokens [B, S].
        options: block size, proposer, acceptance, sampling.
        padding: bool [B, S], True where a source is padding.
        keys: keys of the sampling noise, B numbers in [0, 2**63); the row's number if None.
        width: step width W, at least the block size, which is the default. A larger width runs the same kernels
            as a larger block.
        proposer: source of proposals, for any block size; by `options.proposer` if None.
        adaptive: chooses the block size while decoding, up to that of `options`; None keeps it.

    Raises:
        ConfigError: options do not fit the model, or both a width and an adaptive block size are given.
        InvalidInputError: there is not one key in range per row.
        ScoresError: the model's scores are not finite.
    """
    heads = model.prediction_heads if proposer is None else options.block_size or model.prediction_heads
    block_size = check_options(options, heads, model.length)
    if width is not None and width < block_size:
        raise ConfigError(f"width {width} is smaller than the block size {block_size}")
    if width is not None and adaptive is not None:
        raise ConfigError(f"an adaptive block size has no fixed width; leave out the width {width}")
    keys = noise_keys(keys, len(source), source.device)
    proposer = proposer or PROPOSERS[options.proposer]()
    model = with_proposer_state(model, proposer)
    session = decoding_type(proposer, block_size).open_session(model, source, options, block_size, width, padding)
    with opened_loop(model, session, options, keys, block_size, proposer, adaptive) as loop:
        interval = check_interval(model.end_token, source.device.type)
        yield from driven(loop, adaptive, lambda: interval)


def driven(
    loop: BlockwiseLoop, adaptive: BlockSizeChooser | None, interval: Callable[[], int],
) -> Iterator[BlockwiseLoop]:
    """Run a new loop until all its rows are complete, and yield it every `interval()` iterations.

    An adaptive block size may ask for fewer iterations. The loop is first yielded before any token is committed. The
    caller may begin new sequences in complete rows (`BlockwiseLoop.restart`); the loop then goes on. Raises ScoresError
    if the model's scores are not finite.
    """
    learning = adaptive if isinstance(adaptive, AdaptiveBlockSize) else None
    loop.run(1)  # reads the start of the sequences, and makes the first proposals
    loop.done()
    yield loop
    while not loop.complete:
        loop.run(interval() if learning is None else min(interval(), learning.interval))
        if learning is not None:
            loop.adapt(learning)
        loop.done()
        yield loop
    if learning is not None:
        loop.adapt(learning)
        learning.waited += loop.spent


@contextmanager
def opened_loop(
    model: ScoringModel, session: Session, options: DecodeConfig, keys: Tensor, block_size: int, proposer: Proposer,
    adaptive: BlockSizeChooser | None,
) -> Iterator[BlockwiseLoop]:
    """Open a loop over the sequences of an empty `session`, in blocks of at most `block_size`.

    Capturing iterations takes long, so a captured loop is kept and serves later decodes of the same shape, unless it
    fails. Its proposer is the built-in one of `options`, without a state.
    """
    first = adaptive.choose() if isinstance(adaptive, AdaptiveBlockSize) else block_size
    resizable, graph_capture = adaptive is not None, model.graph_capture
    confident = adaptive if isinstance(adaptive, ConfidentBlockSize) else None
    kept = getattr(proposer, "stateless", False) and type(proposer) is PROPOSERS[options.proposer]
    if graph_capture is None or not kept:
        yield BlockwiseLoop(model, session, options, keys, first, proposer, None, resizable, confident)
        return
    shapes = tuple(tensor.shape for tensor in session.row_state())
    # Loops with an adaptive block size serve any first block size.
    settings = replace(options, seed=0, block_size=None)
    key = settings, None if resizable else first, session.width, shapes
    loop: BlockwiseLoop | None = graph_capture.loops.pop(key, None)
    if loop is None:
        loop = BlockwiseLoop(model, session, options, keys, first, proposer, resizable=resizable)
    else:
        loop.resize(first)
        loop.begin_anew(session, keys, options.seed)
    try:
        yield loop
    except GeneratorExit:  # the decode was stopped between two iterations
        keep(graph_capture, key, loop)
        raise
    keep(graph_capture, key, loop)


def decode(
    model: ScoringModel, source: Tensor, options: DecodeConfig, *, padding: Tensor | None = None,
    keys: Sequence[int] | Tensor | None = None, width: int | None = None, proposer: Proposer | None = None,
    adaptive: BlockSizeChooser | None = None, progress: Callable[[int, int], None] | None = None,
) -> Decoded:
    """Decode a batch blockwise (Stern et al. 2018, section 4).

    Exact acceptance gives the tokens of greedy decoding (or, at a temperature, of sequential sampling with the same
    seed). With torch's float kernels, this holds bit for bit against a run of the same `width` only, since kernels
    differ between shapes.

    The arguments and errors are those of `iterations`; `progress` is called every `check_interval` iterations with
    (tokens of the shortest row, T).
    """
    for loop in iterations(
        model, source, options, padding=padding, keys=keys, width=width, proposer=proposer, adaptive=adaptive,
    ):
        if progress is not None:
            progress(int(loop.state.position.clamp(min=0).min()), model.length)
        if loop.complete:
            decoded = loop.result()
    return decoded
