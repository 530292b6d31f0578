"""Pass: placeholder tokens in front of every row, for a delta that puts a prompt's vectors in their place.

The inputs [batch, length] stay, and are read through a Concat with p columns more: ids of the placeholder, ones in
the mask, token type zero.  The new nodes come last; ``prune`` sorts.
"""

from __future__ import annotations

import numpy as np
import onnx

from edgepeft.backbones.emit import Writer
from edgepeft.common.errors import BundleError
from edgepeft.graph.contract import Contract, closed, one_writer, same_interface, values_stay
from edgepeft.graph.names import PLACEHOLDER_ID, PROMPT_LENGTH
from edgepeft.graph.protos import constant, properties, read_instead

LENGTH = "prompted/length"  # the constant of that many columns

_MAX = 100_000  # more tokens than any position table has
_MAX_DIGITS = 9  # of either count: any vocabulary is smaller, and more do not fit into an int64
_IDS, _MASK = "input_ids", "attention_mask"


def prompt_of(delta: onnx.ModelProto) -> tuple[int, int]:
    """(how many, which id) of the placeholders that a delta graph asks for; 0 of them for most."""
    facts = properties(delta)
    length, token = (facts.get(key, "0") for key in (PROMPT_LENGTH, PLACEHOLDER_ID))
    if not all(text.isdecimal() and len(text) <= _MAX_DIGITS for text in (length, token)) or int(length) > _MAX:
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
    fill = {_IDS: token_id, _MASK: 1}
    of_tokens = (value.name for value in graph.input if not value.name.startswith("decoder_"))
    longer = {name: f"prompted/{name}" for name in of_tokens}
    read_instead(graph, longer)
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
