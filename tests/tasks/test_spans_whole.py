"""A task that finds answers in passages, from rows to answers: trained, exported, scored, served and tuned."""

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
from deltas import random_delta, saved
from once import made_once
from optimum_classes import optimum_class
from tolerance import Exact, exactly
from torch.nn.functional import cross_entropy
from verbs import SMALL_ADAPTER, shown, verb

from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.source import open_backbone
from edgepeft.backbones.tokens import Text
from edgepeft.bundle.bundle import Bundle
from edgepeft.bundle.delta import Delta
from edgepeft.common.errors import EdgepeftError
from edgepeft.data.pattern import UnreadableRow
from edgepeft.options.verbs import TuneSettings
from edgepeft.runtime.runtime import Runtime
from edgepeft.serve.schemas import Predictions, PredictRequest, TuneRow
from edgepeft.tuning.target import Files, from_task
from edgepeft.tuning.tune import TuningRun


def write(path: Path, n: int, seed: int, longest: int = 14) -> Path:
    """Passages in which w5 w6 is the answer, or nothing where it is not there."""
    source, rows = random.Random(seed), []
    for _ in range(n):
        words = [f"w{source.randrange(10, 20)}" for _ in range(source.randrange(2, longest))]
        answers: dict[str, list[Any]] = {"text": [], "answer_start": []}
        if source.random() < 0.7:
            place = source.randrange(len(words))
            words[place : place + 1] = ["w5", "w6"]
            answers = {"text": ["w5 w6"], "answer_start": [len(" ".join(["😀", *words[:place], ""]))]}
        rows.append({"question": "w7 w8", "context": " ".join(["😀", *words]), "answers": answers})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def backbone(tiny: Callable[..., Path]) -> Path:
    return tiny("bert", mean=True)


