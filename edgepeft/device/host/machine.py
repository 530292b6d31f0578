"""What the host is: processor, instruction set, memory, versions; the facts a result is worthless without."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from edgepeft import __version__
from edgepeft.device.host import groups
from edgepeft.device.host.cores import cpu_quota, usable_cores
from edgepeft.device.host.sensors import ROOT

__all__ = [
    "board_name",
    "cpu_model",
    "cpu_vendor",
    "host_facts",
    "isa_flags",
    "memory_bytes",
    "saturates_in_8_bits",
    "versions",
]

_PACKAGES = ("numpy", "onnx", "onnxruntime", "tokenizers", "torch", "transformers")

# Flags that decide which matrix kernels run; the kernel's names (x86 "flags", ARM "Features").
_X86_PREFIXES = ("avx", "amx", "fma", "f16c", "sse4")
_ARM_PREFIXES = ("asimd", "neon", "fphp", "atomics", "crc32", "i8mm", "bf16", "sve", "sme")

# ARM's part numbers (Arm, "Main ID Register"), which /proc/cpuinfo gives instead of a name.
_ARM_PARTS = {
    "0xd03": "Cortex-A53",
    "0xd05": "Cortex-A55",
    "0xd07": "Cortex-A57",
    "0xd08": "Cortex-A72",
    "0xd0b": "Cortex-A76",
    "0xd0c": "Neoverse-N1",
    "0xd40": "Neoverse-V1",
    "0xd42": "Cortex-A78AE",
    "0xd49": "Neoverse-N2",
    "0xd4f": "Neoverse-V2",
}


def _cpuinfo(proc: Path) -> dict[str, str]:
    """The first processor's entry of /proc/cpuinfo, and what follows the last one."""
    entries: dict[str, str] = {}
    for line in (groups.read(proc / "cpuinfo") or "").splitlines():
        key, separator, value = line.partition(":")
        if separator:
            entries.setdefault(key.strip(), value.strip())
    return entries


def board_name(root: Path = ROOT) -> str | None:
    """What the kernel calls the board: the device tree's model, else /proc/cpuinfo's; None on a PC."""
    for name in ("proc/device-tree/model", "sys/firmware/devicetree/base/model"):
        if text := (groups.read(root / name) or "").strip("\0 \n"):
            return text
    return _cpuinfo(root / "proc").get("Model") or None


def cpu_model(proc: Path = groups.PROC) -> str:
    """The processor's name; on ARM the core's and, where /proc/cpuinfo has it, the board's."""
    info = _cpuinfo(proc)
    if "model name" in info:
        return info["model name"]
    part = info.get("CPU part", "")
    names = [info.get("Model", ""), _ARM_PARTS.get(part, part and f"ARM part {part}")]
    return ", ".join(name for name in names if name) or platform.processor() or platform.machine()


def cpu_vendor(proc: Path = groups.PROC) -> str:
    """What an x86 processor says of its maker, such as AuthenticAMD; empty where the kernel does not tell."""
    return _cpuinfo(proc).get("vendor_id", "")


def isa_flags(proc: Path = groups.PROC) -> tuple[str, ...]:
    """Instruction set extensions that matter to matrix arithmetic, sorted, by the kernel's names."""
    info = _cpuinfo(proc)
    x86 = [flag for flag in info.get("flags", "").split() if flag.startswith(_X86_PREFIXES)]
    arm = [flag for flag in info.get("Features", "").split() if flag.startswith(_ARM_PREFIXES)]
    return tuple(sorted(x86 + arm))


def saturates_in_8_bits() -> bool:
    """Whether pairs of products of uint8 and int8 are added in 16 bits, where large ones overflow: x86 without VNNI."""
    return platform.machine().lower() in ("x86_64", "amd64", "i686") and not any("vnni" in f for f in isa_flags())


def memory_bytes(proc: Path = groups.PROC) -> int:
    """Memory that this process could have: the machine's, or less if its control groups say so."""
    own = groups.groups_of("self", proc)
    limits = [int(psutil.virtual_memory().total)]
    for controller, files in (("memory", groups.V1), (groups.UNIFIED, groups.V2)):
        if controller in own and (limit := groups.smallest_limit(own[controller], files)) is not None:
            limits.append(limit)
    return min(limits)


def versions() -> dict[str, str]:
    """Version of edgepeft, Python and whatever of the stack is installed; nothing is imported."""
    installed = {"edgepeft": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            installed[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return installed


def host_facts() -> dict[str, Any]:
    """The host for a result's JSON: cpu, isa, cores, memory_bytes, system, versions."""
    return {
        "cpu": cpu_model(),
        "machine": platform.machine(),
        "isa": list(isa_flags()),
        "cores": {
            "usable": usable_cores(),
            "physical": psutil.cpu_count(logical=False),
            "logical": os.cpu_count(),
            "quota": cpu_quota(),
        },
        "memory_bytes": memory_bytes(),
        "system": platform.platform(),
        "versions": versions(),
    }
