"""Conversion of text checkpoints to CTranslate2, an engine for translation without blocks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from superres.checkpoint import find_checkpoint, load_checkpoint, replaced_folder
from superres.config import ModelConfig, require
from superres.errors import ConfigError
from superres.nn.attention import Attention
from superres.nn.layers import DecoderLayer, EncoderLayer, FeedForward, TiedProjection, TokenEmbedding
from superres.nn.model import EncoderDecoder
from superres.tasks import translation

if TYPE_CHECKING:
    from ctranslate2.specs import TransformerSpec
    from ctranslate2.specs.attention_spec import MultiHeadAttentionSpec
    from ctranslate2.specs.common_spec import EmbeddingsSpec, LayerNormSpec, LinearSpec
    from ctranslate2.specs.transformer_spec import (
        FeedForwardSpec,
        TransformerDecoderLayerSpec,
        TransformerDecoderSpec,
        TransformerEncoderLayerSpec,
        TransformerEncoderSpec,
    )

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

With `compute_type="float32"` and `beam_size=1`, the tokens are those of greedy decoding with superres, which also stops
the translation of n tokens at 2n + 10 tokens.
"""


def export_ctranslate2(checkpoint: str | Path, folder: Path) -> None:
    """Write the base network of a text checkpoint as a CTranslate2 model, with its vocabulary and a README.

    Args:
        checkpoint: name or folder of the checkpoint.
        folder: new or empty folder; afterwards it is complete, or as it was.

    Raises:
        CheckpointError: the checkpoint is missing or damaged.
        ConfigError: CTranslate2 is not installed or does not know such a network, or `folder` is not empty.
        OutputError: the folder cannot be written.
    """
    source = find_checkpoint(checkpoint)
    model = load_checkpoint(source)
    _check_network(model.config, source.name)
    require(not folder.exists() or (folder.is_dir() and not any(folder.iterdir())),
            f"{folder} exists and is not an empty folder; choose another one")
    codec = translation.Codec.read(source, model.config.source_length)
    spec = specification(model, codec)
    (language, other), length = model.config.languages, model.config.target_length
    with replaced_folder(folder) as fresh:
        spec.save(str(fresh))
        (fresh / translation.VOCABULARY_FILE).write_bytes(codec.model)
        (fresh / "README.md").write_text(README.format(
            name=source.name, folder=folder, source=language, target=other, vocabulary=translation.VOCABULARY_FILE,
            length=length))


def _check_network(config: ModelConfig, name: str) -> None:
    """Raise ConfigError unless CTranslate2 knows the network."""
    require(config.task == translation.name,
            f"checkpoint {name} is for {config.task}; CTranslate2 translates text only")
    require(config.identity_p1,
            f"p1 of checkpoint {name} passes through its head layer, which CTranslate2 does not know")
    require(config.cross_attention and config.attention == "causal",
            f"checkpoint {name} has no cross-attention or no causal attention; CTranslate2 does not know its network")


def specification(model: EncoderDecoder, codec: translation.Codec) -> TransformerSpec:
    """Return the base network of `model` in the form that CTranslate2 saves.

    Raises:
        ConfigError: CTranslate2 is not installed.
    """
    try:
        from ctranslate2.specs import TransformerSpec
    except ImportError as error:
        raise ConfigError("the export needs CTranslate2; install it with: pip install 'superres[peers]'") from error
    config = model.config
    spec = TransformerSpec.from_config(
        (config.encoder_layers, config.decoder_layers), config.attention_heads, pre_norm=config.norm == "pre")
    _encoder(spec.encoder, model)
    _decoder(spec.decoder, model)
    pieces = [codec.pieces.id_to_piece(token) for token in range(codec.size)]
    spec.register_source_vocabulary(pieces)
    spec.register_target_vocabulary(pieces)
    # The first position reads zeros; the start token's own embedding is not used.
    spec.config.bos_token = spec.config.decoder_start_token = pieces[translation.PADDING]
    spec.config.eos_token, spec.config.unk_token = pieces[translation.END], pieces[translation.UNKNOWN]
    spec.config.add_source_eos = True
    spec.validate()
    spec.optimize()
    return spec


def _encoder(spec: TransformerEncoderSpec, model: EncoderDecoder) -> None:
    _embedding(spec.embeddings[0], model.source_embedding or model.target_embedding)
    spec.position_encodings.encodings = _array(model.source_signal)
    _norm(spec, model.encoder_norm)
    for part, layer in zip(spec.layer, model.encoder, strict=True):
        _encoder_layer(part, layer)  # type: ignore[arg-type]


def _decoder(spec: TransformerDecoderSpec, model: EncoderDecoder) -> None:
    spec.start_from_zero_embedding = True
    _embedding(spec.embeddings, model.target_embedding)
    spec.position_encodings.encodings = _array(model.signal)
    _norm(spec, model.decoder_norm)
    _linear(spec.projection, model.project)
    for part, layer in zip(spec.layer, model.decoder, strict=True):
        _decoder_layer(part, layer)  # type: ignore[arg-type]


def _encoder_layer(spec: TransformerEncoderLayerSpec, layer: EncoderLayer) -> None:
    _self_attention(spec.self_attention, layer.attention, layer.attention_residual.norm)
    _feed_forward(spec.ffn, layer.feed_forward, layer.feed_forward_residual.norm)


def _decoder_layer(spec: TransformerDecoderLayerSpec, layer: DecoderLayer) -> None:
    _self_attention(spec.self_attention, layer.attention, layer.attention_residual.norm)
    if layer.cross_attention is not None and layer.cross_residual is not None:
        query, both, output = spec.attention.linear
        _linear(query, layer.cross_attention.query)
        _linear(both, layer.cross_attention.key_value)
        _linear(output, layer.cross_attention.output)
        _layer_norm(spec.attention.layer_norm, layer.cross_residual.norm)
    _feed_forward(spec.ffn, layer.feed_forward, layer.feed_forward_residual.norm)


def _self_attention(spec: MultiHeadAttentionSpec, attention: Attention, norm: nn.LayerNorm) -> None:
    _linear(spec.linear[0], attention.query, attention.key_value)
    _linear(spec.linear[1], attention.output)
    _layer_norm(spec.layer_norm, norm)


def _feed_forward(spec: FeedForwardSpec, layer: FeedForward, norm: nn.LayerNorm) -> None:
    _linear(spec.linear_0, layer[0])  # type: ignore[arg-type]
    _linear(spec.linear_1, layer[2])  # type: ignore[arg-type]
    _layer_norm(spec.layer_norm, norm)


def _norm(spec: TransformerEncoderSpec | TransformerDecoderSpec, norm: nn.Module) -> None:
    """Set the final norm, which only networks with norm "pre" have."""
    if isinstance(norm, nn.LayerNorm):
        _layer_norm(spec.layer_norm, norm)


def _layer_norm(spec: LayerNormSpec, norm: nn.LayerNorm) -> None:
    spec.gamma, spec.beta = _array(norm.weight), _array(norm.bias)


def _linear(spec: LinearSpec, *linears: nn.Linear | TiedProjection) -> None:
    """Set one product to the outputs of `linears`, concatenated."""
    spec.weight = _array(torch.cat([linear.weight for linear in linears]))
    spec.bias = _array(torch.cat([linear.bias for linear in linears]))


def _embedding(spec: EmbeddingsSpec, embedding: TokenEmbedding) -> None:
    # Both engines multiply embeddings by the square root of the width.
    spec.weight = _array(embedding.table.weight)


def _array(tensor: Tensor) -> object:
    """Return a tensor as CTranslate2 takes it."""
    return tensor.detach().float().contiguous().numpy()
