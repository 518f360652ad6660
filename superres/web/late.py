"""A translator that is loaded for the first visitor who translates, so that the page opens
earlier."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from superres.checkpoint import Checkpoint
from superres.pipeline.choose import fastest_exact

if TYPE_CHECKING:
    from superres.pipeline.translator import Translator
    from superres.pipeline.upscaler import Upscaler


class LateTranslator:
    """Has the attributes of the translator of a checkpoint; those that config.json does not say
    load it.

    Attributes:
        expected: the default settings that the loaded translator will have on the device of the
            upscaler `beside`, as far as can be known: for what the page shows first.
    """

    def __init__(self, checkpoint: Checkpoint, device: str, beside: Upscaler) -> None:
        """Read no weights; raises CheckpointError if config.json is damaged."""
        self.checkpoint, self.asked = checkpoint, device
        self.name, self.model_config = checkpoint.folder.name, checkpoint.network
        self.languages = checkpoint.network.languages
        self.expected = (checkpoint.decode_default(str(beside.device))
                         or fastest_exact(beside.scoring.adaptive, checkpoint.network))
        self._lock = threading.Lock()
        self._loaded: Translator | None = None

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 -- of the translator
        with self._lock:
            if self._loaded is None:
                from superres.pipeline.translator import Translator

                self._loaded = Translator.load(self.checkpoint, self.asked)
        return getattr(self._loaded, name)
