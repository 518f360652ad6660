"""Other people's engines with networks of ours: CTranslate2 with the weights of a text checkpoint,
and transformers' GPT-2 of the size of our decoder (the `peers` extra)."""

from __future__ import annotations

import functools
import tempfile
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from superres.checkpoint import find_checkpoint, load_checkpoint
from superres.config import ModelConfig, require
from superres.evaluation.timing import Timer
from superres.nn.layers import TiedProjection
from superres.nn.model import EncoderDecoder
from superres.tasks import translation

if TYPE_CHECKING:
    import ctranslate2
    from ctranslate2.specs import TransformerSpec
    from ctranslate2.specs.common_spec import LayerNormSpec, LinearSpec

    from superres.pipeline.pipeline import Pipeline
    from superres.pipeline.translator import Translator

GENERATED = 24
"""Tokens that transformers generates, the first ones of a target, where its cache is short and
fast."""


@functools.cache
def ctranslate2_of(checkpoint: str, kind: str) -> ctranslate2.Translator:
    """Return the base network of a text checkpoint in CTranslate2, with numbers of this kind, on
    one thread.

    With "float32", it gives the tokens of greedy decoding by the engine native. Raises ConfigError
    for a network that CTranslate2 does not know.
    """
    import ctranslate2

    source = find_checkpoint(checkpoint)
    model = load_checkpoint(source)
    config = model.config
    require(config.task == translation.name and config.cross_attention and config.identity_p1
            and config.attention == "causal", "CTranslate2 does not know the network of "
            f"{source.name}; name a checkpoint of text")
    with tempfile.TemporaryDirectory() as folder:
        specification(model, translation.Codec.read(source, config.source_length)).save(folder)
        return ctranslate2.Translator(folder, compute_type=kind, inter_threads=1, intra_threads=1)


def by_ctranslate2(peer: ctranslate2.Translator, translator: Translator, lines: list[str],
                   batch_size: int) -> list[str]:
    """Translate greedily with CTranslate2, which forms batches of similar lengths, with the tokens
    of `translator`."""
    pieces, network = translator.codec.pieces, translator.model_config
    tokens = [pieces.encode(line, out_type=str) for line in lines]
    results = peer.translate_batch(tokens, beam_size=1, max_batch_size=batch_size,
                                   max_decoding_length=network.target_length)
    # It has no largest length for each source.
    most = [network.longest_target(len(row) + 1) for row in tokens]
    return [pieces.decode(result.hypotheses[0][:length])
            for result, length in zip(results, most, strict=True)]


def specification(model: EncoderDecoder, codec: translation.Codec) -> TransformerSpec:
    """Return the base network in the form that CTranslate2 saves."""
    from ctranslate2.specs import TransformerSpec

    config = model.config
    spec = TransformerSpec.from_config((config.encoder_layers, config.decoder_layers),
                                       config.attention_heads, pre_norm=config.norm == "pre")
    # Both engines multiply embeddings by the square root of the width.
    source = model.source_embedding or model.target_embedding
    spec.encoder.embeddings[0].weight = _array(source.table.weight)
    spec.encoder.position_encodings.encodings = _array(model.source_signal)
    spec.decoder.embeddings.weight = _array(model.target_embedding.table.weight)
    spec.decoder.position_encodings.encodings = _array(model.signal)
    _linear(spec.decoder.projection, model.project)
    for norms, norm in ((spec.encoder, model.encoder_norm), (spec.decoder, model.decoder_norm)):
        if isinstance(norm, nn.LayerNorm):  # only networks with norm "pre" have one
            _norm(norms.layer_norm, norm)
    for part, layer in zip(spec.encoder.layer, model.encoder, strict=True):
        _sublayers(part, layer)
    layers: Any = model.decoder
    for part, layer in zip(spec.decoder.layer, layers, strict=True):
        _sublayers(part, layer)
        query, both, output = part.attention.linear
        _linear(query, layer.cross_attention.query)
        _linear(both, layer.cross_attention.key_value)
        _linear(output, layer.cross_attention.output)
        _norm(part.attention.layer_norm, layer.cross_residual.norm)
    # The first position reads zeros; the start token's own embedding is not used.
    spec.decoder.start_from_zero_embedding = True
    pieces = [codec.pieces.id_to_piece(token) for token in range(codec.size)]
    spec.register_source_vocabulary(pieces)
    spec.register_target_vocabulary(pieces)
    spec.config.bos_token = spec.config.decoder_start_token = pieces[translation.PADDING]
    spec.config.eos_token = pieces[translation.END]
    spec.config.unk_token = pieces[translation.UNKNOWN]
    spec.config.add_source_eos = True
    spec.validate()
    spec.optimize()
    return spec


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


def gpt2(config: ModelConfig) -> Any:  # noqa: ANN401 -- transformers' network
    """Return transformers' GPT-2 with random weights and the layers, widths and vocabulary of our
    decoder."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(
        vocab_size=config.vocabulary, n_positions=config.target_length, n_embd=config.width,
        n_layer=config.decoder_layers, n_head=config.attention_heads, n_inner=config.filter_size,
        bos_token_id=0, eos_token_id=None, pad_token_id=0)).eval()


@torch.inference_mode()
def generated_token(pipeline: Pipeline) -> float:
    """Return the seconds in which a GPT-2 of our size generates a token, greedily and with its
    cache."""
    model, start = gpt2(pipeline.model_config), torch.zeros(1, 1, dtype=torch.int64)

    def generate(new: int) -> object:
        return model.generate(start, attention_mask=torch.ones_like(start), max_new_tokens=new,
                              do_sample=False, use_cache=True)

    generate(4)
    return Timer(pipeline.device).once(lambda: generate(GENERATED)) / GENERATED
