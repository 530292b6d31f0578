"""Whether a parsed model is one that edgepeft could have written; whatever else ONNX allows is refused.

A graph from elsewhere is data that somebody made.  ONNX lets a model read files (external data, of initializers,
attributes and functions), hold sub-graphs (``If``, ``Loop``, ``Scan``) and custom operators, and state sizes that its
bytes do not have.  Our builders and exports use none of these but the bundle's own weights file, so a reader needs one
short list of what may stand in a graph, and nothing is allocated before its size is known.

``more_parts_than`` counts a protobuf message's parts in its bytes before anything is made of them: an empty message of
two bytes becomes an object of a hundred or more, a file of 60 MB gigabytes.  Only what is a message by its descriptor
is entered; the bytes of a tensor are one part.  Source: https://protobuf.dev/programming-guides/encoding.
"""

import math
import re
from collections.abc import Iterator

import onnx
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from onnx import AttributeProto, TensorProto

from edgepeft.common.errors import BundleError
from edgepeft.graph.contract import Contract
from edgepeft.graph.protos import copied, place_of, submessages

MAX_PARTS = 250_000  # fields of all messages; the largest backbones that are known have a tenth
_VALUES_OF_A_PART = 16  # packed integers, of which a byte becomes 8
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_STORED = (FieldDescriptor.CPPTYPE_STRING, FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE)  # as they are


def more_parts_than(most: int, content: bytes, kind: Descriptor) -> bool:
    """Whether a message of that kind has more fields than ``most``, its submessages' included.

    What is no such message is counted as far as it can be read; its parser says what is wrong.
    """
    if len(content) <= most:  # each part takes a byte and more
        return False
    left = most
    waiting = [(0, len(content), kind)]
    while waiting:
        at, end, kind = waiting.pop()
        fields = kind.fields_by_number
        while at < end:
            left -= 1
            tag, at = _varint(content, at, end)
            wire = tag & 7
            if wire == _BYTES:
                length, at = _varint(content, at, end)
                field = fields.get(tag >> 3)
                if field is not None and field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
                    waiting.append((at, min(end, at + length), field.message_type))
                elif field is not None and field.cpp_type not in _STORED:
                    left -= min(length, end - at) // _VALUES_OF_A_PART
                at += length
            elif wire == _VARINT:
                _, at = _varint(content, at, end)
            elif wire in (_FIXED32, _FIXED64):
                at += 4 if wire == _FIXED32 else 8
            else:
                break
            if left < 0:
                return True
    return False


