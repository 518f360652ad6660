"""Translation: text as SentencePiece tokens, parallel text files, and lines that are too long for
the model.

A token is a piece of the joint vocabulary of both languages. Sources and targets end with END;
PADDING fills a batch. SentencePiece is in the `text` extra. Text and tokens that cannot be used
raise InvalidInputError.
"""

from __future__ import annotations

import functools
import io
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt

from superres.errors import CheckpointError, ConfigError, InvalidInputError
from superres.system.json_files import read_file
from superres.system.text_files import decode_lines

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor

Int64 = npt.NDArray[np.int64]

name = "translation"
PADDING, END, UNKNOWN = 0, 1, 2
START = "\u2581"  # of a word, in a piece
VOCABULARY_FILE = "sentencepiece.model"
MOST_BYTES = 2**26  # of a SentencePiece model; a model of 8,000 pieces has 360 KiB
# Why a translation may be wrong.
NO_LETTERS = "a source without letters has nothing to translate"
UNKNOWN_SCRIPT = "the model does not know the letters of the source"
TOO_SHORT, TOO_LONG = (f"the translation is far {how} than its "
                       "source" for how in ("shorter", "longer"))
# Of 28,000 captions of 20 characters and more, 99.9 % have translations of 0.6 to 2.0 times as many
# characters.
SHARES, COMPARED = (0.5, 2.5), 20
# Words with a full stop that ends no sentence: always, and before a number.
TITLES = {"mr", "mrs", "ms", "dr", "prof", "st", "mt", "jr", "sr", "vs", "gen", "col", "sgt",
          "capt", "lt", "rev", "hr", "fr", "bzw", "inkl", "evtl"}
NUMBERED = {"no", "nos", "nr", "fig", "vol", "p", "pp", "abs", "ca", "approx"}
# quotation marks and brackets
_OPENING, _CLOSING = "\"'\u201c\u2018\u201e\u00ab([", "\"'\u201d\u2019\u00bb)]"
_ENDS = re.compile(rf"([.!?…]+)[{re.escape(_CLOSING)}]*\s+(?=[{re.escape(_OPENING)}]*([^\W_]))")
PARALLEL_LINES = 1000  # smallest number of lines for which SentencePiece starts several threads


def parse_languages(text: str) -> tuple[str, str]:
    """Return source and target language of a text such as "en-de"; raise ConfigError for any other
    text."""
    tags = text.split("-")
    are_codes = all(re.fullmatch(r"[a-z]{2,3}", tag) for tag in tags)
    if len(tags) != 2 or tags[0] == tags[1] or not are_codes:
        raise ConfigError(f"unknown languages {text!r}; give source and target such as en-de")
    return tags[0], tags[1]


