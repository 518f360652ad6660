"""Read checkpoint folders (`model.safetensors`, `config.json`) strictly, and write them
atomically."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

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
    first_line,
    plain,
    shown,
)
from superres.nn.model import EncoderDecoder, meta_network
from superres.system.folders import bundled_folder
from superres.system.json_files import (
    MOST_BYTES,
    parse_lines,
    read_file,
    read_json,
    require_regular,
)
from superres.system.machine import TorchThreads
from superres.system.output import short_digest, write_atomically
from superres.tasks.registry import TASK_FILES

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
WEIGHT_TYPES = ("F64", "F32", "F16", "BF16")
"""Accepted types of tensors in model.safetensors."""


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
    dtype: torch.dtype = torch.bfloat16, training: Sequence[dict[str, Any]] | None = None,
    files: Mapping[str, bytes] | None = None,
) -> None:
    """Write `model` to a checkpoint folder, which is replaced atomically; other files in it are
    kept.

    Args:
        model: the network.
        folder: created if it is missing.
        extra: further entries of config.json.
        dtype: type of the stored weights.
        training: stages of training for `training.jsonl`; None keeps an existing file.
        files: content of the task's files by name (such as a vocabulary).

    Raises:
        OutputError: the folder cannot be written.
    """
    folder = Path(folder)
    weights = {name: value.detach().to("cpu", dtype).contiguous() for name,
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
class OpenCheckpoint(os.PathLike[str]):
    """A checkpoint's folder whose config.json is read: functions that take a folder do not read it
    again.

    Attributes:
        folder: the folder, which is also its path.
        config: the content of config.json.
        stages: the checkpoints of a cascade, the first stage first; none for a single network.
    """

    folder: Path
    config: dict[str, Any]
    stages: tuple[OpenCheckpoint, ...] = ()

    def __fspath__(self) -> str:
        return str(self.folder)


Place: TypeAlias = "str | Path | OpenCheckpoint"
"""A checkpoint's folder."""


def open_checkpoint(name_or_folder: Place) -> OpenCheckpoint:
    """Return the checkpoint of a bundled name, folder or hub id; what is open stays as it is.

    Raises CheckpointError as `find_checkpoint` and `read_stages` do.
    """
    if isinstance(name_or_folder, OpenCheckpoint):
        return name_or_folder
    return _opened(find_checkpoint(name_or_folder))


def _opened(folder: Place) -> OpenCheckpoint:
    """Return the checkpoint in a folder; errors as for `read_stages`."""
    if isinstance(folder, OpenCheckpoint):
        return folder
    document = read_config(folder)
    if "stages" not in document:
        return OpenCheckpoint(Path(folder), document)
    found = [OpenCheckpoint(stage, read_config(stage))
             for stage in _stage_folders(Path(folder), document["stages"])]
    if any("stages" in stage.config for stage in found):
        raise CheckpointError(f"{Path(folder) / CONFIG} names another cascade as a stage; name its "
                              "stages")
    return OpenCheckpoint(Path(folder), document, tuple(found))


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


def read_config(folder: Place) -> dict[str, Any]:
    """Return the content of config.json; raise CheckpointError if it is missing, damaged, or of
    another format."""
    if isinstance(folder, OpenCheckpoint):
        return folder.config
    path = Path(folder) / CONFIG
    if not os.path.lexists(path):
        raise CheckpointError(f"no checkpoint at {folder}: {CONFIG} is missing; name a "
                              "checkpoint's folder")
    document: dict[str, Any] = read_json(path, functools.partial(reader_of(dict[str, Any]),
                                                                 "the content"),
                                         CheckpointError, "fetch the checkpoint again")
    version = document.get("format_version")
    if version != FORMAT_VERSION:
        raise CheckpointError(f"{path} has format {shown(version)}, this release reads "
                              f"{FORMAT_VERSION}; update superres")
    model = {} if "stages" in document else document.get("model")
    if not isinstance(model, dict) or not isinstance(model.get("task", ""), str):
        raise CheckpointError(f"{path} has no settings of a model; fetch the checkpoint again")
    return document


