"""optimum's fused export of the bare encoder, level O3: attention, layer norms and GELU (by tanh) are one node each."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from bench.peers import optimum

MODULE = "optimum.onnxruntime"
RESULT = "model_optimized.onnx"


def export(folder: Path, out: Path) -> None:
    """Write ``out/model_optimized.onnx`` as ``optimum-cli onnxruntime optimize -O3`` does."""
    from optimum.onnxruntime import ORTModelForFeatureExtraction, ORTOptimizer
    from optimum.onnxruntime.configuration import AutoOptimizationConfig

    with TemporaryDirectory() as plain:
        optimum.export(folder, Path(plain))
        optimizer = ORTOptimizer.from_pretrained(ORTModelForFeatureExtraction.from_pretrained(plain))
        optimizer.optimize(save_dir=out, optimization_config=AutoOptimizationConfig.O3())
