"""The ``edgepeft`` command: finds the verbs, turns errors into messages and exit codes."""

import contextlib
import errno
import importlib
import io
import keyword
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NoReturn

# ONNX Runtime >= 1.29 sends telemetry on Linux unless this is set before its import.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import typer
from typer import Option
from typer.core import TyperGroup

from edgepeft import __version__
from edgepeft.cli._output import INTERRUPTED
from edgepeft.common.errors import EdgepeftError
from edgepeft.common.messages import printable
from edgepeft.common.progress import heartbeat
from edgepeft.common.registry import modules_of, names_of

# click's ClickException, which newer versions of typer carry themselves.
_Refused: type[Exception] = typer.BadParameter.__mro__[2]
_NoArguments = sys.modules[_Refused.__module__].NoArgsIsHelpError

_MAX_SAID = 4000  # characters of an error

_PANELS = ("Train", "Deploy", "Measure", "Fleet", "Look")  # by what a user does; each verb names its own


class _Verbs(TyperGroup):
    """The modules of ``edgepeft.cli`` as commands; one that is asked for by name is imported alone."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The verb; None, with all of them known for a suggestion, where there is none."""
        if cmd_name not in self.commands:
            module = f"{cmd_name}_" if cmd_name in keyword.kwlist else cmd_name
            if module in names_of("edgepeft.cli") and not cmd_name.endswith("_"):
                self._add(importlib.import_module(f"edgepeft.cli.{module}"))
            else:
                self.list_commands(ctx)
        return super().get_command(ctx, cmd_name)

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of all, panel by panel."""
        modules = sorted(modules_of("edgepeft.cli"), key=lambda module: _PANELS.index(module.PANEL))
        return [self._add(module) for module in modules]

    def _add(self, module: ModuleType) -> str:
        # import_.py holds the verb import, which Python keeps for itself.
        name = module.__name__.rsplit(".", 1)[-1].rstrip("_")
        if name not in self.commands:
            verb = typer.Typer(add_completion=False)
            verb.command(name=name, help=module.__doc__, rich_help_panel=module.PANEL)(module.command)
            self.commands[name] = typer.main.get_command(verb)
        return name


app = typer.Typer(
    cls=_Verbs,
    name="edgepeft",
    help="Many parameter-efficient tasks on one frozen Transformer, on one small board.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"edgepeft {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
) -> None:
    """Many parameter-efficient tasks on one frozen Transformer, on one small board."""


@contextlib.contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """SIGTERM interrupts as Ctrl-C does, so that nothing half done is left behind; then it ends the process."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    came = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True
        signal.default_int_handler(number, frame)

    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if came:
            with contextlib.suppress(OSError):
                sys.stdout.flush()
            os.kill(os.getpid(), signal.SIGTERM)


def _note(message: Warning | str, *_: Any, **__: Any) -> None:
    with contextlib.suppress(OSError):  # a log's full disk stops no work; Python's own loses a warning there, too
        print(f"note: {printable(str(message))}", file=sys.stderr)


@_interrupted_by_sigterm()
def main(command: typer.Typer = app) -> None:
    """Run a command line, by default ``edgepeft``'s; expected errors become one line on standard error."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a text or path that the terminal has no characters for
    for kind in (UserWarning, RuntimeWarning):  # a verb's notes, which Python's -W neither hides nor raises
        warnings.filterwarnings("default", category=kind, module="edgepeft")
    warnings.showwarning = _note
    try:
        Path.cwd()
    except FileNotFoundError:
        _fail("this folder was removed or replaced while you were in it: cd into one that is there, then repeat.", 1)
    except OSError:  # a folder above may not be read, which a verb need not
        pass
    # Behind --out= no shell has seen a ~.
    sys.argv[1:] = [re.sub("^(--[a-z-]+=)~(?=/|$)", lambda at: at[1] + str(Path.home()), arg) for arg in sys.argv[1:]]
    try:
        with heartbeat(" ".join(["edgepeft", *sys.argv[1:2]])):
            code = command(standalone_mode=False)
    except EdgepeftError as error:
        _fail(str(error), error.exit_code)
    except _Refused as error:
        _refuse(error)
    except BrokenPipeError:
        # The reader of our output left; writing to the closed pipe at exit would print a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            _fail("no space left on the disk. Free some space, then repeat.", 1)
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error) or type(error).__name__
        _fail(f"{what}. Put that right, then repeat.", 1)
    if code == INTERRUPTED:  # typer turns Ctrl-C into this, without a word
        print("interrupted", file=sys.stderr)
    sys.exit(code or 0)


def _fail(message: str, code: int) -> NoReturn:
    if len(message) > _MAX_SAID:  # a file's names may be millions; what to do stands at the end
        message = f"{message[: _MAX_SAID * 3 // 4]} [...] {message[-_MAX_SAID // 4 :]}"
    print(f"error: {printable(message)}", file=sys.stderr)
    sys.exit(code)


def _refuse(error: Any) -> NoReturn:
    """What typer found wrong with the command line, as one line of our own."""
    if isinstance(error, _NoArguments):
        error.show()  # the help
        sys.exit(error.exit_code)
    said = error.format_message().replace("Value error, ", "", 1)  # pydantic's, by which newer versions of typer check
    option = getattr(error, "param", None)
    if type(error).__name__ == "MissingParameter" and option is not None and option.param_type_name == "option":
        given = {word.partition("=")[0] for word in sys.argv[1:]}
        needed = [each for each in error.ctx.command.params if each.required and each.param_type_name == "option"]
        missing = [f"'{each.opts[0]}'" for each in needed if given.isdisjoint(each.opts)]
        if len(missing) > 1:  # typer names the first alone, and so one more each time that it is asked
            said = f"Missing options {', '.join(missing)}."
    where = "" if error.ctx is None else f" See: {error.ctx.command_path} --help."
    _fail(f"{said}{'' if said.endswith(('.', '?')) else '.'}{where}", error.exit_code)
