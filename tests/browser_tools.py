"""What the tests in a browser share: tabs, pictures in addresses, and the rules of WCAG AA."""

import base64
import io

import numpy as np
from axe_playwright_python.sync_playwright import Axe
from PIL import Image
from playwright.sync_api import TimeoutError
from web_demo import FACES, LABELS

from superres.pictures.read import read_image

WCAG = {"runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa",
                                              "wcag22aa"]}}
PATIENCE = 180_000
"""Milliseconds until a step of the browser fails: no test measures time, and a busy machine is
slow."""


def is_failure(message):
    """Return whether a message of the console is an error; that the server refuses a request is
    tested on purpose."""
    return message.type == "error" and not message.text.startswith("Failed to load resource")


def open_tab(page, name):
    """Choose a tab; on a narrow screen it may be behind the button with the dots."""
    tab = page.get_by_role("tab", name=name)
    if tab.is_visible():
        tab.click()
    else:
        page.locator(".overflow-menu > button").click()
        page.locator(".overflow-dropdown").get_by_text(name, exact=True).click()


def upload(page, path):
    """Give the paint box a picture of the visitor's."""
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Photo", exact=True).click()
    chooser.value.set_files(path)


def give(page, how, name, content, kind=""):
    """Paste a file into the paint box, or drop it there; `kind` is its type, if the browser knows
    one."""
    page.evaluate("""([how, name, content, type]) => {
        const bytes = Uint8Array.from(atob(content), letter => letter.charCodeAt(0)), files = new DataTransfer();
        files.items.add(new File([bytes], name, {type}));
        const box = document.querySelector("superres-paint"), options = {bubbles: true, cancelable: true};
        box.dispatchEvent(how === "paste" ? new ClipboardEvent(how, {...options, clipboardData: files})
            : new DragEvent(how, {...options, dataTransfer: files}));
    }""", [how, name, base64.b64encode(content).decode(), kind])


def choose_face(page, number):
    """Choose the example of a face, from 0, and wait until the paint box has its pixels."""
    page.get_by_role("button", name=LABELS[number]).click()
    pixels = read_image(FACES[number]).reshape(-1, 3)
    page.wait_for_function("""colours => [...document.querySelectorAll(".sr-cells [role=gridcell]")].every((cell, at) =>
        cell.ariaLabel.endsWith(colours[at]))""", arg=[bytes(pixel).hex() for pixel in pixels])


def picture(uri):
    """Return the picture in a data URI."""
    return Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2])))


def seen(page):
    """Return the large pictures as the screen shows them, uint8 [H, W, 3], without their names."""
    frame = page.locator(".sr-split")
    frame.evaluate("""frame => {
        frame.querySelectorAll(".sr-name").forEach(name => name.hidden = true);
        return Promise.all([...frame.querySelectorAll("img")].map(image => image.decode()));
    }""")
    screen = np.asarray(Image.open(io.BytesIO(frame.screenshot())).convert("RGB"))
    frame.evaluate("frame => frame.querySelectorAll('.sr-name').forEach(name => name.hidden = "
                   "false)")
    # may begin within a pixel of the screen; pictures begin with a whole one
    box = frame.bounding_box()
    left, top = (round(box[name] % 1) for name in "xy")
    return screen[top:top + round(box["height"]), left:left + round(box["width"])]


def check_wcag(page, name, selector=None):
    """Assert that axe-core finds no violation of WCAG AA in the page, or in what `selector`
    finds."""
    checked = Axe().run(page, selector, WCAG).response
    assert "color-contrast" in {rule["id"] for rule in checked["passes"]}
    assert [(rule["id"], [node["html"] for node in rule["nodes"]])
            for rule in checked["violations"]] == [], name


def bar_of(page, button):
    """Return the bar with a button."""
    return page.locator(".sr-actions").filter(has=page.locator(button))


def decode(page, button):
    """Press a button, and wait until its decoding has ended."""
    before = bar_of(page, button).evaluate("""bar => {
        window.ended ??= 0;
        bar.watched ??= new MutationObserver(() => { window.ended += ["fresh", "stale"].includes(bar.dataset.state) });
        bar.watched.observe(bar, {attributeFilter: ["data-state"]});
        return window.ended;
    }""")
    page.click(button)
    page.wait_for_function("before => ended > before", arg=before)


def upscale(page):
    """Draw a face, and wait until the page shows the finished one."""
    decode(page, "#run")
    page.get_by_text("The mean of 2 pictures, sharpened").wait_for()


def see_as_drawn(page):
    """Choose the face as the model drew it, for this result and the next ones of the page."""
    page.get_by_role("radio", name="As the model drew it").check()


def begin_batch(page):
    """Press the button until the batch begins: the page lists a file before its button sends it."""
    for _ in range(20):
        page.click("#run-batch")
        try:
            page.wait_for_selector("#batch-state .sr-progress", timeout=5000)
        except TimeoutError:
            continue
        return
    raise AssertionError("no batch has begun")
