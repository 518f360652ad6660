"""Compare translation with superres and with CTranslate2: the same weights, sentences and number of threads.

    python scripts/benchmark/translators.py --data test --output translators --threads 1

The checkpoint is exported as by `superres export ctranslate2`. Every variant translates all sentences, one at a time
and in batches, in turns with the others. The time is the median over the rounds; it includes the conversion of text to
tokens and back. CTranslate2 decodes greedily, and forms its own batches of sentences of similar length. FOLDER gets
translators.json and translators.md. CTranslate2 is in the extra `peers`.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
import typer

from superres import DecodeConfig, SuperresError
from superres.cli.benchmark import parse_batches
from superres.evaluation.text import bleu
from superres.pipeline.export import export_ctranslate2
from superres.pipeline.translator import Translator
from superres.system.machine import machine, require_idle
from superres.system.output import markdown_table, number_text, prepare_folder, write_results
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


def variants(checkpoint: str, folder: str, threads: int) -> dict[str, Translate]:
    """Return the variants by name: CTranslate2 in float32 and int8, and ours greedily and in blocks."""
    import ctranslate2

    made: dict[str, Translate] = {}
    translators = {engine: Translator.load(checkpoint, "cpu", engine=engine) for engine in ("native", "native-int8")}
    for kind in ("float32", "int8"):
        # It is fastest with a thread per batch: the threads of one batch wait for one another.
        peer = ctranslate2.Translator(folder, compute_type=kind, inter_threads=threads, intra_threads=1)
        made[f"CTranslate2 {kind}, greedy"] = partial(theirs, peer, translators["native"])
    heads = translators["native"].model_config.prediction_heads
    blocks = {f"k = {size}": DecodeConfig(block_size=size) for size in SIZES if size <= heads}
    ways = {"greedy": DecodeConfig(block_size=1), **blocks, "adaptive": DecodeConfig(adaptive=True)}
    for engine, translator in translators.items():
        made |= {f"{engine}, {way}": partial(ours, translator, options, threads) for way, options in ways.items()}
    return made


def seconds(translate: Translate, lines: list[str], batch_size: int) -> float:
    """Time one translation of all lines, in calls of one batch each if the batch size is 1."""
    started = time.perf_counter()
    for part in [[line] for line in lines] if batch_size == 1 else [lines]:
        translate(part, batch_size)
    return time.perf_counter() - started


def measure(
    compared: dict[str, Translate], text: TextPairs, batches: Sequence[int], repeats: int,
) -> list[dict[str, Any]]:
    """Return one row per variant and batch size, serialisable as JSON."""
    lines = list(text.source)
    texts = {name: translate(lines, max(batches)) for name, translate in compared.items()}
    rows = []
    for batch_size in batches:
        times: dict[str, list[float]] = {name: [] for name in compared}
        for _ in range(repeats):
            for name, translate in compared.items():
                times[name].append(seconds(translate, lines, batch_size))
        medians = {name: statistics.median(found) for name, found in times.items()}
        rows += [{
            "variant": name, "batch_size": batch_size, "milliseconds_per_sentence": 1000 * median / len(text.source),
            "words_per_second": sum(len(line.split()) for line in texts[name]) / median,
            "time_over_peer": median / medians[PEER], "bleu": bleu(texts[name], text.target)["score"],
            "equal_to_float32": sum(map(str.__eq__, texts[name], texts["CTranslate2 float32, greedy"])),
        } for name, median in medians.items()]
    return rows


def markdown(rows: Sequence[dict[str, Any]], sentences: int, threads: int) -> str:
    """Return the table of all rows."""
    header = ["variant", "batch", "ms per sentence", "words per second", f"time over {PEER}", "BLEU",
              "equal to CTranslate2 float32"]
    digits = (None, None, 2, 0, 2, 2, None)
    cells = [[str(value) if places is None else number_text(value, places)
              for value, places in zip(row.values(), digits, strict=True)] for row in rows]
    return f"{sentences} sentences, threads: {threads}.\n\n{markdown_table(header, cells)}\n"


def main(
    data: Annotated[Path, typer.Option(help="Parallel text PATH.en and PATH.de, or a test set of sacreBLEU.")],
    output: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for translators.json and translators.md.")],
    checkpoint: Annotated[str, typer.Option(help="Checkpoint name or folder.")] = "multi30k-en-de",
    threads: Annotated[int, typer.Option(min=1, help="Threads of every engine.")] = 1,
    batches: Annotated[str, typer.Option(metavar="B,B,...", help="Batch sizes.")] = "1,32",
    limit: Annotated[int | None, typer.Option(help="Translate the first N sentences only.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds of measurement.")] = 5,
    busy: Annotated[bool, typer.Option("--busy", help="Measure even while other programs use the processor.")] = False,
) -> None:
    """Translate with all variants in turns; write the times and the quality."""
    sizes = parse_batches(batches)
    if not busy:
        require_idle()
    prepare_folder(output)
    text = read_pairs(data, ("en", "de"), limit)
    with tempfile.TemporaryDirectory() as folder:
        export_ctranslate2(checkpoint, Path(folder))
        compared = variants(checkpoint, folder, threads)
    rows = measure(compared, text, sizes, repeats)
    table = markdown(rows, len(text.source), threads)
    document = {"machine": machine(torch.device("cpu")), "threads": threads, "sentences": len(text.source),
                "rows": rows}
    write_results(output, {"translators.json": document, "translators.md": table})
    print(table)


if __name__ == "__main__":
    try:
        typer.run(main)
    except SuperresError as error:
        sys.exit(f"translators: {error}")
