"""OpenVINO in 8 bits: nncf's post-training quantisation of the converted model, as its recipe for transformers is."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bench.peers import openvino as fp32

MODULE = "nncf"
RESULT = "model.xml"

_ROWS, _TOKENS = 32, 32  # that the steps of activations are taken from


def export(folder: Path, out: Path) -> None:
    """Write ``out/model.xml``, weights and activations of its products in 8 bits."""
    import nncf
    import openvino
    from transformers import AutoConfig

    fp32.export(folder, out / "fp32")
    size = AutoConfig.from_pretrained(folder).vocab_size
    ids = np.random.default_rng(0).integers(5, size, (_ROWS, 1, _TOKENS))
    rows = nncf.Dataset([{"input_ids": row, "attention_mask": np.ones_like(row)} for row in ids])
    model = openvino.Core().read_model(out / "fp32" / fp32.RESULT)
    quantised = nncf.quantize(model, rows, model_type=nncf.ModelType.TRANSFORMER, subset_size=_ROWS)
    openvino.save_model(quantised, out / RESULT, compress_to_fp16=False)
