"""A rule of drawing in fewer model calls: what it is called, what its paper claims, how it
decodes."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes:
        name: as in tables, such as "SJD".
        paper: where it is from: authors, year, arXiv number, section.
        claims: what the paper says of its samples: "lossless" for those of the network, "bounded"
            for a bounded difference from them, "none" for no such claim.
        settings: those of `superres.DecodeConfig` that choose it, such as `accept`. Temperature,
            filters and seed are the bench's.
        decode: decodes outside the loop, for another order than the raster's. It takes a model on
            torch, sources [B, S], settings and the keys [B] of the noise, and returns a
            `decodes.Decoded`. None for rules of the loop.
        needs: what must be trained for it.
        engine: the engine that it needs, such as "plain"; any if empty.
    """

    name: str
    paper: str
    claims: Literal["lossless", "bounded", "none"]
    settings: dict[str, Any] = field(default_factory=dict)
    decode: Callable[..., Any] | None = None
    needs: str = "nothing"
    engine: str = ""


def all_rules() -> dict[str, Rule]:
    """Return the rules of all files of this folder by name; each lists its own as `RULES`."""
    sys.path[:0] = [str(FOLDER), str(FOLDER.parent)]
    files = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in {"rule", "rows"})
    found = [one for name in files for one in importlib.import_module(name).RULES]
    return {one.name: one for one in found}
