"""Translate files and streams: the work of `superres translate`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING

from superres.config import BeamConfig, DecodeConfig, require
from superres.errors import OutputError
from superres.system.paths import Place
from superres.system.places import known_place, open_place, public
from superres.system.progress import Progress, say
from superres.system.signals import will_keep
from superres.system.terminal import read_standard_input, write_output
from superres.system.text_files import decode_lines
from superres.tasks.translation import read_lines

if TYPE_CHECKING:
    from superres.decoding.trace import RowTrace
    from superres.pipeline.translated import Translated, Translation
    from superres.pipeline.translator import Translator

# batches of lines that are sorted by length together, and written before further lines begin
TOGETHER = 16


def input_lines(texts: Sequence[str], place: str | None) -> list[str]:
    """Return the lines to translate: `texts`, or those of the file at `place`, or (None or "-") of
    standard input.

    Raises ConfigError if both are given, InvalidInputError if the file or standard input is empty,
    not UTF-8 or cannot be read, and PlaceError if a URL cannot be read at present.
    """
    require(not texts or place is None, f"give either text or --input {public(place or '')}, not "
            "both")
    if texts:
        return [line for text in texts for line in text.split("\n")]
    if place is None or place == "-":
        return decode_lines(read_standard_input(), "standard input")
    source = open_place(place)
    with source.fetched() as file:
        return read_lines(file, source.public)


def check_output(output: str | None, place: str | None) -> None:
    """Create the output's folder; raise an error if the output would replace the input or cannot be
    written."""
    if output is None:
        return
    target = open_place(output, writing=True)
    if target.is_folder():
        raise OutputError(f"cannot write {output}: there is a folder of that name; choose another "
                          "--output")
    target.parent.prepare_folder()
    require(place is None or target.real() != known_place(place).real(),
            f"the output {output} would replace the input; choose another --output")


@dataclass
class TranslationSummary:
    """What `superres translate` reports at its end, as sums over all lines.

    Lines have numbers from 1 on. `cut` are numbers of lines, `unusual` those of lines by the reason
    why they may be translated wrongly, and `failed` the reasons why lines were not translated.
    `repeats` and `unfamiliar` are words of lines, quoted.
    `tokens` are those accepted in blocks (0 with beam search).
    """

    lines: int = 0
    seconds: float = 0.0
    cut: list[int] = field(default_factory=list)
    unusual: dict[str, list[int]] = field(default_factory=dict)
    repeats: dict[int, str] = field(default_factory=dict)
    unfamiliar: dict[int, str] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    tokens: int = 0
    iterations: int = 0

    def add(self, result: Translated) -> None:
        """Add the result of the next lines."""
        for number, line in enumerate(result, self.lines + 1):
            if line.truncated:
                self.cut.append(number)
            if line.unusual:
                self.unusual.setdefault(line.unusual, []).append(number)
            if line.repeats:
                self.repeats[number] = f'"{line.repeats}"'
            if line.unfamiliar:
                self.unfamiliar[number] = _quoted(line.unfamiliar)
            if line.failed:
                self.failed[number] = line.failed
            self.tokens += sum(trace.tokens for trace in line.traces)
            self.iterations += line.steps
        self.lines, self.seconds = self.lines + len(result), self.seconds + result.seconds

    def notes(self) -> list[str]:
        """Return notes on the lines that failed, whose translation was cut, or may be wrong."""
        found = [f"line {number}: {reason}" for number, reason in self.failed.items()]
        if self.cut:
            found.append(f"{len(self.cut)} of {self.lines} translations were cut, since they grew "
                         f"too long for their source: {_some_lines(self.cut)}")
        found += [f"{len(lines)} of {self.lines} {what}: {_some_marks(lines)}"
                  for what, lines in (("translations repeat words", self.repeats),
                                      ("lines have words that the model hardly knows",
                                       self.unfamiliar)) if lines]
        return found + [f"{reason}, so {len(numbers)} of {self.lines} translations may be wrong: "
                        f"{_some_lines(numbers)}"
                        for reason, numbers in self.unusual.items()]

    def __str__(self) -> str:
        size = (f", mean accepted block size {self.tokens / self.iterations:.2f}" if self.iterations
                else "")
        return f"{self.lines} lines in {self.seconds:.1f} s{size}"


def translate_lines(
    lines: Sequence[str], translator: Translator, options: DecodeConfig | BeamConfig | None,
    batch_size: int,
) -> Iterator[Translated]:
    """Translate `lines`, show the progress, and yield the results of some lines at a time, in
    order.

    A line with a word that is too long for the model stays empty; see `TranslationSummary.failed`.
    Raises ConfigError if the checkpoint does not support `options`.
    """
    with Progress("translating", len(lines), "lines") as progress:
        def show(done: int, segments: int) -> None:
            progress.to(len(lines) * done // segments)

        yield from translator.in_portions(
            lines, max(1, TOGETHER * batch_size), options, batch_size=batch_size, progress=show,
            skip_failed=True)


def _some_lines(numbers: Sequence[int]) -> str:
    """Return the first of the line numbers as text."""
    return f"line {', '.join(map(str, numbers[:5]))}" + (" and others" if len(numbers) > 5 else "")


def _quoted(words: Sequence[str]) -> str:
    return ", ".join(f'"{word}"' for word in words)


def _some_marks(lines: Mapping[int, str]) -> str:
    """Return the first of the lines' marks as text."""
    some = list(lines.items())[:5]
    return (", ".join(f"line {number}: {mark}" for number, mark in some)
            + (" and others" if len(lines) > 5 else ""))


