"""Folders that stand for /proc and /sys/fs/cgroup of machines that this one is not."""

from __future__ import annotations

import errno
import mmap
import shutil
from pathlib import Path

import pytest

from edgepeft.device import cgroups

V2_FILES = {
    "memory": {"memory.max": "max", "memory.swap.max": "max", "memory.peak": "0", "memory.events": "oom_kill 0"},
    "cpuset": {"cpuset.cpus": "", "cpuset.cpus.effective": "0"},
    "cpu": {"cpu.max": "max 100000"},
}


class FakeV2:
    """A cgroup v2 hierarchy: controllers appear in children when enabled, processes inside forbid that."""

    def __init__(self, folder: Path, controllers: str = "cpuset cpu memory pids"):
        self.proc = folder / "proc"
        self.root = folder / "cgroup"
        self.own = self.root / "work"
        self.own.mkdir(parents=True)
        for group in (self.root, self.own):
            (group / "cgroup.procs").write_text("")
            (group / "cgroup.controllers").write_text(controllers)
            (group / "cgroup.subtree_control").write_text("")
        (self.proc / "self").mkdir(parents=True)
        (self.proc / "self" / "cgroup").write_text("0::/work\n")
        mount = f"42 32 0:26 / {self.root} rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n"
        (self.proc / "self" / "mountinfo").write_text(f"1 0 8:1 / / rw - ext4 /dev/sda1 rw\n{mount}")
        self.populated = False
        self.removed: list[str] = []

    def make_child(self, own: Path) -> Path:
        folder = own / f"edgepeft-{len(self.removed)}"
        folder.mkdir()
        (folder / "cgroup.procs").write_text("")
        self._populate(folder, (own / "cgroup.subtree_control").read_text().split())
        return folder

    def _populate(self, folder: Path, controllers: list[str]) -> None:
        for controller in controllers:
            for name, content in V2_FILES[controller].items():
                if not (folder / name).exists():
                    (folder / name).write_text(content)

    def write(self, path: Path, value: object) -> None:
        text = str(value)
        if not path.exists():
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
        if path.name == "cgroup.subtree_control":
            if self.populated:
                raise OSError(errno.EBUSY, "Device or resource busy", str(path))
            text = f"{path.read_text()} {text.removeprefix('+')}".strip()
            for child in (folder for folder in path.parent.iterdir() if folder.is_dir()):
                self._populate(child, text.split())
        elif path.name == "memory.max":
            text = str(int(text) // mmap.PAGESIZE * mmap.PAGESIZE)
        path.write_text(text)

    def remove(self, folder: Path) -> None:
        self.removed.append(folder.name)
        shutil.rmtree(folder)


@pytest.fixture
def v2(tmp_path, monkeypatch):
    kernel = FakeV2(tmp_path)
    monkeypatch.setattr(cgroups, "make_child", kernel.make_child)
    monkeypatch.setattr(cgroups, "write", kernel.write)
    monkeypatch.setattr(cgroups, "remove", kernel.remove)
    return kernel


@pytest.fixture
def v1_proc(tmp_path):
    """/proc of a process in a container with a v1 quota: (proc, its cpu group)."""
    group = tmp_path / "cpu" / "inner"
    group.mkdir(parents=True)
    for folder, quota in ((group, "-1"), (group.parent, "250000")):
        (folder / "cgroup.procs").write_text("")
        (folder / "cpu.cfs_quota_us").write_text(quota)
        (folder / "cpu.cfs_period_us").write_text("100000")
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text("3:cpu,cpuacct:/docker/ab:c/inner\n1:name=systemd:/\n")
    mount = f"33 31 0:30 /docker/ab:c {tmp_path / 'cpu'} rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
    (proc / "self" / "mountinfo").write_text(mount)
    return proc, group
