"""Checkpoint folders: `model.safetensors` and `config.json`, read strictly, written atomically."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import PyTorchModelHubMixin, hf_hub_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from superres.config import FORMAT_VERSION, DecodeConfig, ModelConfig
from superres.errors import CheckpointError, OutputError, SuperresError
from superres.nn.model import EncoderDecoder
from superres.tasks import TASK_FILES

WEIGHTS = "model.safetensors"
CONFIG = "config.json"
TRAINING = "training.jsonl"
"""How the weights came about: a JSON object a stage, oldest first."""
DECODE = "decode"
"""Entry of config.json with the default decoding settings by kind of device ("cpu", "cuda"), where there are any."""
RETIRED = "-old"
"""Ending of a folder's name while another takes its place."""


@contextmanager
def replaced_folder(folder: Path) -> Iterator[Path]:
    """Give a new folder beside `folder` to write into; it takes `folder`'s place if the block succeeds.

    Raises:
        OutputError: the folder cannot be written (read-only, no space left); what was there before is intact.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as error:
        raise OutputError(f"cannot write {folder}: {error.strerror}; choose another folder") from error
    try:
        yield fresh
        fresh.chmod(0o755)
        _swap(folder, fresh)
    except (OSError, SafetensorError) as error:
        raise OutputError(f"cannot write {folder}: {error}; what was there before is unchanged") from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _swap(folder: Path, fresh: Path) -> None:
    """Put `fresh` in the place of `folder`; if that fails, what was there comes back."""
    retired = fresh.with_name(fresh.name + RETIRED)
    if folder.exists():
        os.replace(folder, retired)
    try:
        os.replace(fresh, folder)
    except OSError:
        recover_folder(folder)
        raise
    shutil.rmtree(retired, ignore_errors=True)


def recover_folder(folder: Path) -> None:
    """Bring back what stood at `folder` if a swap was cut short between its two moves (a kill, say)."""
    left = sorted(folder.parent.glob(f".{folder.name}-*{RETIRED}"))
    if left and not folder.exists():
        os.replace(left[-1], folder)


def save_checkpoint(
    model: EncoderDecoder, folder: str | Path, extra: dict[str, Any] | None = None,
    dtype: torch.dtype = torch.bfloat16, training: Sequence[dict[str, Any]] | None = None,
    files: Mapping[str, bytes] | None = None,
) -> None:
    """Write `model` as a checkpoint folder, replacing what is there in one move.

    Args:
        model: the network.
        folder: where to; made if missing. Other files in it (a model card) are kept.
        extra: more entries for config.json.
        dtype: in which the weights are stored.
        training: the stages that led here, for `training.jsonl`; None leaves that file as it is.
        files: content of more files by name, those of the task (a vocabulary).

    Raises:
        OutputError: the folder cannot be written.
    """
    folder = Path(folder)
    weights = {name: value.detach().to("cpu", dtype).contiguous() for name, value in model.state_dict().items()}
    with replaced_folder(folder) as fresh:
        if folder.is_dir():
            shutil.copytree(folder, fresh, dirs_exist_ok=True)
        save_file(weights, fresh / WEIGHTS, metadata={"format": "pt"})
        document = {"format_version": FORMAT_VERSION, "model": model.config.to_dict(), **(extra or {})}
        (fresh / CONFIG).write_text(json.dumps(document, indent=2) + "\n")
        for name, content in (files or {}).items():
            (fresh / name).write_bytes(content)
        if training is not None:
            (fresh / TRAINING).write_text("".join(json.dumps(stage) + "\n" for stage in training))


def read_training(folder: str | Path) -> list[dict[str, Any]]:
    """Return the stages that led to a checkpoint, oldest first; none if it does not tell.

    Raises:
        CheckpointError: `training.jsonl` is damaged.
    """
    path = Path(folder) / TRAINING
    try:
        return [dict(json.loads(line)) for line in path.read_text().splitlines()]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged ({error}); fetch the checkpoint again, or remove it") from error


def read_config(folder: str | Path) -> dict[str, Any]:
    """Return the document in a checkpoint's config.json.

    Raises:
        CheckpointError: the folder or file is missing, damaged, or of a newer format.
    """
    path = Path(folder) / CONFIG
    try:
        document = json.loads(path.read_text())
        version = document["format_version"]
    except FileNotFoundError as error:
        raise CheckpointError(f"no checkpoint at {folder}: {CONFIG} is missing; name a checkpoint's folder") from error
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{path} is damaged ({error!r}); fetch the checkpoint again") from error
    if version != FORMAT_VERSION:
        raise CheckpointError(f"{path} has format {version!r}, this release reads {FORMAT_VERSION}; update superres")
    if not isinstance(document.get("model"), dict):
        raise CheckpointError(f"{path} has no settings of a model; fetch the checkpoint again")
    return dict(document)


def read_decode_default(folder: str | Path, kind: str) -> DecodeConfig:
    """Return the checkpoint's default decoding settings on devices of `kind` ("cpu", "cuda"), or else plain ones.

    Raises:
        CheckpointError: the entry in config.json is damaged.
    """
    defaults = read_config(folder).get(DECODE, {})
    try:
        return DecodeConfig.from_dict(defaults.get(kind, {}))
    except (SuperresError, AttributeError, TypeError) as error:
        path = Path(folder) / CONFIG
        raise CheckpointError(f"{path}: {DECODE} for {kind} is damaged ({error}); run superres tune again") from error


def load_checkpoint(folder: str | Path) -> EncoderDecoder:
    """Read a checkpoint folder strictly: every tensor present, none extra, every shape right. Weights become float32.

    Raises:
        CheckpointError: the folder is missing, damaged, or does not fit.
    """
    folder = Path(folder)
    document = read_config(folder)
    try:
        model = EncoderDecoder(ModelConfig.from_dict(document["model"]))
    except SuperresError as error:
        raise CheckpointError(f"{folder / CONFIG}: {error}") from error
    load_weights(model, read_tensors(folder / WEIGHTS), str(folder / WEIGHTS))
    return model.eval()


def read_task_files(folder: Path, task: str) -> dict[str, bytes]:
    """Return the content of the files in a checkpoint's folder that belong to its task, by name.

    Raises:
        CheckpointError: one is missing.
    """
    try:
        return {name: (folder / name).read_bytes() for name in TASK_FILES.get(task, ())}
    except OSError as error:
        raise CheckpointError(f"cannot read {error.filename}: {error.strerror}; fetch the checkpoint again") from error


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file.

    Raises:
        CheckpointError: it is missing or damaged.
    """
    try:
        return load_file(path)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing; fetch the checkpoint again") from error
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged ({error}); fetch the checkpoint again") from error


