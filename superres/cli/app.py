"""The command `superres app`: the web demo, a page that shows the decoding of faces block by
block."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from superres.cli.options import Checkpoint, Device, is_given
from superres.cli.survey import results_line
from superres.cli.survey_options import StoreLocation
from superres.config import DEFAULT_CASCADE, DEFAULT_TRANSLATOR, DEVICES, require
from superres.errors import extra_needed
from superres.survey.commands import DEFAULT_STORE
from superres.system.asgi import how_to_leave, local_address
from superres.system.folders import page_folder
from superres.system.progress import say
from superres.system.signals import will_keep
from superres.system.terminal import echo
from superres.system.threads import given_threads, set_threads, usable_cores

if TYPE_CHECKING:
    import gradio as gr
    from fastapi import FastAPI

    from superres.pictures.read import Pixels
    from superres.pipeline.translator import Translator
    from superres.pipeline.upscaler import Upscaler
    from superres.survey.store import Store
    from superres.tasks.faces import FaceTask
    from superres.web.decoding import VisitorDecoding

Host = Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 accepts other machines.")]
Port = Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="Port; 0 chooses a free "
                                   "port.")]
Auth = Annotated[list[str] | None, typer.Option(
    metavar="USER:PASSWORD", envvar="SUPERRES_AUTH", show_envvar=True,
    help="User who may log in; repeat the option for several users. In the variable, separate "
    "users by blanks.")]
RootPath = Annotated[str, typer.Option(metavar="/PATH", help="Path under which a proxy serves the "
                                       "page.")]
MaxQueue = Annotated[int, typer.Option(
    metavar="N", min=1, help="Requests that may wait; further requests are refused.")]
EmbedIn = Annotated[list[str] | None, typer.Option(
    metavar="ORIGIN", help="Site that may show the page in a frame, such as https://example.org; "
    "repeat the option for several sites.")]
TimeLimit = Annotated[float, typer.Option(
    metavar="S", min=1, help="Seconds that a request may take, besides waiting for its turn.")]
TranslationCheckpoint = Annotated[str | None, typer.Option(
    metavar="NAME|DIR", help="Checkpoint of the Translate tab. The page has no such tab if the "
    f"default is not available. [default: {DEFAULT_TRANSLATOR}]")]
Survey = Annotated[str | None, typer.Option(
    metavar="STUDY", help="Show this study of superres survey in the tabs Survey and Results. "
    "Raters can also use /survey/, which needs no password.")]


def build_app(decoding: VisitorDecoding, max_queue: int = 16, with_survey: bool = False,
              root_path: str = "") -> gr.Blocks:
    """Build the page with its examples, inside `temporary_files()`; see
    `superres.web.serving.build_page`."""
    from PIL import Image

    from superres.web.content import examples_of
    from superres.web.files import new_folder
    from superres.web.serving import build_page

    folder = new_folder()  # the page may serve temporary files only
    found = examples_of(page_folder(), decoding.upscaler.face_task)
    examples = {folder / f"{name}.png": picture for name, picture in found.items()}
    for path, picture in examples.items():
        Image.fromarray(picture).save(path, compress_level=1)  # of two photos, 0.1 s faster
    return build_page(decoding, [*examples], max_queue, with_survey, root_path)


def pictured(task: FaceTask) -> Pixels:
    """Return the input of the first example, uint8 [source, source, 3], which is on the card,
    too."""
    from superres.web.content import examples_of
    from superres.web.crops import subjects

    first, *_ = examples_of(page_folder(), task).values()
    return subjects(first, task)[0].source


def build_demo(
    decoding: VisitorDecoding, folder: Path, max_queue: int = 16,
    auth: list[tuple[str, str]] | None = None, root_path: str = "", survey: FastAPI | None = None,
    embed_in: Sequence[str] = (),
) -> FastAPI:
    """Build the page and its server; see `superres.web.serving.build_server`."""
    from superres.web.serving import build_server

    page = build_app(decoding, max_queue, survey is not None, root_path)
    return build_server(page, decoding, folder, pictured(decoding.upscaler.face_task), auth,
                        root_path, survey, embed_in)


def warm_up(decoding: VisitorDecoding) -> None:
    """Decode the first example, with which the page then begins, and people with its pixels."""
    from superres.web.faces import PEOPLE, first_view, sampled

    upscaler, source = decoding.upscaler, pictured(decoding.upscaler.face_task)
    likeliest = decoding.warm_up(source)
    others = decoding.draw("warm-up, others", source, sampled(upscaler.default), PEOPLE)
    decoding.first = first_view(upscaler, upscaler.default, likeliest, others)


def load_translator(checkpoint: str | None, device: str,
                    upscaler: Upscaler) -> Translator | None:
    """Load the checkpoint for translation; by default the bundled one at its first use, beside
    `upscaler`, or None if it is not available."""
    from superres.checkpoint import bundled_checkpoints, open_checkpoint

    if checkpoint is not None:
        from superres.pipeline.translator import Translator

        return Translator.load(checkpoint, device)
    if (DEFAULT_TRANSLATOR not in bundled_checkpoints()
        or importlib.util.find_spec("sentencepiece") is None):
        return None
    from superres.web.late import LateTranslator

    return cast("Translator", LateTranslator(open_checkpoint(DEFAULT_TRANSLATOR), device, upscaler))


def open_survey(name: str, store: str) -> tuple[Store, FastAPI]:
    """Open the store of a survey, and return it with the application of the study `name`;
    StoreError if one lacks."""
    with extra_needed("--survey", "survey"):
        from superres.survey.server import study_app
        from superres.survey.store import Store
    opened = Store(store)
    return opened, study_app(opened, opened.study(name))


def announce(host: str, port: int, root_path: str, survey: str | None, store: str) -> None:
    """Print where to open the page and the pages of a survey, a study in a store, on standard
    output."""
    address = local_address(host, port, root_path)
    lines = [f"open {address} ({how_to_leave(host)})"]
    if survey is not None:
        raters = f"{address}survey/"
        lines += [f"raters vote at {raters}", results_line(raters, survey, store)]
    with suppress(OSError):  # nobody reads it
        echo("\n".join(f"superres: {line}" for line in lines))


def parse_auth(pairs: list[str]) -> list[tuple[str, str]] | None:
    """Return names and passwords from pairs "name:password", None without pairs; ConfigError if a
    part is missing."""
    for name, colon, password in (parts := [pair.partition(":") for pair in pairs]):
        require(bool(name and password), f"--auth must be USER:PASSWORD, not {name!r} and "
                                         f"{'an empty' if colon else 'no'} password")
    return [(name, password) for name, _, password in parts] or None


def check_origins(origins: Sequence[str]) -> None:
    """Raise ConfigError unless all of them are those of sites."""
    for origin in origins:
        require(re.fullmatch(r"https?://[\w.-]+(:\d+)?", origin, re.ASCII) is not None,
                f"--embed-in must be http(s)://HOST, not {origin!r}")


def set_environment() -> None:
    """Set what Gradio reads at its import, the number of threads, and what the log has."""
    # By default Gradio records the last 10,000 requests.
    os.environ.update(GRADIO_ANALYTICS_ENABLED="False", GRADIO_ANALYTICS_MAX_EVENTS="1",
                      GRADIO_VIBE_MODE="")
    if given_threads() is None:  # one core is left free for the page
        set_threads(max(1, usable_cores() - 1))
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("superres.web").setLevel(logging.INFO)


def serve_demo(
    context: typer.Context, host: Host = "127.0.0.1", port: Port = 7860, auth: Auth = None,
    root_path: RootPath = "", max_queue: MaxQueue = 16, time_limit: TimeLimit = 120,
    checkpoint: Checkpoint = DEFAULT_CASCADE, device: Device = "auto",
    translation_checkpoint: TranslationCheckpoint = None, survey: Survey = None,
    store: StoreLocation = DEFAULT_STORE, embed_in: EmbedIn = None,
) -> None:
    """Serve the web demo until Ctrl-C or SIGTERM.

    It needs the ui extra.
    """
    require(device in DEVICES, f"--device must be one of {', '.join(DEVICES)}, not {device!r}")
    require(not root_path or root_path.startswith("/"), "--root-path must begin with a slash, not "
            f"{root_path!r}")
    check_origins(embed_in or ())
    require(survey is not None or not is_given(context, "store"),
            f"--store {store} needs a survey; name its study with --survey")
    visitors = parse_auth(auth or [])
    will_keep("the page was not open yet")
    set_environment()
    from superres.system.serving import listen
    from superres.web.files import temporary_files

    with listen(host, port) as listening, temporary_files() as folder, ExitStack() as stack:
        pages, location = None, store
        if survey is not None:
            opened, pages = open_survey(survey, store)
            location = opened.location
            stack.enter_context(closing(opened))
        from superres.pipeline.upscaler import Upscaler
        from superres.web.decoding import VisitorDecoding
        from superres.web.serving import serve

        say(f"loading {checkpoint}; the first start compiles the engine, which takes half a minute")
        upscaler = Upscaler.load(checkpoint, device)
        translator = load_translator(translation_checkpoint, device, upscaler)
        decoding = VisitorDecoding(upscaler, time_limit, translator)
        warm_up(decoding)
        server = build_demo(decoding, folder, max_queue, visitors, root_path, pages,
                            embed_in or ())
        announce(host, listening.getsockname()[1], root_path, survey, location)
        serve(server, decoding, listening, folder)
