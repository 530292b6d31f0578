"""A board's condition while it works, and the energy that it takes, where it has sensors.

Temperature, frequency and throttling: the Raspberry Pi's firmware (``get_throttled`` of its driver in sysfs, else
``vcgencmd get_throttled``; raspberrypi.com/documentation, "vcgencmd"), Linux's thermal zones and cooling devices
(Documentation/driver-api/thermal/sysfs-api), cpufreq, and the throttle counters of Intel's processors.

Energy, by counters: Linux's powercap (Intel's and AMD's RAPL) and ``energy1_input`` of a monitor at a shunt. By power
that is read while the work runs: such a monitor's ``power1_input``, or voltage times current of an INA3221, which the
Jetsons have at their input (Documentation/hwmon/sysfs-interface), and ``vcgencmd pmic_read_adc`` of the Raspberry Pi 5,
the sum over its regulator's rails. Pis before the 5 have no sensor.

Everything takes ``root``, the folder that stands for /, so that boards can be imitated in tests.
"""

import contextlib
import re
import shutil
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Self

from edgepeft.device import cgroups
from edgepeft.device.cgroups import ROOT

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
_PERIOD_S = 0.2  # between readings of a power sensor; the thread sleeps meanwhile
# Documentation/hwmon/ina2xx, ina238, ina3221, ltc2945, ltc2947: what is put into a supply line to measure it. Any other
# hwmon device with the same files measures a part: a battery (BAT0), a GPU, a core (amd_energy), a fibre's light (sfp).
_MONITOR = re.compile(r"ina\d+x?|ltc294[57]|sq52206", re.IGNORECASE)
_INPUT_RAIL = re.compile(r"VDD_IN|POM_5V_IN|5V_IN|VIN", re.IGNORECASE)  # what the Jetsons call the board's input
_PMIC = re.compile(r"(\S+)_([AV])\s+(?:current|volt)\(\d+\)=([\d.]+)[AV]")


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
        return float(cgroups.read(path) or "")
    except ValueError:
        return None


def firmware_says(vcgencmd: str | None, command: str) -> str | None:
    """Ask the Raspberry Pi's program; None without it, without permission (group video), or where it hangs."""
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
        files = self._root.glob("sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_cur_freq")
        clocks = [khz / 1000 for path in files if (khz := number(path)) is not None]
        sources = (self._by_firmware(), self._by_cooling(), self._by_counters())
        known = [reasons for reasons in sources if reasons is not None]
        throttled = tuple(dict.fromkeys(reason for reasons in known for reason in reasons)) if known else None
        return Conditions(self._temperature(), median(clocks) if clocks else None, throttled)

    def _temperature(self) -> float | None:
        """The hottest of the zones at the processor, else of all, in degrees Celsius."""
        by_kind: dict[bool, list[float]] = {True: [], False: []}
        for zone in self._root.glob("sys/class/thermal/thermal_zone*"):
            if (milli := number(zone / "temp")) is not None:
                by_kind[bool(_CPU_ZONE.search(cgroups.read(zone / "type") or ""))].append(milli / 1000)
        return max(by_kind[True] or by_kind[False], default=None)

    def _by_firmware(self) -> list[str] | None:
        if (bits := self._firmware()) is None:
            return None
        since = (bits >> _STICKY) & ~self._sticky
        self._sticky = bits >> _STICKY
        return [reason for bit, reason in _FIRMWARE.items() if (bits | since) >> bit & 1]

    def _firmware(self) -> int | None:
        texts = (cgroups.read(self._root / name) for name in _FIRMWARE_FILES)
        text = next((text for text in texts if text), None) or firmware_says(self._vcgencmd, "get_throttled")
        with contextlib.suppress(ValueError):
            return int((text or "").rpartition("=")[2], 16)
        return None

    def _by_cooling(self) -> list[str] | None:
        """Cooling devices of the processor that hold it back; on a PC every core's is called ``Processor``."""
        states: dict[str, float] = {}
        for device in self._root.glob("sys/class/thermal/cooling_device*"):
            kind, state = cgroups.read(device / "type") or "", number(device / "cur_state")
            if _CPU_COOLING.search(kind) and state is not None:
                states[kind] = max(state, states.get(kind, 0))
        return [f"cooling by {kind}" for kind, state in states.items() if state > 0] if states else None

    def _by_counters(self) -> list[str] | None:
        before, self._counts = self._counts, self._counters()
        grown = any(count > before.get(path, 0) for path, count in self._counts.items())
        return ["throttle counter"] * grown if self._counts else None

    def _counters(self) -> dict[Path, float]:
        files = self._root.glob("sys/devices/system/cpu/cpu[0-9]*/thermal_throttle/*_throttle_count")
        return {path: count for path in files if (count := number(path)) is not None}


