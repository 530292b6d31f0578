"""Texts longer than the model: windows as transformers' tokenizer makes them, and what is made of their logits."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cards import restated
from deltas import random_delta, saved

from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.source import Backbone, open_backbone
from edgepeft.backbones.tokens import Text
from edgepeft.bundle.delta import Delta
from edgepeft.common.errors import DataError
from edgepeft.data.row_grouping import LOWEST, RowGrouping, mean_matrix, pooled, stitches_of
from edgepeft.runtime.runtime import Runtime
from edgepeft.tasks.base import kind_from_card
from edgepeft.training.exporting.bundle import export_bundle

LENGTH, STRIDE = 12, 4
SHORT = ["w5 w6", "w7", " ".join(f"w{i}" for i in range(10, 20))]
LONG = [*SHORT, " ".join(f"w{5 + i % 40}" for i in range(27)), " ".join(f"w{50 - i % 40}" for i in range(60))]


def words(n: int, first: int = 5) -> str:
    return " ".join(f"w{first + i % 40}" for i in range(n))


@pytest.fixture(scope="module")
def folder(tiny: Callable[..., Path]) -> Path:
    return tiny("bert", mean=True)


@pytest.fixture(scope="module")
def backbone(folder: Path) -> Backbone:
    return open_backbone(str(folder))


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))


def windows_of(tokenizer: Any, first: str, second: str | None = None, strategy: str = "only_first") -> Any:
    """As transformers' tokenizer divides a text."""
    how = {"truncation": strategy, "max_length": LENGTH, "stride": STRIDE, "return_overflowing_tokens": True}
    return tokenizer(first, second, return_offsets_mapping=True, **how)


@pytest.mark.parametrize(
    ("first", "second", "strategy"),
    [
        (words(9), None, "only_first"),
        (words(10), None, "only_first"),
        (words(61), None, "only_first"),
        (words(3), words(40), "only_second"),
        (words(33), words(2), "only_first"),
        (words(4), words(5), "only_first"),
    ],
)
def test_windows_are_those_of_transformers(backbone: Backbone, tokenizer: Any, first: str, second: Any, strategy: str):
    theirs = windows_of(tokenizer, first, second, strategy)["input_ids"]
    batch = backbone.encoder().windows([Text(first, second), Text("w5")], LENGTH, STRIDE)
    assert batch.per_text == (len(theirs), 1)
    mask = batch.inputs["attention_mask"].astype(bool)
    rows = [row[own].tolist() for row, own in zip(batch.inputs["input_ids"], mask, strict=True)]
    assert rows[:-1] == theirs
    cut = backbone.encoder().encode([Text("w5")], LENGTH).inputs["input_ids"][0].tolist()
    assert rows[-1] == cut


def test_what_leaves_no_room_names_its_row(backbone: Backbone):
    encoder = backbone.encoder()
    with pytest.raises(DataError, match=r"f:2: the shorter text's 7 tokens leave 2 of 12 for the longer .*--long cut"):
        encoder.windows([Text("w5", "w6"), Text(words(9), words(7))], LENGTH, STRIDE, ["f:1", "f:2"])
    with pytest.raises(DataError, match="row 0: a window of 12 tokens reads 10 of a text, and shares 11"):
        encoder.windows([Text(words(30))], LENGTH, 11)
    assert encoder.windows([Text(words(4), words(5))], LENGTH, 8).per_text == (1,)  # it fits


@pytest.mark.parametrize("n", [1, 11, 12, 13, 18, 25, 61])
def test_a_token_is_taken_of_the_window_where_it_has_most_context(backbone: Backbone, n: int):
    """As ``_check_is_max_context`` of BERT's run_squad.py has it, word for word."""
    batch = backbone.encoder().windows([Text(words(n))], LENGTH, STRIDE)
    n_special = LENGTH - backbone.encoder().room(LENGTH, pairs=False)
    room = LENGTH - n_special
    starts = [0]
    while starts[-1] + room < n:
        starts.append(starts[-1] + room - STRIDE)
    spans = [(start, min(room, n - start)) for start in starts]
    (found,) = stitches_of(batch)
    whole = batch.whole[0]
    own = [i for i, part in enumerate(whole.sequence_ids) if part is not None]
    for position in range(n):
        best_score, best = None, None
        for index, (start, length) in enumerate(spans):
            end = start + length - 1
            if position < start or position > end:
                continue
            score = min(position - start, end - position) + 0.01 * length
            if best_score is None or score > best_score:
                best_score, best = score, index
        window, place = found[own[position]]
        assert window == best
        assert batch.encodings[window].ids[place] == whole.ids[own[position]]
    for place in set(range(len(whole.ids))) - {*own}:  # special tokens are some window's
        window, there = found[place]
        assert batch.encodings[window].ids[there] == whole.ids[place]


