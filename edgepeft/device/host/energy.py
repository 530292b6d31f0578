"""Energy that a board's own meter gives: a counter, or a power sensor that is read while the work runs.

Counters: Linux's powercap (Intel's and AMD's RAPL) and ``energy1_input`` of a monitor at a shunt. Power: such a
monitor's ``power1_input``, or voltage times current of an INA3221, which the Jetsons have at their input
(Documentation/hwmon/sysfs-interface), and ``vcgencmd pmic_read_adc`` of the Raspberry Pi 5, the sum over its
regulator's rails. Pis before the 5 have no sensor.
"""

from __future__ import annotations

import re
import shutil
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Self

from edgepeft.device.host import groups
from edgepeft.device.host.sensors import ROOT, firmware_says, number

__all__ = ["Meter"]

_PERIOD_S = 0.2  # between readings of a power sensor; the thread sleeps meanwhile
# Documentation/hwmon/ina2xx, ina238, ina3221, ltc2945, ltc2947: what is put into a supply line to measure it. Any other
# hwmon device with the same files measures a part: a battery (BAT0), a GPU, a core (amd_energy), a fibre's light (sfp).
_MONITOR = re.compile(r"ina\d+x?|ltc294[57]|sq52206", re.IGNORECASE)
_INPUT_RAIL = re.compile(r"VDD_IN|POM_5V_IN|5V_IN|VIN", re.IGNORECASE)  # what the Jetsons call the board's input
_PMIC = re.compile(r"(\S+)_([AV])\s+(?:current|volt)\(\d+\)=([\d.]+)[AV]")


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
    return [folder for folder in folders if _MONITOR.fullmatch(groups.read(folder / "name") or "")]


def _counter(root: Path) -> tuple[str, Path] | None:
    """The first counter of a whole package or board: its name, its file in microjoules."""
    candidates = [*sorted(root.glob("sys/class/powercap/intel-rapl:[0-9]/energy_uj"))]
    candidates += [folder / "energy1_input" for folder in _monitors(root)]
    for path in candidates:
        if number(path) is not None:  # RAPL is root's to read
            return groups.read(path.parent / "name") or path.parent.name, path
    return None


def _power(root: Path, vcgencmd: str | None) -> tuple[str, Callable[[], float | None]] | None:
    """The name of a power sensor, and how to read its watts."""
    for folder in _monitors(root):
        name = groups.read(folder / "name")
        if number(folder / "power1_input") is not None:
            return f"hwmon {name}", lambda path=folder / "power1_input": _scaled(number(path), 1e-6)
        for label in sorted(folder.glob("in[0-9]_label")):
            rail, channel = groups.read(label) or "", label.name[2]
            volts, amperes = folder / f"in{channel}_input", folder / f"curr{channel}_input"
            if _INPUT_RAIL.search(rail) and number(volts) is not None and number(amperes) is not None:
                return f"hwmon {name} {rail}", lambda v=volts, a=amperes: _product(number(v), number(a))
    if vcgencmd is not None and _pmic(vcgencmd) is not None:
        return "vcgencmd pmic_read_adc, the regulator's rails", lambda: _pmic(vcgencmd)
    return None


def _scaled(value: float | None, by: float) -> float | None:
    return None if value is None else value * by


def _product(millivolts: float | None, milliamperes: float | None) -> float | None:
    return None if millivolts is None or milliamperes is None else millivolts * milliamperes * 1e-6


def _pmic(vcgencmd: str) -> float | None:
    """Watts over all rails of which both current and voltage are given."""
    rails: dict[str, dict[str, float]] = defaultdict(dict)
    for rail, kind, value in _PMIC.findall(firmware_says(vcgencmd, "pmic_read_adc") or ""):
        rails[rail][kind] = float(value)
    watts = [rail["A"] * rail["V"] for rail in rails.values() if rail.keys() == {"A", "V"}]
    return sum(watts) if watts else None
