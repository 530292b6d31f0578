"""The names that ``import edgepeft`` gives: lazy, typed, and enough for the first page of docs/python.md."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import edgepeft

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
FUNCTIONS = {"export", "train", "tune"}
CLASSES = {"Bundle", "Runtime", "TrainOptions", "TuneOptions"}


def run(code, **more):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT, **more)


def test_all_lists_what_there_is():
    assert set(edgepeft.__all__) == FUNCTIONS | CLASSES | {"__version__"}
    assert set(edgepeft.__all__) <= set(dir(edgepeft))
    with pytest.raises(AttributeError, match="'edgepeft' has no attribute 'Runtme'"):
        edgepeft.Runtme  # noqa: B018


def test_importing_loads_nothing_that_takes_time():
    done = run("import edgepeft, sys; dir(edgepeft); print(*sys.modules)")
    assert not {"torch", "onnxruntime", "onnx", "numpy", "pydantic"} & {*done.stdout.split()}, done.stderr


def test_what_a_board_needs_loads_no_torch():
    done = run("import sys; from edgepeft import Bundle, Runtime, TuneOptions, tune; print(*sys.modules)")
    loaded = {*done.stdout.split()}
    assert "onnxruntime" in loaded and not {"torch", "transformers"} & loaded, done.stderr


@pytest.mark.parametrize("name", ["train", "export"])
def test_without_torch_the_error_says_what_to_install(name):
    done = run(f"import sys; sys.modules['torch'] = None; import edgepeft; edgepeft.{name}")
    expected = f"edgepeft.errors.MissingPackage: edgepeft.{name} needs torch: pip install 'edgepeft[train]'."
    assert done.stderr.splitlines()[-1] == expected


def test_a_users_script_is_checked_against_the_real_types(tmp_path):
    pytest.importorskip("mypy", reason="pip install edgepeft[dev]")
    script = tmp_path / "script.py"
    names = sorted({*edgepeft.__all__} - {"__version__"})
    script.write_text(
        f"from edgepeft import {', '.join(names)}\n"
        + "".join(f"reveal_type({name})\n" for name in names)
        + 'reveal_type(Runtime("bundle").predict("mood", ["a text"])[0].score)\n'
        + 'Runtime("bundle").predikt("mood")\n'
        + 'train("backbone", "lora", "rows.csv", TrainOptions(task="mood", epochs="2"), "mood")\n'
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", str(script)],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    notes = re.findall(r"note: Revealed type is (.+)", done.stdout)
    assert len(notes) == len(names) + 1 and "Any" not in {note.strip("\"'") for note in notes}, done.stdout
    by_name = dict(zip(names, notes, strict=False))
    assert all(by_name[name].strip('"').startswith("def (") for name in names), notes
    assert "TrainResult" in by_name["train"] and "Manifest" in by_name["export"] and "TuneResult" in by_name["tune"]
    assert "float" in notes[-1]
    errors = re.findall(r"error: .*\[([a-z-]+)\]", done.stdout)
    assert errors == ["attr-defined", "arg-type"], done.stdout


def test_the_first_block_of_the_page_trains_exports_tunes_and_answers(tmp_path, monkeypatch, capsys):
    pytest.importorskip("torch", reason="pip install edgepeft[train]")
    from moods import texts
    from tiny import write_model

    block = re.search(r"(?:^    .*\n|^\n(?=    ))+", PAGE, re.M).group(0)
    code = re.sub(r"^    ", "", block, flags=re.M)
    assert len([line for line in code.splitlines() if line.strip()]) <= 15
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "all-MiniLM-L6-v2", "bert", mean=True)
    for name, seed in (("reviews.csv", 0), ("more.csv", 1)):
        rows = "".join(f"{json.dumps(text)},{label}\n" for text, label, _ in texts(60, seed))
        (tmp_path / name).write_text(f"sentence1,label\n{rows}")
    exec(compile(code, "docs/python.md", "exec"), {})
    out = capsys.readouterr().out
    assert re.fullmatch(r"accuracy [01]\.\d*\n(bad|good) 0\.\d+\n", out), out
    assert json.loads((tmp_path / "mood" / "delta.json").read_text())["hyperparameters"]["rank"] == 4
    assert (tmp_path / "bundle" / "tasks" / "mood.train.onnx").is_file()
