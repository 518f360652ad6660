"""The decoding settings as controls of the page, and the conversion of a visitor's values to a
`DecodeConfig`."""

from __future__ import annotations

import contextlib
import inspect
import logging
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape, unescape
from typing import Any, Literal, TypeVar, cast

import gradio as gr
from gradio.context import Context
from gradio.exceptions import InvalidPathError

from superres.config import (
    FACES,
    TRANSLATION,
    DecodeConfig,
    Setting,
    is_number,
    require,
    require_whole,
    settings_of,
)
from superres.decoding.acceptance import CRITERIA
from superres.errors import InvalidInputError, SuperresError, shown
from superres.pipeline.resolved_options import choices_for
from superres.web.decoding import VisitorDecoding
from superres.web.files import NOT_UPLOADED
from superres.web.turns import VISITOR, FairQueue, Visitor

MAX_SAMPLES = 16  # pictures that one request may draw
T = TypeVar("T")
Value = Any  # of a control as a visitor sent it: any JSON value
RAW: dict[str, Any] = {"preprocess": False}
"""Options of events that read pictures or decode. Gradio's preprocessing would clip 16-bit grey,
drop alpha and fail on damaged files."""
QUEUED: dict[str, Any] = {"concurrency_id": "decoding", **RAW}
"""Options of events that decode, in the order of `superres.web.turns.FairQueue`."""
INSTANT: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
"""Options of events that only update the page."""
TURN = "turn"
"""What a decode tells the page from its first frame on."""
LISTENER = """document.addEventListener("superres-%s", () => trigger("input"));"""
"""Script of a hidden component by which the page's script triggers an event."""


@dataclass(frozen=True)
class Control:
    """The control of a decoding setting, in the tabs of `tasks`.

    `high` is the largest value of a slider, with distances of `step`; None gives a text or number
    field instead.
    """

    label: str
    high: float | None = None
    step: float = 1
    tasks: tuple[str, ...] = (FACES,)


CONTROLS = {
    "block_size": Control("Block size", tasks=(FACES, TRANSLATION)),
    "accept": Control("Acceptance", tasks=(FACES, TRANSLATION)),
    "epsilon": Control("Epsilon, grey levels"),
    "top_k": Control("Top k", 16, tasks=(FACES, TRANSLATION)),
    "consistent": Control("Consistent with the input"),
    "temperature": Control("Temperature", 1.5, 0.05),
    "later_temperature": Control("Temperature of later stages"),
    "seed": Control("Seed"),
}
"""Controls of the settings that the page offers, by the name of the field."""


def offered(default: DecodeConfig, task: str) -> dict[str, Setting]:
    """Return the settings that have a control in the tabs of a task, by name, in the order of the
    controls."""
    return {name: about for name, about in settings_of(type(default)).items()
            if name in CONTROLS and task in CONTROLS[name].tasks}


def decoding_controls(
    default: DecodeConfig, heads: int, task: str = FACES, block_size: int = 0,
) -> list[gr.components.Component]:
    """Lay out the controls of the decoding settings, in the order of `offered`, for a number of
    prediction heads.

    The control of the block size begins at `block_size`; 0 leaves it to `default`.
    """
    settings = offered(default, task)
    controls = {name: control_of(name, about, default, heads, task, block_size) for name,
                about in settings.items()}
    dependent = [name for name, about in settings.items() if about.depends_on == "accept"]

    def show_used(criterion: str) -> list[Any]:
        return [gr.update(visible=criterion in CRITERIA and name in CRITERIA[criterion].settings)
                for name in dependent]

    accept = cast(gr.Dropdown, controls["accept"])
    accept.change(show_used, accept, [controls[name] for name in dependent], **INSTANT)
    return list(controls.values())


