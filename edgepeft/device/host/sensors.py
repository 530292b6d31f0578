"""A board's condition while it works: temperature, frequency, and whether it throttles.

Sources, each where it exists: the Raspberry Pi's firmware (``get_throttled`` of its driver in sysfs, else
``vcgencmd get_throttled``; raspberrypi.com/documentation, "vcgencmd"), Linux's thermal zones and cooling devices
(Documentation/driver-api/thermal/sysfs-api), cpufreq, and the throttle counters of Intel's processors. Everything
takes ``root``, the folder that stands for /, so that boards can be imitated in tests.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from edgepeft.device.host import groups

__all__ = ["ROOT", "Conditions", "Sensors", "firmware_says", "number"]

ROOT = Path("/")
_VCGENCMD_SECONDS = 5.0

# Bits of get_throttled: what is so now; 16 bits higher, that it has been so since the start (or the last reading).
_FIRMWARE = {0: "under-voltage", 1: "frequency capped", 2: "throttled", 3: "soft temperature limit"}
_STICKY = 16
_FIRMWARE_FILES = (
    "sys/devices/platform/soc/soc:firmware/get_throttled",
    "sys/devices/platform/axi/axi:firmware/get_throttled",
)
# How kernels call the zone at the processor: Pi, Jetson, x86, most others by "cpu" somewhere in the name.
_CPU_ZONE = re.compile(r"cpu|soc|x86_pkg_temp|CPU-therm", re.IGNORECASE)
_CPU_COOLING = re.compile(r"cpufreq|^Processor$|cpu", re.IGNORECASE)


@dataclass(frozen=True)
class Conditions:
    """One reading; None where the board has no such sensor. ``throttled``: the reasons, empty where there is none."""

    temperature_c: float | None
    frequency_mhz: float | None
    throttled: tuple[str, ...] | None

    @property
    def known(self) -> bool:
        """Whether the board has any of these sensors."""
        return (self.temperature_c, self.frequency_mhz, self.throttled) != (None, None, None)


def number(path: Path) -> float | None:
    """A control file's number; None if it is not there or is none."""
    try:
        return float(groups.read(path) or "")
    except ValueError:
        return None


def firmware_says(vcgencmd: str | None, command: str) -> str | None:
    """What the Raspberry Pi's program prints; None without it, without permission (group video), or where it hangs."""
    if vcgencmd is None:
        return None
    try:
        done = subprocess.run([vcgencmd, command], capture_output=True, timeout=_VCGENCMD_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace").strip()


class Sensors:
    """Reads a board; what counts since the last reading is remembered between two of them."""

    def __init__(self, root: Path = ROOT, vcgencmd: str | None = None):
        self._root = root
        self._vcgencmd = vcgencmd or shutil.which("vcgencmd")
        self._sticky = (self._firmware() or 0) >> _STICKY
        self._counts = self._counters()

    def read(self) -> Conditions:
        """The condition now, and throttling since the reading before."""
        return Conditions(self._temperature(), self._frequency(), self._throttled())

    def _temperature(self) -> float | None:
        """The hottest of the zones at the processor, else of all, in degrees Celsius."""
        by_kind: dict[bool, list[float]] = {True: [], False: []}
        for zone in self._root.glob("sys/class/thermal/thermal_zone*"):
            if (milli := number(zone / "temp")) is not None:
                by_kind[bool(_CPU_ZONE.search(groups.read(zone / "type") or ""))].append(milli / 1000)
        return max(by_kind[True] or by_kind[False], default=None)

    def _frequency(self) -> float | None:
        """The median of the processors' clocks, in MHz."""
        files = self._root.glob("sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_cur_freq")
        clocks = [khz / 1000 for path in files if (khz := number(path)) is not None]
        return median(clocks) if clocks else None

    def _throttled(self) -> tuple[str, ...] | None:
        sources = (self._by_firmware(), self._by_cooling(), self._by_counters())
        known = [reasons for reasons in sources if reasons is not None]
        return tuple(dict.fromkeys(reason for reasons in known for reason in reasons)) if known else None

    def _by_firmware(self) -> list[str] | None:
        bits = self._firmware()
        if bits is None:
            return None
        since = (bits >> _STICKY) & ~self._sticky
        self._sticky = bits >> _STICKY
        return [reason for bit, reason in _FIRMWARE.items() if (bits | since) >> bit & 1]

    def _firmware(self) -> int | None:
        texts = (groups.read(self._root / name) for name in _FIRMWARE_FILES)
        text = next((text for text in texts if text), None) or firmware_says(self._vcgencmd, "get_throttled")
        with contextlib.suppress(ValueError):
            return int((text or "").rpartition("=")[2], 16)
        return None

    def _by_cooling(self) -> list[str] | None:
        """Cooling devices of the processor that hold it back; on a PC every core's is called ``Processor``."""
        states: dict[str, float] = {}
        for device in self._root.glob("sys/class/thermal/cooling_device*"):
            kind, state = groups.read(device / "type") or "", number(device / "cur_state")
            if _CPU_COOLING.search(kind) and state is not None:
                states[kind] = max(state, states.get(kind, 0))
        return [f"cooling by {kind}" for kind, state in states.items() if state > 0] if states else None

    def _by_counters(self) -> list[str] | None:
        before, self._counts = self._counts, self._counters()
        if not self._counts:
            return None
        return ["throttle counter"] if any(self._counts[path] > before.get(path, 0) for path in self._counts) else []

    def _counters(self) -> dict[Path, float]:
        files = self._root.glob("sys/devices/system/cpu/cpu[0-9]*/thermal_throttle/*_throttle_count")
        return {path: count for path in files if (count := number(path)) is not None}
