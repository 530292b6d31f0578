"""Federated tuning over loopback, with TLS and node authentication, beside boards alone and all rows in one place.

    python -m bench.federated BUNDLE --task mood --data train.jsonl --server server.jsonl --test test.jsonl \\
        --flower VENV/bin [--boards 3] [--rows 1500] [--skew 0.5] [--config 'aggregate="product"'] [--fault nan]

A SuperLink and a SuperNode a board, started anew, each with a key of its own, run exports/flower.  Boards alone take as
many steps as a board in all rounds; all rows in one place as many as all boards together.  All scores are of --test, by
the tensors that are there last.  ``--fault nan`` or ``shape`` has the first board answer so,
``kill`` kills it in round 2.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Iterator
from datetime import datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from edgepeft import Bundle, LocalTuner, TuneOptions
from edgepeft.errors import EdgepeftError
from edgepeft.host.machine import host_facts
from edgepeft.runtime.audit import audit
from edgepeft.runtime.tuning.subject import Files

ROOT = Path(__file__).resolve().parent.parent
APP = ROOT / "exports" / "flower"
_FAULTY = '''

_sound = tuner_of


def tuner_of(run, here):
    """What a broken board gives."""
    import dataclasses, types
    tuner, fault = _sound(run, here), here.get("fault")
    broken = {"nan": lambda tensor: tensor * np.nan, "shape": lambda tensor: tensor[:1]}.get(fault)
    if broken is None:
        return tuner

    def steps(*args, **more):
        done = tuner.steps(*args, **more)
        return dataclasses.replace(done, tensors={name: broken(tensor) for name, tensor in done.tensors.items()})

    return types.SimpleNamespace(steps=steps, score=tuner.score)
'''


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


def split(rows: list[dict[str, Any]], boards: int, skew: float | None, seed: int) -> list[list[dict[str, Any]]]:
    """Rows a board: evenly, or of each label by shares from a Dirichlet distribution (Hsu et al., 2019,
    arXiv:1909.06335)."""
    draw, parts = np.random.default_rng(seed), [list[dict[str, Any]]() for _ in range(boards)]
    for label in sorted({row["label"] for row in rows}):
        own = [row for row in rows if row["label"] == label]
        shares = np.full(boards, 1 / boards) if skew is None else draw.dirichlet([skew] * boards)
        ends = (np.cumsum(shares) * len(own)).round().astype(int)
        for part, start, end in zip(parts, [0, *ends], ends, strict=False):
            part.extend(own[start:end])
    for part in parts:
        draw.shuffle(part)
    return parts


def free_port() -> int:
    """One that nothing listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Federation:
    """A SuperLink and its SuperNodes; all of them end with the ``with``."""

    def __init__(self, folder: Path, flower: Path, nodes: list[dict[str, Any]]) -> None:
        self.folder, self.flower, self.nodes = folder, flower, nodes
        self.processes, self._over = list[subprocess.Popen[bytes]](), threading.Event()
        self.peaks = dict[str, int]()
        paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        self.environment = {**os.environ, "FLWR_HOME": str(folder / "home"), "PYTHONPATH": os.pathsep.join(paths)}
        self.environment |= {"PATH": f"{flower}{os.pathsep}{os.environ['PATH']}", "FLWR_TELEMETRY_ENABLED": "0"}
        self.environment |= {"ORT_DISABLE_TELEMETRY": "1", "FLWR_DISABLE_UPDATE_CHECK": "1"}

    def start(self, log: str, *command: str) -> subprocess.Popen[bytes]:
        """One of Flower's programs, in a group of its own."""
        with (self.folder / f"{log}.log").open("wb") as file:
            process = subprocess.Popen(
                [str(self.flower / command[0]), *command[1:]],
                env=self.environment, stdout=file, stderr=file, start_new_session=True, cwd=self.folder,
            )  # fmt: skip
        self.processes.append(process)
        return process

    def __enter__(self) -> Federation:
        port, folder = free_port(), self.folder
        keys(folder, len(self.nodes))
        (folder / "home").mkdir()
        lines = ('[superlink]\ndefault = "here"\n[superlink.here]\n', f'address = "127.0.0.1:{port}"\n')
        (folder / "home" / "config.toml").write_text("".join(lines) + f'root-certificates = "{folder}/server.pem"\n')
        files = {"--ssl-certfile": "server.pem", "--ssl-keyfile": "server.key", "--ssl-ca-certfile": "server.pem"}
        tls = [part for option, name in files.items() for part in (option, str(folder / name))]
        more = ("--enable-supernode-auth", "--disable-runtime-dependency-installation", "--port", str(port))
        self.start("superlink", "flower-superlink", *tls, *more)
        self._listening(port)
        for board, config in enumerate(self.nodes):
            public = str(folder / f"board-{board}.pub")
            subprocess.run(
                [str(self.flower / "flwr"), "supernode", "register", public], env=self.environment, check=True
            )
            told = " ".join(f"{name}={json.dumps(value)}" for name, value in config.items())
            link = ("--root-certificates", str(folder / "server.pem"), "--superlink", f"127.0.0.1:{port}")
            own = ("--auth-supernode-private-key", str(folder / f"board-{board}"), "--port", str(free_port()))
            self.start(f"board-{board}", "flower-supernode", *link, *own, "--node-config", told)
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for process in reversed(self.processes):
            self.end(process)

    def _listening(self, port: int, seconds: int = 120) -> None:
        for _ in range(seconds):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return
            time.sleep(1)
        raise SystemExit(f"the SuperLink does not listen: {(self.folder / 'superlink.log').read_text()[-800:]}")

    @staticmethod
    def end(process: subprocess.Popen[bytes]) -> None:
        """The process and all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def _watch(self) -> None:
        """The most resident memory of any of the boards' processes, by program."""
        while not self._over.wait(0.25):
            for process in self.processes[1:]:
                with contextlib.suppress(psutil.Error):
                    root = psutil.Process(process.pid)
                    for each in (root, *root.children(recursive=True)):
                        program = Path([*each.cmdline(), "", ""][1]).name
                        self.peaks[program] = max(self.peaks.get(program, 0), each.memory_info().rss)

    def run(self, app: Path, config: dict[str, Any], kill: int | None = None) -> str:
        """What a run printed; ``kill`` is a board that is killed in round 2."""
        told = self.folder / "run.toml"
        told.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in config.items()))
        command = [str(self.flower / "flwr"), "run", str(app), "--run-config", str(told), "--stream"]
        lines = list[str]()
        piped: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        with subprocess.Popen(command, env=self.environment, **piped) as done:
            assert done.stdout is not None
            for line in done.stdout:
                lines.append(line)
                sys.stderr.write(line)
                if kill is not None and "[ROUND 2/" in line:
                    time.sleep(4)  # it has its message by then
                    self.end(self.processes[1 + kill])
                    kill = None
                if "in force now" in line or "the task is as it was" in line or "Traceback" in line:
                    time.sleep(2)
                    done.terminate()
        return "".join(lines)


