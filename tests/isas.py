"""The numerical tests as other processors would run them: other instruction sets in PyTorch, and one thread and two.

``python tests/isas.py`` runs ``pytest -m numerical`` once in each surrounding, as many at a time as there are cores.
PyTorch's own kernels, MKL and oneDNN each take the instruction set from a variable and use at most what the host has, so
a host stands in for older ones, never for newer, which are left out, and named; ONNX Runtime's kernels take the host's own, whatever is set.  MKL reads
MKL_ENABLE_INSTRUCTIONS on Intel alone (an AMD EPYC gives the same bits for each); MKL_CBWR counts on both.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from edgepeft.device.machine import isa_flags

VARIABLES = ("ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR", "ONEDNN_MAX_CPU_ISA", "OMP_NUM_THREADS")
SURROUNDINGS = {
    "SSE, 1 thread": ("default", "SSE4_2", "COMPATIBLE", "SSE41", "1"),
    "AVX2, 2 threads": ("avx2", "AVX2", "AVX2", "AVX2", "2"),
    "AVX-512, 1 thread": ("avx512", "AVX512", "AVX512", "AVX512_CORE", "1"),
}
# To collect all others would take longer than these tests.
TESTS = sorted(Path(__file__).parent.rglob("test_*.py"))
FILES = [str(path) for path in TESTS if "mark.numerical" in path.read_text("utf-8")]


def run(name: str) -> tuple[str, float, subprocess.CompletedProcess[str]]:
    variables = os.environ | dict(zip(VARIABLES, SURROUNDINGS[name], strict=True))
    began = time.monotonic()
    which = ("-m", "numerical and not slow", "-p", "no:cacheprovider")
    command = [sys.executable, "-m", "pytest", *which, *FILES, *sys.argv[1:]]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    return name, time.monotonic() - began, done


def main() -> int:
    failed, names = 0, list(SURROUNDINGS)
    if platform.machine() == "x86_64" and "avx512f" not in isa_flags():
        names.remove("AVX-512, 1 thread")  # PyTorch takes the variable's word, and dies of an illegal instruction
        print("AVX-512, 1 thread: left out, this processor has no AVX-512", flush=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for name, seconds, done in pool.map(run, names):
            lines = done.stdout.splitlines()
            print(f"{name} ({seconds:.0f} s): {lines[-1] if lines else done.stderr}", flush=True)
            if done.returncode:
                failed += 1
                print(done.stdout, done.stderr, sep="\n")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
