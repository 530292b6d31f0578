"""What every kind of task must be: one file, found by its name; one loss, computed three ways."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from pydantic import ValidationError

import edgepeft
from edgepeft.backbones.emit import Writer
from edgepeft.bundle.card import DeltaCard
from edgepeft.bundle.manifest import TaskEntry
from edgepeft.common.errors import UnknownName, UsageError
from edgepeft.common.registry import names_of
from edgepeft.data.row_grouping import grouped, places_of
from edgepeft.graph.gradient.training import add_loss
from edgepeft.tasks.base import TaskType, kind_from_card, kind_named, kinds, requested_kind
from edgepeft.training.engine import loss_of

PACKAGE = Path(edgepeft.__file__).parent
B, C, T = 5, 4, 6
PER_ROW = [2, 5, 1, 3, 2]  # token rows, where a row is several
NAMES = tuple("abcd")


def of(name: str) -> TaskType:
    kind = kind_named(name)
    return kind(NAMES if kind.has_labels else None, chosen=kind.initial_choices(C))


def some(kind: TaskType) -> tuple[np.ndarray, np.ndarray]:
    """Logits, far from each other too, and targets of the form that the kind's loss takes."""
    source = np.random.default_rng(0)
    if kind.passages:  # of 2, 5, ... tokens, and the first and the last of an answer
        logits = 9 * source.standard_normal((sum(PER_ROW), kind.n_outputs))
        return logits.astype(np.float32), np.stack([source.integers(0, PER_ROW), source.integers(0, PER_ROW)], axis=1)
    if kind.writes or kind.per_token:
        targets = np.where(source.random((B, T)) < 0.3, -100, source.integers(0, C, (B, T)))
        targets[:, 0] = 1  # a target has a token
        return (9 * source.standard_normal((B, T, C))).astype(np.float32), targets
    if kind.whole_batch:
        return source.standard_normal((2 * B, C)).astype(np.float32), source.standard_normal(B).astype(np.float32)
    graph = kind.loss_graph(Writer(), "logits", "labels")
    if kind.several_texts:
        targets = np.stack([source.integers(0, PER_ROW), PER_ROW], axis=1)
        return (9 * source.standard_normal((sum(PER_ROW), kind.n_outputs))).astype(np.float32), targets
    logits = (9 * source.standard_normal((B, kind.n_outputs))).astype(np.float32)
    if graph.integers:
        return logits, source.integers(0, C, B)
    shape = [B, *(size for size in graph.dims if isinstance(size, int))]
    return logits, source.integers(0, 2, shape).astype(np.float32)


def per_row(kind: TaskType) -> list[int]:
    return [2] * B if kind.whole_batch else PER_ROW


@pytest.mark.parametrize("name", [name for name, kind in kinds().items() if kind.whole_batch])
def test_a_loss_of_a_whole_batch_has_pytorchs_slopes_which_the_graph_adds_up(name):
    kind = of(name)
    logits, targets = some(kind)
    of_rows = grouped(logits, places_of(per_row(kind)))
    tensor = torch.from_numpy(of_rows.astype(float)).requires_grad_()
    by_torch = kind.loss(tensor, torch.from_numpy(targets))
    by_torch.backward()
    loss, slopes = kind.slopes(of_rows, targets)
    assert [loss, kind.losses(of_rows, targets).mean()] == pytest.approx([by_torch.item()] * 2)
    np.testing.assert_allclose(slopes, tensor.grad, atol=1e-12)
    slopes, ones = slopes.astype(np.float32), np.ones(B, np.float32)
    assert by_onnx(kind, logits, slopes, ones) == pytest.approx((slopes * of_rows).sum(), rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("name", [name for name, kind in kinds().items() if not kind.whole_batch])
def test_numpy_pytorch_and_onnx_have_one_loss(name):
    kind = of(name)
    logits, targets = some(kind)
    terms = kind.terms(targets)
    places = places_of(per_row(kind)) if kind.several_texts else None
    of_rows = logits if places is None else grouped(logits, places)
    by_numpy = (kind.losses(of_rows, targets) * terms).sum() / terms.sum()
    by_torch = loss_of(kind, torch.from_numpy(logits), torch.from_numpy(targets), None, places).item()
    assert by_torch == pytest.approx(by_numpy, rel=1e-5)
    if kind.per_token and not kind.passages:  # a graph's are packed
        logits, targets = logits.reshape(-1, C), targets.reshape(-1)
    shares = np.full(len(targets), 1 / terms.sum(), np.float32)
    assert by_onnx(kind, logits, targets, shares) == pytest.approx(by_numpy, rel=1e-5)


@pytest.mark.parametrize("name", [name for name, kind in kinds().items() if kind.one_label])
def test_weights_of_labels_make_pytorchs_weighted_mean(name):
    kind, weights = of(name), torch.tensor([0.1, 1.0, 2.5, 7.0])
    logits, targets = some(kind)
    tensors = torch.from_numpy(logits), torch.from_numpy(targets)
    expected = torch.nn.functional.cross_entropy(*tensors, weights).item()
    assert kind.loss(*tensors, weights).item() == pytest.approx(expected, rel=1e-6)
    of_rows = weights.numpy()[targets]
    assert by_onnx(kind, logits, targets, (of_rows / of_rows.sum()).astype(np.float32)) == pytest.approx(expected)


def by_onnx(kind: TaskType, logits: np.ndarray, targets: np.ndarray, shares: np.ndarray) -> float:
    whole = helper.make_tensor_value_info("x", TensorProto.FLOAT, logits.shape)
    same = helper.make_tensor_value_info("logits", TensorProto.FLOAT, logits.shape)
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["logits"])], "g", [whole], [same])
    add_loss(graph, kind)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(model)
    places = {"places": places_of(per_row(kind))} if kind.several_texts else {}
    outputs = ReferenceEvaluator(model).run(["loss"], {"x": logits, "labels": targets, "shares": shares, **places})
    return float(np.asarray(outputs[0]))


