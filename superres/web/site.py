"""The static page, which draws faces with the engine in the visitor's browser: any static host
serves its folder."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from superres.config import DecodeConfig
from superres.pictures.mark import marked
from superres.pictures.read import Picture, Pixels
from superres.pictures.write import encode_png
from superres.pipeline.upscaled import Upscaled
from superres.pipeline.upscaler import Upscaler
from superres.system.output import prepare_folder, write_result
from superres.tasks.faces import FaceTask, image_key
from superres.tasks.photos import choose_crops, input_of, largest
from superres.web.content import HOW, LIMITS, TITLE, box_view, face_styles, introduction
from superres.web.draft_view import TAB, draft_view
from superres.web.faces import PEOPLE, first_view, sampled
from superres.web.finder_file import finder_file

ELEMENTS = ("base", "edits", "emoji", "photo", "paint", "crop", "race", "stepper", "viewer",
            "draft")
"""Scripts and styles of `static/` that the page shares with the server's page, as they are."""
LATER, GAME = ("race", "stepper", "viewer"), "draft"
"""Those of them that the page loads with the engine, since it draws what they show, and that of the
tab of the game, which is loaded with it."""
SCRIPTS = "site.js", "pictures.js", "photos.js", "finder.js"
"""Modules of the page; superres.js, the engine, is another one."""
FINDER = "finder.bin"
"""What finder.js reads when a visitor gives a photo."""
ENGINE = "weights.bin", "superres-wasm32.wasm", "superres-wasm32-relaxed.wasm"
"""Files that a visitor loads by starting the engine: the first one, and one of the others."""
BLOCK = 4
"""Pixel values per step of the faces that the page draws. One per step would be as fast on the one
thread of a browser, but the page shows what blocks save."""
SPEED = "A face takes about 1 s on a PC, and a few seconds on a phone."
LICENCES = {"celeba-non-commercial-research": "trained on CelebA, for non-commercial research only"}
"""What the names of licences in model cards mean."""
AROUND = 1.5  # side of the part of a photograph that the page has, over the side of its face
EMBEDDING = "element.js", "element.d.ts", "superres.d.ts", "README.md"
"""Files for other pages and for hosts, which a visitor of this page never loads."""
STATIC, SITE = (Path(__file__).with_name(name) for name in ("static", "site"))


def write_page(folder: Path, task: FaceTask, stages: int, heads: int, checkpoint: Path,
               examples: Mapping[str, Pixels], first: Mapping[str, Any]) -> None:
    """Write the page into `folder`, which has the engine's files: superres.js, `ENGINE`,
    and those for other pages.

    `examples` are those of `superres.web.content.examples_of`, uint8 [H, W, 3]; their files are
    lossless, so their inputs are those of the server's page. `heads` is the number of
    prediction heads of the first stage, `checkpoint` the folder of the weights, and `first` the
    value of `first_faces`.
    """
    write_result(folder / "README.md", card_of(task, checkpoint).encode())
    shared = [path for name in ELEMENTS for path in (STATIC / f"{name}.js", STATIC / f"{name}.css")
              if path.is_file()]
    for path in (*shared, SITE / "site.css", *(SITE / name for name in SCRIPTS)):
        write_result(folder / path.name, path.read_bytes())
    write_result(folder / FINDER, finder_file())
    write_result(folder / "faces.css", face_styles(task.target).encode())
    view = {**box_view(task, stages, examples, ["card"]), "first": first, "block": BLOCK}
    prepare_folder(folder / "examples")
    for (name, image), shown in zip(examples.items(), view["examples"], strict=True):
        part, square = part_of(image, task)
        shown.update(file=f"examples/{name}.png", square=square)
        write_result(folder / shown["file"], encode_png(Picture(part), None))
    names, game = [path.name for path in shared], draft_view(task, heads, examples)
    write_result(folder / "index.html",
                 html_of(folder, task, checkpoint, view, names).encode())
    write_result(folder / "game.json", json.dumps(game).encode())
    write_worker(folder)


def first_faces(upscaler: Upscaler, image: Pixels) -> dict[str, Any]:
    """Return the faces of an example with which the page begins, as the engine in the browser
    draws them: `BLOCK` values per step."""
    chosen = upscaler.default.changed({"block_size": BLOCK, "adaptive": False})
    task = upscaler.face_task
    source = input_of(image, choose_crops(image, task)[0], task)

    def draw(options: DecodeConfig, numbers: Sequence[int]) -> Upscaled:
        keys = [image_key(source, number) for number in numbers]
        return upscaler.decode(source[None].repeat(len(keys), axis=0), options, keys=keys)

    return first_view(upscaler, chosen, draw(chosen, [1]), draw(sampled(chosen), PEOPLE))


