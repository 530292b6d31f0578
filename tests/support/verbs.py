"""The command line as a user has it: its output, its exit code, and no traceback ever."""

import contextlib
import io
import json
import os
import subprocess
import sys
from typing import Any
from unittest import mock

ENTRY = "import sys; from edgepeft.cli._main import main; main()"
SURROUNDING = {"NO_COLOR": "1", "COLUMNS": "200"}


def edgepeft(*arguments):
    """Run a verb in this process, as its entry point does; return what it printed and its exit code.

    An import of PyTorch takes seconds.  What a traceback would tell is raised here, and fails the test.
    """
    from edgepeft.cli._main import main

    argv, code = ["edgepeft", *map(str, arguments)], 0
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="\n") for _ in range(2))
    with (
        mock.patch.dict(os.environ, SURROUNDING),
        mock.patch.object(sys, "argv", argv),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        _threads_of_torch(),
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    assert isinstance(code, int), code
    return subprocess.CompletedProcess(argv, code, _text(out), _text(err))


SMALL_ADAPTER = ("--method", "pfeiffer", "--set", "bottleneck=4", "--max-length", 16)  # of `train`, for a tiny backbone


def verb(*words: object) -> Any:
    """The same by Typer's runner, which keeps the exception of a failure: ``exit_code``, ``output``, ``exception``."""
    from typer.testing import CliRunner

    from edgepeft.cli._main import app

    return CliRunner().invoke(app, [str(word) for word in words])


def shown(*words: object) -> Any:
    """The JSON that a verb prints, which succeeds."""
    done = verb(*words)
    assert done.exit_code == 0, (done.output, done.exception)
    return json.loads(done.stdout)


def process(*arguments):
    """The same in a process of its own, where it is the process that is tested: its bytes, its locks, its signals."""
    command = [sys.executable, "-c", ENTRY, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | SURROUNDING, check=False)
    assert "Traceback" not in done.stderr
    return done


@contextlib.contextmanager
def _threads_of_torch():
    """A verb that learns takes as many as there are cores, and keeps them."""
    torch = sys.modules.get("torch")
    before = torch and torch.get_num_threads()
    try:
        yield
    finally:
        if torch:
            torch.set_num_threads(before)


def _text(stream):
    stream.flush()
    return stream.buffer.getvalue().decode()
