"""All that is claimed in a bounded time: what is stopped keeps its rows, what is left of a part is the next one's."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from bench import claims
from bench.claims import Claim, measured
from bench.suites import suite_names
from edgepeft.backbones.config import config_of

# A suite: a row at once, the next after so many seconds; the first Ctrl-C ends a comparison and the second the suite.
# It waits for them as signals, so that a second one cannot come between the first and its row, however busy the host is.
SUITE = """
import json, signal, sys
from pathlib import Path
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
suite, file = sys.argv[1], Path(sys.argv[sys.argv.index("--json") + 1])
file.write_text(json.dumps({"rows": [sys.argv[1:]]}))
if suite == "broken":
    sys.exit(3)
if signal.sigtimedwait({signal.SIGINT}, float(suite)):
    file.write_text(json.dumps({"rows": [1, 2]}))
    signal.sigwait({signal.SIGINT})
"""


@pytest.fixture
def command(tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "_GRACE_S", 0.8)
    monkeypatch.setattr(claims, "_AGAIN_S", 0.2)
    (tmp_path / "suite.py").write_text(SUITE)
    return [sys.executable, str(tmp_path / "suite.py")]


def test_a_suite_is_stopped_when_its_part_is_over_and_keeps_its_rows(command, tmp_path):
    began = time.monotonic()
    parts = [Claim("0", minutes=1, options=("--max-seconds", "9")), Claim("60", "tiny", 1), Claim("broken", minutes=0)]
    report, well = measured(parts, command, ["--rounds", "3"], tmp_path, minutes=3 / 60)
    took = time.monotonic() - began
    lines = report.splitlines()
    assert lines[0].startswith("0: 1 rows in 0.0 min, whole") and not well
    assert lines[1].startswith("60-tiny: 2 rows in") and lines[1].endswith("stopped at its time")
    assert lines[2].endswith("failed with exit code 3") and "of 0.05 min" in lines[3]
    assert 1.8 < took < 60  # the second has what the first left, and not its own minute
    ((row,),) = [json.loads((tmp_path / "0.json").read_bytes())["rows"]]
    assert row == ["0", "--max-seconds", "9", "--rounds", "3", "--json", str(tmp_path / "0.json")]


def test_the_plan_is_of_suites_that_there_are_fits_into_40_minutes_and_has_all_that_peers_are_compared_in():
    assert {claim.suite for claim in claims.CLAIMS} == {*suite_names()} - {"families"}
    for claim in claims.CLAIMS:
        assert not claim.backbone or config_of(claim.backbone)
    assert len({claim.name for claim in claims.CLAIMS}) == len(claims.CLAIMS)
    shapes = {
        suite: {claim.backbone for claim in claims.CLAIMS if claim.suite == suite} for suite in ("single", "batches")
    }
    assert shapes["single"] == shapes["batches"] == {"all-MiniLM-L6-v2", "mpnet-base", "roberta-base"}


def test_an_unknown_suite_is_refused_before_anything_is_measured(tmp_path):
    asked = [sys.executable, "-m", "bench.claims", "--out", str(tmp_path / "out"), "sharring"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "sharing" in done.stderr and not (tmp_path / "out").exists()
