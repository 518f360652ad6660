"""The structures of cpp/abi.h, declared for ctypes."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_double, c_float, c_int64, c_void_p

LANES = 16
"""Floats per vector in the C++."""

PANEL = 2 * LANES
"""Outputs that are adjacent in a packed weight."""

MAX_SIZE = 256
"""Largest size of an attention head whose keys and values are bytes."""

NEAR, FAR = 5, 9
"""The finite points of Winograd's convolution besides 0, in eighths and with either sign."""


class CLinear(Structure):
    """`Linear` of cpp/abi.h."""

    _fields_ = [*((name, c_int64) for name in ("inputs", "panels", "format")),
                *((name, c_void_p) for name in ("weight", "bias", "scale"))]


class CInt8Filter(Structure):
    """`Int8Filter` of cpp/abi.h."""

    _fields_ = [("product", CLinear), ("norm", c_void_p), ("rounding", c_float)]


class CCache(Structure):
    """`Cache` of cpp/abi.h."""

    _fields_ = [(name, c_void_p) for name in ("key", "value", "key_scale", "value_scale")]


class CSampling(Structure):
    """`Sampling` of cpp/abi.h."""

    _fields_ = [
        *((name, c_int64) for name in ("kind", "seed", "channels", "top_k")), ("nucleus", c_double),
        *((name, c_void_p) for name in ("keys", "temperature", "q", "q_total")),
    ]


class CProposer(Structure):
    """`Proposer` of cpp/abi.h."""

    _fields_ = [
        ("kind", c_int64),
        *((name, c_void_p) for name in (
            "draft", "tokens", "place", "best_tokens", "hidden", "scores", "keys", "known")),
        *((name, c_int64) for name in ("entries", "order", "channels")), ("source", c_void_p),
        ("source_length", c_int64),
    ]


class CWidths(Structure):
    """`Widths` of cpp/abi.h."""

    _fields_ = [
        ("count", c_int64), *((name, c_void_p) for name in ("costs", "sizes", "pace")),
        *((name, c_float) for name in ("offset", "exponent", "reach")),
    ]


class CLimits(Structure):
    """`Limits` of cpp/abi.h."""

    _fields_ = [("count", c_int64), ("earlier", c_void_p), ("bounds", c_void_p)]


class CLookahead(Structure):
    """`Lookahead` of cpp/abi.h."""

    _fields_ = [
        *((name, c_int64) for name in ("size", "columns", "candidates", "cells", "capacity")),
        *((name, c_void_p) for name in (
            "paths", "guesses", "stage", "column", "window", "grams", "oldest", "found")),
    ]


class CLoop(Structure):
    """`Loop` of cpp/abi.h."""

    _fields_ = [
        *((name, c_int64) for name in ("block_size", "room", "stride", "minimum", "best", "bound", "end_token")),
        *((name, c_void_p) for name in (
            "position", "limit", "store", "proposals", "tokens", "place", "index", "first", "next", "best_tokens",
            "hidden", "scores", "scratch")),
        ("sampling", POINTER(CSampling)), ("proposer", CProposer), ("widths", CWidths),
        ("limits", CLimits), ("lookahead", CLookahead),
    ]


class CLayer(Structure):
    """`Layer` of cpp/abi.h."""

    _fields_ = [
        *((name, CLinear) for name in (
            "projection", "output", "expand", "contract", "cross_query", "cross_output", "cross_source")),
        ("norm_weight", c_void_p * 3), ("norm_bias", c_void_p * 3), ("self", CCache), ("cross", CCache),
        ("columns", c_void_p),
    ]


class CTree(Structure):
    """`Tree` of cpp/abi.h."""

    _fields_ = [("scored", c_int64), ("longest", c_int64), ("depth", c_void_p), ("ancestors", c_void_p)]


class CShortlist(Structure):
    """`Shortlist` of cpp/abi.h."""

    _fields_ = [("count", c_int64), *((name, c_void_p) for name in ("tokens", "known", "weight", "bias", "scale"))]


