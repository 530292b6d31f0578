"""The module's own tests, by node's runner."""

import shutil
import subprocess
from pathlib import Path

import pytest


def test_the_module_by_nodes_runner():
    if shutil.which("node") is None:
        pytest.skip("needs node")
    command = ["node", "--test", str(Path(__file__).with_name("module.test.mjs"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout[-4000:]
