"""OpenVINO's conversion of transformers' model, with dynamic batch and length."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgepeft.bench.planning.job import Job

MODULE = "openvino"
RESULT = "model.xml"

_INPUTS = ("input_ids", "attention_mask")


def settings(job: Job) -> dict[str, Any]:
    """One stream of ``job.threads`` threads, in float32 as ours is."""
    asked: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": job.threads}
    return asked | {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1}


def export(folder: Path, out: Path) -> None:
    """Write ``out/model.xml`` and its weights in float32 (``save_model`` alone would take half precision)."""
    import openvino
    import torch
    from transformers import AutoModel

    model = AutoModel.from_pretrained(folder, add_pooling_layer=False).eval()  # by SDPA where transformers can
    ids = torch.full((2, 8), model.config.vocab_size - 1)
    # With a mask of ones transformers' tracing leaves the mask out, and fixes the length.
    mask = torch.tensor([[1] * 8, [1] * 5 + [0] * 3])
    converted = openvino.convert_model(model, example_input=dict(zip(_INPUTS, (ids, mask), strict=True)))
    for value, name in zip(converted.inputs, _INPUTS, strict=True):
        value.get_tensor().set_names({name})  # the traced mask has a number for a name
    out.mkdir(parents=True, exist_ok=True)
    openvino.save_model(converted, out / RESULT, compress_to_fp16=False)
