"""Suites: verdicts, models of random weights, peers, and documents that grow row by row."""

from __future__ import annotations

import json
import math
import sys
from contextlib import contextmanager
from itertools import chain, repeat
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from configs import SMALL_BERT
from rich.console import Console

from bench.suites import __main__ as command_line
from bench.suites import (
    _random_bundle,
    _suite_run,
    batches,
    calls,
    decoders,
    families,
    kinds,
    scale,
    sharing,
    single,
    speed,
    stream,
    suite_named,
    suite_names,
    text,
    tuning,
)
from bench.suites import _result as suite_run
from bench.suites._random_bundle import Structure, write_bundle
from bench.suites._result import (
    SuiteRequest,
    SuiteRow,
    SuiteVerdict,
    Target,
    geometric_mean,
    ratio_row,
    require_close,
    run_suite,
)
from bench.suites._suite_run import Racer, SuiteRun, proportional_bytes
from bench.suites._table import draw_suite, suite_table
from edgepeft.bench.measuring.sampler import Sample
from edgepeft.bench.planning.job import Job
from edgepeft.bench.planning.target import texts_of
from edgepeft.bench.workloads.models import requests
from edgepeft.cli._main import main
from edgepeft.common.errors import EdgepeftError, UnknownName, UsageError
from edgepeft.device.placement import Limits
from edgepeft.runtime.runtime import Runtime


@pytest.mark.parametrize(
    ("target", "value", "interval", "expected"),
    [
        (Target(1.5), 1.6, (1.51, 1.7), SuiteVerdict.MET),
        (Target(1.5), 1.6, (1.49, 1.7), SuiteVerdict.UNSURE),
        (Target(1.5), 1.4, (1.3, 1.6), SuiteVerdict.MISSED),
        (Target(1.5), 1.5, None, SuiteVerdict.MET),
        (Target(0.3, at_least=False), 0.2, (0.1, 0.25), SuiteVerdict.MET),
        (Target(0.3, at_least=False), 0.2, (0.1, 0.35), SuiteVerdict.UNSURE),
        (Target(0.3, at_least=False), 0.4, (0.1, 0.5), SuiteVerdict.MISSED),
        (None, 0.4, None, SuiteVerdict.NONE),
        (Target(1.0), None, None, SuiteVerdict.NONE),
    ],
)
def test_a_target_is_met_when_the_worse_end_of_the_interval_meets_it(target, value, interval, expected):
    assert SuiteRow("x", value=value, interval=interval, target=target).verdict is expected


def test_the_geometric_mean_is_of_the_ratios_of_sums():
    pairs = [([1.0, 1.0], [2.0, 2.0]), ([1.0, 3.0], [20.0, 12.0])]  # 2 and 8
    found = geometric_mean(pairs)
    assert found.value == pytest.approx(4.0) and found.low <= 4.0 <= found.high and found.rounds == 2
    with pytest.raises(ValueError, match="no race"):
        geometric_mean([])


def test_a_ratio_above_one_means_that_ours_took_less_time():
    row = ratio_row("x", {"ours": [1.0, 1.1, 0.9], "theirs": [2.0, 2.2, 1.8], "gemm": [1, 1, 1]}, "ours", "theirs")
    assert row.value == pytest.approx(2.0) and row.peer == "theirs" and set(row.samples) == {"ours", "theirs"}


@pytest.fixture(scope="module")
def config():
    return {**SMALL_BERT, "vocab_size": 300}


@pytest.fixture(scope="module")
def small(config):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_random_bundle, "config_in", lambda name: config)
        patch.setattr(_suite_run, "config_in", lambda name: config)
        yield


STRUCTURES = [Structure("pfeiffer", ["a", "b"], {"bottleneck": "16"}), Structure("bitfit", ["c"])]


@pytest.fixture(scope="module")
def bundle(small, tmp_path_factory):
    return write_bundle(tmp_path_factory.mktemp("suite") / "bundle", "tiny", STRUCTURES)


