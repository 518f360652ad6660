"""Upscale a few freely licensed faces with the bundled checkpoint and print the speed: `make demo`.

The inputs are free photographs of people, in which the face is found and reduced, and the small
faces in `scripts/faces`, which a model of this project drew.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from measurements import Checkpoint, Device, run
from superres import DecodeConfig, Upscaler
from superres.decoding.trace import RowTrace, mean_accepted_block_size
from superres.errors import ConfigError
from superres.evaluation.examples import photographs
from superres.pictures.read import Picture, Pixels, read_image
from superres.pictures.write import encode_png
from superres.pipeline.choose import fastest_exact
from superres.pipeline.upscaled import Upscaled
from superres.system.output import prepare_folder, write_result
from superres.system.progress import track
from superres.tasks.faces import FaceTask, image_key
from superres.tasks.photos import choose_crops, largest
from superres.tasks.sheets import contact_sheet

BLOCK = 4
"""Block size of the variant "blocks", which takes the same number of steps with every engine."""
FACES, PHOTOS = (Path(__file__).parent / name for name in ("faces", "photos"))


@dataclass
class Variant:
    """A way to decode, its results of the first round, one per image, and the seconds per image of
    every round.

    `reference` is the name of the variant that makes the same choices one token per step.
    """

    meaning: str
    upscaler: Upscaler
    options: DecodeConfig
    reference: str
    results: list[Upscaled] = field(default_factory=list)
    rounds: list[float] = field(default_factory=list)

    @property
    def images(self) -> list[Pixels]:
        """The picture of each image."""
        return [result.images[0] for result in self.results]

    @property
    def traces(self) -> list[RowTrace]:
        """The traces of all stages of all images."""
        return [trace for result in self.results for trace in result.stage_traces(0)]

    @property
    def seconds(self) -> float:
        """Median seconds per image."""
        return statistics.median(self.rounds)


def read_inputs(task: FaceTask) -> dict[str, np.ndarray]:
    """Return the inputs by name, each uint8 [source, source, 3]: the photographs' faces first, then
    drawn ones."""
    drawn = {path.stem: task.to_source(read_image(path))
             for path in sorted(FACES.glob("face-[1-7].png"))}
    return {**{name: task.source_of(face) for name, face in read_photographs(task).items()},
            **drawn}


def read_photographs(task: FaceTask) -> dict[str, Pixels]:
    """Return the largest face of each photograph by name, uint8 [S, S, 3], as `superres upscale`
    finds it."""
    return {name: largest(choose_crops(photo, task)).take(photo) for name,
            photo in photographs(PHOTOS).items()}


def load_variants(checkpoint: str, device: str) -> dict[str, Variant]:
    """Return the variants by name."""
    upscaler = Upscaler.load(checkpoint, device)
    exact = fastest_exact(upscaler.scoring.adaptive, upscaler.model_config,
                          upscaler.scoring.prediction_heads)
    blocks = exact.changed({"adaptive": False, "block_size": BLOCK})
    epsilon, sample = (exact.changed({"accept": "distance", "epsilon": 2}),
                       exact.changed({"temperature": 0.9}))
    ways = {
        "greedy": ("The likeliest token, one per step.", exact.sequential()),
        "exact": ("The tokens of greedy, as many per step as are fastest here (the default).",
                  exact),
        "blocks": (f"The tokens of greedy, up to {BLOCK} per step: fewer steps, each of which "
                   "takes longer.", blocks),
        "epsilon 2": ("Proposals within 2 grey levels of the model's choice are accepted.",
                      epsilon),
        "sequential": ("A random sample at temperature 0.9, one token per step.",
                       sample.sequential()),
        "sample": ("The tokens of sequential, several per step.", sample)}
    variants = {name: Variant(meaning, upscaler, options,
                              "sequential" if options.temperature else "greedy")
                for name, (meaning, options) in ways.items()}
    try:
        floats = Upscaler.load(checkpoint, device, "native")
    except ConfigError as error:
        print(f"The engine native is left out: {error}", flush=True)
        return variants
    return {**variants, "native": Variant(
        "As exact, in float32 (engine native): a few pixels may differ.", floats, exact, "greedy")}


def decode(variants: dict[str, Variant], sources: Pixels, rounds: int) -> None:
    """Decode one image at a time with every variant in turn, so that other load slows all variants
    alike."""
    for name, variant in variants.items():
        print(f"Preparing {name} ...", flush=True)
        variant.upscaler(sources[:1], variant.options)  # caches are made before the time counts
    print(f"Decoding {len(sources)} faces with each of them, in {rounds} rounds ...", flush=True)
    for number in track(range(rounds), "decoding", "rounds"):
        seconds = dict.fromkeys(variants, 0.0)
        for source in sources:
            for name, variant in variants.items():
                result = variant.upscaler.decode(source[None], variant.options,
                                                 keys=[image_key(source, 1)])
                seconds[name] += result.seconds
                if number == 0:
                    variant.results.append(result)
        for name, variant in variants.items():
            variant.rounds.append(seconds[name] / len(sources))


def earlier_stages(variant: Variant) -> list[Pixels]:
    """Return the pictures that each stage before the last one drew, uint8 [N, target, target,
    3]."""
    by_stage = zip(*(result.stages[:-1] for result in variant.results), strict=True)
    drawn = [np.concatenate([result.images for result in stage]) for stage in by_stage]
    return [variant.upscaler.face_task.enlarge(images, "nearest") for images in drawn]


def draw_sheet(variants: dict[str, Variant], inputs: dict[str, np.ndarray]) -> Pixels:
    """Return the sheet of all inputs, one per column: pictures of each way by row, and at last the
    photographs."""
    upscaler = variants["greedy"].upscaler
    task, sources = upscaler.face_task, np.stack(list(inputs.values()))
    photos = read_photographs(task)
    none = np.full((task.target, task.target, 3), 255, np.uint8)
    truth = [task.target_of(photos[name]) if name in photos else none for name in inputs]
    stages = earlier_stages(variants["greedy"])
    rows = {f"input,\n{task.source_size}": task.enlarge(sources, "nearest"),
            "Lanczos": task.enlarge(sources, "lanczos"),
            **{f"stage {number},\n{size}x{size}": drawn
               for number, (size, drawn) in enumerate(zip(task.between, stages, strict=True), 1)},
            **{f"{name},\n{task.target_size}": variants[name].images
               for name in ("greedy", "epsilon 2", "sample")},
            "the photo": truth}
    columns = {name.replace("-", " ").title() if name in photos
               else f"drawn {name[-1]}": np.stack(pictures)
               for name, *pictures in zip(inputs, *rows.values(), strict=True)}
    return contact_sheet(columns, 2, 32, list(rows))


def table_lines(variants: dict[str, Variant]) -> Iterator[str]:
    """Yield the table, and a sentence on each variant."""
    yield f"{'':11}  seconds per image  tokens per step  speed-up"
    for name, variant in variants.items():
        speed_up = (f"{variants[variant.reference].seconds / variant.seconds:.2f} over "
                    f"{variant.reference}")
        mean = mean_accepted_block_size(variant.traces)
        yield (f"{name:11}  {variant.seconds:17.3f}  {mean:15.2f}  "
               f"{'1.00' if name == variant.reference else speed_up}")
    yield ""
    for name, variant in variants.items():
        yield f"{name:11}  {variant.meaning}"


def main(
    output: Annotated[Path, typer.Option(help="Folder for the pictures.")] = Path("demo"),
    checkpoint: Checkpoint = "celeba-8to64",
    device: Device = "auto",
    sheet: Annotated[Path | None, typer.Option(help="File for the sheet. [default: sheet.png in "
                                               "that folder]")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of measurement; their medians are "
                                        "printed.")] = 3,
) -> None:
    """Upscale with several variants of decoding, one image at a time; write the pictures and print
    the speed."""
    prepare_folder(output)
    print(f"Loading {checkpoint}; with a new processor or version, its decoding step is compiled "
          "first ...", flush=True)
    variants = load_variants(checkpoint, device)
    upscaler = variants["greedy"].upscaler
    inputs = read_inputs(upscaler.face_task)
    sources = np.stack(list(inputs.values()))
    decode(variants, sources, rounds)
    for name in ("epsilon 2", "sample"):
        for face, image in zip(inputs, variants[name].images, strict=True):
            record = upscaler.record(variants[name].options)
            write_result(output / f"{face}-{name.replace(' ', '-')}.png",
                         encode_png(Picture(image), record))
    sheet = sheet or output / "sheet.png"
    write_result(sheet, encode_png(Picture(draw_sheet(variants, inputs)),
                                   {"checkpoint": upscaler.name}), "--sheet")
    print(f"\nOne image at a time, {upscaler.name}@{upscaler.revision}, {upscaler.device}, engine "
          f"{upscaler.engine}:")
    print("\n".join(table_lines(variants)))
    print(f"\nPictures: {output}/*.png; side by side: {sheet}")


if __name__ == "__main__":
    run(main)
