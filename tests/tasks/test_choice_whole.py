"""A choice among candidates from rows to answers: trained, exported, scored, mixed, served and tuned."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from deltas import TEXTS, random_delta, saved
from once import made_once
from optimum_classes import optimum_class
from safetensors.numpy import load_file
from scipy.special import log_softmax, softmax
from tolerance import Exact, exactly
from torch.nn.functional import cross_entropy
from verbs import SMALL_ADAPTER, shown, verb

from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.source import open_backbone
from edgepeft.backbones.tokens import Text
from edgepeft.bench.planning.job import Job
from edgepeft.bench.workloads.models import finetune_onnxruntime, finetune_pytorch
from edgepeft.bundle.bundle import Bundle
from edgepeft.bundle.delta import Delta
from edgepeft.common.errors import DataError
from edgepeft.deploy.cost import example_inputs
from edgepeft.graph.cost import count_run
from edgepeft.options.verbs import TuneSettings
from edgepeft.runtime.runtime import Runtime
from edgepeft.serve.schemas import MixedRow, Predictions, PredictRequest, TuneRow
from edgepeft.training.exporting.bundle import export_bundle
from edgepeft.tuning.step import StepRows, TrainingStep
from edgepeft.tuning.target import Files, from_task
from edgepeft.tuning.tune import TuningRun

GIVEN = {"sentence1": "w11 w12", "candidates": ["w13 w14", "w5 w15", "w16 w17 w18"]}
OTHER = {"sentence1": "w19", "sentence2": "w12", "candidates": ["w5", "w10 w11"]}


def write(path: Path, n: int, seed: int) -> Path:
    """Rows of two to four candidates, of which the right one has ``w5``."""
    source = random.Random(seed)
    rows = []
    for _ in range(n):
        candidates = [" ".join(f"w{source.randrange(10, 20)}" for _ in range(source.randint(1, 3))) for _ in range(9)]
        candidates = [*dict.fromkeys(candidates)][: source.randint(2, 4)]
        right = source.randrange(len(candidates))
        candidates[right] = " ".join(
            source.sample([*candidates[right].split(), "w5"], k=candidates[right].count(" ") + 2)
        )
        text = " ".join(f"w{source.randrange(10, 20)}" for _ in range(3))
        rows.append({"sentence1": text, "candidates": candidates, "label": source.choice([right, candidates[right]])})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def made(tiny: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``train.jsonl``, a delta trained on it, and a bundle of it, with a template."""

    def make(folder: Path) -> None:
        data = write(folder / "train.jsonl", 160, 0)
        asked = ("--task", "pick", "--kind", "choice", *SMALL_ADAPTER)
        backbone = tiny("bert", mean=True)
        length = ("--steps", 60, "--lr", "1e-2")
        done = verb("train", "--backbone", backbone, "--data", data, *asked, *length, "--out", folder / "pick")
        assert done.exit_code == 0, (done.output, done.exception)
        (folder / "said").write_text(done.output)
        paths = ("--backbone", backbone, "--delta", folder / "pick", "--out", folder / "bundle")
        shown("export", *paths, "--template", "bitfit", "--verify-data", data, "--json")

    return made_once(tmp_path_factory, "choice-whole", make)


def test_training_learns_to_pick_and_says_what_chance_has(made: Path):
    card = json.loads((made / "pick" / "delta.json").read_text())
    found = card["metrics"]
    assert (card["kind"], card["labels"], card["pairs"], found["metric"]) == ("choice", None, True, "accuracy")
    assert found["test"] > 0.8 and found["test"] > found["baselines"]["majority"]["test"]
    assert found["baselines"]["linear head"]["test"] >= 0.5
    chance = found["errors"]["figures"]["chance"]
    assert 1 / 4 < chance < 1 / 2
    said = " ".join((made / "said").read_text().split())
    assert "share of rows whose right candidate is picked" in said and f"chance {chance:.3f}" in said