class CHeads(Structure):
    """`Heads` of cpp/abi.h."""

    _fields_ = [
        *((name, c_int64) for name in ("count", "size", "dense", "earlier", "recurrent")),
        ("expand", CLinear), ("adapt", CLinear), ("contract", POINTER(CLinear)),
        *((name, c_void_p) for name in ("bias", "norm_weight", "norm_bias", "conditioning", "direct")),
        ("cross_query", CLinear), ("cross_output", CLinear), ("cross_source", CLinear), ("cross", CCache),
        ("shortlist", CShortlist),
    ]


class CSession(Structure):
    """`Session` of cpp/abi.h."""

    _fields_ = [
        *((name, c_int64) for name in (
            "batch", "width", "length", "size_d", "attention_heads", "filter", "layers", "vocabulary", "channels",
            "outputs", "slots", "block_length", "cross_slots", "pre", "threads", "patient", "stride", "together")),
        ("layer", POINTER(CLayer)), ("final_weight", c_void_p), ("final_bias", c_void_p), ("project", CLinear),
        ("int8_filter", CInt8Filter), ("token_table", c_void_p), ("position_table", c_void_p), ("conditioned", c_int64),
        ("cross_mask", c_void_p),
        *((name, c_int64) for name in ("features", "near", "cell_size", "ordinal")),
        *((name, c_void_p) for name in ("near_table", "cell", "cell_positions", "estimate", "residual_sum")),
        ("source_length", c_int64), ("deviation", c_void_p), ("first", CLinear), ("second", CLinear),
        ("channel_bias", c_void_p), ("direct", c_void_p), ("residual_scale", c_float), ("initial_sharpness", c_float),
        ("heads", CHeads), ("tree", CTree), ("not_finite", c_void_p), ("seconds", c_void_p), ("groups", c_int64),
        *((name, c_void_p) for name in ("x", "parts", "wide", "attended", "weights", "gathered", "projected")),
    ]


class CEncoder(Structure):
    """`Encoder` of cpp/abi.h."""

    _fields_ = [
        *((name, c_int64) for name in (
            "source_length", "length", "size_d", "attention_heads", "filter", "layers", "vocabulary", "channels",
            "pre")),
        ("layer", POINTER(CLayer)),
        *((name, c_void_p) for name in ("final_weight", "final_bias", "token_table", "source_signal")),
        *((name, c_int64) for name in ("rows", "columns", "height", "width", "maps", "blocks")),
        ("row_weights", c_void_p), ("column_weights", c_void_p), ("shuffle", CLinear), ("products", POINTER(CLinear)),
        ("biases", c_void_p), ("refinement", CLinear), ("refinement_bias", c_void_p), ("vectors", CLinear),
        ("head_vectors", CLinear), ("signal", c_void_p), ("residual_scale", c_float),
    ]


class CEncoded(Structure):
    """`Encoded` of cpp/abi.h."""

    _fields_ = [
        *((name, c_void_p) for name in ("states", "position_table", "head_table", "estimate", "residual_sum")),
        ("stride", c_int64), ("positions", c_int64), ("lengths", c_void_p),
    ]


STRUCTURES = (CLinear, CInt8Filter, CCache, CLayer, CTree, CShortlist, CHeads, CSampling, CProposer, CWidths, CLimits,
              CLookahead, CLoop, CSession, CEncoder, CEncoded)


def layout() -> str:
    """Return the constants, the sizes of the structures and the offsets of their fields, as `superres_layout` does."""
    lines = [f"LANES={LANES} PANEL={PANEL} NEAR={NEAR} FAR={FAR} SIZE={MAX_SIZE}\n"]
    for kind in STRUCTURES:
        fields = [f"{name}={getattr(kind, name).offset}" for name, *_ in kind._fields_]
        lines.append(" ".join([f"{kind.__name__[1:]}:{ctypes.sizeof(kind)}", *fields]) + "\n")
    return "".join(lines)
