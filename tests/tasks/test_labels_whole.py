"""A task of several labels from rows to answers: trained, exported, scored, merged, served and tuned."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from deltas import TEXTS, random_delta, saved
from once import made_once
from optimum_classes import optimum_class
from tolerance import Exact, exactly
from torch.nn.functional import binary_cross_entropy_with_logits
from verbs import SMALL_ADAPTER, shown, verb

from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.source import open_backbone
from edgepeft.bundle.bundle import Bundle
from edgepeft.bundle.delta import Delta
from edgepeft.common.errors import DataError, UsageError
from edgepeft.options.verbs import TuneSettings
from edgepeft.runtime.runtime import Runtime
from edgepeft.serve.schemas import Predictions, TuneRow
from edgepeft.training.exporting.bundle import export_bundle
from edgepeft.tuning.target import Files, from_task
from edgepeft.tuning.tune import TuningRun

NAMES = ("five", "seven", "six")


def write(path: Path, n: int, seed: int, names: tuple[str, ...] = NAMES) -> Path:
    """Rows that have a label where its word stands in them; every eighth has none."""
    source, words = random.Random(seed), dict(zip(NAMES, ("w5", "w7", "w6"), strict=True))
    rows = []
    for i in range(n):
        held = [name for name in names if i % 8 and source.random() < 0.5]
        text = [*(words[name] for name in held), *(f"w{source.randrange(10, 20)}" for _ in range(3))]
        source.shuffle(text)
        rows.append({"sentence1": " ".join(text), "label": held})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def made(tiny: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``train.jsonl``, a delta trained on it, and a bundle of it, with a template."""

    def make(folder: Path) -> None:
        data = write(folder / "train.jsonl", 160, 0)
        asked = ("--task", "words", "--kind", "labels", *SMALL_ADAPTER)
        length = ("--steps", 60, "--lr", "1e-2")
        backbone = tiny("bert", mean=True)
        done = verb("train", "--backbone", backbone, "--data", data, *asked, *length, "--out", folder / "words")
        assert done.exit_code == 0, (done.output, done.exception)
        (folder / "said").write_text(done.output)
        paths = ("--backbone", backbone, "--delta", folder / "words", "--out", folder / "bundle")
        shown("export", *paths, "--template", "bitfit", "--json")

    return made_once(tmp_path_factory, "labels-whole", make)


def test_training_learns_the_words_and_says_thresholds_and_figures(made: Path):
    card = json.loads((made / "words" / "delta.json").read_text())
    assert (card["kind"], card["labels"], card["metrics"]["metric"]) == ("labels", list(NAMES), "micro_f1")
    assert card["metrics"]["test"] > card["metrics"]["baselines"]["majority"]["test"]
    assert "linear head" in card["metrics"]["baselines"] and len(card["chosen"]["thresholds"]) == 3
    said = " ".join((made / "said").read_text().split())
    for words in ("micro F1", "over all rows' labels together", "exact match", "ranking loss"):
        assert words in said, words


def test_the_bundle_answers_as_the_delta_by_its_thresholds(made: Path):
    entry = Bundle(made / "bundle").entry("words")
    thresholds = json.loads((made / "words" / "delta.json").read_text())["chosen"]["thresholds"]
    assert (entry.kind, entry.chosen) == ("labels", {"thresholds": thresholds})
    texts = ["w5 w12 w6", "w11 w12", "w7"]
    (first, *_), answers = (Runtime(made / "bundle").predict("words", texts) for _ in range(2))
    for answer in answers:
        held = [name for name, t in zip(NAMES, thresholds, strict=True) if answer.scores[name] > t]
        assert answer.as_json()["labels"] == held
    assert Predictions(predictions=[first.as_json()]).predictions[0].labels == first.value
    lines = verb("run", made / "bundle", "--task", "words", *texts).stdout.splitlines()
    assert [line.split("\t")[1] for line in lines] == [", ".join(answer.value) or "-" for answer in answers]


def test_eval_on_the_same_rows_has_the_figures_of_training(made: Path, tmp_path: Path):
    data = write(tmp_path / "rows.jsonl", 40, 5)
    found = shown("eval", made / "bundle", "--task", "words", "--data", data, "--json")
    assert found["metric"] == "micro_f1" and found["score"] == found["figures"]["micro_f1"]
    assert isinstance(found["worst"][0]["label"], list) and isinstance(found["worst"][0]["answer"], list)
    path = tmp_path / "eval.json"
    path.write_text(json.dumps(found))
    assert verb("report", path, made / "words", "--out", tmp_path / "page").exit_code == 0
    page = (
        (tmp_path / "page" / "index.html").read_text()
        if (tmp_path / "page").is_dir()
        else (tmp_path / "page").read_text()
    )
    assert "ranking loss" in page
    table = tmp_path / "rows.csv"
    rows = [json.loads(line) for line in data.read_text().splitlines()]
    table.write_text("sentence1,label\n" + "".join(f"{row['sentence1']},{'|'.join(row['label'])}\n" for row in rows))
    again = shown("eval", made / "bundle", "--task", "words", "--data", table, "--label-separator", "|", "--json")
    assert again["score"] == found["score"]


