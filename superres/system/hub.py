"""Ask the Hugging Face hub for a file, with one request of bounded time, and fetch it."""

from __future__ import annotations

import threading
from pathlib import Path

from huggingface_hub import (
    constants,
    get_hf_file_metadata,
    hf_hub_download,
    hf_hub_url,
    try_to_load_from_cache,
)
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RepositoryNotFoundError

from superres.errors import first_line

ANSWER_SECONDS = 5.0
"""Seconds to wait for the hub's response, unless HF_HUB_ETAG_TIMEOUT is set."""

HUB_ERRORS = OSError, ValueError, HfHubHTTPError, HFValidationError
"""What `hub_file` raises."""


def hub_file(identifier: str, name: str, problem: str | None) -> Path:
    """Return the local path of a file of the model "owner/name"; it is fetched unless there is a
    `problem`.

    Raises one of HUB_ERRORS: FileNotFoundError with the `problem` if there is one and the file is
    not cached.
    """
    if problem is None:
        return Path(hf_hub_download(identifier, name))
    cached = try_to_load_from_cache(identifier, name)
    if not isinstance(cached, str):
        raise FileNotFoundError(problem)
    return Path(cached)


def hub_problem(identifier: str, filename: str) -> str | None:
    """Return in one line why a file of the model "owner/name" cannot be fetched now; None if it can
    be fetched.

    The hub is asked once: `hf_hub_download` repeats a failed request six times if nothing is
    cached. A request's timeout restarts with each address of the host and excludes name resolution,
    so a daemon thread sends the request.
    """
    own = constants.HF_HUB_ETAG_TIMEOUT
    seconds = ANSWER_SECONDS if own == constants.DEFAULT_ETAG_TIMEOUT else float(own)
    unreachable, answers = f"{constants.ENDPOINT} cannot be reached", list[str | None]()

    def ask() -> None:
        try:
            get_hf_file_metadata(hf_hub_url(identifier, filename), timeout=seconds)
            answers.append(None)
        except RepositoryNotFoundError:
            answers.append(f"{constants.ENDPOINT} has no such model, or it is private")
        except (OSError, ValueError) as error:  # huggingface_hub's own errors, which name the host
            answers.append(first_line(error))
        # the HTTP client and its errors differ between releases of huggingface_hub
        except Exception as error:
            answers.append(f"{unreachable}: {first_line(error)}")

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds)
    return answers[0] if answers else f"{unreachable}: no answer in {seconds:g} s"
