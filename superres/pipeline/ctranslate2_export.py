"""Conversion of text checkpoints to CTranslate2, an engine for translation without blocks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from superres.checkpoint import find_checkpoint, load_checkpoint, replaced_folder
from superres.config import require
from superres.errors import ConfigError
from superres.nn.layers import TiedProjection
from superres.nn.model import EncoderDecoder
from superres.tasks import translation

if TYPE_CHECKING:
    from ctranslate2.specs import TransformerSpec
    from ctranslate2.specs.common_spec import LayerNormSpec, LinearSpec
    from ctranslate2.specs.transformer_spec import TransformerDecoderSpec, TransformerEncoderSpec

README = """# {name} for CTranslate2

The base network of superres' checkpoint `{name}`, without its prediction heads. It translates {source} to {target}:

```python
import ctranslate2, sentencepiece

translator = ctranslate2.Translator("{folder}")
pieces = sentencepiece.SentencePieceProcessor(model_file="{folder}/{vocabulary}")
line = pieces.encode("A dog runs.", out_type=str)
result = translator.translate_batch([line], beam_size=1, max_decoding_length={length})
print(pieces.decode(result[0].hypotheses[0]))
```

With `compute_type="float32"` and `beam_size=1`, the tokens are those of greedy decoding with superres and its engine
native, which also stops the translation of n tokens at 2n + 10 tokens.
"""


def export_ctranslate2(checkpoint: str | Path, folder: Path) -> None:
    """Write the base network of a text checkpoint (a name or folder) as a CTranslate2 model with a
    README.

    `folder` is new or empty; afterwards it is complete, or as it was. Raises CheckpointError if the
    checkpoint is missing or damaged; ConfigError if CTranslate2 is not installed or does not know
    such a network, or `folder` is not empty; OutputError if the folder cannot be written.
    """
    source = find_checkpoint(checkpoint)
    model = load_checkpoint(source)
    config, name = model.config, source.name
    require(config.task == translation.name,
            f"checkpoint {name} is for {config.task}; CTranslate2 translates text only")
    require(config.identity_p1,
            f"p1 of checkpoint {name} passes through its head layer, which CTranslate2 does not "
            "know")
    require(config.cross_attention and config.attention == "causal",
            f"checkpoint {name} has no cross-attention or no causal attention; CTranslate2 does "
            "not know its network")
    require(not folder.exists() or (folder.is_dir() and not any(folder.iterdir())),
            f"{folder} exists and is not an empty folder; choose another one")
    codec = translation.Codec.read(source, config.source_length)
    spec = specification(model, codec)
    with replaced_folder(folder) as fresh:
        spec.save(str(fresh))
        (fresh / translation.VOCABULARY_FILE).write_bytes(codec.model)
        (fresh / "README.md").write_text(README.format(
            name=name, folder=folder, source=config.languages[0], target=config.languages[1],
            vocabulary=translation.VOCABULARY_FILE, length=config.target_length))


def specification(model: EncoderDecoder, codec: translation.Codec) -> TransformerSpec:
    """Return the base network in the form that CTranslate2 saves; raise ConfigError if CTranslate2
    is missing."""
    try:
        from ctranslate2.specs import TransformerSpec
    except ImportError as error:
        raise ConfigError("the export needs CTranslate2; install it with: pip install "
                          "'superres[peers]'") from error
    config = model.config
    spec = TransformerSpec.from_config(
        (config.encoder_layers, config.decoder_layers), config.attention_heads,
        pre_norm=config.norm == "pre")
    _encoder(spec.encoder, model)
    _decoder(spec.decoder, model)
    pieces = [codec.pieces.id_to_piece(token) for token in range(codec.size)]
    spec.register_source_vocabulary(pieces)
    spec.register_target_vocabulary(pieces)
    # The first position reads zeros; the start token's own embedding is not used.
    spec.config.bos_token = spec.config.decoder_start_token = pieces[translation.PADDING]
    spec.config.eos_token, spec.config.unk_token = (pieces[translation.END],
                                                    pieces[translation.UNKNOWN])
    spec.config.add_source_eos = True
    spec.validate()
    spec.optimize()
    return spec


def _encoder(spec: TransformerEncoderSpec, model: EncoderDecoder) -> None:
    # Both engines multiply embeddings by the square root of the width.
    spec.embeddings[0].weight = _array((model.source_embedding
                                        or model.target_embedding).table.weight)
    spec.position_encodings.encodings = _array(model.source_signal)
    if isinstance(model.encoder_norm, nn.LayerNorm):  # only networks with norm "pre" have one
        _norm(spec.layer_norm, model.encoder_norm)
    for part, layer in zip(spec.layer, model.encoder, strict=True):
        _sublayers(part, layer)


def _decoder(spec: TransformerDecoderSpec, model: EncoderDecoder) -> None:
    spec.start_from_zero_embedding = True
    spec.embeddings.weight = _array(model.target_embedding.table.weight)
    spec.position_encodings.encodings = _array(model.signal)
    if isinstance(model.decoder_norm, nn.LayerNorm):
        _norm(spec.layer_norm, model.decoder_norm)
    _linear(spec.projection, model.project)
    layers: Any = model.decoder
    for part, layer in zip(spec.layer, layers, strict=True):
        _sublayers(part, layer)
        query, both, output = part.attention.linear
        _linear(query, layer.cross_attention.query)
        _linear(both, layer.cross_attention.key_value)
        _linear(output, layer.cross_attention.output)
        _norm(part.attention.layer_norm, layer.cross_residual.norm)


def _sublayers(spec: Any, layer: Any) -> None:  # noqa: ANN401 -- of the encoder or the decoder
    """Set self-attention and the feed-forward part of a layer."""
    _linear(spec.self_attention.linear[0], layer.attention.query, layer.attention.key_value)
    _linear(spec.self_attention.linear[1], layer.attention.output)
    _norm(spec.self_attention.layer_norm, layer.attention_residual.norm)
    _linear(spec.ffn.linear_0, layer.feed_forward[0])
    _linear(spec.ffn.linear_1, layer.feed_forward[2])
    _norm(spec.ffn.layer_norm, layer.feed_forward_residual.norm)


def _norm(spec: LayerNormSpec, norm: nn.LayerNorm) -> None:
    spec.gamma, spec.beta = _array(norm.weight), _array(norm.bias)


def _linear(spec: LinearSpec, *linears: nn.Linear | TiedProjection) -> None:
    """Set one product to the outputs of `linears`, concatenated."""
    spec.weight = _array(torch.cat([linear.weight for linear in linears]))
    spec.bias = _array(torch.cat([linear.bias for linear in linears]))


def _array(tensor: Tensor) -> object:
    """Return a tensor as CTranslate2 takes it."""
    return tensor.detach().float().contiguous().numpy()
