"""Render the methods of a survey: finished pictures of a folder, photographs, enlargements, or decoded pictures.

One argument of the command line, SPEC, describes a method:

    camera                                            the photographs of --images
    nearest | bicubic                                 enlargements of the inputs
    FOLDER                                            finished pictures; the folder's name is the name of the method
    name=ours,folder=FOLDER                           finished pictures under another name
    name=k6,accept=distance,epsilon=2,block_size=6    pictures of the bundled checkpoint, with decoding settings
    name=both,checkpoint=DIR,block_size=6             pictures of another checkpoint

Colons join several numbers of a setting: temperature=0.9:0.7:0.7.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm

from superres.batch.inputs import list_inputs
from superres.config import DEFAULT_CHECKPOINT, DecodeConfig, ModelConfig, require
from superres.errors import ConfigError, InvalidInputError
from superres.pipeline.options import SETTINGS, resolve_options
from superres.survey.pairs import ComparedMethods, Method, choose_images, compare_methods, same_size
from superres.survey.study import CAMERA
from superres.system.progress import say
from superres.system.terminal import printable
from superres.tasks.face_data import is_celeba, read_faces
from superres.tasks.faces import ENLARGEMENTS, FaceTask, crop_square, image_key
from superres.tasks.pictures import Pixels, read_image

if TYPE_CHECKING:
    from superres.pipeline.upscaler import Upscaler


@dataclass(frozen=True)
class Spec:
    """Specification of a method.

    Attributes:
        name: unique name in the study.
        folder: folder of finished pictures; None for other methods.
        enlargement: "nearest" or "bicubic"; None for other methods.
        checkpoint: bundled name, folder or hub id; None for methods that do not decode.
        settings: decoding settings that differ from the checkpoint's defaults.
    """

    name: str
    folder: Path | None = None
    enlargement: str | None = None
    checkpoint: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)


def parse_spec(text: str) -> Spec:
    """Parse a SPEC; see the docstring of the module.

    Raises:
        ConfigError: the SPEC is not valid.
    """
    if text == CAMERA or text in ENLARGEMENTS:
        return Spec(text, enlargement=text if text in ENLARGEMENTS else None)
    if "=" not in text:
        require(Path(text).is_dir(), f"{text!r} is not a method: give a folder of finished pictures, {CAMERA}, "
                                     f"{', '.join(ENLARGEMENTS)}, or settings such as name=k6,block_size=6")
        return Spec(Path(text).resolve().name, folder=Path(text))
    entries = [part.partition("=") for part in text.split(",")]
    values = {key.strip().replace("-", "_"): value.strip() for key, _, value in entries}
    known = ("name", "folder", "checkpoint", *SETTINGS)
    unknown = sorted(set(values) - set(known))
    require(not unknown, f"unknown {', '.join(map(repr, unknown))} in the method {text!r}; known: {', '.join(known)} "
                         "(join the numbers of one setting by colons)")
    require(len(values) == len(entries), f"a setting occurs twice in the method {text!r}; leave one out")
    name, folder, checkpoint = values.pop("name", ""), values.pop("folder", None), values.pop("checkpoint", None)
    if folder is not None:
        require(not values and checkpoint is None, f"the method {text!r} is a folder of finished pictures and takes no "
                                                   "decoding settings; leave one of the two out")
        require(Path(folder).is_dir(), f"the method {text!r}: {folder} is not a folder; correct the path")
        return Spec(name or Path(folder).resolve().name, folder=Path(folder))
    require(bool(name), f"the method {text!r} needs a name: name=k6,...")
    require(name != CAMERA, f"{CAMERA!r} is the name of the photographs; choose another for {text!r}")
    settings = {key: SETTINGS[key].read(key, value.replace(":", ",")) for key, value in values.items()}
    DecodeConfig(**settings)
    return Spec(name, checkpoint=checkpoint or DEFAULT_CHECKPOINT, settings=settings)


@dataclass(frozen=True)
class Images:
    """Images on which methods are compared.

    Attributes:
        sources: inputs uint8 [source, source, 3] by the image's name.
        photographs: uint8 [target, target, 3] by the image's name, for images of at least this size.
        task: the sizes.
    """

    sources: dict[str, Pixels]
    photographs: dict[str, Pixels]
    task: FaceTask


def task_of(specs: Sequence[Spec]) -> FaceTask:
    """Return the sizes of the first checkpoint in `specs`; those of a network by default if there is none.

    Raises:
        CheckpointError: the checkpoint cannot be read.
    """
    for spec in specs:
        if spec.checkpoint is not None:
            from superres.pipeline.auto import face_task

            return face_task(spec.checkpoint)
    return FaceTask.of(ModelConfig())


def read_images(path: Path, task: FaceTask) -> Images:
    """Read a prepared `.npz`, a CelebA root, or a folder of pictures that are at least as large as an input.

    Raises:
        InvalidInputError: the path holds no pictures that can be read, or two pictures have the same name.
    """
    if not path.is_dir() or is_celeba(path):
        pairs = read_faces(path, task, "valid")
        names = [f"{number:06d}" for number in pairs.ids]
        if len(set(names)) < len(names):
            names = [f"{index:06d}" for index in range(len(pairs))]
        return Images(dict(zip(names, pairs.lr, strict=True)), dict(zip(names, pairs.hr, strict=True)), task)
    squares = {name: crop_square(picture) for name, picture in read_folder(path, task.source).items()}
    photographs = {name: task.target_of(square) for name, square in squares.items() if len(square) >= task.target}
    return Images({name: task.source_of(square) for name, square in squares.items()}, photographs, task)


def read_folder(folder: Path, least: int = 1) -> dict[str, Pixels]:
    """Return the pictures of a folder, uint8 [H, W, 3], by file name without suffix.

    Files that cannot be read, and pictures with a side under `least` pixels, are named and skipped.

    Raises:
        InvalidInputError: the folder has no picture that can be read, or two names differ only in the suffix.
    """
    files = list_inputs([folder], recursive=False, excluded=Path())
    names: dict[str, Path] = {}
    for file in files:
        first = names.setdefault(file.stem, file)
        if first is not file:
            raise InvalidInputError(f"{first} and {file} have the same name, by which images are matched; rename one")
    bar = tqdm(names.items(), f"reading {printable(str(folder))}", disable=None)
    found: dict[str, Pixels] = {}
    for name, file in bar:
        try:
            found[name] = read_image(file, least=least)
        except InvalidInputError as error:
            say(f"skipped: {error}")
    if not found:
        raise InvalidInputError(f"no picture in {folder} can be read; correct the path, or add pictures")
    return found


@dataclass
class MethodRenderer:
    """Renders the pictures of a study's methods from their specifications.

    Attributes:
        images: inputs to upscale; None if all methods are folders.
        batch_size: images per batch.
        device: "auto", "cpu" or "cuda".
        folders: pictures of the methods that are folders, by the name of the method.
        upscalers: loaded checkpoints, by the name in the specification.
    """

    images: Images | None
    batch_size: int
    device: str
    folders: dict[str, dict[str, Pixels]] = field(default_factory=dict)
    upscalers: dict[str, Upscaler] = field(default_factory=dict)

    def names(self, specs: Sequence[Spec]) -> list[str]:
        """Return the names of the images that all methods in `specs` can show; name and skip the others.

        Raises:
            ConfigError: two different methods have the same name, or a method needs `images`.
            InvalidInputError: no image is in all folders of finished pictures and in `images`, with one size.
        """
        by_name: dict[str, Spec] = {}
        for spec in specs:
            require(by_name.setdefault(spec.name, spec) == spec,
                    f"two different methods are named {spec.name!r}; tell them apart with name=")
            require(spec.folder is not None or self.images is not None,
                    f"the method {spec.name!r} makes pictures of images; give --images")
            if spec.folder is not None and spec.name not in self.folders:
                self.folders[spec.name] = read_folder(spec.folder)
        known = {name: set(pictures) for name, pictures in self.folders.items()}
        if self.images is not None and any(spec.folder is None for spec in specs):
            # `images` may have more images than the folders, but not fewer.
            wanted = set().union(*known.values()) if known else set(self.images.sources)
            known["--images"] = wanted & set(self.images.sources)
        shared = set.intersection(*known.values())
        for name, own in known.items():
            if missing := sorted(set().union(*known.values()) - own):
                say(f"skipped: {name} lacks {', '.join(map(printable, missing))}")
        if not shared:
            raise InvalidInputError(f"{' and '.join(known)} have no image in common; give the pictures of one image "
                                    "the same file name in each")
        if self.folders:
            same = same_size(self.folders, sorted(shared))
            if differing := sorted(shared.difference(same)):
                say(f"skipped: {', '.join(map(printable, differing))}, which differ in size between methods")
            shared.intersection_update(same)
        return sorted(shared)

    def make(self, spec: Spec, names: Sequence[str]) -> Method:
        """Return a method with its pictures of the images `names`.

        Raises:
            ConfigError: the settings do not match the checkpoint.
            CheckpointError: the checkpoint cannot be loaded.
            InvalidInputError: an image is too small for a photograph.
        """
        if spec.folder is not None:
            pictures = self.folders[spec.name]
            return Method(spec.name, {name: pictures[name] for name in names}, {"folder": str(spec.folder)})
        if self.images is None:
            raise ConfigError(f"the method {spec.name!r} makes pictures of images; give --images")
        if spec.name == CAMERA:
            return Method(CAMERA, _photographs(self.images, names), {"photographs": True})
        sources = np.stack([self.images.sources[name] for name in names])
        if spec.enlargement is not None:
            made, record = self.images.task.enlarge(sources, spec.enlargement), {"enlargement": spec.enlargement}
        else:
            made, record = self._decode(spec, sources)
        return Method(spec.name, dict(zip(names, made, strict=True)), record)

    def decoder(self, spec: Spec) -> tuple[Upscaler, DecodeConfig]:
        """Return the loaded checkpoint of a method, and its complete decoding settings.

        Raises:
            ConfigError: the settings do not match the checkpoint.
            CheckpointError: the checkpoint cannot be loaded.
        """
        from superres.pipeline.upscaler import Upscaler

        name = spec.checkpoint or DEFAULT_CHECKPOINT
        if name not in self.upscalers:
            self.upscalers[name] = Upscaler.load(name, self.device)
        upscaler = self.upscalers[name]
        if self.images is not None and upscaler.face_task != self.images.task:
            here, there = upscaler.face_task, self.images.task
            raise ConfigError(f"the method {spec.name!r} enlarges {here.source_size} to {here.target_size}, another "
                              f"{there.source_size} to {there.target_size}; choose checkpoints of the same sizes")
        try:
            options = upscaler.options(**spec.settings)
        except ConfigError as error:
            raise ConfigError(f"the method {spec.name!r}: {error}") from error
        return upscaler, resolve_options(options, upscaler)

    def _decode(self, spec: Spec, sources: Pixels) -> tuple[Pixels, dict[str, Any]]:
        """Decode `sources`, uint8 [N, source, source, 3]; return the pictures and their record."""
        from superres.decoding.trace import mean_accepted_block_size

        upscaler, options = self.decoder(spec)
        starts = tqdm(range(0, len(sources), self.batch_size), f"decoding {printable(spec.name)}", unit="batch",
                      disable=None)
        batches = (sources[start:start + self.batch_size] for start in starts)
        results = [upscaler(batch, options, keys=[image_key(source, 1) for source in batch]) for batch in batches]
        traces = [trace for result in results for trace in result.traces]
        record = {"checkpoint": upscaler.name, "revision": upscaler.revision, "config": options.to_dict(),
                  "mean_accepted_block_size": mean_accepted_block_size(traces)}
        return np.concatenate([result.images for result in results]), record


def _photographs(images: Images, names: Sequence[str]) -> dict[str, Pixels]:
    small = [name for name in names if name not in images.photographs]
    if small:
        raise InvalidInputError(f"{len(small)} of the images (such as {small[0]}) are under {images.task.target_size}, "
                                f"too small to stand for photographs; give larger ones, or leave out {CAMERA}")
    return {name: images.photographs[name] for name in names}


def make_comparisons(
    specs_a: Sequence[Spec], specs_b: Sequence[Spec], renderer: MethodRenderer, count: int | None, seed: int,
) -> list[ComparedMethods]:
    """Return the compared methods with their pictures; all specifications are checked before the first decoding.

    Args:
        specs_a: methods a.
        specs_b: methods b; as many as `specs_a`, or one list has a single method, which all others are compared with.
        renderer: renderer of the methods.
        count: number of images per comparison, a random sample; None for all images.
        seed: seed of the sample.

    Raises:
        ConfigError, CheckpointError, InvalidInputError: see `MethodRenderer` and `superres.survey.pairs`.
    """
    named = [[Method(spec.name, {}) for spec in specs] for specs in (specs_a, specs_b)]
    compare_methods(*named)
    specs = {spec.name: spec for spec in (*specs_a, *specs_b)}
    names = renderer.names([*specs_a, *specs_b])
    for spec in specs.values():
        if spec.checkpoint is not None:
            renderer.decoder(spec)
    chosen = names if count is None else choose_images(names, count, seed)
    methods = {name: renderer.make(spec, chosen) for name, spec in specs.items()}
    return compare_methods([methods[spec.name] for spec in specs_a], [methods[spec.name] for spec in specs_b])