def control_of(
    name: str, about: Setting, default: DecodeConfig, heads: int, task: str, block_size: int,
) -> gr.components.Component:
    """Lay out the control of one setting; a block size of 0 is the default's, and with one
    prediction head it is 1."""
    control, value = CONTROLS[name], getattr(default, name)
    values = value if isinstance(value, tuple) else (value,)
    common: dict[str, Any] = {
        "label": control.label, "info": f"{about.help.partition('. ')[0].removesuffix('.')}.",
        "visible": about.depends_on != "accept" or name in CRITERIA[default.accept].settings}
    if name == "block_size":
        chosen = ("chosen while decoding if acceptance is exact, else "
                  "all" if default.adaptive else value or heads)
        common["info"] += f" 0: {chosen}."
        return gr.Slider(0, max(heads, 2), block_size if heads > 1 else 1, step=1,
                         interactive=heads > 1, **common)
    if about.choices:
        return gr.Dropdown(choices_for(name, task), value=value, filterable=False, **common)
    if about.kind is bool:
        return gr.Checkbox(value, **common)
    if control.high is not None:
        return gr.Slider(about.least or 0, control.high, max(values), step=control.step, **common)
    if about.kind in (int, float) and about.parse is None:
        return gr.Number(value, minimum=about.least or 0,
                         precision=0 if about.kind is int else None, **common)
    text = "" if value is None else ",".join(map(str, values))
    return gr.Textbox(text, max_lines=1, placeholder=about.unset, **common)


@dataclass(frozen=True)
class Bar:
    """The bar of a tab: it says the state of the results in a view, and has the buttons that change
    it.

    Attributes:
        view: the element id of the component with the results.
        stopped: the component whose event stops the decode: the Stop button, while a decode waits
            or runs.
        report: what the decode tells the page: "" at first, `TURN` from its first frame on, or why
            it has failed.
    """

    view: str
    stopped: gr.HTML
    report: gr.Textbox


def buttons_of(
    decoding: VisitorDecoding, tab: str, view: str, *names: str, verb: str = "Drawing",
) -> tuple[list[gr.Button], Bar]:
    """Lay out a tab's bar, and return its buttons, the first one as its main one, and the bar.

    `tab` is the suffix of the element ids, "" or for example "-text"; `names` are the texts of the
    buttons, and `verb` is what the bar says while a decode runs.
    """
    ids = [f"run{tab}", *(f"{name.split()[0].lower()}{tab}" for name in names[1:])]
    with gr.Row(elem_classes="sr-actions"):
        gr.HTML(f'<div class="sr-state" data-view="{view}" data-verb="{verb}"><span '
                'role="status"></span><span aria-hidden="true"></span></div>', padding=False,
                min_height=0)
        buttons = [gr.Button(name, variant="secondary" if place else "primary", elem_id=ids[place],
                             min_width=100)
                   for place, name in enumerate(names)]
        stop = gr.Button("Stop", variant="stop", elem_id=f"stop{tab}", min_width=100)
        report = gr.Textbox(visible="hidden", show_label=False, elem_id=f"report{tab}")
        stopped = listener(f"stop-{view}")
        ask_place(decoding, view)
    report.change(None, report, None, **script("report", view, "report"))
    stop.click(None, None, None, **script("stop", view))
    return buttons, Bar(view, stopped, report)


def listener(name: str) -> gr.HTML:
    """Lay out a hidden component whose event `input` is the event "superres-NAME" of the page's
    script."""
    return gr.HTML("", html_template="", js_on_load=LISTENER % name, visible="hidden",
                   elem_id=f"listener-{name}")


def ask_place(decoding: VisitorDecoding, view: str) -> None:
    """Lay out the hidden components by which the page asks how many requests are before the one of
    a view."""
    asked = listener(f"place-{view}")
    place = gr.Number(visible="hidden", show_label=False, elem_id=f"place-{view}")
    page = cast(gr.Blocks, Context.root_block)

    async def find_place() -> int | None:  # in the loop that changes the queue
        visitor = VISITOR.get() or Visitor()
        queued = cast(FairQueue, page._queue).before(visitor, view)
        return decoding.before(visitor) if queued is None else queued

    answered = asked.input(find_place, None, place, **INSTANT)
    answered.success(None, place, None, **script("place", view, "place"))


def decode_on(
    triggers: Sequence[Any], handler: Callable[..., Iterator[Any]],
    inputs: Sequence[gr.components.Component], outputs: Sequence[gr.components.Component], bar: Bar,
    cleared: Sequence[gr.components.Component] = (),
) -> None:
    """Decode when an event, such as a button's `click`, triggers it, unless a decode of the view
    waits or runs.

    `handler` decodes for values of `inputs`, and yields values of `outputs`. The first of them
    shows the frames: it is `gr.skip()` until the decode has its turn. The components `cleared`
    become empty when the decode begins.
    """
    for trigger in triggers:
        begun = trigger(None, None, [bar.report, *cleared],
                        **script("begin", bar.view, value=str(1 + len(cleared))))
        started = begun.success(telling(handler, len(outputs)), inputs, [*outputs, bar.report],
                                show_progress="hidden", api_visibility="private", **QUEUED)
        started.success(None, None, None, **script("end", bar.view))
        started.failure(None, bar.report, None, **script("fail", bar.view, "report"))
        bar.stopped.input(None, None, None, cancels=[started], **INSTANT)


