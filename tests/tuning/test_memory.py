"""What a run will take is told before its first step: by hand on small graphs, and by the kernel's own count."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import onnx
import pytest
import torch
from deltas import TEXTS
from onnx import parser
from tiny import write_model
from tuned import tune_task
from verbs import edgepeft

from edgepeft.backbones.source import open_backbone
from edgepeft.bundle.bundle import Bundle
from edgepeft.bundle.delta import new_delta
from edgepeft.common.errors import BundleError, DoesNotFit, UsageError
from edgepeft.graph.cost import packed_bytes, peak_bytes
from edgepeft.graph.shapes import value_specs
from edgepeft.methods.base import method_named
from edgepeft.options.verbs import TuneSettings
from edgepeft.training.exporting.bundle import export_bundle
from edgepeft.tuning import memory
from edgepeft.tuning.memory import allowed_memory
from edgepeft.tuning.target import Files, from_task
from edgepeft.tuning.tune import TuningRun

HEADER = '<ir_version: 10, opset_import: ["" : 20]>'


def model(text):
    return parser.parse_model(HEADER + text)


def test_shapes_that_the_graph_computes_from_its_inputs_are_known():
    graph = model(
        """g (float[batch, 6] x, int64[batch] unread) => (float[a, b, c] y) {
            size = Shape <start = 0, end = 1> (x)
            two = Constant <value_ints = [2]> ()
            rest = Constant <value_ints = [-1]> ()
            shape = Concat <axis = 0> (size, two, rest)
            y = Reshape (x, shape)
        }"""
    )
    assert value_specs(graph, {"batch": 5})["y"].shape == (5, 2, 3)
    with pytest.raises(BundleError, match="open dimension 'batch'"):
        value_specs(graph, {"length": 5})


def test_a_shape_that_depends_on_values_is_refused():
    graph = model("g (float[batch] x) => (int64[a, b] y) { y = NonZero (x) }")
    with pytest.raises(BundleError, match=r"shape of y .* cannot be told"):
        value_specs(graph, {"batch": 5})


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        # Two products of 400 bytes are alive while the second is computed; their sum is written over one of them.
        ("a = MatMul (x, w)  b = MatMul (x, w)  y = Add (a, b)", 800),
        # An input is nobody's to write over.
        ("y = Add (x, x)", 400),
        # A view is no copy, and x, which came in, is not counted.
        ("n = Constant <value_ints = [100]> ()  a = Reshape (x, n)  y = Relu (a)", 400),
        # A transposed operand of a product is none either; one that is an output is.
        ("t = Transpose (x)  y = MatMul (t, w)", 400),
        ("t = Transpose (x)  u = MatMul (t, w)  y = Sub (t, u)", 800),
        # Kept for later: a is read at the end, after two more values came and went.
        ("a = MatMul (x, w)  b = MatMul (a, w)  c = MatMul (b, w)  y = MatMul (c, a)", 1200),
    ],
)
def test_the_peak_is_that_of_a_count_by_hand(body, expected):
    graph = model(f"g (float[10, 10] x, float[10, 10] w) => (float y) {{ {body} }}")
    assert peak_bytes(graph.graph, value_specs(graph, {})) == expected


def test_a_matrix_counts_once_for_each_product_that_reads_it():
    graph = model(
        """g (float[2, 3] x) => (float y) {
            t = Transpose (w)  a = Gemm (x, t)  b = MatMul (a, w)  c = Gather (table, i)  y = Add (b, c)
        }"""
    )
    for name, shape in (("w", (4, 3)), ("table", (100, 3))):
        tensor = graph.graph.initializer.add(name=name, dims=shape, data_type=onnx.TensorProto.FLOAT)
        tensor.data_location = onnx.TensorProto.EXTERNAL
    assert packed_bytes(graph.graph) == 2 * 4 * 3 * 4  # a table is read where it lies


def test_the_least_of_all_limits_counts_and_is_named(monkeypatch):
    monkeypatch.setattr(memory, "memory_bytes", lambda: 10 * 2**30)
    assert allowed_memory(None, None)[1] == "this host or its control group"
    assert allowed_memory("rpi4", None) == (8 * 2**30, "profile rpi4")
    assert allowed_memory("rpi4", "1.5GiB") == (3 * 2**29, "--memory")
    assert allowed_memory("rpi4", "9 gb")[1] == "profile rpi4"
    monkeypatch.setattr(memory, "memory_bytes", lambda: 2**30)
    assert allowed_memory("rpi4", "2GB")[0] == 2**30
    for wrong in ("much", "-1GB", "0", "1,5GB", "5 parsecs", "²GB", "nan"):
        with pytest.raises(UsageError, match="is no amount of memory"):
            allowed_memory(None, wrong)


def test_a_number_that_small_has_lost_its_unit():
    assert allowed_memory(None, "20000")[0] == 20_000
    for text in ("2", "512", "9999"):
        with pytest.raises(UsageError, match=rf"--memory {text} has no unit .* such as 800MB or 1.5GiB"):
            allowed_memory(None, text)


def run_of(bundle, data, work, **more):
    options = TuneSettings(**{"steps": 4, "batch_size": 16, **more})
    opened = Bundle(bundle)
    target = from_task(opened, "mood", Files(data), options)
    run = TuningRun(opened, target, options, work, threads=1)
    return run, run.layout.notes


def test_rows_at_once_are_as_many_as_fit_and_states_go_to_a_file_first(bundle, moods, tmp_path, monkeypatch):
    """A process that stands still: the demand is then the same in each of these runs."""
    monkeypatch.setattr(memory.psutil.Process, "memory_info", lambda _: type("Info", (), {"rss": 50_000_000})())
    asked = {n: run_of(bundle, moods, tmp_path, micro_batch=n)[0].layout.predicted_bytes for n in (1, 2, 5, 16)}
    assert list(asked.values()) == sorted(asked.values()) and asked[1] < asked[16]
    whole, told = run_of(bundle, moods, tmp_path, memory=str(asked[16]))
    assert (whole.layout.micro_batch, whole.layout.in_file, told) == (16, False, ())
    filed, told = run_of(bundle, moods, tmp_path, memory=str(asked[16] - 1))
    assert (filed.layout.micro_batch, filed.layout.in_file) == (16, True) and "in a file" in told[0]
    lean = {n: run_of(bundle, moods, tmp_path, prefix_cache=False, micro_batch=n)[0] for n in (1, 5, 6)}
    sizes = {n: run.layout.predicted_bytes for n, run in lean.items()}
    parts, told = run_of(bundle, moods, tmp_path, prefix_cache=False, memory=str((sizes[5] + sizes[6]) // 2))
    assert parts.layout.micro_batch == 5 and "16 rows is computed 5 at a time" in told[-1]
    with pytest.raises(
        DoesNotFit, match=r"a step of 6 rows .* at once takes .* allowed by --memory.*--micro-batch 5 fits"
    ):
        run_of(bundle, moods, tmp_path, prefix_cache=False, micro_batch=6, memory=str((sizes[5] + sizes[6]) // 2))
    with pytest.raises(DoesNotFit, match=r"even one row of \d+ tokens .* No batch size fits"):
        run_of(bundle, moods, tmp_path, prefix_cache=False, memory=str(sizes[1] - 1))


def test_what_does_not_fit_is_refused_with_exit_5_and_leaves_nothing(bundle, moods):
    done = edgepeft("tune", bundle, "--task", "mood", "--data", moods, "--memory", "1MB")
    assert done.returncode == 5 and "No batch size fits" in done.stderr
    assert not (bundle / ".tune").exists()
    done = edgepeft("tune", bundle, "--task", "mood", "--data", moods, "--profile", "rpi44")
    assert done.returncode == 2 and "Did you mean 'rpi4'" in done.stderr


def test_a_run_in_parts_and_from_a_file_ends_with_the_same_answers(bundle, moods, tmp_path, monkeypatch):
    import shutil

    other = shutil.copytree(bundle, tmp_path / "other")
    monkeypatch.setattr(memory.psutil.Process, "memory_info", lambda _: type("Info", (), {"rss": 50_000_000})())
    options = {"steps": 20, "learning_rate": 1e-3, "head_learning_rate": 1e-2, "dropout": True}
    one = tune_task(bundle, "mood", Files(moods), TuneSettings(**options), threads=1)
    lean = run_of(bundle, moods, tmp_path, prefix_cache=False, micro_batch=3)[0].layout.predicted_bytes
    tight = TuneSettings(**options, prefix_cache=False, memory=str(lean))
    two = tune_task(other, "mood", Files(moods), tight, threads=1)
    assert two.training["micro_batch"] < one.training["micro_batch"] == 16
    for before, after in zip(one.history, two.history, strict=True):
        assert after["loss"] == pytest.approx(before["loss"], abs=2e-4)


MEASURE = """
import json, sys
from pathlib import Path
from edgepeft.methods.base import method_named
from edgepeft.bundle.bundle import Bundle
from edgepeft.tuning.tune import TuningRun
from edgepeft.options.verbs import TuneSettings
from edgepeft.tuning.target import Files, from_task