def score(bundle: Path, task: str, server: Path, test: Path) -> float:
    """Of the task as the bundle has it."""
    tuner = LocalTuner(bundle, task, Files(server, None, test))
    return tuner.score(tuner.tensors, "test").score


def tuned(bundle: Path, task: str, rows: Path, test: Path, options: TuneOptions) -> float:
    """Of all steps on rows of one place."""
    tuner = LocalTuner(bundle, task, Files(rows, None, test), options)
    return tuner.score(tuner.steps(tuner.tensors, tuner.n_steps).tensors, "test").score


@contextlib.contextmanager
def boards(args: argparse.Namespace) -> Iterator[tuple[Path, list[Path]]]:
    """A folder with a bundle and rows a board, the server's bundle and all rows."""
    with tempfile.TemporaryDirectory(prefix="federated-") as name:
        work = Path(name)
        rows = [json.loads(line) for line in args.data.read_text().splitlines()][: args.rows]
        paths = []
        for board, part in enumerate(split(rows, args.boards, args.skew, args.seed)):
            shutil.copytree(args.bundle, work / f"bundle-{board}")
            paths.append(work / f"rows-{board}.jsonl")
            paths[-1].write_text("".join(json.dumps(row) + "\n" for row in part))
        shutil.copytree(args.bundle, work / "bundle")
        (work / "all.jsonl").write_text("".join(path.read_text() for path in paths))
        yield work, paths


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """One federation, and what it is compared with."""
    with boards(args) as (work, paths):
        counts = [len(path.read_text().splitlines()) for path in paths]
        nodes = [
            {"bundle": f"{work}/bundle-{i}", "data": str(path), "work": f"{work}/work-{i}", "threads": 1}
            for i, path in enumerate(paths)
        ]
        if args.fault in {"nan", "shape"}:
            nodes[0]["fault"] = args.fault
        app = Path(shutil.copytree(APP, work / "app", ignore=shutil.ignore_patterns("__pycache__")))
        with (app / "client_app.py").open("a") as file:
            file.write(_FAULTY)
        server = {"task": args.task, "bundle": str(work / "bundle"), "data": str(args.server), "seed": args.seed}
        config = {**server, "rounds": args.rounds, "steps": args.steps, "boards": args.boards - (args.fault == "kill")}
        config |= tomllib.loads("\n".join(args.config)) | {"timeout": args.timeout}
        before, begun = score(work / "bundle", args.task, args.server, args.test), time.monotonic()
        with Federation(work, args.flower, nodes) as federation:
            printed = federation.run(app, config, 0 if args.fault == "kill" else None)
            seconds, peaks = time.monotonic() - begun, federation.peaks
        entry = Bundle(work / "bundle").entry(args.task)
        if "federated" not in entry.training and "as it was" not in printed:
            logs = "".join(path.read_text()[-1500:] for path in sorted(work.glob("*.log")))
            raise SystemExit(f"{printed[-3000:]}\n{logs}\nthe run gave no result")
        tuner = LocalTuner(work / "bundle", args.task, args.server, freeze=str(config.get("freeze", "")).split())
        found = {
            "rows": counts, "before": before, "federated": score(work / "bundle", args.task, args.server, args.test),
            "seconds": round(seconds), "peak_bytes": peaks,
            "tensor_bytes": sum(tensor.nbytes for tensor in tuner.tensors.values()), "config": config,
            "problems": [finding.problem for finding in audit(work / "bundle") if finding.problem],
            "account": entry.training.get("federated"), "lost": re.findall(r"round \d+: of the mean .*", printed),
            "refused": re.findall(r"left out of the round: .*", printed),
        }  # fmt: skip
        if args.alone:
            each = TuneOptions(steps=args.rounds * args.steps, seed=args.seed)
            together = TuneOptions(steps=args.rounds * args.steps * args.boards, seed=args.seed)
            found["alone"] = [tuned(args.bundle, args.task, path, args.test, each) for path in paths]
            found["central"] = tuned(args.bundle, args.task, work / "all.jsonl", args.test, together)
        return found


def main() -> None:
    """Print the result as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--task", required=True)
    for name in ("data", "server", "test", "flower"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    for name, default in (("boards", 3), ("rows", 1500), ("rounds", 5), ("steps", 20), ("seed", 0), ("timeout", 600)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--skew", type=float, help="of the Dirichlet distribution; left out: even")
    parser.add_argument("--fault", choices=["nan", "shape", "kill"])
    parser.add_argument("--alone", action="store_true", help="measure what it is compared with too")
    parser.add_argument("--config", action="append", default=[], help="a line of the run's configuration")
    try:
        found = measure(parser.parse_args())
    except (EdgepeftError, OSError, ValueError) as error:
        parser.error(str(error))
    print(json.dumps({"host": host_facts(), "threads": 1, **found}, indent=1))


if __name__ == "__main__":
    main()
