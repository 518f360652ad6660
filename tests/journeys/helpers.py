"""What the journeys share: tabs, decodes, pictures on the screen, the paint box, the drafter's
game, and the rules of WCAG AA."""

import base64
import io
import json
import time

import numpy as np
from axe_playwright_python.sync_playwright import Axe
from PIL import Image
from skimage import data

from superres.pictures.read import read_image
from superres.pictures.write import read_origin
from superres.survey.pairs import SHUFFLED, Method, compare_methods, judge_methods, make_pairs
from superres.survey.study import JUDGING, StudySettings
from superres.system.output import short_digest
from superres.tasks.faces import image_key
from superres.web.content import OTHERS
from tests.survey.helpers import wait_for_pair
from tests.web.helpers import FACES, LABELS

WCAG = {"runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa",
                                              "wcag22aa"]}}
PATIENCE = 180_000
"""Milliseconds until a step of the browser fails: no test measures time, and a busy machine is
slow."""
SHOWN = "#results superres-viewer .sr-after"
DIVIDER = "Divider between the two pictures"
FINISHED = "The mean of 2 pictures, sharpened"
SIDE = 8
"""Pixels of a side of the paint box."""
TARGET = 44
"""Smallest side of a control, in CSS pixels; a checkbox is as large as its label, which can be
clicked too."""
SMALL_TARGETS = """least => [...document.querySelectorAll('button, input, a, summary')].map(
    element => [element.id || element.outerHTML,
        (element.closest('label') ?? element).getBoundingClientRect()]).filter(
    ([, box]) => box.width && (box.width < least || box.height < least)).map(([name]) => name)"""
GREY = "rgb(128, 128, 128)"


def is_failure(message):
    """Return whether a message of the console is an error; that the server refuses a request is
    tested on purpose."""
    return message.type == "error" and not message.text.startswith("Failed to load resource")


# The screen


def check_wcag(page, name, selector=None):
    """Assert that axe-core finds no violation of WCAG AA in the page, or in what `selector`
    finds."""
    page.mouse.move(0, 0)
    # colours fade
    until(page, "document.getAnimations().every(one => one.playState !== 'running')")
    checked = Axe().run(page, selector, WCAG).response
    assert "color-contrast" in {rule["id"] for rule in checked["passes"]}
    found = [(rule["id"], [node["html"] for node in rule["nodes"]])
             for rule in checked["violations"]]
    assert found == [], f"{name}: {found}"


def check_fits(page, width):
    """Assert that nothing scrolls sideways."""
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def picture(uri):
    """Return the picture in a data URI."""
    return Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2])))


def pixels(uri):
    """Return the pixels of a data URI, uint8 [H, W, 3]."""
    return np.asarray(picture(uri).convert("RGB"))


def shown(page, side=SHOWN):
    """Return the large picture of a side, uint8 [H, W, 3]."""
    return pixels(page.get_attribute(side, "src"))


def seen(page):
    """Return the large pictures as the screen shows them, uint8 [H, W, 3], without their names."""
    frame = page.locator(".sr-split")
    frame.evaluate("""frame => {
        frame.querySelectorAll(".sr-name").forEach(name => name.style.visibility = "hidden");
        return Promise.all([...frame.querySelectorAll("img")].map(image => image.decode()));
    }""")
    screen = np.asarray(Image.open(io.BytesIO(frame.screenshot())).convert("RGB"))
    frame.evaluate("frame => frame.querySelectorAll('.sr-name').forEach("
                   "name => name.style.visibility = '')")
    # may begin within a pixel of the screen; pictures begin with a whole one
    box = frame.bounding_box()
    left, top = (round(box[name] % 1) for name in "xy")
    return screen[top:top + round(box["height"]), left:left + round(box["width"])]


def drag(page, start, end):
    page.mouse.move(*start)
    page.mouse.down()
    page.mouse.move(*end, steps=4)
    page.mouse.up()


def open_tab(page, name):
    """Choose a tab; on a narrow screen it may be behind the button with the dots."""
    tab = page.get_by_role("tab", name=name)
    if tab.is_visible():
        tab.click()
    else:
        page.locator(".overflow-menu > button").click()
        page.locator(".overflow-dropdown").get_by_text(name, exact=True).click()


# Inputs


def upload(page, path):
    """Give the paint box a picture of the visitor's."""
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Photo", exact=True).click()
    chooser.value.set_files(path)


def use_face(page):
    """Accept the frame of a photo, when it is there."""
    page.get_by_role("button", name="Use this face").click()