class Codec:
    """Converts text to tokens and back with a SentencePiece model.

    Attributes:
        model: content of the SentencePiece file.
        length: largest number of source tokens, including END; no limit if None.
        pieces: SentencePiece's processor.
    """

    name = name

    def __init__(self, model: bytes, origin: str = "the vocabulary",
                 length: int | None = None) -> None:
        """Use a model, which messages call `origin`; raise CheckpointError unless it begins with
        the special pieces."""
        self.model, self.length = model, length
        try:
            self.pieces: SentencePieceProcessor = _sentencepiece().SentencePieceProcessor(
                model_proto=model)
            self.names(range(self.size))  # raises an error if a piece is not text
        except (RuntimeError, ValueError) as error:
            raise CheckpointError(f"{origin} is not a SentencePiece model; fetch or train it "
                                  "again") from error
        special = self.pieces.pad_id(), self.pieces.eos_id(), self.pieces.unk_id()
        if special != (PADDING, END, UNKNOWN):
            raise CheckpointError(f"{origin} has special tokens {special}, not "
                                  f"{PADDING, END, UNKNOWN}; train it with superres")

    @classmethod
    def read(cls, folder: str | os.PathLike[str], length: int | None = None) -> Codec:
        """Read the vocabulary in a checkpoint's folder; raise CheckpointError if it is missing or
        damaged."""
        path = Path(folder) / VOCABULARY_FILE
        return cls(read_vocabulary(path), str(path), length)

    @property
    def size(self) -> int:
        """V, the number of pieces."""
        return int(self.pieces.get_piece_size())

    @functools.cached_property
    def letters(self) -> frozenset[str]:
        """Letters that the vocabulary has; it writes others as bytes, which the network hardly
        knows."""
        return frozenset(letter for piece in self.names(range(self.size)) for letter in piece
                         if letter.isalpha())

    @functools.cached_property
    def starts(self) -> frozenset[int]:
        """Pieces that begin a word."""
        return frozenset(token for token, piece in enumerate(self.names(range(self.size)))
                         if piece.startswith("_"))

    @functools.cached_property
    def foreign(self) -> frozenset[int]:
        """Pieces of characters that the vocabulary lacks: the unknown one, and single bytes."""
        return frozenset({UNKNOWN, *filter(self.pieces.is_byte, range(self.size))})

    def doubt(self, text: str) -> str:
        """Return why no translation of a text can be right, or "" if nothing speaks against it."""
        letters = [*filter(str.isalpha, text)]
        if not letters:
            return NO_LETTERS
        return (UNKNOWN_SCRIPT if sum(map(self.letters.__contains__, letters)) < len(letters)
                / 2 else "")

    def split(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the tokens of each line, including END."""
        for line in lines:
            try:
                line.encode()
            # half a surrogate pair stands for a byte that is not UTF-8
            except UnicodeEncodeError as error:
                raise InvalidInputError(f"character {error.start + 1} of {_excerpt(line)} is not "
                                        "UTF-8; convert the text, for example with iconv -t "
                                        "utf-8") from error
        # SentencePiece takes longer to start with a list than with single sentences, and longer
        # still with threads.
        many = len(lines) >= PARALLEL_LINES
        encoded = self.pieces.encode(list(lines),
                                     num_threads=-1) if many else map(self.pieces.encode, lines)
        return [[*row, END] for row in cast("Iterable[list[int]]", encoded)]

    def encode(self, lines: Sequence[str], /) -> Int64:
        """Convert N lines to source tokens, int64 [N, S], with PADDING after each END."""
        rows = self.split(lines)
        for number, row in enumerate(rows):
            if self.length is not None and len(row) > self.length:
                raise InvalidInputError(f"input {number + 1} has {len(row)} tokens, more than the "
                                        f"{self.length} that the model reads: "
                                        f"{_excerpt(lines[number])}; split it")
        return pad(rows)

    def decode(self, tokens: npt.ArrayLike, /) -> list[str]:
        """Convert target tokens, whole numbers [N, T], to lines; PADDING and tokens after END are
        ignored."""
        array = np.asarray(tokens)
        if not np.issubdtype(array.dtype, np.integer) or array.ndim != 2:
            raise InvalidInputError(f"tokens must be whole numbers [N, T], not {array.dtype} "
                                    f"{list(array.shape)}")
        if array.size and not 0 <= array.min() <= array.max() < self.size:
            raise InvalidInputError(f"tokens must be in 0..{self.size - 1}, not "
                                    f"{array.min()}..{array.max()}; decode them with the "
                                    "vocabulary that made them")
        kept = ([token for token in takewhile(lambda token: token != END, row) if token != PADDING]
                for row in array.tolist())
        # Pieces for single bytes could form line breaks of any kind.
        return [" ".join(self.pieces.decode(row).splitlines()) for row in kept]

    def names(self, tokens: Sequence[int]) -> list[str]:
        """Return the pieces of `tokens` for display; an underscore marks the start of a word."""
        return [str(self.pieces.id_to_piece(int(token))).replace(START, "_") for token in tokens]

    def surfaces(self, tokens: Sequence[int]) -> list[str]:
        """Return the text that each of `tokens` adds; joined, the texts equal the result of
        `decode`.

        A character that consists of several tokens (bytes) is added by the last one.
        """
        if not tokens:
            return []
        whole = self.decode([tokens])[0]
        ends = [0]
        for count in range(1, len(tokens)):
            # A part of a character is decoded as a replacement character, which `whole` does not
            # have there.
            pairs = zip(whole, self.decode([tokens[:count]])[0], strict=False)
            ends.append(max(ends[-1],
                            sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))))
        return [whole[start:end] for start, end in zip(ends, [*ends[1:], len(whole)], strict=True)]

    def segments(self, line: str) -> list[str]:
        """Split a line into its sentences; only blanks between them are dropped.

        A sentence of more than `length` tokens is split between its parts that end like sentences,
        otherwise between words.
        """
        segments: list[str] = []
        for sentence in sentences(line):
            if self._fits(sentence):
                segments.append(sentence)
                continue
            for part in self._packed(re.split(r"(?<=[.!?…])\s+", sentence)):
                parts = [part] if self._fits(part) else self._packed(part.split())
                if too_long := next((one for one in parts if not self._fits(one)), ""):
                    raise InvalidInputError(f"a word is longer than the {self.length} tokens that "
                                            f"the model reads: {_excerpt(too_long)}; write it in "
                                            "parts")
                segments += parts
        return segments

    def _fits(self, text: str) -> bool:
        # Every character of ASCII text is one token at most, and the start of the text and END are
        # two more.
        if self.length is None or (text.isascii() and len(text) + 2 <= self.length):
            return True
        return len(self.split([text])[0]) <= self.length

    def _packed(self, pieces: list[str]) -> list[str]:
        """Join consecutive pieces as long as they have at most `length` tokens together."""
        groups: list[list[str]] = []
        left = 0
        for piece, row in zip(pieces, self.split(pieces), strict=True):
            # without END; joined text has at most as many tokens as its parts together
            size = len(row) - 1
            if groups and size <= left:
                groups[-1].append(piece)
                left -= size
            else:
                groups.append([piece])
                left = (self.length or 0) - 1 - size
        return [" ".join(group) for group in groups]


def sentences(line: str) -> list[str]:
    """Split a line of text after the end of each sentence, which a capital letter or a number
    follows.

    "Dr. Seuss wrote it. She reads." has two sentences: titles, initials and abbreviations end none.
    """
    found, start = list[str](), 0
    for end in _ENDS.finditer(line):
        mark, following = end.groups()
        word = line[start : end.start()].rpartition(" ")[2].lstrip(_OPENING)
        if following.islower() or (mark == "." and _is_abbreviation(word, following)):
            continue
        found.append(line[start : end.end()].strip())
        start = end.end()
    return [*found, rest] if (rest := line[start:].strip()) else found


def length_doubt(source: str, text: str) -> str:
    """Return whether a translation is far too short or too long for its source, as the reason;
    otherwise ""."""
    if len(source) < COMPARED:
        return ""
    share = len(text) / len(source)
    return TOO_SHORT if share < SHARES[0] else TOO_LONG if share > SHARES[1] else ""


def _is_abbreviation(word: str, following: str) -> bool:
    """Return whether a full stop between `word` and the character `following` belongs to the
    word."""
    is_initial = len(word) == 1 and word.isupper() and word != "I"
    return is_initial or "." in word or word.lower() in TITLES or (
        following.isdecimal() and word.lower() in NUMBERED)


def _excerpt(line: str) -> str:
    """Return the beginning of a line, quoted."""
    return repr(line if len(line) <= 40 else f"{line[:40]}...")


def pad(rows: Sequence[Sequence[int]], length: int = 0) -> Int64:
    """Return rows of tokens as int64 [N, T] with PADDING; T is the largest row's length, and at
    least `length`."""
    result = np.full((len(rows), max([length, *map(len, rows)])), PADDING, np.int64)
    for place, row in zip(result, rows, strict=True):
        place[: len(row)] = row
    return result


def _sentencepiece() -> ModuleType:
    """Import SentencePiece, which is in an extra."""
    try:
        import sentencepiece
    except ImportError as error:
        raise ConfigError("translation needs SentencePiece; install it with: pip install "
                          "'superres[text]'") from error
    module: ModuleType = sentencepiece
    return module


def read_vocabulary(path: Path) -> bytes:
    """Read the file of a SentencePiece model; raise CheckpointError if it cannot be read."""
    try:
        return read_file(path, MOST_BYTES)
    except OSError as error:
        raise CheckpointError(f"cannot read the vocabulary {path}: {error.strerror}; a translation "
                              "checkpoint needs it, name another with --vocabulary or fetch the "
                              "checkpoint again") from error


def train_vocabulary(lines: Sequence[str], size: int) -> bytes:
    """Train a joint vocabulary (BPE) on the lines of both languages and return it as a
    SentencePiece model.

    Its `size` pieces include special pieces, and 256 bytes for characters that are not in `lines`.
    """
    model = io.BytesIO()
    try:
        _sentencepiece().SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=model, vocab_size=size, model_type="bpe",
            pad_id=PADDING, eos_id=END, unk_id=UNKNOWN, bos_id=-1, byte_fallback=True,
            character_coverage=1.0, shuffle_input_sentence=False, num_threads=1, minloglevel=2,
        )
    except RuntimeError as error:
        reason = " ".join(str(error).split())[-200:]
        raise InvalidInputError(f"{len(lines)} lines give no vocabulary of {size} pieces "
                                f"({reason}); use more text or a smaller network") from error
    return model.getvalue()


@dataclass(frozen=True)
class TextPairs:
    """Sentences and their translations, line by line."""

    source: list[str]
    target: list[str]

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self.source)


def read_lines(path: str | os.PathLike[str], label: str | None = None) -> list[str]:
    """Return the lines of a text file, which messages call `label`; InvalidInputError if it cannot
    be read, is empty, or is not text."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be read: {error.strerror}; check the "
                                "path") from error
    return decode_lines(data, label or str(path))


