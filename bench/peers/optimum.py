"""optimum's export of the bare encoder: what a merged model under plain ONNX Runtime is."""

from __future__ import annotations

from pathlib import Path

MODULE = "optimum.exporters.onnx"
RESULT = "model.onnx"


def export(folder: Path, out: Path) -> None:
    """Write ``out/model.onnx`` as ``optimum-cli export onnx --task feature-extraction`` does."""
    from optimum.exporters.onnx import main_export

    main_export(str(folder), str(out), task="feature-extraction", do_validation=False)