def test_copied_tasks_have_one_structure_and_weights_of_their_own(bundle):
    graphs = [onnx.load(bundle / "tasks" / f"{task}.onnx") for task in "ab"]
    assert [node.op_type for node in graphs[0].graph.node] == [node.op_type for node in graphs[1].graph.node]
    with Runtime(bundle, cache=False) as runtime:
        answers = [runtime.predict(task, texts_of([9, 5]))[0].logits for task in "abc"]
        assert runtime.session("a").structure == runtime.session("b").structure != runtime.session("c").structure
    assert not np.allclose(answers[0], answers[1])


def test_8_bit_and_half_precision_models_are_what_they_say(small, tmp_path):
    folder = write_bundle(tmp_path / "int8", "tiny", STRUCTURES, weights="int8", delta_weights="fp16")
    assert not (folder / "model.safetensors").exists() and (folder / "model.int8.safetensors").is_file()
    stored = {tensor.data_type for tensor in onnx.load(folder / "tasks/b.onnx").graph.initializer if tensor.dims}
    assert onnx.TensorProto.FLOAT16 in stored
    with Runtime(folder, cache=False) as runtime:
        assert np.isfinite(runtime.predict("b", texts_of([9]))[0].logits).all()


@pytest.mark.parametrize(
    ("how", "tasks", "expected"),
    [
        ("one", ["a"], [("a", 4)]),
        ("one", ["a", "b"], [("a", 4), ("b", 4)]),
        ("each", ["a", "b"], [("a", 2), ("b", 2)]),
        ("mixed", ["a", "b"], [(("a", "a", "b", "b"), 4)]),
        ("mixed", [None] * 2, [((None,) * 4, 4)]),
        ("each", [None] * 2, [((None, None), 2), ((None, None), 2)]),
        ("all", ["a", "b"], [(("a", "b"), 4)]),
    ],
)
def test_every_way_of_asking_answers_every_text(bundle, how, tasks, expected, monkeypatch):
    asked = []

    class Watched(Runtime):
        def predict(self, task, texts):
            asked.append((task, len(texts)))
            return super().predict(task, texts)

        def predict_mixed(self, tasks, texts, **more):
            asked.append((tuple(tasks), len(texts)))
            return super().predict_mixed(tasks, texts, **more)

        def predict_all(self, tasks, texts):
            asked.append((tuple(tasks), len(texts)))
            return super().predict_all(tasks, texts)

    monkeypatch.setattr("edgepeft.runtime.runtime.Runtime", Watched)
    request = {"how": how, "tasks": tasks, "tokens": [4, 5, 6, 7]}
    prepared = requests(Job("requests", 1, bundle=str(bundle), settings={"requests": [request]}, cache=False))
    prepared.step(0)
    assert asked == expected


def test_rounding_is_judged_by_the_size_of_the_values():
    require_close("own", "peer", 9e-5)
    require_close("own", "peer", 3e-4, largest=20.0)
    for apart, largest in ((1.1e-4, 1.0), (5e-4, 20.0), (math.nan, 20.0)):
        with pytest.raises(EdgepeftError, match="not the same model"):
            require_close("own", "peer", apart, largest)


@pytest.mark.parametrize("how", ["all", "one"])
def test_every_task_answers_texts_that_are_fewer_than_the_tasks(bundle, how):
    request = {"how": how, "tasks": ["a", "b"], "tokens": [4]}
    requests(Job("requests", 1, bundle=str(bundle), settings={"requests": [request]}, cache=False)).step(0)


def suite_run_in(tmp_path, **more):
    return SuiteRun(tmp_path, "tiny", Limits(), 1, 3, 60.0, **more)


