"""The tabs that hold a survey's own pages: raters vote in one, the owner sees the results in the other."""

from __future__ import annotations

from html import escape

import gradio as gr

SURVEY_PATH = "/survey"
"""Where the server offers the survey, which raters may also be sent to directly."""


def survey_tabs(root_path: str) -> None:
    """Lay out both tabs; their pages are fetched when a tab is first opened.

    Args:
        root_path: the path under which a proxy offers the page, or "".
    """
    for name, path, note in (
        ("Survey", "/", "Click into the frame, or reach it with Tab, to vote by keyboard."),
        ("Results", "/results/", "For the study's owner, whose token it asks for."),
    ):
        address = f"{root_path.rstrip('/')}{SURVEY_PATH}{path}"
        with gr.Tab(name):
            gr.HTML(f'<p class="sr-hint">{escape(note)} <a href="{escape(address)}" target="_blank" rel="noopener">'
                    f"Open in a window of its own</a></p>"
                    f'<iframe class="sr-survey" src="{escape(address)}" title="{name}" loading="lazy"></iframe>',
                    elem_id=name.lower())
