"""Fixed steps for the activations of 8-bit products, measured when a backbone is exported (SmoothQuant).

Channel c of what projections read, x [T, in], is multiplied by v[c] before it is rounded, and their matrices' column c
is divided by it (Xiao et al., 2022, arXiv:2211.10438, eq. 3 and 4), so that one step of 1 serves every token:

    r[c] = max |x[:, c]|^a / max |W[:, c]|^(1 - a)        v[c] = 127 / (r[c] room max over k of (max |x[:, k]| / r[k]))

Texts of random words show each channel's range as well as real ones do: on MiniLM and MPNet hidden states are then off
by less than with a step for each token.  Where single tokens stand far above all others (past activations) a fixed step
is too coarse, and rows keep steps of their own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from edgepeft.backbones.source import Backbone
from edgepeft.backbones.tokens import Text
from edgepeft.graph.protos import copied
from edgepeft.graph.quantise import projections
from edgepeft.runtime.session import open_session

__all__ = ["column_factors"]

_A = 0.75  # as the paper has it where activations stand out most
_ROOM = 1.5  # for what the texts do not show, and for tasks that move activations
_WORST = 4.0  # times the largest of the median token
_LENGTHS = (1, 4, 16, 40, 40, 40, 40, 120)  # in tokens
_TEXTS_EACH = 4


def column_factors(model: onnx.ModelProto, backbone: Backbone) -> dict[str, NDArray[np.float32]]:
    """v [in] by the matrix's name, the same for all that read one value; none for those that keep a step a row."""
    normed = {node.output[0] for node in model.graph.node if node.op_type == "LayerNormalization"}
    readers = defaultdict[str, list[str]](list)
    for node in projections(model.graph):
        if node.input[0] in normed:
            readers[node.input[0]].append(node.input[1])
    found: dict[str, NDArray[np.float32]] = {}
    for x, rows in _values(model, backbone, list(readers)).items():
        largest = np.maximum(np.abs(rows).max(axis=0), 1e-5)
        weights = np.max([np.abs(backbone.checkpoint.values(name)).max(axis=0) for name in readers[x]], axis=0)
        ranges = largest**_A / np.maximum(weights, 1e-5) ** (1 - _A)
        highest = (largest / ranges).max()
        if highest <= _WORST * np.median(np.abs(rows / ranges).max(axis=1)):
            mantissa, exponent = np.frexp(127 / (ranges * _ROOM * highest))
            # Few bits, so that processors whose sums differ in the last one write the same file.
            factors = np.ldexp(np.round(mantissa * 256) / 256, exponent).astype(np.float32)
            found |= dict.fromkeys(readers[x], factors)
    return found


def _values(model: onnx.ModelProto, backbone: Backbone, names: list[str]) -> dict[str, NDArray[np.float32]]:
    """The named values, [T, in], of texts of random words."""
    probe = copied(model)
    del probe.graph.output[:]
    probe.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names)
    session = open_session(probe, backbone.folder)
    runs = [session.run(names, inputs) for inputs in _texts(backbone)]
    return {name: np.concatenate(parts) for name, parts in zip(names, zip(*runs, strict=True), strict=True)}


def _texts(backbone: Backbone) -> Iterator[dict[str, NDArray[np.int64]]]:
    source, encoder = np.random.default_rng(0), backbone.encoder()
    for length in _LENGTHS * _TEXTS_EACH:
        text = encoder.decode(source.integers(backbone.architecture.vocab_size, size=length).tolist())
        yield encoder.encode([Text(text)], min(128, backbone.architecture.max_length)).inputs
