"""Tokens and pseudonyms: only their digests are kept."""

from __future__ import annotations

import hashlib
import hmac
import secrets

from superres.errors import InvalidInputError

LONGEST_ID = 100


def new_token() -> str:
    """Return a random token of 192 bits for a URL or a header; always 32 characters."""
    return secrets.token_urlsafe(24)


def digest(token: str) -> str:
    """Return the SHA-256 of a random token, in hexadecimal digits."""
    return hashlib.sha256(token.encode()).hexdigest()


def pseudonym(salt: str, rater_id: str) -> str:
    """Return what stands for a rater in the store: HMAC-SHA-256 of the id, keyed by the study's salt, 32 digits.

    Raises:
        InvalidInputError: the id is empty, too long or not printable.
    """
    cleaned = rater_id.strip()
    if not 1 <= len(cleaned) <= LONGEST_ID or not cleaned.isprintable():
        raise InvalidInputError(f"a participant id must be 1 to {LONGEST_ID} printable characters, "
                                f"not {rater_id!r:.120}")
    return hmac.new(salt.encode(), cleaned.encode(), hashlib.sha256).hexdigest()[:32]