def test_the_bundle_picks_as_pytorch_does_one_row_at_a_time(made: Path, tiny: Callable[..., Path]):
    backbone = open_backbone(str(tiny("bert", mean=True)))
    delta, model = Delta.load(made / "pick", backbone), load_model(backbone, "eager")
    answers = Runtime(made / "bundle").predict("pick", [GIVEN, OTHER])
    texts = [[("w11 w12", c) for c in GIVEN["candidates"]], [("w19", f"w12 {c}") for c in OTHER["candidates"]]]
    for answer, of_row in zip(answers, texts, strict=True):
        scores = []
        for pair in of_row:
            inputs = backbone.encoder().encode([Text(*pair)], 16).inputs
            with torch.no_grad():
                scores.append(delta.logits(model, {n: torch.from_numpy(v) for n, v in inputs.items()}).item())
        shares = torch.softmax(torch.tensor(scores) / delta.card.chosen["temperature"], 0)
        assert answer.logits == pytest.approx(scores, abs=1e-4)
        assert list(answer.scores.values()) == pytest.approx(shares.tolist(), abs=1e-4)
    assert [answer.value for answer in answers] == ["w5 w15", "w5"]
    assert Predictions(predictions=[answers[0].as_json()]).predictions[0].index == 1


def test_a_choice_is_calibrated_and_may_be_unsure_without_another_candidate_being_best(
    made: Path, tiny: Callable[..., Path], tmp_path: Path
):
    card = json.loads((made / "pick" / "delta.json").read_text())
    kept = load_file(made / "pick" / "evaluation.safetensors")
    scores, right = kept["logits"][..., 0].astype(np.float64), kept["targets"][:, 0]
    temperature = card["chosen"]["temperature"]

    def likelihood(t: float) -> float:
        return float(log_softmax(scores / t, axis=1)[np.arange(len(right)), right].mean())

    assert temperature == 1 or all(likelihood(temperature) >= likelihood(temperature * by) for by in (0.98, 1.02))
    paths = ("--backbone", tiny("bert", mean=True), "--delta", made / "pick", "--out", tmp_path / "bundle")
    assert verb("export", *paths, "--coverage", 0.8).exit_code == 0
    threshold = Bundle(tmp_path / "bundle").entry("pick").task_kind.chosen["threshold"]
    rows = write(tmp_path / "rows.jsonl", 60, 7)
    answers = Runtime(tmp_path / "bundle").predict("pick", [json.loads(line) for line in rows.read_text().splitlines()])
    for answer, plain in zip(answers, Runtime(made / "bundle").predict("pick", [GIVEN, OTHER]), strict=False):
        assert plain.as_json().get("unsure") is None
        assert answer.as_json()["unsure"] == answer.unsure
    for answer in answers:
        probable = softmax(np.array(answer.logits) / temperature)
        assert answer.unsure == ((probable >= threshold).sum() != 1)
        assert list(answer.scores.values()) == pytest.approx(probable, abs=1e-6)
    found = shown("eval", tmp_path / "bundle", "--task", "pick", "--data", rows, "--json")["calibration"]
    assert found["promise"]["unsure"] == pytest.approx(np.mean([answer.unsure for answer in answers]))
    assert verb("verify", tmp_path / "bundle").exit_code == 0


def test_run_prints_the_candidate_its_index_and_all_scores(made: Path, tmp_path: Path):
    picks = [word for each in GIVEN["candidates"] for word in ("--candidate", each)]
    line = verb("run", made / "bundle", "--task", "pick", GIVEN["sentence1"], *picks).stdout.splitlines()[0]
    task, said, index, scores, text = line.split("\t")
    assert (task, said, index, text) == ("pick", "w5 w15", "1", "w11 w12")
    assert sum(map(float, scores.split())) == pytest.approx(1, abs=2e-3) and len(scores.split()) == 3
    rows = tmp_path / "rows.csv"
    rows.write_text("sentence1,choice1,choice2\nw11,w12,w5\nw11,w5 w10,w13 w14\n")
    answers = [json.loads(line) for line in verb("run", made / "bundle", "--input", rows).stdout.splitlines()]
    assert [answer["predictions"][0]["index"] for answer in answers] == [1, 0]
    assert answers[0]["choice1"] == "w12"


