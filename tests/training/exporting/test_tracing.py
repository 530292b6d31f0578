"""PyTorch's exporter as we call it: its table of operators is made once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from edgepeft.training.exporting.delta import export_module


def test_two_exports_make_the_exporters_table_once_and_are_equal(monkeypatch: pytest.MonkeyPatch):
    registry = pytest.importorskip("torch.onnx._internal.exporter._registration").ONNXRegistry
    made, theirs = [], registry.from_torchlib

    def counted(**named: Any) -> Any:
        made.append(1)
        return theirs(**named)

    monkeypatch.setattr(registry, "from_torchlib", staticmethod(counted))
    graphs = [export_module(nn.Linear(3, 2).eval(), [torch.ones(4, 3)], None, 1).graph for _ in range(2)]
    assert len(made) == 1
    assert [node.op_type for node in graphs[0].node] == [node.op_type for node in graphs[1].node] != []
    assert registry.from_torchlib is counted, "PyTorch's own is back"
