"""Refusals: one line for the terminal, however hostile what is read."""

from __future__ import annotations

import json

import pytest

from superres.checkpoint import CONFIG
from superres.errors import CheckpointError


def refusal(read, *arguments, error=CheckpointError):
    """Return the one line with which `read` refuses."""
    with pytest.raises(error) as caught:
        read(*arguments)
    assert_line(caught.value)
    return str(caught.value)


def assert_line(error):
    assert str(error).isprintable()
    assert len(str(error)) < 1000


def edit(folder, **changes):
    """Change entries of a checkpoint's config.json."""
    document = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(document | changes))
