"""The names that ``import edgepeft`` gives: lazy, typed, and enough for the first page of docs/python.md."""

from __future__ import annotations

import csv
import importlib
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import pytest
import typer

import edgepeft
from edgepeft.options.base import function_of

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
VERBS = {"evaluate": "eval", "export": "export", "train": "train", "tune": "tune"}
MODELS = {"EvalOptions", "ExportOptions", "TrainOptions", "TuneOptions"}
CLASSES = {"Bundle", "LocalTuner", "Runtime", "TuneSettings", *MODELS}


def run(code, **more):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT, **more)


def test_all_lists_what_there_is():
    assert set(edgepeft.__all__) == {*VERBS, "load"} | CLASSES | {"__version__"}
    assert set(edgepeft.__all__) <= set(dir(edgepeft))
    with pytest.raises(AttributeError, match="'edgepeft' has no attribute 'Runtme'"):
        edgepeft.Runtme  # noqa: B018


def test_importing_loads_nothing_that_takes_time():
    done = run("import edgepeft, sys; dir(edgepeft); print(*sys.modules)")
    assert not {"torch", "onnxruntime", "onnx", "numpy", "pydantic"} & {*done.stdout.split()}, done.stderr


def test_what_a_board_needs_loads_no_torch():
    names = sorted({*edgepeft.__all__} - {"train", "export", "__version__"})
    done = run(f"import sys; from edgepeft import {', '.join(names)}; print(*sys.modules)")
    loaded = {*done.stdout.split()}
    assert "onnxruntime" in loaded and not {"torch", "transformers"} & loaded, done.stderr


def test_what_is_asked_for_by_name_is_imported_alone():
    asked = "from edgepeft.tasks.base import kind_named; kind_named('labels')"
    asked += "; from edgepeft.backbones.base import family_of; family_of({'model_type': 'bert'})"
    done = run(f"import sys; {asked}; print(*sys.modules)")
    loaded = {*done.stdout.split()}
    assert {"edgepeft.tasks.labels", "edgepeft.backbones.bert"} <= loaded, done.stderr
    others = {"tasks.choice", "tasks.spans", "tasks.text", "backbones.t5", "backbones.deberta_v2"}
    assert not {f"edgepeft.{name}" for name in others} & loaded


@pytest.mark.parametrize("name", ["train", "export"])
def test_without_torch_the_error_says_what_to_install(name):
    done = run(f"import sys; sys.modules['torch'] = None; import edgepeft; edgepeft.{name}")
    expected = f"edgepeft.common.errors.MissingPackage: edgepeft.{name} needs torch: pip install 'edgepeft[train]'."
    assert done.stderr.splitlines()[-1] == expected


SCRIPT = """
from edgepeft import TrainOptions, evaluate, export, load, train, tune
trained = train(backbone="backbone", data=[{"text": "fine", "label": "good"}], task="mood", epochs=2, out="mood")
reveal_type(trained.score)
reveal_type(trained.by_class)
train(TrainOptions(backbone="backbone", data="rows.csv", task="mood", out="mood"))
reveal_type(export(backbone="backbone", delta=["mood"], out="bundle").manifest)
reveal_type(tune(bundle="bundle", task="mood", data="rows.csv").entry)
reveal_type(evaluate(bundle="bundle", task="mood", data="rows.csv").score)
reveal_type(load("bundle").predict("mood", ["a text"])[0].score)
"""
WRONG = """
train(backbone="backbone", data="rows.csv", task="mood", epoch=2, out="mood")
tune(bundle="bundle", task="mood", data="rows.csv", epochs="two")
load("bundle").predikt("mood")
"""


def test_a_users_script_is_checked_against_the_real_types(tmp_path):
    pytest.importorskip("mypy", reason="pip install edgepeft[dev]")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + WRONG)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", str(script)],  # with the settings, and so the cache, of `make types`
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    notes = [note.strip("\"'") for note in re.findall(r"note: Revealed type is (.+)", done.stdout)]
    manifest, entry = "edgepeft.bundle.manifest.Manifest", "edgepeft.bundle.manifest.TaskEntry"
    number, classes = "float", "dict[str, dict[str, float]]"
    plain = [note.replace("builtins.", "") for note in notes]
    assert plain == [number, classes, f"{manifest} | None", f"{entry} | None", number, number], done.stdout
    errors = re.findall(r"script\.py:(\d+): error: .*\[([a-z-]+)\]", done.stdout)
    first = SCRIPT.count("\n") + 2
    wanted = {(str(first), "call-overload"), (str(first + 1), "call-overload"), (str(first + 2), "attr-defined")}
    assert {*errors} == wanted and 'did you mean "epochs"?' in done.stdout, done.stdout


ABOVE = PAGE.partition("## Running")[0]  # tests/runtime/test_documented.py runs what is below
BLOCKS = [
    re.sub(r"^    ", "", block.group(0), flags=re.M)
    for block in re.finditer(r"(?:^    .*\n|^\n(?=    ))+", ABOVE, re.M)
]


