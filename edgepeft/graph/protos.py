"""Small accessors for ONNX's messages, which all passes share."""

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, MutableSequence, Sequence
from typing import Any, TypeVar

import numpy as np
import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

M = TypeVar("M", bound=Message)
CONTRIB = "com.microsoft"  # ONNX Runtime's own operators


def copied(message: M) -> M:
    """A copy that shares nothing with ``message``."""
    copy: M = type(message)()
    copy.CopyFrom(message)
    return copy


def floats(name: str, shape: Sequence[str | int] | None) -> onnx.ValueInfoProto:
    """An input or output, float32."""
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def integers(name: str, shape: Sequence[str | int]) -> onnx.ValueInfoProto:
    """An input, int64."""
    return helper.make_tensor_value_info(name, TensorProto.INT64, shape)


def external_tensors(graph: onnx.GraphProto) -> Iterator[TensorProto]:
    """The graph's tensors that lie in a file, or are made when it is opened."""
    return (tensor for tensor in graph.initializer if tensor.data_location == TensorProto.EXTERNAL)


def place_of(tensor: TensorProto) -> dict[str, str]:
    """What an external tensor says of its ``location``, ``offset`` and ``length``."""
    return {entry.key: entry.value for entry in tensor.external_data}


def submessages(message: Message) -> Iterator[Message]:
    """The message and every one inside it; data fields are not entered."""
    yield message
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for part in (value,) if isinstance(value, Message) else value:
                yield from submessages(part)


def replace(field: MutableSequence[M], items: Iterable[M]) -> None:
    """Have a repeated field hold copies of ``items``, which may be its own."""
    kept = list(map(copied, items))
    del field[:]
    field.extend(kept)


def replace_nodes(graph: onnx.GraphProto, nodes: Sequence[onnx.NodeProto]) -> None:
    """Have nodes take the place of those that give the same values."""
    given = {name for node in nodes for name in node.output}
    replace(graph.node, [*(node for node in graph.node if given.isdisjoint(node.output)), *nodes])


def remade(model: onnx.ModelProto, graph: onnx.GraphProto) -> onnx.ModelProto:
    """Another graph, of the same operators' versions."""
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)


def use_contrib(model: onnx.ModelProto) -> None:
    """Declare that a model has operators of ``CONTRIB``."""
    if all(each.domain != CONTRIB for each in model.opset_import):
        model.opset_import.append(helper.make_opsetid(CONTRIB, 1))


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """A node's attributes by name."""
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


def constant(graph: onnx.GraphProto, name: str) -> NDArray[Any] | None:
    """What a constant of the graph holds; None for any other value."""
    for tensor in graph.initializer:
        if tensor.name == name and tensor.data_location != TensorProto.EXTERNAL:
            return numpy_helper.to_array(tensor)
    for node in graph.node:
        if name in node.output and node.op_type == "Constant":
            for value in attributes(node).values():
                return numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.asarray(value)
    return None


def properties(model: onnx.ModelProto) -> dict[str, str]:
    """A model's own metadata."""
    return {entry.key: entry.value for entry in model.metadata_props}


def writers(graph: onnx.GraphProto) -> Mapping[str, onnx.NodeProto]:
    """The node that gives each value."""
    return {name: node for node in graph.node for name in node.output if name}


def readers(graph: onnx.GraphProto) -> Mapping[str, list[onnx.NodeProto]]:
    """The nodes that read each value, one that reads it twice as often."""
    found: dict[str, list[onnx.NodeProto]] = defaultdict(list)
    for node in graph.node:
        for name in reads(node):
            found[name].append(node)
    return found


def values_read(graph: onnx.GraphProto) -> Counter[str]:
    """How often nodes read each value; an output of the graph is read once more."""
    found = Counter(name for node in graph.node for name in reads(node))
    found.update(output.name for output in graph.output)
    return found


def match_chain(value: str, writer: Mapping[str, onnx.NodeProto], *operators: str) -> list[onnx.NodeProto]:
    """Nodes of these operators that give a value, each the first input of the one before; [] where one differs."""
    found: list[onnx.NodeProto] = []
    for operator in operators:
        node = writer.get(value)
        if node is None or node.op_type != operator:
            return []
        found.append(node)
        value = node.input[0]
    return found


def either_way(node: onnx.NodeProto) -> tuple[tuple[str, str], tuple[str, str]]:
    """What a sum or product of two reads, in both orders."""
    first, second = node.input
    return (first, second), (second, first)


def ancestors(values: Iterable[str], writer: Mapping[str, onnx.NodeProto], seen: set[str]) -> Iterator[onnx.NodeProto]:
    """Each node that gives ``values`` or what they depend on, down to what was ``seen``, to which all is added."""
    waiting = list(values)
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            if name in writer:
                yield writer[name]
                waiting += reads(writer[name])


def trace_back(value: str, writer: Mapping[str, onnx.NodeProto], operators: Container[str]) -> list[str]:
    """The value, and those above it that ``operators`` made it of, each from its first input."""
    chain = [value]
    while value in writer and writer[value].op_type in operators:
        value = writer[value].input[0]
        chain.append(value)
    return chain


def replace_reads(graph: onnx.GraphProto, changed: Mapping[str, str]) -> None:
    """Have every node read what ``changed`` says in place of a value."""
    for node in graph.node:
        node.input[:] = [changed.get(name, name) for name in node.input]


def set_aside(graph: onnx.GraphProto, value: str, name: str) -> None:
    """Have a value written, and read by nodes, as ``name``; what gives the graph's output of the old one can follow."""
    for node in graph.node:
        node.output[:] = [name if each == value else each for each in node.output]
        node.input[:] = [name if each == value else each for each in node.input]
        node.name = name if node.name == value else node.name


def subgraphs(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.GraphProto]:
    """The branches and bodies of control flow that stand in these nodes, not those inside them in turn."""
    for attribute in (attribute for node in nodes for attribute in node.attribute):
        yield from (*attribute.graphs, *((attribute.g,) if attribute.HasField("g") else ()))


def reads(node: onnx.NodeProto) -> Iterator[str]:
    """Every value that a node reads, its subgraphs' included."""
    yield from filter(None, node.input)
    yield from (name for graph in subgraphs([node]) for inner in graph.node for name in reads(inner))
