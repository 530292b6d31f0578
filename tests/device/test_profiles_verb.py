from __future__ import annotations

import json
import tomllib

import pytest
from typer.testing import CliRunner

from edgepeft.cli._main import app
from edgepeft.common.errors import UnknownName
from edgepeft.common.resources import data_folder


def output(*arguments, env=None):
    result = CliRunner().invoke(app, ["profiles", *arguments], env={"COLUMNS": "200", **(env or {})})
    if result.exception is not None:
        raise result.exception
    assert result.exit_code == 0
    return result.stdout


def test_the_list_names_every_file():
    listed = output()
    assert all(path.stem in listed for path in data_folder("profiles").glob("*.toml"))


def test_the_list_as_json_gives_cores_and_bytes():
    profiles = {profile["name"]: profile for profile in json.loads(output("--json"))["profiles"]}
    assert (profiles["rpi4"]["cores"], profiles["rpi4"]["memory_bytes"]) == (4, 8589934592)


def test_one_profile_as_json_carries_everything_its_file_says():
    document = json.loads(output("rpi4", "--json"))
    written = tomllib.loads((data_folder("profiles") / "rpi4.toml").read_text())
    assert set(document["figures"]) == set(written["figures"])
    assert [row["value"] for row in document["latencies"]] == [row["value"] for row in written["latencies"]]
    assert document["figures"]["hpl"]["source"] == written["figures"]["hpl"]["source"]


@pytest.mark.parametrize("columns", ["60", "200"])
def test_one_profile_shows_the_source_of_its_figures_uncut(columns):
    shown = output("rpi4", env={"COLUMNS": columns})
    assert "…" not in shown
    assert "unsourced" in output("iphone11")


def test_a_users_file_with_brackets_in_its_texts_is_shown_as_written(tmp_path):
    text = (data_folder("profiles") / "rpi4.toml").read_text()
    path = tmp_path / "mine.toml"
    path.write_text(text.replace('title = "HPL fp64, all cores"', 'title = "[red]HPL[/x]"'))
    assert "[red]HPL[/x]" in output(str(path))


def test_an_unknown_profile_is_a_usage_error_with_a_hint():
    with pytest.raises(UnknownName, match="Did you mean 'iphone11'"):
        output("iphone12")
