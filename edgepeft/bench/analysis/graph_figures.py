"""Figures that are the same in every run and on every host: what a bundle makes a device do, and what it weighs.

Nodes, operations and bytes are those of the graph as it is written, before any engine's optimisation; the peak of
its activations follows from their shapes.  The work is the first rows of the benchmark's first batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from edgepeft.bench.analysis.operator_trace import Executed, element_type, trace_plain
from edgepeft.bench.planning.job import random_batch
from edgepeft.bench.planning.plan import BenchedTask
from edgepeft.bench.planning.target import BenchSubject
from edgepeft.bench.result.parts import Number
from edgepeft.bench.result.schema import MetricsRecord
from edgepeft.bundle.bundle import BACKBONE_FILE, Bundle
from edgepeft.bundle.versions import GRAPH
from edgepeft.graph.memory import peak_bytes
from edgepeft.graph.shapes import Spec

__all__ = ["count_metrics"]

_MOST_ROWS = 4  # more of them only repeat what these do


def count_metrics(subject: BenchSubject, lengths: Sequence[int], *, seed: int = 0) -> list[MetricsRecord]:
    """Entries for the result's ``metrics``: the bundle, the bare backbone, and every task on rows of these lengths."""
    lengths = lengths[:_MOST_ROWS]
    return [
        MetricsRecord(of="bundle", values=_sizes(subject.bundle)),
        *(_of_graph(subject, task, lengths, seed) for task in (None, *subject.model.tasks)),
    ]


def _sizes(bundle: Bundle) -> dict[str, Number]:
    files = [path for path in bundle.folder.rglob("*") if path.is_file()]
    return {
        "bundle_bytes": sum(path.stat().st_size for path in files),
        "backbone_graph_bytes": (bundle.folder / BACKBONE_FILE).stat().st_size,
        "weights_bytes": bundle.weights.stat().st_size,
    }


def _of_graph(subject: BenchSubject, task: BenchedTask | None, lengths: Sequence[int], seed: int) -> MetricsRecord:
    bundle, model = subject.bundle, subject.model
    what = f"task {task.name} ({task.method})" if task else "backbone"
    own: dict[str, Number] = {"delta_bytes": bundle.current(task.name, GRAPH).stat().st_size} if task else {}
    if task is not None and bundle.entry(task.name).writes:
        return MetricsRecord(of=what, values=own)  # two graphs, the second as often as there are tokens
    graph = bundle.graph(task.name if task else None)
    inputs = random_batch(lengths, vocab_size=model.vocab_size, pad_id=model.pad_id, seed=seed)
    executed = trace_plain(graph, bundle.folder, inputs)
    values: dict[str, Number] = {
        "nodes": len(graph.graph.node),
        "flops": sum(node.flops for node in executed),
        "bytes_moved": sum(node.n_bytes for node in executed),
        "peak_activation_bytes": _peak(graph, executed),
    }
    longest = f"{lengths[0]}" if len(set(lengths)) == 1 else f"up to {max(lengths)}"
    return MetricsRecord(of=f"{what}, {len(lengths)} x {longest} tokens", values={**values, **own})


def _peak(model: onnx.ModelProto, executed: Sequence[Executed]) -> int:
    """The most that activations take at once; nodes that ONNX Runtime folds to constants take nothing."""
    nodes = model.graph.node
    specs = {
        name: Spec(element_type(value), value.shape)
        for one in executed
        if one.name.isdigit()  # else it is of an operator that ONNX Runtime has taken apart
        for name, value in zip(nodes[int(one.name)].output, one.outputs, strict=False)
    }
    kept = onnx.GraphProto()
    kept.CopyFrom(model.graph)
    del kept.node[:]
    kept.node.extend(node for node in nodes if all(name in specs for name in node.output if name))
    return peak_bytes(kept, specs)
