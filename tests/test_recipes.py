"""The papers' protocols under exports/recipes: plans of sweeps, and a table by `edgepeft tune`."""

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import mean

import pytest

RECIPES = Path(__file__).parents[1] / "exports" / "recipes"
TABLES = RECIPES.parents[1] / "docs" / "tables"
pytestmark = pytest.mark.skipif(
    not RECIPES.is_dir() or os.name != "posix", reason="recipes are of a checkout, and call programs of POSIX"
)


def published(plan, method):
    return {name: round(100 * score, 1) for name, score in plan.published.scores[method].items()}


@pytest.mark.parametrize("plan", sorted(path.name for path in RECIPES.glob("*.toml")))
def test_a_plan_of_the_papers_is_read_and_its_methods_are_there(plan, monkeypatch, tmp_path):
    from edgepeft.methods.base import method_of
    from edgepeft.sweep.plan import rate_of, read_plan

    monkeypatch.setenv("BACKBONE", "org/name")
    monkeypatch.setenv("DATA", str(tmp_path))
    found = read_plan(RECIPES / plan)
    for text in found.all_methods:
        assert all(rate_of(rate, method_of(text).learning_rate) > 0 for rate in found.rates_of(text))
    if found.published:
        assert found.published.scores.keys() <= {*found.all_methods}
        assert all(scores.keys() <= found.data.keys() for scores in found.published.scores.values())
    assert found.title and f"edgepeft sweep exports/recipes/{plan}" in (RECIPES / plan).read_text()


@pytest.mark.parametrize("ran", sorted(path.parent.name for path in TABLES.glob("*/sweep.json")))
def test_a_table_that_ran_is_read_and_gives_the_scores_of_its_report(ran):
    from edgepeft.sweep.folder import open_sweep
    from edgepeft.sweep.table import columns

    sweep, report = open_sweep(TABLES / ran), (TABLES / ran / "report.md").read_text(encoding="utf-8")
    assert sweep.n_over() == len(sweep.cells) and (RECIPES / f"{ran}.toml").is_file()
    for column in columns(sweep):
        for method, arm in column.chosen.items():
            row = next(line for line in report.splitlines() if line.replace("\\", "").startswith(f"| {method} "))
            assert f"| {arm} at {arm.rate:g}" in row
            assert all(map(sweep.answers, arm.cells))


def test_the_protocols_are_those_of_the_papers(monkeypatch, tmp_path):
    from edgepeft.sweep.plan import read_plan

    monkeypatch.setenv("BACKBONE", "org/name")
    monkeypatch.setenv("DATA", str(tmp_path))
    few = read_plan(RECIPES / "spartan-few-shot.toml")
    assert (few.sizes, few.train["steps"], few.seeds) == ([200], 1000, [0, 1, 2])
    # Each paper's average of its own rows: SPARTAN's tables 1 and 3 (63.9 and 81.1), Houlsby's table 1 without MNLI-mm.
    assert round(mean(published(few, "spartan").values()), 1) == 63.9
    assert round(mean(published(read_plan(RECIPES / "spartan.toml"), "spartan").values()), 1) == 81.1
    low = read_plan(RECIPES / "compacter-low-resource.toml")
    assert (low.sizes, len(low.seeds)) == ([100, 500, 1000, 2000, 4000], 5)
    # 1000 epochs of 100 examples to 25 of 4000 (section 5.6) are 100,000 examples of each size.
    assert low.train["steps"] * low.train["batch_size"] == 100_000


def test_a_set_is_cut_into_rows_that_train_choose_and_are_reported(tmp_path):
    rows = {"train": [str(i) for i in range(100)], "validation": [f"-{i}" for i in range(30)]}
    (tmp_path / "whole" / "moods").mkdir(parents=True)
    for part, lines in rows.items():
        (tmp_path / "whole" / "moods" / f"{part}.jsonl").write_text("\n".join(lines) + "\n")
    cut = [sys.executable, RECIPES / "cut.py", tmp_path / "whole", tmp_path / "cut", "--train", "40", "--test", "20"]
    found = []
    for _ in range(2):
        subprocess.run(cut, check=True)
        kept = {
            part: (tmp_path / "cut" / "moods" / f"{part}.jsonl").read_text().split()
            for part in ("train", "eval", "test")
        }
        found.append(kept)
    assert found[0] == found[1]
    assert [len(kept) for kept in found[0].values()] == [40, 25, 20]  # a quarter of the file chooses, not 160
    assert len({*found[0]["train"], *found[0]["eval"]}) == 65 and {*found[0]["train"], *found[0]["eval"]} <= {
        *rows["train"]
    }
    assert {*found[0]["test"]} < {*rows["validation"]}


