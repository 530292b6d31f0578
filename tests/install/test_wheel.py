"""The built wheel in an environment of its own, where there is no torch: what a board gets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.installs


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def board(wheel, tmp_path_factory) -> Path:
    """The executables' folder of an environment with the wheel and its own dependencies alone."""
    folder = tmp_path_factory.mktemp("board") / "venv"
    venv.create(folder, with_pip=True)
    bin_folder = folder / ("Scripts" if os.name == "nt" else "bin")
    pip = [str(bin_folder / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "-c", str(ROOT / "constraints.txt"), str(wheel)], check=True)
    return bin_folder


@pytest.fixture
def edgepeft(board, tmp_path):
    """Runs the installed command far from the checkout."""

    def run(*arguments: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        command = [str(board / "edgepeft"), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)
        assert not check or done.returncode == 0, done.stderr
        return done

    return run


def test_the_wheel_carries_its_data_and_licence_and_no_tests(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    folders = {"/".join(name.split("/")[:3]) for name in names}
    assert {"edgepeft/_data/profiles", "edgepeft/_data/bench", "edgepeft/_data/methods.json"} <= folders
    assert {"edgepeft/py.typed", "edgepeft/_data/verify_texts.txt"} <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if name.startswith(("tests", "docs", "exports"))]


def test_of_the_repositorys_bench_the_wheel_holds_the_scenarios_alone(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if not name.startswith("edgepeft-")} == {"edgepeft"}
    own = {"edgepeft/_data/bench/count_instructions.c"}  # of edgepeft.bench itself
    carried = {name for name in names if name.startswith("edgepeft/_data/bench/")} - own
    scenarios = {path.relative_to(ROOT).as_posix() for path in (ROOT / "bench" / "scenarios").rglob("*.toml")}
    assert carried == {f"edgepeft/_data/{name}" for name in scenarios}


def test_no_torch_comes_with_it(board):
    code = "import importlib.util as u; print([m for m in ('torch', 'transformers', 'sympy') if u.find_spec(m)])"
    done = subprocess.run([str(board / "python"), "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_it_says_its_version(edgepeft):
    from edgepeft import __version__

    assert edgepeft("--version").stdout.strip() == f"edgepeft {__version__}"


def test_it_lists_the_methods_from_the_shipped_catalogue(edgepeft):
    assert {"spartan", "houlsby", "pfeiffer", "lora", "bitfit", "layernorm", "full"} <= names(
        edgepeft("methods", "--json")
    )


def test_it_lists_the_profiles_that_the_wheel_carries(edgepeft):
    assert {"rpi4", "iphone11"} <= names(edgepeft("profiles", "--json"))


def names(done: subprocess.CompletedProcess[str]) -> set[str]:
    document = json.loads(done.stdout)
    entries = next(iter(document.values())) if isinstance(document, dict) and len(document) == 1 else document
    return set(entries) if isinstance(entries, dict) else {entry["name"] for entry in entries}


def test_training_without_torch_says_what_to_install(edgepeft, tmp_path):
    (tmp_path / "rows.csv").write_text("sentence1,label\ngood,1\nbad,0\n")
    options = ("--backbone", ".", "--data", "rows.csv", "--task", "t", "--method", "lora", "--out", "delta")
    done = edgepeft("train", *options, check=False)
    assert done.returncode == 1
    assert "edgepeft[train]" in done.stderr
    assert "Traceback" not in done.stderr
