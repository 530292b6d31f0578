"""Files that are generated from code: the check finds stale ones, and the JSON Schemas accept what the schemas do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.generated import main
from edgepeft.common.errors import UsageError
from edgepeft.methods.base import methods

ROOT = Path(__file__).resolve().parents[1]


def test_the_check_fails_on_stale_files_and_passes_once_they_are_written(tmp_path, capsys):
    page = tmp_path / "docs" / "methods.md"
    page.parent.mkdir()
    page.write_text("top\n<!-- methods:begin (generated) -->\nold\n<!-- methods:end -->\nbottom\n")
    assert main(["--check", "--root", str(tmp_path)]) == 1
    assert capsys.readouterr().err.count("make generated") == 6  # the page, three schemas and two pictures
    assert "old" in page.read_text()
    assert main(["--root", str(tmp_path)]) == 0
    assert main(["--check", "--root", str(tmp_path)]) == 0
    text = page.read_text()
    assert text.startswith("top\n<!-- methods:begin (generated) -->\n| method |")
    assert text.endswith("<!-- methods:end -->\nbottom\n")
    assert all(f"| `{name}` |" in text for name in methods())


def test_a_page_without_markers_is_refused(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "methods.md").write_text("nothing here")
    with pytest.raises(UsageError, match="methods:begin"):
        main(["--root", str(tmp_path)])


def test_the_json_schema_of_a_result_names_what_must_be_there():
    schema = json.loads((ROOT / "docs" / "schemas" / "edgepeft.bench-1.json").read_text())
    assert set(schema["required"]) == {"schema", "results"}
    assert schema["properties"]["schema"]["const"] == "edgepeft.bench/1"
    row = schema["$defs"]["BenchRow"]
    assert set(row["required"]) == {"workload", "samples_s"}
    assert row["properties"]["samples_s"]["items"]["exclusiveMinimum"] == 0