def _varint(content: bytes, at: int, end: int) -> tuple[int, int]:
    """The number at a place, and the place behind it."""
    value = shift = 0
    while at < end and shift < 64:
        byte = content[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            break
    return value, at


# What the builders of backbones, and the methods' and heads' exports emit.
OPERATORS = frozenset(
    (
        *("Add", "And", "Cast", "CastLike", "Clip", "Concat", "Constant", "Cos", "CumSum", "DequantizeLinear"),
        *("Div", "Einsum", "Equal", "Exp", "Expand", "Gather", "GatherElements", "GatherND", "Gelu", "Gemm"),
        *("Greater", "GreaterOrEqual", "Identity", "LayerNormalization", "LeakyRelu", "Less", "LessOrEqual"),
        *("LogSoftmax", "MatMul", "MatMulInteger", "Max", "Mish", "Mod", "Mul", "Neg", "NonZero", "Not", "Pow"),
        *("QuantizeLinear", "Range", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "Relu", "Reshape"),
        *("Shape", "Sigmoid", "Sin", "Slice", "Softmax", "Sqrt", "Squeeze", "Sub", "Tanh", "Transpose"),
        *("Unsqueeze", "Where"),
    )
)
_ATTRIBUTES = frozenset(
    map(AttributeProto.AttributeType.Value, ("FLOAT", "FLOATS", "INT", "INTS", "STRING", "STRINGS", "TENSOR"))
)
_EXTERNAL_KEYS = ("length", "location", "offset")
_NUMBER = re.compile(r"[0-9]{1,15}")
_TYPED_FIELDS = ("float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data")
_ITEM_BITS: dict[int, int] = {
    TensorProto.UINT4: 4,
    **dict.fromkeys((TensorProto.BOOL, TensorProto.INT8, TensorProto.UINT8), 8),
    TensorProto.FLOAT16: 16,
    **dict.fromkeys((TensorProto.FLOAT, TensorProto.INT32), 32),
    **dict.fromkeys((TensorProto.DOUBLE, TensorProto.INT64), 64),
}


@Contract()
def check_sound(model: onnx.ModelProto, where: object, weights: str | None = None) -> None:
    """See that the model holds nothing that we never write; ``weights`` is the one file that it may read.

    Changes nothing, opens nothing, and allocates no more than the model's own bytes.
    """
    fields = (pair for message in submessages(model) for pair in message.ListFields())
    for value in (value for field, value in fields if field.type == FieldDescriptor.TYPE_STRING):
        for text in (value,) if isinstance(value, (str, bytes)) else value:
            if not isinstance(text, str):
                raise BundleError(f"{where} is damaged: it holds the name {text!r:.60}, which is no UTF-8 text.")
    for problem in _structure(model):
        raise BundleError(f"{where} holds {problem}, which edgepeft never writes. Do not use it.")
    given = (each for node in model.graph.node for each in node.attribute)
    constants = (attribute.t for attribute in given if attribute.type == AttributeProto.TENSOR)
    for tensor in (*model.graph.initializer, *constants):
        if tensor.data_location == TensorProto.EXTERNAL or tensor.external_data:
            _check_external(tensor, weights, where)
            continue
        # As many values as its shape says, in one field.
        expected, size = _n_bytes(tensor, where), _ITEM_BITS[tensor.data_type] // 8
        stored = [len(tensor.raw_data)] if tensor.HasField("raw_data") else []
        stored += [size * len(values) for name in _TYPED_FIELDS if (values := getattr(tensor, name))]
        if stored != [expected] and (stored or expected):
            raise BundleError(
                f"{where} is damaged: its tensor {tensor.name!r:.60} cannot be read (shape {[*tensor.dims]!s:.80}: "
                f"{expected} bytes; {sum(stored)} are there)."
            )


@Contract()
def check_standard(model: onnx.ModelProto) -> None:
    """See that the model keeps to ONNX's rules; what lies in the weights file is taken as an input of its shape.

    The checker opens external data itself, and refuses hard links, of which many backups and copies consist.
    """
    copy = copied(model)
    del copy.graph.initializer[:]
    for tensor in model.graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            copy.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
        else:
            copy.graph.initializer.append(tensor)
    onnx.checker.check_model(copy)


def _structure(model: onnx.ModelProto) -> Iterator[str]:
    """What the model holds besides nodes of known operators and plain tensors, in words."""
    graph = model.graph
    for found, what in (
        (model.functions, "a function"),
        (model.training_info, "training information"),
        (graph.sparse_initializer, "a sparse tensor"),
    ):
        if found:
            yield what
    yield from (f"operators of the domain {one.domain!r:.60}" for one in model.opset_import if one.domain)
    for node in graph.node:
        if node.domain or node.op_type not in OPERATORS:
            yield f"the operator {f'{node.domain}.{node.op_type}'.lstrip('.')!r:.60}"
        for attribute in node.attribute:
            # It may carry a graph or a tensor beside what its type says.
            others = (attribute.graphs, attribute.tensors, attribute.sparse_tensors, attribute.type_protos)
            stray = any(others) or any(attribute.HasField(name) for name in ("g", "sparse_tensor", "tp"))
            stray |= attribute.HasField("t") and attribute.type != AttributeProto.TENSOR
            if attribute.type not in _ATTRIBUTES or attribute.ref_attr_name or stray:
                yield f"an attribute {attribute.name!r:.60} of another kind than numbers, texts and tensors"


def _check_external(tensor: TensorProto, weights: str | None, where: object) -> None:
    """See that an external tensor states each key once, and names the weights file.

    Of a key that stands twice ONNX Runtime takes the last one, other readers the first.
    """
    places = [entry.value for entry in tensor.external_data if entry.key == "location"]
    strange = sorted({*places} - {weights}) or ([] if places else [""])
    if strange or weights is None:
        may = "it must be whole by itself" if weights is None else f"only {weights} lies there for it"
        name = strange[0] if strange else ""
        raise BundleError(f"{where} wants to read the file {name!r:.80}; {may}. Do not use it.")
    entries = place_of(tensor)
    numbers = [entries.get(key, "") for key in ("offset", "length")]
    if (
        sorted(entry.key for entry in tensor.external_data) != [*_EXTERNAL_KEYS]
        or tensor.data_location != TensorProto.EXTERNAL
        or not all(map(_NUMBER.fullmatch, numbers))
        or int(entries["length"]) != _n_bytes(tensor, where)
    ):
        raise BundleError(
            f"{where} is damaged: of its tensor {tensor.name!r:.60} in {weights} one location, offset and length were "
            "expected, and the length of its shape. Do not use it."
        )


def _n_bytes(tensor: TensorProto, where: object) -> int:
    """Bytes that the tensor's shape and type ask for."""
    if tensor.data_type not in _ITEM_BITS or min(tensor.dims, default=0) < 0:
        raise BundleError(
            f"{where} is damaged: its tensor {tensor.name!r:.60} cannot be read (type {tensor.data_type}, "
            f"shape {[*tensor.dims]!s:.80})."
        )
    n_bits: int = math.prod(tensor.dims) * _ITEM_BITS[tensor.data_type]
    return -(-n_bits // 8)
