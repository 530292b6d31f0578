"""Every method's training graph in ONNX Runtime against PyTorch: hooks, ``cross_entropy`` and ``backward``."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
import suite
import torch
from tolerance import Exact, exactly
from torch.nn import functional

from edgepeft.backbones.source import open_backbone
from edgepeft.errors import UsageError
from edgepeft.exporting.step import Step
from edgepeft.exporting.training_graph import export_training_graph
from edgepeft.graph.liveness import peak_bytes
from edgepeft.graph.shapes import sized
from edgepeft.methods.base import methods
from edgepeft.runtime.tuning.step import TrainingStep

RELATIVES = [("bert", {}), ("roberta", {}), ("distilbert", {}), ("electra", {"embedding_size": 20})]
WITH_GRADIENTS = [name for name in methods() if name != "intrinsic-said"]
# Writing a training graph takes 10 s and more.  Each of these is seen elsewhere, by a test that is not slow: what builds
# another method's modules by that method here, and the others where a test exports them to be tuned, for an export
# compares every gradient with PyTorch's in float64.  Any other method is here as soon as its file is there.
ELSEWHERE = {
    "adapterdrop": "houlsby",
    "compacter++": "compacter",
    "layernorm": "trainable in tests/conftest.py",
    "lora": "trainable in tests/conftest.py; below, with dropout",
    "pfeiffer": "trainable in tests/conftest.py",
    "prompt-r": "tests/runtime/tuning/test_storage.py",
    "prompt-t": "tests/runtime/tuning/test_storage.py",
    "top-k": "tests/runtime/tuning/test_storage.py",
}
# One runs under other instruction sets too: they share the kernels.
NUMERICAL = next(name for name in WITH_GRADIENTS if name not in ELSEWHERE)


def marks_of(name: str, example: int) -> list[pytest.MarkDecorator]:
    if example or name in ELSEWHERE:
        return [pytest.mark.slow]
    return [pytest.mark.numerical] if name == NUMERICAL else []


CASES = [
    pytest.param(name, example, id=f"{name}-{example}", marks=marks_of(name, example))
    for name in WITH_GRADIENTS
    for example in range(len(methods()[name].examples()))
]


def gradients_of(
    case: suite.Case, rows: dict[str, torch.Tensor], targets: torch.Tensor, masks: Sequence[np.ndarray] = ()
) -> dict[str, Exact]:
    """PyTorch's loss, logits and gradients, by the names of delta.safetensors; ``masks`` in the place of dropout."""
    delta, model = copy.deepcopy(case.moved).eval().double(), copy.deepcopy(case.model).double()
    supply = itertools.cycle(torch.from_numpy(mask) for mask in masks)
    if masks:
        delta.head.dropout.register_forward_hook(lambda _, __, y: y * next(supply))

    def backward() -> dict[str, torch.Tensor]:
        delta.zero_grad()
        logits = delta.logits(model, rows)
        loss = functional.cross_entropy(logits, targets)
        loss.backward()
        return {"loss": loss, "logits": logits, **{name: p.grad for name, p in delta.tensors().items()}}

    return exactly(backward)


@pytest.mark.parametrize(("name", "example"), CASES)
def test_the_gradients_of_the_training_graph_are_pytorchs(tiny: Callable[..., Path], name: str, example: int):
    model_type, options = RELATIVES[(WITH_GRADIENTS.index(name) + example) % len(RELATIVES)]
    backbone = open_backbone(str(tiny(model_type, **options)))
    case = suite.Case(methods()[name].examples()[example], backbone)
    model = export_training_graph(Step.of(case.moved, case.model, backbone), backbone, (1e-3, 1e-3))
    assert sum(len(i.raw_data) for i in model.graph.initializer) < 10_000, "no weight may be copied"
    everything = model.SerializeToString()
    assert all(text not in everything for text in (b"site-packages", b".py", str(Path.cwd()).encode()))
    graph = TrainingStep(model, backbone.folder, 1)
    specs = sized(model, {"batch": 3, "length": 7})  # a board tells its memory from them, before it runs
    assert all(specs[f"gradient:{name}"].shape == specs[name].shape for name in graph.facts.trained)
    assert peak_bytes(model.graph, specs) > sum(specs[name].n_bytes for name in graph.facts.trained)
    for batch, length in suite.SHAPES:
        rows, targets = case.rows(batch, length), torch.arange(batch) % len(suite.LABELS)
        exact = gradients_of(case, rows, targets)
        trained = {
            name: tensor.detach().numpy() for name, tensor in Step.of(case.moved, case.model, backbone).trained.items()
        }
        masks = [np.ones((batch, width), np.float32) for _, width in graph.facts.dropouts]
        found = graph(trained, {name: tensor.numpy() for name, tensor in rows.items()}, targets.numpy(), masks)
        exact.pop("loss").require(found.loss)
        exact.pop("logits").require(found.logits)
        for (stored, gradient), (on_disk, expected) in zip(found.gradients.items(), exact.items(), strict=True):
            assert stored.split("/")[0] == on_disk.split("/")[0]
            expected.require(gradient, stored)


def test_a_projection_of_the_whole_backbone_is_refused_by_name(tiny: Callable[..., Path]):
    backbone = open_backbone(str(tiny("bert")))
    case = suite.Case(methods()["intrinsic-said"].examples()[0], backbone)
    with pytest.raises(UsageError, match=r"intrinsic-said .* no training graph.*--trainable"):
        export_training_graph(Step.of(case.moved, case.model, backbone), backbone, (1e-3, 1e-3))


def test_dropout_comes_from_outside_and_scales_what_it_keeps(tiny: Callable[..., Path]):
    """RoBERTa's head drops out twice; with the masks in its place PyTorch gives the same gradients."""
    backbone = open_backbone(str(tiny("roberta")))
    case = suite.Case(methods()["lora"].examples()[0], backbone)
    model = export_training_graph(Step.of(case.moved, case.model, backbone), backbone, (1e-3, 1e-3))
    graph = TrainingStep(model, backbone.folder, 1)
    assert graph.facts.dropouts == ((0.1, 32), (0.1, 32))
    source = np.random.default_rng(0)
    masks = [((source.random((5, 32)) >= 0.4) / 0.6).astype(np.float32) for _ in range(2)]
    rows, targets = case.rows(5, 9), torch.arange(5) % 3
    exact = gradients_of(case, rows, targets, masks)
    trained = {name: tensor.detach().numpy() for name, tensor in case.moved.tensors().items()}
    found = graph(trained, {name: tensor.numpy() for name, tensor in rows.items()}, targets.numpy(), masks)
    exact["loss"].require(found.loss)
    for name in case.moved.tensors():
        exact[name].require(found.gradients[name], name)


def test_without_dropout_there_is_no_such_input_and_exporting_twice_gives_the_same_bytes(tiny: Callable[..., Path]):
    backbone = open_backbone(str(tiny("distilbert")))
    case = suite.Case(methods()["layernorm"].examples()[0], backbone)
    case.moved.head.dropout.p = 0.0
    model, again = (
        export_training_graph(Step.of(case.moved, case.model, backbone), backbone, (1e-3, 1e-3)) for _ in range(2)
    )
    assert [i.name for i in model.graph.input if i.name.startswith("dropout:")] == []
    assert model.SerializeToString(deterministic=True) == again.SerializeToString(deterministic=True)
    assert isinstance(model, onnx.ModelProto)