LOSSES = {
    "classification": torch.nn.functional.cross_entropy,
    "regression": lambda logits, numbers: torch.nn.functional.mse_loss(logits[:, 0], numbers),
    "text": lambda logits, tokens: torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()),
    "tokens": lambda logits, tags: torch.nn.functional.cross_entropy(logits.flatten(0, 1), tags.flatten()),
}


@pytest.mark.parametrize("name", LOSSES)
def test_the_loss_is_pytorchs_own(name):
    logits, targets = map(torch.from_numpy, some(of(name)))
    assert of(name).loss(logits, targets).item() == pytest.approx(LOSSES[name](logits, targets).item(), rel=1e-6)


def test_a_kind_is_the_file_of_its_name():
    assert tuple(kinds()) == names_of("edgepeft.tasks")


KINDS = "|".join(kinds())
STAND_INS = re.compile(
    rf"""\bif (not )?(\w+\.)*regression\b|\blabels is (not )?None|\b(kind|name)\b ([=!]=|is|in) ["']({KINDS})["']"""
)
# The verb's short form of `--kind regression`; the labels that an importer is given are not a task's.
ALLOWED = {"cli/import_.py", "training/settings.py"}


def test_no_other_file_asks_which_kind_a_task_is():
    """Nor takes labels that are not there for a sign of one."""
    found = [
        f"{path.relative_to(PACKAGE)}:{number}: {line.strip()}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.parent.name != "tasks" and str(path.relative_to(PACKAGE)) not in ALLOWED
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if STAND_INS.search(line)
    ]
    assert found == []


@pytest.mark.parametrize(
    "line", ["if regression:", "if self.labels is None:", 'if kind == "text"', "x if card.regression"]
)
def test_that_search_finds_what_stood_there(line):
    assert STAND_INS.search(line)


@pytest.mark.parametrize(
    ("labels", "head_reads", "kind"),
    [(["a", "b"], "mean", "classification"), (None, "first_token", "regression"), (None, "text", "text")],
)
def test_what_was_written_before_kinds_had_names_is_understood(labels, head_reads, kind):
    backbone = {"source": "s", "family": "bert", "model_type": "bert", "sha256": "0" * 64}
    facts = {"method": "lora", "hyperparameters": {}, "labels": labels, "head": "linear", "head_reads": head_reads}
    card = DeltaCard.model_validate_json(json.dumps({**facts, "task": "t", "max_length": 8, "backbone": backbone}))
    assert (card.task_kind.name, card.task_kind.labels) == (kind, tuple(labels) if labels else None)
    sizes = {"max_length": 8, "trainable_parameters": 1, "n_bytes": 1, "sha256": "0" * 64, "check_sha256": "0" * 64}
    assert TaskEntry.model_validate({**facts, **sizes}).task_kind == card.task_kind
    for odd in ({"kind": "classification", "labels": None}, {"kind": "regression", "labels": ["a"]}, {"kind": "no"}):
        with pytest.raises(ValidationError, match="kind of task 'no'" if odd["kind"] == "no" else "labels"):
            TaskEntry.model_validate({**facts, **sizes, **odd})


def test_the_short_forms_and_the_name_are_one_wish():
    assert requested_kind(None).name == "classification"
    assert (
        requested_kind(None, regression=True)
        is requested_kind("regression", regression=True)
        is kind_named("regression")
    )
    assert requested_kind(None, writes=True).writes
    with pytest.raises(UsageError, match="--kind classification is another kind of task than regression"):
        requested_kind("classification", regression=True)
    with pytest.raises(UnknownName, match="Did you mean 'regression'"):
        requested_kind("regresion")
    with pytest.raises(ValueError, match="has labels"):
        kind_from_card("classification", None, "mean")
