"""Compare translation with superres and with CTranslate2: the same weights, sentences and number of threads.

    python scripts/benchmark/translators.py --data test --output translators --threads 1

The checkpoint is exported as by `superres export ctranslate2`. Every variant translates all sentences, one at a time
and in batches, in turns with the others. The time is the median over the rounds; it includes the conversion of text to
tokens and back. CTranslate2 decodes greedily, and forms its own batches of sentences of similar length. It is in the
`peers` extra.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import torch
import typer

sys.path.append(str(Path(__file__).resolve().parents[1]))

from measurements import (
    Busy,
    Checkpoint,
    Columns,
    Document,
    Limit,
    Output,
    Row,
    Table,
    Text,
    Values,
    columns_table,
    in_turns,
    medians,
    run,
    values,
)
from superres import DecodeConfig
from superres.cli.benchmark import parse_batches
from superres.evaluation.text import bleu
from superres.pipeline.ctranslate2_export import export_ctranslate2
from superres.pipeline.translator import Translator
from superres.system.machine import require_idle
from superres.system.output import short_digest
from superres.tasks.translation import TextPairs, read_pairs

if TYPE_CHECKING:
    import ctranslate2

Translate = Callable[[list[str], int], list[str]]
"""Translates lines in batches of a given size."""
SIZES = (2, 3, 4, 5)
"""Block sizes to measure."""
PEER = "CTranslate2 int8, greedy"
"""The variant that the others are compared with."""


def ours(translator: Translator, options: DecodeConfig, threads: int, lines: list[str], batch_size: int) -> list[str]:
    """Translate with superres on `threads` threads, a number that CTranslate2 changes for the whole process."""
    torch.set_num_threads(threads)
    return translator(lines, options, batch_size=batch_size).texts


def theirs(peer: ctranslate2.Translator, translator: Translator, lines: list[str], batch_size: int) -> list[str]:
    """Translate with CTranslate2; the tokens are those of `translator`."""
    pieces = translator.codec.pieces
    tokens = [pieces.encode(line, out_type=str) for line in lines]
    network = translator.model_config
    results = peer.translate_batch(tokens, beam_size=1, max_batch_size=batch_size,
                                   max_decoding_length=network.target_length)
    # It has no largest length for each source.
    most = [network.longest_target(len(row) + 1) for row in tokens]
    return [pieces.decode(result.hypotheses[0][:length]) for result, length in zip(results, most, strict=True)]


def peers(checkpoint: str, translator: Translator, threads: int) -> dict[str, Translate]:
    """Return CTranslate2 in float32 and int8, with the weights of a checkpoint.

    It is fastest with a thread per batch: the threads of one batch wait for one another.
    """
    import ctranslate2

    with tempfile.TemporaryDirectory() as folder:
        export_ctranslate2(checkpoint, Path(folder))
        return {f"CTranslate2 {kind}, greedy": partial(theirs, ctranslate2.Translator(
            folder, compute_type=kind, inter_threads=threads, intra_threads=1), translator)
            for kind in ("float32", "int8")}


def by_lines(translate: Translate, lines: list[str], batch_size: int) -> None:
    """Translate all lines, in calls of one line each if the batch size is 1."""
    for part in [[line] for line in lines] if batch_size == 1 else [lines]:
        translate(part, batch_size)


def variants(checkpoint: str, threads: int) -> dict[str, Translate]:
    """Return the variants by name: CTranslate2 in float32 and int8, and ours greedily and in blocks."""
    translators = {engine: Translator.load(checkpoint, "cpu", engine=engine) for engine in ("native", "native-int8")}
    made = peers(checkpoint, translators["native"], threads)
    heads = translators["native"].model_config.prediction_heads
    blocks = {f"k = {size}": DecodeConfig(block_size=size) for size in SIZES if size <= heads}
    ways = {"greedy": DecodeConfig(block_size=1), **blocks, "adaptive": DecodeConfig(adaptive=True)}
    for engine, translator in translators.items():
        made |= {f"{engine}, {way}": partial(ours, translator, options, threads) for way, options in ways.items()}
    return made


def measure(compared: dict[str, Translate], text: TextPairs, batch_size: int, repeats: int) -> Values:
    """Time all variants in turns, and return their milliseconds per sentence, BLEU and agreement by name."""
    lines = list(text.source)
    texts = {name: translate(lines, 32) for name, translate in compared.items()}
    taken = medians(in_turns({name: partial(by_lines, translate, lines, batch_size)
                              for name, translate in compared.items()}, repeats))
    return {name: {
        "milliseconds": 1000 * seconds / len(lines), "words": sum(len(one.split()) for one in texts[name]) / seconds,
        "over_peer": seconds / taken[PEER], "bleu": bleu(texts[name], text.target)["score"],
        "equal": sum(map(str.__eq__, texts[name], texts["CTranslate2 float32, greedy"]))}
        for name, seconds in taken.items()}


COLUMNS: Columns = {
    "variant": ("variant", 0), "ms per sentence": ("milliseconds", 2), "words per second": ("words", 0),
    f"time over {PEER}": ("over_peer", 2), "BLEU": ("bleu", 2), "equal to CTranslate2 float32": ("equal", 0),
}


def views(document: Document) -> dict[str, str]:
    """Return a table per batch size."""
    return {name.replace(" ", "-"): columns_table([{"variant": one, **own} for one, own in found.items()], COLUMNS)
            for name, found in values(document).items()}


def main(
    data: Text, output: Output, checkpoint: Checkpoint = "multi30k-en-de",
    threads: Annotated[int, typer.Option(min=1, help="Threads of every engine.")] = 1,
    batches: Annotated[str, typer.Option(metavar="B,B,...", help="Batch sizes.")] = "1,32", limit: Limit = None,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds of measurement.")] = 5, busy: Busy = False,
) -> None:
    """Translate with all variants in turns; write the times and the quality."""
    sizes = parse_batches(batches)
    if not busy:
        require_idle()
    text = read_pairs(data, ("en", "de"), limit)
    table = Table("translators", output, {
        "checkpoint": checkpoint, "threads": threads, "sentences": len(text.source), "repeats": repeats,
        "data": short_digest("\n".join(text.source).encode())})
    compared = variants(checkpoint, threads)
    table.measure(Row(f"batch {size}", partial(measure, compared, text, size, repeats)) for size in sizes)
    table.finish()


if __name__ == "__main__":
    run(main)
