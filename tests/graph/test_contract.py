"""Contracts of passes: each predicate on a planted pass that breaks it, and no pass without a contract."""

from __future__ import annotations

import importlib
import inspect
import os
import pkgutil
import re
import subprocess
import sys
import types
import typing
from collections.abc import Callable

import onnx
import pytest
from onnx import TensorProto

import edgepeft.graph
from edgepeft.graph import contract
from edgepeft.graph.contract import CHECKED, PASSES, Contract, ContractBroken

GRAPH = """
<ir_version: 10, opset_import: ["" : 20]>
g (float[2] x) => (float[2] logits) <float[2] w = {1, 2}> {
    [first] a = Add (x, w)
    [second] b = Neg (a)
    [third] logits = Abs (b)
}
"""
Edit = Callable[[onnx.GraphProto], None]


def parsed(text: str = GRAPH) -> onnx.ModelProto:
    return onnx.parser.parse_model(text)


def planted(edit: Edit, **promises: list) -> Callable[[onnx.ModelProto], None]:
    """A pass that does ``edit`` and promises otherwise."""

    @Contract(mutates=True, **promises)
    def planted_pass(model: onnx.ModelProto) -> None:
        edit(model.graph)

    return planted_pass


def loses_a_node(graph: onnx.GraphProto) -> None:
    del graph.node[1]


def loses_an_initializer(graph: onnx.GraphProto) -> None:
    del graph.initializer[:]


def reverses(graph: onnx.GraphProto) -> None:
    nodes = list(graph.node)[::-1]
    del graph.node[:]
    graph.node.extend(nodes)


def writes_twice(graph: onnx.GraphProto) -> None:
    graph.node[1].output[0] = "a"


def names_twice(graph: onnx.GraphProto) -> None:
    graph.node[1].name = "first"


def leaves_a_node(graph: onnx.GraphProto) -> None:
    graph.node.add(op_type="Exp", input=["a"], output=["dead"], name="dead")


def leaves_an_initializer(graph: onnx.GraphProto) -> None:
    graph.initializer.append(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(graph.initializer[0]), "unread"))


def takes_a_foreign_operator(graph: onnx.GraphProto) -> None:
    graph.node[1].domain = "com.microsoft"


def invents_an_operator(graph: onnx.GraphProto) -> None:
    graph.node[1].op_type = "Negate"


def reads_a_strange_file(graph: onnx.GraphProto) -> None:
    graph.initializer[0].data_location = TensorProto.EXTERNAL
    graph.initializer[0].external_data.add(key="location", value="../other.bin")


def adds_an_output(graph: onnx.GraphProto) -> None:
    graph.output.add(name="a")


def loses_the_output(graph: onnx.GraphProto) -> None:
    graph.output[0].name = "b"


def retypes_the_input(graph: onnx.GraphProto) -> None:
    graph.input[0].type.tensor_type.elem_type = TensorProto.DOUBLE


def replaces_an_operator(graph: onnx.GraphProto) -> None:
    graph.node[1].op_type = "Exp"


def renames_a_value(graph: onnx.GraphProto) -> None:
    graph.node[1].output[0] = graph.node[2].input[0] = "c"


def writes_where_it_was_made(graph: onnx.GraphProto) -> None:
    graph.node[1].doc_string = "model.py, line 3"


@pytest.mark.parametrize(
    ("edit", "predicate", "message"),
    [
        (loses_a_node, contract.closed, "Abs 'third' reads 'b', which nothing gives"),
        (loses_an_initializer, contract.closed, "Add 'first' reads 'w', which nothing gives"),
        (lambda graph: graph.output.add(name="z"), contract.closed, "nothing gives the output 'z'"),
        (reverses, contract.ordered, "Abs 'third' reads 'b', which comes later"),
        (writes_twice, contract.one_writer, "'a' stands 2 times"),
        (names_twice, contract.one_writer, "'first' stands 2 times"),
        (loses_a_node, contract.well_formed, "reads 'b', which nothing gives"),
        (reverses, contract.well_formed, "comes later"),
        (names_twice, contract.well_formed, "'first' stands 2 times"),
        (leaves_a_node, contract.all_used, "nothing needs Exp 'dead'"),
        (leaves_an_initializer, contract.all_used, "nothing reads the initializer 'unread'"),
        (takes_a_foreign_operator, contract.standard, "Neg 'second' of 'com.microsoft' is not ONNX's"),
        (invents_an_operator, contract.standard, "Negate 'second' of '' is not ONNX's"),
        (reads_a_strange_file, contract.weights_outside, "'w' lies in '../other.bin'"),
        (adds_an_output, contract.gives_logits, "its outputs are ['logits', 'a']"),
        (writes_where_it_was_made, contract.plain, "'second' has some"),
    ],
)
def test_a_broken_promise_is_named_with_the_pass_the_predicate_and_the_place(edit: Edit, predicate, message: str):
    with pytest.raises(ContractBroken, match=f"planted_pass ensures {predicate.__name__}, but .*{re.escape(message)}"):
        planted(edit, ensures=[predicate])(parsed())


