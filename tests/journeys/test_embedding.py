"""The npm package, installed from the tarball that `npm pack` makes: five lines of HTML draw a
face, on a page whose policy allows no inline styles."""

from __future__ import annotations

import functools
import http.server
import json
import re
import shutil
import subprocess
import threading
from base64 import urlsafe_b64encode
from contextlib import redirect_stderr
from io import StringIO

import numpy as np
import pytest
from PIL import Image

import superres
from superres.cli.main import run as superres_command
from superres.config import DecodeConfig
from superres.pictures.mark import DRAWN
from superres.pictures.read import read_image
from superres.pictures.write import XMP_KEYWORD
from superres.pipeline.browser_export import SCRIPTS
from superres.system.output import short_digest
from superres.tasks.faces import area_reduce, image_key
from superres.web.site import EMBEDDING
from tests.journeys.helpers import PATIENCE, check_wcag, is_failure, picture
from tests.web.helpers import FACES

POLICY = "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'; img-src 'self' data:"
PAGE = """<!doctype html>
<html lang="en">
<title>A face</title>
<script type="module" src="node_modules/superres/element.js"></script>
<super-res src="face.png" base="faces/" accept="distance" epsilon="2"></super-res>
"""
BESIDE = """<!doctype html><html lang="en"><title>A face</title>
<script type="module" src="faces/element.js"></script><super-res src="face.png"></super-res>
"""
NODE = """import * as engine from "superres"; import * as element from "superres/element.js";
console.log(JSON.stringify([engine.VERSION, Object.keys(element)]))"""
INFO = """async () => {
    const {engineOf} = await import("./node_modules/superres/element.js");
    return Object.keys((await engineOf("faces/")).info);
}"""
"""Returns what an engine says of itself."""
MOST_BYTES = 30_000
"""Size of the tarball."""
NOTE = "Drawn by a model: invented detail, not a likeness; never use it to identify anyone."
FACE = "document.querySelector('super-res')"


class Strict(http.server.SimpleHTTPRequestHandler):
    """Answers with the policy, and without a log."""

    def end_headers(self):
        self.send_header("Content-Security-Policy", POLICY)
        super().end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def upscaler():
    return superres.load("celeba-8to64", "cpu", "native-int8")


@pytest.fixture(scope="module")
def source():
    return area_reduce(read_image(FACES[0]), 8, 8)


def printed(*words, **options):
    return subprocess.run(words, check=True, capture_output=True, text=True, **options).stdout


@pytest.fixture(scope="module")
def site(tmp_path_factory, source):
    """A folder with the installed package, an exported one, a picture and pages."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("there is no npm: apt-get install npm")
    folder = tmp_path_factory.mktemp("site")
    run = functools.partial(printed, cwd=folder)
    [packed] = json.loads(run(npm, "pack", "--json", SCRIPTS))
    assert {file["path"] for file in packed["files"]} == {
        path.name for path in SCRIPTS.iterdir() if path.is_file()}
    assert packed["size"] < MOST_BYTES
    run(npm, "install", "--offline", "--no-audit", "--no-fund", f"./{packed['filename']}")
    assert [path.name for path in (folder / "node_modules").glob("[!.]*")] == ["superres"]
    # a page's server may import the package
    assert json.loads(run("node", "--input-type=module", "-e", NODE)) == [
        superres.__version__, ["SuperRes", "engineOf"]]
    with redirect_stderr(StringIO()) as said:
        assert superres_command(["export", "web", str(folder / "faces")]) == 0
    assert "preparing the engine for browsers\nsuperres: packing the weights" in said.getvalue()
    Image.fromarray(source).save(folder / "face.png")
    Image.new("RGB", (64, 48)).save(folder / "wide.png")
    (folder / "index.html").write_text(PAGE)
    (folder / "beside.html").write_text(BESIDE)
    return folder


@pytest.fixture
def page(browser, site, screenshots):
    """A page of a visitor; nobody asks another host, and nothing is said on the console that a test
    does not take."""
    asked, said = [], []
    handler = functools.partial(Strict, directory=site)
    with (http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server,
          browser.new_context(viewport={"width": 390, "height": 844}) as context):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        context.set_default_timeout(PATIENCE)
        page = context.new_page()
        page.url_of = lambda name: f"http://127.0.0.1:{server.server_address[1]}/{name}"
        page.asked, page.said = asked, said
        context.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("console", lambda message: said.append(message.text) if is_failure(message)
                else None)
        yield page
        page.screenshot(path=screenshots / "embedding.png")
        server.shutdown()
    assert {one for one in asked if not one.startswith((page.url_of(""), "data:"))} == set()
    assert said == []


def test_the_exported_folder_is_a_static_space(site):
    """What is for other pages is not what a visitor of its own page loads."""
    card = (site / "faces" / "README.md").read_text(encoding="utf-8")
    head = dict(line.split(": ", 1) for line in card.split("---\n")[1].splitlines())
    assert json.loads(head["title"])
    assert (head["sdk"], head["license"], head["license_name"]) == (
        "static", "other", "celeba-non-commercial-research")
    assert (site / "faces" / head["app_file"]).is_file()
    assert "non-commercial research only" in card
    own = [(site / "faces" / name).read_text(encoding="utf-8")
           for name in ("index.html", "service-worker.js", "site.js")]
    for name in EMBEDDING:
        assert (site / "faces" / name).is_file()
        assert not any(name in text for text in own)


def expected(upscaler, source, **changes):
    """Return the digest of the face that Python draws."""
    options = DecodeConfig(**{"block_size": 10, "consistent": True, **changes})
    result = upscaler.decode(source[None], options, keys=[image_key(source, 1)])
    return short_digest(result.images[0].tobytes())


def caption(page, text):
    page.locator("super-res figcaption").get_by_text(text, exact=True).wait_for()


def digest(page):
    """Wait for the face, and return its digest."""
    caption(page, NOTE)
    return page.evaluate(f"{FACE}.picture.digest")


def changed(page, **attributes):
    """Change the element's attributes at once; None removes one."""
    page.evaluate("""attributes => {
        const face = document.querySelector("super-res");
        for (const [name, value] of Object.entries(attributes))
            if (value === null) face.removeAttribute(name); else face.setAttribute(name, value);
    }""", attributes)


