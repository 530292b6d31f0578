"""Benchmarks of tasks that are no classifications: what each step computes, and what cannot be asked together."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from rich.console import Console
from tiny import SIZES
from transformers import T5ForConditionalGeneration

from bench.suites import _random_bundle, kinds
from bench.suites._random_bundle import Structure
from edgepeft.bench.planning.job import Job
from edgepeft.bench.planning.target import open_subject
from edgepeft.bench.report.tables import bench_table
from edgepeft.bench.run import run_benchmark
from edgepeft.bench.workloads.models import (
    cold_start,
    finetune_onnxruntime,
    finetune_pytorch,
    requests,
    write_onnxruntime,
    write_pytorch,
)
from edgepeft.bundle.delta import new_delta
from edgepeft.bundle.manifest import TaskEntry
from edgepeft.common.errors import UsageError
from edgepeft.options.verbs import BenchOptions
from edgepeft.runtime.decoding import Decoding
from edgepeft.runtime.generation import Generator
from edgepeft.runtime.runtime import Runtime
from edgepeft.tasks.base import kind_named
from edgepeft.tuning.step import TrainingStep

BATCHES = ((7, 3, 5), (2, 2))
SETTINGS = {"rank": "2"}
NEW_TOKENS = 4
T5 = {"model_type": "t5", **SIZES["t5"], "num_decoder_layers": 2, "eos_token_id": 1, "dropout_rate": 0.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A T5 with a task that writes, and one with labels."""
    folder = tmp_path_factory.mktemp("kinds") / "bundle"
    structures = [Structure("lora", ["words"], SETTINGS, "text", None), Structure("lora", ["one"], SETTINGS)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_random_bundle, "config_of", lambda name: T5)
        _random_bundle.write_bundle(folder, "tiny", structures)
    return folder


def seeded(*given, **more):
    """The same delta wherever it is made, without dropout."""
    torch.manual_seed(0)
    return new_delta(*given, **{**more, "head_dropout": 0.0})


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """A BERT with a task of each kind, called like it."""
    folder = tmp_path_factory.mktemp("kinds") / "bundle"
    labels = {kind: kind_named(kind).example(("B-X", "I-X", "O"))[1] for kind in kinds.CASES}
    structures = [Structure("lora", [kind], SETTINGS, labels=labels[kind], kind=kind) for kind in kinds.CASES]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_random_bundle, "config_of", lambda name: {"model_type": "bert", **SIZES["bert"]})
        patch.setattr("edgepeft.bundle.delta.new_delta", seeded)
        _random_bundle.write_bundle(folder, "tiny", structures)
    return folder


def job(folder, task=None, **fields):
    subject = open_subject(folder, tasks=[task] if task else [])
    own = {} if task is None else {"task": task, "kind": subject.tasks[0].kind}
    shared = {"threads": 1, "batches": BATCHES, "bundle": str(folder), "vocab_size": 60, "cache": False}
    return Job("x", **{**shared, "method": "lora", "settings": {"rank": 2}, **own, **fields})


def test_a_text_has_as_many_tokens_as_were_asked_for_whatever_ends_it(folder):
    with Runtime(folder, threads=1, cache=False) as runtime:
        rows = {name: job(folder).batch(0)[name] for name in ("input_ids", "attention_mask")}
        free = runtime.generator.write("words", rows, Decoding(40, ends=False))
        ended = runtime.generator.write("words", rows, Decoding(40))
    assert [len(one.tokens) for one in free] == [40] * 3 and not any(one.ended for one in free)
    for one, other in zip(free, ended, strict=True):
        assert one.tokens[: len(other.tokens)] == other.tokens


@pytest.mark.parametrize("task", [None, "words"])
def test_both_engines_write_the_same_number_of_tokens(folder, task, monkeypatch):
    asked, shapes = job(folder, task, new_tokens=NEW_TOKENS), []
    write, generate = Generator.write, T5ForConditionalGeneration.generate

    def written(*given):
        found = write(*given)
        shapes.append((len(found), *{len(one.tokens) for one in found}))
        return found

    def generated(*given, **more):
        found = generate(*given, **more)
        shapes.append((len(found), found.shape[1] - 1))  # the first is the start
        return found

    monkeypatch.setattr(Generator, "write", written)
    monkeypatch.setattr(T5ForConditionalGeneration, "generate", generated)
    for prepare in (write_onnxruntime, write_pytorch):
        prepare(asked).step(1)
    assert shapes == [(len(BATCHES[1]), NEW_TOKENS)] * 2


def taken_losses(monkeypatch):
    """What both engines' steps have for losses, in order."""
    losses, call, backward = [], TrainingStep.__call__, torch.autograd.backward

    def taken(*given, **more):
        found = call(*given, **more)
        losses.append(found.loss)
        return found

    monkeypatch.setattr(TrainingStep, "__call__", taken)
    monkeypatch.setattr(torch.autograd, "backward", lambda loss: losses.append(loss.item()) or backward(loss))
    return losses


