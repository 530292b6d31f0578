"""ONNX Runtime's dynamic quantisation of the fused export: 8-bit weights, activations rounded in each run."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from bench.peers import optimum_o3

MODULE = "optimum.onnxruntime"
RESULT = "model.onnx"


def export(folder: Path, out: Path, per: str = "tensor") -> None:
    """Write ``out/model.onnx``, with a scale ``per`` matrix ("tensor") or column of one ("channel")."""
    from onnx import TensorProto
    from onnxruntime.quantization import QuantType, quantize_dynamic

    out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as fused:
        optimum_o3.export(folder, Path(fused))
        model = Path(fused, optimum_o3.RESULT)
        own_nodes = {"DefaultTensorType": TensorProto.FLOAT}  # ONNX's shape inference stops at the fused ones
        quantize_dynamic(
            model, out / RESULT, per_channel=per == "channel", weight_type=QuantType.QInt8, extra_options=own_nodes
        )
