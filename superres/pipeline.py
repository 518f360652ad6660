"""The join of network, decoder and task: load a checkpoint once, then call it on inputs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from superres.checkpoint import fetch_from_hub, load_checkpoint, read_decode_default, weights_digest
from superres.config import DecodeConfig
from superres.decoding.blockwise import check_options, decode
from superres.decoding.trace import RowTrace
from superres.errors import CheckpointError, ConfigError, InvalidInputError
from superres.nn.model import EncoderDecoder
from superres.nn.native import step_model
from superres.nn.scores import bits_per_dim
from superres.tasks import faces

DEFAULT_CHECKPOINT = "celeba-8to32"


@dataclass(frozen=True)
class Upscaled:
    """Result of upscaling a batch.

    Attributes:
        images: uint8 [N, 32, 32, 3], RGB.
        traces: one a image: what was accepted when.
        seconds: wall clock of the whole batch.
    """

    images: np.ndarray
    traces: list[RowTrace]
    seconds: float


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


def pick_device(name: str) -> torch.device:
    """Return the device for "auto", "cpu" or "cuda".

    Raises:
        ConfigError: the device is unknown or absent.
    """
    if name not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"unknown device {name!r}; choose auto, cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device cuda asked for, but torch finds no GPU; choose cpu or auto")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


class Upscaler:
    """Upscales 8x8 faces to 32x32 with a checkpoint.

    Attributes:
        name: the checkpoint's name.
        revision: first digits of its weights' SHA-256.
        model_config: settings of the network.
        default: decoding settings of a call without options.
    """

    def __init__(
        self, model: EncoderDecoder, name: str, revision: str = "", device: str = "auto",
        default: DecodeConfig | None = None, engine: str = "auto",
    ) -> None:
        """Wrap a network.

        Args:
            model: the network, for the task "faces".
            name: what to call it.
            revision: of its weights.
            device: "auto", "cpu" or "cuda".
            default: decoding settings of a call without options; exact blocks of all heads if None.
            engine: how the decoding step is computed, a name in `superres.nn.native.ENGINES`.

        Raises:
            ConfigError: the device is absent, or the engine cannot serve there.
            CheckpointError: the network serves another task.
        """
        if model.config.task != "faces":
            raise CheckpointError(f"checkpoint {name} serves the task {model.config.task!r}, not faces")
        self.name, self.revision, self.model_config = name, revision, model.config
        self.device, self.default = pick_device(device), default or DecodeConfig()
        self.model = model.to(self.device).eval()
        self._scoring = step_model(self.model, engine=engine)

    @classmethod
    def load(
        cls, name_or_dir: str | Path = DEFAULT_CHECKPOINT, device: str = "auto", engine: str = "auto",
    ) -> Upscaler:
        """Load a checkpoint.

        Args:
            name_or_dir: a bundled checkpoint's name, a folder, or a Hugging Face hub id.
            device: "auto", "cpu" or "cuda".
            engine: see `Upscaler`.

        Raises:
            CheckpointError: the checkpoint is missing, damaged or for another task.
            ConfigError: the device is absent, or the engine cannot serve there.
        """
        folder = find_checkpoint(name_or_dir)
        default = read_decode_default(folder, pick_device(device).type)
        return cls(load_checkpoint(folder), folder.resolve().name, weights_digest(folder), device, default, engine)

    def __call__(
        self, sources: np.ndarray, options: DecodeConfig | None = None, *, keys: Sequence[int] | None = None,
        width: int | None = None, progress: Callable[[int, int], None] | None = None,
    ) -> Upscaled:
        """Upscale a batch.

        Args:
            sources: uint8 [N, 8, 8, 3], RGB.
            options: block size, acceptance and sampling; if None the checkpoint's default for the kind of device, as
                `superres tune` saves it, or exact greedy blocks of all heads.
            keys: a number an image in [0, 2**63) that keys its sampling noise; its place in the batch if None.
            width: step width, at least the block size; see `superres.decoding.blockwise.decode`.
            progress: called now and then with (tokens of the slowest image, tokens of an image).

        Returns:
            Images, traces and time.

        Raises:
            InvalidInputError: `sources` has another shape or type.
            ConfigError: options do not fit the checkpoint.
        """
        options = options or self.default
        check_options(options, self.model_config.prediction_heads)
        expected = self.model_config.source_shape
        if sources.dtype != np.uint8 or sources.shape[1:] != expected:
            raise InvalidInputError(f"sources are {sources.dtype} {sources.shape}; give uint8 (N, *{expected})")
        started = time.perf_counter()
        if not len(sources):
            return Upscaled(np.zeros((0, *self.model_config.target_shape), np.uint8), [], 0.0)
        tokens = torch.from_numpy(faces.encode(sources)).to(self.device)
        keyed = None if keys is None else torch.tensor(list(keys), dtype=torch.int64, device=self.device)
        decoded = decode(self._scoring, tokens, options, keys=keyed, width=width, progress=progress)
        images = faces.decode(decoded.tokens.cpu().numpy())
        return Upscaled(images, decoded.traces, time.perf_counter() - started)

    def bits_per_dim(self, sources: np.ndarray, targets: np.ndarray, batch_size: int = 8) -> np.ndarray:
        """Return the bits a token that p1 needs for each target image.

        Args:
            sources: uint8 [N, 8, 8, 3].
            targets: uint8 [N, 32, 32, 3].
            batch_size: images at a time.

        Returns:
            float64 [N].
        """
        source, target = (torch.from_numpy(faces.encode(images)) for images in (sources, targets))
        with torch.inference_mode():
            values: np.ndarray = bits_per_dim(self.model, source, target, batch_size).numpy()
        return values


def load(name_or_dir: str | Path = DEFAULT_CHECKPOINT, device: str = "auto") -> Upscaler:
    """Load a checkpoint for its task: `load("celeba-8to32")`, a folder, or a Hugging Face hub id ("owner/name").

    Raises:
        CheckpointError: the checkpoint is missing, damaged, or its task is unknown.
        ConfigError: the device is absent.
    """
    return Upscaler.load(name_or_dir, device)
