"""The page: its head and its tabs."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr

from superres.errors import InvalidInputError
from superres.tasks.faces import FaceTask
from superres.web.batch_tab import batch_tab
from superres.web.controls import RAW, shown_to_visitor
from superres.web.decoding import Decoder
from superres.web.files import NOT_UPLOADED, Workspace
from superres.web.logs import log
from superres.web.translate_tab import translate_tab
from superres.web.upscale_tab import upscale_tab
from superres.web.visitors import Identities, current, identities_of, named_paths

TITLE = "superres: faces, block by block"
# Gradio's own colours do not have the contrast that WCAG AA asks for.
THEME = gr.themes.Default(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"]).set(
    block_info_text_color="*neutral_600", block_info_text_color_dark="*neutral_300",
    body_text_color_subdued="*neutral_600", body_text_color_subdued_dark="*neutral_300",
    link_text_color_dark="*secondary_400",
    button_primary_background_fill="*primary_700", button_primary_background_fill_hover="*primary_800",
    button_primary_background_fill_dark="*primary_700", button_primary_background_fill_hover_dark="*primary_800",
    button_cancel_background_fill="#b91c1c", button_cancel_background_fill_hover="#991b1b",
    button_cancel_background_fill_dark="#b91c1c", button_cancel_background_fill_hover_dark="#991b1b",
    button_cancel_text_color="white", button_cancel_text_color_dark="white")
STATIC = Path(__file__).with_name("static")
"""Folder of the page's scripts and styles, all of which it loads."""
SURVEY_PATH = "/survey"
"""Path of the survey's voting page."""
FACE_WIDTHS = (64, 96, 128, 256, 320, 512)
"""Largest widths of faces on the page, in pixels of the screen."""


def face_widths(task: FaceTask) -> str:
    """Return the style with the page's widths of faces, whole multiples of a face's side: --face-96 is up to 96 px."""
    widths = "".join(f" --face-{most}: {max(most // task.target, 1) * task.target}px;" for most in FACE_WIDTHS)
    return f"<style>:root {{ --face: {task.target}px;{widths} }}</style>"


class Page(gr.Blocks):
    """The page. Before a handler runs, the page checks that the files in its inputs belong to the visitor."""

    def __init__(self, workspace: Workspace, **settings: Any) -> None:  # noqa: ANN401 -- as in Gradio
        """Create the page with Gradio's `settings`; `workspace` has the visitors' files."""
        super().__init__(**settings)
        self.workspace = workspace

    async def process_api(
        self, block_fn: Any, inputs: list[Any], state: Any = None, request: Any = None, iterator: Any = None,  # noqa: ANN401
        *more: Any, **keywords: Any,  # noqa: ANN401 -- Gradio's
    ) -> dict[str, Any]:
        """Handle an event from the queue or a direct request, and turn errors into messages for the visitor."""
        visitor = identities_of(request.request.scope) if isinstance(request, gr.Request) and request.request else ()
        token = current.set(visitor)
        try:
            if iterator is None:  # the first step of an event; later steps have the same inputs
                blocks = (self.fns[block_fn] if isinstance(block_fn, int) else block_fn).inputs
                inputs = [*map(functools.partial(self._checked, visitor), blocks, inputs), *inputs[len(blocks):]]
            handled: dict[str, Any] = await super().process_api(
                block_fn, inputs, state, request, iterator, *more, **keywords)
            return handled
        except gr.Error:
            raise
        except Exception as error:
            log("refused", reason=type(error).__name__)
            raise shown_to_visitor(error) from None
        finally:
            current.reset(token)

    def _checked(self, visitor: Identities, block: gr.components.Component, value: Any) -> Any:  # noqa: ANN401 -- JSON
        """Return the value of an input; of files, only the paths are kept.

        Raises:
            InvalidInputError: a file does not belong to the visitor.
        """
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
        decoder: decodes for the page.
        workspace: folder of temporary files, already entered.
        examples: example pictures inside the workspace; the first one is chosen initially.
        max_queue: largest number of waiting requests.
        with_survey: whether the page has the tabs of a survey.
        root_path: path under which a proxy serves the page.
    """
    queue: dict[str, Any] = {"concurrency_id": "decoding", "concurrency_limit": 1, **RAW}
    page = Page(workspace, title=TITLE, analytics_enabled=False, fill_width=True)
    with page:
        gr.Markdown("# superres", elem_id="head")
        with gr.Tabs():
            with gr.Tab("Upscale"):
                upscale_tab(decoder, workspace, examples, queue)
            with gr.Tab("Batch"):
                batch_tab(decoder, workspace, queue)
            if decoder.translator is not None:
                with gr.Tab("Translate"):
                    translate_tab(decoder, decoder.translator, queue)
            if with_survey:
                survey_tabs(root_path)
    # Only events that decode are queued, so the limit counts only them.
    page.queue(max_size=max_queue, api_open=False)
    return page


def survey_tabs(root_path: str) -> None:
    """Lay out the tabs Survey and Results; each loads its page when it is first opened.

    Args:
        root_path: path under which a proxy serves the page, or "".
    """
    for name, path, note in (
        ("Survey", "/", "To vote by keyboard, click into the frame or move to it with Tab."),
        ("Results", "/results/", "The results are for the study's owner, and need the owner's token."),
    ):
        address = f"{root_path.rstrip('/')}{SURVEY_PATH}{path}"
        with gr.Tab(name):
            gr.HTML(f'<p class="sr-hint">{escape(note)} <a href="{escape(address)}" target="_blank" rel="noopener">'
                    f"Open in a separate window</a></p>"
                    f'<iframe class="sr-survey" src="{escape(address)}" title="{name}" loading="lazy"></iframe>',
                    elem_id=name.lower())