def load_weights(model: torch.nn.Module, weights: dict[str, Tensor], origin: str, optional: str | None = None) -> None:
    """Copy `weights` into `model`, each name and shape checked.

    Args:
        model: the network.
        weights: tensors by name.
        origin: where they come from, for the message.
        optional: prefix of names that `weights` may lack (and the model then keeps its own).

    Raises:
        CheckpointError: names or shapes differ.
    """
    own = model.state_dict()
    wanted = {name for name in own if optional is None or not name.startswith(optional) or name in weights}
    missing, extra = sorted(wanted - set(weights)), sorted(set(weights) - set(own))
    shapes = sorted(n for n in wanted & set(weights) if weights[n].shape != own[n].shape)
    problems = {"lacks tensors": missing, "has extra tensors": extra, "has tensors of another shape": shapes}
    for problem, names in problems.items():
        if names:
            shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            raise CheckpointError(f"{origin} {problem}: {shown}; the weights do not belong to this config.json")
    model.load_state_dict({name: weights.get(name, own[name]).to(own[name].dtype) for name in own})


def weights_digest(folder: str | Path) -> str:
    """Return the first 12 hexadecimal digits of the SHA-256 of a checkpoint's weights."""
    return hashlib.sha256((Path(folder) / WEIGHTS).read_bytes()).hexdigest()[:12]


class HubModel(torch.nn.Module, PyTorchModelHubMixin):
    """A network with the hub's `from_pretrained`, `save_pretrained` and `push_to_hub`, read as strictly as a folder."""

    def __init__(self, model: EncoderDecoder, files: Mapping[str, bytes] | None = None) -> None:
        """Wrap the network.

        Args:
            model: the network.
            files: content of its task's files by name (the vocabulary of a translation), as in `read_task_files`.

        Raises:
            CheckpointError: a file of the task is missing.
        """
        super().__init__()
        self.model, self.files = model, dict(files or {})
        missing = [name for name in TASK_FILES.get(model.config.task, ()) if name not in self.files]
        if missing:
            raise CheckpointError(f"a checkpoint for {model.config.task} holds {', '.join(missing)}; give its content")

    def _save_pretrained(self, save_directory: Path) -> None:
        save_checkpoint(self.model, save_directory, files=self.files)

    @classmethod
    def _from_pretrained(cls, *, model_id: str, revision: str | None, **_: object) -> HubModel:
        folder = Path(model_id) if Path(model_id).is_dir() else fetch_from_hub(model_id, revision)
        model = load_checkpoint(folder)
        return cls(model, read_task_files(folder, model.config.task))


def fetch_from_hub(identifier: str, revision: str | None = None) -> Path:
    """Return the local folder of a hub checkpoint, downloading its files unless they are cached.

    Raises:
        CheckpointError: there is no such checkpoint, or no network and nothing cached.
    """
    try:
        folder = Path(hf_hub_download(identifier, CONFIG, revision=revision)).parent
        task = read_config(folder)["model"].get("task")
        for name in (WEIGHTS, *TASK_FILES.get(task, ())):
            hf_hub_download(identifier, name, revision=revision)
    except (OSError, ValueError, HfHubHTTPError, HFValidationError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        message = f"cannot fetch {identifier!r} from the hub ({reason}); check the id, or give a folder"
        raise CheckpointError(message) from error
    return folder


def bundled_folder() -> Path:
    """Return the folder of the bundled checkpoints: beside the package in a checkout, inside it when installed."""
    package = Path(__file__).resolve().parent
    installed = package / "_checkpoints"
    return installed if installed.is_dir() else package.parent / "checkpoints"


def bundled_checkpoints() -> list[str]:
    """Return the names of the bundled checkpoints."""
    return sorted(path.parent.name for path in bundled_folder().glob("*/config.json"))


def find_checkpoint(name_or_folder: str | Path) -> Path:
    """Return the folder of a checkpoint.

    Args:
        name_or_folder: a bundled checkpoint's name, a folder, or a Hugging Face hub id ("owner/name").

    Raises:
        CheckpointError: nothing is found.
    """
    text = str(name_or_folder)
    if text and Path(name_or_folder).is_dir():
        return Path(name_or_folder)
    if text in bundled_checkpoints():
        return bundled_folder() / text
    if text.count("/") == 1 and not text.startswith((".", "/")) and not text.endswith("/"):
        return fetch_from_hub(text)
    known = ", ".join(bundled_checkpoints()) or "none"
    raise CheckpointError(f"no checkpoint {text!r}; give a folder, a hub id owner/name, or a bundled name ({known})")
