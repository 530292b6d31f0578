"""The papers' protocols under exports/recipes: what they ask of `edgepeft train`, and what they print."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

RECIPES = Path(__file__).parents[1] / "exports" / "recipes"
pytestmark = pytest.mark.skipif(
    not RECIPES.is_dir() or os.name != "posix", reason="recipes are shell scripts of a checkout"
)


@pytest.fixture
def recipe(tmp_path):
    """Runs a recipe with a stand-in for edgepeft that writes down its arguments and a card with a score."""
    stand_in = tmp_path / "bin" / "edgepeft"
    stand_in.parent.mkdir()
    stand_in.write_text(
        f"#!{sys.executable}\n"
        "import json, sys, pathlib\n"
        "a = sys.argv; get = lambda name: a[a.index(name) + 1]\n"
        f"open({str(tmp_path / 'calls')!r}, 'a').write(json.dumps(a[1:]) + '\\n')\n"
        "out = pathlib.Path(get('--out')); out.mkdir(parents=True)\n"
        "metrics = {'metric': 'accuracy', 'test': 0.5 + int(get('--seed')) / 10, 'n_train': 7, 'n_test': 9}\n"
        "(out / 'delta.json').write_text(json.dumps({'method': get('--method'), 'metrics': metrics}))\n"
    )
    stand_in.chmod(0o755)

    def run(name, *arguments, **environment):
        path = f"{stand_in.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        command = [str(RECIPES / name), *arguments]
        done = subprocess.run(
            command, env={**os.environ, "PATH": path, **environment}, capture_output=True, text=True, check=False
        )
        calls = tmp_path / "calls"
        return done, [json.loads(line) for line in calls.read_text().splitlines()] if calls.exists() else []

    return run


def value(call, option):
    return call[call.index(option) + 1]


def test_the_few_shot_protocol_is_200_examples_1000_steps_and_3_seeds(recipe, tmp_path):
    done, calls = recipe(
        "spartan-few-shot.sh", "B", "train.csv", "test.csv", "lora", str(tmp_path / "o"), "--lr", "0.1"
    )
    assert [value(call, "--seed") for call in calls] == ["0", "1", "2"]
    for call in calls:
        assert (value(call, "--few-shot"), value(call, "--steps"), value(call, "--lr")) == ("200", "1000", "0.1")
        assert (value(call, "--data"), value(call, "--test")) == ("train.csv", "test.csv")
    # 50, 60, 70: mean 60, sample standard deviation 10
    assert done.stdout.strip() == "lora: accuracy 60.0 +- 10.0 over 3 seeds, 7 examples, 9 test rows"


def test_the_low_resource_sizes_and_epochs_are_compacters(recipe, tmp_path):
    done, calls = recipe("compacter-low-resource.sh", "B", "a", "b", "houlsby", str(tmp_path / "o"), SEEDS="1")
    found = [(value(call, "--few-shot"), value(call, "--epochs")) for call in calls]
    assert found == [("100", "1000"), ("500", "200"), ("1000", "100"), ("2000", "50"), ("4000", "25")]
    assert done.stdout.count("houlsby: accuracy 60.0 over 1 seeds") == 5


def test_missing_arguments_say_how_it_is_called(recipe):
    done, calls = recipe("spartan-few-shot.sh", "B")
    assert done.returncode == 2 and "BACKBONE TRAIN TEST METHOD OUT" in done.stderr and not calls


def test_the_options_that_recipes_use_are_trains_own():
    listed = subprocess.run(
        [sys.executable, "-c", "from edgepeft.cli._main import main; main()", "train", "--help"],
        capture_output=True,
        check=False,
        text=True,
        env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1"},
    ).stdout
    for script in RECIPES.glob("*.sh"):
        used = {word for line in script.read_text().splitlines() if not line.startswith("#") for word in line.split()}
        assert {word for word in used if word.startswith("--")} <= set(listed.split()), script.name


def test_a_failed_training_ends_the_recipe(tmp_path):
    broken = tmp_path / "bin" / "edgepeft"
    broken.parent.mkdir()
    shutil.copyfile("/bin/false", broken)
    broken.chmod(0o755)
    environment = {**os.environ, "PATH": f"{broken.parent}:{os.environ['PATH']}"}
    command = [str(RECIPES / "spartan-few-shot.sh"), "B", "a", "b", "lora", str(tmp_path / "o")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode != 0 and not done.stdout


@pytest.fixture(scope="module")
def few_shot(tmp_path_factory):
    """The few-shot table on a tiny model: two sets of nonsense that can be told apart, and a regression."""
    from tiny import write_model

    where = tmp_path_factory.mktemp("few-shot")
    backbone = write_model(where / "bert", "bert", mean=True)
    for name, labels in (("moods", ("bad", "good")), ("stsb", (1.0, 4.0))):
        for part, count in (("train", 40), ("validation", 12)):
            rows = [
                {"sentence1": f"w{20 + i % 2} w{10 + i % 7} cut", "sentence2": "w9", "label": labels[i % 2]}
                for i in range(count)
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
