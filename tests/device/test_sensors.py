"""Boards that are folders: Raspberry Pi, Jetson, a PC."""

from __future__ import annotations

import pytest
from boards import pi4, program, put

from edgepeft.device.sensors import Conditions, Meter, Sensors


def test_a_pi_tells_temperature_clock_and_that_it_does_not_throttle(tmp_path):
    assert Sensors(pi4(tmp_path)).read() == Conditions(48.2, 1800.0, ())


def test_a_host_that_tells_nothing_is_known_to_tell_nothing(tmp_path):
    reading = Sensors(tmp_path, vcgencmd="/nowhere/vcgencmd").read()
    assert reading == Conditions(None, None, None)
    assert not reading.known


# raspberrypi.com/documentation, "get_throttled": bit 0 under-voltage, 1 capped, 2 throttled, 3 soft limit; +16 has been.
@pytest.mark.parametrize(
    ("word", "reasons"),
    [
        ("0", ()),
        ("1", ("under-voltage",)),
        ("4", ("throttled",)),
        ("8", ("soft temperature limit",)),
        ("6", ("frequency capped", "throttled")),
        ("50005", ("under-voltage", "throttled")),
    ],
)
def test_the_firmwares_bits_say_why(tmp_path, word, reasons):
    sensors = Sensors(pi4(tmp_path))
    put(tmp_path, "sys/devices/platform/soc/soc:firmware/get_throttled", word)
    assert sensors.read().throttled == reasons


def test_throttling_between_two_readings_is_seen_and_belongs_to_one_sample(tmp_path):
    sensors = Sensors(pi4(tmp_path))
    put(tmp_path, "sys/devices/platform/soc/soc:firmware/get_throttled", "40000")  # has throttled, does not now
    assert sensors.read().throttled == ("throttled",)
    assert sensors.read().throttled == ()


def test_what_was_so_before_the_run_is_not_held_against_it(tmp_path):
    assert Sensors(pi4(tmp_path, throttled="50000")).read().throttled == ()


def test_a_driver_that_clears_what_has_been_is_understood_too(tmp_path):
    sensors = Sensors(pi4(tmp_path, throttled="0"))
    for word, reasons in (("40000", ("throttled",)), ("0", ()), ("40000", ("throttled",))):
        put(tmp_path, "sys/devices/platform/soc/soc:firmware/get_throttled", word)
        assert sensors.read().throttled == reasons


def test_without_the_drivers_file_the_program_is_asked(tmp_path):
    vcgencmd = program(tmp_path, '[ "$1" = get_throttled ] && echo throttled=0x4')
    assert Sensors(pi4(tmp_path, throttled=None), vcgencmd).read().throttled == ("throttled",)


@pytest.mark.parametrize(
    "body",
    [
        "echo VCHI initialization failed; exit 255",
        "echo error=1 error_msg=x",
        "echo",
        "exec cat /dev/urandom | head -c 300",
    ],
)
def test_a_program_that_does_not_answer_leaves_throttling_unknown(tmp_path, body):
    assert Sensors(pi4(tmp_path, throttled=None), program(tmp_path, body)).read().throttled is None


def test_a_cooling_device_at_the_processor_that_works_is_throttling(tmp_path):
    put(tmp_path, "sys/class/thermal/cooling_device0/type", "thermal-cpufreq-0")
    put(tmp_path, "sys/class/thermal/cooling_device0/cur_state", "0")
    put(tmp_path, "sys/class/thermal/cooling_device1/type", "pwm-fan")
    put(tmp_path, "sys/class/thermal/cooling_device1/cur_state", "3")  # a fan that turns holds nothing back
    sensors = Sensors(tmp_path, "/nowhere")
    assert sensors.read().throttled == ()
    put(tmp_path, "sys/class/thermal/cooling_device0/cur_state", "2")
    assert sensors.read().throttled == ("cooling by thermal-cpufreq-0",)


def test_of_cooling_devices_that_are_called_alike_one_that_works_is_enough(tmp_path):
    for number, state in enumerate([0, 3, 0]):  # a PC's cores
        put(tmp_path, f"sys/class/thermal/cooling_device{number}/type", "Processor")
        put(tmp_path, f"sys/class/thermal/cooling_device{number}/cur_state", state)
    assert Sensors(tmp_path, "/nowhere").read().throttled == ("cooling by Processor",)


def test_a_pcs_throttle_counter_counts_since_the_reading_before(tmp_path):
    counter = "sys/devices/system/cpu/cpu3/thermal_throttle/core_throttle_count"
    put(tmp_path, counter, "17")
    sensors = Sensors(tmp_path, "/nowhere")
    assert sensors.read().throttled == ()
    put(tmp_path, counter, "18")
    assert sensors.read().throttled == ("throttle counter",)
    assert sensors.read().throttled == ()