def telling(handler: Callable[..., Iterator[Any]],
            outputs: int) -> Callable[..., Iterator[tuple[Any, ...]]]:
    """Return a handler of `outputs` outputs with one more: what the decode tells the page, see
    `Bar`."""
    def handle(*values: Value) -> Iterator[tuple[Any, ...]]:
        report: Any = gr.skip()
        try:
            with contextlib.closing(handler(*values)) as frames:  # type: ignore[type-var]
                for frame in frames:
                    shown = frame if isinstance(frame, tuple) else (frame,)
                    report = report if shown[0] == gr.skip() else TURN
                    yield *shown, report
        except Exception as error:
            shown_error = shown_to_visitor(error)
            yield *[gr.skip()] * outputs, unescape(str(shown_error.message))
            raise shown_error from None

    return handle


def script(function: str, view: str, parameter: str = "", value: str = "") -> dict[str, Any]:
    """Return the options of an event that calls a function of `static/page.js` for the element id
    of a view.

    Its second argument is the value of the event's input, as `parameter`, or `value` in JavaScript.
    """
    more = f", {parameter or value}" if parameter or value else ""
    return {"js": f"({parameter}) => superres.{function}('{view}'{more})", **INSTANT}


def note_changes(bar: Bar, inputs: Iterable[gr.components.Component]) -> None:
    """Mark the results of a bar's view as stale once a component in `inputs` has changed."""
    for component in inputs:
        # The server changes settings, too, for example the seed; uploads and texts are new whoever
        # changes them.
        is_new = isinstance(component, (gr.Image, gr.File)) or component.elem_id == "text"
        getattr(component, "change" if is_new else "input")(None, None, None,
                                                            **script("change", bar.view))


def visibility(is_visible: bool) -> bool | Literal["hidden"]:
    """Return the `visible` of a component that stays in the page: Gradio may lose an update that
    first adds one."""
    return is_visible or "hidden"


def named(handler: Callable[..., T], *names: str) -> Callable[..., T]:
    """Return a handler whose variable positional arguments have `names`, so that programs can give
    them by name."""
    signature = inspect.signature(handler)
    own = [parameter for parameter in signature.parameters.values() if parameter.kind
           is not parameter.VAR_POSITIONAL]
    more = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    handler.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
    return handler


def options_of(
    default: DecodeConfig, values: Iterable[Value], task: str = FACES,
) -> DecodeConfig:
    """Return `default` with values of the controls, any JSON values in the order of `offered`;
    ConfigError if bad.

    A block size of 0 leaves it to `default`.
    """
    given = {}
    for (name, about), value in zip(offered(default, task).items(), values, strict=True):
        if about.parse is not None:
            is_unset = about.unset is not None and value in (None, "")
            given[name] = None if is_unset else about.read(
                name, value if isinstance(value, str) else shown(value)
            )
        else:
            given[name] = whole_number(name.replace("_", " "),
                                       value) if about.kind is int else value
    if given["block_size"] == 0:
        del given["block_size"]
    return default.changed(given)


def whole_number(name: str, value: Value, least: int = 1 - 2**63, most: int = 2**63 - 1) -> int:
    """Return a value of the control `name` as a whole number from `least` to `most`; ConfigError if
    it is none."""
    require(is_number(value) and value % 1 == 0 and abs(value) < 2**63,
            f"{name} must be a whole number below 2**63, not {shown(value)}")
    require_whole(name, int(value), least, most)
    return int(value)


def shown_to_visitor(error: Exception) -> gr.Error:
    """Return an error as the page shows it.

    Of an error that is not the visitor's, the type and the place are logged; its text may be
    visitors' data.
    """
    if isinstance(error, (InvalidPathError, OSError)):
        error = InvalidInputError(f"the file {NOT_UPLOADED}")
    if isinstance(error, SuperresError):
        # Messages spell options as on the command line. The page renders the text as HTML.
        return gr.Error(escape(str(error).replace("--", ""), quote=False), print_exception=False)
    logging.getLogger(__name__).error("%s\n%s", type(error).__name__,
                                      "".join(traceback.format_tb(error.__traceback__)))
    return gr.Error("something went wrong on the server; the server's log has the error",
                    print_exception=False)
