"""optimum's exports of the bare encoder (plain, fused, 8 bits) and of text; a merged model's session for each task."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from bench.peers._writing import generating
from edgepeft.bench.planning.job import Job, Prepared

FUSED = "model_optimized.onnx"


def export(folder: Path, out: Path) -> None:
    """Write ``out/model.onnx`` as ``optimum-cli export onnx --task feature-extraction`` does."""
    from optimum.exporters.onnx import main_export

    main_export(str(folder), str(out), task="feature-extraction", do_validation=False)


def export_fused(folder: Path, out: Path) -> None:
    """Write ``out/model_optimized.onnx`` as ``optimum-cli onnxruntime optimize -O3`` does.

    Attention, layer norms and GELU (by tanh) are one node each.
    """
    from optimum.onnxruntime import ORTModelForFeatureExtraction, ORTOptimizer
    from optimum.onnxruntime.configuration import AutoOptimizationConfig

    with TemporaryDirectory() as plain:
        export(folder, Path(plain))
        optimizer = ORTOptimizer.from_pretrained(ORTModelForFeatureExtraction.from_pretrained(plain))
        optimizer.optimize(save_dir=out, optimization_config=AutoOptimizationConfig.O3())


def export_int8(folder: Path, out: Path, form: str = "fused") -> None:
    """Write ``out/model.onnx``: ONNX Runtime's dynamic quantisation of the fused or the plain export.

    A scale is a matrix's, in the ``form`` "channel" (fused too) a column's; activations are rounded in each run.
    """
    from onnx import TensorProto
    from onnxruntime.quantization import QuantType, quantize_dynamic

    out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as made:
        (export if form == "plain" else export_fused)(folder, Path(made))
        exact = Path(made, "model.onnx" if form == "plain" else FUSED)
        # ONNX's shape inference stops at the fused nodes.
        more = {"weight_type": QuantType.QInt8, "extra_options": {"DefaultTensorType": TensorProto.FLOAT}}
        quantize_dynamic(exact, out / "model.onnx", per_channel=form == "channel", **more)


def export_text(folder: Path, out: Path) -> None:
    """Write what ``optimum-cli export onnx --task text2text-generation-with-past`` does: with and without a cache."""
    from optimum.exporters.onnx import main_export

    main_export(str(folder), str(out), task="text2text-generation-with-past", do_validation=False)


def write(job: Job) -> Prepared:
    """Open the sessions as optimum's users do, with the same threads."""
    import onnxruntime
    from optimum.onnxruntime import ORTModelForSeq2SeqLM

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = job.threads, 1
    folder = Path(str(job.model)).parent
    model = ORTModelForSeq2SeqLM.from_pretrained(folder, use_merged=True, session_options=options)
    return generating(model, job)


def sessions(job: Job) -> Prepared:
    """A merged model for each task: step i opens the i-th session and answers a batch.

    All are the file ``job.model``: their sizes and speed do not depend on what the weights are, and each session packs
    a private copy of them, as sessions on different files do.
    """
    from edgepeft.bench.workloads.models import peer

    opened: list[Prepared] = []

    def step(batch: int) -> None:
        opened.append(peer(job))
        opened[-1].step(0)

    return Prepared(step)
