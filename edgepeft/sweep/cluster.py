"""Cells on a cluster of Ray: the same runs as tasks; nodes share no disk.

The backbone and the rows are put into Ray's object store, which brings them to each node once; a run comes back as the
bytes of its folder, with its checkpoint where it is to go on.  Ray starts a task whose worker or node dies again.
"""

import contextlib
import hashlib
import io
import os
import platform
import socket
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgepeft import __version__
from edgepeft.common.atomic import new_folder
from edgepeft.common.errors import EdgepeftError, UsageError, requiring
from edgepeft.common.resources import cache_folder, sha256_of
from edgepeft.data.label_names import files_beside
from edgepeft.data.training_loop.run import Interrupted
from edgepeft.sweep.folder import Outcome
from edgepeft.sweep.local import CellRun, Ended, compute
from edgepeft.sweep.plan import PATHS

RETRIES = 3  # of a task whose worker or node dies
_OF_A_BACKBONE = ("*.json", "*.safetensors", "*.txt", "*.model", "*/config.json")
_REACHED_S = 10.0
_HERE = f"edgepeft {__version__}, Python {platform.python_version()}"


class Cluster:
    """A connection to a cluster, which is an executor of jobs."""

    def __init__(self, address: str) -> None:
        """Connect."""
        os.environ.setdefault("RAY_AUTH_MODE", "token")  # a cluster that anyone may use must be asked for
        with requiring("ray", "--ray"):
            import ray
        self._ray: Any = ray
        try:
            host, colon, port = address.rpartition(":")
            if colon and port.isdigit() and "://" not in address:  # Ray itself tries for minutes
                socket.create_connection((host, int(port)), timeout=_REACHED_S).close()
            ray.init(address=address, log_to_driver=False, logging_level="ERROR", configure_logging=False)
        except Exception as error:  # Ray's kinds are many, and all mean that there is no connection
            first = str(error).strip().partition("\n")[0]
            raise UsageError(
                f"--ray {address}: no cluster can be used there ({type(error).__name__}: {first}). Start one with ray "
                "start --head, and give each machine its token: RAY_AUTH_TOKEN_PATH, or RAY_AUTH_MODE=disabled on both."
            ) from None
        self._files: dict[str, Any] = {}

    def cores(self) -> int:
        """Of all nodes."""
        return int(self._ray.cluster_resources().get("CPU", 1))

    def run(self, jobs: Sequence[CellRun]) -> Iterator[Ended]:
        """Compute the jobs; left early, those that are under way are cancelled."""
        cores = max(int(node["Resources"].get("CPU", 0)) for node in self._ray.nodes() if node["Alive"])
        if asked := next((job.threads for job in jobs if job.threads > cores), None):  # Ray would wait for such a node
            raise UsageError(f"--threads {asked}: no node of the cluster has more than {cores} cores; give fewer.")
        gpus = self._ray.cluster_resources().get("GPU", 0)
        under_way = {}
        try:
            for job in jobs:
                on_gpu = bool(gpus) and job.cell.options.get("device") != "cpu"
                needs = {"num_cpus": job.threads, "num_gpus": int(on_gpu), "max_retries": RETRIES}
                task = self._ray.remote(_remote).options(**needs)
                options = job.sweep.options(job.cell)
                folder, cell = job.sweep.run(job.cell), replace(job.cell, options=options)
                sent = replace(job, sweep=replace(job.sweep, folder=Path()), cell=cell)
                begun = _packed(folder) if folder.is_dir() else None
                under_way[task.remote(_HERE, (sent, begun), *self._sources(options))] = job
            while under_way:
                (ready, *_), _ = self._ray.wait(list(under_way), num_returns=1)
                yield self._ended(under_way.pop(ready), ready)
        finally:
            for reference in under_way:
                with contextlib.suppress(Exception):
                    self._ray.cancel(reference, force=True)

    def close(self) -> None:
        """Leave the cluster."""
        self._ray.shutdown()

    def _sources(self, options: Mapping[str, Any]) -> list[Any]:
        """What the run reads, as references into the object store: the backbone, then files; None is a name."""
        backbone = Path(options["backbone"])
        named = [self._stored(backbone) if backbone.exists() else None]
        for option in PATHS:
            path = options.get(option)
            named.append(self._stored(Path(path)) if isinstance(path, str) and Path(path).is_file() else None)
        return named

    def _stored(self, path: Path) -> Any:
        """A backbone's folder, or a file of rows and those beside it."""
        if str(path) not in self._files:
            of_backbone = (file for each in _OF_A_BACKBONE for file in sorted(path.glob(each)))
            files = [path, *files_beside(path)] if path.is_file() else [*of_backbone]
            digest = hashlib.sha256("".join(map(sha256_of, files)).encode()).hexdigest()
            root = path if path.is_dir() else path.parent
            content = {str(file.relative_to(root)): file.read_bytes() for file in files}
            self._files[str(path)] = self._ray.put((digest, path.name, path.is_dir(), content))
        return self._files[str(path)]

    def _ended(self, job: CellRun, reference: Any) -> Ended:
        try:
            outcome, packed = self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            return Ended(job, None, str(error.cause).strip())
        except self._ray.exceptions.RayError as error:
            return Ended(job, None, f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}")
        _unpack(packed, job.sweep.run(job.cell))
        if outcome is not None:
            job.sweep.end(job.cell, outcome)
        return Ended(job, outcome)


