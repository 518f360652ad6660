"""Read checkpoint folders (`model.safetensors`, `config.json`) strictly, and write them
atomically."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from safetensors import SafetensorError

from superres.config import (
    FORMAT_VERSION,
    Confidence,
    Config,
    DecodeConfig,
    ModelConfig,
    Reliability,
    file_name,
    reader_of,
    require,
)
from superres.errors import (
    CheckpointError,
    ConfigError,
    OutputError,
    SuperresError,
    extra_needed,
    first_line,
    shown,
)
from superres.interfaces import Network
from superres.system.folders import bundled_folder
from superres.system.json_files import MOST_BYTES, parse_lines, read_file, read_json
from superres.system.output import short_digest, write_atomically
from superres.system.tensor_files import read_weights
from superres.tasks.registry import TASK_FILES

if TYPE_CHECKING:
    import torch

    from superres.nn.model import EncoderDecoder

ConfigT = TypeVar("ConfigT", bound=Config)
WEIGHTS = "model.safetensors"
CONFIG = "config.json"
MOST_STAGES = 8
"""Largest number of stages of a cascade. If each doubles the sides, 1x1 pixel becomes 256x256, the
largest picture."""
TRAINING = "training.jsonl"
"""Training history of the weights: one JSON object per stage, oldest first."""
DECODE = "decode"
"""Optional entry of config.json: the default decoding settings by type of device ("cpu",
"cuda")."""
CONFIDENCE = "confidence"
"""Optional entry of config.json: the coefficients of `superres.config.Confidence`."""
RELIABILITY = "reliability"
"""Optional entry of config.json: the calibration of `superres.config.Reliability`, also of a
cascade."""
RETIRED = "-old"
"""Suffix of a folder's name while a new folder replaces it."""


@contextmanager
def replaced_folder(folder: Path) -> Iterator[Path]:
    """Yield a new folder beside `folder` to write into; it replaces `folder` if the block succeeds.

    Raises OutputError if the folder cannot be written (read-only, no space left); `folder` is
    unchanged.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as error:
        raise OutputError(f"cannot write {folder}: {error.strerror}; choose another "
                          "folder") from error
    try:
        yield fresh
        fresh.chmod(0o755)
        retired = fresh.with_name(fresh.name + RETIRED)
        if folder.exists():
            os.replace(folder, retired)
        os.replace(fresh, folder)
        shutil.rmtree(retired, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        recover_folder(folder)
        raise OutputError(f"cannot write {folder}: {error}; its previous content is "
                          "unchanged") from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def recover_folder(folder: Path) -> None:
    """Restore the previous `folder` if a replacement was interrupted between its two renames, for
    example by a kill."""
    retired = sorted(folder.parent.glob(f".{folder.name}-*{RETIRED}"))
    if retired and not folder.exists():
        os.replace(retired[-1], folder)


def save_checkpoint(
    model: EncoderDecoder, folder: str | Path, extra: dict[str, Any] | None = None,
    dtype: torch.dtype | None = None, training: Sequence[dict[str, Any]] | None = None,
    files: Mapping[str, bytes] | None = None,
) -> None:
    """Write `model` to a checkpoint folder, which is replaced atomically; other files in it are
    kept.

    Args:
        model: the network.
        folder: created if it is missing.
        extra: further entries of config.json.
        dtype: type of the stored weights; None: bfloat16.
        training: stages of training for `training.jsonl`; None keeps an existing file.
        files: content of the task's files by name (such as a vocabulary).

    Raises:
        OutputError: the folder cannot be written.
    """
    import torch
    from safetensors.torch import save_file

    folder = Path(folder)
    weights = {name: value.detach().to("cpu", dtype or torch.bfloat16).contiguous() for name,
               value in model.state_dict().items()}
    with replaced_folder(folder) as fresh:
        if folder.is_dir():
            shutil.copytree(folder, fresh, dirs_exist_ok=True)
        save_file(weights, fresh / WEIGHTS, metadata={"format": "pt"})
        document = {"format_version": FORMAT_VERSION, "model": model.config.to_dict(),
                    **(extra or {})}
        (fresh / CONFIG).write_text(json.dumps(document, indent=2) + "\n")
        for name, content in (files or {}).items():
            (fresh / name).write_bytes(content)
        if training is not None:
            (fresh / TRAINING).write_text("".join(json.dumps(stage) + "\n" for stage in training))


def read_training(folder: str | Path) -> list[dict[str, Any]]:
    """Return the stages in `training.jsonl`, oldest first; none without it, a CheckpointError if it
    is damaged."""
    path = Path(folder) / TRAINING
    return read_json(path, functools.partial(reader_of(list[dict[str, Any]]), "the history"),
                     CheckpointError, "fetch the checkpoint again, or remove it",
                     parse=parse_lines) if path.exists() else []


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose config.json is read: all that it says is taken from here, and no file is
    read twice.

    Settings of it that are damaged or out of range raise a CheckpointError when they are taken.

    Attributes:
        folder: the checkpoint's folder.
        config: the content of config.json.
        stages: the checkpoints of a cascade, the first stage first; none for a single network.
    """

    folder: Path
    config: dict[str, Any]
    stages: tuple[Checkpoint, ...] = ()

    @property
    def networks(self) -> tuple[Checkpoint, ...]:
        """The checkpoints of one network each: the stages of a cascade, or the checkpoint alone."""
        return self.stages or (self,)

    @functools.cached_property
    def network(self) -> ModelConfig:
        """The settings of the network; of a cascade, that of the last stage."""
        last = self.networks[-1]
        try:
            return ModelConfig.from_dict(last.config["model"])
        except SuperresError as error:
            raise CheckpointError(f"{last.folder / CONFIG}: {error}") from error

    @property
    def confidence(self) -> Confidence | None:
        """The coefficients of adaptive block sizes; None without them."""
        return self._entry(CONFIDENCE, Confidence, "tune")

    @property
    def reliability(self) -> Reliability | None:
        """The calibration of the mask of reliable pixels; None without it."""
        return self._entry(RELIABILITY, Reliability, "calibrate")

    def _entry(self, name: str, kind: type[ConfigT], command: str) -> ConfigT | None:
        """Return the optional settings `name`, which a command of superres saves."""
        values = self.config.get(name)
        try:
            return None if values is None else kind.from_dict(values)
        except SuperresError as error:
            raise CheckpointError(f"{self.folder / CONFIG}: {name} is damaged ({error}); run "
                                  f"superres {command} again") from error

    def decode_default(self, kind: str) -> DecodeConfig | None:
        """Return the default decoding settings on devices of `kind` ("cpu", "cuda"), or None.

        An untrusted checkpoint must not cause other files to be read. Its `draft` is therefore a
        bundled checkpoint or a folder inside the checkpoint's folder, and its `ngrams` is a file
        inside that folder.
        """
        try:
            if (values := self.config.get(DECODE, {}).get(kind)) is None:
                return None
            default = DecodeConfig.from_dict(values)
            is_bundled = default.draft in bundled_checkpoints()
            draft = default.draft if is_bundled else _inside(self.folder, default.draft)
            return dataclasses.replace(default, draft=draft,
                                       ngrams=_inside(self.folder, default.ngrams))
        except (SuperresError, AttributeError, TypeError) as error:
            raise CheckpointError(f"{self.folder / CONFIG}: {DECODE} for {kind} is damaged "
                                  f"({error}); run superres tune again") from error


