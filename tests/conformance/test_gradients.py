"""Every method's gradients in ONNX Runtime against PyTorch: hooks, ``cross_entropy`` and ``backward``."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import suite
import torch
from deltas import random_delta
from method_examples import examples
from tolerance import Exact, exactly
from torch.nn import functional

from edgepeft.backbones.source import open_backbone
from edgepeft.common.errors import BundleError
from edgepeft.graph.cost import peak_bytes
from edgepeft.graph.gradient import rule as gradient_rule
from edgepeft.graph.gradient.rule import rules, specs_of
from edgepeft.graph.gradient.training import TrainingFacts, training_facts
from edgepeft.heads.base import heads
from edgepeft.methods.base import methods
from edgepeft.tasks.regression import Regression
from edgepeft.training.engine import replaced_dropout
from edgepeft.training.exporting.delta import export_delta
from edgepeft.tuning.activation_cache import training_graph
from edgepeft.tuning.step import Expansion, StepResult, StepRows, TrainingStep
from edgepeft.tuning.target import deployed_graph

RELATIVES: dict[str, dict[str, Any]] = {
    **{name: {} for name in ("bert", "roberta", "distilbert", "mpnet")},
    "electra": {"embedding_size": 20},
}
# Of a tensor's largest, beside what float32 may make of PyTorch's own way: ours rounds in other places (SPARTAN 4e-6, on a gated T5 1e-5).
TOLERANCE = 3e-5
LEAST = float(np.finfo(np.float32).tiny)  # where attention sees one key alone, gradients of 1e-111 are zeros
NUMERICAL = next(iter(methods()))  # one runs under other instruction sets too: they share the kernels


def cases() -> list[Any]:
    """Every method on every relative; of each method's first instance one is not slow: BERT, or that of ``test_methods``."""
    made = []
    for name in methods():
        fitting = [relative for relative in RELATIVES if name not in suite.WITHOUT.get(relative, ())]
        of_methods, _ = suite.relative_of(name, 0)
        chosen = of_methods if of_methods in fitting else "bert"
        for example, relative in itertools.product(range(len(examples(methods()[name]))), fitting):
            quick = example == 0 and relative == chosen
            marks = [] if quick else [pytest.mark.slow]
            marks += [pytest.mark.numerical] if quick and name == NUMERICAL else []
            made.append(pytest.param(name, example, relative, id=f"{name}-{example}-{relative}", marks=marks))
    return made


class Tuned:
    """A case's task as a board trains it."""

    def __init__(self, case: suite.Case, graph: onnx.ModelProto | None = None) -> None:
        self.case, self.backbone, self.delta = case, case.backbone, graph or case.graph
        self.facts: TrainingFacts = training_facts(self.delta)
        found = case.backbone
        deployed = deployed_graph(self.delta, self.facts, found)
        self.model, _ = training_graph(deployed, self.facts, found.checkpoint, prefix_cache=False)

    def step(
        self, rows: dict[str, torch.Tensor], targets: torch.Tensor, masks: Sequence[np.ndarray] = ()
    ) -> StepResult:
        masks = masks or [np.ones((len(targets), width), np.float32) for _, width in self.facts.dropouts]
        given = {name: tensor.numpy() for name, tensor in rows.items()}
        step = TrainingStep(self.model, self.facts, self.backbone.folder, 1)
        expansion = Expansion(self.delta, self.facts, self.backbone.checkpoint, 1)
        trained = self.facts.tensors(self.delta)
        found = step(expansion.inputs(trained), StepRows(given, targets.numpy(), masks))
        return found._replace(gradients=expansion.gradients(trained, found.gradients))


def gradients_of(
    case: suite.Case, rows: dict[str, torch.Tensor], targets: torch.Tensor, masks: Sequence[np.ndarray] = ()
) -> dict[str, Exact]:
    """PyTorch's loss and gradients, by the names of the exported tensors; ``masks`` in the place of dropout."""
    delta, model = copy.deepcopy(case.moved.folded(case.backbone)).eval().double(), copy.deepcopy(case.model).double()
    supply = itertools.cycle(torch.from_numpy(mask) for mask in masks)
    if masks:
        delta.head.dropout.register_forward_hook(lambda _, __, y: y * next(supply))

    def backward() -> dict[str, torch.Tensor]:
        delta.zero_grad()
        logits = delta.logits(model, rows)
        loss = functional.cross_entropy(logits, targets)
        loss.backward()
        return {"loss": loss, **{name: p.grad for name, p in delta.tensors().items()}}

    return exactly(backward)


def require_pytorchs(tuned: Tuned, batch: int, length: int, masks: Sequence[np.ndarray] = ()) -> None:
    rows, targets = tuned.case.rows(batch, length), torch.arange(batch) % len(suite.LABELS)
    exact = gradients_of(tuned.case, rows, targets, masks)
    found = tuned.step(rows, targets, masks)
    exact.pop("loss").require(found.loss)
    stored = tuned.backbone.checkpoint
    parts = {name: name.partition("/") for name in exact}
    on_graph = {
        name: f"override/{stored.stored_name(rest)}" if part == "override" else name
        for name, (part, _, rest) in parts.items()
    }
    assert sorted(on_graph.values()) == sorted(found.gradients)
    for name, expected in exact.items():
        share = TOLERANCE * float(np.abs(expected.value).max()) + LEAST
        Exact(expected.value, expected.error + share).require(found.gradients[on_graph[name]], name)


