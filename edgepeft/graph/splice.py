"""Pass: join a delta graph to its backbone: every reader of a site reads its adapted value instead.

The delta's own reads of a site stay on the raw value. Two passes of the joined graph save time: ``split_biases`` and
``share_residual_sums``.

A delta that puts a prompt's vectors in the place of tokens has these in front of every row: the inputs [batch, length]
stay, and are read through a Concat with p columns more: ids of the placeholder, ones in the mask, token type zero.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import helper

from edgepeft.backbones.checkpoint import Checkpoint
from edgepeft.backbones.emit import Writer, external_tensor
from edgepeft.common.errors import BundleError
from edgepeft.graph.contract import (
    Contract,
    all_used,
    closed,
    gives_logits,
    one_writer,
    same_interface,
    same_operators,
    values_stay,
    weights_outside,
    well_formed,
)
from edgepeft.graph.cut import prune, prune_with_inputs, rename_values
from edgepeft.graph.external_data import add_generated, drawn_tensors
from edgepeft.graph.names import LOGITS, PLACEHOLDER_ID, PROMPT_LENGTH, STATES, without_prefix
from edgepeft.graph.protos import (
    attributes,
    constant,
    copied,
    either_way,
    properties,
    replace,
    replace_reads,
    values_read,
)
from edgepeft.graph.quantise import dequantise_nodes, free_steps, restore

_AGAIN = "A bundle that was exported before edgepeft had that site must be exported again."


@Contract(requires=[well_formed, weights_outside], ensures=[well_formed, weights_outside, all_used, gives_logits])
def splice(
    backbone: onnx.ModelProto,
    delta: onnx.ModelProto,
    bindings: Mapping[str, str],
    checkpoint: Checkpoint,
    *,
    generate: bool = True,
) -> onnx.ModelProto:
    """Join them to the task's whole model: token ids and mask in, ``logits`` [batch, outputs] out.

    The logits are the delta's or, of text that is taught, the backbone's own.  Tensors that the delta leaves to its
    loader are computed, or inputs called ``delta/generated:<tensor>`` if not ``generate``.

    ``bindings`` maps each site, ``<site>.input``, ``<site>.residual`` and ``PackedIndex`` to a value of the backbone.
    """
    outputs = [output for model in (delta, backbone) for output in model.graph.output if output.name == LOGITS]
    if not outputs:
        raise BundleError(f"the delta graph has no output called {LOGITS}.")
    return _joined(backbone, delta, delta, bindings, checkpoint, outputs=outputs[:1], generate=generate)


@Contract(requires=[well_formed, weights_outside], ensures=[well_formed, weights_outside, all_used])
def splice_states(
    backbone: onnx.ModelProto, delta: onnx.ModelProto, bindings: Mapping[str, str], checkpoint: Checkpoint
) -> onnx.ModelProto:
    """The task's model up to its head: ``last_hidden_state`` [batch, length, d] out, a prompt's tokens in front."""
    outputs = [output for output in backbone.graph.output if output.name == STATES]
    if not outputs:
        raise BundleError(f"the backbone's graph has no output called {STATES}.")
    return _joined(backbone, delta, delta, bindings, checkpoint, outputs=outputs)


@Contract(requires=[well_formed, weights_outside], ensures=[well_formed, weights_outside, all_used])
def splice_text(
    encoder: onnx.ModelProto,
    decoder: onnx.ModelProto,
    delta: onnx.ModelProto,
    bindings: Mapping[str, str],
    checkpoint: Checkpoint,
) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """The two graphs that write a task's text, their inputs and outputs as they were.

    Each takes of the delta what adapts its own values and replaces tensors that it reads.
    """
    if any(output.name == LOGITS for output in delta.graph.output):
        raise BundleError(f"the delta graph has {LOGITS}; a task that writes text has none of its own.")
    parts = []
    for graph in (encoder.graph, decoder.graph):  # of the delta what is about one of them
        values = {name for node in graph.node for name in node.output}
        stored = {initializer.name for initializer in graph.initializer}
        part, outputs = copied(delta), list[onnx.ValueInfoProto]()
        for output in delta.graph.output:
            kind, name = without_prefix(output.name)
            if kind == "override":
                is_here = checkpoint.holds(name) and not stored.isdisjoint(checkpoint.parts(name))
            else:
                is_here = _value_of(name, bindings) in values
            outputs += [output] if is_here else []
        replace(part.graph.output, outputs)
        prune_with_inputs(part.graph)
        parts.append(part)
    taken = {output.name for part in parts for output in part.graph.output}
    for output in delta.graph.output:
        if output.name not in taken:
            raise BundleError(f"the delta graph gives {output.name!r}, which neither graph that writes text reads.")
    first, second = (
        _joined(model, part, delta, bindings, checkpoint, outputs=list(model.graph.output))
        for model, part in zip((encoder, decoder), parts, strict=True)
    )
    return first, second


def _joined(
    backbone: onnx.ModelProto,
    delta: onnx.ModelProto,
    whole: onnx.ModelProto,
    bindings: Mapping[str, str],
    checkpoint: Checkpoint,
    *,
    outputs: Sequence[onnx.ValueInfoProto],
    generate: bool = True,
) -> onnx.ModelProto:
    """The two as one graph with these outputs; ``whole`` is the delta graph that ``delta`` may be a part of."""
    _check_names(backbone.graph, delta.graph, bindings, checkpoint)
    joined, part = copied(backbone), copied(delta)
    split_biases(part.graph)
    changed = _replacements(part.graph, bindings)
    prompt_length, placeholder = prompt_of(delta)
    if prompt_length and any(value.name == _IDS for value in joined.graph.input):
        prepend_placeholders(joined.graph, prompt_length, placeholder)
    restore(joined.graph, changed)
    replace_reads(joined.graph, changed)
    bound = {i.name: _bound(i.name, bindings, changed) for i in part.graph.input}
    borrowed = list(dict.fromkeys(name for name in bound.values() if checkpoint.holds(name)))
    produced = {output.name for output in part.graph.output}
    rename_values(part.graph, lambda name: bound.get(name) or (name if name in produced else f"delta/{name}"))
    for node in part.graph.node:
        node.name = node.name and f"delta/{node.name}"  # ONNX Runtime refuses two nodes of one name
    graph = joined.graph
    written = {name for node in graph.node for name in node.output}
    smaller = [name for name in borrowed if name not in checkpoint.tensors]
    graph.node.extend(node for name in smaller for node in dequantise_nodes(name, checkpoint, written))
    have = {initializer.name for initializer in graph.initializer}
    needed = (name for tensor in borrowed for name in checkpoint.parts(tensor) if name not in have)
    graph.initializer.extend(external_tensor(checkpoint.tensors[name]) for name in needed)
    graph.initializer.extend(part.graph.initializer)
    graph.node.extend(part.graph.node)
    replace(graph.output, outputs)
    share_residual_sums(graph)
    free_steps(graph, [*changed.values()])
    prune(graph)
    graph.initializer.extend(drawn_tensors(whole, bound))
    if generate:
        add_generated(joined, whole, checkpoint, bound)
    else:
        given = {name for i, name in bound.items() if without_prefix(i)[0] == "generated"}
        graph.input.extend(i for i in part.graph.input if i.name in given)
    return joined


def _replacements(part: onnx.GraphProto, bindings: Mapping[str, str]) -> dict[str, str]:
    """Replacements: name of a backbone value or tensor to name of a delta output."""
    changed: dict[str, str] = {}
    for output in part.output:
        kind, name = without_prefix(output.name)
        if output.name == LOGITS:
            continue
        if kind not in ("adapted", "override"):
            raise BundleError(f"the delta graph has an output {output.name!r} that is no site, override or logits.")
        target = _value_of(name, bindings) if kind == "adapted" else name
        if target in changed:
            raise BundleError(
                f"{output.name} and {changed[target]} would replace one value, {target}; one at most can."
            )
        changed[target] = output.name
    return changed


def _bound(name: str, bindings: Mapping[str, str], changed: Mapping[str, str]) -> str:
    """The value that a delta's input reads: a site's raw one, for anything else the one that replaces it."""
    kind, rest = without_prefix(name)
    if kind in ("generated", "drawn"):
        return f"delta/{name}"
    if kind == "weight":
        return changed.get(rest, rest)
    value = _value_of(name, bindings)
    return changed.get(value, value) if name.endswith((".input", ".residual")) else value


def _value_of(site: str, bindings: Mapping[str, str]) -> str:
    if site not in bindings:
        raise BundleError(f"the delta graph names a site {site!r} that this backbone does not have. {_AGAIN}")
    return bindings[site]


def _check_names(
    graph: onnx.GraphProto, part: onnx.GraphProto, bindings: Mapping[str, str], checkpoint: Checkpoint
) -> None:
    """See that each site is bound to a value of the graph, or its adaptation has no effect, and each tensor known."""
    values = {name for node in graph.node for name in node.output}
    known = {initializer.name for initializer in graph.initializer}
    for value in (*part.input, *part.output):
        kind, name = without_prefix(value.name)
        if kind in ("override", "weight", "generated") and not (name in known or checkpoint.holds(name)):
            raise BundleError(f"the delta graph names a tensor {name!r} that this backbone does not have.")
        site = name if kind == "adapted" else value.name
        if site in bindings and bindings[site] not in values:
            raise BundleError(
                f"the site {site!r} is said to be the value {bindings[site]!r}, which the backbone's graph lacks. "
                f"{_AGAIN}"
            )


@Contract(requires=[well_formed], ensures=[well_formed], keeps=[same_interface, values_stay], mutates=True)
def split_biases(graph: onnx.GraphProto) -> None:
    """Rewrite each ``Gemm(a, b, bias)`` with a constant vector as its bias as Gemm and Add.

    All threads share an Add, and ONNX Runtime fuses it with a following Gelu. Its Gemm writes the bias over its whole
    output on one thread before the product, which for a bottleneck's narrow product takes about as long as the product
    (Houlsby's adapters in roberta-base, 32 rows of 128 tokens, 2 threads: 1.01 times the throughput).
    """
    vectors = {initializer.name for initializer in graph.initializer if len(initializer.dims) == 1}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        nodes.append(node)
        has_vector = node.op_type == "Gemm" and len(node.input) == 3 and node.input[2] in vectors
        if has_vector and attributes(node).get("beta", 1) == 1:
            bias, result, name = node.input.pop(), node.output[0], node.name and f"{node.name}/bias"
            node.output[0] = f"{result}/product"
            nodes.append(helper.make_node("Add", [node.output[0], bias], [result], name=name))
    replace(graph.node, nodes)


@Contract(
    requires=[one_writer], ensures=[one_writer], keeps=[same_interface, same_operators, values_stay], mutates=True
)
def share_residual_sums(graph: onnx.GraphProto) -> None:
    """Rewrite (y + c) + r as (y + r) + c where y + r stands in the graph already and nothing else reads y + c.

    Up to rounding no value changes; what was y + c is left without a reader, for ``prune``.  AdapterHub's Pfeiffer form
    computes LN(y + r) for itself and gives y + A(...), to which the layer adds r: with the sum shared an addition over
    all tokens is saved a layer.
    """
    sums = {node.output[0]: node for node in graph.node if node.op_type == "Add"}
    by_terms = {frozenset(node.input): node for node in sums.values()}
    times = values_read(graph)
    for node in sums.values():
        shorter = (
            [shared.output[0], c]
            for inner, r in either_way(node)
            if inner in sums and times[inner] == 1
            for y, c in either_way(sums[inner])
            if (shared := by_terms.get(frozenset((y, r)), node)) is not node and shared is not sums[inner]
        )
        node.input[:] = next(shorter, list(node.input))


LENGTH = "prompted/length"  # the constant of as many columns as a prompt has
_LONGEST = 100_000  # more tokens than any position table has
_MAX_DIGITS = 9  # of either count: any vocabulary is smaller, and more do not fit into an int64
_IDS = "input_ids"


def prompt_of(delta: onnx.ModelProto) -> tuple[int, int]:
    """(how many, which id) of the placeholders that a delta graph asks for; 0 of them for most."""
    facts = properties(delta)
    length, token = (facts.get(key, "0") for key in (PROMPT_LENGTH, PLACEHOLDER_ID))
    if not all(text.isdecimal() and len(text) <= _MAX_DIGITS for text in (length, token)) or int(length) > _LONGEST:
        raise BundleError(
            f"the delta graph's prompt is of length {length!r:.60} and token {token!r:.60}; two counts are due."
        )
    return int(length), int(token)


def prompt_in(graph: onnx.GraphProto) -> int:
    """How many columns ``prepend_placeholders`` put in front; 0 of most graphs."""
    length = constant(graph, LENGTH)
    return 0 if length is None else int(length[0])


def placeholders_in(graph: onnx.GraphProto) -> tuple[int, ...]:
    """The ids that ``prepend_placeholders`` put in front of each row."""
    token_id = constant(graph, _value(_IDS))
    return () if token_id is None else (int(token_id[0]),) * prompt_in(graph)


@Contract(
    requires=[closed, one_writer], ensures=[closed, one_writer], keeps=[same_interface, values_stay], mutates=True
)
def prepend_placeholders(graph: onnx.GraphProto, length: int, token_id: int) -> None:
    """Have every reader of an input read it with ``length`` columns more in front; a decoder's inputs stay."""
    fill = {_IDS: token_id, "attention_mask": 1}
    of_tokens = (value.name for value in graph.input if not value.name.startswith("decoder_"))
    longer = {name: f"prompted/{name}" for name in of_tokens}
    replace_reads(graph, longer)
    add = Writer("prompted/")
    columns = add.constant(LENGTH, [length], np.int64)
    for name, new in longer.items():  # [batch, length] -> [batch, p + length]
        shape = add.op("Concat", add.op("Shape", name, start=0, end=1), columns, axis=0)
        prompt = add.op("Expand", add.constant(_value(name), [fill.get(name, 0)], np.int64), shape)
        add.op("Concat", prompt, name, output=new, axis=1)
    add.add_to(graph)


def _value(name: str) -> str:
    """The constant that stands in front of an input's rows."""
    return f"prompted/{name}/value"
