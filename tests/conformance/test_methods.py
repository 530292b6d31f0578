"""Every method x its examples; a new method is found here as soon as its file is there."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import suite
from method_examples import examples

from edgepeft.backbones.source import open_backbone
from edgepeft.methods.base import methods
from edgepeft.methods.lora import LoRA

# Every instance on BERT, whose head reads a pooler; what depends on the family, on one relative each.
INSTANCES = [(name, example) for name, method in methods().items() for example in examples(method)]
NUMBERS = range(len(INSTANCES))
# One of each part of a graph: modules at sites, one with a rule for all layers, tensors of the backbone, made ones, a prompt.
EXPORTED_TWICE = {"bitfit", "compacter", "intrinsic-said", "lora", "prefix", "spartan"}
FIRST = pytest.mark.parametrize(
    "case", suite.first_quick(INSTANCES), indirect=True, ids=lambda i: f"{INSTANCES[i][0]}-{i}"
)


def relative_of(i: int) -> tuple[str, dict[str, Any]]:
    name, instance = INSTANCES[i]
    return suite.relative_of(name, [*examples(methods()[name])].index(instance))


def relatives() -> list[Any]:
    """Each instance's; those of a method's further instances are slow."""
    return [
        pytest.param(i, id=f"{INSTANCES[i][0]}-{i}-{relative_of(i)[0]}", marks=parameter.marks)
        for i, parameter in enumerate(suite.first_quick(INSTANCES))
    ]


@pytest.fixture(scope="module", params=NUMBERS, ids=lambda i: f"{INSTANCES[i][0]}-{i}")
def case(request: pytest.FixtureRequest, tiny: Callable[..., Path]) -> Iterator[suite.Case]:
    yield suite.Case(INSTANCES[request.param][1], open_backbone(str(tiny("bert"))))


@pytest.fixture(scope="module", params=relatives())
def relative(request: pytest.FixtureRequest, tiny: Callable[..., Path]) -> Iterator[suite.Case]:
    model_type, options = relative_of(request.param)
    yield suite.Case(INSTANCES[request.param][1], open_backbone(str(tiny(model_type, **options))))


def test_settings_survive_json(case: suite.Case):
    suite.settings_survive_json(case)


def test_the_file_says_what_the_method_is(case: suite.Case):
    suite.documented(case)


def test_the_count_is_the_deltas(case: suite.Case):
    suite.count_is_the_deltas(case)


def test_a_fresh_delta_is_near_the_identity_where_it_says_so(case: suite.Case):
    suite.near_identity_is_true(case)


def test_gradients_are_in_the_delta_and_nowhere_else(case: suite.Case):
    suite.gradients_are_the_deltas_alone(case)


def test_it_survives_the_disk(case: suite.Case, tmp_path: Path):
    suite.survives_disk(case, tmp_path / "delta")


@FIRST
def test_torch_with_hooks_equals_the_spliced_graph(case: suite.Case):
    suite.torch_equals_onnxruntime(case)


@FIRST
def test_the_delta_graph_holds_no_weight_of_the_backbone(case: suite.Case):
    suite.graph_is_plain_and_its_own(case)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(parameter.values[0], marks=parameter.marks if name in EXPORTED_TWICE else [pytest.mark.slow])
        for parameter, (name, _) in zip(suite.first_quick(INSTANCES), INSTANCES, strict=True)
    ],
    indirect=True,
    ids=lambda i: f"{INSTANCES[i][0]}-{i}",
)
def test_exporting_twice_gives_the_same_bytes(case: suite.Case):
    suite.export_is_deterministic(case)


def test_the_count_is_the_deltas_on_a_relative(relative: suite.Case):
    suite.count_is_the_deltas(relative)


def test_gradients_are_in_the_delta_and_nowhere_else_on_a_relative(relative: suite.Case):
    suite.gradients_are_the_deltas_alone(relative)


def test_torch_with_hooks_equals_the_spliced_graph_on_a_relative(relative: suite.Case):
    suite.torch_equals_onnxruntime(relative)


def test_another_process_exports_the_same_bytes(tiny: Callable[..., Path], tmp_path: Path):
    """Sets of strings have another order there."""
    backbone = open_backbone(str(tiny("bert")))
    case = suite.Case(LoRA(rank=2, roles=("query", "key", "value", "ffn_output")), backbone)
    case.moved.save(tmp_path / "delta")
    program = (
        "import sys, hashlib; from pathlib import Path; from edgepeft.backbones.source import open_backbone;"
        "from edgepeft.bundle.delta import Delta; from edgepeft.training.exporting.delta import export_delta;"
        "backbone = open_backbone(sys.argv[1]); graph = export_delta(Delta.load(Path(sys.argv[2]), backbone), backbone);"
        "print(hashlib.sha256(graph.SerializeToString()).hexdigest())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(backbone.folder), str(tmp_path / "delta")],
        env=os.environ | {"PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split()[-1] == hashlib.sha256(case.graph.SerializeToString()).hexdigest()