@pytest.mark.parametrize(("name", "example", "relative"), cases())
def test_the_gradients_are_pytorchs(tiny: Callable[..., Path], name: str, example: int, relative: str):
    backbone = open_backbone(str(tiny(relative, **RELATIVES[relative])))
    tuned = Tuned(suite.Case(examples(methods()[name])[example], backbone))
    model, facts = tuned.model, tuned.facts
    assert sum(len(i.raw_data) for i in model.graph.initializer) < 10_000, "no weight may be copied"
    specs = specs_of(model, (7, 7, 7))  # a board tells its memory from them, before it runs
    assert all(specs[f"gradient:{name}"].shape == specs[name].shape for name in facts.leaves)
    assert peak_bytes(model.graph, specs) > sum(specs[name].n_bytes for name in facts.leaves)
    for batch, length in suite.SHAPES:
        require_pytorchs(tuned, batch, length)


@pytest.mark.parametrize(
    "kind", [kind for kind, head in heads().items() if not (head.decodes or head.per_token or head.bare)]
)
def test_dropout_stands_where_each_kind_of_head_has_it(tiny: Callable[..., Path], kind: str):
    """With the masks in its place PyTorch gives the same gradients; a probability of 0 leaves none."""
    backbone = open_backbone(str(tiny(suite.has_what_it_reads(kind))))
    case = suite.Case(examples(methods()["linear"])[0], backbone)
    case.moved = random_delta(backbone, "linear", "task", suite.LABELS, head=kind)
    tuned = Tuned(case)
    drawn: list[tuple[float, int]] = []

    def record(x: torch.Tensor, probability: float) -> torch.Tensor:
        drawn.append((probability, x.shape[1]))
        return x

    with replaced_dropout(case.moved, record):
        case.moved.logits(case.model, case.rows(2, 3))
    assert tuned.facts.dropouts == tuple(drawn) and drawn
    source = np.random.default_rng(0)
    require_pytorchs(tuned, 5, 9, [((source.random((5, width)) >= 0.4) / 0.6).astype(np.float32) for _, width in drawn])
    case.moved.card = case.moved.card.model_copy(update={"head_dropout": 0.0})
    without = Tuned(case, export_delta(case.moved, backbone))
    assert [i.name for i in without.model.graph.input if i.name.startswith("dropout:")] == []


@pytest.fixture
def pfeiffer(tiny: Callable[..., Path]) -> suite.Case:
    return suite.Case(examples(methods()["pfeiffer"])[0], open_backbone(str(tiny("bert"))))


@pytest.mark.parametrize("op", ["Gather", "Gelu", "LayerNormalization", "MatMul", "Softmax"])
def test_a_planted_rule_that_forgets_a_hundredth_is_found(
    pfeiffer: suite.Case, monkeypatch: pytest.MonkeyPatch, op: str
):
    right = rules()

    def wrong(at: Any) -> Any:
        yield from ((i, at.op("Mul", gradient, at.number(0.99))) for i, gradient in right[op](at))

    monkeypatch.setattr(gradient_rule, "rules", lambda: {**right, op: wrong})
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        require_pytorchs(Tuned(pfeiffer), 5, 9)


def test_an_operator_without_a_rule_is_refused_by_name(pfeiffer: suite.Case, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gradient_rule, "rules", lambda: {op: rule for op, rule in rules().items() if op != "Softmax"})
    with pytest.raises(BundleError, match=r"no gradient of Softmax .* between what is trained and the loss"):
        Tuned(pfeiffer)


def test_a_graph_that_breaks_onnxs_rules_is_refused_before_it_is_walked(tiny: Callable[..., Path]):
    """As a bundle from elsewhere may hold one: an operator reads what nothing gives."""
    found = open_backbone(str(tiny("bert")))
    graph = found.architecture.graph(found.checkpoint)
    graph.graph.node[-1].input[0] = "nowhere"
    with pytest.raises(BundleError, match=r"the task's graph is damaged: .*nowhere"):
        training_graph(graph, TrainingFacts((), Regression()), found.checkpoint, prefix_cache=False)


def test_the_same_task_gives_the_same_bytes_and_computes_nothing_twice(pfeiffer: suite.Case):
    one, two = Tuned(pfeiffer).model, Tuned(pfeiffer).model
    assert one.SerializeToString(deterministic=True) == two.SerializeToString(deterministic=True)
    written: dict[bool, list[Any]] = {True: [], False: []}
    for node in one.graph.node:
        what = (node.op_type, *node.input, *sorted(a.SerializeToString() for a in node.attribute))
        written[node.name.startswith("back/")].append(what)
    forward, back = written[False], written[True]
    assert len(back) > 50 and len(forward) > 50
    assert len(set(back)) == len(back) and not set(back) & set(forward)
