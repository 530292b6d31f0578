"""Tasks that read long texts in windows, from rows to answers: trained, exported, scored, served and tuned."""

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
from cards import restated
from deltas import random_delta, saved
from once import made_once
from tolerance import Exact, exactly
from verbs import SMALL_ADAPTER, shown, verb

from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.source import open_backbone
from edgepeft.backbones.tokens import Text
from edgepeft.bundle.bundle import Bundle
from edgepeft.bundle.delta import Delta
from edgepeft.common.errors import UsageError
from edgepeft.options.verbs import TuneSettings
from edgepeft.runtime.runtime import Runtime
from edgepeft.training.exporting.bundle import export_bundle
from edgepeft.tuning.target import Files, from_task
from edgepeft.tuning.tune import TuningRun

LENGTH, STRIDE = 12, 4


def write(path: Path, n: int, seed: int) -> Path:
    """Texts of 14 to 30 words, of which half of those past the first window say the label."""
    source, rows = random.Random(seed), []
    for i in range(n):
        words = [f"w{source.randrange(10, 40)}" for _ in range(source.randrange(14, 30))]
        label = ("bad", "good")[i % 2]
        for place in range(10, len(words), 2):
            words[place] = source.choice({"bad": ["w5", "w6"], "good": ["w7", "w8"]}[label])
        rows.append({"sentence1": " ".join(words), "label": label})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def backbone(tiny: Callable[..., Path]) -> Path:
    return tiny("bert", mean=True)