def check_saved_picture(page):
    """What a visitor saves has the drawn pixels, and says that a model drew them."""
    image = page.locator("super-res img")
    assert image.get_attribute("alt") == "A face, drawn by a model"
    saved = picture(image.get_attribute("src"))
    assert short_digest(np.asarray(saved.convert("RGB")).tobytes()) == digest(page)
    assert DRAWN in saved.text[XMP_KEYWORD]
    assert json.loads(saved.text["superres"])["accept"] == "distance"
    assert "never use it to identify anyone" in saved.text["superres"]


def draw_by_text_and_property(page, upscaler, source):
    """Elements of a base share an engine; they tell how far they are, and are busy until then."""
    found = page.evaluate("""async ([text, cells]) => {
        const made = [document.createElement("super-res"), document.createElement("super-res")];
        const heard = made.map(() => []);
        made.forEach((face, at) => {
            face.setAttribute("base", "faces/");
            for (const kind of ["progress", "drawn", "error"])
                face.addEventListener(`superres-${kind}`, () => heard[at].push(kind));
        });
        made[0].setAttribute("pixels", text);
        made[0].setAttribute("alt", "A friend");
        made[1].setAttribute("size", 32);
        made[1].setAttribute("finish", "mean");
        made[1].cells = Uint8Array.from(cells);
        document.body.append(...made);
        await new Promise(done => setTimeout(done));
        const busy = made.map(one => one.shadowRoot.querySelector("figure").ariaBusy);
        await Promise.all(made.map(one => new Promise(done =>
            one.addEventListener("superres-drawn", done))));
        const quiet = made.map(one => one.shadowRoot.querySelector("figure").ariaBusy);
        const {alt} = made[0].shadowRoot.querySelector("img");
        const drawn = made.map(one => one.picture.digest);
        made.forEach(one => one.remove());
        return {heard, busy, quiet, alt, drawn};
    }""", [urlsafe_b64encode(source).decode(), source.flatten().tolist()])
    assert found["busy"] == ["true"] * 2
    assert found["quiet"] == ["false"] * 2
    assert found["alt"] == "A friend"
    finished = upscaler.at_size(32)(source[None], finish="mean")
    assert found["drawn"] == [expected(upscaler, source),
                              short_digest(finished.images[0].tobytes())]
    for heard in found["heard"]:
        assert {*heard[:-1]} == {"progress"}
        assert heard[-1] == "drawn"
    assert sum("weights.bin" in one for one in page.asked) == 1
    (declared,) = re.findall(r"interface Info \{(.*?)^\}", (SCRIPTS / "superres.d.ts").read_text(
        "utf-8"), re.DOTALL | re.MULTILINE)
    assert set(page.evaluate(INFO)) == set(re.findall(r"^  (\w+):", declared, re.MULTILINE))


def name_what_is_wrong(page, site):
    start = page.url_of("")
    for attributes, line in (
        ({"epsilon": "two"}, 'epsilon is "two"; give a whole number from 0 on'),
        ({"epsilon": "2", "size": "48"}, "size is 48; give 32 or 64"),
        ({"size": None, "pixels": "!"},
         'pixels is "!", which is not the text of pixels that a link has after x='),
        ({"pixels": "gICA"}, "3 values were given; the input has 8x8 pixels of 3"),
        ({"pixels": None, "src": "none.png"}, "src is none.png, which could not be loaded (404)"),
        ({"src": "index.html"}, "src is index.html, which is not a picture that this browser "
         "reads"),
        ({"src": "wide.png"}, "src is wide.png, a picture of 64x48 pixels; give a square "
                              "one of the input's size"),
        ({"src": "face.png", "base": "nowhere/"}, "superres.js could not be loaded; base is "
         f'{start}nowhere/, which should be the folder that "superres export web" wrote'),
        ({"base": "old/"}, f"the folder is of superres 0.0.9, and the page's superres.js of "
         f"{superres.__version__}; export the folder again"),
    ):
        if "old" in attributes.get("base", ""):
            shutil.copytree(site / "faces", site / "old")
            code = (site / "old" / "superres.js").read_text()
            own = f'VERSION = "{superres.__version__}"'
            assert own in code
            (site / "old" / "superres.js").write_text(code.replace(own, 'VERSION = "0.0.9"'))
        changed(page, **attributes)
        caption(page, f"{line}.")
        assert page.said == [f"<super-res>: {line}"]
        page.said.clear()
    check_wcag(page, "an error")
    changed(page, base="faces/")  # it draws again
    caption(page, NOTE)


def test_five_lines_of_html_draw_the_face_that_python_draws(page, site, upscaler, source):
    page.goto(page.url_of(""))
    assert digest(page) == expected(upscaler, source, accept="distance", epsilon=2, block_size=24)
    check_wcag(page, "a face")
    check_saved_picture(page)
    draw_by_text_and_property(page, upscaler, source)
    name_what_is_wrong(page, site)
    # in an exported folder, the element finds what is beside it
    page.goto(page.url_of("beside.html"))
    assert digest(page) == expected(upscaler, source)
    assert not any("node_modules" in one for one in page.asked[-8:])
