"""Mutations that know the format: an ONNX graph, a safetensors header, a JSON document with something in the wrong place."""

from __future__ import annotations

import copy
import json
import random
import tomllib
from collections.abc import Callable, Sequence
from typing import Any

import onnx
from onnx import AttributeProto, TensorProto, helper

SECRET = "/etc/hostname"
NUMBERS = [-1, 0, 1, 2**31, 2**63 - 1, 10**30, -(10**30), 0.5, 1e308]
TEXTS = ["", "x" * 5000, "9" * 5000, "\x00", "../..", SECRET, "(a+)+$", "\ud800", "BF16", "F64", "I64", "__metadata__"]
_PLACES = [SECRET, "../model.safetensors", "model.safetensors", "*/_ORT_MEM_ADDR_/*", ""]
_OPERATORS = ["If", "Loop", "Scan", "Add", "Gather", "MatMul", "ConstantOfShape", "RandomNormal", "Tile", "Expand"]


def onnx_graph(source: random.Random, seeds: Sequence[bytes]) -> bytes:
    """One to three changes of the model, each of one message in it."""
    model = onnx.load_model_from_string(source.choice(seeds))
    for _ in range(source.randrange(1, 4)):
        source.choice(_CHANGES)(source, model)
    return bytes(model.SerializeToString())


def _external(source: random.Random) -> TensorProto:
    tensor = TensorProto(name="w", data_type=source.choice([1, 2, 7, 8, 99]), dims=source.sample([1, 4, 2**40, -1], 2))
    tensor.data_location = source.choice([TensorProto.EXTERNAL, TensorProto.DEFAULT])
    for _ in range(source.randrange(1, 4)):
        key = source.choice(["location", "location", "offset", "length", "checksum", "odd"])
        tensor.external_data.add(key=key, value=source.choice([*_PLACES, "0", "16", "9" * 30, "-1"]))
    return tensor


def _tensor(source: random.Random, model: onnx.ModelProto) -> TensorProto:
    """One that the model has: an initializer, or a constant."""
    constants = [a.t for n in model.graph.node for a in n.attribute if a.type == AttributeProto.TENSOR]
    return source.choice([*model.graph.initializer, *constants] or [model.graph.initializer.add()])


def _add_function(source: random.Random, model: onnx.ModelProto) -> None:
    node = helper.make_node("Constant", [], ["y"], value=_external(source))
    function = helper.make_function("own", "F", [], ["y"], [node], [helper.make_opsetid("", 20)])
    function.attribute_proto.append(helper.make_attribute("a", _external(source)))
    model.functions.append(function)
    if source.random() < 0.5:
        model.opset_import.append(helper.make_opsetid("own", 1))
        model.graph.node.append(helper.make_node("F", [], ["from_function"], domain="own"))


def _external_initializer(source: random.Random, model: onnx.ModelProto) -> None:
    model.graph.initializer.append(_external(source))


def _point_elsewhere(source: random.Random, model: onnx.ModelProto) -> None:
    tensor = _tensor(source, model)
    if source.random() < 0.5:
        tensor.ClearField("raw_data")
    tensor.MergeFrom(TensorProto(external_data=_external(source).external_data, data_location=TensorProto.EXTERNAL))


def _reshape(source: random.Random, model: onnx.ModelProto) -> None:
    tensor = _tensor(source, model)
    del tensor.dims[:]
    tensor.dims.extend(source.choices([0, 1, 2, 3, -1, 2**31, 2**62], k=source.randrange(4)))


def _retype(source: random.Random, model: onnx.ModelProto) -> None:
    _tensor(source, model).data_type = source.randrange(25)


def _drop_values(source: random.Random, model: onnx.ModelProto) -> None:
    _tensor(source, model).ClearField(source.choice(["raw_data", "dims", "data_type", "name"]))


def _sparse(source: random.Random, model: onnx.ModelProto) -> None:
    model.graph.sparse_initializer.add(values=_external(source), indices=_external(source), dims=[2**40])


def _attribute(source: random.Random, model: onnx.ModelProto) -> None:
    node = source.choice(model.graph.node)
    attribute = source.choice(node.attribute) if node.attribute and source.random() < 0.5 else node.attribute.add()
    attribute.name = attribute.name or source.choice(["axis", "perm", "to", "value", "then_branch", "equation"])
    attribute.type = source.randrange(15)
    match source.randrange(7):
        case 0:
            attribute.g.initializer.append(_external(source))
        case 1:
            attribute.t.CopyFrom(_external(source))
        case 2:
            attribute.tensors.append(_external(source))
        case 3:
            attribute.sparse_tensor.values.CopyFrom(_external(source))
        case 4:
            attribute.ref_attr_name = "axis"
        case 5:
            attribute.i = source.choice([-(2**63), -1, 99, 2**63 - 1])
        case _:
            attribute.s = source.choice([b"\xff", b"ij,jk->" + b"i" * 500, b"..." * 99])