def open_checkpoint(name_or_folder: str | Path | Checkpoint) -> Checkpoint:
    """Return the checkpoint of a bundled name, folder or hub id; what is open stays as it is.

    Raises CheckpointError as `find_checkpoint` and `read_checkpoint` do.
    """
    if isinstance(name_or_folder, Checkpoint):
        return name_or_folder
    return read_checkpoint(find_checkpoint(name_or_folder))


def read_checkpoint(folder: str | Path) -> Checkpoint:
    """Return the checkpoint in a folder, with the stages of a cascade.

    `stages` in config.json names 2 to MOST_STAGES. A name is that of a folder inside the cascade's
    or beside it, or of a bundled checkpoint, so an untrusted cascade reads no other files.

    Raises:
        CheckpointError: config.json is missing, damaged or of another format, or a stage is
            missing.
    """
    folder = Path(folder)
    document = _read_config(folder)
    if "stages" not in document:
        return Checkpoint(folder, document)
    stages = tuple(Checkpoint(stage, _read_config(stage))
                   for stage in _stage_folders(folder, document["stages"]))
    if any("stages" in stage.config for stage in stages):
        raise CheckpointError(f"{folder / CONFIG} names another cascade as a stage; name its "
                              "stages")
    return Checkpoint(folder, document, stages)


def _stage_folders(folder: Path, stages: object) -> list[Path]:
    """Return the folders that `stages` in a cascade's config.json names."""
    path = folder / CONFIG
    try:
        names = [file_name(name, "the name of a stage")
                 for name in reader_of(list[str])("stages", stages)]
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error}") from error
    if not 2 <= len(names) <= MOST_STAGES:
        raise CheckpointError(f"{path} has {len(names)} stages; name 2 to {MOST_STAGES} "
                              "checkpoints, each of which enlarges the pictures of the one before")
    own = folder.resolve()
    return [next((path for path in (own / name, own.parent / name) if (path / CONFIG).is_file()),
                 None) or find_checkpoint(name) for name in names]


def _read_config(folder: Path) -> dict[str, Any]:
    """Return the content of config.json; raise CheckpointError if it is missing, damaged, or of
    another format."""
    path = folder / CONFIG
    if not os.path.lexists(path):
        raise CheckpointError(f"no checkpoint at {folder}: {CONFIG} is missing; name a "
                              "checkpoint's folder")
    form = functools.partial(reader_of(dict[str, Any]), "the content")
    document: dict[str, Any] = read_json(path, form, CheckpointError, "fetch the checkpoint again")
    version = document.get("format_version")
    if version != FORMAT_VERSION:
        raise CheckpointError(f"{path} has format {shown(version)}, this release reads "
                              f"{FORMAT_VERSION}; update superres")
    model = {} if "stages" in document else document.get("model")
    if not isinstance(model, dict) or not isinstance(model.get("task", ""), str):
        raise CheckpointError(f"{path} has no settings of a model; fetch the checkpoint again")
    return document