@pytest.fixture(scope="module")
def few_shot(tmp_path_factory):
    """The few-shot table on a tiny model: two sets of nonsense that can be told apart, and a regression."""
    from tiny import write_model

    where = tmp_path_factory.mktemp("few-shot")
    backbone = write_model(where / "bert", "bert", mean=True)
    for name, labels in (("moods", ("bad", "good")), ("stsb", (1.0, 4.0))):
        for part, places in (("train", range(40)), ("validation", range(40, 52))):  # no text stands twice
            rows = [
                {"sentence1": f"w{20 + i % 2} w{30 + i} cut", "sentence2": "w9", "label": labels[i % 2]} for i in places
            ]
            path = where / "data" / name / f"{part}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    program = where / "bin" / "edgepeft"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\nfrom edgepeft.cli._main import main\nmain()\n")
    program.chmod(0o755)
    small = {
        "METHODS": "bitfit lora",
        "SETS": "moods stsb",
        "SEEDS": "0 1",
        "PYTORCH": "lora",
        "STEPS": "4",
        "EXAMPLES": "16",
        "EVAL_ROWS": "8",
        "TEST_ROWS": "10",
        "WORDS": "2",
        "ROUNDS": "1",
    }

    def run(**changed):
        return subprocess.run(
            [sys.executable, RECIPES / "few_shot_table.py", backbone, where / "data", where / "out"],
            env={
                **os.environ,
                **small,
                **changed,
                "PATH": f"{program.parent}:{os.environ['PATH']}",
                "PYTHONPATH": str(RECIPES.parents[1]),
                "EDGEPEFT_CACHE": str(where / "cache"),
            },
            capture_output=True,
            text=True,
            check=False,
            cwd=where,
        )

    return run, run(), where / "out"


def files(out):
    return {path.name: path.stat().st_mtime_ns for path in (out / "cells").iterdir()}


@pytest.mark.slow
def test_the_few_shot_table_has_every_method_set_and_seed_and_its_storage(few_shot):
    _, done, out = few_shot
    assert done.returncode == 0, done.stderr
    lines = (out / "table.md").read_text().splitlines()
    assert [line.split(" | ")[:2] for line in lines[2:5]] == [
        ["| bitfit", "ONNX Runtime"],
        ["| lora", "ONNX Runtime"],
        ["| lora", "PyTorch"],
    ]
    document = json.loads((out / "table.json").read_text())
    manifest = json.loads((out / "bundle" / "edgepeft.json").read_text())
    for row in document["rows"]:
        assert row["n_bytes"] == manifest["tasks"][f"stsb-{row['method']}"]["n_bytes"]
        for name in ("moods", "stsb"):
            found = row["scores"][name]
            cells = [
                json.loads((out / "cells" / f"{row['engine']}-{name}-{row['method']}-{seed}.json").read_text())
                for seed in (0, 1)
            ]
            scores = [100 * cell["metrics"]["test"] for cell in cells]
            assert found["mean"] == pytest.approx(sum(scores) / 2)
            assert found["stdev"] == pytest.approx(abs(scores[0] - scores[1]) / 2**0.5)
            assert all(cell["metrics"]["n_test"] == 10 for cell in cells)
    assert all(row["instances_per_minute"] > 0 for row in document["rows"] if row["engine"] == "onnxruntime")
    assert str(out) not in (out / "table.json").read_text() and str(out.parent) not in (out / "table.md").read_text()


@pytest.mark.slow
def test_texts_are_cut_and_no_row_that_chooses_trains(few_shot):
    out = few_shot[2]
    parts = {
        part: (out / "data" / "moods" / f"{part}.jsonl").read_text().splitlines() for part in ("train", "eval", "test")
    }
    assert {part: len(rows) for part, rows in parts.items()} == {"train": 32, "eval": 8, "test": 10}
    assert all("cut" not in row for rows in parts.values() for row in rows)


@pytest.mark.slow
def test_pytorch_starts_where_onnx_runtime_does(few_shot):
    """Four steps with a tenth of the head's features dropped out: scores of both engines stay close."""
    document = json.loads((few_shot[2] / "table.json").read_text())
    (parity,) = document["parity"]
    assert parity["method"] == "lora" and parity["by_set"].keys() == {"moods", "stsb"}
    ours, theirs = ([row for row in document["rows"] if row["engine"] == e][-1] for e in ("onnxruntime", "pytorch"))
    differences = [ours["scores"][name]["mean"] - theirs["scores"][name]["mean"] for name in ("moods", "stsb")]
    assert parity["mean"] == pytest.approx(sum(differences) / 2)


@pytest.mark.slow
def test_what_is_done_is_not_done_again_and_what_is_lost_is(few_shot):
    run, _, out = few_shot
    before = files(out)
    lost = out / "cells" / "onnxruntime-moods-bitfit-1.json"
    score = json.loads(lost.read_text())["metrics"]
    lost.unlink()
    done = run()
    assert done.returncode == 0, done.stderr
    changed = {name for name, when in files(out).items() if before[name] != when}
    assert changed == {lost.name}
    assert json.loads(lost.read_text())["metrics"] == score


@pytest.mark.slow
def test_other_settings_do_not_enter_the_same_table(few_shot):
    done = few_shot[0](STEPS="5")
    assert done.returncode == 1 and "begun with steps = 4, not 5" in done.stderr


def test_a_set_that_is_not_there_is_named(tmp_path):
    command = [sys.executable, RECIPES / "few_shot_table.py", "B", tmp_path, tmp_path / "out"]
    done = subprocess.run(command, env={**os.environ, "SETS": "nli"}, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "nli does not hold train.jsonl" in done.stderr and "Traceback" not in done.stderr


def test_the_few_shot_table_says_how_it_is_called():
    command = [sys.executable, RECIPES / "few_shot_table.py", "B"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "BACKBONE DATA OUT" in done.stderr


def test_the_rows_of_the_decoders_recipe_say_what_their_orders_say():
    import runpy

    recipe = runpy.run_path(str(RECIPES / "decoder.py"))
    for row in recipe["rows"](50, 3):
        answer = json.loads(row["json"])
        assert all(str(value) in row["order"] and str(value) in row["reply"] for value in answer.values())
    assert recipe["rows"](5, 0) == recipe["rows"](5, 0) != recipe["rows"](5, 1)
