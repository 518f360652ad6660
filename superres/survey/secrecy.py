"""Tokens, pseudonyms and keys of personal links: the store keeps digests of tokens and no participant id."""

from __future__ import annotations

import hashlib
import hmac
import secrets

from superres.errors import InvalidInputError

LONGEST_ID = 100
TOKEN_LENGTH = 32


def new_token() -> str:
    """Return a random token of 192 bits for a URL or a header; always `TOKEN_LENGTH` characters."""
    return secrets.token_urlsafe(24)


def digest(token: str) -> str:
    """Return the SHA-256 of a random token, in hexadecimal digits."""
    return hashlib.sha256(token.encode()).hexdigest()


def pseudonym(salt: str, rater_id: str) -> str:
    """Return a rater's pseudonym in the store: HMAC-SHA-256 of the id, keyed by the study's salt, 32 digits.

    Raises:
        InvalidInputError: the id is empty, too long or not printable.
    """
    return hmac.new(salt.encode(), _cleaned(rater_id).encode(), hashlib.sha256).hexdigest()[:32]


def link_key(salt: str, rater_id: str) -> str:
    """Return the key in a rater's personal link: HMAC-SHA-256 of the id, keyed by a secret derived from the salt.

    Raises:
        InvalidInputError: the id is empty, too long or not printable.
    """
    # Ids are printable, so this key is nobody's pseudonym: those are published with the votes.
    key = hmac.new(salt.encode(), b"\0personal link", hashlib.sha256).digest()
    return hmac.new(key, _cleaned(rater_id).encode(), hashlib.sha256).hexdigest()[:32]


def same_secret(first: str, second: str) -> bool:
    """Return whether two secrets are equal, in a time that does not depend on where they differ."""
    return hmac.compare_digest(first.encode(), second.encode())


def _cleaned(rater_id: str) -> str:
    """Return a participant id without blanks around it, or raise InvalidInputError."""
    cleaned = rater_id.strip()
    if not 1 <= len(cleaned) <= LONGEST_ID or not cleaned.isprintable():
        raise InvalidInputError(f"a participant id must be 1 to {LONGEST_ID} printable characters, "
                                f"not {rater_id!r:.120}")
    return cleaned
