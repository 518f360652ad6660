"""The web demo: `python app.py`, or `make app`, serves a page on this machine where faces appear block by block."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from superres.cli_options import DEVICES, Checkpoint, Device
from superres.config import DEFAULT_CHECKPOINT, require
from superres.errors import ConfigError, SuperresError
from superres.web.logs import log, logging_as_json

if TYPE_CHECKING:
    import gradio as gr

    from superres.web.decoding import Decoder
    from superres.web.files import Workspace

FACES = Path(__file__).parent / "scripts" / "faces"

Host = Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 lets other machines in.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one, which the log tells.")]
Auth = Annotated[list[str] | None, typer.Option(
    metavar="USER:PASSWORD", envvar="SUPERRES_AUTH", show_envvar=True,
    help="Who may enter; may be repeated. In the environment, separate several by blanks.")]
RootPath = Annotated[str, typer.Option(metavar="/PATH", help="Path under which a proxy offers the page.")]
MaxQueue = Annotated[int, typer.Option(min=1, help="Requests that may wait; more are told that the demo is busy.")]
TimeLimit = Annotated[float, typer.Option(min=1, help="Seconds that a request may take.")]


def build_app(decoder: Decoder, workspace: Workspace, max_queue: int = 16) -> gr.Blocks:
    """Build the page.

    Args:
        decoder: what decodes.
        workspace: the folder of temporary files, entered.
        max_queue: requests that may wait for the one being decoded.
    """
    from PIL import Image
    from skimage import data

    from superres.web.page import build_page

    astronaut = workspace.new_folder() / "astronaut.png"
    Image.fromarray(data.astronaut()[:210, 140:310]).save(astronaut)  # its central square frames the face as CelebA's
    return build_page(decoder, workspace, [astronaut, *sorted(FACES.glob("*.png"))], max_queue)


def parse_auth(pairs: list[str]) -> list[tuple[str, str]] | None:
    """Return the names and passwords of "name:password" each; None if there are none.

    Raises:
        ConfigError: a pair has no name or no password.
    """
    parsed = []
    for pair in pairs:
        name, _, password = pair.partition(":")
        require(bool(name and password), f"--auth must be USER:PASSWORD, not {pair.split(':')[0]!r} and "
                                         f"{'an empty' if ':' in pair else 'no'} password")
        parsed.append((name, password))
    return parsed or None


def main(
    host: Host = "127.0.0.1", port: Port = 7860, auth: Auth = None, root_path: RootPath = "", max_queue: MaxQueue = 16,
    time_limit: TimeLimit = 120, checkpoint: Checkpoint = DEFAULT_CHECKPOINT, device: Device = "auto",
) -> None:
    """Serve the web demo until Ctrl-C or SIGTERM."""
    require(device in DEVICES, f"--device must be one of {', '.join(DEVICES)}, not {device!r}")
    require(not root_path or root_path.startswith("/"), f"--root-path must begin with a slash, not {root_path!r}")
    visitors = parse_auth(auth or [])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # so that the temporary files are removed at any time
    # Before Gradio is imported, which reads these then. It would keep a record of the last 10,000 requests.
    os.environ.update(GRADIO_ANALYTICS_ENABLED="False", GRADIO_ANALYTICS_MAX_EVENTS="1", GRADIO_VIBE_MODE="")
    # Before torch is imported: its threads wait for one another at each step, so a core is left to the page.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) - 1)))
    from superres.web.files import Workspace

    with logging_as_json(), Workspace() as workspace:
        from superres.pipeline import Upscaler
        from superres.web.decoding import Decoder
        from superres.web.serving import build_server, serve

        decoder = Decoder(Upscaler.load(checkpoint, device), time_limit)
        log("loaded", checkpoint=decoder.upscaler.name, device=str(decoder.upscaler.device))
        decoder.warm_up()
        page = build_app(decoder, workspace, max_queue)
        server = build_server(page, decoder, workspace, visitors, root_path)
        if not serve(server, decoder, host, port):
            raise ConfigError(f"cannot listen on {host}, port {port}; choose another --port or --host")


if __name__ == "__main__":
    try:
        typer.run(main)
    except SuperresError as error:
        sys.exit(f"app: {error}")
    except ImportError as error:
        sys.exit(f"app: {error.name or error} is not installed; run pip install -e '.[ui]', or make app")
