"""Render the methods of a survey: finished pictures of a folder, photographs, enlargements, or
decoded pictures.

One argument of the command line, SPEC, describes a method:

    camera                                  the photographs of --images
    nearest | bicubic | lanczos             enlargements of the inputs
    FOLDER                                  finished pictures; its name is the method's
    name=ours,folder=FOLDER                 finished pictures under another name
    name=k6,accept=distance,block_size=6    pictures of the bundled checkpoint, by its settings
    name=both,checkpoint=DIR,block_size=6   pictures of another checkpoint
    name=small,checkpoint=DIR,size=N        those of a cascade's stage that draws N x N pixels
    name=warm,temperature=0.7,samples=4     the likeliest of four samples of each image

Colons join several numbers of a setting: temperature=0.9:0.7:0.7. The pictures of a study have the
size of the largest checkpoint's outputs. Smaller ones are enlarged to it as the study's page
enlarges pictures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from superres.config import DEFAULT_CHECKPOINT, DecodeConfig, ModelConfig, Setting, require
from superres.errors import ConfigError, InvalidInputError
from superres.evaluation.drawing import draw_samples
from superres.pictures.files import IMAGE_SUFFIXES
from superres.pictures.read import Pixels
from superres.pictures.untrusted import read_untrusted
from superres.pipeline.resolved_options import KEEPS, SETTINGS, resolve_options
from superres.survey.pairs import (
    RIGHT,
    SHUFFLED,
    WRONG,
    ComparedMethods,
    Method,
    ObviousPairs,
    choose_images,
    compare_methods,
    judge_methods,
    same_size,
)
from superres.survey.study import CAMERA
from superres.system.folders import folder_files, folder_name, is_folder
from superres.system.progress import say, track
from superres.system.terminal import printable
from superres.tasks.face_data import read_faces
from superres.tasks.face_paths import is_celeba
from superres.tasks.faces import ENLARGEMENTS, FaceTask
from superres.tasks.photos import choose_crops, largest

if TYPE_CHECKING:
    from superres.pipeline.upscaler import Upscaler


@dataclass(frozen=True)
class Spec:
    """Specification of a method: a folder, a name in ENLARGEMENTS, `CAMERA`, or a checkpoint.

    `checkpoint` is a bundled name, folder or hub id. `size` is the side of its pictures in pixels;
    None for that of its last stage. `settings` are decoding settings that differ from its defaults.
    Of several `samples`, the likeliest is the method's picture.
    """

    name: str
    folder: Path | None = None
    enlargement: str | None = None
    checkpoint: str | None = None
    size: int | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    samples: int = 1


def parse_spec(text: str) -> Spec:
    """Parse a SPEC; see the docstring of the module. Raise ConfigError if it is not valid."""
    if text == CAMERA or text in ENLARGEMENTS:
        return Spec(text, enlargement=text if text in ENLARGEMENTS else None)
    if "=" not in text:
        require(is_folder(Path(text)), f"{text!r} is not a method: give a folder of finished "
                f"pictures, {CAMERA}, {', '.join(ENLARGEMENTS)}, or settings such as "
                "name=k6,block_size=6")
        return Spec(folder_name(Path(text)), folder=Path(text))
    entries = [part.partition("=") for part in text.split(",")]
    values = {key.strip().replace("-", "_"): value.strip() for key, _, value in entries}
    known = ("name", "folder", "checkpoint", "size", "samples", *SETTINGS)
    unknown = sorted(set(values) - set(known))
    require(not unknown, f"unknown {', '.join(map(repr, unknown))} in the method {text!r}; known: "
            f"{', '.join(known)} (join the numbers of one setting by colons)")
    require(len(values) == len(entries), f"a setting occurs twice in the method {text!r}; leave "
            "one out")

    # finished pictures
    name, folder, checkpoint = (values.pop(key, "") for key in ("name", "folder", "checkpoint"))
    if folder:
        require(not values and not checkpoint, f"the method {text!r} is a folder of finished "
                "pictures and takes no decoding settings; leave one of the two out")
        require(is_folder(Path(folder)), f"the method {text!r}: {folder} is not a folder; correct "
                "the path")
        return Spec(name or folder_name(Path(folder)), folder=Path(folder))

    # pictures of a checkpoint
    require(bool(name), f"the method {text!r} needs a name: name=k6,...")
    require(name != CAMERA, f"{CAMERA!r} is the name of the photographs; choose another for "
            f"{text!r}")
    size = Setting("", kind=int).read("size", values.pop("size")) if "size" in values else None
    samples = Setting("", kind=int, least=1).read("samples", values.pop("samples", "1"))
    settings = {key: SETTINGS[key].read(key, value.replace(":", ","))
                for key, value in values.items()}
    require(DecodeConfig(**settings).is_sampling or samples == 1, f"the method {text!r} would draw "
            f"the same picture {samples} times at temperature 0; add temperature=0.7, or leave "
            "samples out")
    return Spec(name, checkpoint=checkpoint or DEFAULT_CHECKPOINT, size=size, settings=settings,
                samples=samples)


@dataclass(frozen=True)
class Images:
    """Images on which methods are compared, by name: inputs, and photographs of those images that
    are large enough.

    Inputs are uint8 [source, source, 3] and photographs uint8 [target, target, 3], of the sizes of
    `task`.
    """

    sources: dict[str, Pixels]
    photographs: dict[str, Pixels]
    task: FaceTask


def read_images(path: Path, task: FaceTask) -> Images:
    """Read a prepared `.npz`, a CelebA root, or a folder of pictures that are at least as large as
    an input.

    Of a photo in a folder, the largest face is used, or the centre if none is found.

    Raise InvalidInputError if the path holds no pictures that can be read, or two pictures have the
    same name.
    """
    if not is_folder(path) or is_celeba(path):
        pairs = read_faces(path, task, "valid")
        names = [f"{number:06d}" for number in pairs.ids]
        if len(set(names)) < len(names):
            names = [f"{index:06d}" for index in range(len(pairs))]
        return Images(dict(zip(names, pairs.lr, strict=True)),
                      dict(zip(names, pairs.hr, strict=True)), task)
    found = read_folder(path, task.source).items()
    squares = {name: largest(choose_crops(picture, task)).take(picture) for name, picture in found}
    photographs = {name: task.target_of(square) for name, square in squares.items()
                   if len(square) >= task.target}
    return Images({name: task.source_of(square) for name, square in squares.items()}, photographs,
                  task)


def read_folder(folder: Path, least: int = 1) -> dict[str, Pixels]:
    """Return the pictures of a folder, uint8 [H, W, 3], by file name without suffix.

    Files that cannot be read, and pictures with a side under `least` pixels, are named and skipped.
    Raise InvalidInputError if the folder has no picture that can be read, or two names differ only
    in the suffix.
    """
    names: dict[str, Path] = {}
    for file in folder_files(folder, IMAGE_SUFFIXES):
        first = names.setdefault(file.stem, file)
        if first is not file:
            raise InvalidInputError(f"{first} and {file} have the same name, by which images are "
                                    "matched; rename one")
    found: dict[str, Pixels] = {}
    for name, file in track(names.items(), f"reading {folder}", "pictures"):
        try:
            found[name] = read_untrusted(file, least=least).rgb
        except InvalidInputError as error:
            say(f"skipped: {error}")
    if not found:
        raise InvalidInputError(f"no picture in {folder} can be read; correct the path, or add "
                                "pictures")
    return found


def read_obvious(text: str | None) -> ObviousPairs | str | None:
    """Return the argument `obvious` of `superres.survey.pairs.make_pairs` for a value of --obvious.

    A folder has the obvious answers in its folder `right`, and the other pictures, by the same
    names and of the same sizes, in `wrong`. Raise InvalidInputError if it has not.
    """
    if text is None or text == SHUFFLED:
        return text
    folders = [Path(text) / side for side in (RIGHT, WRONG)]
    if not all(folder.is_dir() for folder in folders):
        raise InvalidInputError(f"--obvious {text} has no folders {RIGHT} and {WRONG}; put the "
                                f"pictures that answer the question into {RIGHT}, and those beside "
                                f"them, by the same names, into {WRONG}; or give {SHUFFLED}")
    right, wrong = (read_folder(folder) for folder in folders)
    names = _shared_names({RIGHT: right, WRONG: wrong}, None)
    return {name: (right[name], wrong[name]) for name in names}


def make_comparisons(
    specs_a: Sequence[Spec], specs_b: Sequence[Spec], path: Path | None, count: int | None,
    seed: int, batch_size: int, device: str, interpolation: str,
) -> list[ComparedMethods]:
    """Return the compared methods with their pictures; all specifications are checked before the
    first decoding.

    There are as many specifications a as b, or one list has a single method, with which all others
    are compared. Without specifications b, the pictures of each method are judged by themselves.
    `path` has the images for methods that are no folders. `count` is the size of a random sample of
    them; None for all. Decoded pictures that are smaller than those of another checkpoint are
    enlarged by `interpolation`, a name in ENLARGEMENTS.

    Raises:
        ConfigError: the comparisons or their settings are not valid, or a method needs `path`.
        CheckpointError: a checkpoint cannot be loaded.
        InvalidInputError: no image is in all folders and in `path` with one size, or one is too
            small for a photograph.
    """
    def compare(methods: dict[str, Method]) -> list[ComparedMethods]:
        a, b = ([methods[spec.name] for spec in specs] for specs in (specs_a, specs_b))
        return compare_methods(a, b) if b else judge_methods(a)

    # all that may be refused
    compare({spec.name: Method(spec.name, {}) for spec in (*specs_a, *specs_b)})
    specs = _by_name([*specs_a, *specs_b], path)
    loaded: dict[str, Upscaler] = {}
    decoders = {spec.name: _load(spec, device, loaded)
                for spec in specs.values() if spec.checkpoint is not None}
    task = _common_task({name: upscaler.face_task for name, (upscaler, _) in decoders.items()})

    # the images that all methods can show
    images = Images({}, {}, task) if path is None else read_images(path, task)
    folders = {spec.name: read_folder(spec.folder)
               for spec in specs.values() if spec.folder is not None}
    names = _shared_names(folders, images.sources if len(folders) < len(specs) else None)
    chosen = names if count is None else choose_images(names, count, seed)

    # their pictures by each method
    methods, record = dict[str, Method](), dict[str, Any]()
    for name, spec in specs.items():
        if spec.folder is not None:
            made, record = [folders[name][image] for image in chosen], {"folder": str(spec.folder)}
        elif name == CAMERA:
            made, record = _photographs(images, chosen), {"photographs": True}
        else:
            sources = np.stack([images.sources[image] for image in chosen])
            if spec.enlargement is not None:
                made = [*task.enlarge(sources, spec.enlargement)]
                record = {"enlargement": spec.enlargement}
            else:
                made, record = _at_size(*_decode(spec, *decoders[name], sources, batch_size), task,
                                        interpolation, name)
        methods[name] = Method(name, dict(zip(chosen, made, strict=True)), record)
    return compare(methods)


def _by_name(given: Sequence[Spec], path: Path | None) -> dict[str, Spec]:
    """Return specifications by name; raise ConfigError if two methods share one, or a method needs
    the images of `path`."""
    specs: dict[str, Spec] = {}
    for spec in given:
        require(specs.setdefault(spec.name, spec) == spec,
                f"two different methods are named {spec.name!r}; tell them apart with name=")
        require(spec.folder is not None or path is not None,
                f"the method {spec.name!r} makes pictures of images; give --images")
    return specs


def _at_size(pictures: list[Pixels], record: dict[str, Any], task: FaceTask,
             interpolation: str, name: str) -> tuple[list[Pixels], dict[str, Any]]:
    """Return a method's pictures in the size of a study's, and their record, which says so."""
    if len(pictures[0]) == task.target:
        return pictures, record
    say(f"the pictures of {name} are enlarged to {task.target_size} by --interpolation "
        f"{interpolation}")
    enlarged = [*task.enlarge(np.stack(pictures), interpolation)]
    return enlarged, {**record, "enlargement": interpolation}


def _common_task(tasks: dict[str, FaceTask]) -> FaceTask:
    """Return the sizes of a study's images, those of the largest outputs in `tasks`, the sizes of
    each checkpoint.

    Without a checkpoint, they are those of a network by default. Even pictures of the size between
    two stages are reduced to the input, so that all images are of one kind.
    """
    if not tasks:
        return FaceTask.of(ModelConfig())
    name, largest = max(tasks.items(), key=lambda item: item[1].target)
    for other, task in tasks.items():
        require(task.source == largest.source, f"the method {other!r} enlarges {task.source_size}, "
                f"{name!r} {largest.source_size}; choose checkpoints of the same input size")
    return replace(largest, between=())


def _shared_names(folders: dict[str, dict[str, Pixels]],
                  sources: dict[str, Pixels] | None) -> list[str]:
    """Return the names of the images that all methods can show; name and skip the others."""
    known = {name: set(pictures) for name, pictures in folders.items()}
    if sources is not None:
        # `sources` may have more images than the folders, but not fewer.
        known["--images"] = set(sources).intersection(set().union(*known.values()) if known
                                                      else sources)
    shared = set.intersection(*known.values())
    for name, own in known.items():
        if missing := sorted(set().union(*known.values()) - own):
            say(f"skipped: {name} lacks {', '.join(map(printable, missing))}")
    if not shared:
        raise InvalidInputError(f"{' and '.join(known)} have no image in common; give the pictures "
                                "of one image the same file name in each")
    same = same_size(folders, sorted(shared)) if folders else sorted(shared)
    if differing := sorted(shared.difference(same)):
        say(f"skipped: {', '.join(map(printable, differing))}, which differ in size between "
            "methods")
    return same


def _photographs(images: Images, names: Sequence[str]) -> list[Pixels]:
    small = [name for name in names if name not in images.photographs]
    if small:
        raise InvalidInputError(f"{len(small)} of the images (such as {small[0]}) are under "
                                f"{images.task.target_size}, too small to stand for photographs; "
                                f"give larger ones, or leave out {CAMERA}")
    return [images.photographs[name] for name in names]


def training_of(checkpoint: str) -> str | None:
    """Return how the prediction heads of a checkpoint were trained, by its `training.jsonl`; None
    without that file.

    "fine-tuned": heads were trained together with the base at least once; "frozen base": only on a
    frozen base; "no heads": never.
    """
    from superres.checkpoint import find_checkpoint, read_training

    rows = read_training(find_checkpoint(checkpoint))
    frozen = [row["settings"]["freeze_base"] for row in rows if row["stage"] != "base"]
    return (None if not rows else "no heads" if not frozen else "frozen base" if all(frozen)
            else "fine-tuned")


def _load(spec: Spec, device: str, loaded: dict[str, Upscaler]) -> tuple[Upscaler, DecodeConfig]:
    """Return the checkpoint of a method, from `loaded` if it is there, and its decoding
    settings."""
    from superres.pipeline.upscaler import Upscaler

    name = str(spec.checkpoint)
    if name not in loaded:
        loaded[name] = Upscaler.load(name, device)
    try:
        upscaler = loaded[name] if spec.size is None else loaded[name].at_size(spec.size)
        options = upscaler.options(**spec.settings)
        # refuses what the checkpoint does not support
        resolve_options(options, upscaler, spec.samples)
        return upscaler, options
    except ConfigError as error:
        raise ConfigError(f"the method {spec.name!r}: {error}") from error


def _decode(
    spec: Spec, upscaler: Upscaler, options: DecodeConfig, sources: Pixels, batch_size: int,
) -> tuple[list[Pixels], dict[str, Any]]:
    """Decode `sources`, uint8 [N, source, source, 3]; return the pictures and their record.

    The record has the mean accepted block size of all stages together, and in "stages" that of
    each.
    """
    from superres.decoding.trace import mean_accepted_block_size

    title = f"decoding {spec.name}"
    if spec.samples == 1:
        results = draw_samples(sources, upscaler, options, [1], batch_size, title)
    else:
        results = [upscaler(sources[start:start + batch_size], options, samples=spec.samples,
                            keep=KEEPS[0])
                   for start in track(range(0, len(sources), batch_size), title, "batches")]

    # what made them
    stages = [[trace for result in parts for trace in result.traces]
              for parts in zip(*(result.stages for result in results), strict=True)]
    record: dict[str, Any] = {
        "checkpoint": upscaler.name, "revision": upscaler.revision, "engine": upscaler.engine,
        "config": resolve_options(options, upscaler).to_dict(),
        "training": training_of(str(spec.checkpoint)),
        "mean_accepted_block_size": mean_accepted_block_size(list(chain(*stages)))}
    if spec.samples > 1:
        record["samples"] = spec.samples
    if len(stages) > 1:
        record["stages"] = [{"size": part.images.shape[1],
                             "mean_accepted_block_size": mean_accepted_block_size(traces)}
                            for part, traces in zip(results[0].stages, stages, strict=True)]
    return [picture for result in results for picture in result.images], record
