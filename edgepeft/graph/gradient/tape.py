"""What rules write on: nodes that are appended to a graph, none of them twice, and the sizes of the forward values.

Sizes are known from a few sample batches: an extent that is the same in each is the graph's own, any other follows from
the batch.  Two axes that have the same extents in every sample are one axis.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from edgepeft.backbones.windows import LONGEST
from edgepeft.graph.prompt import prompt_in
from edgepeft.graph.protos import attributes, constant
from edgepeft.graph.shapes import Spec, sized

__all__ = ["Extent", "Tape", "measured", "specs_of"]

Extent = tuple[int, ...]  # of one axis, in each sample
_COUNTS = {TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL}
# Of rows; neither counts nor sums nor products recur, nor multiples of them, whatever the length of a prompt: of
# (5, 2, 4) beside the other, a prompt of 1 made rows twice as long as there are rows in both.
_LENGTHS = ((6, 2, 4), (13, 7, 3, 8, 1, 9, 6))
_TARGETS = (13, 17)  # tokens of the longest target, where text is taught
_ROWS, _MOST = (19, 23), (29, 31)  # rows, and token rows of one, where a row is several: shapes alone, not whose
_TEXTS = 37  # more than rows, where each is read in windows


class Tape:
    """A graph that grows.  ``samples`` hold the spec of every value that the graph has now, in each sample batch.

    All methods return the name of a value.
    """

    def __init__(self, graph: onnx.GraphProto, samples: Sequence[Mapping[str, Spec]]) -> None:
        self.graph, self._samples = graph, samples
        self._made = {_key(node.op_type, node.input, attributes(node)): node.output[0] for node in graph.node}
        self._constants: dict[tuple[int, bytes, tuple[int, ...]], str] = {}
        self._sources = dict(self._cheap())

    def op(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """The value of this node, which is appended unless it is there already."""
        key = _key(op_type, inputs, attributes)
        if key not in self._made:
            name = f"back/{op_type.lower()}_{len(self.graph.node)}"
            self.graph.node.append(helper.make_node(op_type, inputs, [name], name=name, **attributes))
            self._made[key] = name
        made: str = self._made[key]
        return made

    def constant(self, values: Any, kind: int) -> str:
        """A small initializer of that element type."""
        array = np.asarray(values, helper.tensor_dtype_to_np_dtype(kind))
        key = (kind, array.tobytes(), array.shape)
        if key not in self._constants:
            self._constants[key] = f"back/constant_{len(self._constants)}"
            self.graph.initializer.append(numpy_helper.from_array(array, self._constants[key]))
        return self._constants[key]

    def ints(self, *values: int) -> str:
        """A one-dimensional int64 constant, such as axes."""
        return self.constant(values, TensorProto.INT64)

    def number(self, value: float, like: str) -> str:
        """A scalar of the element type that ``like`` has."""
        return self.constant(value, self.kind(like))

    def value(self, name: str) -> NDArray[Any] | None:
        """What a constant of the graph holds; None for any other value."""
        return constant(self.graph, name)

    def has(self, value: str) -> bool:
        """Whether a node gives it; where the graph is cut, the samples hold what is below too."""
        return any(value in node.output for node in self.graph.node)

    def kind(self, value: str) -> int:
        """Its element type, of a forward value."""
        return self._samples[0][value].kind

    def extents(self, value: str) -> tuple[Extent, ...]:
        """Of each axis of a forward value."""
        return tuple(zip(*(sample[value].shape for sample in self._samples), strict=True))

    def rank(self, value: str) -> int:
        """How many axes a forward value has."""
        return len(self._samples[0][value].shape)

    def reshaped(self, value: str, like: str) -> str:
        """``value`` in the shape of the forward value ``like``, which has as many numbers."""
        extents = self.extents(like)
        fixed = [extent[0] if _is_fixed(extent) else -1 for extent in extents]
        if fixed.count(-1) <= 1 and 0 not in fixed:
            return self.op("Reshape", value, self.ints(*fixed))
        return self.op("Reshape", value, self.shape(*extents, of=like), allowzero=1)

    def shape(self, *extents: Extent, of: str = "") -> str:
        """int64 [rank]; what has to be asked of the forward value ``of`` keeps it alive, so others are asked first."""
        if all(map(_is_fixed, extents)):
            return self.constant([extent[0] for extent in extents], TensorProto.INT64)
        parts = [self._size(extent, of, axis) for axis, extent in enumerate(extents)]
        return self.op("Concat", *parts, axis=0) if len(parts) > 1 else parts[0]

    def _size(self, extent: Extent, of: str, axis: int) -> str:
        """int64 [1]."""
        if _is_fixed(extent):
            return self.ints(extent[0])
        for source, (value, at) in self._sources.items():
            times, rest = divmod(extent[0], source[0]) if source[0] else (0, 1)
            if not rest and times and all(whole == times * one for whole, one in zip(extent, source, strict=True)):
                size = self.op("Shape", value, start=at, end=at + 1)
                return size if times == 1 else self.op("Mul", size, self.ints(times))
        return self.op("Shape", of, start=axis, end=axis + 1)

    def _cheap(self) -> Iterator[tuple[Extent, tuple[str, int]]]:
        """Extent -> a value that has it, of those that are there all the time or take little: inputs and integers."""
        given = [value.name for value in self.graph.input]
        integers = [n for node in self.graph.node for n in node.output if n and self.kind(n) in _COUNTS]
        for name in reversed([*given, *integers]):  # the first one counts
            for axis, extent in enumerate(self.extents(name)):
                if not _is_fixed(extent):
                    yield extent, (name, axis)


def _is_fixed(extent: Extent) -> bool:
    return len(set(extent)) == 1


def _key(op_type: str, inputs: Sequence[str], attributes: Mapping[str, Any]) -> tuple[Any, ...]:
    values = {n: v.SerializeToString() if isinstance(v, TensorProto) else repr(v) for n, v in attributes.items()}
    return (op_type, *inputs, *sorted(values.items()))


def measured(model: onnx.ModelProto) -> tuple[dict[str, Spec], ...]:
    """The spec of every value, in each sample."""
    rows = zip(_LENGTHS, _TARGETS, _ROWS, _MOST, strict=True)
    samples = [specs_of(model, lengths, *sizes) for lengths, *sizes in rows]
    longest = constant(model.graph, LONGEST)
    if longest is not None:  # else a block of a row would be taken for the row
        samples.append(specs_of(model, (int(longest) + 23, 19), _TARGETS[0] + 10, 37, 41))
    return tuple(samples)


def specs_of(
    model: onnx.ModelProto, lengths: tuple[int, ...], target: int = 0, rows: int | None = None, most: int = 1
) -> dict[str, Spec]:
    """The spec of every value for token rows of these lengths and a longest target of so many, in tokens; and where a
    row is several, for so many rows of at most so many."""
    mask = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int64)
    prompt = prompt_in(model.graph)
    tokens = sum(lengths) + prompt * len(lengths)
    sizes = {"batch": len(lengths), "sequence": max(lengths), "tokens": tokens, "target": target}
    sizes |= {"rows": rows or len(lengths), "most": most, "texts": (rows or len(lengths)) + _TEXTS}
    return sized(model, sizes, {"attention_mask": mask})
