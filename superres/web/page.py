"""The whole page: its head and its tabs."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gradio as gr

from superres.config import DecodeConfig
from superres.web.batch_tab import batch_tab
from superres.web.controls import SUGGESTED
from superres.web.decoding import Decoder
from superres.web.files import Workspace
from superres.web.survey_tabs import survey_tabs
from superres.web.translate_tab import translate_tab
from superres.web.upscale_tab import upscale_tab

TITLE = "superres: faces, block by block"
HEAD = """# superres
An 8x8 face goes in, a 32x32 face comes out, several tokens a step. Pick an example or your own photo, and press
**Upscale**.

**The detail is invented.** The result is a plausible face, not a likeness: never use it to identify anyone. The model
knows faces like CelebA's, mostly light-skinned, young and frontal; others come out worse."""
THEME = gr.themes.Default(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"])
CSS = Path(__file__).with_name("page.css")


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
    page: gr.Blocks = gr.Blocks(title=TITLE, analytics_enabled=False, fill_width=True)
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
