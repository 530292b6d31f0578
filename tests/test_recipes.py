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
