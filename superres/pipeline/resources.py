"""The proposers of a loaded checkpoint; draft models and n-gram counts that decoding options name
are loaded once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from superres.checkpoint import load_network, open_checkpoint, read_task_files
from superres.config import DecodeConfig, ModelConfig, require
from superres.decoding.limits import Limits
from superres.decoding.proposers import PROPOSERS
from superres.decoding.proposers.draft import DraftProposer
from superres.decoding.proposers.ngram_table import NgramTable
from superres.decoding.proposers.ngrams import NgramProposer
from superres.decoding.proposers.proposer import Proposer
from superres.pipeline.choose import engine_of, use_costs
from superres.pipeline.recorded_costs import read_costs

# file of n-gram counts in a checkpoint's folder, the default of the option `ngrams`
NGRAMS = "ngrams.safetensors"

# suffix of the folder of a checkpoint's draft model, the default of the option `draft`
DRAFT = "-draft"


@dataclass(eq=False)
class Proposers:
    """Makes the proposers for one network on one device.

    `engine` computes draft models. `folder` is that of the network's checkpoint, and `files` are
    the contents of its task's files by name.
    """

    network: ModelConfig
    end_token: int | None
    device: str
    engine: str
    folder: Path | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)
    _loaded: dict[str, Proposer] = field(default_factory=dict)

    def limited(self, options: DecodeConfig, limits: Limits | None) -> Proposer | None:
        """Return the proposer of `get`; a draft model's tokens have the limits of the decode."""
        loaded = self.get(options)
        if limits is not None and isinstance(loaded, DraftProposer):
            return DraftProposer(loaded.draft, limits)
        return loaded

    def get(self, options: DecodeConfig) -> Proposer | None:
        """Return the proposer that `options` name, None if it needs no resource; raise an error if
        that is unusable."""
        resource = PROPOSERS[options.proposer].resource if options.proposer in PROPOSERS else None
        if resource is None:
            return None
        name = getattr(options, resource) or self._default(resource)
        if name is None:
            return PROPOSERS[options.proposer]()  # raises an error that names the missing resource
        if name not in self._loaded:
            self._loaded[name] = self._draft(name) if resource == "draft" else self._ngrams(name)
        return self._loaded[name]

    def has(self, options: DecodeConfig) -> bool:
        """Return whether `options` name the resource of their proposer, or there is one near the
        checkpoint."""
        resource = PROPOSERS[options.proposer].resource
        return resource is None or bool(getattr(options, resource) or self._default(resource))

    def _default(self, resource: str) -> str | None:
        """Return the path of `resource` ("draft" or "ngrams") near the checkpoint, or None if there
        is none."""
        if self.folder is None:
            return None
        folder = self.folder.resolve()
        found = {"draft": folder.with_name(folder.name + DRAFT),
                 "ngrams": folder / NGRAMS}[resource]
        return str(found) if found.exists() else None

    def _draft(self, name: str) -> DraftProposer:
        draft = open_checkpoint(name)
        network = draft.network
        for what in ("task", "languages", "vocabulary", "source_shape", "target_shape"):
            mine, theirs = getattr(network, what), getattr(self.network, what)
            require(mine == theirs, f"the draft model {name} has {what} {mine}, the verifier "
                    f"{theirs}; choose a draft that was trained for it")
        for file, content in read_task_files(draft.folder, network.task).items():
            require(content == self.files.get(file, content), f"the {file} of the draft model "
                    f"{name} differs from the verifier's, so its tokens have other meanings; "
                    "choose a draft that was trained with the same file")
        # A draft decodes step by step, which no kernel of whole rows does.
        kind = "plain" if self.device == "cuda" else self.engine
        engine = engine_of(load_network(draft), self.end_token, self.device, kind)
        use_costs(engine, read_costs(draft.folder))
        return DraftProposer(engine)

    def _ngrams(self, name: str) -> NgramProposer:
        proposer = NgramProposer(NgramTable.read(Path(name)))
        counted, channels = proposer.table, self.network.channels
        require((counted.vocabulary, counted.channels) == (self.network.vocabulary, channels),
                f"the n-grams in {name} have {counted.vocabulary} tokens in {counted.channels} "
                f"channels, but the model has {self.network.vocabulary} in {channels}; count them "
                "for this model")
        return proposer
