"""Flower over loopback: a SuperLink, runs of an app on it, SuperNodes under a device's limits, relays that count.

Nodes have TLS and a registered key each.  What a node holds in memory is read of its processes; what it sends and gets
is counted by a relay between it and the SuperLink: bytes at the wire, TLS, HTTP/2 and heartbeats with them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Self

import psutil

from bench.averaging import split, write_rows
from edgepeft.device.limited_process import LimitedProcess
from edgepeft.device.placement import Limits

_PIECE_BYTES = 64 << 10
ROOT = Path(__file__).resolve().parent.parent
_OVER = ("in force now", "the task is as it was", "Traceback")  # what our server says last, or Python does
_LISTENS_S = 120


def prepared(args: argparse.Namespace, work: Path) -> tuple[list[Path], Path, dict[str, Any]]:
    """Rows a board, the app, and what all runs of it are told; the server's bundle is ``bundle`` in ``work``."""
    rows = [json.loads(line) for line in args.data.read_text().splitlines()][: args.rows]
    parts = split(rows, args.boards, args.skew, args.seed)
    paths = [write_rows(work / f"rows-{board}.jsonl", part) for board, part in enumerate(parts)]
    bundle = shutil.copytree(args.bundle, work / "bundle")
    app = shutil.copytree(ROOT / "exports" / "flower", work / "app", ignore=shutil.ignore_patterns("__pycache__"))
    config = {"task": args.task, "bundle": str(bundle), "data": str(args.server), "seed": args.seed}
    return paths, Path(app), config | {"rounds": args.rounds, "steps": args.steps}


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


def problem(folder: Path, printed: str) -> SystemExit:
    """What there is to know where a run in a folder gave no result."""
    logs = "".join(path.read_text()[-1500:] for path in sorted(folder.glob("*.log")))
    return SystemExit(f"{printed[-3000:]}\n{logs}\nthe run gave no result")