def save_entries(folder: Path, entries: Mapping[str, Any]) -> None:
    """Set entries of a checkpoint's config.json; its other entries are unchanged.

    Raises:
        CheckpointError: the checkpoint is missing or damaged.
        OutputError: the file cannot be written; it is unchanged.
    """
    document = {**read_config(folder), **entries}
    try:
        write_atomically(folder / CONFIG, (json.dumps(document, indent=2) + "\n").encode())
    except OSError as error:
        raise OutputError(f"cannot write {folder / CONFIG}: {error.strerror}; use a copy of the "
                          "checkpoint, or give --no-save") from error


def read_stages(folder: Place) -> list[Path]:
    """Return the folders of the checkpoints of a cascade, the first stage first; none for a single
    network.

    `stages` in config.json names 2 to MOST_STAGES. A name is that of a folder inside the cascade's
    or beside it, or of a bundled checkpoint, so an untrusted cascade reads no other files.

    Raises:
        CheckpointError: config.json is missing or damaged, or a stage is missing.
    """
    return [stage.folder for stage in _opened(folder).stages]


def read_network(folder: Place) -> ModelConfig:
    """Return the settings of a checkpoint's network; errors as for `read_config`, or for settings
    out of range.

    Of a cascade, it is the network of the last stage.
    """
    opened = _opened(folder)
    last = opened.stages[-1] if opened.stages else opened
    try:
        return ModelConfig.from_dict(last.config["model"])
    except SuperresError as error:
        raise CheckpointError(f"{last.folder / CONFIG}: {error}") from error


def read_decode_default(folder: Place, kind: str) -> DecodeConfig | None:
    """Return the checkpoint's default decoding settings on devices of `kind` ("cpu", "cuda"), or
    None.

    An untrusted checkpoint must not cause other files to be read. Its `draft` is therefore a
    bundled checkpoint or a folder inside the checkpoint's folder, and its `ngrams` is a file inside
    that folder. Raises CheckpointError if the entry in config.json is damaged, or names a file
    outside or missing from the folder.
    """
    defaults, folder = read_config(folder).get(DECODE, {}), Path(folder)
    try:
        if (values := defaults.get(kind)) is None:
            return None
        default = DecodeConfig.from_dict(values)
        draft = default.draft if default.draft in bundled_checkpoints() else _inside(folder,
                                                                                     default.draft)
        return dataclasses.replace(default, draft=draft, ngrams=_inside(folder, default.ngrams))
    except (SuperresError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{folder / CONFIG}: {DECODE} for {kind} is damaged ({error}); run "
                              "superres tune again"
                              ) from error


def read_confidence(folder: Place) -> Confidence | None:
    """Return the coefficients in a checkpoint's config.json; None without them, a CheckpointError
    if damaged."""
    return _read_entry(folder, CONFIDENCE, Confidence, "tune")


def read_reliability(folder: Place) -> Reliability | None:
    """Return the calibration in a checkpoint's config.json; None without it, a CheckpointError if
    damaged."""
    return _read_entry(folder, RELIABILITY, Reliability, "calibrate")


def _read_entry(folder: Place, name: str, kind: type[ConfigT], command: str) -> ConfigT | None:
    """Return the optional settings `name` in config.json, which a command of superres saves."""
    values = read_config(folder).get(name)
    try:
        return None if values is None else kind.from_dict(values)
    except SuperresError as error:
        raise CheckpointError(f"{Path(folder) / CONFIG}: {name} is damaged ({error}); run superres "
                              f"{command} again"
                              ) from error


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


def load_checkpoint(folder: Place) -> EncoderDecoder:
    """Load the network of a checkpoint folder with float32 weights.

    The names and shapes of all tensors must match exactly; they are compared before the weights are
    read into memory. Raises CheckpointError if the folder is missing or damaged, the tensors do not
    match, or a weight is not finite.
    """
    path = Path(folder) / WEIGHTS
    # hundreds of small operations: further threads would wait for one another
    with TorchThreads(1):
        model = meta_network(read_network(folder))
        load_weights(model, read_tensors(path, model), str(path))
    return model.eval()