class Meter:
    """Measures blocks: ``with meter: ...``, then ``meter.joules``. ``source`` is None where the board has no sensor."""

    def __init__(self, root: Path = ROOT, vcgencmd: str | None = None):
        self.joules: float | None = None
        self._counter = _counter(root)
        self._power: Callable[[], float | None] | None = None
        self.source = self._counter and "counter " + self._counter[0]
        if self._counter is None and (power := _power(root, vcgencmd or shutil.which("vcgencmd"))) is not None:
            self.source, self._power = power

    def __enter__(self) -> Self:
        self.joules = None
        if self._counter is not None:
            self._before = number(self._counter[1])
        elif self._power is not None:
            self._stop, self._watts = threading.Event(), list[float]()
            self._thread = threading.Thread(target=self._read, daemon=True)
            self._started = time.perf_counter()
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._counter is not None:
            after = number(self._counter[1])
            if self._before is not None and after is not None and after >= self._before:  # else it wrapped around
                self.joules = (after - self._before) / 1e6
        elif self._power is not None:
            seconds = time.perf_counter() - self._started
            self._stop.set()
            self._thread.join()
            if self._watts:
                self.joules = seconds * sum(self._watts) / len(self._watts)

    def _read(self) -> None:
        assert self._power is not None
        while True:
            if (watts := self._power()) is not None:
                self._watts.append(watts)
            if self._stop.wait(_PERIOD_S):
                return


def _monitors(root: Path) -> list[Path]:
    folders = sorted(root.glob("sys/class/hwmon/hwmon*"))
    return [folder for folder in folders if _MONITOR.fullmatch(cgroups.read(folder / "name") or "")]


def _counter(root: Path) -> tuple[str, Path] | None:
    """The first counter of a whole package or board: its name, its file in microjoules."""
    candidates = [*sorted(root.glob("sys/class/powercap/intel-rapl:[0-9]/energy_uj"))]
    candidates += [folder / "energy1_input" for folder in _monitors(root)]
    readable = (path for path in candidates if number(path) is not None)  # RAPL is root's to read
    return next(((cgroups.read(path.parent / "name") or path.parent.name, path) for path in readable), None)


def _power(root: Path, vcgencmd: str | None) -> tuple[str, Callable[[], float | None]] | None:
    """The name of a power sensor, and how to read its watts."""
    for folder in _monitors(root):
        name = cgroups.read(folder / "name")
        if number(folder / "power1_input") is not None:
            return f"hwmon {name}", lambda path=folder / "power1_input": _watts(path, 1.0)
        for label in sorted(folder.glob("in[0-9]_label")):
            rail, channel = cgroups.read(label) or "", label.name[2]
            volts, amperes = folder / f"in{channel}_input", folder / f"curr{channel}_input"
            if _INPUT_RAIL.search(rail) and number(volts) is not None and number(amperes) is not None:
                return f"hwmon {name} {rail}", lambda v=volts, a=amperes: _watts(v, number(a))
    if vcgencmd is not None and _pmic(vcgencmd) is not None:
        return "vcgencmd pmic_read_adc, the regulator's rails", lambda: _pmic(vcgencmd)
    return None


def _watts(path: Path, factor: float | None) -> float | None:
    """A file's number times a factor, in millionths; None where either is missing."""
    value = number(path)
    return None if value is None or factor is None else value * factor * 1e-6


def _pmic(vcgencmd: str) -> float | None:
    """Watts over all rails of which both current and voltage are given."""
    rails: dict[str, dict[str, float]] = defaultdict(dict)
    for rail, kind, value in _PMIC.findall(firmware_says(vcgencmd, "pmic_read_adc") or ""):
        rails[rail][kind] = float(value)
    watts = [rail["A"] * rail["V"] for rail in rails.values() if rail.keys() == {"A", "V"}]
    return sum(watts) if watts else None
