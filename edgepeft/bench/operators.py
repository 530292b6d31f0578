"""What the operators of a graph do: counted without a clock or under QEMU, and timed by ONNX Runtime's profiler.

Counted figures are the same in every run and on every host: nodes, operations and bytes are those of the graph as it is
written, before any engine's optimisation; the peak of its activations follows from their shapes.  The work is the first
rows of the benchmark's first batch.

Timed, every operator and layer has a floor: what its work takes at the ceilings measured in the same run, the
larger of its operations over the GEMM rate and its bytes over the rate of copying memory (a roofline; Williams,
Waterman and Patterson 2009).  A gap below 1 means that its data came from a cache, which is faster than memory.
"""

import json
import math
import re
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from edgepeft.bench.measuring.measure import Start
from edgepeft.bench.planning.job import Job, random_batch
from edgepeft.bench.planning.plan import Unit, UnitRole
from edgepeft.bench.planning.target import BenchSubject
from edgepeft.bench.qemu import CPU, Guest, instructions_of
from edgepeft.bench.result.parts import Number
from edgepeft.bench.result.schema import CeilingsRecord, MetricsRecord, OperatorRecord, ProfiledPass
from edgepeft.bench.workloads.probes import COPIED_BYTES, GEMM_FLOPS
from edgepeft.bundle.bundle import BACKBONE_FILE
from edgepeft.common.errors import UsageError
from edgepeft.common.operators import product_flops
from edgepeft.common.task_name import GRAPH
from edgepeft.graph.cost import count_run, peak_bytes
from edgepeft.graph.shapes import Walked

_MAX_ROWS = 4  # more of them only repeat what these do
_WARMUP, _RUNS, _PROBES = 2, 10, 5
_KERNEL = "_kernel_time"
_TYPES = {"float": 4, "float16": 2, "double": 8, "int64": 8, "int32": 4, "int8": 1, "uint8": 1, "bool": 1}
_LAYER = re.compile(r"\blayer\.(\d+)\b")
_VIEWS = {"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"}
_PRODUCTS = {"Gemm", "FusedGemm", "MatMul", "FusedMatMul"}
_PRODUCTS |= {"MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul"}
_Cost = tuple[int, float, float, float, float]  # of a node in one run: times, seconds, FLOPs, bytes, least seconds
_Values = Sequence[tuple[str, Sequence[int]]]  # element types, by the profiler's names, and shapes


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
            "peak_activation_bytes": peak_bytes(graph.graph, Walked(graph, inputs).specs),
        }
        entries.append(MetricsRecord(of=f"{what}, {len(lengths)} x {longest} tokens", values={**values, **own}))
    return entries


def count_instructions(
    guest: Guest, subject: BenchSubject, lengths: Sequence[int], *, seed: int = 0
) -> list[MetricsRecord]:
    """Entries for the result's ``metrics``: the backbone and every task on the first of these rows."""
    bundle, architecture, row = subject.bundle, subject.architecture, lengths[:1]
    inputs = random_batch(row, vocab_size=architecture.vocab_size, pad_id=architecture.pad_token_id, seed=seed)
    entries = []
    for task in (None, *(task.name for task in subject.tasks)):
        what = f"task {task}" if task else "backbone"
        of = f"{what}, {row[0]} tokens on a {CPU}, onnxruntime {guest.runtime}"
        counted = instructions_of(guest, bundle.graph(task), bundle.weights, inputs)
        entries.append(MetricsRecord(of=of, values={"instructions": counted}))
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
        executed = [*_read_trace(target, ceilings, runs)]
    by_type, by_layer, layer = dict[str, list[_Cost]](), dict[str, list[_Cost]](), "embeddings"
    for name, op_type, cost in executed:  # a fused operator has no layer in its name and counts to the one before it
        layer = f"layer {int(match[1])}" if (match := _LAYER.search(name)) else layer
        by_type.setdefault(op_type, []).append(cost)
        by_layer.setdefault(layer, []).append(cost)
    types = sorted(_totals(by_type), key=lambda one: -one.seconds)
    return ProfiledPass(
        of=f"task {job.task}" if job.task else "backbone",
        rows=len(job.batches[0]),
        tokens=sum(job.batches[0]),
        runs_s=tuple(seconds),
        ceilings=ceilings,
        # What no operator accounts for: Python, the session's own work, the profiler's.
        outside_s=float(np.median(seconds)) - sum(one.seconds for one in types),
        by_type=tuple(types),
        by_layer=tuple(_totals(by_layer)),
    )


def _totals(groups: dict[str, list[_Cost]]) -> Iterable[OperatorRecord]:
    for name, members in groups.items():
        count, seconds, flops, n_bytes, floor = map(sum, zip(*members, strict=True))
        gap = seconds / floor if floor > 0 else None
        yield OperatorRecord(
            name=name, count=count, seconds=seconds, flops=flops, bytes=n_bytes, floor_s=floor, gap=gap
        )


def _work_of(op_type: str, inputs: _Values, outputs: _Values) -> tuple[int, int]:
    """FLOPs (2 M N K of products: memory bounds everything else), and bytes read and written, each value once.

    ``inputs`` are activations, and weights that the kernel did not pack.
    """
    read, written = ([_TYPES.get(kind, 4) * math.prod(shape) for kind, shape in each] for each in (inputs, outputs))
    n_bytes = sum(read) + sum(written)
    if op_type in _VIEWS:
        n_bytes = 0
    elif op_type == "Gather":  # of a table, the rows that are looked up
        n_bytes = 2 * sum(written) + sum(read[1:])
    if op_type not in _PRODUCTS or not inputs or not inputs[0][1]:
        return 0, n_bytes
    (kind, (*_, k)), (_, shape) = inputs[0], outputs[0]
    if len(inputs) == 1:  # a packed weight [K, N] is not among them, of 1 byte where the product is of integers
        n_bytes += (4 if kind == "float" and "Quantize" not in op_type else 1) * k * shape[-1]
    return 2 * math.prod(shape) * k, n_bytes


def _read_trace(path: Path, ceilings: CeilingsRecord, runs: int) -> Iterable[tuple[str, str, _Cost]]:
    """Name, type and cost of the nodes of ONNX Runtime's profile of so many runs, in the order of their first."""
    events = json.loads(path.read_text(encoding="utf-8"))
    kernels: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for event in events:
        if event.get("cat") == "Node" and str(event.get("name", "")).endswith(_KERNEL):
            key = (event["args"]["node_index"], event["name"].removesuffix(_KERNEL))
            kernels.setdefault(key, []).append(event)
    if not kernels:
        raise ValueError("ONNX Runtime's profile names no node")
    for (_, name), own in kernels.items():
        facts, n = own[0]["args"], len(own)
        described = (facts["input_type_shape"], facts["output_type_shape"])
        values = [[each for value in values for each in value.items()] for values in described]
        flops, n_bytes = _work_of(facts["op_name"], *values)
        # Its time in one run: the median, times the passes that a run makes of the batch.
        seconds = float(np.median([event["dur"] / 1e6 for event in own[n * _WARMUP // runs :]]))  # of microseconds
        floor = max(flops / ceilings.flops_per_s, n_bytes / ceilings.bytes_per_s)
        seconds, work, moved, least = (each * n / runs for each in (seconds, flops, n_bytes, floor))
        yield name, facts["op_name"], (n // runs, seconds, work, moved, least)
