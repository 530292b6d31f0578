"""`python -m bench.reading`: what is read, and how it was measured."""

import json
import subprocess
import sys


def test_reading_and_looking_are_timed_in_processes_of_their_own(tmp_path):
    command = [sys.executable, "-m", "bench.reading", "--rows", "50", "--json", str(tmp_path / "found.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert {name: each["rows"] for name, each in found.items()} == {"reading": 50, "look": 10_000}
    for each in found.values():
        assert 0 < each["processor_seconds"] < 60 and each["seconds"] > 0
        assert 10 < each["MB"] < 500  # an interpreter with NumPy, and no million of rows
    assert "10,000" in done.stdout and "host: " in done.stdout
