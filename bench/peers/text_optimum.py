"""Text by optimum's export (one decoder with and without a cache, merged) on ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

from bench.peers._writing import generating
from edgepeft.bench.planning.job import Job, Prepared

MODULE = "optimum.onnxruntime"
RESULT = "decoder_model_merged.onnx"


def export(folder: Path, out: Path) -> None:
    """Write what ``optimum-cli export onnx --task text2text-generation-with-past`` does."""
    from optimum.exporters.onnx import main_export

    main_export(str(folder), str(out), task="text2text-generation-with-past", do_validation=False)


def prepare(job: Job) -> Prepared:
    """Open the sessions as optimum's users do, with the same threads."""
    import onnxruntime
    from optimum.onnxruntime import ORTModelForSeq2SeqLM

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = job.threads, 1
    folder = Path(str(job.model)).parent
    model = ORTModelForSeq2SeqLM.from_pretrained(folder, use_merged=True, session_options=options)
    return generating(model, job)
