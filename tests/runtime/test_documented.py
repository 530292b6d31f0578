"""The examples of docs/python.md on running, run as they stand on a bundle of that name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOC = Path(__file__).parents[2] / "docs" / "python.md"
RUNNING = DOC.read_text(encoding="utf-8").partition("## Running")[2]  # tests/test_front.py runs what is above
BLOCKS = [block.group(0) for block in re.finditer(r"(?:^    .*\n|^\n(?=    ))+", RUNNING, re.M)]
PRINTED = [
    r"\('mood', 'pair', 'score'\)\n(no|yes) 0\.\d+ \{'no'",
    r"([abc] \(-?\d.*\)\n){2}",
    r"\{'mood': \[",
    r"Prediction\nPrediction\nndarray\nUnknownName\n",
    "no task of this bundle",
]


@pytest.mark.parametrize("number", range(len(PRINTED)))
def test_an_example_runs_and_prints_what_its_text_says(number, exported, monkeypatch, capsys):
    assert len(BLOCKS) == len(PRINTED)
    monkeypatch.chdir(exported.parent)
    source = "from edgepeft import Runtime\n" + re.sub(r"^    ", "", BLOCKS[number], flags=re.M)
    exec(compile(source, str(DOC), "exec"), {})
    assert re.match(PRINTED[number], capsys.readouterr().out)
