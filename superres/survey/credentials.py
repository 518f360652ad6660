"""Tokens, pseudonyms and keys of personal links. The store holds digests of tokens and no participant ids."""

from __future__ import annotations

import hashlib
import hmac
import secrets

from superres.errors import InvalidInputError

MAX_ID_LENGTH = 100
TOKEN_LENGTH = 32


def new_token() -> str:
    """Return a random 192-bit token for a URL or a header, `TOKEN_LENGTH` characters long."""
    return secrets.token_urlsafe(24)


def digest(token: str) -> str:
    """Return the SHA-256 of a token in hexadecimal digits."""
    return hashlib.sha256(token.encode()).hexdigest()


def pseudonym(salt: str, rater_id: str) -> str:
    """Return a rater's pseudonym: 32 hexadecimal digits of the HMAC-SHA-256 of the id, keyed by the study's salt.

    Raises:
        InvalidInputError: the id is empty, too long or not printable.
    """
    return hmac.new(salt.encode(), _check_id(rater_id).encode(), hashlib.sha256).hexdigest()[:32]


def link_key(salt: str, rater_id: str) -> str:
    """Return the key in a rater's personal link: an HMAC-SHA-256 of the id, keyed by a secret derived from the salt.

    Raises:
        InvalidInputError: the id is empty, too long or not printable.
    """
    # Pseudonyms are published. No printable id has this digest as its pseudonym, so they do not reveal link keys.
    key = hmac.new(salt.encode(), b"\0personal link", hashlib.sha256).digest()
    return hmac.new(key, _check_id(rater_id).encode(), hashlib.sha256).hexdigest()[:32]


def _check_id(rater_id: str) -> str:
    """Return a participant id without surrounding blanks; raise InvalidInputError if it is not valid."""
    cleaned = rater_id.strip()
    if not 1 <= len(cleaned) <= MAX_ID_LENGTH or not cleaned.isprintable():
        raise InvalidInputError(f"a participant id must be 1 to {MAX_ID_LENGTH} printable characters, "
                                f"not {rater_id!r:.120}")
    return cleaned
