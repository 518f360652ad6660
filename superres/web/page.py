"""The whole page: its head and its tabs."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gradio as gr

from superres.config import DecodeConfig
from superres.errors import InvalidInputError
from superres.web.batch_tab import batch_tab
from superres.web.controls import SUGGESTED, shown_to_visitor
from superres.web.decoding import Decoder
from superres.web.files import NOT_UPLOADED, Workspace
from superres.web.logs import log
from superres.web.survey_tabs import survey_tabs
from superres.web.translate_tab import translate_tab
from superres.web.upscale_tab import upscale_tab
from superres.web.visitors import Identities, current, identities_of, named_paths

TITLE = "superres: faces, block by block"
HEAD = """# superres
An 8x8 face goes in, a 32x32 face comes out, several tokens a step. Pick an example or your own photo, and press
**Upscale**.

**The detail is invented.** The result is a plausible face, not a likeness: never use it to identify anyone. The model
knows faces like CelebA's, mostly light-skinned, young and frontal; others come out worse."""
THEME = gr.themes.Default(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"])
CSS = Path(__file__).with_name("page.css")


class Page(gr.Blocks):
    """The page. Before any of its handlers runs, the files that the visitor names are checked to be the visitor's."""

    def __init__(self, workspace: Workspace, **settings: Any) -> None:  # noqa: ANN401 -- as in Gradio
        """Make the page, with Gradio's `settings`; visitors' files are in `workspace`."""
        super().__init__(**settings)
        self.workspace = workspace

    async def process_api(
        self, block_fn: Any, inputs: list[Any], state: Any = None, request: Any = None, iterator: Any = None,  # noqa: ANN401
        *more: Any, **keywords: Any,  # noqa: ANN401 -- Gradio's
    ) -> dict[str, Any]:
        """Handle an event, however it came: Gradio calls this for the queue and for requests past it alike."""
        visitor = identities_of(request.request.scope) if isinstance(request, gr.Request) and request.request else ()
        token = current.set(visitor)
        try:
            if iterator is None:  # otherwise an event is continued, and its inputs were checked at its start
                blocks = (self.fns[block_fn] if isinstance(block_fn, int) else block_fn).inputs
                inputs = [*map(functools.partial(self._checked, visitor), blocks, inputs), *inputs[len(blocks):]]
            handled: dict[str, Any] = await super().process_api(
                block_fn, inputs, state, request, iterator, *more, **keywords)
            return handled
        except InvalidInputError as error:
            log("refused", reason=type(error).__name__)
            raise shown_to_visitor(error) from None
        finally:
            current.reset(token)

    def _checked(self, visitor: Identities, block: gr.components.Component, value: Any) -> Any:  # noqa: ANN401 -- JSON
        """Return the value of an input, with nothing but the paths of the visitor's files where it takes files."""
        for path in named_paths(value):
            self.workspace.check(path, visitor)
        if value is None or not isinstance(block, (gr.Image, gr.File)):
            return value
        files = value if isinstance(block, gr.File) else [value]
        if not isinstance(files, list) or not all(isinstance(file, dict) and "path" in file for file in files):
            raise InvalidInputError(f"the file {NOT_UPLOADED}")
        checked = [{"path": file["path"], "meta": {"_type": "gradio.FileData"}} for file in files]
        return checked if isinstance(block, gr.File) else checked[0]


def build_page(
    decoder: Decoder, workspace: Workspace, examples: Sequence[Path], max_queue: int, with_survey: bool = False,
    root_path: str = "",
) -> gr.Blocks:
    """Build the page.

    Args:
        decoder: what decodes.
        workspace: the folder of temporary files, entered.
        examples: pictures to try, the first chosen already.
        max_queue: requests that may wait for the one being decoded.
        with_survey: whether the server has a survey beside it, which two tabs then show.
        root_path: the path under which a proxy offers the page.
    """
    upscaler = decoder.upscaler
    default = SUGGESTED if upscaler.default == DecodeConfig() else upscaler.default
    queue: dict[str, Any] = {"concurrency_id": "decoding", "concurrency_limit": 1}
    page = Page(workspace, title=TITLE, analytics_enabled=False, fill_width=True)
    with page:
        gr.Markdown(HEAD, elem_id="head")
        with gr.Tabs():
            with gr.Tab("Upscale"):
                upscale_tab(decoder, workspace, default, served_copies(examples, workspace), queue)
            with gr.Tab("Batch"):
                batch_tab(decoder, workspace, default, queue)
            if decoder.translator is not None:
                with gr.Tab("Translate"):
                    translate_tab(decoder, decoder.translator, queue)
            if with_survey:
                survey_tabs(root_path)
    # Only what decodes is queued, so that the limit counts nothing else.
    page.queue(max_size=max_queue, api_open=False)
    return page


def served_copies(examples: Sequence[Path], workspace: Workspace) -> list[Path]:
    """Copy the examples to where the page may serve files from."""
    folder = workspace.new_folder()
    return [Path(shutil.copy(path, folder / path.name)) for path in examples]
