"""OpenVINO: transformers' model converted, in float32 and in 8 bits; text as optimum-intel exports and runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from bench.peers._writing import generating
from edgepeft.bench.planning.job import Job, Prepared

_INPUTS = ("input_ids", "attention_mask")
_ROWS, _TOKENS = 32, 32  # that the steps of activations are taken from


def _settings(job: Job) -> dict[str, Any]:
    """One stream of ``job.threads`` threads, in float32 as ours is."""
    asked: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": job.threads}
    return asked | {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1}


def export(folder: Path, out: Path) -> None:
    """Write ``out/model.xml``, of any batch and length, in float32 (``save_model`` alone would take half precision)."""
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
    openvino.save_model(converted, out / "model.xml", compress_to_fp16=False)


def export_int8(folder: Path, out: Path) -> None:
    """Write ``out/model.xml``: nncf's post-training quantisation, weights and activations of products in 8 bits."""
    import nncf
    import openvino
    from transformers import AutoConfig

    export(folder, out / "fp32")
    size = AutoConfig.from_pretrained(folder).vocab_size
    ids = np.random.default_rng(0).integers(5, size, (_ROWS, 1, _TOKENS))
    rows = nncf.Dataset([{"input_ids": row, "attention_mask": np.ones_like(row)} for row in ids])
    model = openvino.Core().read_model(out / "fp32" / "model.xml")
    quantised = nncf.quantize(model, rows, model_type=nncf.ModelType.TRANSFORMER, subset_size=_ROWS)
    openvino.save_model(quantised, out / "model.xml", compress_to_fp16=False)


def infer(job: Job) -> Prepared:
    """Compile ``job.model`` for the processor; a step is one batch to the last hidden state."""
    import openvino

    compiled = openvino.Core().compile_model(str(job.model), "CPU", _settings(job))
    request = compiled.create_infer_request()
    names = {value.get_any_name() for value in compiled.inputs}

    def step(batch: int) -> None:
        request.infer({name: values for name, values in job.batch(batch).items() if name in names})

    return Prepared(step)


def export_text(folder: Path, out: Path) -> None:
    """Write the encoder and the decoder, which keeps its cache."""
    from optimum.intel.openvino import OVModelForSeq2SeqLM

    model = OVModelForSeq2SeqLM.from_pretrained(folder, export=True, compile=False, load_in_8bit=False)
    model.save_pretrained(out)


def write(job: Job) -> Prepared:
    """Compile both for the processor."""
    from optimum.intel.openvino import OVModelForSeq2SeqLM

    model = OVModelForSeq2SeqLM.from_pretrained(Path(str(job.model)).parent, ov_config=_settings(job))
    return generating(model, job)
