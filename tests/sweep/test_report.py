"""The page of a sweep: its scores, the papers' beside them, pictures with plain numbers, every run."""

import json

from inline import inline
from verbs import edgepeft

from edgepeft.sweep.local import CellRun
from edgepeft.sweep.run import run_sweep

PUBLISHED = """
[published]
source = "Somebody (2020), table 9"
[published.scores.lora]
tone = 0.8125
"""


def test_a_sweeps_page_traces_every_number_to_its_run(swept, tmp_path):
    sweep = swept(more="sizes = [20, '100%']", data=PUBLISHED)
    assert not run_sweep(sweep, inline, CellRun(sweep, sweep.cells[0]), watch=lambda _: None)
    called = edgepeft("report", sweep.folder, "--out", tmp_path / "page")
    assert called.returncode == 0, called.stderr
    text = (tmp_path / "page" / "report.md").read_text()
    for cell in sweep.cells:
        score = json.loads((sweep.run(cell) / "delta.json").read_text())["metrics"]["test"]
        line = next(line for line in text.splitlines() if line.startswith(f"| {cell.name} "))
        assert f"| {score:,}" in line
    assert "| lora, published | 81.25 |" in text and "Somebody (2020), table 9" in text
    assert "0.004<" not in (tmp_path / "page" / "index.html").read_text()  # 0.0045 is not rounded
    for title in ("Learning curves: tone", "Scores and trained parameters", "Rates: tone"):
        assert title in text
    pictures = list((tmp_path / "page" / "pictures").glob("*.svg"))
    assert pictures and not any("mathdefault" in path.read_text() for path in pictures)


def test_a_sweep_with_nothing_done_yet_lists_its_runs(swept, tmp_path):
    sweep = swept()
    sweep.folder.mkdir()
    sweep.write()
    called = edgepeft("report", sweep.folder, "--out", tmp_path / "page")
    text = (tmp_path / "page" / "report.md").read_text()
    assert called.returncode == 0 and text.count(" open |") == len(sweep.cells)
