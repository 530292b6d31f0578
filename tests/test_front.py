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
CLASSES = {"Bundle", "LocalTuner", "Runtime", "TrainOptions", "TuneOptions"}


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
    done = run("import sys; from edgepeft import Bundle, LocalTuner, Runtime, TuneOptions, tune; print(*sys.modules)")
    loaded = {*done.stdout.split()}
    assert "onnxruntime" in loaded and not {"torch", "transformers"} & loaded, done.stderr


@pytest.mark.parametrize("name", ["train", "export"])
def test_without_torch_the_error_says_what_to_install(name):
    done = run(f"import sys; sys.modules['torch'] = None; import edgepeft; edgepeft.{name}")
    expected = f"edgepeft.common.errors.MissingPackage: edgepeft.{name} needs torch: pip install 'edgepeft[train]'."
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
        + 'train("backbone", 5, "rows.csv", TrainOptions(task="mood"), "mood")\n'
        + 'card = train(backbone="backbone", data="rows.csv", task="mood", method="lora", out="mood")["metrics"]\n'
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", str(script)],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    notes = re.findall(r"note: Revealed type is (.+)", done.stdout)
    assert len(notes) == len(names) + 1 and "Any" not in {note.strip("\"'") for note in notes}, done.stdout
    by_name = dict(zip(names, notes, strict=False))
    takes_options = {"export", "train"}  # or objects, whose types are checked: def (...) is in the brackets
    assert all(by_name[name].strip('"').startswith("def (") for name in {*names} - takes_options), notes
    assert all("_functions.Function[[backbone: " in by_name[name] for name in takes_options), notes
    assert "TrainResult" in by_name["train"] and "Manifest" in by_name["export"] and "TuneResult" in by_name["tune"]
    assert "float" in notes[-1]
    errors = re.findall(r"error: .*\[([a-z-]+)\]", done.stdout)
    assert errors == ["attr-defined", "arg-type", "call-overload"], done.stdout


ABOVE = PAGE.partition("## Running")[0]  # tests/runtime/test_documented.py runs what is below
BLOCKS = [
    re.sub(r"^    ", "", block.group(0), flags=re.M)
    for block in re.finditer(r"(?:^    .*\n|^\n(?=    ))+", ABOVE, re.M)
]


def test_the_readme_shows_the_first_block_of_the_page():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    block = PAGE[PAGE.index("    from edgepeft") :].partition("\n\n`train`")[0]
    assert block.rstrip().endswith("answer.score)") and block in readme


@pytest.fixture
def mood(tmp_path, monkeypatch):
    pytest.importorskip("torch", reason="pip install edgepeft[train]")
    from moods import texts
    from tiny import write_model

    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "all-MiniLM-L6-v2", "bert", mean=True)
    for name, seed in (("reviews.csv", 0), ("more.csv", 1)):
        rows = "".join(f"{json.dumps(text)},{label}\n" for text, label, _ in texts(60, seed))
        (tmp_path / name).write_text(f"sentence1,label\n{rows}")
    return tmp_path


@pytest.mark.parametrize("number", [0, 1])
def test_a_block_of_the_page_trains_exports_and_answers(mood, capsys, number):
    assert len(BLOCKS) == 2
    code = BLOCKS[number]
    assert len([line for line in code.splitlines() if line.strip()]) <= 15
    exec(compile(code, "docs/python.md", "exec"), {})
    out = capsys.readouterr().out
    assert re.fullmatch(r"accuracy [01]\.\d*\n(bad|good) 0\.\d+\n", out), out
    card = json.loads((mood / "mood" / "delta.json").read_text())
    assert (card["hyperparameters"]["rank"], card["training"]["learning_rate"]) == (4, 1e-3)


def test_a_function_with_a_verbs_options_gives_what_the_verb_prints_as_json(mood):
    from tiny import write_model
    from verbs import edgepeft as verb

    asked = {"backbone": "all-MiniLM-L6-v2", "data": "reviews.csv", "task": "mood", "method": "lora", "steps": 3}
    line = [part for name, value in asked.items() for part in (f"--{name}", value)]
    printed = verb("train", *line, "--set", "rank=2", "--eval", "0.2", "--out", "line", "--json", "--threads", 1)
    card = edgepeft.train(**asked, set={"rank": 2}, eval=0.2, out="called", threads=1)
    assert card == json.loads(printed.stdout) == json.loads((mood / "called" / "delta.json").read_text())
    assert card["metrics"]["n_eval"] == 12
    assert (mood / "called" / "delta.safetensors").read_bytes() == (mood / "line" / "delta.safetensors").read_bytes()
    manifest = edgepeft.export(backbone="all-MiniLM-L6-v2", delta="called", out="bundle", weights="int8")
    assert manifest == json.loads((mood / "bundle" / "edgepeft.json").read_text())
    write_model(mood / "first-token", "bert", mean=False)  # PEFT has no head on a mean
    edgepeft.train(**{**asked, "backbone": "first-token", "steps": 1}, out="first")
    assert edgepeft.export(backbone="first-token", delta=["first"], to_peft="peft") == {"to_peft": "peft"}
    assert (mood / "peft" / "adapter_config.json").is_file()


WANTED = {"backbone": "b", "data": "none.csv", "task": "mood", "method": "lora", "out": "out"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({**WANTED, "epoch": 2}, "no option of edgepeft.train is called 'epoch'. Did you mean 'epochs'?"),
        ({"backbone": "b", "data": "d.csv"}, "edgepeft.train needs task= and out= too."),
        ({**WANTED, "epochs": "many"}, "epochs must be a whole number, found 'many'"),
        ({**WANTED, "device": "gpu"}, "device must be 'auto', 'cpu', 'cuda' or 'mps', found 'gpu'"),
        ({**WANTED, "as_json": True}, "no option of edgepeft.train is called 'as_json'"),
        (WANTED, "none.csv does not exist"),
    ],
)
def test_wrong_options_of_a_function_are_refused_as_the_verbs_are(options, message, tmp_path, monkeypatch):
    from edgepeft.common.errors import UsageError

    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as raised:
        edgepeft.train(**options)
    assert message in str(raised.value)
    assert not list(tmp_path.iterdir())


def test_help_lists_every_option_of_the_verb():
    from edgepeft.cli.train import command

    for option in {*command.__annotations__} - {"as_json", "return"}:
        assert re.search(rf"^    {option}( \*)?: \w", edgepeft.train.__doc__, re.M), option


def test_what_is_interrupted_in_a_notebook_says_how_to_go_on_and_a_thread_may_train_too(mood):
    import signal
    import threading

    from edgepeft.data.training_loop.run import Interrupted, rate_factor

    asked = {"backbone": "all-MiniLM-L6-v2", "data": "reviews.csv", "task": "mood", "method": "bitfit", "steps": 4}
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Interrupted, match="resume=True"):
        patch.setattr(
            "edgepeft.data.training_loop.run.rate_factor",
            lambda *a: (signal.raise_signal(signal.SIGINT), rate_factor(*a))[1],
        )
        edgepeft.train(**asked, out="stopped")
    assert edgepeft.train(**asked, out="stopped", resume=True)["training"]["steps"] == 4
    thread = threading.Thread(target=lambda: edgepeft.train(**asked, out="threaded"))
    thread.start()
    thread.join()
    assert (mood / "threaded" / "delta.json").is_file()
