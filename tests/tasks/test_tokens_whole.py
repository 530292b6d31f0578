"""A task that tags words from rows to answers: trained, exported, scored, merged, served and tuned."""

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
from optimum_classes import optimum_class
from tolerance import Exact, exactly
from torch.nn.functional import cross_entropy
from verbs import SMALL_ADAPTER, shown, verb

from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.source import open_backbone
from edgepeft.bundle.bundle import Bundle
from edgepeft.bundle.delta import Delta
from edgepeft.common.errors import BundleError, DataError, UsageError
from edgepeft.data.rows import read_rows
from edgepeft.data.words import Words, words_of
from edgepeft.graph.prune_last_layer import drop_unread_rows
from edgepeft.graph.splice import splice
from edgepeft.options.verbs import TuneSettings
from edgepeft.runtime.inputs import pack_tokens, unpack_tokens, write_rows
from edgepeft.runtime.runtime import Runtime
from edgepeft.runtime.session import open_session, run_session
from edgepeft.serve.schemas import Predictions, PredictRequest, TuneRow
from edgepeft.training.exporting.delta import export_delta
from edgepeft.tuning.target import Files, from_task
from edgepeft.tuning.tune import TuningRun

TAGS = ("B-LOC", "B-PER", "I-LOC", "I-PER", "O")
QUESTIONS = ["w5 w10 w6 w7", "😀 w5", "w11 w12", "w6 w7 w6 w7 w5 w13 w14 w15"]


def write(path: Path, n: int, seed: int) -> Path:
    """Rows in which w5 is a person and w6 w7 a place."""
    source, rows = random.Random(seed), []
    for _ in range(n):
        words, tags = list[str](), list[str]()
        for _ in range(source.randrange(2, 7)):
            draw = source.random()
            new = ["w5"] if draw < 0.2 else ["w6", "w7"] if draw < 0.4 else [f"w{source.randrange(10, 20)}"]
            words += new
            tags += {"w5": ["B-PER"], "w6": ["B-LOC", "I-LOC"]}.get(new[0], ["O"])
        rows.append({"words": words, "tags": tags})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def backbone(tiny: Callable[..., Path]) -> Path:
    return tiny("bert", mean=True)