bundle, data, work, more = sys.argv[1:]
options, opened = TuneSettings(steps=4, **json.loads(more)), Bundle(Path(bundle))
run = TuningRun(opened, from_task(opened, "mood", Files(Path(data)), options), options, Path(work), threads=1)
run.loop.evaluate()
for _ in range(3):
    run.loop.update(list(range(run.batch_size)))
status = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
print(run.layout.predicted_bytes, int(status["VmHWM"].split()[0]) * 1024)
"""


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """Wide enough for weights and activations to weigh more than Python: 4 layers of 512."""
    folder = tmp_path_factory.mktemp("wide")
    sizes = {"hidden_size": 512, "intermediate_size": 2048, "num_attention_heads": 8, "num_hidden_layers": 4}
    sizes["max_position_embeddings"] = 160
    backbone = open_backbone(str(write_model(folder / "bert", "bert", **sizes)))
    torch.manual_seed(0)
    pfeiffer = method_named("pfeiffer").from_settings({"bottleneck": 16, "skip_layers": 2})
    new_delta(backbone, pfeiffer, "mood", ("bad", "good"), max_length=128).save(folder / "mood")
    export_bundle(backbone, [folder / "mood"], folder / "bundle", texts=TEXTS)
    return folder / "bundle"


@pytest.mark.slow
@pytest.mark.parametrize("length", [32, 128])
@pytest.mark.parametrize("more", [{"batch_size": 8}, {"batch_size": 16, "prefix_cache": False}])
def test_the_prediction_is_within_15_per_cent_of_the_kernels_count(wide, tmp_path, length, more):
    rows = [{"sentence1": "w5 " * (length - 2), "label": ("bad", "good")[i % 2]} for i in range(60)]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = [str(wide), str(data), str(tmp_path), json.dumps(more)]
    done = subprocess.run([sys.executable, "-c", MEASURE, *arguments], capture_output=True, text=True, check=True)
    predicted, measured = map(int, done.stdout.split())
    assert 0.85 < predicted / measured < 1.15, np.array([predicted, measured]) / 1e6
