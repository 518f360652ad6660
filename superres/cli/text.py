"""The commands of text: `superres translate` and `superres evaluate text`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from superres.cli.options import (
    DEFAULTS,
    Accept,
    Adaptive,
    AsJson,
    Beam,
    BlockSize,
    Candidates,
    Checkpoint,
    Device,
    Draft,
    Engine,
    Greedy,
    Languages,
    LengthPenalty,
    Limit,
    MinBlock,
    Ngrams,
    Nucleus,
    Proposer,
    SampleTopK,
    Sampling,
    Seed,
    Sentences,
    TextTemperature,
    TopK,
    Window,
    beam_config,
    decode_config,
    given_options,
    load_translator,
    refuse_idle,
)
from superres.config import DEFAULT_TRANSLATOR, BeamConfig
from superres.pipeline.options import combined
from superres.system.terminal import echo, echo_json

BEAM = BeamConfig()

Texts = Annotated[list[str] | None, typer.Argument(metavar="[TEXT]...", help="Lines to translate; without them and "
                                                   "--input, those of standard input.", show_default=False)]
Input = Annotated[Path | None, typer.Option(metavar="FILE", help="Text file, a line each; - is standard input.",
                                            show_default=False)]
Output = Annotated[Path | None, typer.Option(metavar="FILE", help="Where to write the translations, a line a line. "
                                             "[default: standard output]", show_default=False)]
Trace = Annotated[bool, typer.Option("--trace", help="Print the steps with their accepted tokens on standard error.")]
Pairs = Annotated[Path, typer.Option("--data", metavar="PATH", help="Parallel text PATH.en and PATH.de, or a test set "
                                     "of sacrebleu's.")]
Search = Annotated[int, typer.Option("--beam", metavar="N", help="Compare with beam search of N hypotheses; 0 does "
                                     "not.")]


def translate(
    context: typer.Context, texts: Texts = None, input: Input = None, output: Output = None,
    checkpoint: Checkpoint = DEFAULT_TRANSLATOR, block_size: BlockSize = DEFAULTS.block_size,
    accept: Accept = DEFAULTS.accept, top_k: TopK = DEFAULTS.top_k, min_block: MinBlock = DEFAULTS.min_block,
    temperature: TextTemperature = str(DEFAULTS.temperature), seed: Seed = DEFAULTS.seed, beam: Beam = None,
    length_penalty: LengthPenalty = BEAM.length_penalty, batch_size: Sentences = 64, device: Device = "auto",
    proposer: Proposer = DEFAULTS.proposer, languages: Languages = None, trace: Trace = False, engine: Engine = "auto",
    adaptive: Adaptive = DEFAULTS.adaptive,
    draft: Draft = DEFAULTS.draft, ngrams: Ngrams = DEFAULTS.ngrams, sampling: Sampling = DEFAULTS.sampling,
    sample_top_k: SampleTopK = DEFAULTS.sample_top_k, nucleus: Nucleus = DEFAULTS.nucleus,
    window: Window = DEFAULTS.window, candidates: Candidates = DEFAULTS.candidates,
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
    translator = load_translator(checkpoint, device, decode, languages, engine)
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
    block_size: BlockSize = DEFAULTS.block_size, accept: Accept = DEFAULTS.accept, top_k: TopK = DEFAULTS.top_k,
    min_block: MinBlock = DEFAULTS.min_block, temperature: TextTemperature = str(DEFAULTS.temperature),
    seed: Seed = DEFAULTS.seed, proposer: Proposer = DEFAULTS.proposer, greedy: Greedy = True,
    beam: Search = BEAM.size, length_penalty: LengthPenalty = BEAM.length_penalty, batch_size: Sentences = 1,
    device: Device = "auto", languages: Languages = None, as_json: AsJson = False, engine: Engine = "auto",
    adaptive: Adaptive = DEFAULTS.adaptive,
    draft: Draft = DEFAULTS.draft, ngrams: Ngrams = DEFAULTS.ngrams, sampling: Sampling = DEFAULTS.sampling,
    sample_top_k: SampleTopK = DEFAULTS.sample_top_k, nucleus: Nucleus = DEFAULTS.nucleus,
    window: Window = DEFAULTS.window, candidates: Candidates = DEFAULTS.candidates,
) -> None:
    """Score blockwise translation next to greedy decoding and beam search: BLEU, chrF, block size, speed."""
    decode = decode_config(context)
    if not beam:
        refuse_idle(context, "with --beam 0; leave it out, or give --beam 4", "length_penalty")
    search = BeamConfig(beam, length_penalty) if beam else None

    from superres.evaluation.text import evaluate_text, report_lines
    from superres.tasks.translation import read_pairs

    translator = load_translator(checkpoint, device, decode, languages, engine)
    decode = combined(DEFAULTS, given_options(context, decode), translator.model_config.prediction_heads)
    pairs = read_pairs(data, translator.languages, limit)
    report = evaluate_text(pairs, translator, decode, batch_size, greedy, search)
    report["device"] = translator.device.type
    if as_json:
        echo_json(report)
    else:
        echo(report_lines(report), err=True)
