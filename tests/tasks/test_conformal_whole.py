"""Calibration and guarantees from rows to answers: trained, exported, asked, scored, reported, served and tuned."""

from __future__ import annotations

import json
import random
import shutil
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deltas import random_delta, saved
from once import made_once
from safetensors.numpy import load_file, save_file
from scipy.special import softmax
from verbs import SMALL_ADAPTER, shown, verb

from edgepeft.backbones.source import open_backbone
from edgepeft.bundle.bundle import Bundle
from edgepeft.bundle.card import EVALUATION_FILE
from edgepeft.cli._scores import say_notes
from edgepeft.common.errors import BundleError, UsageError
from edgepeft.data.training_loop.run import TrainingLoopResult
from edgepeft.runtime.runtime import Runtime
from edgepeft.serve.schemas import Predictions, TuneRequest

NAMES = ("five", "seven")
TEXTS = ["w5 w12 w6", "w11 w12", "w7", "w5 w7"]


def refused(error: type[Exception], *words: object) -> str:
    done = verb(*words)
    assert isinstance(done.exception, error), (done.output, done.exception)
    return str(done.exception)


def write(path: Path, n: int, seed: int, names: Sequence[Any] = NAMES) -> Path:
    """Rows that have the label of the word in them; of every fourth it is drawn, so that nobody can know."""
    source = random.Random(seed)
    rows = []
    for i in range(n):
        place = source.randrange(2)
        text = [("w5", "w7")[place], *(f"w{source.randrange(10, 20)}" for _ in range(3))]
        source.shuffle(text)
        rows.append({"sentence1": " ".join(text), "label": names[place if i % 4 else source.randrange(2)]})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


HOW = (*SMALL_ADAPTER, "--lr", "1e-2")