def read_task_files(folder: Path, task: str) -> dict[str, bytes]:
    """Return the content of the task's files in a checkpoint's folder, by name; a CheckpointError
    if one is missing."""
    try:
        return {name: read_file(folder / name, MOST_BYTES) for name in TASK_FILES.get(task, ())}
    except OSError as error:
        raise CheckpointError(f"cannot read {error.filename}: {error.strerror}; fetch the "
                              "checkpoint again") from error


def read_tensors(path: Path, model: torch.nn.Module | None = None) -> dict[str, Tensor]:
    """Read a safetensors file, after a comparison of names, shapes and types with those of `model`,
    if given.

    Raises CheckpointError if the file is missing or damaged, or does not match `model`.
    """
    try:
        require_regular(path)
        if model is not None:
            with safe_open(path, framework="pt") as file:
                found = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 -- not a dictionary
                shapes = {name: tuple(value.get_shape()) for name, value in found.items()}
                types = {name: value.get_dtype() for name, value in found.items()}
            _compare(model.state_dict(), shapes, str(path))
            if wrong := [name for name, kind in types.items() if kind not in WEIGHT_TYPES]:
                raise CheckpointError(f"{path}: tensor {wrong[0]} is of type {types[wrong[0]]}, "
                                      f"not {', '.join(WEIGHT_TYPES)}; fetch the checkpoint again")
        return load_file(path)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing; fetch the checkpoint again") from error
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged ({plain(str(error))}); fetch the checkpoint "
                              "again") from error


def load_weights(model: torch.nn.Module, weights: dict[str, Tensor], origin: str,
                 optional: str | None = None) -> None:
    """Copy `weights`, by name, into `model` after a check of names and shapes; tensors on the meta
    device are replaced.

    Error messages name `origin`. The model keeps its own tensors of names with the prefix
    `optional` that are missing. Raises CheckpointError if names or shapes differ, or a weight is
    not finite.
    """
    own = model.state_dict()
    _compare(own, {name: tuple(weight.shape) for name, weight in weights.items()}, origin, optional)
    values = dict(own)
    for name, weight in weights.items():
        if own[name].is_meta:
            values[name] = torch.empty_strided(own[name].shape, own[name].stride(),
                                               dtype=own[name].dtype).copy_(weight)
        else:
            values[name] = weight.to(own[name].dtype)
    for name, value in values.items():
        if value.numel() and not all(math.isfinite(bound) for bound in torch.aminmax(value)):
            raise CheckpointError(f"{origin}: tensor {name} holds numbers that are not finite; "
                                  "fetch the checkpoint again")
    model.load_state_dict(values, assign=any(value.is_meta for value in own.values()))


def _compare(
    own: Mapping[str, Tensor], found: Mapping[str, tuple[int, ...]], origin: str,
    optional: str | None = None,
) -> None:
    """Raise a CheckpointError if the shapes of a network's tensors differ from those in a file; see
    `load_weights`."""
    required = {name for name in own if optional is None or not name.startswith(optional)
                or name in found}
    missing, extra = sorted(required - set(found)), sorted(set(found) - set(own))
    shapes = sorted(name for name in required & set(found) if found[name] != own[name].shape)
    problems = {"lacks tensors": missing, "has extra tensors": extra, "has tensors of another "
                "shape": shapes}
    for problem, names in problems.items():
        if names:
            listed = ", ".join(map(plain, names[:3])) + (f" and {len(names) - 3} "
                                                         "more" if len(names) > 3 else "")
            raise CheckpointError(f"{origin} {problem}: {listed}; the weights do not belong to "
                                  "this config.json")


def weights_digest(folder: Place) -> str:
    """Return the first 12 hexadecimal digits of the SHA-256 of a checkpoint's weights."""
    path = Path(folder) / WEIGHTS
    require_regular(path)
    return short_digest(path.read_bytes())


def fetch_from_hub(identifier: str) -> Path:
    """Return the local folder of a hub checkpoint; files that are not cached are downloaded, if the
    hub responds.

    Raises CheckpointError if there is no such checkpoint, or the hub is unreachable and the
    checkpoint is not cached.
    """
    from superres.system.hub import HUB_ERRORS, hub_file, hub_problem  # 0.4 s of CPU to import

    problem = hub_problem(identifier, CONFIG)
    try:
        folder = hub_file(identifier, CONFIG, problem).parent
        document = read_config(folder)
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