class Relay:
    """Passes connections to ``port`` on to the server's; ``up`` are bytes to the server, ``down`` those from it."""

    def __init__(self, server_port: int) -> None:
        self.up = self.down = 0
        self._server_port, self._counting = server_port, threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections; those that are open end with their ends."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # a close alone does not wake accept
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                board, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._server_port))
                for ends in ((board, server, "up"), (server, board, "down")):
                    threading.Thread(target=self._pass, args=ends, daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        with contextlib.suppress(OSError):  # either end has left
            while piece := source.recv(_PIECE_BYTES):
                with self._counting:  # a board may have several connections
                    setattr(self, way, getattr(self, way) + len(piece))
                sink.sendall(piece)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


def keys(folder: Path, boards: int) -> None:
    """A certificate for loopback, its own authority, and a pair of keys a board."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    plain = serialization.NoEncryption()
    key, name = (
        ec.generate_private_key(ec.SECP384R1()),
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "loopback")]),
    )
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))])
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    now = datetime.now()
    made = made.not_valid_before(now - timedelta(1)).not_valid_after(now + timedelta(30))
    made = made.add_extension(names, False).add_extension(x509.BasicConstraints(True, None), True)
    pem = made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    (folder / "server.pem").write_bytes(pem)
    private = serialization.PrivateFormat.PKCS8
    (folder / "server.key").write_bytes(key.private_bytes(serialization.Encoding.PEM, private, plain))
    for board in range(boards):
        own, ssh = ec.generate_private_key(ec.SECP384R1()), serialization.PrivateFormat.OpenSSH
        (folder / f"board-{board}").write_bytes(own.private_bytes(serialization.Encoding.PEM, ssh, plain))
        public = own.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        (folder / f"board-{board}.pub").write_bytes(public)


class Node:
    """A SuperNode under limits, what it started with it, and the relay through which it speaks."""

    def __init__(self, process: LimitedProcess, relay: Relay) -> None:
        self.process, self.relay = process, relay
        self.peak_bytes = 0  # of all its processes together, pages that several share counted in parts

    def look(self, programs: dict[str, int]) -> None:
        """Note what is in memory now; ``programs`` is the most that any process of a program had resident."""
        together = 0
        with contextlib.suppress(psutil.Error):
            root = psutil.Process(self.process.popen.pid)
            for each in (root, *root.children(recursive=True)):
                program, held = Path([*each.cmdline(), "", ""][1]).name, each.memory_full_info()
                programs[program] = max(programs.get(program, 0), held.rss)
                together += held.pss
        self.peak_bytes = max(self.peak_bytes, together)

    def end(self) -> None:
        """Kill it and all that it started; may be called twice."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.popen.pid, signal.SIGKILL)
        self.process.close()
        self.relay.close()

    def account(self) -> dict[str, Any]:
        """Its limits as the kernel has them, and its memory; ``group_peak_bytes`` has the files' pages that it read."""
        group = {"group_peak_bytes": self.process.peak_bytes(), "killed_for_memory": self.process.oom_killed()}
        return {"in_force": asdict(self.process.in_force), "peak_bytes": self.peak_bytes, **group}


class Federation(SuperLink):
    """With a SuperNode for each of ``configs``, what it is told of its place, under ``limits``."""

    def __init__(self, folder: Path, flower: Path, configs: list[dict[str, Any]], limits: Limits) -> None:
        files = {"--ssl-certfile": "server.pem", "--ssl-keyfile": "server.key", "--ssl-ca-certfile": "server.pem"}
        tls = [part for option, name in files.items() for part in (option, str(folder / name))]
        access = f'root-certificates = "{folder}/server.pem"'
        super().__init__(folder, flower, [*tls, "--enable-supernode-auth"], access)
        self.configs, self.limits = configs, limits
        self.nodes, self.programs, self._over = list[Node](), dict[str, int](), threading.Event()
        self.wire = list[dict[str, list[int]]]()  # what had passed when a round began, and at the end

    def __enter__(self) -> Self:
        keys(self.folder, len(self.configs))
        super().__enter__()
        try:
            for board, config in enumerate(self.configs):
                self.nodes.append(self._node(board, config, Relay(self.port)))
        except BaseException:
            self.__exit__()
            raise
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for node in self.nodes:
            node.end()
        super().__exit__()

    def _node(self, board: int, config: dict[str, Any], relay: Relay) -> Node:
        own = self.folder / f"board-{board}"
        register = [str(self.flower / "flwr"), "supernode", "register", f"{own}.pub"]
        subprocess.run(register, env=self.environment, check=True, stdout=subprocess.DEVNULL)
        told = " ".join(f"{name}={json.dumps(value)}" for name, value in config.items())
        link = ("--root-certificates", str(self.folder / "server.pem"), "--superlink", f"127.0.0.1:{relay.port}")
        key = ("--auth-supernode-private-key", str(own), "--port", str(free_port()))
        command = [str(self.flower / "flower-supernode"), *link, *key, "--node-config", told]
        with Path(f"{own}.log").open("wb") as log:
            return Node(LimitedProcess(command, self.limits, **self.surroundings(log)), relay)

    def _watch(self) -> None:
        while not self._over.wait(1):
            for node in self.nodes:
                node.look(self.programs)

    def _count(self) -> None:
        relays = [node.relay for node in self.nodes]
        self.wire.append({"up": [each.up for each in relays], "down": [each.down for each in relays]})

    def rounds(self, app: Path, config: dict[str, Any], kill: int | None = None) -> str:
        """What a run printed; ``kill`` is a board that is killed in round 2."""

        def said(line: str) -> None:
            if "[ROUND " in line:
                self._count()
            if kill is not None and "[ROUND 2/" in line:
                time.sleep(4)  # it has its message by then
                self.nodes[kill].end()

        printed = self.run(app, config, said=said)
        self._count()
        return printed

    def bytes_a_round(self) -> dict[str, int]:
        """Of a board, the mean over boards and rounds: to the server and from it, at the wire."""
        if len(self.wire) < 2:
            return {}
        first, last = self.wire[0], self.wire[-1]
        n = (len(self.wire) - 1) * len(self.nodes)
        return {way: round((sum(last[way]) - sum(first[way])) / n) for way in first}