def part_of(image: Pixels, task: FaceTask) -> tuple[Pixels, list[int] | None]:
    """Return the part of a photograph around its largest face, turned as the face is, and the
    face's square in it.

    The square is left, top and side. A picture of the input's size has none.
    """
    if task.is_source(image):
        return image, None
    crop, (height, width) = largest(choose_crops(image, task)), image.shape[:2]
    around = (replace(crop, left=crop.left - margin, top=crop.top - margin,
                      size=crop.size + 2 * margin)
              for margin in range(int((AROUND - 1) / 2 * crop.size), 0, -1))
    part = next((square for square in around if not square.beyond(height, width)), crop)
    pixels = part.take(image)
    scale = len(pixels) / part.size
    margin = round((crop.left - part.left) * scale)
    return pixels, [margin, margin, round(crop.size * scale)]


def html_of(folder: Path, task: FaceTask, checkpoint: Path, view: Mapping[str, Any],
            shared: list[str]) -> str:
    """Return index.html; `shared` are the names of scripts and styles in the order in which they
    are loaded."""
    headline, text = introduction(task)
    weights, *modules = (folder / name for name in ENGINE)
    size = weights.stat().st_size + max(path.stat().st_size for path in modules)
    later = [name for name in shared if Path(name).stem in LATER]
    shared = [name for name in shared if Path(name).stem not in (*LATER, GAME)]
    styles = [name for name in shared if name.endswith(".css")]
    links = [f'<link rel="stylesheet" href="{name}">' for name in ("faces.css", "site.css",
                                                                   *styles)]
    links += [f'<script defer src="{name}"></script>' for name in shared if name.endswith(".js")]
    return Template((SITE / "index.html").read_text(encoding="utf-8")).substitute(
        title=TITLE, headline=headline, introduction=text, size=f"{size / 1e6:.1f} MB", speed=SPEED,
        notice=escape(notice_of(checkpoint)), icon=escape(view["examples"][0]["icon"]),
        view=escape(json.dumps(view)), tab=TAB,
        xmp=escape(marked().decode()),
        later=" ".join(later),
        how=HOW.read_text(encoding="utf-8").replace("h3", "h2"),
        limits="".join(f"<p>{escape(part)}</p>" for part in LIMITS.split("\n\n")),
        links="\n".join([*links, '<script type="module" src="site.js"></script>']))


def notice_of(checkpoint: Path) -> str:
    """Return what the page says of the licence of the weights in a folder."""
    names = licence_of(checkpoint)
    licence = (names.get("license_name") or names.get("license")
               or "unknown; ask whoever trained them")
    return (f"The weights ({checkpoint.resolve().name}): "
            f"{LICENCES.get(licence, f'licence {licence}')}.")


def card_of(task: FaceTask, checkpoint: Path) -> str:
    """Return README.md of the folder, whose head is that of a Space of Hugging Face."""
    (headline, _), names = introduction(task), licence_of(checkpoint)
    licence = "\n".join(f"{key}: {name}" for key, name in names.items()) or "license: unknown"
    return Template((SITE / "README.md").read_text(encoding="utf-8")).substitute(
        title=json.dumps(headline), headline=headline, licence=licence,
        notice=notice_of(checkpoint))


def licence_of(checkpoint: Path) -> dict[str, str]:
    """Return what the model card in a folder of weights says of their licence: "license",
    "license_name"."""
    card = checkpoint / "README.md"
    text = card.read_text(encoding="utf-8") if card.is_file() else ""
    return dict(re.findall(r"^(license|license_name): (.*\S)", text, re.MULTILINE))


def write_worker(folder: Path) -> None:
    """Write the service worker, which keeps the files in `folder` under a digest of all of them."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name
                   not in ("service-worker.js", *EMBEDDING))
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(folder).as_posix()} {path.stat().st_size}\n".encode()
                      + path.read_bytes())
    later = *ENGINE, FINDER
    names = ["./",
             *(path.relative_to(folder).as_posix() for path in files if path.name not in later)]
    values = {"NAME": digest.hexdigest()[:16], "FILES": names, "LATER": later}
    constants = "".join(f"const {name} = {json.dumps(value)};\n" for name, value in values.items())
    write_result(folder / "service-worker.js",
                 constants.encode() + (SITE / "service-worker.js").read_bytes())
