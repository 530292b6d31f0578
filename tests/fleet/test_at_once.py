"""Processes that write to one bundle at once: each ends with its work done or a reason, and the bundle is whole."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from boards_of import answers
from verbs import ENTRY, SURROUNDING

from edgepeft.bundle.bundle import TASKS_FOLDER
from edgepeft.bundle.manifest import Manifest
from edgepeft.bundle.versions import content_of
from edgepeft.deploy.verify import audit


@pytest.mark.slow  # processes of their own
def test_two_pulls_and_a_tuning_of_one_folder(fleet, board, retrained, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        "".join(
            f'{{"sentence1": "w{5 + i % 50} w{10 + i % 2}", "label": "{("no", "yes")[i % 2]}"}}\n' for i in range(60)
        )
    )
    pulling = ["pull", fleet.served.address, board, "--root", fleet.root]
    tuning = ["tune", board, "--task", "mood", "--data", rows, "--steps", "30", "--lr", "0.05", "--force"]
    for round in range(3):
        fleet.publish(retrained / "newer" if round % 2 == 0 else fleet.bundle)
        commands = [pulling, tuning, pulling]
        running = [
            subprocess.Popen(
                [sys.executable, "-c", ENTRY, *map(str, words)],
                env=os.environ | SURROUNDING,
                stderr=subprocess.PIPE,
                text=True,
            )
            for words in commands
        ]
        said = [process.communicate()[1] for process in running]
        codes = [process.returncode for process in running]
        assert not any("Traceback" in text for text in said), said
        assert codes[1] in (0, 2) and {codes[0], codes[2]} <= {0, 1, 2}, (codes, said)
        reasons = ("another process is pulling", "being tuned", "changed meanwhile", "opened; open the bundle again")
        for code, text in zip(codes, said, strict=True):
            assert code == 0 or any(reason in text for reason in reasons), (code, text)
        for task, entry in Manifest.read(board).tasks.items():
            content_of(board / TASKS_FOLDER, task, entry)
        assert [finding.problem for finding in audit(board)] == [""] * 4 and len(answers(board)) == 3
    assert not (board / ".tune").exists() and not list(board.rglob(".edgepeft.lock"))
