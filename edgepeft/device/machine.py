"""What the host is: processor, instruction set, memory, versions, and the cores that this process may use.

Facts a result is worthless without; and wheels that are known to die on a processor, refused by name: a SIGILL in a
compiled library comes without a message. Tried on a Cortex-A72 (no LSE atomics, ``atomics`` in the kernel's names):
onnxruntime 1.21.0 and torch 2.10.0 execute such instructions without asking whether they are there.
"""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from edgepeft import __version__
from edgepeft.common.errors import EdgepeftError
from edgepeft.device import cgroups
from edgepeft.device.cgroups import ROOT

if TYPE_CHECKING:  # a board that answers needs no profiles
    from edgepeft.device.profiles import Profile

_CPUS = Path("/sys/devices/system/cpu")
_PACKAGES = ("numpy", "onnx", "onnxruntime", "tokenizers", "torch", "transformers")
# Flags that decide which matrix kernels run; the kernel's names (x86 "flags", ARM "Features").
DOT_PRODUCT = ("asimddp", "i8mm")  # of 8-bit numbers, summed to 32 bits, in one instruction
_HALF = ("fphp", "asimdhp")  # arithmetic on 16-bit floating-point numbers
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


def affinity(pid: int = 0) -> tuple[int, ...]:
    """The processors that a process, by default this one, may run on, cpusets counted; none where it is gone."""
    if not hasattr(os, "sched_getaffinity"):
        return tuple(range(os.cpu_count() or 1))
    try:
        return tuple(sorted(os.sched_getaffinity(pid)))
    except OSError:
        return ()


def cpu_quota(proc: Path = cgroups.PROC) -> float | None:
    """Cores' worth of time that control groups (v1 or v2) give this process; None if unlimited."""
    own = cgroups.groups_of("self", proc)
    quotas = (cgroups.tightest_quota(own.get(controller)) for controller in (cgroups.UNIFIED, "cpu"))
    return min((cores for cores in quotas if cores is not None), default=None)


def usable_cores(proc: Path = cgroups.PROC) -> int:
    """Cores that can be kept busy: the affinity's count, no more than whole cores of the quota, at least 1.

    A quota of 2.5 gives 2: a third thread would be stopped halfway through every period, with the others waiting.
    """
    allowed = cpu_quota(proc)
    return len(affinity()) if allowed is None else max(1, min(len(affinity()), int(allowed)))


def thread_count(profile_cores: int | None = None, proc: Path = cgroups.PROC) -> int:
    """Threads for an engine: min(profile, affinity, quota), at least 1. More would spin in vain."""
    usable = usable_cores(proc)
    return usable if profile_cores is None else max(1, min(profile_cores, usable))


def pick_cpus(count: int, allowed: Iterable[int] | None = None, cpus: Path = _CPUS) -> tuple[int, ...]:
    """``count`` processors out of ``allowed`` (default: the affinity), sorted."""
    wanted = affinity() if allowed is None else tuple(allowed)

    def rank(cpu: int) -> tuple[int, int]:
        """0 for the first wanted thread of its physical core, 1 for the second: a board's cores are whole ones."""
        siblings: set[int] = set()
        text = cgroups.read(cpus / f"cpu{cpu}" / "topology" / "thread_siblings_list") or str(cpu)
        for part in text.split(","):  # 0-1,8 are 0, 1 and 8
            first, _, last = part.partition("-")
            siblings.update(range(int(first), int(last or first) + 1))
        return sum(other < cpu for other in siblings.intersection(wanted)), cpu

    return tuple(sorted(sorted(wanted, key=rank)[:count]))


def _cpuinfo(proc: Path) -> dict[str, str]:
    """The first processor's entry of /proc/cpuinfo, and what follows the last one."""
    entries: dict[str, str] = {}
    for line in (cgroups.read(proc / "cpuinfo") or "").splitlines():
        key, separator, value = line.partition(":")
        if separator:
            entries.setdefault(key.strip(), value.strip())
    return entries


def board_name(root: Path = ROOT) -> str | None:
    """The kernel's name of the board: the device tree's model, else /proc/cpuinfo's; None on a PC."""
    for name in ("proc/device-tree/model", "sys/firmware/devicetree/base/model"):
        if text := (cgroups.read(root / name) or "").strip("\0 \n"):
            return text
    return _cpuinfo(root / "proc").get("Model") or None


def cpu_model(proc: Path = cgroups.PROC) -> str:
    """The processor's name; on ARM the core's and, where /proc/cpuinfo has it, the board's."""
    info = _cpuinfo(proc)
    if "model name" in info:
        return info["model name"]
    part = info.get("CPU part", "")
    names = [info.get("Model", ""), _ARM_PARTS.get(part, part and f"ARM part {part}")]
    return ", ".join(name for name in names if name) or platform.processor() or platform.machine()


def cpu_vendor() -> str:
    """The maker of an x86 processor, such as AuthenticAMD; empty where the kernel does not tell."""
    return _cpuinfo(cgroups.PROC).get("vendor_id", "")


def isa_flags(proc: Path = cgroups.PROC) -> tuple[str, ...]:
    """Instruction set extensions that matter to matrix arithmetic, sorted, by the kernel's names."""
    info = _cpuinfo(proc)
    x86 = [flag for flag in info.get("flags", "").split() if flag.startswith(_X86_PREFIXES)]
    arm = [flag for flag in info.get("Features", "").split() if flag.startswith(_ARM_PREFIXES)]
    return tuple(sorted(x86 + arm))