def _inside(folder: Path, name: str | None) -> str | None:
    """Return the path of `name` in a checkpoint's folder; None for None, a ConfigError if it is not
    there."""
    if name is None:
        return None
    try:
        path = (folder / name).resolve()
        is_own = folder.resolve() in path.parents and path.exists()
    # a name that is too long, a zero byte, a cycle of links
    except (OSError, ValueError, RuntimeError):
        is_own = False
    require(is_own, f"{shown(name)} is not in the checkpoint's folder; give a file in the folder, "
            "or remove the entry and use an option of the command")
    return str(path)


def save_entries(folder: Path, entries: Mapping[str, Any]) -> None:
    """Set entries of a checkpoint's config.json; its other entries are unchanged.

    Raises:
        CheckpointError: the checkpoint is missing or damaged.
        OutputError: the file cannot be written; it is unchanged.
    """
    document = {**_read_config(folder), **entries}
    try:
        write_atomically(folder / CONFIG, (json.dumps(document, indent=2) + "\n").encode())
    except OSError as error:
        raise OutputError(f"cannot write {folder / CONFIG}: {error.strerror}; use a copy of the "
                          "checkpoint, or give --no-save") from error


def load_network(place: str | Path | Checkpoint) -> Network:
    """Load the network of a checkpoint, or of a folder; CheckpointError if it is missing or
    damaged."""
    checkpoint = place if isinstance(place, Checkpoint) else read_checkpoint(place)
    arrays, digest = read_weights(checkpoint.folder / WEIGHTS, checkpoint.network)
    return Network(checkpoint.network, arrays, digest)


def load_checkpoint(place: str | Path | Checkpoint) -> EncoderDecoder:
    """Load a network as `load_network` does, as a torch module in evaluation mode."""
    from superres.nn.weights import module_of

    return module_of(load_network(place))


def read_task_files(folder: Path, task: str) -> dict[str, bytes]:
    """Return the content of the task's files in a checkpoint's folder, by name; a CheckpointError
    if one is missing."""
    try:
        return {name: read_file(folder / name, MOST_BYTES) for name in TASK_FILES.get(task, ())}
    except OSError as error:
        raise CheckpointError(f"cannot read {error.filename}: {error.strerror}; fetch the "
                              "checkpoint again") from error


def weights_digest(folder: str | Path) -> str:
    """Return the first 12 hexadecimal digits of the SHA-256 of a checkpoint's weights."""
    path = Path(folder) / WEIGHTS
    return short_digest(read_file(path, os.path.getsize(path)))


def fetch_from_hub(identifier: str) -> Path:
    """Return the local folder of a hub checkpoint; files that are not cached are downloaded, if the
    hub responds.

    Raises CheckpointError if there is no such checkpoint, or the hub is unreachable and the
    checkpoint is not cached; ConfigError without the hub extra.
    """
    with extra_needed(f"the checkpoint {shown(identifier)} of the hub", "hub"):
        from superres.system.hub import HUB_ERRORS, hub_file, hub_problem  # 0.4 s of CPU to import

    problem = hub_problem(identifier, CONFIG)
    try:
        folder = hub_file(identifier, CONFIG, problem).parent
        document = _read_config(folder)
        files = () if "stages" in document else (WEIGHTS,
                                                 *TASK_FILES.get(document["model"].get("task"), ()))
        for name in files:
            hub_file(identifier, name, problem)
    except HUB_ERRORS as error:
        raise CheckpointError(f"no checkpoint {identifier!r}: there is no such folder, and the hub "
                              f"gives none ({first_line(error)}); give a local folder or a bundled "
                              f"name ({', '.join(bundled_checkpoints()) or 'none'})") from error
    return folder


def bundled_checkpoints() -> list[str]:
    """Return the names of the bundled checkpoints."""
    return sorted(path.parent.name for path in bundled_folder().glob(f"*/{CONFIG}"))


def find_checkpoint(name_or_folder: str | Path) -> Path:
    """Return the folder of a bundled name, folder or hub id ("owner/name"); raise CheckpointError
    if there is none."""
    if not isinstance(name_or_folder, str | Path):
        raise CheckpointError(f"a checkpoint is a name or a folder, not {shown(name_or_folder)}; "
                              "give one")
    text = str(name_or_folder)
    if text and os.path.isdir(text):
        return Path(text)
    if text in bundled_checkpoints():
        return bundled_folder() / text
    if text.count("/") == 1 and not text.startswith((".", "/")) and not text.endswith("/"):
        return fetch_from_hub(text)
    raise CheckpointError(f"no checkpoint {text!r}; give a folder, a hub id owner/name, or a "
                          f"bundled name ({', '.join(bundled_checkpoints()) or 'none'})")
