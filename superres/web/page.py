"""The page: its head and its tabs."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr

from superres.tasks.faces import FaceTask
from superres.web.batch_tab import batch_tab
from superres.web.controls import shown_to_visitor
from superres.web.decoding import Decoder
from superres.web.translate_tab import translate_tab
from superres.web.upscale_tab import upscale_tab

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
    """The page, which turns errors into messages for the visitor."""

    async def process_api(self, *arguments: Any, **keywords: Any) -> dict[str, Any]:  # noqa: ANN401 -- Gradio's
        """Handle an event from the queue or a direct request."""
        try:
            handled: dict[str, Any] = await super().process_api(*arguments, **keywords)
            return handled
        except gr.Error:
            raise
        except Exception as error:
            raise shown_to_visitor(error) from None


def build_page(
    decoder: Decoder, examples: Sequence[Path], max_queue: int, with_survey: bool = False, root_path: str = "",
) -> gr.Blocks:
    """Build the page, under the path `root_path` of a proxy, with a queue of at most `max_queue` waiting requests.

    The examples are pictures in Gradio's folder of temporary files; the first one is chosen initially.
    """
    page = Page(title=TITLE, analytics_enabled=False, fill_width=True)
    with page:
        gr.Markdown("# superres", elem_id="head")
        with gr.Tabs():
            with gr.Tab("Upscale"):
                upscale_tab(decoder, examples)
            with gr.Tab("Batch"):
                batch_tab(decoder)
            if decoder.translator is not None:
                with gr.Tab("Translate"):
                    translate_tab(decoder, decoder.translator)
            if with_survey:
                survey_tabs(root_path)
    # Only events that decode are queued, so the limit counts only them.
    page.queue(max_size=max_queue, api_open=False)
    return page


def survey_tabs(root_path: str) -> None:
    """Lay out the tabs Survey and Results; each loads its page when it is first opened."""
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
