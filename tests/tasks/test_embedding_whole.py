"""An embedding from pairs to vectors: trained, exported, written, scored, tuned, mixed with others and merged."""

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
from tolerance import Exact, error_beside, exactly
from torch.nn.functional import cosine_similarity, normalize
from verbs import SMALL_ADAPTER, verb

from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.source import open_backbone
from edgepeft.bundle.bundle import Bundle
from edgepeft.bundle.delta import Delta
from edgepeft.common.errors import DataError, UsageError
from edgepeft.options.verbs import TuneSettings
from edgepeft.runtime.runtime import Runtime
from edgepeft.training.exporting.bundle import export_bundle
from edgepeft.tuning.target import Files, from_task
from edgepeft.tuning.tune import TuningRun

WORDS = [f"w{i}" for i in range(5, 13)]
MOVED = ["w5 w6", "w9", "w12 w7 w5 w8"]


def done(*words: object) -> Any:
    result = verb(*words)
    assert result.exit_code == 0, (result.output, result.exception)
    return result


def shown(*words: object) -> Any:
    return json.loads(done(*words, "--json").stdout)


def write(path: Path, n: int, seed: int, *, scored: bool = True) -> Path:
    """Pairs of three words each; the number is how many words they share, and without numbers they share two."""
    source = random.Random(seed)
    rows = []
    for _ in range(n):
        shared = source.randrange(4) if scored else 2
        first = source.sample(WORDS, 3)
        second = first[:shared] + source.sample([word for word in WORDS if word not in first], 3 - shared)
        texts = [" ".join(source.sample(words, 3)) for words in (first, second)]
        row = {"sentence1": texts[0], "sentence2": texts[1]}
        rows.append(row | ({"label": shared} if scored else {}))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def made(tiny: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Deltas ``near``, on pairs with numbers, and ``found``, on pairs without, and a bundle of them with a label task."""

    def make(folder: Path) -> None:
        backbone = tiny("bert", mean=True)
        asked = ("--kind", "embedding", *SMALL_ADAPTER)
        for task, scored in (("near", True), ("found", False)):
            data = write(folder / f"{task}.jsonl", 160, 0, scored=scored)
            length = ("--steps", 40, "--lr", "1e-2", "--task", task, "--out", folder / task)
            found = verb("train", "--backbone", backbone, "--data", data, *asked, *length)
            assert found.exit_code == 0, (found.output, found.exception)
            (folder / f"{task}.said").write_text(found.output)
        saved(
            random_delta(open_backbone(str(backbone)), "pfeiffer", "mood", settings={"bottleneck": 4}), folder / "mood"
        )
        deltas = [part for task in ("near", "found", "mood") for part in ("--delta", folder / task)]
        done("export", "--backbone", backbone, *deltas, "--out", folder / "bundle")

    return made_once(tmp_path_factory, "embedding-whole", make)


def test_training_reports_the_frozen_backbones_vectors_beside_its_own(made: Path):
    for task, metric in (("near", "spearman"), ("found", "recall@1")):
        card = json.loads((made / task / "delta.json").read_text())
        facts = (card["kind"], card["head"], card["pairs"], card["labels"], card["metrics"]["metric"])
        assert facts == ("embedding", "vector", False, None, metric)
        assert card["chosen"] == {"dims": 32, "scored": task == "near"}
        assert list(card["metrics"]["baselines"]) == ["frozen backbone"]
        said = " ".join((made / f"{task}.said").read_text().split())
        assert f"{metric} 0." in said and "frozen backbone" in said and "of the head" in said
    near = json.loads((made / "near" / "delta.json").read_text())["metrics"]
    assert near["test"] > near["baselines"]["frozen backbone"]["test"]


def test_vectors_are_pytorchs_pooled_and_of_length_one(made: Path, tmp_path: Path):
    path, backbone = tmp_path / "x.npy", open_backbone(str(made / "bundle"))
    done("run", made / "bundle", "--task", "near", *MOVED, "--out", path)
    found = np.load(path)
    assert (found.shape, found.dtype) == ((3, 32), np.float32)
    inputs = {
        name: torch.from_numpy(v) for name, v in backbone.encoder().encode(list(map(TextOf, MOVED)), 16).inputs.items()
    }
    delta, model = Delta.load(made / "near", backbone), load_model(backbone, "eager")
    own = delta.own_tensors(model)
    with torch.no_grad():
        expected = normalize(delta._pooled(model, inputs, own)).numpy()
    np.testing.assert_allclose(found, expected, atol=error_beside(made / "bundle"))
    done("run", made / "bundle", "--task", "near", *MOVED, "--out", path, "--dims", 8)
    short = found[:, :8] / np.linalg.norm(found[:, :8], axis=1, keepdims=True)
    np.testing.assert_allclose(np.load(path), short, atol=1e-6)
    printed = shown("run", made / "bundle", "--task", "near", *MOVED)
    vectors = np.array([each["predictions"][0]["vector"] for each in printed], np.float32)
    np.testing.assert_array_equal(vectors, found)
    (pair,) = shown("run", made / "bundle", "--task", "near", MOVED[0], "--second", MOVED[1])
    assert pair["predictions"][0]["cosine"] == pytest.approx(float(found[0] @ found[1]), abs=1e-5)


def TextOf(text: str) -> Any:
    from edgepeft.backbones.tokens import Text

    return Text(text)


REFUSED = [
    (("--task", "mood", "--out", "x.npy"), "--out is of vectors, and task mood answers labels"),
    (("--task", "near", "--out", "x.csv"), "name a file that ends so"),
    (("--out", "x.npy"), "--out takes one task's vectors, and these are 3 tasks"),
    (("--task", "near", "--dims", "33"), "--dims 33: the vectors of task near have 32"),
]


@pytest.mark.parametrize(("asked", "said"), REFUSED)
def test_what_run_cannot_write_is_said_before_anything_runs(made: Path, asked: tuple[str, ...], said: str):
    refused = verb("run", made / "bundle", "w5", *asked)
    assert isinstance(refused.exception, UsageError) and said in str(refused.exception)


def test_eval_has_the_figures_of_training_and_a_report_shows_them(made: Path, tmp_path: Path):
    data, others = write(tmp_path / "rows.jsonl", 40, 5), write(tmp_path / "pairs.jsonl", 40, 6, scored=False)
    found = shown("eval", made / "bundle", "--task", "near", "--data", data)
    rows = [json.loads(line) for line in data.read_text().splitlines()]
    with Runtime(made / "bundle") as runtime:
        one, two = (
            torch.from_numpy(np.stack([answer.vector for answer in runtime.predict("near", [r[name] for r in rows])]))
            for name in ("sentence1", "sentence2")
        )
    from scipy import stats

    expected = stats.spearmanr(cosine_similarity(one, two), [row["label"] for row in rows]).statistic
    assert found["metric"] == "spearman" and found["score"] == pytest.approx(expected, abs=1e-4)
    recalls = shown("eval", made / "bundle", "--task", "near", "--data", others)  # pairs of the other form
    assert list(recalls["figures"]) == ["recall@1", "recall@5", "recall@10"]
    assert recalls["worst"][0]["answer"] >= recalls["worst"][-1]["answer"] > 1
    path = tmp_path / "eval.json"
    path.write_text(json.dumps(found))
    done("report", path, made / "near", "--out", tmp_path / "page")
    page = next(tmp_path.glob("page*")) if (tmp_path / "page").is_file() else tmp_path / "page" / "index.html"
    assert "frozen backbone" in page.read_text()
    refused = verb("eval", made / "bundle", "--task", "near", "--data", data, "--metric", "recall@1")
    assert isinstance(refused.exception, UsageError)
    data.write_text(json.dumps({"sentence1": "w5", "sentence2": "w6", "label": "close"}) + "\n")
    refused = verb("eval", made / "bundle", "--task", "near", "--data", data)
    assert isinstance(refused.exception, DataError) and "rows.jsonl:1" in str(refused.exception)


def test_many_tasks_answer_one_batch_as_they_do_alone(made: Path):
    texts, tasks = [*MOVED, "w6 w5", "w8"], ["near", "found", "mood", None, "near"]
    with Runtime(made / "bundle") as runtime:
        for answer, task, text in zip(runtime.predict_mixed(tasks, texts), tasks, texts, strict=True):
            if task is not None:
                alone = runtime.predict(task, [text])[0]
                np.testing.assert_allclose(answer.logits, alone.logits, atol=error_beside(made / "bundle"))
        (of_all,) = zip(*runtime.predict_all(["near", "found"], [MOVED[0]]).values(), strict=True)
        for answer, task in zip(of_all, ("near", "found"), strict=True):
            alone = runtime.predict(task, [MOVED[0]])[0]
            np.testing.assert_allclose(answer.vector, alone.vector, atol=error_beside(made / "bundle"))


@pytest.mark.parametrize(("task", "metric"), [("near", "spearman"), ("found", "recall@1")])
def test_tuning_goes_on_with_the_same_loss(made: Path, tmp_path: Path, task: str, metric: str):
    bundle = Path(shutil.copytree(made / "bundle", tmp_path / "bundle"))
    data = write(tmp_path / "more.jsonl", 160, 9, scored=task == "near")
    tuned = shown("tune", bundle, "--task", task, "--data", data, "--steps", 40, "--lr", "1e-2")
    entry = Bundle(bundle).entry(task)
    assert tuned["replaced"] and entry.kind == "embedding" and entry.metrics["metric"] == metric
    assert entry.chosen == {"dims": 32, "scored": task == "near"}
    assert entry.metrics["test"] >= entry.metrics["before"]
    assert verb("verify", bundle).exit_code == 0


@pytest.mark.parametrize("scored", [True, False])
def test_a_step_in_parts_has_pytorchs_gradients(tiny: Callable[..., Path], tmp_path: Path, scored: bool):
    backbone = open_backbone(str(tiny("bert", mean=True)))
    delta = random_delta(backbone, "pfeiffer", "near", None, kind="embedding", settings={"bottleneck": 4})
    path = saved(delta, tmp_path / "d")
    export_bundle(backbone, [path], tmp_path / "bundle", texts=TEXTS[:9])
    bundle, options = Bundle(tmp_path / "bundle"), TuneSettings(micro_batch=3)
    files = Files(write(tmp_path / "rows.jsonl", 40, 0, scored=scored))
    run = TuningRun(bundle, from_task(bundle, "near", files, options), options, tmp_path / "work", threads=1)
    delta, model = Delta.load(path, backbone).double(), load_model(backbone, "eager").double()
    chosen = range(11)  # of which three are computed at once
    inputs, targets = run.loop.rows["train"].batch(chosen)
    given = {name: torch.from_numpy(values) for name, values in inputs.items()}

    def backward() -> dict[str, torch.Tensor]:
        delta.zero_grad()
        both = delta.logits(model, given).unflatten(0, (11, 2)) * 20**0.5
        numbers = torch.from_numpy(targets)
        if scored:
            paired = [*zip((both[:, 0] * both[:, 1]).sum(-1), numbers, strict=True)]
            terms = [(a - b).exp() for a, i in paired for b, j in paired if i < j]
            loss = (1 + torch.stack(terms).sum()).log()
        else:
            loss = torch.nn.functional.cross_entropy(both[:, 0] @ both[:, 1].T, torch.arange(11))
        loss.backward()
        return {"loss": loss, **{name: p.grad for name, p in delta.tensors().items()}}

    exact = exactly(backward)
    found = run.engine.gradients(chosen, [])
    exact.pop("loss").require(np.float64(found.loss))
    for name, expected in exact.items():
        share = 1e-5 * float(np.abs(expected.value).max())  # as tests/conformance/test_gradients.py has it
        Exact(expected.value, expected.error + share).require(found.gradients[name], name)


def test_eight_bits_keep_the_directions_and_the_score_is_told(made: Path, tiny: Callable[..., Path], tmp_path: Path):
    asked = ("--delta", made / "near", "--weights", "int8", "--verify-data", made / "near.jsonl")
    done("export", "--backbone", tiny("bert", mean=True), *asked, "--out", tmp_path / "int8")
    stated = Bundle(tmp_path / "int8").entry("near").verification.data
    assert (stated.rows, stated.metric, stated.agreement) == (160, "spearman", 1.0)
    assert stated.onnxruntime == pytest.approx(stated.pytorch, abs=0.02) and stated.onnxruntime != stated.pytorch
    vectors = [
        Runtime(folder, cache=False).predict("near", MOVED[:1])[0].vector
        for folder in (tmp_path / "int8", made / "bundle")
    ]
    assert 0.95 < float(vectors[0] @ vectors[1]) < 1 - 1e-6
    assert verb("verify", tmp_path / "int8").exit_code == 0


@pytest.mark.parametrize(("task", "mean"), [("near", True), ("prompted", True), ("first", False)])
def test_pooled_states_of_the_merged_model_are_the_bundles_vectors(made: Path, tmp_path: Path, task: str, mean: bool):
    bundle, backbone = made / "bundle", made / "bundle"
    if task != "near":  # a prompt in front of the text; a backbone that is read at its first token
        backbone = Path(shutil.copytree(made / "bundle", tmp_path / "backbone"))
        shutil.rmtree(backbone / "tasks")
        (backbone / "edgepeft.json").unlink()
        (backbone / "1_Pooling").mkdir(exist_ok=True)
        (backbone / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": mean}))
        method, settings = ("prompt-t", {"length": 4}) if mean else ("pfeiffer", {"bottleneck": 4})
        opened = open_backbone(str(backbone))
        delta = saved(random_delta(opened, method, task, None, kind="embedding", settings=settings), tmp_path / "delta")
        bundle = tmp_path / "bundle"
        export_bundle(opened, [delta], bundle, texts=TEXTS[:9])
    folder = tmp_path / "plain"
    done("merge", bundle, "--task", task, "--out", folder)
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["BertModel"]
    noted = json.loads((folder / "1_Pooling" / "config.json").read_text())
    assert (noted["pooling_mode_mean_tokens"], noted["pooling_mode_cls_token"]) == (mean, not mean)
    peer = optimum_class("ORTModelForFeatureExtraction")
    from transformers import AutoTokenizer, pipeline

    model, tokenizer = peer.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    texts, asked = MOVED, pipeline("feature-extraction", model=model, tokenizer=tokenizer)
    vectors = np.stack([answer.vector for answer in Runtime(bundle).predict(task, texts)])
    for states, vector in zip(asked(texts), vectors, strict=True):
        pooled = np.mean(states[0], axis=0) if mean else np.array(states[0][0])
        np.testing.assert_allclose(pooled / np.linalg.norm(pooled), vector, rtol=0, atol=error_beside(made / "bundle"))
    together = tokenizer(texts, padding=True, return_tensors="pt")  # with padding
    states, mask = model(**together).last_hidden_state.numpy(), together["attention_mask"].numpy()[..., None]
    pooled = (states * mask).sum(1) / mask.sum(1) if mean else states[:, 0]
    theirs = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
    np.testing.assert_allclose(theirs, vectors, rtol=0, atol=error_beside(made / "bundle"))


def test_a_decoder_gives_no_vectors(tiny: Callable[..., Path]):
    with pytest.raises(UsageError, match="use BERT or one of its kin"):
        random_delta(open_backbone(str(tiny("t5"))), "lora", "near", None, kind="embedding")


def test_fit_counts_both_texts_of_a_pair_while_it_is_learnt_from(made: Path):
    asked = ("--profile", "rpi4", "--length", 16, "--batch", 4, "--json")
    fit = json.loads(done("fit", made / "bundle", "--task", "near", *asked).stdout)
    assert (fit["read_as"], fit["taught_as"]) == ([1, 16], [2, 16])
    assert fit["inference"]["parts"]["inputs"] == 4 * 16 * 48
