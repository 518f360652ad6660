"""Decoding of a batch: options checked, a loop made, and handed out while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from superres.config import DecodeConfig
from superres.decoding.acceptance import CRITERIA
from superres.decoding.block_size import AdaptiveBlockSize
from superres.decoding.graph_cache import keep, take
from superres.decoding.loop import BlockwiseLoop, Decoded, decoding_type, is_ordinary
from superres.decoding.noise import noise_keys
from superres.decoding.proposers import PROPOSERS
from superres.decoding.proposers.base import Proposer, accompany
from superres.errors import ConfigError
from superres.interfaces import ScoringModel, Session

DONE_CHECK_INTERVAL = 16
"""Iterations between two looks of the host at the done flag; in between nothing is read from the device."""

END_CHECK_INTERVAL = 4
"""The same on an accelerator where an end token may end a row at any time: a sentence takes a handful of iterations."""

DEFAULT_BLOCK_SIZE = 5
"""Where neither the options nor prediction heads say how many tokens to propose."""


def check_options(options: DecodeConfig, prediction_heads: int, length: int | None = None) -> int:
    """Return the block size that `options` asks of a model of `prediction_heads` and targets of `length` tokens.

    Raises:
        ConfigError: it exceeds the prediction heads that the proposer uses, or the target; the minimum block exceeds
            it; or the criterion or the proposer cannot use its settings.
    """
    CRITERIA[options.accept](options)
    kind = PROPOSERS[options.proposer]
    by_heads = prediction_heads if kind.uses_heads or prediction_heads > 1 else DEFAULT_BLOCK_SIZE
    block_size = options.block_size or kind.block_size or by_heads
    if block_size > prediction_heads and kind.uses_heads:
        raise ConfigError(f"block size {block_size} is more than the {prediction_heads} prediction heads; "
                          f"use {prediction_heads} or less")
    if length is not None and block_size > length:
        raise ConfigError(f"block size {block_size} is more than the {length} target tokens that the cache is made "
                          f"for; use {length} or less")
    if options.adaptive and options.proposer != "heads":
        raise ConfigError(f"an adaptive block size needs proposals of the heads, not of {options.proposer}")
    if options.min_block > block_size:
        raise ConfigError(f"min-block {options.min_block} is larger than the block size {block_size}")
    if length is not None:
        kind.check_options(options, block_size, length)
    return block_size


def check_interval(end_token: int | None, kind: str) -> int:
    """Return the iterations between two looks at the done flag on a device of `kind` ("cpu", "cuda").

    Where rows may end at any time, iterations past the end are wasted; a CPU's flag costs nothing to read.
    """
    if end_token is None:
        return DONE_CHECK_INTERVAL
    return 1 if kind == "cpu" else END_CHECK_INTERVAL


@torch.inference_mode()
def iterations(
    model: ScoringModel, source: Tensor, options: DecodeConfig, *, padding: Tensor | None = None,
    keys: Sequence[int] | Tensor | None = None, width: int | None = None, proposer: Proposer | None = None,
    adaptive: AdaptiveBlockSize | None = None,
) -> Iterator[BlockwiseLoop]:
    """Decode a batch blockwise, and hand out the loop now and then, to be looked at.

    The loop is handed out first before any token is committed, then every `check_interval` iterations, and last when
    every row is `complete`. It is one and the same object. Closing the iterator stops the decoding. Asking for more
    after the last time gives the loop back: its result must be read before.

    Args:
        model: the model.
        source: source tokens [B, S].
        options: block size, proposer, acceptance, sampling.
        padding: bool [B, S], True where a source is padding.
        keys: key of each row's sampling noise in [0, 2**63), B of them; the row's number if None.
        width: step width W, at least the block size, which it is by default. A larger one runs the same kernels
            as a larger block.
        proposer: source of proposals, with which any block size goes; by `options.proposer` if None.
        adaptive: chooses the block size as it goes, up to that of `options`; None keeps it.

    Raises:
        ConfigError: options do not fit the model, or both a width and an adaptive block size are asked for.
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
    model = accompany(model, proposer)
    kind = decoding_type(proposer, block_size)
    session = kind.open_session(model, source, options, block_size, width, padding)
    first = block_size if adaptive is None else adaptive.choose()
    loop, release = _loop(model, session, options, keys, first, proposer, adaptive is not None)
    interval = check_interval(model.end_token, source.device.type)
    if adaptive is not None:
        interval = min(interval, adaptive.interval)
    loop.run(1)  # reads the start of the sequences, and makes the first proposals
    try:
        yield loop
        while not loop.complete:
            loop.run(interval)
            if adaptive is not None and len(loop.recorder) % adaptive.interval == 1:  # the start is one more
                loop.adapt(adaptive)
            loop.done()
            yield loop
        if adaptive is not None:
            loop.adapt(adaptive)
            adaptive.waited += loop.spent
    except GeneratorExit:
        release()
        raise
    release()


def _loop(
    model: ScoringModel, session: Session, options: DecodeConfig, keys: Tensor, block_size: int, proposer: Proposer,
    fitted: bool,
) -> tuple[BlockwiseLoop, Callable[[], None]]:
    """Return a loop over the sequences of an empty `session`, and what to call when it is done.

    Where iterations are replayed, a loop of the same kind that is done begins anew: what it has captured stays good.
    """
    replaying = model.replaying
    if replaying is None or not is_ordinary(proposer, options):
        return BlockwiseLoop(model, session, options, keys, block_size, proposer, fitted=fitted), lambda: None
    shapes = tuple(tensor.shape for tensor in session.row_state())
    # Loops that change their block size serve any first one.
    settings = replace(options, seed=0, block_size=None)
    key = settings, None if fitted else block_size, session.width, shapes
    loop: BlockwiseLoop | None = take(replaying, key)
    if loop is None:
        loop = BlockwiseLoop(model, session, options, keys, block_size, proposer, fitted=fitted)
    else:
        loop.resize(block_size)
        loop.begin_anew(session, keys, options.seed)
    return loop, partial(keep, replaying, key, loop)


def decode(
    model: ScoringModel, source: Tensor, options: DecodeConfig, *, padding: Tensor | None = None,
    keys: Sequence[int] | Tensor | None = None, width: int | None = None, proposer: Proposer | None = None,
    adaptive: AdaptiveBlockSize | None = None, progress: Callable[[int, int], None] | None = None,
) -> Decoded:
    """Decode a batch blockwise.

    Exact acceptance gives the tokens of greedy decoding (or, at a temperature, of sequential sampling with the same
    seed). On float32 hardware that holds bit for bit against a run of the same `width`, since kernels differ between
    shapes.

    Args:
        model: see `iterations`, as for all that is not said here.
        source: source tokens [B, S].
        options: block size, proposer, acceptance, sampling.
        padding: bool [B, S].
        keys: B of them.
        width: step width W.
        proposer: source of proposals.
        adaptive: chooses the block size.
        progress: called whenever the loop is handed out, with (tokens of the shortest row, T).

    Returns:
        Tokens, lengths and traces.

    Raises:
        ConfigError: options do not fit the model.
        InvalidInputError: there is not one key in range per row.
        ScoresError: the model's scores are not finite.
    """
    for loop in iterations(
        model, source, options, padding=padding, keys=keys, width=width, proposer=proposer, adaptive=adaptive,
    ):
        if progress is not None:
            progress(int(loop.state.position.clamp(min=0).min()), model.length)
        if loop.complete:
            decoded = loop.result()
    return decoded
