"""The command line `superres`: its commands, and one line on standard error for every error.

A new command is a function in a module of this package. Register it below with `app.command()`, or
with `decoding_command` if it has options for decoding settings. Modules that are slow to import
(torch) are imported inside the commands, so that help and usage errors appear at once.
"""

from __future__ import annotations

import logging
import re
import signal
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from superres import __version__
from superres.cli.app import serve_demo
from superres.cli.benchmark import benchmark_app
from superres.cli.evaluate import calibrate, evaluate_app
from superres.cli.export import export_app
from superres.cli.info import info
from superres.cli.options import HelpfulCommand, decoding_command
from superres.cli.survey import survey_app
from superres.cli.train import train_app
from superres.cli.translate import translate
from superres.cli.tune import tune
from superres.cli.upscale import manifest_app, upscale
from superres.config import FACES, TRANSLATION
from superres.errors import SuperresError, extra_needed
from superres.system import signals
from superres.system.progress import say
from superres.system.terminal import PrintableFormatter, StandardOutputError, echo, standard_output

INTERRUPTED = 128 + signal.SIGINT  # exit code after Ctrl-C, as shells use it
NOT_READ = 141  # exit code if the reader of standard output has closed it, as shells use it
EXTRAS = {"app": "ui", "survey": "survey", "train": "train"}
"""The extra that a command needs; what others lack is in the extra torch."""
# typer's errors have no public base class; typer's version decides whether they come from click or
# from typer.
USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]

app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None,
                  context_settings={"help_option_names": ["-h", "--help"]})


def print_version(asked: bool) -> None:
    """Print the version and exit if `asked`."""
    if asked:
        echo(f"superres {__version__}")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", callback=print_version, is_eager=True,
                                       help="Print the version.")]


@app.callback()
def superres(version: Version = False) -> None:
    """Upscale faces of a few pixels, and translate, by blockwise parallel decoding."""


decoding_command(app, FACES)(upscale)
decoding_command(app, TRANSLATION)(translate)
app.command(cls=HelpfulCommand)(tune)
app.command(cls=HelpfulCommand)(calibrate)
app.command(cls=HelpfulCommand)(info)
app.command("app", cls=HelpfulCommand)(serve_demo)
for name, group in (("evaluate", evaluate_app), ("train", train_app), ("benchmark", benchmark_app),
                    ("survey", survey_app), ("manifest", manifest_app), ("export", export_app)):
    app.add_typer(group, name=name)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, by default that of this process, and return its exit code.

    Errors that a user can cause become one line on standard error.
    """
    if logging.lastResort is not None:  # prints the warnings of libraries
        logging.lastResort.setFormatter(PrintableFormatter())
    words = sys.argv[1:] if arguments is None else list(arguments)
    command = "".join(words[:1])
    needed = extra_needed(f"superres {command}", EXTRAS.get(command, "torch"), "torch")
    try:
        with signals.handled(), standard_output(), needed:
            code = app(args=words, prog_name="superres", standalone_mode=False)
    except USAGE_ERROR as error:
        context = getattr(error, "ctx", None)
        command = "superres" if context is None else context.command_path
        return _refuse(f"{str(error.format_message()).rstrip('.')}; see {command} --help")  # type: ignore[attr-defined]
    except StandardOutputError as error:
        return NOT_READ if isinstance(error.__cause__, BrokenPipeError) else _refuse(str(error), 1)
    except SuperresError as error:
        return _refuse(str(error))
    except UnicodeEncodeError as error:
        if not re.search("[\ud800-\udfff]", error.object):
            raise
        place = error.object[max(0, error.start - 20):error.end + 20]
        return _refuse(f"{place!r} contains bytes that are not UTF-8; give text in UTF-8")
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    if code == INTERRUPTED:  # newer releases of typer turn the interrupt into this code themselves
        return _refuse(signals.ending(), signals.exit_code())
    return code if isinstance(code, int) else 0


def _refuse(message: str, code: int = 2) -> int:
    say(message)
    return code


def main() -> None:
    """Run the command line of this process and exit."""
    sys.exit(run())