def line_notes(line: Translation) -> list[str]:
    """Return all that speaks against the translation of a line, such as 'repeats "Sie"' and 'the
    model hardly knows "quokka"'."""
    repeats = line.repeats and f'repeats "{line.repeats}"'
    unfamiliar = "" if not line.unfamiliar else f"the model hardly knows {_quoted(line.unfamiliar)}"
    cut = "cut, since it grew too long for its source" if line.truncated else ""
    return [note for note in (line.failed, cut, repeats, unfamiliar, line.unusual) if note]


@contextmanager
def line_writer(output: str | None) -> Iterator[Callable[[Sequence[str]], None]]:
    """Yield a function that writes one line per text: to standard output at once, or to the file
    `output`.

    The file is complete, or as it was before: it takes its name at the end of the block. If the
    block does not end well, what is written so far is kept beside the file, as <output>.partial,
    and a message says so. Raises OutputError if the output cannot be written; what was to become a
    URL's content is then kept in a file, which the error names.
    """
    lines = 0

    def writing(send: Callable[[bytes], object]) -> Callable[[Sequence[str]], None]:
        def write(texts: Sequence[str]) -> None:
            nonlocal lines
            send(_joined(texts))
            lines += len(texts)
            will_keep(f"{lines} lines are translated; continue with line {lines + 1}")

        return write

    if output is None:
        yield writing(write_output)
        return
    target = known_place(output)
    with target.written() as file:
        try:
            yield writing(file.write)
        except BaseException as error:
            _keep(file, target, lines, isinstance(error, KeyboardInterrupt))
            raise


def _keep(file: IO[bytes], target: Place, lines: int, is_interrupted: bool) -> None:
    """Keep the lines that are written so far, and say where."""
    with suppress(OSError):
        file.flush()
        if not lines:
            return
        kept = (f"the first {lines} translations are in {target.keep(file.name)}; continue with "
                f"line {lines + 1}")
        (will_keep if is_interrupted else say)(kept)


def _joined(texts: Sequence[str]) -> bytes:
    return "".join(f"{text}\n" for text in texts).encode()


def accepted_tokens(traces: Sequence[RowTrace]) -> list[list[int]]:
    """Return the tokens that each step of a line's translation accepted; `traces` has one trace per
    segment."""
    return [tokens[:count].tolist() for trace in traces
            for tokens, count in zip(trace.proposed, trace.accepted, strict=True)]


def trace_lines(translator: Translator, traces: Sequence[RowTrace]) -> list[str]:
    """Return the steps of a line's segments with the tokens that each accepted, as in section 7.4
    of the paper."""
    steps = enumerate(accepted_tokens(traces), 1)
    return [f"Step {number:<3} {len(tokens):>2} token{'s' if len(tokens) > 1 else ' '}  "
            f"[{', '.join(translator.codec.names(tokens))}]" for number, tokens in steps]