@pytest.mark.parametrize(("task", "new_tokens"), [("words", NEW_TOKENS), ("one", 0)])
def test_both_engines_learn_from_the_same_targets(folder, task, new_tokens, monkeypatch):
    """A fresh LoRA changes nothing, so that the losses of both are those of the bare backbone."""
    asked, losses = job(folder, task, new_tokens=new_tokens, n_labels=2), taken_losses(monkeypatch)
    finetune_onnxruntime(asked).step(0)
    finetune_pytorch(asked).step(0)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    finetune_pytorch(replace(asked, method="full", task=None, settings={})).step(0)
    if new_tokens:  # the whole model's first loss is that of the bare one, too
        assert losses[2] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.parametrize("kind", kinds.CASES)
def test_both_engines_learn_every_kind_from_the_same_targets(encoder, kind, monkeypatch):
    monkeypatch.setattr("edgepeft.bundle.delta.new_delta", seeded)
    losses = taken_losses(monkeypatch)
    columns = open_subject(encoder, tasks=[kind]).tasks[0].n_labels
    asked = job(encoder, kind, n_labels=columns)
    finetune_onnxruntime(asked).step(0)
    finetune_pytorch(asked).step(0)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_request_and_a_cold_start_have_rows_of_the_kind_of_each_task(encoder):
    ways = [("one", ["spans"]), ("one", ["choice"]), ("each", list(kinds.CASES)), ("mixed", list(kinds.CASES))]
    asked = [{"how": how, "tasks": tasks, "tokens": [4] * 6} for how, tasks in ways]
    step = requests(job(encoder, settings={"requests": asked})).step
    for number in range(len(asked)):
        step(number)
    cold_start(job(encoder, "choice", batches=((4,),))).step(0)


def test_tasks_that_write_are_left_out_beside_others_and_measured_alone(folder):
    subject = open_subject(folder)
    assert [task.name for task in subject.tasks] == ["one"] and subject.left_out == ("words",)
    assert subject.tasks[0].kind is None and not subject.writes
    alone = open_subject(folder, tasks=["words"])
    assert alone.writes and alone.left_out == () and alone.tasks[0].kind == "text"
    with pytest.raises(UsageError, match="text is written by words, and not by one"):
        open_subject(folder, tasks=["one", "words"])


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"tasks": ("words",), "mode": "predicted"}, "--mode predicted: not for tasks that write"),
        ({"tasks": ("words",), "timed": False}, "--deterministic: not for"),
        ({"tasks": ("words",), "scenario": "mixed-tasks"}, "--scenario mixed-tasks: not for"),
        ({"tasks": ("one",), "new_tokens": 3}, "no task of .* writes text"),
        ({"tasks": ("words",), "new_tokens": 0}, "--new-tokens must be at least 1"),
    ],
)
def test_what_cannot_be_done_with_text_is_refused(folder, asked, message, tmp_path):
    with pytest.raises(UsageError, match=message):
        run_benchmark(BenchOptions.of({"profile": "rpi4", "bundle": folder, **asked}, "bench"), root=tmp_path)


def test_a_row_says_how_much_is_written_and_counts_no_operations(folder, fake_start):
    request = BenchOptions(
        profile="rpi4", bundle=folder, tasks=("words",), length=6, batch_size=2, new_tokens=5, counted=True
    )
    result = run_benchmark(request, start=fake_start(), say=lambda _: None).result
    assert {row.new_tokens for row in result.results} == {5}
    assert {(row.workload, row.engine, row.task) for row in result.results} >= {("infer", "onnxruntime", "words")}
    assert all(row.flops_per_instance is None for row in result.results)
    assert all(row.instances_per_minute == pytest.approx(120) for row in result.results)
    console = Console(width=300)
    with console.capture() as captured:
        console.print(bench_table(result))
    assert "5 written of each text" in captured.get()


def test_a_task_that_a_board_cannot_tune_is_measured_but_for_that(encoder, fake_start, monkeypatch):
    monkeypatch.setattr(TaskEntry, "untunable", property(lambda entry: "it is too large" * (entry.kind == "tokens")))
    request = BenchOptions(profile="rpi4", bundle=encoder, tasks=("tokens", "labels"), length=6, batch_size=2)
    rows = run_benchmark(request, start=fake_start(), say=lambda _: None).result.results
    ours = [row for row in rows if row.engine == "onnxruntime" and row.task]
    measured = {(row.workload, row.task): bool(row.samples_s) for row in ours}
    assert [asked for asked, done in measured.items() if not done] == [("finetune", "tokens")]
    assert [row.warnings for row in ours if not row.samples_s] == [("not available: it is too large",)]