def test_the_readme_shows_the_first_block_of_the_page():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    block = PAGE[PAGE.index("    from edgepeft") :].partition("\n\n`train`, ")[0]
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
    score = r"[01]\.\d*"
    scores = [rf"accuracy {score} \{{'majority': {score}, .*\}}\n{score}\n", rf"accuracy {score} {score}\n"]
    assert re.fullmatch(scores[number] + r"(bad|good) 0\.\d+\n", out), out
    card = json.loads((mood / "mood" / "delta.json").read_text())
    assert (card["hyperparameters"]["rank"], card["training"]["learning_rate"]) == (4, 1e-3)


def test_a_function_does_what_the_verb_does_and_gives_objects(mood):
    from tiny import write_model
    from verbs import edgepeft as verb

    asked = {"backbone": "all-MiniLM-L6-v2", "data": "reviews.csv", "task": "mood", "method": "lora", "steps": 3}
    line = [part for name, value in asked.items() for part in (f"--{name}", value)]
    printed = verb("train", *line, "--set", "rank=2", "--eval", "0.2", "--out", "line", "--json", "--threads", 1)
    trained = edgepeft.train(**asked, set={"rank": 2}, eval=0.2, out="called", threads=1)
    card = trained.delta.card.model_dump(mode="json")
    assert card == json.loads(printed.stdout) == json.loads((mood / "called" / "delta.json").read_text())
    metrics = card["metrics"]
    assert metrics["n_eval"] == 12 and trained.score == metrics["test"]
    assert trained.baselines == {name: of["test"] for name, of in metrics["baselines"].items()}
    assert trained.by_class.keys() == {"bad", "good"}
    assert (mood / "called" / "delta.safetensors").read_bytes() == (mood / "line" / "delta.safetensors").read_bytes()
    exported = edgepeft.export(backbone="all-MiniLM-L6-v2", delta="called", out="bundle", weights="int8")
    assert exported.folder == Path("bundle")
    assert exported.manifest.model_dump(mode="json") == json.loads((mood / "bundle" / "edgepeft.json").read_text())
    scored = edgepeft.evaluate(bundle="bundle", task="mood", data="more.csv")
    document = json.loads(verb("eval", "bundle", "--task", "mood", "--data", "more.csv", "--json").stdout)
    assert document == {"schema": "edgepeft.eval/1", "bundle": "bundle", "task": "mood", **scored.found}
    assert (scored.score, scored.rows) == (document["score"], 60)
    write_model(mood / "first-token", "bert", mean=False)  # PEFT has no head on a mean
    edgepeft.train(**{**asked, "backbone": "first-token", "steps": 1}, out="first")
    peft = edgepeft.export(backbone="first-token", delta=["first"], to_peft="peft")
    assert (peft.folder, peft.manifest) == (Path("peft"), None)
    assert (mood / "peft" / "adapter_config.json").is_file()


def test_a_tilde_is_the_users_home_where_no_shell_has_seen_it(mood, monkeypatch):
    monkeypatch.setenv("HOME", str(mood))
    asked = {"backbone": "~/all-MiniLM-L6-v2", "task": "mood", "method": "bitfit", "steps": 1, "threads": 1}
    edgepeft.train(**asked, data="~/reviews.csv", out="~/mood")
    edgepeft.export(backbone=asked["backbone"], delta=["~/mood"], out=Path("~/bundle"))
    assert edgepeft.evaluate(bundle="~/bundle", task="mood", data="~/more.csv").rows == 60
    with edgepeft.load("~/bundle") as runtime:
        assert runtime.tasks == ("mood",)
    assert not (mood / "~").exists()


class DataFrame:
    """As much of pandas' or of polars' as rows are read by."""

    def __init__(self, rows, library):
        self.columns = [*rows[0]]
        setattr(self, "to_dict" if library == "pandas" else "to_dicts", lambda *_: rows)
        if library == "pandas":
            self.iterrows = None

    def __iter__(self):
        return iter(self.columns)


def test_rows_in_memory_train_as_those_of_a_file(mood):
    with (mood / "reviews.csv").open() as file:
        rows = list(csv.DictReader(file))
    asked = {"backbone": "all-MiniLM-L6-v2", "task": "mood", "method": "bitfit", "steps": 3, "threads": 1}
    given = {"file": "reviews.csv", "dicts": rows, "iterable": iter(rows)}
    given |= {library: DataFrame(rows, library) for library in ("pandas", "polars")}
    for name, data in given.items():
        edgepeft.train(**asked, data=data, out=name)
    tensors = {(mood / name / "delta.safetensors").read_bytes() for name in given}
    assert len(tensors) == 1
    edgepeft.export(backbone=asked["backbone"], delta="dicts", out="bundle", verify_data=rows[:5])
    scores = {edgepeft.evaluate(bundle="bundle", task="mood", data=data).score for data in ("reviews.csv", rows)}
    assert len(scores) == 1
    assert edgepeft.tune(bundle="bundle", task="mood", data=rows, steps=2, threads=1).metrics["n_test"] == 6


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "rows"),
        ([{"sentence1": "a", "label": "b"}, ["a", "b"]], "rows:2: expected a dictionary of columns"),
        ([{"text": "a", "verdikt": "b"}] * 30, "verdikt"),
        (3, "rows are a file's path, dictionaries or a DataFrame; found 3"),
    ],
)
def test_rows_in_memory_that_cannot_be_used_are_refused_in_a_sentence(data, message, mood):
    from edgepeft.common.errors import EdgepeftError

    with pytest.raises(EdgepeftError) as raised:
        edgepeft.train(backbone="all-MiniLM-L6-v2", data=data, task="mood", out="out")
    assert message in str(raised.value) and not (mood / "out").exists()