def give(page, how, name, content, kind=""):
    """Paste a file into the paint box, or drop it there; `kind` is its type, if the browser knows
    one."""
    page.evaluate("""([how, name, content, type]) => {
        const bytes = Uint8Array.from(atob(content), letter => letter.charCodeAt(0));
        const files = new DataTransfer(), options = {bubbles: true, cancelable: true};
        files.items.add(new File([bytes], name, {type}));
        document.querySelector("superres-paint").dispatchEvent(how === "paste"
            ? new ClipboardEvent(how, {...options, clipboardData: files})
            : new DragEvent(how, {...options, dataTransfer: files}));
    }""", [how, name, base64.b64encode(content).decode(), kind])


def choose_face(page, number):
    """Choose the example of a face, from 0, and wait until the paint box has its pixels."""
    page.get_by_role("button", name=LABELS[number]).click()
    wait_for_pixels(page, read_image(FACES[number]))


def wait_for_pixels(page, source):
    """Wait until the paint box has pixels, uint8 [8, 8, 3]."""
    page.wait_for_function("""colours => [...document.querySelectorAll(
        ".sr-cells [role=gridcell]")].every((cell, at) => cell.ariaLabel.endsWith(colours[at]))""",
                           arg=[bytes(pixel).hex() for pixel in source.reshape(-1, 3)])


def choose_astronaut(page):
    """Choose the photo among the examples, and wait for its frame, which is accepted."""
    page.get_by_role("button", name="Astronaut").click()
    page.get_by_role("button", name="Move the frame").wait_for()


# Decodes


def bar_of(page, button):
    """Return the bar with a button."""
    return page.locator(".sr-actions").filter(has=page.locator(button))


def decode(page, button="#run"):
    """Press a button, and wait until its decoding has ended."""
    before = bar_of(page, button).evaluate("""bar => {
        window.ended ??= 0;
        bar.watched ??= new MutationObserver(() => {
            window.ended += ["fresh", "stale"].includes(bar.dataset.state);
        });
        bar.watched.observe(bar, {attributeFilter: ["data-state"]});
        return window.ended;
    }""")
    page.click(button)
    page.wait_for_function("before => ended > before", arg=before)


def upscale(page):
    """Draw a face, and wait until the page shows the finished one."""
    decode(page)
    page.get_by_text(FINISHED).wait_for()


def see_as_drawn(page):
    """Choose the face as the model drew it, for this result and the next ones of the page."""
    page.get_by_role("radio", name="As the model drew it").check()


def open_settings(page):
    page.locator("button:visible", has_text="Decoding settings").click()
    page.get_by_label("number input for Block size").locator("visible=true").wait_for()


def draw_sheet(page, count, button="#draw"):
    """Draw a sheet of `count` samples."""
    box = page.get_by_label("number input for Samples on a sheet")
    for _ in range(20):  # a slider that Gradio has only just drawn may take its first value again
        box.fill(str(count))
        box.press("Enter")
        page.wait_for_timeout(250)
        if box.input_value() == str(count):
            break
    decode(page, button)
    assert page.locator("#results .sr-choice").count() == count


def sheet_of(page):
    """Return the names and the pictures of a sheet of samples."""
    cells = page.evaluate("[...document.querySelectorAll('.sr-choice img')].map(e => "
                          "[e.alt, e.src])")
    return [name for name, _ in cells], [pixels(uri) for _, uri in cells]


def kept(page):
    """Return how the pictures of the strip were made, the latest first."""
    return page.locator("superres-kept li > span").all_inner_texts()


def face_for(demo, source, sample=1):
    """Return the face that must be drawn for pixels, uint8 [side, side, 3]."""
    return demo.decoding.upscaler.decode(source[None], keys=[image_key(source, sample)]).images[0]


# The paint box


def cell(page, row, column):
    return page.locator(".sr-cells [role=gridcell]").nth(SIDE * row + column)


def painted(page):
    """Return the pixels of the box, uint8 [8, 8, 3]."""
    names = page.locator(".sr-cells [role=gridcell]").evaluate_all("all => all.map(cell => "
                                                                   "cell.ariaLabel)")
    return np.array([list(bytes.fromhex(name[-6:])) for name in names],
                    np.uint8).reshape(SIDE, SIDE, 3)


def until(page, condition):
    """Wait for a condition in JavaScript: the static page's policy forbids what Playwright's own
    waiting evaluates."""
    end = time.monotonic() + PATIENCE / 1000
    while not page.evaluate(f"() => Boolean({condition})"):
        assert time.monotonic() < end, f"{condition}; the page says {page.inner_text('body')[:600]}"
        time.sleep(0.05)


