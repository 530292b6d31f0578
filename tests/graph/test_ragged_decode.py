"""Texts of unequal length in one step: what is in front of a shorter one is hidden, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from graphs import session

from edgepeft.backbones.source import open_backbone
from edgepeft.backbones.text import CROSS_BIAS, IDS, LOGITS, ORDER, TextGraphs
from edgepeft.graph.in_place import HIDDEN, hide_fronts

HEADS, WIDTH, LENGTH, WRITTEN = 4, 6, 5, (4, 0, 2)  # tokens of each text so far


@pytest.fixture(scope="module")
def graphs(tiny: Callable[..., Path]) -> tuple[TextGraphs, Path]:
    backbone = open_backbone(str(tiny("t5")))
    made = backbone.architecture.text_graphs(backbone.checkpoint)
    assert made is not None
    return made, backbone.folder


def test_each_text_goes_on_as_it_does_alone_in_the_plain_graph(graphs: tuple[TextGraphs, Path]):
    source, rows = np.random.default_rng(0), len(WRITTEN)
    decoder, hidden = graphs[0].decoder, hide_fronts(graphs[0].decoder)
    assert hidden is not None
    caches = [value.name for value in decoder.graph.input if value.name.startswith(("past.", "cross."))]
    known = {
        name: source.normal(size=(rows, HEADS, LENGTH if name.startswith("cross") else max(WRITTEN), WIDTH))
        for name in caches
    }
    given = {name: values.astype(np.float32) for name, values in known.items()}
    given[CROSS_BIAS] = np.zeros((rows, 1, 1, LENGTH), np.float32)
    ids = np.array([7, 8, 9])
    back = np.arange(max(WRITTEN), -1, -1)
    bias = np.where(back > np.array(WRITTEN)[:, None], np.finfo(np.float32).min, 0).astype(np.float32)
    of_all = {**given, IDS: ids, ORDER: np.arange(rows), HIDDEN: bias[:, None, None]}
    together = session(hidden, graphs[1]).run([LOGITS], of_all)[0]
    plain = session(decoder, graphs[1])
    for row, written in enumerate(WRITTEN):
        own = {name: values[row : row + 1] for name, values in given.items()}
        own = {n: v[:, :, max(WRITTEN) - written :] if n.startswith("past") else v for n, v in own.items()}
        alone = plain.run([LOGITS], {**own, IDS: ids[row : row + 1], ORDER: np.zeros(1, np.int64)})[0]
        np.testing.assert_allclose(together[row], alone[0], rtol=1e-4, atol=1e-5)


def test_attention_that_is_written_otherwise_is_left_alone(graphs: tuple[TextGraphs, Path]):
    decoder = graphs[0].decoder
    changed = type(decoder).FromString(decoder.SerializeToString())
    softmax = next(node for node in changed.graph.node if node.op_type == "Softmax")
    add = next(node for node in changed.graph.node if softmax.input[0] in node.output)
    softmax.input[0] = add.input[0]  # one layer without a bias: the mask would not reach it
    assert hide_fronts(changed) is None
    assert hide_fronts(graphs[0].encoder) is None
