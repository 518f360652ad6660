"""Fast autoregressive decoding of images: small faces become larger ones, several tokens a step
(Stern et al. 2018)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from superres.version import __version__

__all__ = ["BeamConfig", "Criterion", "DecodeConfig", "DrawCriterion", "Proposer", "StepModel",
           "SuperresError", "Translator", "Upscaler", "__version__", "load", "register_criterion",
           "register_engine", "register_proposer", "set_threads"]

_HOMES = {"BeamConfig": "config", "Criterion": "decoding.acceptance", "DecodeConfig": "config",
          "DrawCriterion": "decoding.acceptance",
          "Proposer": "decoding.proposers.proposer", "StepModel": "nn.torch_model",
          "SuperresError": "errors", "Translator": "pipeline.translator",
          "Upscaler": "pipeline.upscaler", "load": "pipeline.auto",
          "register_criterion": "pipeline.registration", "register_engine": "pipeline.registration",
          "register_proposer": "pipeline.registration", "set_threads": "system.threads"}

if TYPE_CHECKING:
    from superres.config import BeamConfig, DecodeConfig
    from superres.decoding.acceptance import Criterion, DrawCriterion
    from superres.decoding.proposers.proposer import Proposer
    from superres.errors import SuperresError
    from superres.nn.torch_model import StepModel
    from superres.pipeline.auto import load
    from superres.pipeline.registration import (
        register_criterion,
        register_engine,
        register_proposer,
    )
    from superres.pipeline.translator import Translator
    from superres.pipeline.upscaler import Upscaler
    from superres.system.threads import set_threads


def __getattr__(name: str) -> object:
    """Import public names on first use, so that `superres --help` and the survey do not wait for
    torch."""
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module 'superres' has no attribute {name!r}")
    return getattr(importlib.import_module(f"superres.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """Return the public names, for `help` and for completion."""
    return sorted(__all__)