@pytest.fixture(scope="module")
def made(backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``train.jsonl``, a delta trained on it, and a bundle of it with others and a classification of pairs."""

    def make(folder: Path) -> None:
        data = write(folder / "train.jsonl", 160, 0)
        asked = ("--task", "qa", "--kind", "spans", *SMALL_ADAPTER)
        length = ("--steps", 80, "--lr", "1e-2")
        done = verb("train", "--backbone", backbone, "--data", data, *asked, *length, "--out", folder / "qa")
        assert done.exit_code == 0, (done.output, done.exception)
        opened = open_backbone(str(backbone))
        mood = random_delta(opened, "linear", "mood", ("bad", "good"), pairs=True)
        deltas = [folder / "qa", saved(mood, folder / "mood")]
        others = {
            "parts": ("pfeiffer", {"bottleneck": 4}),
            "prompted": ("prompt-t", {"length": 4}),
            "alone": ("linear", {}),
        }
        for name, (method, settings) in others.items():
            delta = random_delta(opened, method, name, None, kind="spans", pairs=True, settings=settings)
            deltas.append(saved(delta, folder / name))
        given = [word for delta in deltas for word in ("--delta", delta)]
        shown("export", "--backbone", backbone, *given, "--out", folder / "bundle", "--json")

    return made_once(tmp_path_factory, "spans-whole", make)


def questions(made: Path, n: int = 12) -> list[tuple[str, str]]:
    rows = [json.loads(line) for line in (made / "train.jsonl").read_text().splitlines()[:n]]
    return [(row["question"], row["context"]) for row in rows]


def test_training_finds_the_answers_and_says_figures_and_baselines(made: Path):
    card = json.loads((made / "qa" / "delta.json").read_text())
    assert (card["kind"], card["labels"], card["head"], card["pairs"]) == ("spans", None, "tokens", True)
    assert card["metrics"]["metric"] == "f1" and "threshold" in card["chosen"]
    score, baselines = card["metrics"]["test"], card["metrics"]["baselines"]
    assert score > 0.7 > baselines["majority"]["test"] and set(baselines) == {"majority", "linear head"}


def test_answers_are_one_by_one_together_and_in_mixed_batches_the_same(made: Path):
    runtime, asked = Runtime(made / "bundle"), questions(made)
    tasks = ["qa", "parts", "mood", "prompted", "alone"]
    alone = {task: [runtime.predict(task, [text])[0] for text in asked] for task in tasks}
    together = runtime.predict_all(tasks, asked)
    pairs = [(task, i) for i in range(len(asked)) for task in tasks]
    mixed = runtime.predict_mixed([task for task, _ in pairs], [asked[i] for _, i in pairs])
    for (task, i), answer in zip(pairs, mixed, strict=True):
        expected = alone[task][i].as_json()
        for other in (answer, together[task][i]):
            found = other.as_json()  # type: ignore[union-attr]
            assert found | {"score": 0, "scores": 0} == expected | {"score": 0, "scores": 0}
            assert found["score"] == pytest.approx(expected["score"], abs=1e-4)


def test_an_answers_places_are_those_of_the_passage_in_whatever_window(made: Path):
    runtime = Runtime(made / "bundle")
    right = 0
    for before in range(0, 40, 4):
        passage = "😀 " + "w10 " * before + "w5 w6 " + "w12 " * 7
        (answer,) = runtime.predict("qa", [("w7 w8", passage)])
        found = answer.as_json()
        assert not found["answered"] or passage[found["start"] : found["end"]] == found["text"]
        right += found["text"] == "w5 w6"
    assert right >= 8
    (none,) = runtime.predict("qa", [{"question": "w7 w8", "context": "w10 w11 w12"}])
    assert none.as_json() | {"score": 0} == {"task": "qa", "text": "", "answered": False, "score": 0}


def test_the_command_line_answers_scores_and_verifies(made: Path, tmp_path: Path):
    line = verb("run", made / "bundle", "--task", "qa", "w7 w8", "--second", "w12 w5 w6 w13").stdout
    assert line.split("\t")[1] == "w5 w6 (4-9)"
    line = verb("run", made / "bundle", "--task", "qa", "w7 w8", "--second", "w12 w13").stdout
    assert line.split("\t")[1] == "(no answer)"
    assert verb("verify", made / "bundle").exit_code == 0 and "qa" in verb("info", made / "bundle").stdout
    data = write(tmp_path / "rows.jsonl", 40, 5)
    found = shown("eval", made / "bundle", "--task", "qa", "--data", data, "--json")
    assert found["metric"] == "f1" and found["score"] == found["figures"]["f1"] > 0.7
    answers = Runtime(made / "bundle").predict("qa", [(r["question"], r["context"]) for r in read(data)])
    exact = [a.value == (r["answers"]["text"] or [""])[0] for a, r in zip(answers, read(data), strict=True)]
    assert found["figures"]["exact_match"] == pytest.approx(np.mean(exact))
    exact_only = shown("eval", made / "bundle", "--task", "qa", "--data", data, "--metric", "exact_match", "--json")
    assert exact_only["score"] == found["figures"]["exact_match"]


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_what_cannot_be_is_refused(made: Path, tmp_path: Path):
    for words in (["w7"], ["w7", "--second", " "], ["w7 " * 10, "--second", "w5"]):
        done = verb("run", made / "bundle", "--task", "qa", *words)
        assert isinstance(done.exception, EdgepeftError) and "passage" in str(done.exception), words
    with pytest.raises(UnreadableRow, match="row 1: the question's 10 tokens leave 3 of 16"):  # what HTTP says
        Runtime(made / "bundle").predict("qa", [("w7", "w5"), ("w7 " * 10, "w5")])
    odd = tmp_path / "odd.jsonl"
    answers = {"text": ["w5"], "answer_start": [3]}
    odd.write_text(json.dumps({"question": "w7", "context": "w5 w6", "answers": answers}) + "\n")
    done = verb("eval", made / "bundle", "--task", "qa", "--data", odd)
    assert isinstance(done.exception, EdgepeftError) and 'odd.jsonl:1: at 3 of the passage stands "w6"' in str(
        done.exception
    )


@pytest.mark.parametrize("task", ["qa", "parts", "prompted"])
def test_transformers_pipeline_answers_by_the_merged_model_as_the_bundle(made: Path, tmp_path: Path, task: str):
    """``qa`` may say that there is no answer, by a threshold."""
    folder, bundle = tmp_path / "plain", made / "bundle"
    assert verb("merge", bundle, "--task", task, "--out", folder).exit_code == 0
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["BertForQuestionAnswering"]
    peer = optimum_class("ORTModelForQuestionAnswering")
    from transformers import AutoTokenizer, pipeline

    tokenizer = AutoTokenizer.from_pretrained(folder, cls_token="[CLS]")
    asked = pipeline("question-answering", model=peer.from_pretrained(folder), tokenizer=tokenizer)
    source = random.Random(7)  # of one window, and of different words: the pipeline adds up spans of the same text
    passages = [source.sample([f"w{i}" for i in range(10, 20)], 6) for _ in range(24)]
    asked_of = [("w7 w8", " ".join(["😀", "w5 w6", *words] if i % 2 else words)) for i, words in enumerate(passages)]
    manner = {"max_answer_len": 30, "handle_impossible_answer": task == "qa"}
    answers, none = Runtime(bundle).predict(task, asked_of), 0
    for (question, passage), answer in zip(asked_of, answers, strict=True):
        theirs, ours = asked(question=question, context=passage, **manner), answer.as_json()
        assert theirs["answer"] == ours["text"]
        if ours["answered"]:
            assert (theirs["start"], theirs["end"]) == (ours["start"], ours["end"])
        if task != "qa":  # where the threshold stands among what probabilities are shared by
            assert theirs["score"] == pytest.approx(ours["score"], abs=1e-4)
        none += not ours["answered"]
    assert 0 < none < 24 if task == "qa" else none == 0


def test_windows_of_the_merged_model_are_searched_as_run_qa_does(made: Path, tmp_path: Path):
    assert verb("merge", made / "bundle", "--task", "qa", "--out", tmp_path / "plain").exit_code == 0
    peer = optimum_class("ORTModelForQuestionAnswering")
    from transformers import AutoTokenizer

    model, tokenizer = peer.from_pretrained(tmp_path / "plain"), AutoTokenizer.from_pretrained(tmp_path / "plain")
    cut = {"truncation": "only_second", "max_length": 16, "stride": 3, "return_overflowing_tokens": True}
    for before in (0, 9, 30):
        for found in ("w5 w6", "w9"):
            passage = "w10 " * before + found + " w12" * 20
            given = tokenizer("w7 w8", passage, **cut, padding=True, return_offsets_mapping=True, return_tensors="pt")
            names = ("input_ids", "attention_mask", "token_type_ids")
            outputs = model(**{name: given[name] for name in names})
            starts, ends = outputs.start_logits.numpy(), outputs.end_logits.numpy()
            assert len(starts) > 1
            best, null = (-np.inf, 0, 0), min(starts[:, 0] + ends[:, 0])
            for window, (start, end) in enumerate(zip(starts, ends, strict=True)):
                own = [i for i, part in enumerate(given.sequence_ids(window)) if part == 1]
                places = [(start[i] + end[j], i, j) for i in own for j in own if i <= j < i + 30]
                score, i, j = max(places)
                span = given["offset_mapping"][window][i][0].item(), given["offset_mapping"][window][j][1].item()
                best = max(best, (score, *span))
            (answer,) = Runtime(made / "bundle").predict("qa", [("w7 w8", passage)])
            assert answer.value == (passage[best[1] : best[2]] if best[0] >= null else "")


def test_rows_and_answers_go_over_http(made: Path):
    asked = PredictRequest.model_validate({"text": "w7 w8", "second": "w12 w5 w6 w13"})
    fields = PredictRequest.model_validate({"fields": {"question": "w7 w8", "context": "w12 w5 w6 w13"}})
    one, other = (Runtime(made / "bundle").predict("qa", each.texts)[0].as_json() for each in (asked, fields))
    assert one == other
    body = Predictions(predictions=[one]).predictions[0]
    assert (body.text, body.answered, body.start, body.end) == ("w5 w6", True, 4, 9)
    answers = {"text": ["w5"], "answer_start": [0]}
    assert TuneRow.model_validate({"text": "q", "second": "w5", "label": answers}).in_file["label"] == answers


@pytest.mark.parametrize("task", ["qa", "prompted", "alone"])
def test_tuning_goes_on_where_training_ended(made: Path, tmp_path: Path, task: str):
    bundle = Path(shutil.copytree(made / "bundle", tmp_path / "bundle"))
    data, others = write(tmp_path / "more.jsonl", 120, 9), write(tmp_path / "others.jsonl", 40, 11)

    def score() -> float:
        found: float = shown("eval", bundle, "--task", task, "--data", others, "--json")["score"]
        return found

    was, asked = score(), ("--data", data, "--test", others, "--steps", 30, "--lr", "1e-2")
    shown("tune", bundle, "--task", task, *asked, "--json")
    entry = Bundle(bundle).entry(task)
    assert (entry.metrics["before"], entry.metrics["test"]) == pytest.approx((was, score()))
    assert task == "alone" or entry.metrics["test"] > was or was > 0.9
    assert "threshold" in entry.chosen and verb("verify", bundle).exit_code == 0


@pytest.mark.parametrize("task", ["parts", "prompted", "alone"])
def test_a_step_has_pytorchs_gradients(made: Path, backbone: Path, tmp_path: Path, task: str):
    opened = open_backbone(str(backbone))
    bundle, options = Bundle(made / "bundle"), TuneSettings(dropout=False, micro_batch=4)
    files = Files(write(tmp_path / "rows.jsonl", 40, 0, longest=60))
    run = TuningRun(bundle, from_task(bundle, task, files, options), options, tmp_path / "work", threads=1)
    delta, model = Delta.load(made / task, opened).double(), load_model(opened, "eager").double()
    chosen, rows = range(9), run.loop.rows["train"]
    inputs, targets = rows.batch(chosen)
    assert rows.per_row.max() > 1
    given = {name: torch.from_numpy(values) for name, values in inputs.items()}
    mask = np.random.default_rng(0).integers(0, 2, (*inputs["input_ids"].shape, 32)).astype(np.float32) * 2
    hidden = torch.from_numpy(~rows.readable(chosen))[..., None]

    def backward() -> dict[str, torch.Tensor]:
        delta.zero_grad()
        dropped = torch.from_numpy(mask).to(next(delta.parameters()).dtype)
        delta.head.dropout.forward = lambda states: states * dropped
        logits = delta.logits(model, given).masked_fill(hidden, -torch.inf)
        wanted = torch.from_numpy(targets)
        loss = (cross_entropy(logits[..., 0], wanted[:, 0]) + cross_entropy(logits[..., 1], wanted[:, 1])) / 2
        loss.backward()
        return {"loss": loss, **{name: p.grad for name, p in delta.tensors().items()}}

    exact = exactly(backward)
    found = run.engine.gradients(chosen, [mask])
    exact.pop("loss").require(np.float64(found.loss))
    for name, expected in exact.items():
        share = 1e-5 * float(np.abs(expected.value).max())  # as tests/conformance/test_gradients.py has it
        Exact(expected.value, expected.error + share).require(found.gradients[name], name)


@pytest.mark.slow
def test_eight_bit_weights_are_compared_on_rows(made: Path, backbone: Path, tmp_path: Path):
    rows = write(tmp_path / "rows.jsonl", 60, 7)
    asked = ("--weights", "int8", "--verify-data", rows, "--out", tmp_path / "int8")
    done = verb("export", "--backbone", backbone, "--delta", made / "qa", *asked, "--json")
    assert done.exit_code == 0, (done.output, done.exception)
    on = Bundle(tmp_path / "int8").entry("qa").verification.data
    assert on.metric == "f1" and on.rows == 60
    assert on.onnxruntime == pytest.approx(on.pytorch, abs=0.05)


def test_cost_and_fit_count_the_windows_of_a_passage_and_logits_for_all_of_their_tokens(made: Path):
    one = shown("cost", made / "bundle", "--task", "qa", "--length", 16, "--json")
    for question, words in (("w7", 20), ("w7", 60)):
        batch = (
            open_backbone(str(made / "bundle"))
            .encoder()
            .windows([Text(question, "w10 " * words)], 16, 16 // 3, second=True)
        )
        n, length = batch.per_text[0], 3 + 1 + words
        found = shown("cost", made / "bundle", "--task", "qa", "--length", length, "--json")
        # A question repeats in each window, which makes a few more of long passages.
        assert n - 2 - words // 20 <= found["token_rows"] <= n and found["tokens_each"] == 16
        assert found["product_flops"] == found["token_rows"] * one["product_flops"]
    asked = ("--profile", "rpi4", "--task", "qa", "--length", 64, "--batch", 4, "--json")
    fit = shown("fit", made / "bundle", *asked)
    rows, tokens = fit["read_as"]
    assert fit["taught_as"] == fit["read_as"] == [1 + -(-(64 - 16) // 11), 16]
    assert fit["inference"]["parts"]["logits"] == 4 * rows * tokens * 2 * 32  # start and end of every token
    assert fit["inference"]["parts"]["inputs"] == 4 * rows * tokens * 48
    assert fit["finetune"]["peak_bytes"] > 0