@pytest.fixture(scope="module")
def made(backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``train.jsonl``, a delta trained on it, and a bundle of it, with a second task, a classification and a template."""
    folder = tmp_path_factory.mktemp("tokens")
    data = write(folder / "train.jsonl", 120, 0)
    asked = ("--task", "names", "--kind", "tokens", *SMALL_ADAPTER)
    length = ("--steps", 60, "--lr", "1e-2")
    done = verb("train", "--backbone", backbone, "--data", data, *asked, *length, "--out", folder / "names")
    assert done.exit_code == 0, (done.output, done.exception)
    (folder / "said").write_text(done.output)
    opened = open_backbone(str(backbone))
    others = {
        "parts": ("pfeiffer", {"bottleneck": 4}),
        "prompted": ("prompt-t", {"length": 4}),
        "alone": ("linear", {}),
    }
    deltas = [folder / "names", saved(random_delta(opened, "linear", "mood", ("bad", "good")), folder / "mood")]
    for name, (method, settings) in others.items():
        delta = random_delta(opened, method, name, TAGS, kind="tokens", settings=settings)
        deltas.append(saved(delta, folder / name))
    given = [word for delta in deltas for word in ("--delta", delta)]
    shown("export", "--backbone", backbone, *given, "--out", folder / "bundle", "--template", "bitfit", "--json")
    return folder


def test_training_learns_the_words_and_says_figures_and_baselines(made: Path):
    card = json.loads((made / "names" / "delta.json").read_text())
    assert (card["kind"], card["labels"], card["head"]) == ("tokens", list(TAGS), "tokens")
    assert card["head_reads"] == "tokens" and card["metrics"]["metric"] == "entity_f1"
    assert card["metrics"]["test"] > 0.8 and card["metrics"]["baselines"]["majority"]["test"] == 0
    assert card["metrics"]["baselines"]["linear head"]["test"] > 0.5
    said = " ".join((made / "said").read_text().split())
    for words in ("entity F1", "entity precision", "tag accuracy", "w6 w7 (LOC)"):
        assert words in said, words


@pytest.mark.parametrize("task", ["names", "parts", "prompted", "alone"])
def test_the_bundles_logits_are_pytorchs_for_every_token(made: Path, backbone: Path, task: str):
    delta, runtime = Delta.load(made / task, open_backbone(str(backbone))), Runtime(made / "bundle")
    model = load_model(open_backbone(str(backbone)), "eager").double()
    batch = runtime.bundle.encoder().encode(TEXTS[:20], 40).inputs
    given = {name: torch.from_numpy(values) for name, values in batch.items()}
    with torch.no_grad():
        expected = delta.double().logits(model, given).numpy() * batch["attention_mask"][..., None]
    found = runtime.logits(task, batch)
    assert found.shape == (20, batch["input_ids"].shape[1], 5)
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_answers_are_one_by_one_together_and_in_mixed_batches_the_same(made: Path):
    runtime = Runtime(made / "bundle")
    tasks = ["names", "parts", "mood", "prompted", "alone"]
    alone = {task: [runtime.predict(task, [text])[0] for text in QUESTIONS] for task in tasks}
    together = runtime.predict_all(tasks, QUESTIONS)
    assert runtime.structure("names") == runtime.structure("parts")
    asked = [(task, i) for i in range(len(QUESTIONS)) for task in tasks]
    mixed = runtime.predict_mixed([task for task, _ in asked], [QUESTIONS[i] for _, i in asked])
    for (task, i), answer in zip(asked, mixed, strict=True):
        for other in (answer, together[task][i]):
            same(other.as_json(), alone[task][i].as_json())  # type: ignore[union-attr]


def same(one: dict[str, Any], other: dict[str, Any]) -> None:
    spans = [[{**span, "score": 0} for span in each.get("spans", [])] for each in (one, other)]
    assert spans[0] == spans[1] and one.get("label") == other.get("label")
    scores = [[span["score"] for span in each.get("spans", [])] for each in (one, other)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-4)


def test_the_command_line_prints_spans_with_their_places(made: Path):
    line = verb("run", made / "bundle", "--task", "names", "😀 w5 w6 w7").stdout
    assert line.split("\t")[1] == "w5 (PER, 2-4), w6 w7 (LOC, 5-10)"
    (found,) = shown("run", made / "bundle", "--task", "names", "😀 w5", "--json")
    assert found["predictions"][0]["spans"][0] | {"score": 0} == {
        "start": 2, "end": 4, "label": "PER", "text": "w5", "score": 0,
    }  # fmt: skip
    assert "names" in verb("info", made / "bundle").stdout
    assert verb("verify", made / "bundle").exit_code == 0


def test_words_that_are_given_are_tagged_one_by_one(made: Path, tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"words": ["w5", "w10 w11", "w6", "w7"], "id": 3}) + "\n")
    found = json.loads(verb("run", made / "bundle", "--task", "names", "--input", path).stdout)
    assert found["id"] == 3 and found["text"] == "w5 w10 w11 w6 w7"
    one_by_one = Words(["w5", "w10", "w11", "w6", "w7"])
    (expected,) = Runtime(made / "bundle").predict("names", [one_by_one])
    tags = list(expected.as_json()["tags"])
    assert found["predictions"][0]["tags"] == tags[:2] + tags[3:]  # a word's tag is its first piece's


def test_a_text_that_is_cut_says_where(made: Path):
    (answer,) = Runtime(made / "bundle").predict("names", ["w10 " * 14 + "w5 w5"])
    assert answer.as_json()["unread"] == 14 * len("w10 ")  # 16 tokens, of which two are the tokenizer's own


def test_eval_has_the_figures_of_training_and_counts_what_is_cut(made: Path, tmp_path: Path):
    data = write(tmp_path / "rows.jsonl", 40, 5)
    found = shown("eval", made / "bundle", "--task", "names", "--data", data, "--json")
    assert found["metric"] == "entity_f1" and found["score"] == found["figures"]["entity_f1"] > 0.8
    assert set(found["by_class"]) == {"LOC", "PER"} and "entities_not_read" not in found["figures"]
    spans = tmp_path / "spans.jsonl"
    rows = list(read_rows(data, labels=False))
    kind = Bundle(made / "bundle").entry("names").task_kind
    tagged = read_rows(data, labels=True, label_of=kind.label_text)
    with spans.open("w") as file:
        for row, labelled in zip(rows, tagged, strict=True):
            ends = spans_of(row.sentence1, kind.expected(labelled))
            file.write(json.dumps({"text": str(row.sentence1), "spans": ends}) + "\n")
    again = shown("eval", made / "bundle", "--task", "names", "--data", spans, "--json")
    assert again["by_class"] == found["by_class"]
    long = tmp_path / "long.jsonl"
    long.write_text(json.dumps({"words": ["w10"] * 20 + ["w5"], "tags": ["O"] * 20 + ["B-PER"]}) + "\n")
    missed = shown("eval", made / "bundle", "--task", "names", "--data", long, "--json")
    assert (missed["figures"]["entity_recall"], missed["figures"]["entities_not_read"]) == (0, 1)
    path = tmp_path / "eval.json"
    path.write_text(json.dumps(found))
    assert verb("report", path, made / "names", "--out", tmp_path / "page").exit_code == 0
    assert "entity precision" in (tmp_path / "page" / "index.html").read_text()


def spans_of(text: str, told: list[str]) -> list[dict[str, Any]]:
    spans, done = [], 0
    for each in told:
        words, label = each[:-1].rsplit(" (", 1)
        done = text.index(words, done)
        spans.append({"start": done, "end": done + len(words), "label": label})
        done += len(words)
    return spans


def test_what_cannot_be_is_refused(made: Path, backbone: Path, tiny: Callable[..., Path], tmp_path: Path):
    odd = tmp_path / "odd.jsonl"
    odd.write_text(json.dumps({"words": ["w5"], "tags": ["B-ORG"]}) + "\n")
    done = verb("eval", made / "bundle", "--task", "names", "--data", odd)
    assert isinstance(done.exception, DataError) and "odd.jsonl:1: task names has no label 'B-ORG'" in str(
        done.exception
    )
    data = ("--data", made / "train.jsonl")
    done = verb("tune", made / "bundle", "--task", "new", "--template", "bitfit", "--kind", "tokens", *data)
    assert isinstance(done.exception, UsageError) and "makes no tokens task" in str(done.exception)
    with pytest.raises(UsageError, match="answers for each token"):
        random_delta(open_backbone(str(backbone)), "linear", "x", ("a", "b"), head="tokens")
    with pytest.raises(UsageError, match="has a decoder"):
        random_delta(open_backbone(str(tiny("t5"))), "lora", "x", TAGS, kind="tokens")
    asked = ("--task", "t", "--kind", "tokens", "--method", "linear", "--head", "linear", "--out", tmp_path / "t")
    done = verb("train", "--backbone", backbone, *data, *asked)
    assert isinstance(done.exception, UsageError) and "needs the head 'tokens'" in str(done.exception)


@pytest.mark.parametrize("task", ["names", "prompted"])
def test_the_merged_model_is_one_for_token_classification(made: Path, tmp_path: Path, task: str):
    assert verb("merge", made / "bundle", "--task", task, "--out", tmp_path / "plain").exit_code == 0
    config = json.loads((tmp_path / "plain" / "config.json").read_text())
    assert config["architectures"] == ["BertForTokenClassification"] and config["id2label"]["1"] == "B-PER"
    peer = optimum_class("ORTModelForTokenClassification")
    from transformers import AutoTokenizer, pipeline

    model = peer.from_pretrained(tmp_path / "plain")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "plain")
    asked = pipeline("token-classification", model=model, tokenizer=tokenizer, aggregation_strategy="simple")
    for answer, theirs in zip(Runtime(made / "bundle").predict(task, QUESTIONS), asked(QUESTIONS), strict=True):
        expected = [(each["start"], each["end"], each["entity_group"]) for each in theirs]
        assert [(span.start, span.end, span.label) for span in answer.spans] == expected  # type: ignore[attr-defined]
        scores = [span.score for span in answer.spans]  # type: ignore[attr-defined]
        assert scores == pytest.approx([each["score"] for each in theirs], abs=1e-4)


@pytest.mark.parametrize("task", ["names", "prompted", "alone"])
def test_tuning_goes_on_where_training_ended(made: Path, tmp_path: Path, task: str):
    bundle = Path(shutil.copytree(made / "bundle", tmp_path / "bundle"))
    data, others = write(tmp_path / "more.jsonl", 160, 9), write(tmp_path / "others.jsonl", 40, 11)

    def score() -> float:
        found: float = shown("eval", bundle, "--task", task, "--data", others, "--json")["score"]
        return found

    was, asked = score(), ("--data", data, "--test", others, "--steps", 40, "--lr", "1e-2")
    shown("tune", bundle, "--task", task, *asked, "--json")
    entry = Bundle(bundle).entry(task)
    assert (entry.metrics["before"], entry.metrics["test"]) == pytest.approx((was, score()))
    assert entry.metrics["test"] > was or was > 0.95
    assert verb("verify", bundle).exit_code == 0


def test_rows_and_answers_go_over_http(made: Path):
    (answer,) = Runtime(made / "bundle").predict("names", ["😀 w5"])
    body = Predictions(predictions=[answer.as_json()]).predictions[0]
    assert body.spans is not None and (body.spans[0].start, body.spans[0].label) == (2, "PER")
    row = TuneRow.model_validate({"text": "w5", "label": [{"start": 0, "end": 2, "label": "PER"}]})
    assert row.in_file["label"] == [{"start": 0, "end": 2, "label": "PER"}]
    assert TuneRow.model_validate({"text": "w5", "label": ["B-PER"]}).in_file["label"] == ["B-PER"]


def test_words_are_taken_over_http_as_they_are(made: Path):
    (read,) = PredictRequest.model_validate({"words": ["w5", "w6 w7", "w8."]}).texts
    own, _, _ = Runtime(made / "bundle").predict("names", [read, "w5 w6 w7 w8.", Words(["w5", "w6 w7", "w8."])])
    assert isinstance(read[0], Words) and words_of(read[0]) == ((0, 2), (3, 8), (9, 12))
    (again,) = Runtime(made / "bundle").predict("names", [Words(["w5", "w6 w7", "w8."])])
    assert own.as_json() == again.as_json()


@pytest.mark.parametrize(
    "body",
    [
        {"words": []},
        {"words": ["w5", " "]},
        {"words": "w5"},
        {"words": ["w5", 6]},
        {"words": ["w5"], "text": "w5"},
        {"words": ["w5"], "second": "w5"},
        {"rows": [{"words": ["w5"], "fields": {"a": "b"}}]},
    ],
    ids=str,
)
def test_words_that_are_none_are_refused_over_http(body: Any):
    with pytest.raises(ValueError, match="words"):
        PredictRequest.model_validate(body)


@pytest.mark.parametrize("task", ["parts", "prompted"])
def test_a_step_has_pytorchs_gradients(made: Path, backbone: Path, tmp_path: Path, task: str):
    opened = open_backbone(str(backbone))
    bundle, options = Bundle(made / "bundle"), TuneSettings(dropout=False, micro_batch=4)
    files = Files(write(tmp_path / "rows.jsonl", 40, 0))
    run = TuningRun(bundle, from_task(bundle, task, files, options), options, tmp_path / "work", threads=1)
    delta, model = Delta.load(made / task, opened).double(), load_model(opened, "eager").double()
    chosen = range(11)
    inputs, targets = run.loop.rows["train"].batch(chosen)
    given = {name: torch.from_numpy(values) for name, values in inputs.items()}
    mask = np.random.default_rng(0).integers(0, 2, (*targets.shape, 32)).astype(np.float32) * 2

    def backward() -> dict[str, torch.Tensor]:
        delta.zero_grad()
        dropped = torch.from_numpy(mask).to(next(delta.parameters()).dtype)
        delta.head.dropout.forward = lambda hidden: hidden * dropped
        logits = delta.logits(model, given)
        loss = cross_entropy(logits.flatten(0, 1), torch.from_numpy(targets).flatten())
        loss.backward()
        return {"loss": loss, **{name: p.grad for name, p in delta.tensors().items()}}

    exact = exactly(backward)
    found = run.engine.gradients(chosen, [mask])
    exact.pop("loss").require(np.float64(found.loss))
    for name, expected in exact.items():
        share = 1e-5 * float(np.abs(expected.value).max())  # as tests/conformance/test_gradients.py has it
        Exact(expected.value, expected.error + share).require(found.gradients[name], name)


def test_packing_drops_padding_on_any_side_and_unpacking_puts_it_back():
    mask = np.array([[0, 1, 1, 0], [1, 1, 1, 1], [1, 0, 0, 0]])
    values = np.arange(24.0).reshape(3, 4, 2)
    own = pack_tokens(values, mask, 0, -1.0)
    assert own[:, 0].tolist() == [2, 4, 8, 10, 12, 14, 16]
    assert (unpack_tokens(own, mask) == values * mask[..., None]).all()
    prompted = pack_tokens(values, mask, 2, -1.0)
    assert prompted[:, 0].tolist() == [-1, -1, 2, 4, -1, -1, 8, 10, 12, 14, -1, -1, 16]
    assert (unpack_tokens(prompted, mask) == values * mask[..., None]).all()


def test_a_graph_that_gives_other_logits_than_the_kind_has_is_refused():
    with pytest.raises(BundleError, match="logits of 4 tokens for 5 in 2 rows"):
        unpack_tokens(np.zeros((4, 3)), np.array([[1, 1, 1], [1, 1, 0]]))
    with pytest.raises(BundleError, match="needs logits of each token, and its graph gives them of each row"):
        write_rows(np.zeros((2, 3, 5)), [0], np.zeros((1, 5)))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spartan", "bitfit", "prompt-r"])
def test_the_head_reads_what_a_method_makes_of_the_last_layer(backbone: Path, method: str):
    """SPARTAN adapts the very value that the head reads."""
    opened = open_backbone(str(backbone))
    settings = {"length": 3} if method == "prompt-r" else {}
    delta = random_delta(opened, method, "x", TAGS, kind="tokens", settings=settings)
    architecture = opened.architecture
    graph = architecture.graph(opened.checkpoint)
    model = splice(graph, export_delta(delta, opened), architecture.bindings, opened.checkpoint)
    drop_unread_rows(model)
    batch = opened.encoder().encode(TEXTS[:9], 40).inputs
    given = {name: torch.from_numpy(values) for name, values in batch.items()}
    with torch.no_grad():
        expected = delta.logits(load_model(opened, "eager"), given).numpy() * batch["attention_mask"][..., None]
    found = run_session(open_session(model, opened.folder, 1), "logits", batch)
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.slow
def test_eight_bit_weights_keep_the_decisions(made: Path, backbone: Path, tmp_path: Path):
    rows = write(tmp_path / "rows.jsonl", 60, 7)
    asked = ("--weights", "int8", "--verify-data", rows, "--out", tmp_path / "int8")
    done = verb("export", "--backbone", backbone, "--delta", made / "names", *asked, "--json")
    assert done.exit_code == 0, done.output
    on = Bundle(tmp_path / "int8").entry("names").verification.data
    assert on.metric == "entity_f1" and on.rows == 60
    assert on.onnxruntime == pytest.approx(on.pytorch, abs=0.05)
