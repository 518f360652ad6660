"""Fetch a checkpoint's files from the Hugging Face hub: one request of bounded time, else the local cache."""

from __future__ import annotations

import threading

from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
from huggingface_hub.errors import RepositoryNotFoundError

ANSWER_SECONDS = 5.0
"""Seconds to wait for the hub's response, unless HF_HUB_ETAG_TIMEOUT is set."""


def hub_problem(identifier: str, filename: str, revision: str | None = None) -> str | None:
    """Ask the hub once for a file's metadata.

    `hf_hub_download` repeats a failed request six times where nothing is cached. And a request's own timeout starts
    again with each address of a host and excludes the look-up of its name; so a thread asks, which is not waited for.

    Args:
        identifier: the model's name, "owner/name".
        filename: the file's name.
        revision: branch, tag or commit; None is the main branch.

    Returns:
        Why the file cannot be fetched now, in one line; None if it can.
    """
    own = constants.HF_HUB_ETAG_TIMEOUT
    seconds = ANSWER_SECONDS if own == constants.DEFAULT_ETAG_TIMEOUT else float(own)
    answers: list[str | None] = []

    def ask() -> None:
        try:
            get_hf_file_metadata(hf_hub_url(identifier, filename, revision=revision), timeout=seconds)
            answers.append(None)
        except Exception as error:  # also those of the HTTP client, which differs between releases of huggingface_hub
            answers.append(_explain(error))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds)
    return answers[0] if answers else f"{constants.ENDPOINT} cannot be reached: no answer in {seconds:g} s"


def _explain(error: Exception) -> str:
    """Return the reason of a failed request as one line."""
    if isinstance(error, RepositoryNotFoundError):
        return f"{constants.ENDPOINT} has no such model, or it is private"
    reason = first_line(error)
    # What huggingface_hub itself raises is one of these, and says enough.
    known = isinstance(error, (OSError, ValueError))
    return reason if known else f"{constants.ENDPOINT} cannot be reached: {reason}"


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its type if it has none."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
