"""Pass: tasks of one structure answer in one pass, each for rows of its own.

Rows stand in the order of the ``n`` slots, so a slot's rows and tokens are consecutive: what reads a task's values is
repeated for each slot on a slice of them, and joined again where the backbone goes on.  Nothing is gathered or padded:
weights are fed where they lie, and each slot has logits of its own.

A delta's nodes see packed tokens, and no row's answer may depend on its neighbours: so they may be given any run of
tokens.  Those that read which row a token is of may not, nor may the backbone's own nodes but for the few named here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

import onnx
from onnx import TensorProto, helper, numpy_helper

from edgepeft.backbones.base import PackedIndex, Role
from edgepeft.backbones.packing import LONGER
from edgepeft.backbones.trie import LABEL_VALUES
from edgepeft.graph.contract import Contract, all_used, gives_logits, standard, well_formed
from edgepeft.graph.names import LOGITS, without_prefix
from edgepeft.graph.protos import attributes, copied, integers, remade
from edgepeft.graph.prune_last_layer import picked_rows_name

ROW_COUNTS, TOKEN_COUNTS = "mixed/rows", "mixed/tokens"  # int64 [slots]: how many of the batch are each slot's
# Nodes of the backbone that may read a task's vector, and those whose result has the first axis of an operand.
_BY_ROW = {"Add", "LayerNormalization", "Mul"}
_FIRST_OPERAND = {"Gemm", "LayerNormalization", "MatMul"}
_ELEMENTWISE = {"Add", "Div", "Gelu", "Identity", "Max", "Mul", "Relu", "Sub", "Tanh"}
_PICKS = {"Gather", "GatherND"}
_KEEPS = {"Concat", "Expand", "Transpose", "Unsqueeze"}  # the first axis, on conditions


class _Axis(StrEnum):
    """What a value's first axis counts."""

    TOKENS = TOKEN_COUNTS
    ROWS = ROW_COUNTS


def slotted(name: str, slot: int) -> str:
    """A value's part, or a task's value, in one slot."""
    return f"{name}/slot{slot}"


@Contract(requires=[well_formed, standard, all_used, gives_logits], ensures=[well_formed, standard, all_used])
def mix(structure: onnx.ModelProto, feeds: Iterable[str], sites: Mapping[str, str], n: int) -> onnx.ModelProto | None:
    """The graph for ``n`` slots; None where the structure has what cannot be told apart by rows.

    ``structure`` is as ``make_inputs`` leaves it, ``feeds`` its inputs that hold a task's values, ``sites`` the
    bundle's bindings.
    """
    rowless = (site for site, value in sites.items() if _is_of_labels(site) or value.endswith(LONGER))
    whole = frozenset(sites[site] for site in (*rowless, *({Role.DISTANCE_BIAS.value} & sites.keys())))
    mixer = _Mixer(structure.graph, frozenset(feeds), sites, n, whole)
    if not all(mixer.take(node) for node in structure.graph.node) or mixer.parts.get(LOGITS) is None:
        return None
    return _slotted_graph(structure, mixer, [_of_slot(structure.graph.output[0], i) for i in range(n)])


@Contract(requires=[well_formed, standard, all_used], ensures=[well_formed, standard, all_used])
def mix_text(
    structure: onnx.ModelProto, feeds: Iterable[str], sites: Mapping[str, str], n: int
) -> onnx.ModelProto | None:
    """As ``mix``, of the encoder's or the decoder's graph that writes text; outputs are of all rows.

    A token of the decoder is a text's last one: ``TOKEN_COUNTS`` are the texts of each slot.
    """
    mixer = _Mixer(structure.graph, frozenset(feeds), sites, n)
    names = [output.name for output in structure.graph.output]
    if not all(mixer.take(node) for node in structure.graph.node) or not all(map(mixer.join, names)):
        return None
    return _slotted_graph(structure, mixer, structure.graph.output)


def may_be_empty(mixed: onnx.ModelProto) -> bool:
    """Whether a slot may have no rows: not where a task's nodes read a slot's shape, as SPARTAN's do."""
    first = slotted("", 0)
    return not any(node.op_type == "Shape" and node.name.endswith(first) for node in mixed.graph.node)