def test_the_processors_zone_counts_not_the_batterys(tmp_path):
    for i, (kind, milli) in enumerate([("battery", 61000), ("CPU-therm", 52500), ("GPU-therm", 70000)]):
        put(tmp_path, f"sys/class/thermal/thermal_zone{i}/type", kind)
        put(tmp_path, f"sys/class/thermal/thermal_zone{i}/temp", milli)
    assert Sensors(tmp_path, "/nowhere").read().temperature_c == 52.5


def test_a_sensor_with_nonsense_in_it_is_no_sensor(tmp_path):
    pi4(tmp_path, throttled="what")
    put(tmp_path, "sys/class/thermal/thermal_zone0/temp", "")
    assert Sensors(tmp_path, "/nowhere").read() == Conditions(None, 1800.0, None)


def test_an_energy_counter_gives_the_joules_of_the_block(tmp_path):
    energy = put(tmp_path, "sys/class/powercap/intel-rapl:0/energy_uj", 5_000_000)
    put(tmp_path, "sys/class/powercap/intel-rapl:0/name", "package-0")
    meter = Meter(tmp_path)
    with meter:
        energy.write_text("7500000")
    assert (meter.joules, meter.source) == (pytest.approx(2.5), "counter package-0")


def test_a_counter_that_wrapped_around_gives_no_figure(tmp_path):
    energy = put(tmp_path, "sys/class/powercap/intel-rapl:0/energy_uj", 5_000_000)
    meter = Meter(tmp_path)
    with meter:
        energy.write_text("3")
    assert meter.joules is None


def test_a_jetsons_input_is_volts_times_amperes_times_seconds(tmp_path):
    import time

    for name, value in {"name": "ina3221", "in1_label": "VDD_IN", "in1_input": 5000, "curr1_input": 1200}.items():
        put(tmp_path, f"sys/class/hwmon/hwmon3/{name}", value)
    for name, value in {"in2_label": "VDD_CPU", "in2_input": 900, "curr2_input": 9000}.items():
        put(tmp_path, f"sys/class/hwmon/hwmon3/{name}", value)
    meter = Meter(tmp_path)
    began = time.perf_counter()
    with meter:
        time.sleep(0.25)
    assert meter.joules == pytest.approx(6.0 * (time.perf_counter() - began), rel=0.05)
    assert meter.source == "hwmon ina3221 VDD_IN"


# Documentation/hwmon and drivers/power/supply/power_supply_hwmon.c: what these names are.
@pytest.mark.parametrize("name", ["BAT0", "amdgpu", "nouveau", "xe", "amd_energy", "sfp", "tps53679"])
def test_what_a_part_takes_is_not_taken_for_the_boards(tmp_path, name):
    for file, value in {"name": name, "power1_input": 9_000_000, "energy1_input": 1}.items():
        put(tmp_path, f"sys/class/hwmon/hwmon0/{file}", value)
    for file, value in {"in1_label": "vin", "in1_input": 12000, "curr1_input": 700}.items():
        put(tmp_path, f"sys/class/hwmon/hwmon0/{file}", value)
    assert Meter(tmp_path, "/nowhere").source is None


@pytest.mark.parametrize("name", ["ina219", "ina226", "ina238", "ltc2945"])
def test_a_monitor_in_the_supply_line_is_read_in_microwatts_wherever_it_lies(tmp_path, name):
    for folder, called, microwatts in (("hwmon0", "amdgpu", 40_000_000), ("hwmon1", name, 6_250_000)):
        put(tmp_path, f"sys/class/hwmon/{folder}/name", called)
        put(tmp_path, f"sys/class/hwmon/{folder}/power1_input", microwatts)
    meter = Meter(tmp_path, "/nowhere")
    with meter:
        pass
    assert (meter._watts[0], meter.source) == (6.25, f"hwmon {name}")


def test_a_pi_5s_rails_are_summed(tmp_path):
    body = """cat <<END
     3V3_SYS_A current(1)=0.50000000A
     VDD_CORE_A current(7)=2.00000000A
     3V3_SYS_V volt(9)=3.30000000V
     VDD_CORE_V volt(15)=0.80000000V
     EXT5V_V volt(24)=5.14000000V
END"""
    meter = Meter(tmp_path, program(tmp_path, body))
    with meter:
        pass
    assert meter.source.startswith("vcgencmd pmic_read_adc")
    assert meter._watts[0] == pytest.approx(0.5 * 3.3 + 2.0 * 0.8)  # the input's voltage has no current beside it


def test_a_board_without_a_sensor_says_so(tmp_path):
    meter = Meter(pi4(tmp_path), program(tmp_path, "exit 1"))
    with meter:
        pass
    assert (meter.joules, meter.source) == (None, None)