def _remote(of_sweep: str, asked: tuple[CellRun, bytes | None], *sources: Any) -> tuple[Outcome | None, bytes]:
    """On a node: the run in a folder of its own; its outcome and what the folder then holds."""
    if of_sweep != _HERE:
        raise EdgepeftError(f"node {platform.node()} has {_HERE}; the sweep is of {of_sweep}. Install the same on all.")
    job, begun = asked
    job = replace(job, shared=cache_folder() / "sweep" / "states")  # of this node
    with tempfile.TemporaryDirectory(prefix="edgepeft-run-") as work:
        sweep = replace(job.sweep, folder=Path(work))
        named = zip(("backbone", *PATHS), sources, strict=True)
        placed = {option: str(_kept(*source)) for option, source in named if source is not None}
        cell = replace(job.cell, options={**job.cell.options, **placed})
        if begun is not None:
            _unpack(begun, sweep.run(cell))
        try:
            outcome = compute(replace(job, sweep=sweep, cell=cell), lambda _: None, lambda: False)
        except Interrupted as interrupted:
            raise EdgepeftError(str(interrupted)) from None
        return outcome, _packed(sweep.run(cell))


def _kept(digest: str, name: str, is_folder: bool, content: Mapping[str, bytes]) -> Path:
    """The node's copy, written by the first task that needs it, and again where it is not what was sent."""
    folder = cache_folder() / "sweep" / digest / (name if is_folder else "rows")
    try:
        whole = all((folder / path).read_bytes() == data for path, data in content.items())
    except OSError:
        whole = False
    if not whole:
        with contextlib.suppress(UsageError), new_folder(folder, force=folder.is_dir()) as new:  # another was first
            for path, data in content.items():
                (new / path).parent.mkdir(parents=True, exist_ok=True)
                (new / path).write_bytes(data)
    return folder if is_folder else folder / name


def _packed(folder: Path) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        if folder.is_dir():  # a run that diverged at once has none
            archive.add(folder, arcname=".")
    return file.getvalue()


def _unpack(packed: bytes, folder: Path) -> None:
    """Put what a run's folder held into place, whole or not at all."""
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        if archive.getmembers():
            with new_folder(folder, force=True) as new:
                archive.extraction_filter = getattr(tarfile, "data_filter", None)  # which Python 3.11.3 has not
                archive.extractall(new)
