"""Running a built graph, and transformers' own model, on the same arrays."""

from __future__ import annotations

import copy
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch
import transformers
from onnx import TensorProto, helper
from safetensors.numpy import load_file
from tiny import REFERENCES
from tolerance import Exact, exactly

from edgepeft.backbones.base import Architecture, Site, family_of
from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.packing import LONGER
from edgepeft.backbones.source import Backbone, open_backbone


def build(backbone: Backbone) -> onnx.ModelProto:
    return backbone.architecture.graph(backbone.checkpoint)


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
        architecture = self.backbone.architecture
        self.model = load_model(self.backbone, REFERENCES.get(architecture.model_type, architecture.reference))

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


def read(config: dict[str, Any]) -> Architecture:
    """What a config says."""
    return family_of(config).architecture(config)


def require_transformers_table(config: dict[str, Any]) -> Architecture:
    """Its tensors and norms are those of transformers' base model."""
    with torch.device("meta"):
        model = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(**config))
    architecture = read(config)
    assert dict(architecture.tensors) == {name: tuple(p.shape) for name, p in model.named_parameters()}
    norms = {name for name, module in model.named_modules() if isinstance(module, torch.nn.LayerNorm)}
    assert set(architecture.norms) == norms
    return architecture


def require_files_own_weights(folder: Path, prefix: str) -> onnx.ModelProto:
    """The graph reads all weights of the file, as they are called there, and keeps constants alone."""
    backbone = open_backbone(str(folder))
    model = build(backbone)
    weights = {i.name for i in model.graph.initializer if i.data_location == TensorProto.EXTERNAL}
    assert weights == {prefix + name for name in backbone.architecture.tensors}
    assert weights <= set(load_file(backbone.weights))
    assert {node.domain for node in model.graph.node} == {""}
    return model


def require_sites(both: Both, rows: dict[str, np.ndarray]) -> int:
    """Sites, their inputs and residuals are what transformers' modules see of real tokens; how many there were.

    Of a module that is called twice that is its first call, of tokens; what has rows of distances says so by its name.
    Of one that several layers share, it is each layer's call.
    """
    seen: dict[str, torch.Tensor] = {}
    calls: Counter[str] = Counter()

    def keep(name: str, site: Site, values: Any, columns: tuple[int, int] | None = None) -> None:
        own, of = site.call
        if calls[name] % of == own:
            whole = (values[0] if isinstance(values, tuple) else values).detach()
            seen.setdefault(name, whole[..., slice(*columns)] if columns else whole)
        calls[name] += 1

    def keep_input(module: str, name: str, site: Site, index: int = 0) -> None:
        def hook(_: Any, args: Any, kwargs: Any) -> None:  # transformers passes some by name
            keep(name, site, (*args, *kwargs.values())[index])

        both.model.get_submodule(module).register_forward_pre_hook(hook, with_kwargs=True)

    architecture = both.backbone.architecture
    bindings = architecture.bindings
    for site in filter(lambda site: site.module and not site.shape, architecture.sites):
        module = both.model.get_submodule(site.module)
        if site.is_input:
            keep_input(site.module, site.name, site)
        else:
            module.register_forward_hook(lambda _, __, y, s=site: keep(s.name, s, y, s.columns))
        if f"{site.name}.input" in bindings:
            keep_input(site.reads, f"{site.name}.input", site)
        if site.residual:
            keep_input(site.residual, f"{site.name}.residual", site)
    inputs = {name: torch.from_numpy(rows[name]) for name in architecture.inputs}
    both.model.double()

    def states() -> dict[str, torch.Tensor]:
        seen.clear()
        calls.clear()
        return {"last": both.model(**inputs).last_hidden_state} | seen

    exact, real = exactly(states), rows["attention_mask"].astype(bool)
    model = build(both.backbone)
    del model.graph.output[:]
    values = sorted({bindings[name] for name in seen})
    model.graph.output.extend(helper.make_tensor_value_info(v, TensorProto.FLOAT, None) for v in values)
    feed = {name: rows[name] for name in architecture.inputs}
    found = dict(zip(values, session(model, both.backbone.folder).run(values, feed), strict=True))
    for name in seen:
        own, error = found[bindings[name]], exact[name].error
        assert (len(own) > real.sum()) == bindings[name].endswith(LONGER)
        every = np.broadcast_to(exact[name].value, (*real.shape, own.shape[-1]))  # positions come once for all rows
        np.testing.assert_allclose(own[: real.sum()], every[real], rtol=0, atol=error, err_msg=name)
    return len(seen)
