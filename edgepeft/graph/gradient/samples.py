"""Sample batches of token ids, whose sizes have nothing in common, and every value's spec in each."""

from __future__ import annotations

import numpy as np
import onnx

from edgepeft.backbones.windows import LONGEST
from edgepeft.graph.prompt import prompt_in
from edgepeft.graph.protos import constant
from edgepeft.graph.shapes import Spec, sized

__all__ = ["measured", "specs_of"]

# Of rows; neither counts nor sums nor products recur, nor multiples of them, whatever the length of a prompt: of
# (5, 2, 4) beside the other, a prompt of 1 made rows twice as long as there are rows in both.
_LENGTHS = ((6, 2, 4), (13, 7, 3, 8, 1, 9, 6))
_TARGETS = (13, 17)  # tokens of the longest target, where text is taught
_ROWS, _MOST = (19, 23), (29, 31)  # rows, and token rows of one, where a row is several: shapes alone, not whose
_TEXTS = 37  # more than rows, where each is read in windows


def measured(model: onnx.ModelProto) -> tuple[dict[str, Spec], ...]:
    """The spec of every value, in each sample.

    Raises:
        BundleError: an input has an open dimension that is no batch's, or a shape depends on values.
    """
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
