"""Instructions per inference on a Cortex-A72, counted under QEMU: a figure that no other load can move.

The program that opens the model and answers ``MORE`` times more has so many instructions more.  Caches, bandwidth and
what a processor does at once are not in it: the figure gates changes, and is no measure of time.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from edgepeft.bench.analysis.qemu import CPU, Guest
from edgepeft.bench.planning.batches import random_batch
from edgepeft.bench.planning.subject import BenchSubject
from edgepeft.bench.result.schema import MetricsRecord
from edgepeft.resources import write_atomically
from edgepeft.runtime.bundle import Bundle

__all__ = ["MORE", "count_instructions"]

MORE = 8  # what a run differs from the next by (a tenth of a per cent of the start) is then below half a per cent
_SCRIPT = """
import sys
import numpy as np
import onnxruntime as ort
folder, runs = sys.argv[1], int(sys.argv[2])
options = ort.SessionOptions()
options.intra_op_num_threads = options.inter_op_num_threads = 1
options.log_severity_level = 3
session = ort.InferenceSession(folder + "/model.onnx", options, providers=["CPUExecutionProvider"])
inputs = np.load(folder + "/inputs.npz")
feed = {value.name: inputs[value.name] for value in session.get_inputs()}
names = [value.name for value in session.get_outputs()]
for _ in range(runs):
    session.run(names, feed)
"""


def count_instructions(
    guest: Guest, subject: BenchSubject, lengths: Sequence[int], *, seed: int = 0
) -> list[MetricsRecord]:
    """Entries for the result's ``metrics``: the backbone and every task on the first of these rows.

    Raises:
        EdgepeftError: the emulated program failed.
    """
    bundle, model, row = subject.bundle, subject.model, lengths[:1]
    inputs = random_batch(row, vocab_size=model.vocab_size, pad_id=model.pad_id, seed=seed)
    entries = []
    for task in (None, *(task.name for task in model.tasks)):
        with tempfile.TemporaryDirectory(prefix="edgepeft-instructions-") as work:
            folder = Path(work)
            guest.prepare(folder)
            _write(folder, bundle, bundle.graph(task), inputs)
            few, many = (guest.count(folder, _SCRIPT, [str(folder), str(runs)]) for runs in (1, 1 + MORE))
        what = f"task {task}" if task else "backbone"
        of = f"{what}, {row[0]} tokens on a {CPU}, onnxruntime {guest.runtime}"
        entries.append(MetricsRecord(of=of, values={"instructions": (many - few) / MORE}))
    return entries


def _write(folder: Path, bundle: Bundle, graph: onnx.ModelProto, inputs: dict[str, NDArray[np.int64]]) -> None:
    """Graph, weights and inputs where the emulated program reads them."""
    write_atomically(folder / "model.onnx", graph.SerializeToString(deterministic=True))
    try:
        os.link(bundle.weights, folder / bundle.weights.name)  # a symbolic link is refused
    except OSError:  # on another file system
        shutil.copyfile(bundle.weights, folder / bundle.weights.name)
    np.savez(folder / "inputs.npz", allow_pickle=False, **inputs)