def test_a_race_gives_every_side_a_sample_in_every_round_and_the_yardstick_too(bundle, tmp_path):
    own = suite_run_in(tmp_path)
    asked = [{"how": "one", "tasks": [task], "tokens": [5]} for task in "ab"]
    job = own.job("requests", bundle, settings={"requests": asked}, cache=False)
    raced = own.race("test", {"first": Racer(job, (0,)), "second": Racer(job, (1,))})
    assert set(raced) == {"first", "second", "gemm"} and {len(seconds) for seconds in raced.values()} == {3}
    assert len(own.gemm) == 3 and own.in_force is not None
    assert own.peaks.keys() == raced.keys() and min(own.peaks.values()) > 20e6  # a process of Python at least


def test_a_side_out_of_reach_is_not_in_the_rounds_and_one_that_only_opens_slowly_is(tmp_path):
    class Timed(SuiteRun):
        @contextmanager
        def worker(self, label, job, python=""):
            seconds = {"opens slowly": chain([9.0], repeat(1.5)), "slow": repeat(5.0)}.get(label, repeat(1.0))
            yield SimpleNamespace(step=lambda _, rest: Sample(next(seconds), 0.0), finish=lambda: 0)

    own = Timed(tmp_path, "tiny", Limits(), 1, 3, 60.0)
    racers = {name: Racer(Job("", 1)) for name in ("first", "opens slowly", "slow")}
    raced = own.race("test", racers, slowest=4.0)
    assert (raced["first"], raced["opens slowly"], raced["slow"]) == ([1.0] * 3, [1.5] * 3, [5.0])


def test_a_failing_worker_ends_the_race_with_its_words(bundle, tmp_path):
    own = suite_run_in(tmp_path)
    job = own.job("requests", bundle, settings={"requests": [{"how": "one", "tasks": ["nope"], "tokens": [5]}]})
    with pytest.raises(EdgepeftError, match="nope"):
        own.race("test", {"first": Racer(job)})


def test_a_peer_that_is_not_installed_is_said_to_be_so(small, tmp_path, monkeypatch):
    monkeypatch.setattr(_suite_run, "installed", lambda module, python: False)
    assert "pip install 'edgepeft[peers]'" in suite_run_in(tmp_path).peer("openvino")


