"""Instructions per inference on an emulated Cortex-A72, counted under QEMU: a figure that no other load can move.

The program that opens the model and answers ``MORE`` times more has so many instructions more.  Caches, bandwidth and
what a processor does at once are not in it: the figure gates changes, and is no measure of time.
QEMU's user mode counts with a plugin of 20 lines.
The guest is a folder with an arm64 root file system that has Python and onnxruntime, named by ``EDGEPEFT_ARM64_ROOT``:
what `docker export` gives of the runtime image, for example.  Its processor is described to ONNX Runtime by files laid
over it, because the host's /proc and /sys tell of another one.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from edgepeft.common.atomic import write_atomically
from edgepeft.common.errors import EdgepeftError
from edgepeft.common.resources import package_data

CPU = "cortex-a72"
ROOT_VARIABLE = "EDGEPEFT_ARM64_ROOT"
_QEMU = "qemu-aarch64"
_TIMEOUT_S = 1800
# Only these are laid over the host's: a file elsewhere (/tmp, /home) is meant as the host has it.
_SYSTEM = frozenset({"bin", "etc", "lib", "lib64", "opt", "sbin", "usr"})
_PACKAGES = (
    "usr/local/lib/python3.*/site-packages",
    "usr/lib/python3*/dist-packages",
    "opt/*/lib/python3.*/site-packages",
)
# /proc/cpuinfo of a Raspberry Pi 4's core (Arm, "Main ID Register": part 0xd08).
_CPUINFO = """processor\t: 0
BogoMIPS\t: 108.00
Features\t: fp asimd evtstrm crc32 cpuid
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x0
CPU part\t: 0xd08
CPU revision\t: 3

"""
_COUNTED = re.compile(r"^edgepeft-instructions (\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class Guest:
    """A root file system, its Python, and where its onnxruntime lies."""

    root: Path
    python: Path
    packages: Path

    @property
    def runtime(self) -> str:
        """onnxruntime's version there."""
        folders = sorted(self.packages.glob("onnxruntime-*.dist-info"))
        return folders[0].name.removeprefix("onnxruntime-").removesuffix(".dist-info") if folders else "unknown"

    def prepare(self, work: Path) -> None:
        """Build the plugin, and lay the processor's description over the root."""
        overlay = work / "root"
        overlay.mkdir()
        for entry in self.root.iterdir():
            if entry.name in _SYSTEM:
                (overlay / entry.name).symlink_to(entry.absolute())
        cpus = overlay / "sys" / "devices" / "system" / "cpu"
        cpus.mkdir(parents=True)
        for name in ("possible", "present", "online"):
            (cpus / name).write_text("0\n")
        (overlay / "proc").mkdir()
        (overlay / "proc" / "cpuinfo").write_text(_CPUINFO)
        # The plugin interface to name: 1 up to QEMU 8.1, from 8.2 on 2 is the least that is taken.
        said = subprocess.run([_QEMU, "--version"], capture_output=True, text=True, check=False).stdout
        version = re.search(r"version (\d+)\.(\d+)", said)
        api = 2 if version and (int(version[1]), int(version[2])) >= (8, 2) else 1
        command = ["cc", "-O2", "-shared", "-fPIC", f"-DPLUGIN_API={api}", "-o", str(work / "count.so")]
        source = package_data("bench/count_instructions.c")
        done = subprocess.run([*command, str(source)], capture_output=True, text=True, check=False)
        if done.returncode:
            raise EdgepeftError(f"the plugin that counts instructions cannot be compiled: {done.stderr.strip()[:300]}")

    def count(self, work: Path, script: str, arguments: list[str]) -> int:
        """Instructions of the Python program ``script``, its start and end included."""
        root, plugin = work / "root", work / "count.so"
        inside = root / self.python.relative_to(self.root)
        command = [_QEMU, "-L", str(root), "-plugin", str(plugin), str(inside), "-S", "-c", script, *arguments]
        environment = {
            **{"PATH": os.environ.get("PATH", ""), "PYTHONPATH": str(self.packages), "QEMU_CPU": CPU},
            **{"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "ORT_DISABLE_TELEMETRY": "1", "HOME": str(work)},
            "PYTHONDONTWRITEBYTECODE": "1",  # a start that compiles modules would have a billion more than the next
        }
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, env=environment, timeout=_TIMEOUT_S
            )
        except subprocess.TimeoutExpired as error:
            raise EdgepeftError(
                f"the emulated {CPU} took more than {_TIMEOUT_S} s; take a shorter --length."
            ) from error
        counted = _COUNTED.findall(done.stderr)
        if done.returncode or not counted:
            words = [line for line in done.stderr.strip().splitlines() if not _COUNTED.match(line)]
            last = next((line for line in reversed(words) if line.strip()), f"status {done.returncode}")
            raise EdgepeftError(f"the emulated {CPU} failed: {last[:300]}")
        return int(counted[-1])


def find_guest(environment: Mapping[str, str] = os.environ) -> Guest | str:
    """Find a guest that can be emulated here; else say, as text, what is missing."""
    for program, package in ((_QEMU, "qemu-user"), ("cc", "gcc")):
        if shutil.which(program) is None:
            return f"{program} is not installed (Debian: apt install {package})"
    named = environment.get(ROOT_VARIABLE)
    if not named:
        return f"{ROOT_VARIABLE} names no arm64 root file system with Python and onnxruntime (bench/README.md)"
    root = Path(named)
    for pattern in _PACKAGES:
        for packages in sorted(root.glob(pattern)):
            if (packages / "onnxruntime").is_dir():
                # Of these packages' version; not the link of a virtual environment, which leaves the root.
                version = re.search(r"python3\.\d+", str(packages.relative_to(root)))
                names = [version.group(0)] if version else ["python3"]
                places = [root / folder / name for folder in ("usr/local/bin", "usr/bin") for name in names]
                python = next((place for place in places if place.is_file()), None)
                return Guest(root, python, packages) if python else f"{root} has no Python for {packages}"
    return f"{root} has no onnxruntime where Python packages lie"


MORE = 8  # what a run differs from the next by (a tenth of a per cent of the start) is then below half a per cent
_SCRIPT = """
import sys
import numpy as np
import onnxruntime as ort
folder, runs = sys.argv[1], int(sys.argv[2])
options = ort.SessionOptions()
options.intra_op_num_threads = options.inter_op_num_threads = 1
options.log_severity_level = 3
session = ort.InferenceSession(folder + "/model.onnx", options, providers=["CPUExecutionProvider"])
inputs = np.load(folder + "/inputs.npz")
feed = {value.name: inputs[value.name] for value in session.get_inputs()}
names = [value.name for value in session.get_outputs()]
for _ in range(runs):
    session.run(names, feed)
"""


def instructions_of(guest: Guest, model: onnx.ModelProto, weights: Path, inputs: Mapping[str, NDArray[Any]]) -> float:
    """Instructions of one run of a graph, whose weights lie in that file."""
    with tempfile.TemporaryDirectory(prefix="edgepeft-instructions-") as work:
        folder = Path(work)
        guest.prepare(folder)
        write_atomically(folder / "model.onnx", model.SerializeToString(deterministic=True))
        try:
            os.link(weights, folder / weights.name)  # a symbolic link is refused
        except OSError:  # on another file system
            shutil.copyfile(weights, folder / weights.name)
        np.savez(folder / "inputs.npz", allow_pickle=False, **inputs)
        few, many = (guest.count(folder, _SCRIPT, [str(folder), str(runs)]) for runs in (1, 1 + MORE))
    return (many - few) / MORE