def _node(source: random.Random, model: onnx.ModelProto) -> None:
    names = [name for node in model.graph.node for name in node.output]
    node = helper.make_node(source.choice(_OPERATORS), source.choices([*names, ""], k=2), [source.choice(names) + "_"])
    if node.op_type in ("If", "Loop", "Scan"):
        node.attribute.append(helper.make_attribute("body", onnx.GraphProto(name="body")))
    node.domain = source.choice(["", "", "com.microsoft", "own"])
    model.graph.node.insert(source.randrange(len(model.graph.node) + 1), node)


def _rewire(source: random.Random, model: onnx.ModelProto) -> None:
    node, other = source.choices(model.graph.node, k=2)
    names = source.choice([node.input, node.output])
    if names:
        names[source.randrange(len(names))] = source.choice([*other.output, *other.input, "", "nowhere", "logits"])


def _unwire(source: random.Random, model: onnx.ModelProto) -> None:
    del source.choice([model.graph.node, model.graph.output, model.graph.input, model.opset_import])[:1]


def _interface(source: random.Random, model: onnx.ModelProto) -> None:
    value = source.choice([*model.graph.input, *model.graph.output])
    source.choice([lambda: value.ClearField("type"), lambda: value.type.tensor_type.ClearField("shape")])()


def _card(source: random.Random, model: onnx.ModelProto) -> None:
    if model.metadata_props:
        source.choice(model.metadata_props).value = source.choice([*TEXTS[:-1], *map(str, NUMBERS)]).replace(
            "\ud800", ""
        )


_CHANGES: list[Callable[[random.Random, onnx.ModelProto], None]] = [
    _add_function,
    _attribute,
    _attribute,
    _card,
    _drop_values,
    _external_initializer,
    _interface,
    _node,
    _point_elsewhere,
    _reshape,
    _retype,
    _rewire,
    _sparse,
    _unwire,
]


def safetensors_header(source: random.Random, seeds: Sequence[bytes]) -> bytes:
    """A header changed as a JSON document, or of another length than is stated, before the same values."""
    data = source.choice(seeds)
    length = int.from_bytes(data[:8], "little")
    header, values = data[8 : 8 + length], data[8 + length :]
    if source.random() < 0.1:
        stated = source.choice([0, 1, length - 1, length + 1, 2**40, 2**64 - 1])
        return stated.to_bytes(8, "little") + header + values
    header = json_document(source, [header])
    return len(header).to_bytes(8, "little") + header + values


def json_document(source: random.Random, seeds: Sequence[bytes]) -> bytes:
    """One to three places of the document with another value, another key, twice, or not at all."""
    document = json.loads(source.choice(seeds))
    for _ in range(source.randrange(1, 4)):
        holders = [value for value in _values(document) if isinstance(value, (dict, list)) and value]
        if not holders:
            break
        holder = source.choice(holders)
        key: Any = source.choice(list(holder)) if isinstance(holder, dict) else source.randrange(len(holder))
        match source.randrange(6):
            case 0:
                holder[key] = source.choice(NUMBERS)
            case 1:
                holder[key] = source.choice(TEXTS)
            case 2:
                holder[key] = source.choice([None, True, [], {}, [holder[key]] * 3, {"type": holder[key]}])
            case 3:
                del holder[key]
            case 4:
                holder[key] = copy.deepcopy(source.choice(holders[:50]))
            case _ if isinstance(holder, dict):
                holder[source.choice(TEXTS)] = holder[key]
            case _:
                holder.append(holder[key])
    return json.dumps(document).encode()


def _values(value: Any) -> list[Any]:
    """It, and every value within it."""
    below = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [value, *(inner for one in below for inner in _values(one))]


def checkpoint_file(source: random.Random, seeds: Sequence[bytes]) -> bytes:
    """A config or a header changed by its structure; the file's name stands before it."""
    name, _, content = source.choice(seeds).partition(b"\n")
    change = json_document if name.endswith(b".json") else safetensors_header
    return name + b"\n" + change(source, [content])


def plan_file(source: random.Random, seeds: Sequence[bytes]) -> bytes:
    """A plan changed by its structure."""
    document = json.loads(json_document(source, [json.dumps(tomllib.loads(each.decode())).encode() for each in seeds]))
    return "".join(f"{json.dumps(key)} = {_toml(value)}\n" for key, value in document.items()).encode(errors="replace")


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value).replace("Infinity", "inf").replace("NaN", "nan").replace("null", "nan")