def drawn(page, others=OTHERS):
    """Wait until the faces of the pixels are there, and return the large one."""
    until(page, "document.querySelector('.sr-paint')?.dataset.state === 'drawn' && "
                f"document.querySelectorAll('.sr-others img').length >= {others}")
    return pixels(page.get_attribute("img.sr-drawn", "src"))


def other_faces(page):
    """Return the small pictures beside the large face, uint8 [N, H, W, 3]."""
    return np.stack([pixels(uri) for uri in page.locator(".sr-others img").evaluate_all(
        "images => images.map(image => image.src)")])


WATCH_ANSWERS = """() => {
    window.answers = [];
    document.addEventListener("superres-answer", ({detail: {kind, question, faces, partial}}) => {
        if (faces && !partial && kind !== "small")
            answers.push([kind, JSON.parse(question).n, faces.length, JSON.parse(question).x]);
    });
}"""
"""Keep the answers of the box that are whole: kind, person, number of faces, pixels."""

FINISH = """question => new Promise(done => {
    const answers = [];
    document.addEventListener("superres-answer", ({detail}) => {
        if (detail.kind !== "finished" || detail.question !== question) return;
        answers.push(detail);
        if (!detail.partial) done(answers);
    });
    document.dispatchEvent(new CustomEvent("superres-ask-finished", {detail: question}));
})"""
"""Asks for a finished face as the box does, and returns the answers."""


def check_finished(page, upscaler, source):
    """The finished face of painted pixels is that of the command, and a sample has none; return the
    answers before it was there."""
    x = base64.urlsafe_b64encode(source.tobytes()).decode().rstrip("=")
    question = {"x": x, "t": 0.7, "s": 0, "n": 0, "turn": -1}
    *partial, answer = page.evaluate(FINISH, json.dumps(question))
    (face,), (expected,) = answer["faces"], upscaler(source[None], finish="mean")
    assert face["digest"] == short_digest(expected.image.tobytes())
    assert face["tokens"] == sum(trace.tokens for trace in expected.traces)
    content = io.BytesIO(base64.b64decode(face["uri"].partition(",")[2]))
    assert read_origin(content, "face")["settings"]["finish"] == "mean"
    (refused,) = page.evaluate(FINISH, json.dumps({**question, "n": 2}))
    assert "only the likeliest face is finished" in refused["error"]
    return partial


# The survey


def add_faces(store, name="faces", **settings):
    """Store a study that compares a face with its blurred versions, and shows all that a study can
    show."""
    face = Image.fromarray(data.astronaut()[:210, 140:350])
    sharp = {f"{side}": np.asarray(face.crop((0, 0, side, side)).resize((32, 32)))
             for side in range(150, 210, 10)}
    blurred = {key: np.asarray(Image.fromarray(value).resize((8, 8)).resize((32, 32))) for key,
               value in sharp.items()}
    made, judged = ([Method("bicubic", blurred, {}), Method("camera", sharp, {})],
                    settings.get("judge", False))
    compared = judge_methods(made) if judged else compare_methods(made[:1], made[1:])
    options = StudySettings(**{**(JUDGING if judged else {}), "trials": 6, "gold": 0, "repeats": 0,
                               "practice": 1, "allow_unsure": not judged, "completion_code": "C0DE",
                               "completion_url": "https://example.org/", **settings})
    return store.create_study(name, options, [comparison for comparison, _, _ in compared], {},
                              make_pairs(compared, options, SHUFFLED if judged else None))


class Screens:
    """A page of a fresh profile, and the assertions that hold for each of its screens."""

    def __init__(self, page, folder, width, scheme):
        self.page, self.folder, self.width = page, folder, width
        self.colour = "rgb(255, 255, 255)" if scheme == "light" else "rgb(20, 20, 20)"

    def check(self, name, colour=None):
        """Assert WCAG AA, that nothing scrolls sideways, that targets are large, and the
        background's colour."""
        page = self.page
        page.screenshot(path=self.folder / f"survey-{name}-{self.width}.png", full_page=True)
        check_wcag(page, name)
        check_fits(page, self.width)
        assert page.evaluate(SMALL_TARGETS, TARGET) == []
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == (colour
                                                                                    or self.colour)

    def says(self, text):
        self.page.locator("#message", has_text=text).wait_for()

    def agree(self, rater=None):
        if rater is not None:
            self.page.fill("#rater", rater)
        self.page.check("#agree")
        self.page.click("#begin")

    def vote(self, first, keys):
        """Vote from the pair `first` on by keys."""
        for position, key in enumerate(keys, first):
            wait_for_pair(self.page, position)
            self.page.keyboard.press(key)