def test_pools_are_numpys_and_of_one_window_to_the_bit():
    source = np.random.default_rng(0)
    logits = source.standard_normal((7, 3)).astype(np.float32)
    parts = [logits[:1], logits[1:5], logits[5:]]
    exact = [part.astype(np.float64) for part in parts]
    for pool, function in {"mean": np.mean, "max": np.max}.items():
        found = pooled(logits, [1, 4, 2], pool)
        np.testing.assert_allclose(found, [function(part, axis=0) for part in exact], rtol=1e-7)
        assert found[0].tobytes() == logits[0].tobytes() and found.dtype == np.float32
    found = pooled(logits, [1, 4, 2], "direction")
    assert found[0].tobytes() == logits[0].tobytes()
    means = [part.mean(0) for part in exact[1:]]
    np.testing.assert_allclose(found[1:], [m / np.linalg.norm(m) for m in means], rtol=1e-6)
    np.testing.assert_allclose(mean_matrix([1, 4, 2]) @ logits, pooled(logits, [1, 4, 2], "mean"), atol=1e-6)
    rows = RowGrouping([1, 4, 2], [2, 1], 2).by_row(logits, "max")
    assert rows.shape == (2, 2, 3) and (rows[1, 1] == LOWEST).all()
    np.testing.assert_array_equal(rows[0, 1], logits[1:5].max(0))


KINDS: dict[str, dict[str, Any]] = {
    "mood": {"labels": ("bad", "good", "so"), "chosen": {"pool": "mean"}},
    "several": {"labels": ("a", "b"), "kind": "labels", "chosen": {"pool": "max"}},
    "score": {"labels": None, "kind": "regression"},
    "near": {"labels": None, "kind": "embedding"},
    "pick": {"labels": None, "kind": "choice", "pairs": True},
    "tags": {"labels": ("B-X", "I-X", "O"), "kind": "tokens"},
}


