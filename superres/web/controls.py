"""The decoding settings as controls of the page, and the way back from what a visitor sent to a `DecodeConfig`."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from html import escape
from typing import Any, TypeVar, cast

import gradio as gr

from superres.config import FACES, Control, DecodeConfig, Setting, is_number, require, settings_of
from superres.decoding.acceptance import CRITERIA
from superres.errors import InvalidInputError, SuperresError, shown
from superres.pipeline.options import choices_for
from superres.web.logs import log, log_bug

SUGGESTED = DecodeConfig(accept="distance")
"""What the page starts with where the checkpoint has no default of its own."""
MAX_SAMPLES = 4
T = TypeVar("T")
Value = Any
"""What a visitor set a control to, or sent in its place."""
Uploaded = dict[str, Any]
"""A file as Gradio hands it on, once it has checked that it was uploaded to this server."""
RAW: dict[str, Any] = {"preprocess": False}
"""For events that decode: Gradio's own preparation of an upload would clip 16-bit grey, drop alpha and fail on damaged
files, and its checks of other values speak another language than ours."""


def offered(default: DecodeConfig, task: str) -> dict[str, Setting]:
    """Return the settings that have a control in the tabs of a task, by name, in the order of the controls."""
    return {name: about for name, about in settings_of(type(default)).items()
            if about.control is not None and task in about.control.tasks}


def decoding_controls(default: DecodeConfig, heads: int, task: str = FACES) -> list[gr.components.Component]:
    """Lay out the controls of the decoding settings, in the order of `offered`.

    Args:
        default: what they show at first.
        heads: prediction heads of the checkpoint.
        task: the task that they are for.
    """
    settings = offered(default, task)
    controls = {name: control_of(name, about, default, heads, task) for name, about in settings.items()}
    dependent = [name for name, about in settings.items() if about.depends_on == "accept"]

    def show_used(criterion: str) -> list[Any]:
        return [gr.update(visible=criterion in CRITERIA and name in CRITERIA[criterion].settings) for name in dependent]

    accept = cast(gr.Dropdown, controls["accept"])
    accept.change(show_used, accept, [controls[name] for name in dependent], queue=False, show_progress="hidden",
                  api_visibility="private")
    return list(controls.values())


def control_of(name: str, about: Setting, default: DecodeConfig, heads: int, task: str) -> gr.components.Component:
    """Lay out the control of one setting; that of the block size cannot be moved where there is one prediction head."""
    control, value = about.control or Control(name), getattr(default, name)
    low = about.least or 0
    values = value if isinstance(value, tuple) else (value,)
    shown: dict[str, Any] = {
        "label": control.label, "info": about.help,
        "visible": about.depends_on != "accept" or name in CRITERIA[default.accept].settings}
    if name == "block_size":
        return gr.Slider(low, max(heads, 2), value or heads, step=1, interactive=heads > 1, **shown)
    if about.choices:
        return gr.Dropdown(choices_for(name, task), value=value, filterable=False, **shown)
    if about.kind is bool:
        return gr.Checkbox(value, **shown)
    if control.high is not None:
        return gr.Slider(low, control.high, max(values), step=control.step, **shown)
    if about.kind in (int, float) and about.parse is None:
        return gr.Number(value, minimum=low, precision=0 if about.kind is int else None, **shown)
    return gr.Textbox(",".join(map(str, values)), max_lines=1, **shown)


def named(handler: Callable[..., T], *names: str) -> Callable[..., T]:
    """Return a handler whose trailing arguments have these names, by which programs give them."""
    signature = inspect.signature(handler)
    own = [parameter for parameter in signature.parameters.values() if parameter.kind is not parameter.VAR_POSITIONAL]
    more = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    handler.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
    return handler


def options_of(default: DecodeConfig, values: Iterable[Value], task: str = FACES) -> DecodeConfig:
    """Return the decoding settings that the controls' values stand for; they may be anything that JSON can hold.

    Args:
        default: where settings without a control come from.
        values: of the controls, in the order of `offered`.
        task: the task that the controls are for.

    Raises:
        ConfigError: a value is missing or out of range, or two contradict one another.
    """
    settings = offered(default, task).items()
    return default.changed({name: value_of(name, about, value)
                            for (name, about), value in zip(settings, values, strict=True)})


def value_of(name: str, about: Setting, value: Value) -> Any:  # noqa: ANN401 -- the type of the setting
    """Return the value of a setting that a visitor's value stands for; its range is checked by `DecodeConfig`.

    Raises:
        ConfigError: a number or the text of one is something else.
    """
    if about.parse is not None:
        return about.parse(as_text(value))
    return whole_number(name.replace("_", " "), value) if about.kind is int else value


def whole_number(name: str, value: Value) -> int:
    """Return the whole number that a visitor set the control `name` to.

    Raises:
        ConfigError: it is something else.
    """
    is_whole = is_number(value) and value % 1 == 0
    require(is_whole and abs(value) < 2**63, f"{name} must be a whole number, and not so large, not {shown(value)}")
    return int(value)


def as_text(value: Value) -> str:
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
