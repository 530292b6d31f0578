"""PyTorch's exporter as it is used here, and the marks of a graph of ours."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import onnx
import torch
from onnx import helper
from torch import Tensor, nn

from edgepeft.backbones.emit import IR_VERSION, OPSET
from edgepeft.graph.strip import strip

__all__ = ["mark", "number_nodes", "quiet", "traced"]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Within the block, PyTorch's exporter reports errors only; it logs its own deprecations."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def traced(module: nn.Module, examples: Sequence[Tensor], dynamic_shapes: Any, n_outputs: int) -> onnx.ModelProto:
    """The module as ONNX; inputs are called ``in_<i>``, outputs ``out_<i>``."""
    with quiet():
        program = torch.onnx.export(
            module.eval(),
            tuple(examples),
            dynamo=True,
            optimize=False,  # its folding would copy weights, and lose the parameters' paths
            opset_version=OPSET,
            dynamic_shapes=dynamic_shapes,
            input_names=[f"in_{i}" for i in range(len(examples))],
            output_names=[f"out_{i}" for i in range(n_outputs)],
            verbose=False,
        )
    assert program is not None
    return program.model_proto


def number_nodes(graph: onnx.GraphProto) -> None:
    """Call each node by its operator and its place; the exporter's names are long."""
    for index, node in enumerate(graph.node):
        node.name = f"{node.op_type.lower()}_{index}"


def mark(model: onnx.ModelProto, properties: Mapping[str, str]) -> None:
    """Replace what the exporter says of the graph and of itself by our versions and these properties."""
    del model.graph.value_info[:], model.metadata_props[:]
    strip(model)
    model.ir_version, model.producer_name, model.producer_version = IR_VERSION, "edgepeft", ""
    helper.set_model_props(model, dict(properties))