@pytest.fixture(scope="module")
def made(backbone: Backbone, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with a task of each kind read in windows, and ``cut``, one whose tasks are not."""
    folder = tmp_path_factory.mktemp("long")
    for name, how in KINDS.items():
        more = {key: value for key, value in how.items() if key in ("kind", "pairs")}
        delta = random_delta(backbone, "lora", name, how["labels"], max_length=LENGTH, stride=STRIDE, **more)
        delta.card = delta.card.model_copy(update={"chosen": {**delta.card.chosen, **how.get("chosen", {})}})
        saved(delta, folder / name)
    export_bundle(backbone, [folder / name for name in KINDS], folder / "bundle", texts=[Text(t) for t in SHORT])
    shutil.copytree(folder / "bundle", folder / "cut")
    change(folder / "cut", lambda _: None)
    return folder


def change(bundle: Path, pool: Callable[[str], str | None]) -> Path:
    """Have each task's windows pooled otherwise; with None it has none, as bundles from before there were any."""
    manifest = json.loads((bundle / "edgepeft.json").read_text())
    for name, entry in manifest["tasks"].items():
        chosen = {key: value for key, value in entry["chosen"].items() if key not in ("stride", "pool")}
        restated(bundle, name, chosen=chosen | ({} if pool(name) is None else {"stride": STRIDE, "pool": pool(name)}))
    return bundle


def exact_logits(made: Path, backbone: Backbone, tokenizer: Any, task: str, text: str, second: Any = None) -> Any:
    """[windows, ...] in float64, by PyTorch on transformers' windows; and where the tokens stand in the text."""
    delta, model = Delta.load(made / task, backbone).double().eval(), load_model(backbone, "eager").double()
    strategy = "only_first" if second is None or len(text.split()) >= len(second.split()) else "only_second"
    theirs, found = windows_of(tokenizer, text, second, strategy), []
    for ids, types in zip(theirs["input_ids"], theirs["token_type_ids"], strict=True):
        given = {"input_ids": [ids], "attention_mask": [[1] * len(ids)], "token_type_ids": [types]}
        with torch.no_grad():
            logits = delta.logits(model, {name: torch.tensor(value) for name, value in given.items()})
        found.append(logits[0].numpy())
    return found, theirs["offset_mapping"]


@pytest.mark.parametrize("task", ["mood", "several", "score"])
def test_one_answer_is_of_all_windows_of_a_text(made: Path, backbone: Backbone, tokenizer: Any, task: str):
    answers = Runtime(made / "bundle").predict(task, LONG)
    pool = np.max if KINDS[task].get("chosen", {}).get("pool") == "max" else np.mean
    for text, answer in zip(LONG, answers, strict=True):
        windows, _ = exact_logits(made, backbone, tokenizer, task, text)
        np.testing.assert_allclose(answer.logits, pool(windows, axis=0), atol=1e-4)
    assert len(windows) > 5


def test_a_vector_is_the_direction_of_its_windows_mean(made: Path, backbone: Backbone, tokenizer: Any):
    for text, answer in zip(LONG, Runtime(made / "bundle").predict("near", LONG), strict=True):
        windows, _ = exact_logits(made, backbone, tokenizer, "near", text)
        mean = np.mean(windows, axis=0)
        np.testing.assert_allclose(answer.logits, mean / np.linalg.norm(mean), atol=1e-4)


def test_each_candidate_is_scored_in_all_windows_of_the_text(made: Path, backbone: Backbone, tokenizer: Any):
    given = zip(LONG, (2, 3, 2, 3, 2), strict=True)
    rows = [{"sentence1": text, "candidates": ["w8", "w9 w10", "w11"][:n]} for text, n in given]
    for row, answer in zip(rows, Runtime(made / "bundle").predict("pick", rows), strict=True):
        expected = [
            np.mean(exact_logits(made, backbone, tokenizer, "pick", row["sentence1"], candidate)[0], axis=0)[0]
            for candidate in row["candidates"]
        ]
        np.testing.assert_allclose(answer.logits, expected, atol=1e-4)
        assert answer.index == int(np.argmax(expected))


def test_a_words_tag_is_of_the_window_where_it_has_most_context(made: Path, backbone: Backbone, tokenizer: Any):
    (answer,) = Runtime(made / "bundle").predict("tags", [LONG[-1]])
    windows, offsets = exact_logits(made, backbone, tokenizer, "tags", LONG[-1])
    best: dict[int, tuple[float, np.ndarray]] = {}
    for logits, spans in zip(windows, offsets, strict=True):
        own = [i for i, (start, end) in enumerate(spans) if end > start]
        for k, i in enumerate(own):
            score = min(k, len(own) - 1 - k) + 0.01 * len(own)
            if spans[i][0] not in best or score > best[spans[i][0]][0]:
                best[spans[i][0]] = score, logits[i]
    expected = [best[start][1] for start in sorted(best)]
    found, known = answer.of_words
    assert known.all() and answer.unread is None and len(expected) == 60
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("task", KINDS)
def test_what_fits_in_one_window_is_answered_as_if_it_were_cut_to_the_bit(made: Path, task: str):
    # Of a second task of one structure the values are inputs, and fold otherwise: each has a runtime of its own.
    runtimes = [Runtime(made / bundle) for bundle in ("bundle", "cut")]
    texts: list[Any] = [{"sentence1": text, "candidates": ["w8", "w9"]} for text in ("w5", "w5 w6")]
    for given in texts if task == "pick" else SHORT:
        one, other = (runtime.predict(task, [given])[0] for runtime in runtimes)
        assert one.logits == other.logits and one.as_json() == other.as_json()
    one, other = (runtime.predict(task, texts if task == "pick" else SHORT) for runtime in runtimes)
    assert [answer.logits for answer in one] == [answer.logits for answer in other]


def test_alone_together_and_mixed_answers_are_the_same_and_the_cost_is_counted(made: Path):
    runtime, tasks = Runtime(made / "bundle"), ["mood", "several", "tags", "score", "near"]
    alone = {task: [runtime.predict(task, [text])[0].as_json() for text in LONG] for task in tasks}
    spread = runtime.truncation.windows
    assert (spread.texts, spread.most, spread.longer) == (5 * len(LONG), 10, 5 * 2)
    together = runtime.predict_all(tasks, LONG)
    pairs = [(task, i) for i in range(len(LONG)) for task in tasks]
    mixed = runtime.predict_mixed([task for task, _ in pairs], [LONG[i] for _, i in pairs])
    for (task, i), answer in zip(pairs, mixed, strict=True):
        for found in (answer.as_json(), together[task][i].as_json()):  # type: ignore[union-attr]
            assert _rounded(found) == pytest.approx(_rounded(alone[task][i]), abs=1e-4)


def _rounded(answer: dict[str, Any]) -> Any:
    """The numbers of an answer, one after another."""
    flat = [answer]
    numbers: list[float] = []
    while flat:
        value = flat.pop()
        if isinstance(value, dict):
            flat += value.values()
        elif isinstance(value, list | tuple):
            flat += value
        elif isinstance(value, int | float):
            numbers.append(float(value))
    return numbers


@pytest.mark.parametrize(
    ("kind", "chosen"),
    [
        ("classification", {"stride": 0}),
        ("classification", {"stride": 2.5}),
        ("classification", {"stride": True}),
        ("classification", {"stride": 4, "pool": "median"}),
        ("classification", {"pool": "max"}),
        ("tokens", {"stride": 4, "pool": "mean"}),
        ("embedding", {"stride": 4, "pool": "max"}),
        ("text", {"stride": 4}),
    ],
)
def test_a_card_with_windows_that_cannot_be_is_refused(kind: str, chosen: dict[str, Any]):
    labels = ("a", "b") if kind in ("classification", "tokens") else None
    with pytest.raises(ValueError, match="windows"):
        kind_from_card(kind, labels, "text" if kind == "text" else "mean", chosen=chosen)