def test_eval_and_report_have_the_figures_and_the_worst_rows(made: Path, tmp_path: Path):
    data = write(tmp_path / "rows.jsonl", 70, 5)  # more than a batch
    found = shown("eval", made / "bundle", "--task", "pick", "--data", data, "--json")
    rows = [json.loads(line) for line in data.read_text().splitlines()]
    answers = Runtime(made / "bundle").predict("pick", rows)
    right = [each["label"] in (a.value, a.index) for each, a in zip(rows, answers, strict=True)]  # type: ignore[attr-defined]
    assert (found["metric"], found["score"], found["rows"]) == ("accuracy", np.mean(right), 70)
    assert isinstance(found["worst"][0]["label"], str) and isinstance(found["worst"][0]["answer"], str)
    path = tmp_path / "eval.json"
    path.write_text(json.dumps(found))
    assert verb("report", path, made / "pick", "--out", tmp_path / "page").exit_code == 0
    page = next(iter(tmp_path.glob("page*/index.html")), tmp_path / "page")
    assert "chance" in page.read_text()
    assert "choice" in verb("info", made / "bundle").stdout


def test_run_of_all_tasks_names_the_one_that_cannot_read_the_text(
    tiny: Callable[..., Path], made: Path, tmp_path: Path
):
    backbone = open_backbone(str(tiny("bert", mean=True)))
    other = saved(random_delta(backbone, "linear", "mood"), tmp_path / "mood")
    export_bundle(backbone, [made / "pick", other], tmp_path / "bundle", texts=[Text("w5")])
    done = verb("run", tmp_path / "bundle", "w5 w6")
    assert isinstance(done.exception, DataError)
    assert str(done.exception).endswith("The task pick asks for this; --task names those to ask.")
    assert verb("run", tmp_path / "bundle", "w5 w6", "--task", "mood").exit_code == 0


def test_what_is_wrong_in_rows_is_named(made: Path, tmp_path: Path):
    odd = tmp_path / "odd.jsonl"
    good, bad = {**GIVEN, "label": 1}, {"sentence1": "w5", "candidates": ["w6"], "label": 0}
    odd.write_text("".join(json.dumps(row) + "\n" for row in (good, bad)))
    for words in (("eval", "--data"), ("run", "--input"), ("tune", "--data")):
        done = verb(words[0], made / "bundle", "--task", "pick", words[1], odd)
        assert isinstance(done.exception, DataError) and "odd.jsonl:2: the row has one candidate" in str(done.exception)
    odd.write_text(json.dumps({"sentence1": "w5"}) + "\n")
    done = verb("run", made / "bundle", "--input", odd)
    assert isinstance(done.exception, DataError) and "odd.jsonl:1: no candidates to pick from" in str(done.exception)
    done = verb("run", made / "bundle", "w5 w6")
    assert isinstance(done.exception, DataError) and "text:1: no candidates" in str(done.exception)
    assert "--task" not in str(done.exception)  # there is no other


def test_transformers_class_for_choices_scores_by_the_merged_model_as_the_bundle(made: Path, tmp_path: Path):
    assert verb("merge", made / "bundle", "--task", "pick", "--out", tmp_path / "plain").exit_code == 0
    assert json.loads((tmp_path / "plain" / "config.json").read_text())["architectures"] == ["BertForMultipleChoice"]
    peer = optimum_class("ORTModelForMultipleChoice")
    from transformers import AutoTokenizer

    model, tokenizer = peer.from_pretrained(tmp_path / "plain"), AutoTokenizer.from_pretrained(tmp_path / "plain")
    rows = [GIVEN, {"sentence1": "w19 w5 w10 w11", "candidates": ["w5", "w10 w11", "w12 w13 w14 w15"]}]
    texts = [(row["sentence1"], candidate) for row in rows for candidate in row["candidates"]]
    given = tokenizer(*map(list, zip(*texts, strict=True)), padding=True, truncation=True, return_tensors="pt")
    logits = model(**{name: values.unflatten(0, (2, 3)) for name, values in given.items()}).logits
    assert logits.shape == (2, 3)
    for answer, own in zip(Runtime(made / "bundle").predict("pick", rows), logits, strict=True):
        assert answer.logits == pytest.approx(own.tolist(), abs=1e-4)
        assert answer.index == own.argmax()  # type: ignore[attr-defined]


