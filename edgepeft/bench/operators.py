"""What the operators of a graph do: counted without a clock, and timed by ONNX Runtime's profiler.

Counted figures are the same in every run and on every host: nodes, operations and bytes are those of the graph as it is
written, before any engine's optimisation; the peak of its activations follows from their shapes.  The work is the first
rows of the benchmark's first batch.

Timed, every operator and layer has a floor: what its work takes at the ceilings measured in the same run, the
larger of its operations over the GEMM rate and its bytes over the rate of copying memory (a roofline; Williams,
Waterman and Patterson 2009).  A gap below 1 means that its data came from a cache, which is faster than memory.
"""

from __future__ import annotations

import json
import math
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from edgepeft.bench.measuring.measure import Start
from edgepeft.bench.planning.job import Job, random_batch
from edgepeft.bench.planning.plan import Unit, UnitRole
from edgepeft.bench.planning.target import BenchSubject
from edgepeft.bench.result.parts import Number
from edgepeft.bench.result.schema import CeilingsRecord, MetricsRecord, OperatorRecord, ProfiledPass
from edgepeft.bench.workloads.probes import COPIED_BYTES, GEMM_FLOPS
from edgepeft.bundle.bundle import BACKBONE_FILE
from edgepeft.common.errors import UsageError
from edgepeft.common.operators import product_flops
from edgepeft.common.task_name import GRAPH
from edgepeft.graph.cost import count_run, peak_bytes
from edgepeft.graph.shapes import walk

_MAX_ROWS = 4  # more of them only repeat what these do
_WARMUP, _RUNS, _PROBES = 2, 10, 5
_KERNEL = "_kernel_time"
_TYPES = {"float": 4, "float16": 2, "double": 8, "int64": 8, "int32": 4, "int8": 1, "uint8": 1, "bool": 1}
_LAYER = re.compile(r"\blayer\.(\d+)\b")
_VIEWS = {"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"}
_PRODUCTS = {"Gemm", "FusedGemm", "MatMul", "FusedMatMul"}
_PRODUCTS |= {"MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul"}


def count_metrics(subject: BenchSubject, lengths: Sequence[int], *, seed: int = 0) -> list[MetricsRecord]:
    """Entries for the result's ``metrics``: the bundle, the bare backbone, and every task on rows of these lengths."""
    lengths, bundle, architecture = lengths[:_MAX_ROWS], subject.bundle, subject.architecture
    sizes: dict[str, Number] = {
        "bundle_bytes": sum(path.stat().st_size for path in bundle.folder.rglob("*") if path.is_file()),
        "backbone_graph_bytes": (bundle.folder / BACKBONE_FILE).stat().st_size,
        "weights_bytes": bundle.weights.stat().st_size,
    }
    entries = [MetricsRecord(of="bundle", values=sizes)]
    inputs = random_batch(lengths, vocab_size=architecture.vocab_size, pad_id=architecture.pad_token_id, seed=seed)
    longest = f"{lengths[0]}" if len(set(lengths)) == 1 else f"up to {max(lengths)}"
    for task in (None, *subject.tasks):
        what = f"task {task.name} ({task.method})" if task else "backbone"
        own: dict[str, Number] = {"delta_bytes": bundle.current(task.name, GRAPH).stat().st_size} if task else {}
        if task is not None and bundle.entry(task.name).writes:  # two graphs, the second as often as there are tokens
            entries.append(MetricsRecord(of=what, values=own))
            continue
        graph = bundle.graph(task.name if task else None)
        works = count_run(graph, inputs).works
        values: dict[str, Number] = {
            "nodes": len(graph.graph.node),
            "flops": product_flops(works),  # of everything else memory is the bound, and its arithmetic is not counted
            "bytes_moved": sum(work.n_bytes for work in works),
            "peak_activation_bytes": peak_bytes(graph.graph, walk(graph, inputs).specs),
        }
        entries.append(MetricsRecord(of=f"{what}, {len(lengths)} x {longest} tokens", values={**values, **own}))
    return entries


def profile_all(units: Sequence[Unit], start: Start) -> tuple[ProfiledPass, ...]:
    """The result's ``operators``: the backbone and every task, as ONNX Runtime answers with them."""
    own = (UnitRole.TASK, UnitRole.BACKBONE)
    jobs = [unit.job for unit in units if unit.job and unit.job.workload == "infer_onnxruntime" and unit.role in own]
    if not jobs:
        raise UsageError("--profile-ops looks into inference with ONNX Runtime, which these options leave out.")
    best = {}  # of a few steps of each probe: a ceiling is what was reached once
    for name, work in (("gemm", GEMM_FLOPS), ("copy", 2 * COPIED_BYTES)):  # a copy reads and writes
        with start(f"{name} probe", Job(name, jobs[0].threads)) as worker:
            worker.ready()
            best[name] = work / min(worker.step(0).seconds for _ in range(_PROBES))
    ceilings = CeilingsRecord(flops_per_s=best["gemm"], bytes_per_s=best["copy"])
    return tuple(profile_operators(job, start, ceilings) for job in jobs)


