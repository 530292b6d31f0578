"""The one list of operators that a graph from elsewhere may hold is what our builders and exports emit, and no more."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
import pytest
import suite
from method_examples import examples

from edgepeft.backbones.source import open_backbone
from edgepeft.graph.validate import OPERATORS
from edgepeft.methods._adapters import ACTIVATIONS
from edgepeft.methods.base import Method, methods
from edgepeft.training.exporting.backbone import write_backbone

FAMILIES = {  # BERT with as many words as are worth quantising
    "bert": {"vocab_size": 1100},
    "roberta": {},
    "distilbert": {},
    "electra": {"embedding_size": 20},
    "mpnet": {},
    "modernbert": {},
    "deberta-v2": {},
    "t5": {},
}


def instances(method: type[Method]) -> Iterator[Method]:
    """Its examples, and one for each activation that it may have."""
    yield from examples(method)
    if "activation" in {field.name for field in dataclasses.fields(method)}:
        yield from (dataclasses.replace(examples(method)[0], activation=name) for name in ACTIVATIONS)


@pytest.mark.slow
def test_the_list_is_what_the_builders_and_exports_emit(tiny: Callable[..., Path], tmp_path: Path):
    emitted: dict[str, str] = {}

    def collect(model: onnx.ModelProto, where: str) -> None:
        assert {node.domain for node in model.graph.node} <= {""}
        for node in model.graph.node:
            emitted.setdefault(node.op_type, where)

    for model_type, options in FAMILIES.items():
        backbone = open_backbone(str(tiny(model_type, **options)))
        for dtype in ("fp32", "int8"):
            folder = tmp_path / f"{model_type}-{dtype}"
            folder.mkdir()
            write_backbone(backbone, folder, dtype)
            collect(onnx.load(folder / "backbone.onnx", load_external_data=False), model_type)
        fitting = {name: method for name, method in methods().items() if name not in suite.WITHOUT.get(model_type, ())}
        for name, method in fitting.items():
            for instance in instances(method) if model_type == "bert" else examples(method)[:1]:
                collect(suite.Case(instance, backbone).graph, f"{name} on {model_type}")
    assert set(emitted) - OPERATORS == set()
    assert OPERATORS - set(emitted) == set()
