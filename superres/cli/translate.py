"""The command `superres translate`."""

from __future__ import annotations

from typing import Annotated

import typer
from typer import Argument, Option

from superres.cli import options as opt
from superres.config import DECODING, DEFAULT_TRANSLATOR, BeamConfig, DecodeConfig, require
from superres.pipeline.resolved_options import as_option, combined
from superres.system.progress import say
from superres.system.terminal import echo

Languages = Annotated[str | None, Option(metavar="SOURCE-TARGET", help="Languages of the text, "
                                         "such as en-de. [default: the checkpoint's]")]
Sentences = Annotated[int, Option(metavar="N", help="Sentences decoded together, 1 or more.")]
Texts = Annotated[list[str] | None, Argument(metavar="TEXT", help="Lines to translate; without "
                                             "TEXT and --input, standard input is read.")]
Input = Annotated[str | None, Option(metavar="FILE|URL", help="Text file, UTF-8, or UTF-16 with a "
                                     "byte order mark; '-' reads standard input.")]
Output = Annotated[str | None, Option(metavar="FILE|URL", help="File for the translations. "
                                      "[default: standard output]")]
Trace = Annotated[bool, Option("--trace", help="Print each step with its accepted tokens on "
                               "standard error.")]
Beam = Annotated[int | None, Option(metavar="N", rich_help_panel=DECODING, help="Decode by beam "
                                    "search with N hypotheses per sentence instead of in blocks.")]


def translate(
    context: typer.Context, texts: Texts = None, input: Input = None, output: Output = None,
    checkpoint: opt.Checkpoint = DEFAULT_TRANSLATOR, languages: Languages = None,
    batch_size: Sentences = 64, device: opt.Device = "auto", trace: Trace = False,
    beam: Beam = None, length_penalty: opt.LengthPenalty = BeamConfig.length_penalty,
    engine: opt.Engine = "auto",
) -> None:
    """Translate lines of text in order, one line out per line in.

    The sentences of a line are translated one by one. A line that cannot be translated stays empty
    and is named; then the exit code is 1.
    """
    decode = opt.decode_config(context)
    options: DecodeConfig | BeamConfig | None = _beam_search(context, decode)

    from superres.pipeline import line_translation as text

    text.check_output(output, input)
    lines = text.input_lines(texts or [], input)
    translator = opt.load_translator(checkpoint, device, languages, engine)
    given = opt.given_options(context, decode)
    # a trace shows the default's blocks, which a large batch would not have
    if options is None and (given or trace):
        options = combined(translator.default, given, translator.model_config.prediction_heads)
    summary = text.TranslationSummary()
    with text.line_writer(output) as write:
        for result in text.translate_lines(lines, translator, options, batch_size):
            write(result.texts)
            summary.add(result)
            for line in result if trace else []:
                echo("\n".join([*text.trace_lines(translator, line.traces), ""]), err=True)
    for note in summary.notes():
        say(note)
    if output is not None:
        say(str(summary))
    if summary.failed:
        raise typer.Exit(1)


def _beam_search(context: typer.Context, decode: DecodeConfig) -> BeamConfig | None:
    """Return the settings of beam search, or None without --beam; refuse the options of the
    other."""
    size, penalty = context.params["beam"], context.params["length_penalty"]
    if size is None:
        opt.refuse_ineffective(context, "without beam search; leave it out, or give --beam 4",
                               "length_penalty")
        return None
    blockwise = [as_option(name, str(context.params[name]))
                 for name in opt.given_options(context, decode) if name != "seed"]
    require(not blockwise, f"--beam searches without blocks; leave out {', '.join(blockwise)}")
    opt.refuse_ineffective(context, f"with --beam {size}, which has no blocks to show; leave out "
                           "one of the two", "trace")
    return BeamConfig(size, penalty)
