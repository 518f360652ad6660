"""The names and shapes of a network's weights."""

from __future__ import annotations

import math
from collections.abc import Mapping

from superres.config.network import ModelConfig
from superres.config.tables import feature_count
from superres.errors import CheckpointError, plain

Shapes = dict[str, tuple[int, ...]]


def parameter_shapes(config: ModelConfig) -> Shapes:
    """Return the shapes of a network's weights by name, in the order of the `state_dict` of
    `superres.nn.model.EncoderDecoder`."""
    width, maps, tied = config.width, config.conditioning_width, config.tied_embeddings
    channels, count = config.channels, feature_count(config)
    source_channels = config.source_shape[-1] if len(config.source_shape) == 3 else 1
    final = _norm(width) if config.norm == "pre" else {}
    # embeddings and layers
    parts: list[tuple[str, Shapes]] = [
        ("source_embedding.table", {} if tied else {"weight": (config.vocabulary * source_channels,
                                                               width)}),
        ("target_embedding.table", {"weight": (config.vocabulary * channels, width)}),
        *((f"encoder.{n}", _layer(config, False)) for n in range(config.encoder_layers)),
        *((f"decoder.{n}", _layer(config, config.cross_attention))
          for n in range(config.decoder_layers)),
        ("encoder_norm", final), ("decoder_norm", final)]
    if config.aligned_conditioning:
        inputs = channels * width
        parts += [
            ("conditioning.shuffle", _linear(inputs, math.prod(config.enlargement) * maps)),
            ("conditioning.mix", _convolution(maps + channels, maps)),
            *((f"conditioning.blocks.{n}.{part}", _convolution(maps, maps))
              for n in range(config.conditioning_blocks) for part in ("first", "second")),
            ("conditioning.vectors", _convolution(maps, inputs, 1)),
            ("conditioning.refinement", _convolution(maps, channels))]
    if config.numeric_neighbourhood:
        parts += [("neighbourhood", {"direct": (channels, count)}),
                  ("neighbourhood.first", _linear(count, config.filter_size)),
                  ("neighbourhood.channel", {"weight": (channels, config.filter_size)}),
                  ("neighbourhood.second", _linear(config.filter_size, width))]
    parts.append(("project", {"bias": (config.vocabulary,)} if tied
                  else _linear(width, config.outputs)))
    if config.prediction_heads > 1 or (config.one_head_layer and not config.identity_p1):
        parts.append(("heads", _recurrent_heads(config) if config.head_layer == "recurrent"
                      else _prediction_heads(config)))
    return _named(*parts)


def check_shapes(own: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]],
                 origin: str, optional: str | None = None) -> None:
    """Raise a CheckpointError if the tensors `found` in `origin` are not those of a network's `own`
    names and shapes.

    Those of names with the prefix `optional` may be missing.
    """
    required = {name for name in own if optional is None or not name.startswith(optional)
                or name in found}
    missing, extra = sorted(required - set(found)), sorted(set(found) - set(own))
    shapes = sorted(name for name in required & set(found) if found[name] != own[name])
    problems = {"lacks tensors": missing, "has extra tensors": extra, "has tensors of another "
                "shape": shapes}
    for problem, names in problems.items():
        if names:
            listed = ", ".join(map(plain, names[:3])) + (f" and {len(names) - 3} "
                                                         "more" if len(names) > 3 else "")
            raise CheckpointError(f"{origin} {problem}: {listed}; the weights do not belong to "
                                  "this config.json")


def _named(*parts: tuple[str, Shapes]) -> Shapes:
    """Return the weights of several modules, named after them."""
    return {f"{part}.{name}": shape for part, shapes in parts for name, shape in shapes.items()}


def _linear(inputs: int, outputs: int, bias: bool = True) -> Shapes:
    return {"weight": (outputs, inputs), **({"bias": (outputs,)} if bias else {})}


def _norm(width: int) -> Shapes:
    return {"weight": (width,), "bias": (width,)}


def _convolution(inputs: int, outputs: int, side: int = 3) -> Shapes:
    return {"weight": (outputs, inputs, side, side), "bias": (outputs,)}


def _attention(width: int) -> Shapes:
    return _named(("query", _linear(width, width)), ("key_value", _linear(width, 2 * width)),
                  ("output", _linear(width, width)))


def _layer(config: ModelConfig, cross_attention: bool) -> Shapes:
    """The weights of an encoder or decoder layer."""
    width, size = config.width, config.filter_size
    attention, residual = _attention(width), _named(("norm", _norm(width)))
    cross = [("cross_attention", attention), ("cross_residual", residual)]
    return _named(
        ("attention", attention), ("attention_residual", residual),
        *(cross if cross_attention else []), ("feed_forward.0", _linear(width, size)),
        ("feed_forward.2", _linear(size, width)), ("feed_forward_residual", residual))


def _prediction_heads(config: ModelConfig) -> Shapes:
    """The weights of a head layer of any kind but "recurrent"."""
    width, size, heads = config.width, config.head_filter_size, config.prediction_heads
    count, features = heads - config.identity_p1, feature_count(config)
    direct = {"direct": (config.channels, count, features)} if config.numeric_neighbourhood else {}
    shapes: Shapes = {
        "contract": (count * size, count * width) if config.head_layer == "dense"
        else (count, size, width),
        "bias": (count, width), **direct}
    parts = [("expand", _linear(width, count * size)), ("norm", _norm(width))]
    if config.aligned_conditioning:
        parts.append(("conditioning", _linear(width, width, bias=False)))
    if config.head_layer == "sequential":
        parts.append(("adapt", _linear(width, features + heads - 1)))
    return {**shapes, **_named(*parts)}


def _recurrent_heads(config: ModelConfig) -> Shapes:
    width, size = config.width, config.head_filter_size
    return _named(
        ("state_norm", _norm(width)), ("read", _linear(width, size, bias=False)),
        ("expand", _linear(width, size)), ("contract", _linear(size, width)),
        ("attention_norm", _norm(width)), ("attention", _attention(width)), ("norm", _norm(width)))