@pytest.fixture(scope="module")
def made(tiny: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``rows.jsonl``, a delta trained on it with 40 evaluation rows, a regression, and a bundle that guarantees 0.9."""

    def make(folder: Path) -> None:
        data, eval_ = write(folder / "rows.jsonl", 200, 0), write(folder / "eval.jsonl", 40, 3)
        backbone = tiny("bert", mean=True)
        asked = ("--data", data, "--eval", eval_, "--task", "words", "--steps", 60, "--out", folder / "words")
        done = verb("train", "--backbone", backbone, *HOW, *asked)
        assert done.exit_code == 0, (done.output, done.exception)
        saved(
            random_delta(open_backbone(str(backbone)), "bitfit", "numbers", None, kind="regression"), folder / "numbers"
        )
        (folder / "backbone").symlink_to(backbone)
        to = ("--delta", folder / "words", "--out", folder / "bundle", "--coverage", 0.9, "--json")
        shown("export", "--backbone", backbone, *to)

    return made_once(tmp_path_factory, "certainty-whole", make)


def export(made: Path, out: Path, *more: object, delta: str = "words") -> Any:
    return verb("export", "--backbone", made / "backbone", "--delta", made / delta, "--out", out, *more)


def test_the_card_has_temperature_and_errors_and_the_folder_the_rows_they_are_of(made: Path):
    card, rows = json.loads((made / "words" / "delta.json").read_text()), load_file(made / "words" / EVALUATION_FILE)
    assert card["metrics"]["n_eval"] == len(rows["logits"]) == len(rows["targets"]) == 40
    assert set(card["chosen"]) - {"temperature_bound"} == {"temperature", "ece"}
    labels = [json.loads(line)["label"] for line in (made / "eval.jsonl").read_text().splitlines()]
    assert [NAMES[i] for i in rows["targets"]] == labels
    # The rows' logits are those of the tensors in the folder: the metric of the card comes out.
    assert (rows["logits"].argmax(1) == rows["targets"]).mean() == pytest.approx(card["metrics"]["eval"])
    assert card["metrics"]["errors"]["calibration"]["temperature"] == card["chosen"]["temperature"]


def test_the_bundle_promises_what_was_asked_and_run_says_what_is_unsure(made: Path):
    card, rows = json.loads((made / "words" / "delta.json").read_text()), load_file(made / "words" / EVALUATION_FILE)
    entry = Bundle(made / "bundle").entry("words")
    temperature = card["chosen"]["temperature"]
    p = softmax(rows["logits"].astype(np.float64) / temperature, 1)[np.arange(40), rows["targets"]]
    # ceil(41 x 0.9) = 37th smallest of 1 - p.
    assert entry.chosen == {**card["chosen"], "coverage": 0.9, "threshold": pytest.approx(1 - np.sort(1 - p)[36])}
    answers = Runtime(made / "bundle").predict("words", TEXTS)
    for answer in answers:
        expected = softmax(np.array(answer.logits, np.float64) / temperature)
        assert [*answer.scores.values()] == pytest.approx(expected, abs=1e-6)
        assert answer.label == NAMES[int(np.argmax(answer.logits))]
        assert answer.unsure is bool((expected >= entry.chosen["threshold"]).sum() != 1)
        assert Predictions(predictions=[answer.as_json()]).predictions[0].unsure is answer.unsure
    assert {answer.unsure for answer in answers} == {True, False}
    lines = verb("run", made / "bundle", "--task", "words", *TEXTS).stdout.splitlines()
    for line, answer in zip(lines, answers, strict=True):
        score = f"{answer.score:.3f}" + (" unsure" if answer.unsure else "")
        assert line.split("\t")[:3] == ["words", answer.label, score]
    assert verb("verify", made / "bundle").exit_code == 0


def test_without_a_promise_nothing_is_unsure_and_probabilities_are_calibrated(made: Path, tmp_path: Path):
    assert export(made, tmp_path / "plain").exit_code == 0
    entry = Bundle(tmp_path / "plain").entry("words")
    assert "temperature" in entry.chosen and "threshold" not in entry.chosen
    (answer,) = Runtime(tmp_path / "plain").predict("words", TEXTS[0])
    assert "unsure" not in answer.as_json()
    # Added again, it guarantees something else, without another training.
    done = verb("add", tmp_path / "plain", made / "words", "--force", "--risk", 0.45)
    assert done.exit_code == 0, (done.output, done.exception)
    assert Bundle(tmp_path / "plain").entry("words").chosen["risk"] == 0.45
    assert "unsure (risk 0.45)" in " ".join(verb("info", tmp_path / "plain").stdout.split())
    assert shown("info", tmp_path / "plain", "--json")["tasks"][0]["promise"] == {"risk": 0.45}
    # A replacement that promises nothing is said to; and that which had no promise lost none.
    with pytest.warns(
        UserWarning, match=r"the task words promised a risk of 0\.45, .*--risk 0\.45` of a trained delta"
    ):
        verb("add", tmp_path / "plain", made / "words", "--force")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert verb("add", tmp_path / "plain", made / "words", "--force").exit_code == 0
    assert shown("info", tmp_path / "plain", "--json")["tasks"][0]["promise"] == {}


def test_eval_says_how_the_promise_is_kept_and_the_report_draws_it(made: Path, tmp_path: Path):
    data = write(tmp_path / "rows.jsonl", 60, 5)
    found = shown("eval", made / "bundle", "--task", "words", "--data", data, "--json")
    calibration = found["calibration"]
    rows = [json.loads(line) for line in data.read_text().splitlines()]
    answers = Runtime(made / "bundle").predict("words", [row["sentence1"] for row in rows])
    threshold = Bundle(made / "bundle").entry("words").chosen["threshold"]
    covered = [answer.scores[row["label"]] >= threshold for row, answer in zip(rows, answers, strict=True)]
    sure = [row["label"] == answer.label for row, answer in zip(rows, answers, strict=True) if not answer.unsure]
    assert calibration["promise"] == {
        "coverage": 0.9,
        "threshold": threshold,
        "covered": pytest.approx(np.mean(covered)),
        "unsure": pytest.approx(1 - len(sure) / 60),
        "accuracy_of_sure": pytest.approx(np.mean(sure)),
    }
    confidences = np.array([answer.score for answer in answers])
    right = np.array([row["label"] == answer.label for row, answer in zip(rows, answers, strict=True)])
    error = 0.0
    for low in range(15):
        of = (confidences > low / 15) & (confidences <= (low + 1) / 15)
        error += abs(right[of].sum() - confidences[of].sum()) / 60
    assert calibration["ece"]["after"] == pytest.approx(error, abs=1e-5)
    assert "calibration error" in verb("eval", made / "bundle", "--task", "words", "--data", data).stdout
    path = tmp_path / "eval.json"
    path.write_text(json.dumps(found))
    done = verb("report", path, made / "words", "--out", tmp_path / "page")
    assert done.exit_code == 0, (done.output, done.exception)
    page = tmp_path / "page"
    text = (page / "index.html" if page.is_dir() else page).read_text()
    for words in ("words: reliability", "words: unsure answers", "share of answers that are right"):
        assert words in text, words


def test_tuning_chooses_again_and_keeps_or_changes_the_promise(made: Path, tmp_path: Path):
    bundle = Path(shutil.copytree(made / "bundle", tmp_path / "bundle"))
    data, before = write(tmp_path / "more.jsonl", 200, 9), Bundle(bundle).entry("words").chosen
    few = ("tune", bundle, "--task", "words", "--data", write(tmp_path / "few.jsonl", 40, 2))
    told = "the task promises a coverage of 0.9, which tuning has to keep: --coverage 0.9 needs at least 9 evaluation"
    assert told in refused(UsageError, *few)
    assert refused(UsageError, *few, "--coverage", 0.8, "--eval", 0.05).startswith("--coverage 0.8 needs at least 4")
    asked = ("tune", bundle, "--task", "words", "--data", data, "--lr", "1e-2", "--json")
    found = shown(*asked, "--steps", 40, "--seed", 1)
    assert found["replaced"]
    after = Bundle(bundle).entry("words").chosen
    assert after["coverage"] == 0.9 and after["threshold"] != before["threshold"]
    assert after["temperature"] != before["temperature"]
    assert found["errors"]["calibration"]["promise"]["threshold"] == after["threshold"]
    assert verb("verify", bundle).exit_code == 0
    wish = ("--data", write(tmp_path / "other.jsonl", 200, 12), "--steps", 40, "--risk", 0.49, "--eval", 0.4)
    changed = shown("tune", bundle, "--task", "words", *wish, "--lr", "1e-2", "--json")
    if changed["replaced"]:
        assert "coverage" not in changed["entry"]["chosen"] and changed["entry"]["chosen"]["risk"] == 0.49
    assert changed["training"]["risk"] == 0.49 and "coverage" not in changed["training"]
    assert TuneRequest.model_validate({"rows": [{"text": "w5", "label": "five"}], "coverage": 0.9}).coverage == 0.9


def test_what_cannot_be_promised_is_refused_before_the_work(made: Path, tmp_path: Path):
    out = ("export", "--backbone", made / "backbone", "--out", tmp_path / "b", "--delta")
    for value in (0, 1, 1.5, "nan"):
        assert "--coverage is a share" in refused(UsageError, *out, made / "words", "--coverage", value)
    both = ("--coverage", 0.9, "--risk", 0.1)
    assert "exclude each other" in refused(UsageError, *out, made / "words", *both)
    assert "exclude each other" in refused(
        UsageError, "tune", made / "bundle", "--task", "words", "--data", made / "rows.jsonl", *both
    )
    said = refused(UsageError, *out, made / "words", "--coverage", 0.99)
    assert "--coverage 0.99 needs at least 99 evaluation rows; there are 40" in said
    assert "this task is a regression" in refused(UsageError, *out, made / "numbers", "--risk", 0.2)
    assert "--to-peft" in refused(
        UsageError, *out[:3], "--delta", made / "words", "--to-peft", tmp_path / "p", "--risk", 0.2
    )
    onnx = made / "bundle" / "tasks" / "words.onnx"
    assert "give the delta's folder" in refused(UsageError, "add", made / "bundle", onnx, "--force", "--risk", 0.2)
    assert not (tmp_path / "b").exists()


def test_a_delta_without_its_evaluation_rows_exports_and_promises_nothing(made: Path, tmp_path: Path):
    delta = Path(shutil.copytree(made / "words", tmp_path / "words"))
    out = ("export", "--backbone", made / "backbone", "--delta", delta, "--out", tmp_path / "b")
    for logits, targets in (((3, 3), [0, 0, 0]), ((3, 2), [0, 1, 2]), ((3, 2), [0, 1])):
        save_file({"logits": np.zeros(logits, np.float32), "targets": np.array(targets)}, delta / EVALUATION_FILE)
        assert "does not hold logits of 2 labels" in refused(BundleError, *out, "--coverage", 0.5)
    (delta / EVALUATION_FILE).write_bytes(b"no")
    assert "is damaged" in refused(BundleError, *out, "--coverage", 0.5)
    (delta / EVALUATION_FILE).unlink()
    assert "trained by an earlier version" in refused(UsageError, *out, "--coverage", 0.5)
    # As an earlier version left it: answers are those of its softmax.
    card = json.loads((delta / "delta.json").read_text())
    (delta / "delta.json").write_text(json.dumps({name: card[name] for name in card if name not in ("chosen", "kind")}))
    assert verb(*out).exit_code == 0
    for answer in Runtime(tmp_path / "b").predict("words", TEXTS):
        assert [*answer.scores.values()] == pytest.approx(softmax(np.array(answer.logits, np.float32)), abs=1e-6)
        assert answer.unsure is None


@pytest.mark.parametrize(("bound", "said"), [(0.05, "it stays 1"), (20.0, "not more often right"), (None, "")])
def test_a_temperature_at_a_bound_is_said(bound: float | None, said: str, capsys: pytest.CaptureFixture[str]):
    chosen = {} if bound is None else {"temperature_bound": bound}
    say_notes(TrainingLoopResult({}, {"baselines": {}}, {}, [], 0, {}, chosen=chosen), "")
    told = capsys.readouterr().err
    assert said in told and bool(told) is bool(said)
