"""Draw the pictures of `docs/web-demo.md`: the page with a checkpoint, as Chromium shows it.

    python scripts/draw_page.py

The faces are the page's examples: photographs of people, and those of `scripts/faces`. Chromium
must be installed.
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from PIL import Image
from playwright.sync_api import Page, sync_playwright

from measurements import Checkpoint, run
from superres.config import DEFAULT_CASCADE
from superres.errors import ConfigError
from superres.pictures.mark import marked
from superres.system.output import prepare_folder, write_result

ROOT = Path(__file__).parent.parent
FACES = sorted((ROOT / "scripts" / "faces").glob("*.png"))
FIRST_DRAWN = "Cropped hair (drawn)"
CHIPS = "Red cap", "Sunglasses", "Beard", "Older", "Mix two people", "Face of the day"
"""What is done with the first drawn face, one after another."""
DRAWN = """before => document.querySelector(".sr-cells").innerHTML !== before
    && document.querySelector(".sr-paint").dataset.state === "drawn"
    && document.querySelector(".sr-others img")"""
"""Whether the faces of new pixels are all there."""
PATIENCE = 300  # seconds for each step, on a busy machine
SENTENCES = "A small dog runs through deep snow.\nTwo women are sitting on a bench in the park."
BROKEN = """() => {
    for (const stepper of [...document.querySelectorAll("#results superres-stepper")].reverse()) {
        const middle = stepper.steps.length >> 1;
        const step = stepper.steps.findIndex(
            (one, at) => at > middle && one.accepted === 2 && one.broken);
        if (step >= 0) {
            stepper.show(step + 1);
            return stepper;
        }
    }
    return document.querySelector("#results superres-stepper");
}"""
"""Shows a step in the middle of a decode that accepts two tokens and rejects a third one; returns
its element."""


@contextmanager
def served(checkpoint: str) -> Iterator[str]:
    """Serve the page, and yield its address."""
    command = [sys.executable, str(ROOT / "app.py"), "--port", "0", "--checkpoint", checkpoint]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            found = re.search(r"open (\S+) ", process.stdout.readline() if process.stdout else "")
            if found is None:
                raise ConfigError(f"the page with the checkpoint {checkpoint} cannot be served; "
                                  "see the message above")
            yield found[1]
        finally:
            process.terminate()


def decode(page: Page, button: str) -> None:
    """Press a button, and wait until its decoding has ended and the page shows its results."""
    page.locator(".sr-actions").filter(has=page.locator(button)).evaluate("""bar => {
        window.ended = false;
        new MutationObserver(() => { ended ||= bar.dataset.state === "fresh"; }).observe(
            bar, {attributeFilter: ["data-state"]}); }""")
    page.click(button)
    page.wait_for_function("ended")


def decode_face(page: Page, button: str) -> None:
    """Decode a face, and wait until the page shows the finished one."""
    decode(page, button)
    page.locator("#results .sr-right", has_text="Finished").wait_for()


def paint(page: Page, change: Callable[[], None]) -> None:
    """Change the pixels of the paint box, and wait for the faces."""
    before = page.inner_html(".sr-cells")
    change()
    page.wait_for_function(DRAWN, arg=before)


def draw_chips(page: Page, output: Path) -> None:
    """Draw the paint box after each of some chips, as one moving picture."""
    paint(page, lambda: page.get_by_role("button", name=FIRST_DRAWN).click())
    box, frames = page.locator("superres-paint"), list[bytes]()
    frames.append(box.screenshot())
    for name in CHIPS:
        paint(page, page.get_by_role("button", name=name, exact=True).click)
        frames.append(box.screenshot())
    pictures = [Image.open(io.BytesIO(frame)).convert("RGB") for frame in frames]
    content = io.BytesIO()
    pictures[0].save(content, "WEBP", save_all=True, append_images=pictures[1:], loop=0, quality=80,
                     method=6, duration=[1500, *[1200] * (len(pictures) - 2), 2500],
                     xmp=marked())
    write_result(output / "demo-paint.webp", content.getvalue())
    print(output / "demo-paint.webp", flush=True)


def draw_faces(page: Page, output: Path) -> None:
    """Draw the Upscale tab: the paint box, a result, samples, a race, and a step."""
    page.wait_for_selector("#preview figure", state="attached")
    paint(page, lambda: page.get_by_role("button", name="Smiley").click())
    save(page.locator("superres-paint").screenshot(), output / "demo-paint-smiley.webp")
    draw_chips(page, output)
    page.get_by_role("button", name="Astronaut").click()
    page.get_by_role("button", name="Move the frame").wait_for()
    decode_face(page, "#run")
    save(page.screenshot(), output / "demo-upscale.webp")
    page.set_viewport_size({"width": 1280, "height": 3000})  # the bar is below what is drawn
    save(page.evaluate_handle(BROKEN).as_element().screenshot(), output / "demo-steps.webp")
    page.locator("#results summary", has_text="Step through it").click()  # folded from now on
    decode(page, "#draw")
    save(page.locator(".sr-columns").first.screenshot(), output / "demo-samples.webp")
    page.set_viewport_size({"width": 1280, "height": 1100})
    decode_face(page, "#race")
    save(page.screenshot(), output / "demo-race.webp")


def draw_batch(page: Page, output: Path) -> None:
    """Draw the Batch tab with two faces, and a file that is no picture."""
    page.get_by_role("tab", name="Batch").click()
    with page.expect_file_chooser() as chooser:
        page.get_by_text("Click to Upload").last.click()
    chooser.value.set_files(
        [*({"name": path.name, "mimeType": "image/png", "buffer": path.read_bytes()}
           for path in FACES[:2]),
         {"name": "notes.png", "mimeType": "image/png", "buffer": b"no picture"}])
    page.wait_for_selector("#files [aria-label='notes.png']")
    decode(page, "#run-batch")
    page.wait_for_selector("#archive a[download]")
    save(page.screenshot(), output / "demo-batch.webp")


def draw_translation(page: Page, output: Path) -> None:
    """Draw the Translate tab, if the page has it."""
    if page.get_by_role("tab", name="Translate").count():
        page.get_by_role("tab", name="Translate").click()
        page.fill("#text textarea", SENTENCES)
        decode(page, "#run-text")
        save(page.screenshot(), output / "demo-translate.webp")


def save(png: bytes, path: Path) -> None:
    """Write a screenshot as WebP."""
    content = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").save(content, "WEBP", quality=90, method=6,
                                                    xmp=marked())
    write_result(path, content.getvalue())
    print(path, flush=True)


def main(
    checkpoint: Checkpoint = DEFAULT_CASCADE,
    output: Annotated[Path, typer.Option(help="Folder for the pictures.")] = ROOT / "docs"
    / "pictures",
) -> None:
    """Draw the pictures of the web demo."""
    browser = (shutil.which("chromium") or shutil.which("chromium-browser")
               or shutil.which("google-chrome"))
    if browser is None:
        raise ConfigError("there is no Chromium; apt-get install chromium")
    prepare_folder(output)
    with served(checkpoint) as address, sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        page = chromium.new_page(viewport={"width": 1280, "height": 1100}, reduced_motion="reduce")
        page.set_default_timeout(1000 * PATIENCE)
        page.goto(address)
        draw_faces(page, output)
        page.set_viewport_size({"width": 1280, "height": 720})
        draw_batch(page, output)
        draw_translation(page, output)
        chromium.close()


if __name__ == "__main__":
    run(main)