@pytest.mark.parametrize(
    ("edit", "relation", "message"),
    [
        (loses_the_output, contract.same_interface, "outputs changed: ['logits'] to ['b']"),
        (retypes_the_input, contract.same_interface, "inputs changed: ['x'] to ['x']"),
        (retypes_the_input, contract.same_inputs, "inputs changed: ['x'] to ['x']"),
        (replaces_an_operator, contract.same_operators, "the operator Neg 'second' became Exp 'second'"),
        (renames_a_value, contract.values_stay, "'b' is gone"),
    ],
)
def test_what_a_pass_does_not_keep_is_named(edit: Edit, relation, message: str):
    with pytest.raises(ContractBroken, match=f"planted_pass keeps {relation.__name__}, but .*{re.escape(message)}"):
        planted(edit, keeps=[relation])(parsed())


def test_a_caller_who_gives_what_is_not_required_is_named_before_the_pass_runs():
    ran = []
    model = parsed()
    reverses(model.graph)
    with pytest.raises(ContractBroken, match="planted_pass requires ordered, but Abs 'third' reads 'b'"):
        planted(ran.append, requires=[contract.ordered])(model)
    assert ran == []


def test_a_pass_that_edits_its_argument_secretly_is_found():
    @Contract()
    def planted_pass(model: onnx.ModelProto) -> None:
        model.metadata_props.add(key="edgepeft.task", value="other")

    with pytest.raises(ContractBroken, match="planted_pass mutates its argument"):
        planted_pass(parsed())


def test_a_pass_that_returns_a_new_graph_is_checked_on_what_it_returns():
    @Contract(ensures=[contract.closed])
    def planted_pass(model: onnx.ModelProto) -> tuple[onnx.ModelProto, int]:
        copy = parsed()
        loses_a_node(copy.graph)
        return copy, 1

    with pytest.raises(ContractBroken, match="planted_pass ensures closed"):
        planted_pass(parsed())


def test_kept_promises_pass_and_the_result_comes_through():
    functions = [each for each in vars(contract).values() if inspect.isfunction(each)]
    everything = [each for each in functions if each.__module__ == contract.__name__ and each.__name__[0] != "_"]
    relations = [each for each in everything if len(inspect.signature(each).parameters) == 2]
    states = [each for each in everything if each not in relations]
    assert len(relations) == 4 and len(states) == len(everything) - 4

    @Contract(requires=states, ensures=states, keeps=relations)
    def planted_pass(model: onnx.ModelProto, *, value: int) -> tuple[onnx.ModelProto, int]:
        return parsed(), value

    assert planted_pass(parsed(), value=3) == (parsed(), 3)


def test_values_of_a_branch_are_its_own_and_it_may_read_the_graph_around_it():
    model = parsed(
        '<ir_version: 10, opset_import: ["" : 20]> g (bool c, float[2] x) => (float[2] y) { a = Neg (x) y = If (c) '
        "<then_branch = t () => (float[2] p) { o = Abs (a) p = Exp (o) }, else_branch = e () => (float[2] q) { q = Exp (a) }> }"
    )
    planted(lambda _: None, ensures=[contract.well_formed, contract.all_used])(model)
    del model.graph.node[0]
    with pytest.raises(ContractBroken, match="If 'y' reads 'a', which nothing gives"):
        planted(lambda _: None, ensures=[contract.closed])(model)


MODELS = {onnx.ModelProto, onnx.GraphProto}
MODULES = [
    importlib.import_module(info.name) for info in pkgutil.walk_packages(edgepeft.graph.__path__, "edgepeft.graph.")
]
HELPERS = {"contract", "protos"}  # what passes are made of


def carries_a_model(hint: object) -> bool:
    """Whether values of this type hold a graph: itself, or a part of a tuple or of a class with fields."""
    if typing.get_origin(hint) in (tuple, types.UnionType, typing.Union):
        return any(map(carries_a_model, typing.get_args(hint)))
    fields = typing.get_type_hints(hint) if isinstance(hint, type) else {}
    return hint in MODELS or not MODELS.isdisjoint(fields.values())


def edits_or_makes_a_model(function: Callable) -> bool:
    hints = typing.get_type_hints(inspect.unwrap(function))
    given_back = hints.pop("return")
    return not MODELS.isdisjoint(hints.values()) and (given_back is types.NoneType or carries_a_model(given_back))


def test_every_public_function_that_edits_or_makes_a_graph_has_a_contract():
    functions = {
        f"{module.__name__}.{name}"
        for module in MODULES
        if module.__name__.rpartition(".")[2] not in HELPERS
        for name, function in vars(module).items()
        if inspect.isfunction(function)
        and function.__module__ == module.__name__
        and not name.startswith("_")
        and edits_or_makes_a_model(function)
    }
    declared = {name for name in PASSES if name.startswith("edgepeft.graph.")}
    assert functions - declared == set(), "a pass without a contract"
    assert len(declared) >= 16
    for name in declared - functions:  # edits in place, and says whether
        assert PASSES[name].mutates, f"{name} has a contract and edits nothing"


def test_a_contract_costs_nothing_where_it_is_not_checked():
    program = (
        "from edgepeft.graph.contract import PASSES; from edgepeft.graph.cut import prune;"
        "print(sorted(name.rpartition('.')[2] for name in PASSES), hasattr(prune, '__wrapped__'))"
    )

    def printed(environment: dict[str, str]) -> str:
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    bare = {name: value for name, value in os.environ.items() if name != CHECKED}
    assert printed(bare) == "['above', 'below', 'prune', 'prune_with_inputs', 'rename_values', 'strip'] False"
    assert (
        printed({**bare, CHECKED: "1"})
        == "['above', 'below', 'prune', 'prune_with_inputs', 'rename_values', 'strip'] True"
    )
