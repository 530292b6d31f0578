"""PyTorch's own export of transformers' bare encoder: what is left where optimum knows no such model."""

from __future__ import annotations

from pathlib import Path

MODULE = "onnxscript"  # which the exporter is written with
RESULT = "model.onnx"
_ROWS, _TOKENS = 2, 16  # of the example; both stay open


def export(folder: Path, out: Path) -> None:
    """Write ``out/model.onnx`` by ``torch.onnx.export``; its inputs are ids and mask, token types are all zero."""
    import torch
    from transformers import AutoModel

    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    model.config.use_cache = model.config.return_dict = False
    inputs = {name: torch.ones(_ROWS, _TOKENS, dtype=torch.int64) for name in ("input_ids", "attention_mask")}
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence")}
    out.mkdir(parents=True, exist_ok=True)
    torch.onnx.export(
        model,
        kwargs=inputs,
        f=str(out / RESULT),
        dynamo=True,
        dynamic_shapes=dict.fromkeys(inputs, axes),
        output_names=["last_hidden_state"],
        external_data=True,
        verbose=False,
    )
