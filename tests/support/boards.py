"""Boards made of files: what their kernels show under / and what their programs answer."""

PI4_CPUINFO = """processor\t: 0
BogoMIPS\t: 108.00
Features\t: fp asimd evtstrm crc32 cpuid
CPU implementer\t: 0x41
CPU part\t: 0xd08

Revision\t: d03114
Model\t\t: Raspberry Pi 4 Model B Rev 1.4
"""
PI5_CPUINFO = PI4_CPUINFO.replace("crc32 cpuid", "aes crc32 atomics fphp asimdhp cpuid asimddp").replace(
    "0xd08", "0xd0b"
)


def write(root, **files):
    """Files by path; ``__`` stands for /, since names are keywords."""
    for name, text in files.items():
        put(root, name.replace("__", "/"), text)
    return root


def put(root, path, text):
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(str(text))
    return file


def pi4(root, *, temperature=48.2, mhz=1800, throttled="0"):
    """A Raspberry Pi 4 as Raspberry Pi OS shows it."""
    put(root, "proc/cpuinfo", PI4_CPUINFO)
    put(root, "proc/device-tree/model", "Raspberry Pi 4 Model B Rev 1.4\0")
    put(root, "sys/class/thermal/thermal_zone0/type", "cpu-thermal")
    put(root, "sys/class/thermal/thermal_zone0/temp", round(1000 * temperature))
    for cpu in range(4):
        put(root, f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq", 1000 * mhz)
    if throttled is not None:
        put(root, "sys/devices/platform/soc/soc:firmware/get_throttled", throttled)
    return root


def program(folder, body):
    """An executable ``vcgencmd``."""
    path = folder / "vcgencmd"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)
