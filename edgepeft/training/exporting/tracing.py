"""PyTorch's exporter as it is used here, the marks of a graph of ours, and which of its tensors lie beside it.

Tensors lie outside since a protobuf ends at 2 GiB.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import helper
from torch import Tensor, nn

from edgepeft.backbones import emit
from edgepeft.backbones.emit import IR_VERSION, OPSET
from edgepeft.bundle.delta import Delta
from edgepeft.common.errors import UsageError
from edgepeft.graph.cut import strip
from edgepeft.graph.external_data import store_external
from edgepeft.graph.half import STORED, rounded
from edgepeft.graph.protos import external_tensors


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


@functools.cache
def _table(of_exporter: Callable[..., Any], *given: Any, **named: Any) -> Any:
    return of_exporter(*given, **named)


@contextlib.contextmanager
def operators_read_once() -> Iterator[None]:
    """Within the block, PyTorch's exporter keeps its table of 500 operators: nearly half of a small export."""
    try:
        from torch.onnx._internal.exporter._registration import ONNXRegistry

        holder: Any = ONNXRegistry
        of_exporter, method = holder.from_torchlib, vars(holder)["from_torchlib"]
    except (ImportError, AttributeError, KeyError):  # of another PyTorch, which has that elsewhere
        yield
        return
    holder.from_torchlib = staticmethod(functools.partial(_table, of_exporter))
    try:
        yield
    finally:
        holder.from_torchlib = method


def traced(module: nn.Module, examples: Sequence[Tensor], dynamic_shapes: Any, n_outputs: int) -> onnx.ModelProto:
    """The module as ONNX; inputs are called ``in_<i>``, outputs ``out_<i>``."""
    with quiet(), operators_read_once():
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


def external_matrices(delta: Delta, file: Path | None) -> dict[str, Tensor]:
    """The matrices that go into ``file``, by their name in the HF base model: none where one graph holds them all."""
    matrices = {name: tensor for name, tensor in delta.override_tensors.items() if tensor.ndim > 1}
    n_bytes = sum(tensor.nbytes for tensor in delta.tensors().values())
    if n_bytes < emit.MOST_INLINE_BYTES:
        return {}
    rest = n_bytes - sum(tensor.nbytes for tensor in matrices.values())
    if file is None or rest >= emit.MOST_INLINE_BYTES:
        raise UsageError(
            f"the task {delta.card.task} has {n_bytes / 1e9:.1f} GB of tensors of its own ({delta.card.method}), and "
            f"they must be in one graph here, of {emit.MOST_INLINE_BYTES / 1e9:.1f} GB at most: train fewer, by lora, "
            "an adapter, or top-k with fewer layers."
        )
    return matrices


def write_external(model: onnx.ModelProto, tensors: Mapping[str, NDArray[np.float32]], file: Path, beside: str) -> None:
    """Write what lies outside of a delta graph; the graph will find it as ``beside``."""
    store_external([*external_tensors(model.graph)], _as_stored(model.graph, tensors), file, beside)


def _as_stored(
    graph: onnx.GraphProto, tensors: Mapping[str, NDArray[np.float32]]
) -> Iterator[tuple[str, NDArray[Any]]]:
    for tensor in external_tensors(graph):
        name = tensor.name.removesuffix(STORED)
        yield tensor.name, tensors[name] if tensor.name == name else rounded(name, tensors[name])