def lacks_dot_product() -> bool:
    """Whether this is an Arm processor that has no instruction for sums of products of 8-bit numbers."""
    flags = set(isa_flags())
    return "asimd" in flags and flags.isdisjoint(DOT_PRODUCT)


def saturates_in_8_bits() -> bool:
    """Whether pairs of products of uint8 and int8 are added in 16 bits, where large ones overflow: x86 without VNNI."""
    return platform.machine().lower() in ("x86_64", "amd64", "i686") and not any("vnni" in f for f in isa_flags())


def memory_bytes(proc: Path = cgroups.PROC) -> int:
    """Memory that this process could have: the machine's, or less if its control groups say so."""
    own = cgroups.groups_of("self", proc)
    limits = [cgroups.smallest_limit(own.get(controller)) for controller in (cgroups.UNIFIED, "memory")]
    return min([int(psutil.virtual_memory().total), *(limit for limit in limits if limit is not None)])


def versions() -> dict[str, str]:
    """Version of edgepeft, Python and whatever of the stack is installed; nothing is imported."""
    installed = {"edgepeft": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            installed[package] = metadata.version(package)
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


@dataclass(frozen=True)
class BadWheel:
    """One version of a package, the instructions it takes for granted, and what to install instead."""

    package: str
    version: str
    needs: str
    instead: str

    def sentence(self, processor: str) -> str:
        """The message: what happens there, and what to do."""
        return (
            f"{self.package} {self.version} dies with an illegal instruction on {processor}, which is Armv8.0 "
            f"(no {self.needs}). Install another: pip install '{self.instead}'."
        )


KNOWN_BAD = (
    BadWheel("onnxruntime", "1.21.0", "atomics", "onnxruntime>=1.24.4,<1.28"),
    BadWheel("torch", "2.10.0", "atomics", "torch<=2.9.1"),
)


def bad_wheels(installed: Mapping[str, str], missing: Collection[str]) -> list[BadWheel]:
    """Wheels of ``installed`` (package -> version) that need one of the ``missing`` instructions."""
    plain = {package: version.partition("+")[0] for package, version in installed.items()}  # 2.10.0+cpu is 2.10.0
    return [wheel for wheel in KNOWN_BAD if plain.get(wheel.package) == wheel.version and wheel.needs in missing]


def refuse_bad_wheels(*packages: str, proc: Path = cgroups.PROC) -> None:
    """Refuse packages that would kill this process; call it before they are imported."""
    flags = set(isa_flags(proc))
    if platform.machine() != "aarch64" and "asimd" not in flags:  # no Arm board, nor one that is imitated
        return
    for wheel in bad_wheels(versions(), {wheel.needs for wheel in KNOWN_BAD} - flags):
        if wheel.package in packages:
            raise EdgepeftError(wheel.sentence(cpu_model(proc)))


def missing_arithmetic(profile: Profile | None, *, weights: str, fp16: bool, proc: Path = cgroups.PROC) -> list[str]:
    """A sentence for the backbone's ``weights``, and one for ``fp16``, that a profile's processor cannot compute in.

    An instruction that the profile does not mention counts as there.  None is this host, if it is an Arm one: on others
    ONNX Runtime has other 8-bit kernels.
    """
    if profile is None:
        name, present = cpu_model(proc), set(isa_flags(proc))
        absent = {*DOT_PRODUCT, *_HALF} if "asimd" in present else set()
    else:
        name, present, absent = profile.name, set(profile.isa.value), set(profile.isa.absent)
    no_dot, no_half = (bool(absent & {*names}) and present.isdisjoint(names) for names in (DOT_PRODUCT, _HALF))
    costs = []
    if weights == "int8" and no_dot:
        costs.append(
            f"int8 on {name}: it has no dot product ({DOT_PRODUCT[0]}), so 8-bit numbers are widened before "
            f"they are multiplied. The file is a quarter of the size; {_published(profile)}"
        )
    if weights == "int4" and no_dot:
        costs.append(
            f"int4 on {name}: it has no dot product ({DOT_PRODUCT[0]}), so 4-bit numbers are widened to fp32 "
            "before they are multiplied. The file is small; whether time is lost must be measured there: edgepeft "
            "bench --profile, on the board."
        )
    if fp16 and no_half:
        costs.append(
            f"half precision on {name}: it has no fp16 arithmetic ({_HALF[0]}), so values are widened to "
            "fp32 when they are loaded. The file is half the size; neither time nor memory is saved."
        )
    return costs


def _published(profile: Profile | None) -> str:
    """Say what int8 gained on the device: with ONNX Runtime, or where nothing is known of that with any other."""
    latencies = () if profile is None else profile.latencies
    pairs = [
        (slow, fast)
        for fast in latencies
        for slow in latencies
        if (slow.precision, fast.precision, slow.kind, fast.kind) == ("fp32", "int8", "measured", "measured")
        and (slow.model, slow.runtime, slow.threads) == (fast.model, fast.runtime, fast.threads)
    ]
    if not pairs:
        return "whether it is faster at all must be measured there: edgepeft bench --profile, on the board."
    own = [pair for pair in pairs if pair[0].runtime == "onnxruntime"]
    gains = []
    for slow, fast in own or pairs:
        threads = "" if fast.threads is None else f", {fast.threads} thread{'s' * (fast.threads > 1)}"
        times = f"{slow.value:g} -> {fast.value:g} ms, {fast.runtime}{threads}"
        gains.append(f"{fast.model} {slow.value / fast.value:.2f}x ({times})")
    return f"published gains there: {', '.join(gains)}{'' if own else '; with ONNX Runtime nothing is known'}."