@pytest.fixture(scope="module")
def made(backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``train.jsonl``, ``windows``, a delta trained on it, what was said, its bundle, and ``cut``, one that says nothing
    of windows."""

    def make(folder: Path) -> None:
        data = write(folder / "train.jsonl", 120, 0)
        asked = ("--backbone", backbone, "--data", data, "--task", "mood", *SMALL_ADAPTER[:4])
        asked = (*asked, "--steps", 40, "--lr", "1e-2", "--max-length", LENGTH, "--long", "windows", "--stride", STRIDE)
        done = verb("train", *asked, "--out", folder / "windows")
        assert done.exit_code == 0, (done.output, done.exception)
        (folder / "windows.txt").write_text(done.output)
        shown("export", "--backbone", backbone, "--delta", folder / "windows", "--out", folder / "bundle", "--json")
        restated(shutil.copytree(folder / "bundle", folder / "cut"), "mood", chosen={})

    return made_once(tmp_path_factory, "long-whole", make)


def card(made: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((made / "windows" / "delta.json").read_text())
    return found


def test_what_stands_past_the_first_window_is_learnt_and_the_cost_is_said(made: Path):
    windows = card(made)
    assert windows["metrics"]["test"] > 0.8
    told = windows["training"]["windows"]
    lengths = [len(json.loads(line)["sentence1"].split()) for line in (made / "train.jsonl").open()]
    step = LENGTH - 2 - STRIDE
    expected = [1 + -(-max(0, n - (LENGTH - 2)) // step) for n in lengths]
    assert (told["texts"], told["windows"], told["most"]) == (len(lengths), sum(expected), max(expected))
    assert windows["chosen"]["stride"] == STRIDE and windows["chosen"]["pool"] in ("mean", "max")
    assert told["pools"][windows["chosen"]["pool"]] == max(told["pools"].values())
    mean = f"{sum(expected) / len(expected):.2f} windows a text, at most {max(expected)}"
    assert f"read in windows: {mean}" in (made / "windows.txt").read_text().replace("\n", "")


def test_the_bundle_scores_and_runs_as_trained(made: Path, tmp_path: Path):
    entry = Bundle(made / "bundle").entry("mood")
    assert {name: entry.chosen[name] for name in ("stride", "pool")} == {
        name: card(made)["chosen"][name] for name in ("stride", "pool")
    }
    data = write(tmp_path / "rows.jsonl", 40, 5)
    scores = {
        name: shown("eval", made / name, "--task", "mood", "--data", data, "--json") for name in ("bundle", "cut")
    }
    assert scores["bundle"]["score"] > 0.85 and scores["cut"]["score"] < 0.75
    rows = [json.loads(line) for line in data.read_text().splitlines()]
    answers = Runtime(made / "bundle").predict("mood", [row["sentence1"] for row in rows])
    right = np.mean([answer.label == row["label"] for answer, row in zip(answers, rows, strict=True)])
    assert scores["bundle"]["score"] == pytest.approx(right)
    done = verb("run", made / "bundle", "--task", "mood", "w10 " * 20 + "w6")
    assert "windows a text, at most 3; 1 of 1 texts in several" in done.output.replace("\n", " ")
    assert verb("verify", made / "bundle").exit_code == 0


def test_tuning_keeps_the_windows_and_chooses_the_pool_anew(made: Path, tmp_path: Path):
    bundle = Path(shutil.copytree(made / "bundle", tmp_path / "bundle"))
    data, others = write(tmp_path / "more.jsonl", 80, 9), write(tmp_path / "others.jsonl", 40, 11)
    was = shown("eval", bundle, "--task", "mood", "--data", others, "--json")["score"]
    asked = ("--data", data, "--test", others, "--steps", 10, "--lr", "1e-3")
    found = shown("tune", bundle, "--task", "mood", *asked, "--json")
    assert found["metrics"]["before"] == pytest.approx(was) and set(found["training"]["windows"]["pools"]) == {
        "mean",
        "max",
    }
    if found["replaced"]:
        assert Bundle(bundle).entry("mood").chosen["stride"] == STRIDE
    score = shown("eval", bundle, "--task", "mood", "--data", others, "--json")["score"]
    assert not found["replaced"] or score == pytest.approx(found["metrics"]["test"])
    assert verb("verify", bundle).exit_code == 0


KINDS: dict[str, dict[str, Any]] = {
    "mood": {"labels": ("bad", "good")},
    "near": {"labels": None, "kind": "embedding"},
    "pick": {"labels": None, "kind": "choice", "pairs": True},
    "tags": {"labels": ("B-X", "I-X", "O"), "kind": "tokens"},
}


@pytest.fixture(scope="module")
def each(backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random delta of every kind, and a bundle of them."""
    folder, opened = tmp_path_factory.mktemp("each"), open_backbone(str(backbone))
    for name, how in KINDS.items():
        more = {key: value for key, value in how.items() if key != "labels"}
        delta = random_delta(opened, "bitfit", name, how["labels"], max_length=LENGTH, stride=STRIDE, **more)
        saved(delta, folder / name)
    export_bundle(opened, [folder / name for name in KINDS], folder / "bundle", texts=[Text("w5 w6"), Text("w7")])
    return folder


def rows_of(task: str, path: Path, n: int = 30) -> Path:
    """Of which every other one has long texts."""
    source, rows = random.Random(1), list[dict[str, Any]]()
    for i in range(n):
        first, second = (
            " ".join(f"w{source.randrange(5, 40)}" for _ in range(source.randint(2, (5, 40)[i % 2]))) for _ in range(2)
        )
        row: dict[str, Any] = {"sentence1": first, "label": ("bad", "good")[i % 3 // 2]}
        if task == "near":
            row |= {"sentence2": second, "label": float(i % 5)}
        if task == "pick":
            row |= {"candidates": ["w5", "w6 w7", "w8"][: 2 + i % 2], "label": i % 2}
        if task == "tags":
            row = {"words": first.split(), "tags": [("O", "B-X", "I-X")[k % 3] for k in range(len(first.split()))]}
        rows.append(row)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("task", KINDS)
def test_a_step_has_pytorchs_gradients_of_the_pooled_logits(each: Path, backbone: Path, tmp_path: Path, task: str):
    opened = open_backbone(str(backbone))
    bundle, options = Bundle(each / "bundle"), TuneSettings(dropout=False, micro_batch=3)
    target = from_task(bundle, task, Files(rows_of(task, tmp_path / "rows.jsonl")), options)
    run = TuningRun(bundle, target, options, tmp_path / "work", threads=1)
    delta, model = Delta.load(each / task, opened).double().eval(), load_model(opened, "eager").double()
    chosen, rows, kind = range(7), run.loop.rows["train"], run.loop.kind
    inputs, targets = rows.batch(chosen)
    assert rows.per_text is not None and len(inputs["input_ids"]) > sum(map(len, (rows.per_text[i] for i in chosen)))
    given = {name: torch.from_numpy(values) for name, values in inputs.items()}
    shape = inputs["input_ids"].shape if kind.per_token else inputs["input_ids"].shape[:1]
    masks = [np.ones((*shape, width), np.float32) for _, width in target.facts.dropouts]

    def backward() -> dict[str, torch.Tensor]:
        delta.zero_grad()
        logits = delta.logits(model, given)
        wanted = torch.from_numpy(targets)
        wanted = wanted.to(logits.dtype) if wanted.is_floating_point() else wanted
        if not kind.per_token:  # by hand: each text's windows, each row's texts
            parts = iter(logits.split([int(n) for i in chosen for n in rows.per_text[i]]))
            by_row = [torch.stack([next(parts).mean(0) for _ in rows.per_text[i]]) for i in chosen]
            most = max(map(len, by_row))
            by_row = [torch.nn.functional.pad(row, (0, 0, 0, most - len(row)), value=-1e30) for row in by_row]
            logits = torch.stack(by_row) if kind.several_texts else torch.cat(by_row)
        loss = kind.loss(logits, wanted)
        loss.backward()
        return {"loss": loss, **{name: p.grad for name, p in delta.tensors().items()}}

    exact = exactly(backward)
    found = run.engine.gradients(chosen, masks)
    exact.pop("loss").require(np.float64(found.loss))
    for name, expected in exact.items():
        share = 1e-5 * float(np.abs(expected.value).max())  # as tests/conformance/test_gradients.py has it
        Exact(expected.value, expected.error + share).require(found.gradients[name], name)


@pytest.mark.slow
@pytest.mark.parametrize("task", KINDS)
def test_eight_bit_weights_are_compared_on_rows_and_keep_the_windows(
    each: Path, backbone: Path, tmp_path: Path, task: str
):
    rows = rows_of(task, tmp_path / "rows.jsonl", 60)
    asked = ("--weights", "int8", "--verify-data", rows, "--out", tmp_path / "int8", "--json")
    done = verb("export", "--backbone", backbone, "--delta", each / task, *asked)
    assert done.exit_code in (0, 3), (done.output, done.exception)  # of random deltas decisions are near
    if done.exit_code == 0:
        entry = Bundle(tmp_path / "int8").entry(task)
        assert entry.chosen["stride"] == STRIDE and entry.verification.data.onnxruntime is not None


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (("--long", "windows", "--stride", 0), "--stride must be at least 1; found 0"),
        (
            ("--long", "windows", "--stride", 10),
            "--stride 10 must be less than what a window reads.* room for 10 tokens",
        ),
        (("--long", "windows", "--max-length", 3), "room for 1 tokens of a text .* give a greater --max-length"),
        (("--stride", 4), "--stride is what windows share; give --long windows too"),
        (("--long", "cut", "--kind", "spans"), "--long cut: answers are searched in all of a passage"),
        (
            ("--long", "windows", "--source", "{sentence1}", "--target", "{label}"),
            "--long windows: a text that is written cannot be pooled",
        ),
    ],
)
def test_windows_that_cannot_be_are_refused_before_anything_is_loaded(
    backbone: Path, tmp_path: Path, asked: tuple[Any, ...], words: str
):
    data = tmp_path / "rows.jsonl"
    if "spans" in asked:
        row = {"question": "w5", "context": "w6 w7", "answers": {"text": ["w7"], "answer_start": [3]}}
        data.write_text((json.dumps(row) + "\n") * 30)
    else:
        write(data, 30, 0)
    length = () if "--max-length" in asked else ("--max-length", LENGTH)
    out = ("--out", tmp_path / "delta")
    done = verb("train", "--backbone", backbone, "--data", data, "--task", "t", "--steps", 1, *length, *asked, *out)
    assert isinstance(done.exception, UsageError), (done.output, done.exception)
    with pytest.raises(UsageError, match=words):
        raise done.exception
    assert not (tmp_path / "delta").exists()
