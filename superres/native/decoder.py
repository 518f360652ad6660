"""The decoder's loop in the form in which native.cpp reads it."""

from __future__ import annotations

from ctypes import pointer

import torch
from torch import Tensor

from superres.interfaces import LookaheadData, LoopState, ProposerData, Sampling
from superres.native import abi


def loop_of(
    state: LoopState, session: abi.CSession, scratch: Tensor | None, draft: abi.CSession | None,
) -> abi.CLoopState:
    """Return the form in which native.cpp reads `state`, with its tensors; `scratch` is for the heads' proposals."""
    size = session.size
    batch, width, vocabulary = size.batch, size.width, size.vocabulary
    capacity, stride = state.proposals.shape[1], state.store.shape[1]
    kind, bound = state.rule
    integers = torch.empty(2 * width + capacity + 3, batch, dtype=torch.int64)
    buffers = {
        "tokens": integers[:width], "best_tokens": integers[width : 2 * width], "next": integers[2 * width :],
        "place": integers[-3], "index": integers[-2], "first": integers[-1],
        "hidden": torch.empty(batch, width, size.d),
        "scores": torch.empty(batch, width, vocabulary),
        "scratch": scratch,
    }
    loop = abi.CLoopState(
        block_size=state.block_size, capacity=capacity, stride=stride, minimum=state.min_block,
        rule=abi.value("Rule", kind), bound=min(bound, vocabulary) if kind == "rank" else bound,
        end_token=-1 if state.end_token is None else state.end_token,
        position=address(state.position, torch.int64, batch), limit=address(state.limit, torch.int64, batch),
        store=address(state.store, torch.int64, batch, stride),
        proposals=address(state.proposals, torch.int64, batch, capacity),
        **{name: None if tensor is None else tensor.data_ptr() for name, tensor in buffers.items()},
    )
    proposer = _proposer_of(state.proposer, batch, draft)
    loop.proposer = proposer
    loop.tensors = [buffers, state, proposer]
    if state.sampling is not None:
        loop.sampling = pointer(_sampling_of(state.sampling, batch, capacity, vocabulary))
    if (costs := state.block_costs) is not None:
        loop.block_costs = abi.CBlockCosts(
            count=len(costs.costs), costs=address(costs.costs, torch.float64, len(costs.costs)),
            sizes=address(costs.sizes, torch.int64, batch), offset=costs.offset, exponent=costs.exponent,
            rate=address(costs.rate, torch.float64, batch, 2 + size.channels), reach=costs.reach)
    if state.limits is not None:
        (earlier, bounds), count = state.limits, state.limits[0].shape[1]
        loop.limits = abi.CLimits(count=count, earlier=address(earlier, torch.int64, size.length + 1, count),
                                  bounds=address(bounds, torch.int64, batch, 2, size.length + 1))
    if state.lookahead is not None:
        loop.lookahead = lookahead = _lookahead_of(state.lookahead, batch)
        loop.tensors.append(lookahead)
    return loop


def _proposer_of(proposer: ProposerData, batch: int, draft: abi.CSession | None) -> abi.CProposer:
    """Return the form in which native.cpp reads `proposer`; the result keeps its scratch alive."""
    made = abi.CProposer(kind=abi.value("ProposerKind", proposer.kind))
    if draft is not None:
        size, width = draft.size, draft.size.width
        integers = torch.empty(2 * width + 1, batch, dtype=torch.int64)
        scratch = integers, torch.empty(batch, width, size.d), torch.empty(batch, width, size.vocabulary)
        made.draft, made.scratch = pointer(draft), scratch
        made.tokens, made.best_tokens, made.place = (part.data_ptr() for part in (
            integers[:width], integers[width:-1], integers[-1]))
        made.hidden, made.scores = (part.data_ptr() for part in scratch[1:])
    if proposer.keys is not None:
        made.entries, made.order, made.channels = len(proposer.keys), proposer.order, proposer.channels
        made.keys, made.known = (address(part, torch.int64, made.entries) for part in (proposer.keys, proposer.known))
    if proposer.source is not None:
        made.source_length, made.longest = proposer.source.shape[1], proposer.longest
        made.source = address(proposer.source, torch.int64, batch, made.source_length)
    return made


def _sampling_of(sampling: Sampling, batch: int, capacity: int, vocabulary: int) -> abi.CSampling:
    """Return the form in which native.cpp reads `sampling`, for blocks of at most `capacity` tokens."""
    channels, proposals = len(sampling.temperatures), capacity if sampling.kind == "speculative" else 0
    return abi.CSampling(
        kind=abi.value("SamplingKind", sampling.kind), seed=sampling.seed, channels=channels,
        top_k=min(sampling.top_k or vocabulary, vocabulary), nucleus=sampling.nucleus,
        keys=address(sampling.keys, torch.int64, batch),
        temperature=address(sampling.temperatures, torch.float32, channels),
        q=address(sampling.q, torch.int32, batch, proposals, vocabulary),
        q_total=address(sampling.q_total, torch.int64, batch, proposals),
    )


def _lookahead_of(data: LookaheadData, batch: int) -> abi.CLookahead:
    """Return the form in which native.cpp reads `data`; the result keeps its own memory alive."""
    (candidates, size), columns, capacity = data.paths.shape, len(data.guesses), data.grams.shape[1]
    cells, own = data.cells.contiguous(), torch.zeros(2, batch, dtype=torch.int64)
    made = abi.CLookahead(
        size=size, columns=columns, candidates=candidates, cells=cells.shape[1], capacity=capacity,
        paths=address(data.paths, torch.int64, candidates, size), guesses=address(data.guesses, torch.int64, columns),
        stage=cells[0].data_ptr(), column=cells[1].data_ptr(),
        window=address(data.window, torch.int64, batch, size - 1, columns),
        grams=address(data.grams, torch.int64, batch, capacity, size),
        oldest=own[0].data_ptr(), found=own[1].data_ptr())
    made.tensors = cells, own
    return made


def address(tensor: Tensor | None, dtype: torch.dtype, *shape: int) -> int | None:
    """Return the address of a tensor; None for None, which is null in C++.

    Raises ValueError if the tensor is not contiguous, not on the CPU, or not of the given type and shape.
    """
    if tensor is None:
        return None
    if tensor.dtype != dtype or tensor.shape != shape or not tensor.is_contiguous() or tensor.device.type != "cpu":
        raise ValueError(f"the native step wants contiguous {dtype} {list(shape)} on the CPU, not {tensor.dtype} "
                         f"{list(tensor.shape)} on {tensor.device.type}")
    return tensor.data_ptr()