def _slotted_graph(
    structure: onnx.ModelProto, mixer: _Mixer, outputs: Iterable[onnx.ValueInfoProto]
) -> onnx.ModelProto:
    old, slots = structure.graph, range(mixer.n)
    inputs = [value for value in old.input if value.name not in mixer.feeds]
    inputs += [integers(axis.value, [mixer.n]) for axis in _Axis]
    inputs += [_of_slot(value, i) for value in old.input if value.name in mixer.feeds for i in slots]
    graph = helper.make_graph(mixer.nodes, old.name, inputs, list(outputs), old.initializer)
    return remade(structure, graph)


def _of_slot(value: onnx.ValueInfoProto, slot: int) -> onnx.ValueInfoProto:
    """The same description for one slot, whose numbers of rows and of labels are its own."""
    copy = copied(value)
    copy.name = slotted(value.name, slot)
    for dimension in copy.type.tensor_type.shape.dim:
        if dimension.dim_param:
            dimension.dim_param = slotted(dimension.dim_param, slot)
    return copy


def _is_own(node: onnx.NodeProto) -> bool:
    own = (name.startswith("delta/") or name == LOGITS or without_prefix(name)[0] == "adapted" for name in node.output)
    return node.name.startswith("delta/") or any(own)


def _is_of_rows(site: str) -> bool:
    """Whether its first axis counts the batch's rows, and not their tokens."""
    split = site.rpartition(".")[2] in (Role.KEY_HEADS, Role.VALUE_HEADS, Role.ATTENTION_BIAS)
    return split or site.startswith("pooled.") or site == PackedIndex.FIRST_TOKEN


def _is_of_labels(site: str) -> bool:
    """Whether its rows are nodes of the labels' trie: a decoder's, but for what it makes of the encoder's tokens."""
    of_tokens = (f".{role}" in site for role in (Role.CROSS_KEY, Role.CROSS_VALUE))
    return site in LABEL_VALUES or (site.startswith("decoder.") and not any(of_tokens))


