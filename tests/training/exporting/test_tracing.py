"""PyTorch's exporter as we call it: what it reads of its own operators it reads once."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from edgepeft.training.exporting.tracing import traced


def test_two_exports_read_the_exporters_operators_once_and_are_equal(monkeypatch: pytest.MonkeyPatch):
    registration = pytest.importorskip("torch.onnx._internal.exporter._registration")
    library, asked = registration.onnxscript_apis, []
    theirs = library.get_torchlib_ops

    def counted() -> list[object]:
        asked.append(1)
        return theirs()

    monkeypatch.setattr(library, "get_torchlib_ops", counted)
    graphs = [traced(nn.Linear(3, 2).eval(), [torch.ones(4, 3)], None, 1).graph for _ in range(2)]
    assert len(asked) == 1
    assert [node.op_type for node in graphs[0].node] == [node.op_type for node in graphs[1].node] != []
    assert library.get_torchlib_ops is counted, "PyTorch's own is back"
