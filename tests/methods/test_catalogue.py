"""What is generated from the methods, and what the verbs read of it without torch; `make check-generated` compares."""

from __future__ import annotations

import json
import subprocess
import sys

from typer.testing import CliRunner

from edgepeft.cli._main import app
from edgepeft.common.errors import UnknownName, UsageError
from edgepeft.common.resources import package_data


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*arguments: str) -> BaseException:
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, UsageError), result.output
    return result.exception


def test_methods_prints_the_catalogue_as_one_json_document():
    entries = {entry["name"]: entry for entry in json.loads(run("methods", "--json"))["methods"]}
    shipped = json.loads(package_data("methods.json").read_text(encoding="utf-8"))["methods"]
    assert set(entries) == {entry["name"] for entry in shipped}  # of a method without `make generated` it has none
    assert entries["spartan"]["parameters"]["roberta-base"] == 1_032_192 + 38_400
    assert {field["name"]: field["default"] for field in entries["lora"]["fields"]}["roles"] == ["query", "value"]


def test_methods_shows_one_with_its_paper_fields_and_defaults():
    shown = run("methods", "pfeiffer")
    for part in ("arXiv:2005.00247", "bottleneck", "64", "ffn | attention", "1,189,632"):
        assert part in shown
    assert json.loads(run("methods", "pfeiffer", "--json"))["learning_rate"] == 9e-4


def test_methods_refuses_an_unknown_name_with_the_nearest():
    error = refused("methods", "lroa")
    assert isinstance(error, UnknownName)
    assert "Did you mean 'lora'?" in str(error)


def test_methods_imports_no_torch():
    program = (
        "import sys; sys.modules['torch'] = None; sys.argv = ['edgepeft', 'methods', '--json'];"
        "from edgepeft.cli._main import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["methods"]