def test_rows_of_choices_and_of_labels_are_answered_in_one_batch(tiny: Callable[..., Path], tmp_path: Path):
    """Tasks of one structure share a pass; each row has as many token rows as it has candidates."""
    backbone = open_backbone(str(tiny("bert", mean=True)))
    kinds = {"one": "choice", "two": "choice", "mood": None}
    deltas = [
        random_delta(
            backbone,
            "pfeiffer",
            task,
            None if kind else ("no", "yes"),
            kind=kind or "classification",
            pairs=bool(kind),
            settings={"bottleneck": 4},
            seed=seed,
        )
        for seed, (task, kind) in enumerate(kinds.items())
    ]
    paths = [saved(delta, tmp_path / delta.card.task) for delta in deltas]
    export_bundle(backbone, paths, tmp_path / "bundle", texts=TEXTS)
    runtime = Runtime(tmp_path / "bundle")
    named = ["two", "mood", "one", "two", "one"]
    texts: list[Any] = [GIVEN, "w5 w6", OTHER, OTHER, GIVEN]
    together = runtime.predict_mixed(named, texts)
    for task, text, answer in zip(named, texts, together, strict=True):
        (alone,) = runtime.predict(task, [text])
        assert answer.logits == pytest.approx(alone.logits, abs=1e-5) and answer.value == alone.value  # type: ignore[union-attr]
    shared = runtime.predict_all(["one", "mood"], [GIVEN, OTHER])
    assert [len(answer.logits) for answer in shared["one"]] == [3, 2]  # type: ignore[attr-defined]
    assert [answer.value in ("no", "yes") for answer in shared["mood"]] == [True, True]


def test_eight_bits_are_held_to_the_candidates_that_are_picked(made: Path, tiny: Callable[..., Path], tmp_path: Path):
    paths = ("--backbone", tiny("bert", mean=True), "--delta", made / "pick", "--out", tmp_path / "int8")
    done = verb("export", *paths, "--weights", "int8", "--verify-data", made / "train.jsonl")
    assert done.exit_code == 0, done.exception
    checked = Bundle(tmp_path / "int8").entry("pick").verification
    assert checked is not None and checked.data is not None
    assert (checked.data.rows, checked.data.metric) == (160, "accuracy")
    assert checked.data.pytorch is not None and checked.data.pytorch > 0.8
    assert verb("verify", tmp_path / "int8").exit_code == 0


def test_requests_have_candidates(made: Path):
    asked = PredictRequest.model_validate({"text": "w19", "second": "w12", "candidates": OTHER["candidates"]})
    row = MixedRow.model_validate({"task": "pick", "text": "w11 w12", "candidates": GIVEN["candidates"]})
    answers = Runtime(made / "bundle").predict("pick", [*asked.texts, row.given])
    assert [answer.value for answer in answers] == ["w5", "w5 w15"]
    assert TuneRow.model_validate({**row.model_dump(exclude={"task"}), "label": 1}).candidates == GIVEN["candidates"]
    with pytest.raises(ValueError, match="give text"):
        PredictRequest.model_validate({"candidates": ["a", "b"]})


def test_tuning_goes_on_and_starts_from_a_template(made: Path, tmp_path: Path):
    bundle = Path(shutil.copytree(made / "bundle", tmp_path / "bundle"))
    data, others = write(tmp_path / "more.jsonl", 160, 9), write(tmp_path / "others.jsonl", 40, 11)
    asked = ("--data", data, "--test", others, "--steps", 40, "--lr", "1e-2", "--json")
    found = shown("tune", bundle, "--task", "pick", *asked)
    score = shown("eval", bundle, "--task", "pick", "--data", others, "--json")["score"]
    assert Bundle(bundle).entry("pick").metrics["test"] == pytest.approx(score) and "entry" in found
    assert verb("verify", bundle).exit_code == 0
    started = shown("tune", bundle, "--task", "new", "--template", "bitfit", "--kind", "choice", "--seed", 1, *asked)
    assert started["entry"]["kind"] == "choice" and started["entry"]["metrics"]["test"] > 0.6