def test_what_is_wrong_in_rows_is_named(made: Path, tmp_path: Path):
    odd = tmp_path / "odd.jsonl"
    for label, said in (["other"], "task words has no label 'other'"), ("five", "the label is a list of names"):
        odd.write_text(json.dumps({"sentence1": "w5", "label": label}) + "\n")
        done = verb("eval", made / "bundle", "--task", "words", "--data", odd)
        assert (
            isinstance(done.exception, DataError)
            and said in str(done.exception)
            and "odd.jsonl:1" in str(done.exception)
        )
    refused = verb("tune", made / "bundle", "--task", "words", "--data", made / "train.jsonl", "--kind", "labels")
    assert isinstance(refused.exception, UsageError) and "without --template" in str(refused.exception)
    refused = verb("tune", made / "bundle", "--task", "words", "--data", made / "train.jsonl", "--balanced")
    assert "a task of several labels has none" in str(refused.exception)


def test_the_merged_model_answers_as_transformers_pipeline_has_it(made: Path, tmp_path: Path):
    assert verb("merge", made / "bundle", "--task", "words", "--out", tmp_path / "plain").exit_code == 0
    config = json.loads((tmp_path / "plain" / "config.json").read_text())
    assert config["problem_type"] == "multi_label_classification"
    peer = optimum_class("ORTModelForSequenceClassification")
    from transformers import AutoTokenizer, pipeline

    model = peer.from_pretrained(tmp_path / "plain")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "plain")
    texts = ["w5 w12 w6", "w11 w12", "w7"]
    theirs = pipeline("text-classification", model=model, tokenizer=tokenizer, top_k=None)(texts)
    for answer, expected in zip(Runtime(made / "bundle").predict("words", texts), theirs, strict=True):
        assert answer.scores == pytest.approx({each["label"]: each["score"] for each in expected}, abs=1e-5)


def test_tuning_goes_on_and_chooses_thresholds_again(made: Path, tmp_path: Path):
    bundle = Path(shutil.copytree(made / "bundle", tmp_path / "bundle"))
    before, data = Bundle(bundle).entry("words").chosen, write(tmp_path / "more.jsonl", 160, 9)
    others = write(tmp_path / "others.jsonl", 40, 11)

    def score() -> float:
        found: float = shown("eval", bundle, "--task", "words", "--data", others, "--json")["score"]
        return found

    was, asked = score(), ("--data", data, "--test", others, "--steps", 60, "--lr", "1e-2")
    found = shown("tune", bundle, "--task", "words", *asked, "--json")
    entry = Bundle(bundle).entry("words")
    assert found["replaced"] and entry.kind == "labels" and entry.chosen != before
    # Each by its own thresholds.
    assert (entry.metrics["before"], entry.metrics["test"]) == pytest.approx((was, score()))
    assert verb("verify", bundle).exit_code == 0
    row = TuneRow.model_validate({"text": "w5", "label": ["five"]})
    assert row.label == ["five"]
    new = ("--template", "bitfit", "--kind", "labels", "--task", "new", "--steps", 60, "--lr", "1e-2", "--seed", 1)
    assert shown("tune", bundle, *new, "--data", data, "--json")["entry"]["kind"] == "labels"


def test_a_step_has_pytorchs_gradients(tiny: Callable[..., Path], tmp_path: Path):
    backbone = open_backbone(str(tiny("bert", mean=True)))
    path = saved(
        random_delta(backbone, "pfeiffer", "words", NAMES, kind="labels", settings={"bottleneck": 4}), tmp_path / "d"
    )
    export_bundle(backbone, [path], tmp_path / "bundle", texts=TEXTS[:9])
    bundle, options = Bundle(tmp_path / "bundle"), TuneSettings(dropout=False, micro_batch=4)
    files = Files(write(tmp_path / "rows.jsonl", 40, 0))
    run = TuningRun(bundle, from_task(bundle, "words", files, options), options, tmp_path / "work", threads=1)
    delta, model = Delta.load(path, backbone).double(), load_model(backbone, "eager").double()
    chosen = range(11)
    inputs, targets = run.loop.rows["train"].batch(chosen)
    given = {name: torch.from_numpy(values) for name, values in inputs.items()}

    def backward() -> dict[str, torch.Tensor]:
        delta.zero_grad()
        loss = binary_cross_entropy_with_logits(delta.logits(model, given), torch.from_numpy(targets).double())
        loss.backward()
        return {"loss": loss, **{name: p.grad for name, p in delta.tensors().items()}}

    exact = exactly(backward)
    masks = [np.ones((len(chosen), width), np.float32) for _, width in run.target.facts.dropouts]
    found = run.engine.gradients(chosen, masks)
    exact.pop("loss").require(np.float64(found.loss))
    for name, expected in exact.items():
        share = 1e-5 * float(np.abs(expected.value).max())  # as tests/conformance/test_gradients.py has it
        Exact(expected.value, expected.error + share).require(found.gradients[name], name)
