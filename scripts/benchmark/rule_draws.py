"""What a rule of `scripts/rules` draws: pictures, and beginnings of pictures."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from decodes import decode
from rule import FOLDER, Rule
from superres.config import DecodeConfig
from superres.decoding.algorithm import Algorithm
from superres.decoding.proposers import PROPOSERS
from superres.interfaces import Float64, Int64
from superres.pictures.read import Pixels
from superres.pipeline.choose import engine_of
from superres.pipeline.upscaler import Upscaler
from superres.system.output import short_digest, write_result
from superres.system.torch_threads import TorchThreads
from superres.tasks.face_data import FacePairs

TEMPERATURE, NUCLEUS = 0.9, 0.9
"""Of all samples, within the network's own limits on none of the tokens."""
FACES_AT_ONCE, BEGINNINGS_AT_ONCE = 50, 250
"""Rows of a batch of pictures, and of their beginnings: encoded pictures take memory."""

T = TypeVar("T")


@dataclass(frozen=True)
class Drawn:
    """Pictures that a rule has drawn: tokens [N, T], and of each picture its decoding iterations
    [N] and the mean number of columns of a model call [N]."""

    tokens: Int64
    iterations: Int64
    columns: Float64


class CountingModel:
    """A model on torch that counts the columns of the model calls of its sessions."""

    def __init__(self, model: Any) -> None:  # noqa: ANN401 -- a `superres.sessions.EngineModel`
        self._counted, self.widths = model, list[int]()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._counted, name)

    def session(self, *arguments: Any, **more: Any) -> Any:  # noqa: ANN401 -- as the model's
        """Return a session of the model."""
        session = self._counted.session(*arguments, **more)
        compute = session.compute

        def counted(tokens: Tensor, *others: Any, **more: Any) -> Any:  # noqa: ANN401 -- as the session's
            self.widths.append(tokens.shape[1])
            return compute(tokens, *others, **more)

        session.compute = counted
        return session


def code_of(rule: Rule) -> str:
    """Return a digest of the file that lists a rule, and of the rules' files that it imports."""
    own = next(Path(module.__file__ or "") for module in [*sys.modules.values()]
               if rule in vars(module).get("RULES", ()))
    used = [path for path in sorted(FOLDER.glob("*.py"))
            if path.stem != "rule" and f"from {path.stem} import" in own.read_text()]
    return short_digest(b"".join(path.read_bytes() for path in [own, *used]))


def in_batches(count: int, size: int) -> list[Int64]:
    """Return the numbers from 0 to `count` in batches."""
    return [np.arange(start, min(start + size, count)) for start in range(0, count, size)]


