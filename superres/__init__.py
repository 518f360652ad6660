"""Fast autoregressive decoding of images: small faces become larger ones, several tokens a step (Stern et al. 2018)."""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"
__all__ = ["BeamConfig", "DecodeConfig", "SuperresError", "Translator", "Upscaler", "__version__", "load"]

_HOMES = {"BeamConfig": "config", "DecodeConfig": "config", "SuperresError": "errors",
          "Translator": "pipeline.translator", "Upscaler": "pipeline.upscaler", "load": "pipeline.auto"}

if TYPE_CHECKING:
    from superres.config import BeamConfig, DecodeConfig
    from superres.errors import SuperresError
    from superres.pipeline.auto import load
    from superres.pipeline.translator import Translator
    from superres.pipeline.upscaler import Upscaler


def __getattr__(name: str) -> object:
    """Import public names on first use, so that `superres --help` and the survey do not wait for torch."""
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module 'superres' has no attribute {name!r}")
    return getattr(importlib.import_module(f"superres.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """Return the public names, for `help` and for completion."""
    return sorted(__all__)
