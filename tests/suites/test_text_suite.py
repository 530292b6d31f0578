"""The suite text: who is beside whom, what every side has written, and what is said of a peer that is not there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from configs import SMALL_BERT
from writing import theirs

from bench.peers import PEERS, _writing, ctranslate2, pytorch
from bench.suites import __main__ as command_line
from bench.suites import _suite_run, text
from bench.suites._random_bundle import Structure
from bench.suites._result import SuiteRequest, SuiteVerdict, run_suite
from bench.suites._suite_run import SuiteRun
from edgepeft.bench.workloads.models import write_onnxruntime
from edgepeft.cli._main import main
from edgepeft.common.errors import EdgepeftError, UnknownName, UsageError
from edgepeft.device.placement import Limits
from edgepeft.runtime.decoding import Decoding
from edgepeft.runtime.runtime import Runtime

ROWS, ASKED = ((9, 4, 6),), 5
SECONDS = {"pytorch": 2.0, "optimum": 1.5, "ctranslate2": 1.3, "ctranslate2, MKL": 1.1}
SECONDS |= {"edgepeft": 1.0, "edgepeft, int8": 0.4, "ctranslate2 int8": 0.8, "ctranslate2 int8, MKL": 0.9}


@pytest.fixture(scope="module")
def run(tiny_run):
    return tiny_run("t5", rounds=3, num_decoder_layers=2, eos_token_id=59)


@pytest.fixture(scope="module")
def bundle(run):
    return run.bundle("bare", [Structure("lora", ["a"], {"rank": "2"}, head="text", labels=None)])


def job_of(run, bundle, **settings):
    return run.job(
        "write_onnxruntime", bundle, batches=ROWS, model=str(run.plain()), settings=settings, new_tokens=ASKED
    )


def test_ours_and_transformers_write_the_same_tokens_of_the_same_rows(run, bundle):
    job, found = job_of(run, bundle), []
    pytorch.write(job).step(0)
    write_onnxruntime(job_of(run, bundle, tasks=["a", None])).step(1)
    from transformers import T5ForConditionalGeneration

    model = T5ForConditionalGeneration.from_pretrained(run.plain()).eval()
    with Runtime(bundle, threads=1, cache=False) as runtime:
        rows = {name: job.batch(0)[name] for name in ("input_ids", "attention_mask")}
        found = [tuple(one) for one in runtime.generator.write(None, rows, Decoding(ASKED))]
    assert found == theirs(model, rows, Decoding(ASKED)) and [len(tokens) for tokens, _ in found] == [ASKED] * 3


def test_a_peer_that_writes_fewer_tokens_stops_the_run():
    with pytest.raises(EdgepeftError, match=r"wrote \[4, 5\] tokens, 5 were asked for"):
        _writing.require_all([5, 4], 5)


def raced(names):
    return {name: [SECONDS[name] * noise for noise in (1.0, 1.01, 0.99)] for name in names}


def test_targets_are_those_of_the_fastest_peers(run, monkeypatch):
    present = {"text_ctranslate2": Path("model.bin"), "text_optimum": Path("merged.onnx")}
    monkeypatch.setattr(run, "cases", ("one-8",))
    monkeypatch.setattr(SuiteRun, "peer", lambda self, name: present.get(name, f"{name} is not installed"))
    monkeypatch.setattr(SuiteRun, "race", lambda self, what, racers, **_: raced(racers))
    monkeypatch.setattr(text, "isa_flags", lambda: ("avx512_vnni",))
    noted = {}  # whose versions are kept
    monkeypatch.setattr(SuiteRun, "note_versions", lambda self, name, packages, *_: noted.update({name: packages}))
    rows = {(row.what, row.peer): row for row in text.measure(run)}
    fp32, int8 = "fp32, one row, 8 tokens greedy", "int8, one row, 8 tokens greedy"
    assert rows[fp32, "ctranslate2, MKL"].value == pytest.approx(1.1)
    assert rows[fp32, "ctranslate2, MKL"].target.value == 0.97
    assert [key for key, row in rows.items() if row.target] == [(fp32, "ctranslate2, MKL"), (int8, "ctranslate2 int8")]
    assert rows[int8, "ctranslate2 int8"].verdict is SuiteVerdict.MET
    assert rows["one row, 8 tokens greedy", "openvino"].note == "text_openvino is not installed"
    assert noted == {
        "pytorch": ("torch", "transformers"),
        "optimum": ("optimum-onnx",),
        "ctranslate2": ("ctranslate2",),
    }


def test_labels_are_scored_beside_what_peers_write_and_score(run, monkeypatch):
    monkeypatch.setattr(SuiteRun, "peer", lambda self, name: Path("model.bin"))
    monkeypatch.setattr(SuiteRun, "note_versions", lambda *_: None)
    racers, missing = text._peers(run, text._WRITTEN["eight-labels"])
    assert not missing and racers["pytorch"].job.new_tokens == 3
    assert racers["ctranslate2 int8, MKL, scored"].job.settings["labels"] == text._LABEL_IDS
    assert text._ours(run, text._WRITTEN["one-labels"]).job.task == "labels"


def test_the_peers_convert_tokens_as_numbers(run, bundle):
    rows = ctranslate2._named(ctranslate2._rows(job_of(run, bundle), 0))
    ids = job_of(run, bundle).batch(0)["input_ids"]
    assert [len(row) for row in rows] == [9, 4, 6] and rows[1] == [f"t{number}" for number in ids[1, :4]]


def test_a_peer_of_another_interpreter_is_looked_for_there(run, monkeypatch):
    monkeypatch.setattr(run, "pythons", {"text_openvino": sys.executable})
    monkeypatch.setitem(PEERS, "text_openvino", PEERS["text_openvino"]._replace(module="nowhere_at_all"))
    assert run.peer("text_openvino") == f"nowhere_at_all is not installed for {sys.executable}"


def test_cases_and_backbones_that_cannot_be_are_refused(tmp_path, monkeypatch):
    with pytest.raises(UnknownName, match="case of the suite text"):
        run_suite(SuiteRequest("text", "rpi4", cases=("nope",)))
    with pytest.raises(UnknownName, match="case of the suite speed"):
        run_suite(SuiteRequest("speed", "rpi4", cases=("one-8",)))
    monkeypatch.setattr(_suite_run, "config_in", lambda name: SMALL_BERT)
    with pytest.raises(UsageError, match="small has no decoder"):
        next(text.measure(SuiteRun(tmp_path, "small", Limits(), 1, 1, 1.0)))


@pytest.mark.parametrize("given", ["nope=python3", "text_openvino", "text_openvino=/no/such/python"])
def test_interpreters_that_are_none_are_refused(given, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["suites", "text", "--profile", "rpi4", "--python", given])
    with pytest.raises(SystemExit) as ended:
        main(command_line.app)
    assert ended.value.code == 2 and "--python" in capsys.readouterr().err
