"""What is wrong in a translation at its words: words of the source that the network hardly knows,
and words that the translation repeats."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from superres.tasks.translation import START

if TYPE_CHECKING:
    from superres.tasks.translation import Codec

PIECES, LETTERS = 3, 2
"""A word of at least so many pieces, of at most so many letters on average, is spelled. Of the
spelled words in test_2017_flickr, 65 % occur twice at most in the 29,000 captions of training."""
_WORD = re.compile(r"[^\W\d_]+")
# The shortest phrase that stands twice in a row, with at most a comma in between.
_TWICE = re.compile(r"(?<![\w-])([^\W\d_]+(?: [^\W\d_]+){0,4}?),? \1(?![\w-])", re.IGNORECASE)


def unfamiliar(codec: Codec, source: Sequence[int]) -> list[str]:
    """Return the words of a source's tokens that the network hardly knows, in their order.

    They are spelled, also without capitals, or have characters that the vocabulary lacks: unknown
    ones, or those that it writes as bytes.
    """
    words, found = list[list[int]](), list[str]()
    for token in source:
        if token in codec.starts or not words:
            words.append([])
        words[-1].append(token)
    for word in words:
        if not codec.foreign.isdisjoint(word):
            text = codec.decode([word])[0]
            found += _WORD.findall(text) or [text]
        elif len(word) >= PIECES:
            found += (one for one in _WORD.findall(codec.decode([word])[0])
                      if _is_spelled(codec, one) and _is_spelled(codec, one.lower()))
    return list(dict.fromkeys(filter(None, found)))


def _is_spelled(codec: Codec, word: str) -> bool:
    pieces = [piece for piece in codec.pieces.encode(word, out_type=str) if piece != START]
    return len(pieces) >= max(PIECES, len(word) / LETTERS)


def repetition(source: str, text: str) -> str:
    """Return the first word or phrase that a translation repeats directly; "" if none, or if its
    source repeats one, too.

    A short word that follows a comma may stand twice: ", die die" begins a clause.
    """
    found = next((found[1] for found in _TWICE.finditer(text)
                  if len(found[1]) > 3 or not text[:found.start()].endswith(", ")), "")
    return "" if found and _TWICE.search(source) else found
