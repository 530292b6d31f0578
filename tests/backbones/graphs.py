"""Running a built graph, and transformers' own model, on the same arrays."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import torch
from tiny import REFERENCES
from tolerance import Exact, exactly

from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.source import Backbone, open_backbone


def build(backbone: Backbone) -> onnx.ModelProto:
    return backbone.family.build_graph(backbone.architecture, backbone.checkpoint)


def session(model: onnx.ModelProto, folder: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


class Both:
    """The graph under ONNX Runtime beside transformers' eager model."""

    def __init__(self, folder: Path) -> None:
        self.backbone = open_backbone(str(folder))
        self.session = session(build(self.backbone), self.backbone.folder)
        self.model = load_model(self.backbone, REFERENCES.get(self.backbone.architecture.model_type, "eager"))

    def ours(self, rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        names = [output.name for output in self.session.get_outputs()]
        feed = {name: rows[name] for name in self.backbone.architecture.inputs}
        return dict(zip(names, self.session.run(names, feed), strict=True))

    def theirs(self, rows: dict[str, np.ndarray]) -> np.ndarray:
        inputs = {name: torch.from_numpy(rows[name]) for name in self.backbone.architecture.inputs}
        with torch.no_grad():
            return self.model(**inputs).last_hidden_state.numpy()

    def exact(self, rows: dict[str, np.ndarray]) -> Exact:
        """Those hidden states in float64, and what float32 may make of them."""
        inputs = {name: torch.from_numpy(rows[name]) for name in self.backbone.architecture.inputs}
        model = copy.deepcopy(self.model).double()
        with torch.no_grad():
            return exactly(lambda: {"hidden": model(**inputs).last_hidden_state})["hidden"]

    def assert_equal(self, rows: dict[str, np.ndarray]) -> None:
        """Hidden states at real tokens; pooled values against their definitions."""
        ours, expected, real = self.ours(rows), self.exact(rows), rows["attention_mask"].astype(bool)
        theirs, tolerance = expected.value, expected.error
        np.testing.assert_allclose(ours["last_hidden_state"][real], theirs[real], rtol=0, atol=tolerance)
        assert not ours["last_hidden_state"][~real].any()
        first = theirs[np.arange(len(real)), real.argmax(1)]
        mean = (theirs * real[..., None]).sum(1) / real.sum(1, keepdims=True)
        np.testing.assert_allclose(ours["pooled.first"], first, rtol=0, atol=tolerance)
        np.testing.assert_allclose(ours["pooled.mean"], mean, rtol=0, atol=tolerance)
