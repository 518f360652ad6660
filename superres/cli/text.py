"""The commands of text: `superres translate` and `superres evaluate text`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from superres.cli.options import (
    DEFAULTS,
    AsJson,
    Beam,
    Checkpoint,
    Device,
    Engine,
    Greedy,
    Languages,
    LengthPenalty,
    Limit,
    Sentences,
    beam_config,
    decode_config,
    given_options,
    load_translator,
    refuse_idle,
)
from superres.config import DECODING, DEFAULT_TRANSLATOR, BeamConfig
from superres.pipeline.options import combined
from superres.system.terminal import echo, echo_json

BEAM = BeamConfig()

Texts = Annotated[list[str] | None, typer.Argument(metavar="[TEXT]...", help="Lines to translate; without them and "
                                                   "--input, standard input is read.", show_default=False)]
Input = Annotated[Path | None, typer.Option(metavar="FILE", help="Text file, one sentence per line; '-' reads "
                                            "standard input.", show_default=False)]
Output = Annotated[Path | None, typer.Option(metavar="FILE", help="File for the translations, one per input line. "
                                             "[default: standard output]", show_default=False)]
Trace = Annotated[bool, typer.Option("--trace", help="Print each step with its accepted tokens on standard error.")]
Pairs = Annotated[Path, typer.Option("--data", metavar="PATH", help="Parallel text PATH.en and PATH.de, or a test set "
                                     "of sacrebleu's.")]
Search = Annotated[int, typer.Option("--beam", metavar="N", help="Compare with beam search of N hypotheses per "
                                     "sentence; 0 leaves it out.", rich_help_panel=DECODING)]


def translate(
    context: typer.Context, texts: Texts = None, input: Input = None, output: Output = None,
    checkpoint: Checkpoint = DEFAULT_TRANSLATOR, languages: Languages = None, batch_size: Sentences = 64,
    device: Device = "auto", trace: Trace = False, beam: Beam = None,
    length_penalty: LengthPenalty = BEAM.length_penalty, engine: Engine = "auto",
) -> None:
    """Translate lines of text: one line out for each line in, in the same order.

    A line that is longer than the model reads is translated in parts, cut between sentences where possible.
    """
    decode = decode_config(context)
    search = beam_config(context, beam, length_penalty)
    if search is not None:
        refuse_idle(context, f"with --beam {beam}, which has no blocks to show; leave out one of the two", "trace")

    from superres.batch.text import check_output, input_lines, summary_line, trace_lines, translate_lines, write_lines
    from superres.system.progress import say

    check_output(output, input)
    lines = input_lines(texts or [], input)
    translator = load_translator(checkpoint, device, languages, engine)
    given = given_options(context, decode)
    options = search or combined(translator.default, given, translator.model_config.prediction_heads)
    result = translate_lines(lines, translator, options, batch_size)
    write_lines(result.texts, output)
    for traces in result.traces if trace else []:
        echo("\n".join([*trace_lines(translator, traces), ""]), err=True)
    if output is not None:
        say(summary_line(result))


def text(
    context: typer.Context, data: Pairs, checkpoint: Checkpoint = DEFAULT_TRANSLATOR, limit: Limit = None,
    greedy: Greedy = True, beam: Search = BEAM.size, length_penalty: LengthPenalty = BEAM.length_penalty,
    batch_size: Sentences = 1, device: Device = "auto", languages: Languages = None, as_json: AsJson = False,
    engine: Engine = "auto",
) -> None:
    """Score blockwise translation next to greedy decoding and beam search: BLEU, chrF, block size, speed."""
    decode = decode_config(context)
    if not beam:
        refuse_idle(context, "with --beam 0; leave it out, or give --beam 4", "length_penalty")
    search = BeamConfig(beam, length_penalty) if beam else None

    from superres.evaluation.text import evaluate_text, report_lines
    from superres.tasks.translation import read_pairs

    translator = load_translator(checkpoint, device, languages, engine)
    decode = combined(DEFAULTS, given_options(context, decode), translator.model_config.prediction_heads)
    pairs = read_pairs(data, translator.languages, limit)
    report = evaluate_text(pairs, translator, decode, batch_size, greedy, search)
    report["device"] = translator.device.type
    if as_json:
        echo_json(report)
    else:
        echo(report_lines(report), err=True)
