"""Translate files and streams: the work of `superres translate`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

from superres.config import BeamConfig, DecodeConfig, require
from superres.decoding.trace import mean_accepted_block_size
from superres.errors import OutputError
from superres.system.output import prepare_folder, write_result
from superres.system.progress import say
from superres.system.terminal import read_standard_input, write_output
from superres.tasks.translation import decode_lines, read_lines

if TYPE_CHECKING:
    from superres.decoding.trace import RowTrace
    from superres.pipeline.translator import Translated, Translator


def input_lines(texts: Sequence[str], path: Path | None) -> list[str]:
    """Return the lines to translate: `texts`, or the lines of the file `path`, or (None or "-") of standard input.

    Raises:
        ConfigError: both are given.
        InvalidInputError: the file or standard input is empty, not UTF-8 or cannot be read.
    """
    require(not texts or path is None, f"give either text or --input {path}, not both")
    if texts:
        return [line for text in texts for line in text.split("\n")]
    if path is not None and str(path) != "-":
        return read_lines(path)
    return decode_lines(read_standard_input(), "standard input")


def check_output(output: Path | None, path: Path | None) -> None:
    """Create the output's folder and check that it can be written.

    Raises:
        ConfigError: the output would replace the input.
        OutputError: the folder cannot be written.
    """
    if output is None:
        return
    require(path is None or os.path.realpath(output) != os.path.realpath(path),
            f"the output {output} would replace the input; choose another --output")
    if output.is_dir():
        raise OutputError(f"cannot write {output}: there is a folder of that name; choose another --output")
    prepare_folder(output.parent)


def translate_lines(
    lines: Sequence[str], translator: Translator, options: DecodeConfig | BeamConfig, batch_size: int
) -> Translated:
    """Translate `lines` with a progress bar on a terminal; report lines that were too long for the model.

    Raises:
        InvalidInputError: a word is too long for the model.
        ConfigError: the checkpoint does not support `options`.
    """
    with tqdm(unit="segment", disable=None) as bar:

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        result = translator(lines, options, batch_size=batch_size, progress=progress)
    for note in notes(translator, result):
        say(note)
    return result


def notes(translator: Translator, result: Translated) -> list[str]:
    """Return notes on a result: the lines that were too long, and the translations that were cut."""
    model = translator.model_config
    found = [f"line {number} is longer than the {model.source_length} tokens that the model reads; translated in "
             f"{parts} parts" for number, parts in enumerate(result.parts, 1) if parts > 1]
    cut = [number for number, is_cut in enumerate(result.cut, 1) if is_cut]
    if cut:
        shown = ", ".join(map(str, cut[:5])) + (" and others" if len(cut) > 5 else "")
        found.append(f"{len(cut)} of {len(result.texts)} translations were cut, since they grew too long for their "
                     f"source: line {shown}")
    return found


def write_lines(texts: Sequence[str], output: Path | None) -> None:
    """Write one line per text, atomically to the file `output`, or to standard output.

    Raises:
        OutputError: the output cannot be written.
    """
    data = "".join(f"{text}\n" for text in texts).encode()
    if output is None:
        write_output(data)
    else:
        write_result(output, data)


def accepted_tokens(traces: Sequence[RowTrace]) -> list[list[int]]:
    """Return the tokens that each step of a line's translation accepted; `traces` has one trace per segment."""
    return [tokens[:count].tolist() for trace in traces
            for tokens, count in zip(trace.proposed, trace.accepted, strict=True)]


def trace_lines(translator: Translator, traces: Sequence[RowTrace]) -> list[str]:
    """Return the steps of a line's translation with the tokens that each accepted, as in section 7.4 of the paper.

    Args:
        translator: the translator, for the names of tokens.
        traces: one trace per segment.
    """
    steps = accepted_tokens(traces)
    return [f"Step {number:<3} {len(tokens):>2} token{'s' if len(tokens) > 1 else ' '}  "
            f"[{', '.join(translator.codec.names(tokens))}]" for number, tokens in enumerate(steps, 1)]


def summary_line(result: Translated) -> str:
    """Return a human-readable line on the number of lines, the time and the mean accepted block size."""
    traces = [trace for traces in result.traces for trace in traces]
    size = f", mean accepted block size {mean_accepted_block_size(traces):.2f}" if traces else ""
    return f"{len(result.texts)} lines in {result.seconds:.1f} s{size}"
