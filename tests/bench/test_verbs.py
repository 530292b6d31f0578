"""``edgepeft bench`` and ``edgepeft compare`` as a shell sees them."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial

import pytest

from edgepeft.bench.run import run_scenarios

RUN = [sys.executable, "-c", "from edgepeft.cli._main import main; main()"]
BENCH = [
    "bench",
    "--profile",
    "rpi4",
    "--backbone",
    "all-MiniLM-L6-v2",
    "--workload",
    "infer",
    "--engine",
    "onnxruntime",
]


def edgepeft(*arguments):
    return subprocess.run([*RUN, *arguments], capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture
def inside(monkeypatch, capsys, request):
    """Runs a verb in this process; (exit code, standard error)."""
    from edgepeft.cli._main import main

    def run(*arguments):
        monkeypatch.chdir(request.config.rootpath)
        monkeypatch.setattr(sys, "argv", ["edgepeft", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, capsys.readouterr().err

    return run


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    done = edgepeft(*BENCH, "--batch-size", "2", "--length", "8", "--rounds", "6", "--json", "-")
    assert done.returncode == 0, done.stderr
    path = tmp_path_factory.mktemp("bench") / "base.json"
    path.write_text(done.stdout)
    return path


def test_json_is_the_only_thing_on_standard_output(result):
    document = json.loads(result.read_text())
    (row,) = document["results"]
    assert len(row["samples_s"]) == 6
    assert all(sample > 0 for sample in row["samples_s"])
    assert row["peak_rss_bytes"] > 20e6
    assert document["host"]["gemm_gflops"] > 0
    assert document["profile"]["limits"]["in_force"]["cores"] >= 1


def test_a_result_compared_with_itself_passes(result):
    done = edgepeft("compare", str(result), str(result))
    assert done.returncode == 0, done.stderr
    assert "1.000" in done.stdout


def test_a_planted_slowdown_exits_4_with_one_json_document(result, tmp_path):
    document = json.loads(result.read_text())
    document["results"][0]["samples_s"] = [1.0, 1.01, 0.99, 1.0, 1.0, 1.02]
    base, new = tmp_path / "base.json", tmp_path / "new.json"
    document["host"]["gemm_samples_gflops"] = {"infer": [100.0] * 6}
    base.write_text(json.dumps(document))
    document["results"][0]["samples_s"] = [1.2 * s for s in document["results"][0]["samples_s"]]
    new.write_text(json.dumps(document))
    done = edgepeft("compare", str(base), str(new), "--json")
    assert done.returncode == 4
    assert json.loads(done.stdout)["regressed"] is True
    assert "beyond noise" in done.stderr
    assert edgepeft("compare", str(base), str(new), "--max-regression", "25%").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["compare", "nowhere.json", "nowhere.json"], 2, "nowhere.json"),
        (["compare", "pyproject.toml", "pyproject.toml"], 1, "not JSON"),
        (["bench"], 2, "--profile"),
        (["bench", "--profile", "rpi44"], 2, "Did you mean"),
        (["bench", "nowhere", "--profile", "rpi4"], 2, "not a bundle"),
        (["bench", "--profile", "rpi4", "--method", "lora", "--set", "rank"], 2, "name=value"),
        (["bench", "--profile", "rpi4", "--rounds", "0"], 2, "--rounds"),
    ],
)
def test_bad_input_is_one_line_and_an_exit_code(arguments, code, words, inside):
    found, said = inside(*arguments)
    assert found == code
    assert words in said
    assert "Traceback" not in said


@pytest.mark.parametrize("text", ["5", "abc", "-1%", "100%", "nan"])
def test_a_threshold_that_is_no_share_is_a_usage_error(text, result, inside):
    assert inside("compare", str(result), str(result), "--max-regression", text)[0] == 2


def test_the_command_line_says_what_is_asked_of_a_benchmark(monkeypatch, inside):
    """Of --set the profile has memory, the method the rest; what is switched off is so; a name counts once."""
    asked = []
    monkeypatch.setattr("edgepeft.bench.run.run_scenarios", lambda options, names, **_: asked.append((options, names)))
    off = ["--deterministic", "--no-cache", "--engine", "pytorch", "--engine", "pytorch"]
    scenarios = ["--scenario", "offline", "--scenario", "single-stream"]
    sets = ["--method", "lora", "--set", "rank=8", "--set", "memory=2GB"]
    with pytest.raises(AttributeError):  # there is no result to show
        inside("bench", "--profile", "rpi4", *off, *scenarios, *sets)
    ((options, names),) = asked
    assert names == ("offline", "single-stream")
    assert (options.profile, options.settings, options.methods) == ("rpi4:memory=2GB", {"rank": "8"}, ("lora",))
    assert (options.cache, options.timed, options.counted, options.engines) == (False, False, True, ("pytorch",))


def test_a_run_without_time_for_any_row_fails(inside, fake_start, monkeypatch):
    monkeypatch.setattr("edgepeft.bench.run.run_scenarios", partial(run_scenarios, start=fake_start(0.1)))
    code, said = inside(*BENCH, "--batch-size", "2", "--length", "8", "--max-seconds", "0.000001")
    assert code == 1 and "nothing was measured: left out: no time was left" in " ".join(said.split())