def test_openvino_converts_what_transformers_computes(bundle, tmp_path):
    openvino = pytest.importorskip("openvino")
    torch = pytest.importorskip("torch")
    from tolerance import exactly
    from transformers import AutoModel

    from bench.peers.openvino import export

    export(bundle, tmp_path)
    ids, mask = np.full((3, 11), 7), np.ones((3, 11), np.int64)
    mask[1, 4:] = 0
    compiled = openvino.Core().compile_model(str(tmp_path / "model.xml"), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    found = compiled({"input_ids": ids, "attention_mask": mask})[0]
    with torch.no_grad():
        model = AutoModel.from_pretrained(bundle, attn_implementation="eager").eval().double()
        given = torch.tensor(ids), torch.tensor(mask)
        expected = exactly(lambda: {"hidden": model(*given).last_hidden_state})["hidden"]
    np.testing.assert_allclose(found[mask == 1], expected.value[mask == 1], rtol=0, atol=expected.error)


@pytest.mark.skipif(sys.platform != "linux", reason="PSS is Linux's")
def test_proportional_memory_grows_with_what_a_process_holds():
    import os

    before = proportional_bytes(os.getpid())
    held = np.ones(30_000_000)
    assert 200e6 < proportional_bytes(os.getpid()) - before < 280e6 and held.size
    with pytest.raises(EdgepeftError, match="cannot be read"):
        proportional_bytes(2**22 + 1)


class Planned:
    TITLE = "A plan"

    @staticmethod
    def measure(run):
        yield SuiteRow("one", "optimum", 2.0, (1.9, 2.1), "x", Target(1.5), {"ours": [1.0], "theirs": [2.0]})
        yield SuiteRow("two", value=12.0, unit="MB", samples={"tasks": [3], "MB": [12.0]})
        yield SuiteRow("three [bold]x[/bold]", "openvino", note="openvino is not installed")


def test_the_document_is_kept_after_every_row(tmp_path):
    kept = []
    request = SuiteRequest("plan", "rpi4", "roberta-base", rounds=4)
    result = run_suite(request, keep=lambda one: kept.append(json.loads(json.dumps(one.to_json()))), suite=Planned)
    assert [len(one["rows"]) for one in kept] == [1, 2, 3]
    document = result.to_json()
    assert document == kept[-1]
    assert document["schema"] == "edgepeft.suite/1" and document["rounds"] == 4 and document["host"]["cpu"]
    assert [row["verdict"] for row in document["rows"]] == ["met", "-", "-"]
    console = Console(width=120, record=True)
    console.print(suite_table(result))
    text = console.export_text()
    assert "2.000 [1.900, 2.100] x" in text and "at least 1.5" in text and "12.0 MB" in text
    assert "three [bold]x[/bold]: openvino is not installed" in text
    for name in ("a.png", "b.svg"):
        draw_suite(result, tmp_path / name)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG") and "optimum" in (tmp_path / "b.svg").read_text()


def test_a_suite_without_a_figure_is_not_drawn(tmp_path):
    class Empty(Planned):
        @staticmethod
        def measure(run):
            yield SuiteRow("nothing", note="not here")

    result = run_suite(SuiteRequest("plan", "rpi4"), suite=Empty)
    with pytest.raises(UsageError, match="no row"):
        draw_suite(result, tmp_path / "a.png")


def test_suites_are_found_by_their_files():
    modules = [batches, calls, decoders, families, kinds, scale, sharing, single, speed, stream, text, tuning]
    names = [module.__name__.rpartition(".")[2] for module in modules]
    assert suite_names() == names and [suite_named(name) for name in names] == modules
    with pytest.raises(UnknownName, match=", ".join(names)):
        suite_named("_suite_run")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nope"], "no suite is called 'nope'"),
        (["speed", "--plot", "x.gif"], ".png or .svg"),
        (["speed", "--rounds", "0"], "--rounds must be above 0"),
        (["speed", "--backbone", "nope"], "nope"),
        (["speed", "--json", "."], "--json . is a folder"),
    ],
)
def test_wrong_options_are_refused_before_anything_runs(arguments, said, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["suites", *arguments, "--profile", "rpi4"])
    with pytest.raises(SystemExit) as ended:
        main(command_line.app)
    assert ended.value.code == 2 and said in capsys.readouterr().err


def test_the_command_prints_the_table_and_writes_json_and_picture(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(suite_run, "suite_named", lambda name: Planned)
    files = ["--json", str(tmp_path / "a.json"), "--plot", str(tmp_path / "a.svg")]
    monkeypatch.setattr(sys, "argv", ["suites", "plan", "--profile", "rpi4", "--rounds", "4", *files])
    with pytest.raises(SystemExit) as ended:
        main(command_line.app)
    assert ended.value.code == 0 and "2.000 [1.900, 2.100] x" in capsys.readouterr().out
    assert len(json.loads((tmp_path / "a.json").read_text())["rows"]) == 3 and (tmp_path / "a.svg").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("name", suite_names())
def test_a_whole_suite_measures_every_row_or_says_why_not(name, monkeypatch):
    monkeypatch.setattr(scale, "_TASKS", scale._TASKS[:9])
    monkeypatch.setattr(scale, "_PROMISED", (9,))
    monkeypatch.setattr(scale, "_THOUSAND", scale._THOUSAND[:20])
    monkeypatch.setattr(sharing, "_SWITCHES", 100)
    backbone = {"text": "t5-small", "decoders": "SmolLM2-135M"}.get(name, "all-MiniLM-L6-v2")
    result = suite_run.run_suite(SuiteRequest(name, "rpi4", backbone, rounds=2, max_seconds=5))
    assert all(row.value is not None or row.note for row in result.rows) and len(result.rows) >= 4
