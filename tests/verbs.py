"""The command line as a user has it: a process of its own, its output, and no traceback ever."""

import os
import subprocess
import sys

ENTRY = "import sys; from edgepeft.cli._main import main; main()"


def edgepeft(*arguments):
    """Run a verb and return what it printed and its exit code."""
    environment = os.environ | {"NO_COLOR": "1", "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-c", ENTRY, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return done
