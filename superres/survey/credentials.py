"""Tokens, pseudonyms and keys of personal links. The store holds digests of tokens and no
participant ids."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from urllib.parse import unquote

from superres.errors import InvalidInputError, plain

PLACEHOLDER = re.compile(
    r"[{<\[%].*[}>\]%]|.*(\{\{|\$\{).*|\$\w+|\(?(?i:undefined|null|none)\)?|NaN|nan", re.DOTALL)
"""What a link has where a panel did not fill in a value: its placeholder, or a program's word for
nothing."""

MAX_ID_LENGTH = 100
TOKEN_LENGTH = 32


def new_token() -> str:
    """Return a random 192-bit token for a URL or a header, `TOKEN_LENGTH` characters long."""
    return secrets.token_urlsafe(24)


def digest(token: str) -> str:
    """Return the SHA-256 of a token in hexadecimal digits."""
    return hashlib.sha256(token.encode()).hexdigest()


def pseudonym(salt: str, rater_id: str) -> str:
    """Return a rater's pseudonym: 32 hexadecimal digits of the HMAC-SHA-256 of the id, keyed by the
    study's salt.

    Raise InvalidInputError if the id without surrounding blanks is empty, too long or not
    printable, or a placeholder.
    """
    return _keyed(salt.encode(), rater_id)


def link_key(salt: str, rater_id: str) -> str:
    """Return the key in a rater's personal link; ids and errors are as in `pseudonym`."""
    # Pseudonyms are published. No printable id has this digest as its pseudonym, so they do not
    # reveal link keys.
    return _keyed(hmac.digest(salt.encode(), b"\0personal link", "sha256"), rater_id)


def require_filled(what: str, value: str) -> None:
    """Raise InvalidInputError if a link's value is a placeholder; the message is for raters and the
    study's owner."""
    if PLACEHOLDER.fullmatch(unquote(value.strip())):
        raise InvalidInputError(
            f"this link has {plain(value)} where {what} belongs: the panel did not fill it in. It "
            "is not your fault; please tell the people who sent you. They can mend it: in the "
            "panel's own field for the study's address, the panel's own placeholder must stand "
            "behind the parameter's name, as docs/survey.md shows for Prolific")


def _keyed(key: bytes, rater_id: str) -> str:
    cleaned = rater_id.strip()
    if not 1 <= len(cleaned) <= MAX_ID_LENGTH or not cleaned.isprintable():
        raise InvalidInputError(f"a participant id must be 1 to {MAX_ID_LENGTH} printable "
                                f"characters, not {rater_id!r:.120}")
    require_filled("a participant id", cleaned)
    return hmac.digest(key, cleaned.encode(), "sha256").hex()[:32]
