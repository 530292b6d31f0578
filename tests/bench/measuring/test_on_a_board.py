"""The same command on the profile's own board, made of files: it measures, and watches the board meanwhile."""

from __future__ import annotations

import io
import json

import pytest
from boards import pi4, put

from edgepeft.bench.result.schema import BenchResult
from edgepeft.bench.run import run_benchmark
from edgepeft.options.verbs import BenchOptions

FIRMWARE = "sys/devices/platform/soc/soc:firmware/get_throttled"


def bench(start, root, **options):
    asked = {"profile": "rpi4", "backbone": "all-MiniLM-L6-v2", "rounds": 6, "batch_size": 4, "length": 16}
    asked |= {"workloads": ("infer",), "engines": ("onnxruntime",)}
    return run_benchmark(BenchOptions(**{**asked, **options}), start=start, root=root).result.to_json()


def table(document):
    from rich.console import Console

    from edgepeft.bench.report.tables import bench_table

    console = Console(width=200, file=io.StringIO())
    console.print(bench_table(BenchResult.model_validate_json(json.dumps(document))))
    return " ".join(console.file.getvalue().split())


@pytest.mark.parametrize("mode", ["limits", "calibrated"])
def test_on_the_device_itself_nothing_is_emulated(fake_start, tmp_path, mode):
    document = bench(fake_start(0.5), pi4(tmp_path), mode=mode)
    assert document["mode"] == "measured"
    assert document["host"]["board"] == "Raspberry Pi 4 Model B Rev 1.4"
    assert document["profile"]["limits"]["requested"] == {"cores": None, "memory_bytes": None, "cpu_quota": None}
    assert "calibration" not in document
    shown = table(document)
    assert "measured on rpi4" in shown
    assert "nothing is emulated" in shown


def test_another_boards_profile_is_emulated_on_it(fake_start, tmp_path):
    document = bench(fake_start(0.5), pi4(tmp_path), profile="iphone11")
    assert document["mode"] == "limits"
    assert document["host"]["board"] == "Raspberry Pi 4 Model B Rev 1.4"


def test_every_sample_has_temperature_clock_and_throttling(fake_start, tmp_path):
    (row,) = bench(fake_start(0.5), pi4(tmp_path, temperature=61.4, mhz=1500))["results"]
    assert row["conditions"] == {
        "temperature_c": [61.4] * 6,
        "frequency_mhz": [1500.0] * 6,
        "throttled": [[]] * 6,
    }
    assert row["throttled"] is False


def test_a_run_that_throttled_is_marked(fake_start, tmp_path):
    root, steps = pi4(tmp_path), []

    def seconds(label):
        if label == "infer onnxruntime backbone":
            steps.append(label)
            put(root, FIRMWARE, "40004" if len(steps) in (6, 7) else "40000" if len(steps) > 7 else "0")
        return 0.5

    document = bench(fake_start(seconds), root)
    (row,) = document["results"]
    warmup = len(row["warmup_s"])
    throttled = [bool(reasons) for reasons in row["conditions"]["throttled"]]
    assert throttled == [number + 1 in (6, 7) for number in range(warmup, warmup + 6)]
    assert row["throttled"] is True
    assert any("throttled: the board held itself back in" in warning for warning in row["warnings"])
    assert "throttled" in table(document)


def test_energy_without_a_sensor_is_estimated_and_marked(fake_start, tmp_path):
    (row,) = bench(fake_start(0.5), pi4(tmp_path))["results"]
    assert row["energy"]["kind"] == "estimated"
    assert row["energy"]["joules_per_instance"] == pytest.approx(5.66 * 0.5 / 4)  # mlcommons v1.0: 5.66 W


def test_energy_of_a_sensor_is_the_sensors(fake_start, tmp_path):
    root = pi4(tmp_path)
    counter = put(root, "sys/class/hwmon/hwmon0/energy1_input", 0)
    put(root, "sys/class/hwmon/hwmon0/name", "ina228")

    def seconds(label):
        counter.write_text(str(int(counter.read_text()) + 3_000_000))  # microjoules
        return 0.5

    (row,) = bench(fake_start(seconds), root)["results"]
    assert row["energy"]["kind"] == "sensor"
    assert row["energy"]["joules_per_instance"] == pytest.approx(3.0 / 4)
    assert row["energy"]["watts"] == pytest.approx(6.0)


def test_a_host_that_tells_nothing_has_no_conditions(fake_start, tmp_path):
    (row,) = bench(fake_start(0.5), tmp_path)["results"]
    assert (row["conditions"], row["throttled"], row["energy"]) == (None, False, None)