def pair_paths(path: str | os.PathLike[str], languages: tuple[str, ...]) -> tuple[Path, Path]:
    """Return the files of a parallel text, or raise InvalidInputError if there are none: see
    `read_pairs`."""
    path = Path(path)
    pair = "-".join(languages)
    home = Path(os.environ.get("SACREBLEU") or Path.home() / ".sacrebleu")
    source, target = languages
    endings = ((source, target), (f"{pair}.src", f"{pair}.ref"),
               (f"{pair}.{source}", f"{pair}.{target}"))
    stems = [path]
    if path.name == str(path):
        stems.append(home / path / path)
    if path.is_dir():
        stems.append(path / path.name)
    for stem in stems:
        for ending in endings:
            files = tuple(stem.with_name(f"{stem.name}.{end}") for end in ending)
            if any(file.is_file() for file in files):
                return files[0], files[1]
    raise InvalidInputError(f"no parallel text {path}.{source} and {path}.{target}; give the "
                            "common prefix of both names, or a test set that sacrebleu -t NAME -l "
                            f"{pair} has fetched")


def read_pairs(
    path: str | os.PathLike[str], languages: tuple[str, str] = ("en", "de"),
    limit: int | None = None,
) -> TextPairs:
    """Read a parallel text, or its first `limit` pairs, in the source and target language
    `languages`.

    `path` is the common prefix PATH of the files PATH.en and PATH.de; or a test set of sacrebleu:
    the prefix PATH of PATH.en-de.src and PATH.en-de.ref, the folder of these files, or the name of
    a set that it has fetched.
    """
    if limit is not None and limit < 1:
        raise InvalidInputError(f"limit must be at least 1, not {limit}; leave it out to read all")
    files = pair_paths(path, languages)
    source, target = (read_lines(file) for file in files)
    if len(source) != len(target):
        raise InvalidInputError(f"{files[0]} has {len(source)} lines and {files[1]} {len(target)}; "
                                "they must be translations line by line")
    return TextPairs(source[:limit], target[:limit])