class _Mixer:
    """Goes through a sorted graph once; ``nodes`` is what it has written.

    ``whole`` are values at sites whose rows cannot be told apart by slots.
    """

    def __init__(
        self,
        graph: onnx.GraphProto,
        feeds: frozenset[str],
        sites: Mapping[str, str],
        n: int,
        whole: frozenset[str] = frozenset(),
    ) -> None:
        self.feeds, self.n = feeds, n
        self.nodes: list[onnx.NodeProto] = []
        self.parts: dict[str, _Axis | None] = dict.fromkeys(feeds)  # values of which each slot has one; None: no rows
        self._constant: set[str] = set()
        self._vectors: set[str] = set()  # and scalars
        self._axes: dict[str, list[int]] = {}
        self._alias: dict[str, str] = {}  # a maximum of one value is that value
        self._shape_of: dict[str, str] = {}
        for tensor in graph.initializer:
            self._remember_constant(tensor.name, tensor)
        self._axis = {
            value: _Axis.ROWS if _is_of_rows(site) else _Axis.TOKENS
            for site, value in sites.items()
            if value not in whole
        }
        tokens = [value for value, axis in self._axis.items() if axis is _Axis.TOKENS]
        self._axis |= {picked_rows_name(value): _Axis.ROWS for value in tokens}
        self._absolute = {sites[site] for site in (PackedIndex.ROW, PackedIndex.FIRST_TOKEN) if site in sites}
        self._by_row: set[str] = set()  # of ``parts``, those whose first axis is sure to count the slot's own
        self._split: set[str] = set()
        self._joined: set[str] = set()

    def take(self, node: onnx.NodeProto) -> bool:
        """Write a node, once or for each slot; False where that cannot be done."""
        read = [name for name in node.input if name]
        parted = [name for name in read if name in self.parts]
        if not any(self.parts[name] is None for name in parted):
            fits = _is_own(node) and self._cut_of(node, read) is not None
            fits &= bool(parted) or (self._axis_of_result(node) is None and any(map(self._of, read)))
            return self._for_each_slot(node, read) if fits else self._once(node, parted)
        variable = [name for name in read if name not in self.feeds | self._constant]
        if not _is_own(node) and (node.op_type not in _BY_ROW or len(variable) != 1):
            return False
        return self._for_each_slot(node, read)

    def _once(self, node: onnx.NodeProto, parted: list[str]) -> bool:
        """Write a node as it stands, on values that are whole again."""
        if not all(map(self.join, parted)):
            return False
        self.nodes.append(node)
        if set(node.input) <= self._constant:
            self._constant.update(node.output)
            for attribute in node.attribute:
                if node.op_type == "Constant" and attribute.name == "value":
                    self._remember_constant(node.output[0], attribute.t)
        elif node.op_type == "Shape" and not any(a.i for a in node.attribute):
            self._shape_of[node.output[0]] = self._alias.get(node.input[0], node.input[0])
        elif (axis := self._axis_of_result(node)) is not None:
            for name in node.output:
                self._axis.setdefault(name, axis)
        if node.op_type == "Max" and len(node.input) == 1:
            self._alias[node.output[0]] = node.input[0]
        positions = node.input[:1] if node.op_type in _PICKS else node.input
        if _is_own(node) and not self._absolute.isdisjoint(positions):
            self._absolute.update(node.output)
        return True

    def join(self, name: str) -> bool:
        """Give a value whole, if it is not yet; False where that cannot be done."""
        if name in self.parts and name not in self._joined:
            if name not in self._by_row:
                return False
            self._joined.add(name)
            pieces = [slotted(name, i) for i in range(self.n)]
            self.nodes.append(helper.make_node("Concat", pieces, [name], name=f"mixed/{name}/join", axis=0))
        return True

    def _axis_of_result(self, node: onnx.NodeProto) -> _Axis | None:
        """What the first axis of the result counts, of a node that stands once."""
        op, given = node.op_type, attributes(node)
        if op in _PICKS:
            return None if given.get("axis") or given.get("batch_dims") else self._of(node.input[1])
        first = self._of(node.input[0]) if node.input else None
        if op in _FIRST_OPERAND:
            return None if given.get("transA") else first
        if op in _KEEPS:
            kept = {
                "Transpose": given.get("perm", [1])[0] == 0,
                "Concat": len(node.input) == 1,
                "Unsqueeze": self._axes.get(node.input[-1]) == [-1],
                "Expand": self._shape_of.get(node.input[-1]) == node.input[0],
            }
            return first if kept[op] else None
        others = [name for name in node.input if self._of(name) is None and name not in self._vectors]
        if op not in _ELEMENTWISE or (others and _is_own(node)):
            return None
        axes = {self._of(name) for name in node.input} - {None}
        return axes.pop() if len(axes) == 1 else None

    def _remember_constant(self, name: str, tensor: onnx.TensorProto) -> None:
        """Keep what the rules for axes have to know of a constant."""
        self._constant.add(name)
        if len(tensor.dims) < 2:
            self._vectors.add(name)
        if tensor.data_type == TensorProto.INT64 and list(tensor.dims) == [1]:
            self._axes[name] = numpy_helper.to_array(tensor).tolist()

    def _of(self, name: str) -> _Axis | None:
        return self.parts.get(name) or self._axis.get(name)

    def _cut_of(self, node: onnx.NodeProto, read: list[str]) -> list[str] | None:
        """The whole values that have to be cut for a node; None where one cannot be."""
        whole = [name for name in read if name not in self.parts and name not in self._constant]
        if any(name in self._absolute or name not in self._axis for name in whole):
            return None
        if any(attribute.HasField("g") for attribute in node.attribute):
            return None
        return whole if len({self._of(name) for name in read} - {None}) <= 1 else None

    def _for_each_slot(self, node: onnx.NodeProto, read: list[str]) -> bool:
        whole = self._cut_of(node, read)
        if whole is None:
            return False
        for name in whole:
            if name not in self._split:
                self._split.add(name)
                pieces, counts = [slotted(name, i) for i in range(self.n)], self._axis[name].value
                self.nodes.append(helper.make_node("Split", [name, counts], pieces, name=f"mixed/{name}/split", axis=0))
        divided = set(self.parts) | set(whole)
        for i in range(self.n):
            copy = copied(node)
            copy.name = slotted(node.name, i) if node.name else ""
            copy.input[:] = [slotted(name, i) if name in divided else name for name in node.input]
            copy.output[:] = [slotted(name, i) if name else "" for name in node.output]
            self.nodes.append(copy)
        axes = {self._of(name) for name in read} - {None}
        self.parts.update(dict.fromkeys(filter(None, node.output), axes.pop() if axes else None))
        unsure = any(self.parts.get(name) and name not in self._by_row for name in read)
        kept = node.op_type in _ELEMENTWISE and not unsure
        kept |= node.op_type in _FIRST_OPERAND and (read[0] in self._by_row or read[0] in whole)
        if kept or not _is_own(node):
            self._by_row.update(node.output)
        self._by_row.update(name for name in node.output if name == LOGITS or without_prefix(name)[0] == "adapted")
        return True