@dataclass
class Drawing:
    """Draws the same faces by one rule after another, and keeps them in `folder`."""

    upscaler: Upscaler
    pairs: FacePairs
    folder: Path

    @cached_property
    def source(self) -> Int64:
        """The input's tokens, [N, S]."""
        return self.upscaler.source_tokens(self.pairs.lr)

    @cached_property
    def on_torch(self) -> Any:  # noqa: ANN401 -- a `superres.sessions.EngineModel`
        """The network for rules of their own order, whose sessions read tokens at any position."""
        return engine_of(self.upscaler.network, None, "cpu", "plain").on_torch()

    def on(self, engine: str) -> Drawing:
        """Return a drawing of the same faces by another engine; itself for ""."""
        if not engine:
            return self
        return replace(self, upscaler=Upscaler.load(self.upscaler.name, "cpu", engine))

    def options(self, rule: Rule, **changes: Any) -> DecodeConfig:  # noqa: ANN401 -- as the settings'
        """Return how a rule samples, with changes."""
        return DecodeConfig(**{"temperature": TEMPERATURE, "nucleus": NUCLEUS, **rule.settings,
                               **changes})

    def columns(self, options: DecodeConfig) -> int:
        """Return the number of columns of a step of a rule of the loop."""
        size = self.upscaler.block_size(options)
        is_tree = PROPOSERS[options.proposer].proposes_tree and size > 1
        return (size - 1) * (options.window + options.candidates) if is_tree else size

    def settings(self, rule: Rule, options: DecodeConfig) -> dict[str, Any]:
        """Return what the pictures of a rule depend on."""
        return {"checkpoint": f"{self.upscaler.name}@{self.upscaler.revision}",
                "code": self.upscaler.scoring.code, "rule": rule.name, "file": code_of(rule),
                "options": options.to_dict()}

    def pictures(self, drawn: Drawn) -> Pixels:
        """Return what was drawn as pictures, uint8 [N, H, W, 3]."""
        return self.upscaler.network_task.decode(drawn.tokens)

    def drawn(self, rule: Rule, options: DecodeConfig, count: int) -> Drawn:
        """Draw the first `count` faces, or read them if they have been drawn."""
        made_by = f"{self.settings(rule, options)}".encode() + self.source[:count].tobytes()
        path = self.folder / f"drawn-{short_digest(made_by)}.npz"
        if not path.exists():
            made = self.side_by_side(lambda keys: self.draw(rule, options, keys),
                                     in_batches(count, FACES_AT_ONCE))
            content = io.BytesIO()
            np.savez_compressed(content, **{name: np.concatenate([vars(one)[name] for one in made])
                                            for name in vars(made[0])})
            write_result(path, content.getvalue())
        with np.load(path) as kept:
            return Drawn(kept["tokens"].astype(np.int64), kept["iterations"], kept["columns"])

    def draw(self, rule: Rule, options: DecodeConfig, keys: Int64) -> Drawn:
        """Decode the faces of the numbers `keys`, which key their noise."""
        source, model = self.source[keys], CountingModel(self.on_torch)
        if rule.decode is None:
            decoded = decode(self.engine, source, options, keys=keys,
                             proposer=self.upscaler.proposers.get(options))
            columns = float(self.columns(options))
        else:
            with torch.inference_mode():
                decoded = rule.decode(model, torch.from_numpy(source), options,
                                      torch.from_numpy(keys))
            columns = float(np.mean(model.widths))
        return Drawn(decoded.tokens.numpy().astype(np.uint8),
                     np.array([trace.iterations for trace in decoded.traces]),
                     np.full(len(keys), columns))

    def beginnings(self, options: DecodeConfig, face: int, length: int, count: int) -> Int64:
        """Return the first tokens of `count` samples of a face, [count, length]."""
        batches = in_batches(count, BEGINNINGS_AT_ONCE)
        algorithm = self.algorithm(options)
        # Copies of the encoded face take more time than the few iterations: all batches read one.
        face_once = algorithm.engine.encode(self.source[face : face + 1], None, algorithm)
        rows = face_once[np.zeros(len(batches[0]), np.int64)]

        def begin(keys: Int64) -> Int64:
            own = self.algorithm(options)
            sources = rows if len(keys) == len(rows) else rows[np.arange(len(keys))]
            decoder = own.engine.start(sources, keys, own, own.block_size)
            while decoder.positions().min() < length:
                decoder.advance(1)
            return decoder.results(np.arange(len(keys)))[0][:, :length]

        return np.concatenate(self.side_by_side(begin, batches))

    def algorithm(self, options: DecodeConfig) -> Algorithm:
        """Return a decoding algorithm with a proposer of its own."""
        return Algorithm(self.engine, options, self.upscaler.proposers.get(options))

    @cached_property
    def _engines(self) -> Sequence[Any]:
        return self.upscaler.scoring.side_by_side(2)

    @property
    def engine(self) -> Any:  # noqa: ANN401 -- a `superres.interfaces.Engine`
        """The engine of one of several batches at the same time."""
        return self._engines[0]

    def side_by_side(self, function: Callable[[Int64], T], batches: Sequence[Int64]) -> list[T]:
        """Call a function of each batch, several at the same time."""
        def alone(batch: Int64) -> T:
            with TorchThreads(1):
                return function(batch)

        with ThreadPoolExecutor(len(self._engines)) as pool:
            return list(pool.map(alone, batches))