def test_an_option_that_is_declared_is_on_the_command_line_in_python_and_in_the_schema(capsys):
    from typer.testing import CliRunner

    from edgepeft.cli._options import command_of

    got = []

    class Planted(edgepeft.TuneOptions):
        warmth: Annotated[float, typer.Option(help="How warm it is.")] = 0.5

    def act(options) -> None:
        """Tune."""
        got.append(options)

    app = typer.Typer()
    app.command()(command_of(Planted, "tune")(act))
    plain = re.sub(r"\x1b\[[0-9;]*m", "", CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output)
    assert re.search(r"--warmth +\S+ +How warm it is. +\[default: 0.5\]", plain)
    line = ["bundle", "--task", "mood", "--data", "rows.csv"]
    assert CliRunner().invoke(app, [*line, "--warmth", "0.75"]).exit_code == 0
    assert got.pop().warmth == 0.75
    assert CliRunner().invoke(app, line).exit_code == 0 and got.pop().warmth == 0.5
    function = function_of(Planted)(act)
    assert inspect.signature(function).parameters["warmth"].default == 0.5
    assert "    warmth: How warm it is." in function.__doc__
    function(bundle="bundle", task="mood", data="rows.csv", warmth=2)
    assert got.pop().warmth == 2.0
    described = Planted.model_json_schema()["properties"]["warmth"]
    assert (described["type"], described["default"], described["description"]) == ("number", 0.5, "How warm it is.")


@pytest.mark.parametrize(("verb", "settings"), [("train", "TrainSettings"), ("tune", "TuneSettings")])
def test_a_number_of_a_run_is_an_option_and_what_the_card_keeps(verb, settings):
    models = importlib.import_module("edgepeft.options.verbs")
    numbers, options = getattr(models, settings), getattr(models, f"{verb.title()}Options")
    assert issubclass(options, numbers)  # one declaration, which the loop reads as it is
    given = {"bundle": "b", "backbone": "b", "data": "rows.csv", "task": "mood", "out": "out", "lr": 1e-3, "steps": 7}
    asked = options(**{name: value for name, value in given.items() if name in options.model_fields})
    long = {"lr": "learning_rate", "head_lr": "head_learning_rate"}
    kept = {name: getattr(asked, name) for name in numbers.model_fields if long.get(name, name) in asked.plain()}
    assert asked.plain() == {long.get(name, name): value for name, value in kept.items()}
    apart = {"train": {"curve", "device", "few_shot"}, "tune": {"profile", "memory", "coverage", "risk"}}[verb]
    assert {*numbers.model_fields} - {*kept} == apart


WANTED = {"backbone": "b", "data": "none.csv", "task": "mood", "method": "lora", "out": "out"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({**WANTED, "epoch": 2}, "no option of edgepeft.train is called 'epoch'. Did you mean 'epochs'?"),
        ({"backbone": "b", "data": "d.csv"}, "edgepeft.train needs task= and out= too."),
        ({**WANTED, "epochs": "many"}, "epochs must be a whole number, found 'many'"),
        ({**WANTED, "device": "gpu"}, "device must be 'auto', 'cpu', 'cuda' or 'mps', found 'gpu'"),
        ({**WANTED, "threads": 0}, "--threads must be at least 1; found 0"),
        ({**WANTED, "set": 5}, "--set 5: name=value is needed"),
        ({**WANTED, "warmup": 2.0}, "warmup must be a number of at most 1, found 2.0"),
        ({**WANTED, "warmup": float("nan")}, "warmup must be a number of at"),
        ({**WANTED, "clip_norm": 0.0}, "clip_norm must be a number above 0, found 0.0"),
        ({**WANTED, "seed": 2**64}, "seed must be a number under 9.22337e+18"),
        ({**WANTED, "learning_rate": -1.0}, "--lr must be a positive number; found -1.0"),
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


@pytest.mark.parametrize("name", VERBS)
def test_a_function_has_the_options_of_its_verb(name):
    verb = importlib.import_module(f"edgepeft.cli.{VERBS[name]}").command
    options = {*inspect.signature(verb).parameters} - {"as_json", "more"}
    function = getattr(edgepeft, name)
    assert {*inspect.signature(function).parameters} == options
    for option in options:
        assert re.search(rf"^    {option}: \w", function.__doc__, re.M), option


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
    assert edgepeft.train(**asked, out="stopped", resume=True).training["steps"] == 4
    thread = threading.Thread(target=lambda: edgepeft.train(**asked, out="threaded"))
    thread.start()
    thread.join()
    assert (mood / "threaded" / "delta.json").is_file()
