from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata

import pytest
from boards import PI4_CPUINFO

from edgepeft.device.host import machine as host

PC = "processor\t: 0\nmodel name\t: AMD EPYC 7B13\nflags\t\t: fpu sse4_2 avx2 fma smep nx\n"


def test_a_pi_names_its_board_and_its_core(tmp_path):
    (tmp_path / "cpuinfo").write_text(PI4_CPUINFO)
    assert host.cpu_model(tmp_path) == "Raspberry Pi 4 Model B Rev 1.4, Cortex-A72"
    assert host.isa_flags(tmp_path) == ("asimd", "crc32")


def test_a_pc_names_its_processor(tmp_path):
    (tmp_path / "cpuinfo").write_text(PC)
    assert host.cpu_model(tmp_path) == "AMD EPYC 7B13"
    assert host.isa_flags(tmp_path) == ("avx2", "fma", "sse4_2")


def test_a_host_without_cpuinfo_still_has_a_name(tmp_path):
    assert host.cpu_model(tmp_path)


def test_memory_is_less_where_a_group_says_so(v2):
    (v2.own / "memory.max").write_text(str(64 << 20))
    assert host.memory_bytes(v2.proc) == 64 << 20


def test_facts_are_json_and_name_the_installed_versions():
    facts = json.loads(json.dumps(host.host_facts()))
    assert facts["versions"]["numpy"] == metadata.version("numpy")
    assert facts["cores"]["usable"] >= 1
    assert facts["memory_bytes"] > 1 << 27


def test_asking_for_versions_imports_neither_torch_nor_onnxruntime():
    code = (
        "import sys; from edgepeft.device.host import machine; from edgepeft.device.limits import limited_process; from edgepeft.device.profiles import loader; machine.host_facts();"
        "loader.load_profile('rpi4');"
        "print([name for name in ('torch', 'transformers', 'onnxruntime', 'onnx') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("machine", "flags", "saturates"),
    [("x86_64", ("avx2",), True), ("x86_64", ("avx2", "avx512_vnni"), False), ("aarch64", ("asimd",), False)],
)
def test_8_bit_products_overflow_on_x86_without_vnni(monkeypatch, machine, flags, saturates):
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr(host, "isa_flags", lambda: flags)
    assert host.saturates_in_8_bits() is saturates
