"""The decoding settings as controls of the page, and the way back from what a visitor sent to a `DecodeConfig`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from html import escape
from typing import Any

import gradio as gr

from superres.config import DecodeConfig, is_number, parse_epsilon, parse_temperature, require
from superres.decoding.acceptance import CRITERIA
from superres.errors import InvalidInputError, SuperresError, shown
from superres.web.logs import log, log_bug

SUGGESTED = DecodeConfig(accept="distance")
"""What the page starts with where the checkpoint has no default of its own."""
MAX_SAMPLES = 4
Setting = Any
"""What a visitor set a control to, or sent in its place."""
Uploaded = dict[str, Any]
"""A file as Gradio hands it on, once it has checked that it was uploaded to this server."""
RAW: dict[str, Any] = {"preprocess": False}
"""For events that decode: Gradio's own preparation of an upload would clip 16-bit grey, drop alpha and fail on damaged
files, and its checks of other values speak another language than ours."""


def decoding_controls(default: DecodeConfig, heads: int) -> list[gr.components.Component]:
    """Lay out the controls of block size, acceptance, temperature and seed, in the order of `settings_of`.

    Args:
        default: what they show at first.
        heads: prediction heads of the checkpoint.
    """
    block_size = block_size_control(default, heads)
    accept = gr.Dropdown(list(CRITERIA), value=default.accept, label="Acceptance", filterable=False,
                         info="exact: the greedy picture; the others trade a little of it for speed")
    used = CRITERIA[default.accept].settings
    epsilon = gr.Textbox(",".join(map(str, default.epsilons)), label="Epsilon, grey levels", visible="epsilon" in used,
                         info="Largest difference accepted; several as 4,3,2 by offset or by colour", max_lines=1)
    top_k = gr.Slider(1, 16, default.top_k, step=1, label="Top k", info="Rank within which a proposal is accepted",
                      visible="top_k" in used)
    budget = gr.Slider(0, 64, default.budget, step=1, label="Budget, grey levels", visible="budget" in used,
                       info="Largest sum of differences in a block")
    temperature = gr.Slider(0, 1.5, max(default.temperatures), step=0.05, label="Temperature",
                            info="0: the likeliest tokens, smooth; above: samples with more detail")
    seed = gr.Number(default.seed, precision=0, minimum=0, label="Seed", info="Of the samples")

    def show_used(criterion: str) -> list[Any]:
        names = CRITERIA[criterion].settings if criterion in CRITERIA else ()
        return [gr.update(visible=name in names) for name in ("epsilon", "top_k", "budget")]

    accept.change(show_used, accept, [epsilon, top_k, budget], queue=False, show_progress="hidden",
                  api_visibility="private")
    return [block_size, accept, epsilon, top_k, budget, temperature, seed]


def block_size_control(default: DecodeConfig, heads: int) -> gr.Slider:
    """Lay out the control of the block size, which cannot be moved where there is one prediction head."""
    return gr.Slider(1, max(heads, 2), default.block_size or heads, step=1, label="Block size", interactive=heads > 1,
                     info="Tokens proposed a step; 1 is greedy decoding, one by one")


def settings_of(
    default: DecodeConfig, block_size: Setting, accept: Setting, epsilon: Setting, top_k: Setting, budget: Setting,
    temperature: Setting, seed: Setting,
) -> DecodeConfig:
    """Return the decoding settings that the controls' values stand for; they may be anything that JSON can hold.

    Args:
        default: where settings without a control come from.
        block_size: value of the control, as are the others.
        accept: see above.
        epsilon: see above.
        top_k: see above.
        budget: see above.
        temperature: see above.
        seed: see above.

    Raises:
        ConfigError: a value is missing or out of range, or two contradict one another.
    """
    require(isinstance(accept, str), f"acceptance must be a name, not {shown(accept)}")
    numbers = {"block_size": block_size, "top_k": top_k, "budget": budget, "seed": seed}
    return default.changed({
        **{name: whole_number(name.replace("_", " "), value) for name, value in numbers.items()}, "accept": accept,
        "epsilon": parse_epsilon(as_text(epsilon)), "temperature": parse_temperature(as_text(temperature)),
    })


def whole_number(name: str, value: Setting) -> int:
    """Return the whole number that a visitor set the control `name` to.

    Raises:
        ConfigError: it is something else.
    """
    is_whole = is_number(value) and value % 1 == 0
    require(is_whole and abs(value) < 2**63, f"{name} must be a whole number, and not so large, not {shown(value)}")
    return int(value)


def as_text(value: Setting) -> str:
    """Return what a visitor sent, a number or text, as text; anything else as it is shown, which is no number."""
    return value if isinstance(value, str) else shown(value)


def greedy_like(options: DecodeConfig) -> DecodeConfig:
    """Return the settings that decode one token at a time, with the same temperature and seed."""
    return dataclasses.replace(options, block_size=1, min_block=1, accept="exact", epsilon=2)


def samples_of(value: float) -> int:
    """Return the number of samples that a visitor asked for.

    Raises:
        ConfigError: it is not a whole number from 1 to MAX_SAMPLES.
    """
    require(is_number(value) and value % 1 == 0 and 1 <= value <= MAX_SAMPLES,
            f"samples must be a whole number from 1 to {MAX_SAMPLES}, not {shown(value)}")
    return int(value)


def path_of(upload: Uploaded | None) -> str:
    """Return the path of an upload, as the page sends it, in the server's temporary folder.

    Raises:
        InvalidInputError: there is none.
    """
    if not upload or not upload.get("path"):
        raise InvalidInputError("there is no image yet; upload one or pick an example")
    return str(upload["path"])


def shown_to_visitor(error: Exception) -> gr.Error:
    """Return an error as the page shows it; what is not the visitor's doing goes to the log instead."""
    if isinstance(error, SuperresError):
        # Options are spelled for the command line below. The page takes the text as HTML.
        return gr.Error(escape(str(error).replace("--", ""), quote=False), print_exception=False)
    log_bug(error)
    return gr.Error("something went wrong on the server; it is noted in its log", print_exception=False)


def streaming(handler: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    """Make the errors of a handler that yields frames visible to the visitor."""

    @functools.wraps(handler)
    def run(*arguments: Any) -> Iterator[Any]:  # noqa: ANN401 -- whatever the handler takes
        try:
            yield from handler(*arguments)
        except gr.Error:
            raise
        except Exception as error:
            refused = shown_to_visitor(error)
            log("refused", reason=type(error).__name__)
            raise refused from None

    return run
