"""A toy pair of languages, its vocabulary, and small networks that translate it."""

from __future__ import annotations

import copy
import functools
from dataclasses import replace

import numpy as np
import torch
from fakes import PLAIN, random_model

from superres.checkpoint import save_checkpoint
from superres.config import ModelConfig
from superres.pipeline.translator import Translator
from superres.tasks.translation import END, VOCABULARY_FILE, Codec, TextPairs, train_vocabulary
from superres.training.construction import build_model, build_optimizers
from superres.training.data import TextBatches
from superres.training.losses import TeacherForcingLoss
from superres.training.stage import Stage

WORDS = dict(zip(["man", "dog", "red", "runs", "sees", "house", "tree", "small", "a", "the"],
                 ["Mann", "Hund", "rot", "rennt", "sieht", "Haus", "Baum", "klein", "ein", "das"],
                 strict=True))
SIZE = 330
"""Pieces of the vocabulary: 256 bytes, 3 special ones, the letters, and some words."""

CONFIG = ModelConfig(
    task="translation", languages=("en", "de"), vocabulary=SIZE, source_shape=(24,),
    target_shape=(20,), width=32, filter_size=32, attention_heads=2, encoder_layers=1,
    decoder_layers=2, attention="causal", prediction_heads=4, head_filter_size=32,
    tied_embeddings=True, conditioning_blocks=0, **PLAIN,
)
SHORT = Stage(steps=2, batch_size=4, precision="no")


def sentences(count, seed=0):
    """Return pairs of one to five words, each word with its own translation, in the same order."""
    rng = np.random.default_rng(seed)
    rows = [rng.choice(list(WORDS), rng.integers(1, 6)).tolist() for _ in range(count)]
    return TextPairs([" ".join(row) for row in rows],
                     [" ".join(WORDS[word] for word in row) for row in rows])


@functools.cache
def vocabulary():
    pairs = sentences(300)
    return train_vocabulary([*pairs.source, *pairs.target], SIZE)


def codec(length=CONFIG.source_length):
    return Codec(vocabulary(), length=length)


def wordy(config=CONFIG, seed=0, dtype=torch.float64):
    """Return a random network that chooses among few tokens, the end of a sentence one of them."""
    # A tied table would make a random network repeat itself.
    model = random_model(replace(config, tied_embeddings=False), seed, dtype)
    model.project.bias.fill_(-40)
    model.project.bias[[END, *range(280, 288)]] = 0
    return model


@functools.cache
def learned():
    """Return a translator that has learned the toy languages for some seconds, its four heads with
    it."""
    settings = Stage(stage="heads", steps=160, batch_size=64, learning_rate=1e-2, precision="no")
    pairs = sentences(300)
    rows = [[np.array(row) for row in codec().split(lines)] for lines in (pairs.source,
                                                                          pairs.target)]
    batches = TextBatches(*rows, settings.batch_size, 0)
    with torch.random.fork_rng(devices=[]):
        network = build_model(CONFIG, settings)
        [optimizer], loss = build_optimizers(network, settings), TeacherForcingLoss(network,
                                                                                    settings)
        for step in range(settings.steps):
            optimizer.param_groups[0]["lr"] = (settings.learning_rate * min(1, step / 20)
                                               * (1 - step / settings.steps))
            batch = batches.batch(step)
            loss(batch.source, batch.target, step, None, batch.padding,
                 batch.lengths)["total"].backward()
            optimizer.step()
            optimizer.zero_grad()
    network = network.requires_grad_(False).eval()
    return {dtype: Translator(copy.deepcopy(network).to(dtype), "toy", "0123", "cpu", engine=engine,
                              codec=codec())
            for dtype, engine in ((torch.float64, "plain"), (torch.float32, "auto"))}


def translator(config=CONFIG, seed=0, dtype=torch.float64, engine="plain"):
    return Translator(wordy(config, seed, dtype), "toy", "0123", "cpu", engine=engine,
                      codec=codec())


def write_pairs(pairs, stem):
    for language, lines in (("en", pairs.source), ("de", pairs.target)):
        stem.with_name(f"{stem.name}.{language}").write_text("".join(f"{line}\n" for line in lines))
    return stem


def write_checkpoint(folder, heads=4, **network):
    """Write an untrained network."""
    model = build_model(replace(CONFIG, prediction_heads=heads, **network), SHORT)
    save_checkpoint(model, folder, files={VOCABULARY_FILE: vocabulary()})
    return folder