def profile_operators(job: Job, start: Start, ceilings: CeilingsRecord) -> ProfiledPass:
    """One entry, for the first batch of ``job``."""
    runs = _WARMUP + _RUNS
    with tempfile.TemporaryDirectory(prefix="edgepeft-profile-") as work:
        target = Path(work) / "trace.json"
        traced = replace(job, workload="profiled", batches=job.batches[:1], settings={"trace": str(target)})
        with start("profile", traced) as worker:
            worker.ready()
            seconds = [worker.step(0).seconds for _ in range(runs)][_WARMUP:]
            worker.step(1)
        executed = read_trace(target)
    by_type, by_layer, layer = dict[str, list[Executed]](), dict[str, list[Executed]](), "embeddings"
    for one in executed:  # a fused operator has no layer in its name and counts to the one before it
        layer = f"layer {int(match[1])}" if (match := _LAYER.search(one.name)) else layer
        by_type.setdefault(one.op_type, []).append(one)
        by_layer.setdefault(layer, []).append(one)
    types = sorted(_totals(by_type, ceilings, runs), key=lambda one: -one.seconds)
    return ProfiledPass(
        of=f"task {job.task}" if job.task else "backbone",
        rows=len(job.batches[0]),
        tokens=sum(job.batches[0]),
        runs_s=tuple(seconds),
        ceilings=ceilings,
        # What no operator accounts for: Python, the session's own work, the profiler's.
        outside_s=float(np.median(seconds)) - sum(one.seconds for one in types),
        by_type=tuple(types),
        by_layer=tuple(_totals(by_layer, ceilings, runs)),
    )


def _totals(groups: dict[str, list[Executed]], ceilings: CeilingsRecord, runs: int) -> Iterable[OperatorRecord]:
    for name, members in groups.items():
        # A node's time in one run: its median, times the passes that a run makes of the batch.
        warm = (one.seconds[len(one.seconds) * _WARMUP // runs :] for one in members)
        seconds = sum(float(np.median(w)) * len(one.seconds) / runs for w, one in zip(warm, members, strict=True))
        floors = (max(one.flops / ceilings.flops_per_s, one.n_bytes / ceilings.bytes_per_s) for one in members)
        floor = sum(least * len(one.seconds) / runs for least, one in zip(floors, members, strict=True))
        yield OperatorRecord(
            name=name,
            count=sum(len(one.seconds) for one in members) // runs,
            seconds=seconds,
            flops=sum(one.flops * len(one.seconds) / runs for one in members),
            bytes=sum(one.n_bytes * len(one.seconds) / runs for one in members),
            floor_s=floor,
            gap=seconds / floor if floor > 0 else None,
        )


@dataclass(frozen=True)
class Value:
    """A tensor's element type, by the profiler's name, and its shape."""

    kind: str
    shape: tuple[int, ...]

    @property
    def n_bytes(self) -> int:
        """Bytes of its elements."""
        return _TYPES.get(self.kind, 4) * math.prod(self.shape)


@dataclass(frozen=True)
class Executed:
    """A node that ran; ``seconds`` holds one figure a run, in order."""

    name: str
    op_type: str
    inputs: tuple[Value, ...]  # activations, and weights that the kernel did not pack
    outputs: tuple[Value, ...]
    seconds: tuple[float, ...]

    @property
    def flops(self) -> int:
        """2 M N K of products; of everything else memory is the bound, and its arithmetic is not counted."""
        if self.op_type not in _PRODUCTS or not self.inputs or not self.inputs[0].shape:
            return 0
        return 2 * math.prod(self.outputs[0].shape) * self.inputs[0].shape[-1]

    @property
    def n_bytes(self) -> int:
        """Read and written, each value once; of a table, the rows that are looked up; a view moves none."""
        if self.op_type in _VIEWS:
            return 0
        written = sum(value.n_bytes for value in self.outputs)
        if self.op_type == "Gather":
            return 2 * written + sum(value.n_bytes for value in self.inputs[1:])
        read = sum(value.n_bytes for value in self.inputs)
        if self.op_type in _PRODUCTS and len(self.inputs) == 1 and self.inputs[0].shape:
            # A packed weight is not among the inputs: [K, N], of 1 byte where the product is of integers.
            width = 4 if self.inputs[0].kind == "float" and "Quantize" not in self.op_type else 1
            read += width * self.inputs[0].shape[-1] * self.outputs[0].shape[-1]
        return read + written


def read_trace(path: Path) -> list[Executed]:
    """The nodes of a profile that ONNX Runtime wrote, in the order of their first run."""
    events = json.loads(path.read_text(encoding="utf-8"))
    kernels: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for event in events:
        if event.get("cat") == "Node" and str(event.get("name", "")).endswith(_KERNEL):
            key = (event["args"]["node_index"], event["name"].removesuffix(_KERNEL))
            kernels.setdefault(key, []).append(event)
    if not kernels:
        raise ValueError("ONNX Runtime's profile names no node")
    found = []
    for (_, name), runs in kernels.items():
        facts, seconds = runs[0]["args"], tuple(event["dur"] / 1e6 for event in runs)  # of microseconds
        inputs, outputs = _values(facts["input_type_shape"]), _values(facts["output_type_shape"])
        found.append(Executed(name, facts["op_name"], inputs, outputs, seconds))
    return found


def _values(described: Sequence[Mapping[str, Sequence[int]]]) -> tuple[Value, ...]:
    return tuple(Value(kind, tuple(shape)) for one in described for kind, shape in one.items())