def test_both_engines_measure_steps_of_whole_rows(made: Path, monkeypatch: pytest.MonkeyPatch):
    """Seven pairs of made tokens are rows of two, two and three candidates; a row knows nothing of the right one."""
    facts: dict[str, Any] = {"method": "pfeiffer", "settings": {"bottleneck": 4}, "task": "pick", "kind": "choice"}
    shared: dict[str, Any] = {"threads": 1, "bundle": str(made / "bundle"), "vocab_size": 60, "cache": False}
    job = Job("x", batches=((7, 3, 5, 7, 3, 5, 7),), **shared, **facts)
    losses, call, backward = [], TrainingStep.__call__, torch.autograd.backward

    def taken(step: TrainingStep, tensors: Any, rows: StepRows) -> Any:
        assert rows.per_row is not None and rows.per_row.tolist() == [2, 2, 3]
        found = call(step, tensors, rows)
        losses.append(found.loss)
        return found

    monkeypatch.setattr(TrainingStep, "__call__", taken)
    monkeypatch.setattr(torch.autograd, "backward", lambda loss: losses.append(loss.item()) or backward(loss))
    finetune_pytorch(job).step(0)
    # A fresh adapter and a fresh head: what they score is near to nothing.
    assert losses[0] == pytest.approx((2 * np.log(2) + np.log(3)) / 3, abs=0.3)
    finetune_onnxruntime(job).step(0)
    assert np.isfinite(losses[1])


def test_a_step_has_pytorchs_gradients(tiny: Callable[..., Path], tmp_path: Path):
    """In parts of a few whole rows, and of the loss of each row alone by the library."""
    backbone = open_backbone(str(tiny("bert", mean=True)))
    more = {"kind": "choice", "pairs": True, "settings": {"bottleneck": 4}}
    path = saved(random_delta(backbone, "pfeiffer", "pick", None, **more), tmp_path / "d")
    export_bundle(backbone, [path], tmp_path / "bundle", texts=TEXTS[:9])
    bundle, options = Bundle(tmp_path / "bundle"), TuneSettings(dropout=False, micro_batch=4)
    files = Files(write(tmp_path / "rows.jsonl", 40, 0))
    run = TuningRun(bundle, from_task(bundle, "pick", files, options), options, tmp_path / "work", threads=1)
    delta, model = Delta.load(path, backbone).double(), load_model(backbone, "eager").double()
    chosen = range(11)
    inputs, targets = run.loop.rows["train"].batch(chosen)
    given = {name: torch.from_numpy(values) for name, values in inputs.items()}
    assert len(inputs["input_ids"]) == targets[:, 1].sum() and len({*targets[:, 1]}) > 1

    def backward() -> dict[str, torch.Tensor]:
        delta.zero_grad()
        rows = torch.split(delta.logits(model, given)[:, 0], targets[:, 1].tolist())
        losses = [
            cross_entropy(own[None], torch.tensor([right])) for own, right in zip(rows, targets[:, 0], strict=True)
        ]
        loss = torch.stack(losses).mean()
        loss.backward()
        return {"loss": loss, **{name: p.grad for name, p in delta.tensors().items()}}

    exact = exactly(backward)
    masks = [np.ones((len(inputs["input_ids"]), width), np.float32) for _, width in run.target.facts.dropouts]
    found = run.engine.gradients(chosen, masks)
    exact.pop("loss").require(np.float64(found.loss))
    for name, expected in exact.items():
        share = 1e-5 * float(np.abs(expected.value).max())  # as tests/conformance/test_gradients.py has it
        Exact(expected.value, expected.error + share).require(found.gradients[name], name)


def test_cost_and_fit_count_a_text_with_two_candidates(made: Path):
    one = Bundle(made / "bundle")
    own = count_run(one.graph("pick"), example_inputs(one, 2, 16))[0]
    found = shown("cost", made / "bundle", "--task", "pick", "--length", 16, "--json")
    assert found["flops"] == sum(work.flops for work in own) and (found["token_rows"], found["tokens_each"]) == (2, 16)
    fit = shown("fit", made / "bundle", "--profile", "rpi4", "--task", "pick", "--length", 16, "--batch", 3, "--json")
    assert fit["read_as"] == fit["taught_as"] == [2, 16]
    assert fit["inference"]["parts"]["inputs"] == 3 * 2 * 16 * 48
