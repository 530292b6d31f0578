"""The suite decoders: which goals are of which peers, and what rows of several tasks have written."""

from __future__ import annotations

import numpy as np
import pytest

from bench.suites import decoders
from bench.suites._suite_run import SuiteRun
from edgepeft.common.errors import UsageError
from edgepeft.runtime import kv_cache
from edgepeft.runtime.runtime import Runtime

SECONDS = {"edgepeft int8": 1.0, "genai int4": 1.02, "genai int8": 1.3, "llama.cpp Q4_0": 1.5, "llama.cpp Q8_0": 1.9}
SECONDS |= {"bare": 1.0, "q, v": 1.01, "all linears": 1.2}
SECONDS |= {"four tasks": 1.0, "one after another": 2.5, "one task": 0.9, "cached": 1.0, "whole": 1.6}


@pytest.fixture(scope="module")
def run(tiny_run):
    sizes = {"hidden_size": 64, "head_dim": 16, "intermediate_size": 64, "max_position_embeddings": 128}
    sizes |= {"tie_word_embeddings": True}
    return tiny_run("llama", rounds=2, **sizes)


def test_goals_are_of_four_bits_and_of_what_lora_may_cost(run, monkeypatch, tmp_path):
    monkeypatch.setattr(run, "cases", ("steps", "lora", "mixed", "words"))
    monkeypatch.setattr(SuiteRun, "peer", lambda self, name, task: tmp_path / task if "genai" in name else "not here")
    monkeypatch.setattr(SuiteRun, "race", lambda self, what, racers: {n: [SECONDS[n]] * 3 for n in racers})
    monkeypatch.setattr(SuiteRun, "bundle", lambda self, name, *_, **__: tmp_path)
    noted = {}
    monkeypatch.setattr(SuiteRun, "note_versions", lambda self, name, packages, python: noted.update({name: packages}))
    rows = {(row.what, row.peer): row for row in decoders.measure(run)}
    assert noted == dict.fromkeys(("genai int8", "genai int4"), ("onnxruntime-genai", "onnxruntime"))
    step = decoders._BARE["steps"].what
    assert rows[step, "genai int4"].value == pytest.approx(1.02) and rows[step, "genai int4"].target.value == 1
    assert rows[step, "genai int8"].target is None and rows[step, "llama.cpp Q4_0"].note == "not here"
    assert rows[f"LoRA of q, v, {step}", "bare"].target.value == pytest.approx(1 / 1.02)
    assert rows["four rows of four tasks, LoRA of all linears", "one after another"].value == pytest.approx(2.5)
    words = next(row for row in rows.values() if row.what.startswith("label words"))
    assert (words.peer, words.value, words.target.value) == ("whole", pytest.approx(1.6), 1.5)


def test_rows_of_several_tasks_are_written_together_as_apart(run, monkeypatch):
    bundle, written = decoders._with_lora(run, "all linears"), []
    plain = Runtime.predict_mixed

    def kept(self, *args, **more):
        written.extend(found := plain(self, *args, **more))
        return found

    monkeypatch.setattr(Runtime, "predict_mixed", kept)
    for apart in (False, True):
        settings = {"tasks": [f"task{number}" for number in range(4)], "apart": apart}
        job = run.job("", bundle, batches=((8, 8, 8, 8),), settings=settings, new_tokens=5)
        decoders.write_together(job).step(0)
    together, apart = written[:4], written[4:]
    assert [answer.task for answer in apart] == ["task0", "task1", "task2", "task3"]
    assert all(len(answer.tokens) == 5 for answer in written)
    same = np.mean([a.tokens == b.tokens for a, b in zip(together, apart, strict=True)])
    assert same >= 0.5  # activations are rounded to 8 bits, in products of other sizes: a near tie may fall otherwise


def test_label_words_behind_known_tokens_have_the_scores_of_the_same_text_read_whole(run, monkeypatch):
    jobs, tokens, found = {}, [], {}
    monkeypatch.setattr(run, "cases", ("words",))
    monkeypatch.setattr(
        SuiteRun, "race", lambda self, what, racers: jobs.update(racers) or {name: [1.0] for name in racers}
    )
    list(decoders.measure(run))
    plain, counted = Runtime.logits, kv_cache._Run.logits
    monkeypatch.setattr(kv_cache._Run, "logits", lambda self: tokens.append(len(self.ids)) or counted(self))
    for label, racer in jobs.items():
        monkeypatch.setattr(Runtime, "logits", lambda *given, label=label: found.setdefault(label, plain(*given)))
        decoders.score_words(racer.job).step(0)
    assert tokens == [40, 64, 104]
    np.testing.assert_allclose(found["cached"], found["whole"], rtol=0, atol=0.05)  # of 8 bits
    assert np.exp(found["whole"]).sum() == pytest.approx(1, abs=1e-5)


def test_it_is_of_decoders_alone(tiny_run):
    with pytest.raises(UsageError, match="decoder alone"):
        next(iter(decoders.measure(tiny_run("t5"))))
