"""Flower's SuperLink on a free port of loopback, and runs of an app on it by ``flwr run``."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).resolve().parent.parent
_OVER = ("in force now", "the task is as it was", "Traceback")  # what our server says last, or Python does
_LISTENS_S = 120


def free_port() -> int:
    """One that nothing listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class SuperLink:
    """A SuperLink with everything of its own in ``folder``; it ends with the ``with``.

    ``options`` are its command line's, ``access`` the lines by which ``flwr`` reaches it.
    """

    def __init__(self, folder: Path, flower: Path, options: Sequence[str], access: str) -> None:
        self.folder, self.flower, self._options, self._access = folder, flower, options, access
        self.port = free_port()
        paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        self.environment = {**os.environ, "FLWR_HOME": str(folder / "home"), "PYTHONPATH": os.pathsep.join(paths)}
        self.environment |= {"PATH": f"{flower}{os.pathsep}{os.environ['PATH']}", "FLWR_TELEMETRY_ENABLED": "0"}
        self.environment |= {"ORT_DISABLE_TELEMETRY": "1", "FLWR_DISABLE_UPDATE_CHECK": "1"}

    def __enter__(self) -> Self:
        (self.folder / "home").mkdir()
        lines = f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{self.port}"\n{self._access}\n'
        (self.folder / "home" / "config.toml").write_text(lines)
        more = ("--disable-runtime-dependency-installation", "--port", str(self.port))
        with (self.folder / "superlink.log").open("wb") as log:
            command = [str(self.flower / "flower-superlink"), *self._options, *more]
            self._process = subprocess.Popen(command, **self.surroundings(log))
        for _ in range(_LISTENS_S):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return self
            time.sleep(1)
        self.__exit__()
        raise SystemExit(f"the SuperLink does not listen: {(self.folder / 'superlink.log').read_text()[-800:]}")

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def surroundings(self, log: Any) -> dict[str, Any]:
        """Of a program, for ``Popen``: what it starts dies with its group."""
        where = {"env": self.environment, "cwd": self.folder, "start_new_session": True}
        return {**where, "stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}

    def run(self, app: Path, config: dict[str, Any], *more: str, said: Callable[[str], None] = lambda _: None) -> str:
        """What a run of the app printed; ``said`` is given each line as it comes, ``more`` is for ``flwr run``."""
        told = self.folder / "run.toml"
        told.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in config.items()))
        command = [str(self.flower / "flwr"), "run", str(app), "--run-config", str(told), "--stream", *more]
        lines = list[str]()
        piped: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        with subprocess.Popen(command, env=self.environment, **piped) as done:
            assert done.stdout is not None
            for line in done.stdout:
                lines.append(line)
                sys.stderr.write(line)
                said(line)
                if any(words in line for words in _OVER):
                    time.sleep(2)  # the rest of what it says
                    done.terminate()
        return "".join(lines)

    def problem(self, printed: str) -> SystemExit:
        """What there is to know where a run gave no result."""
        logs = "".join(path.read_text()[-1500:] for path in sorted(self.folder.glob("*.log")))
        return SystemExit(f"{printed[-3000:]}\n{logs}\nthe run gave no result")
