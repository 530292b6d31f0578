"""Control groups as files: which one a process is in; their limits and quotas; making and removing them.

Linux Documentation/admin-guide/cgroup-v1 and cgroup-v2. Everything takes ``proc``, the folder that
stands for /proc, so that other kernels can be imitated in tests.
"""

import contextlib
import os
import re
import secrets
import signal
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import psutil

ROOT, PROC = Path("/"), Path("/proc")
UNIFIED = ""  # the controller name under which groups_of() lists the cgroup v2 group
_PREFIX = "edgepeft"
_PERIOD_US = "100000"
SMALLEST_QUOTA = 0.01  # cores; the kernel's shortest quota is 1 ms, of our period of 100 ms that is a hundredth
_UNLIMITED = 1 << 62  # v1 writes "no limit" as the largest multiple of a page below 2^63
# What version 2 and version 1 call the same file; a group has one of them.
_LIMIT = ("memory.max", "memory.limit_in_bytes")


def _unescape(text: str) -> str:
    """mountinfo writes a space as ``\\040``."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def _lines(path: Path) -> list[str]:
    """Lines as the kernel ends them; names of folders in them may be of any bytes, U+2028 and non-UTF-8 included."""
    return [line for line in os.fsdecode(path.read_bytes()).split("\n") if line]


def groups_of(pid: int | str = "self", proc: Path = PROC) -> dict[str, Path]:
    """The folder of each control group that process ``pid`` is in, by controller; ``""`` is version 2's.

    Groups that are not visible from here (another namespace, not mounted) are left out.
    """
    try:
        mounted, lines = _lines(proc / "self" / "mountinfo"), _lines(proc / str(pid) / "cgroup")
    except OSError:  # not Linux, or the process is gone
        return {}
    mounts: dict[str, tuple[str, Path]] = {}  # controller -> the group that is mounted, and where
    for line in mounted:
        before, _, after = line.partition(" - ")
        kind, *rest = after.split()
        if kind in ("cgroup", "cgroup2"):
            _, _, _, root, point, *_ = before.split()
            for controller in [UNIFIED] if kind == "cgroup2" else rest[-1].split(","):
                mounts.setdefault(controller, (_unescape(root), Path(_unescape(point))))
    folders = {}
    for line in lines:
        _, controllers, path = line.split(":", 2)
        for controller in mounts.keys() & controllers.split(","):
            root, at = mounts[controller]
            inside = os.path.relpath(path, root) if path.startswith(root) else path.lstrip("/")
            if ".." not in Path(inside).parts and (at / inside).is_dir():
                folders[controller] = at / inside
    return folders


def read(path: Path) -> str | None:
    """A control file's text without its newline; None if it is not there or not readable."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def write(path: Path, value: object) -> None:
    """Write a control file, which must exist: a missing one means a missing controller."""
    descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC)
    try:
        os.write(descriptor, str(value).encode())
    finally:
        os.close(descriptor)


def read_bytes(path: Path) -> int | None:
    """A size in bytes; None if absent or unlimited."""
    text = read(path)
    if text is None or not text.isdigit():  # version 2 writes "max"
        return None
    return int(text) if int(text) < _UNLIMITED else None


def smallest_limit(folder: Path | None) -> int | None:
    """The memory limit that decides: the smallest of the group's and of the groups around it; None if unlimited."""
    limits = (read_bytes(group / name) for group in _up(folder) for name in _LIMIT)
    return min((limit for limit in limits if limit is not None), default=None)


def _up(folder: Path | None) -> Iterator[Path]:
    while folder is not None and (folder / "cgroup.procs").exists():
        yield folder
        folder = folder.parent


def tightest_quota(folder: Path | None) -> float | None:
    """The CPU quota that decides, in cores, of the group's and of the groups around it; None if unlimited.

    Version 1 has ``cpu.cfs_quota_us`` over ``cpu.cfs_period_us``, version 2 both in ``cpu.max`` (Linux sched-bwc).
    """
    quotas = []
    for group in _up(folder):
        quota, _, period = (read(group / "cpu.max") or "").partition(" ")
        if not quota:
            quota, period = read(group / "cpu.cfs_quota_us") or "", read(group / "cpu.cfs_period_us") or _PERIOD_US
        if quota.isdigit():  # else -1, or max
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def write_quota(folder: Path, cores: float) -> None:
    """Set a group's quota; version 1 wants the period first."""
    if (folder / "cpu.cfs_quota_us").exists():
        write(folder / "cpu.cfs_period_us", _PERIOD_US)
        write(folder / "cpu.cfs_quota_us", round(cores * int(_PERIOD_US)))
    else:
        write(folder / "cpu.max", f"{round(cores * int(_PERIOD_US))} {_PERIOD_US}")


def counts(path: Path) -> dict[str, int]:
    """Counters by name; none where the file is not there."""
    return {name: int(count) for name, count in (line.split() for line in (read(path) or "").splitlines())}


def make_child(own: Path) -> Path:
    """A new group inside ``own``, named after this process; groups of dead ones are removed first."""
    for left in _left_in(own):  # and what still runs there: a worker without its parent has no reader
        remove(left)
    folder = own / f"{_PREFIX}-{os.getpid()}-{_namespace()}.{secrets.token_hex(4)}"
    folder.mkdir()
    return folder


def leftovers(proc: Path = PROC) -> list[Path]:
    """Groups that a killed edgepeft process left inside this process's own ones."""
    return sorted({folder for own in groups_of("self", proc).values() for folder in _left_in(own)})


def _left_in(own: Path) -> list[Path]:
    left = []
    for folder in own.glob(f"{_PREFIX}-*-*"):
        _, owner, rest = folder.name.split("-", 2)
        # Numbers of another process namespace mean other processes here: only an empty group is surely left over.
        ours = rest.partition(".")[0] == _namespace() or not read(folder / "cgroup.procs")
        if owner.isdigit() and not psutil.pid_exists(int(owner)) and ours:
            left.append(folder)
    return left


def _namespace() -> str:
    try:
        return "".join(filter(str.isdigit, str(Path("/proc/self/ns/pid").readlink())))
    except OSError:  # not Linux, or /proc is restricted
        return "0"


def remove(folder: Path) -> None:
    """Kill every process in the group and remove it; waits up to a second for the kernel to finish."""
    for _ in range(100):
        for pid in (read(folder / "cgroup.procs") or "").split():
            if int(pid) not in (0, os.getpid()):  # 0: a process of another namespace
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(int(pid), signal.SIGKILL)
        try:
            folder.rmdir()
        except OSError:
            time.sleep(0.01)
        if not folder.exists():
            return
    warnings.warn(f"the control group {folder} could not be removed", RuntimeWarning, stacklevel=2)
