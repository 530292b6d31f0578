"""A template: an untrained delta with an open number of labels, to start tasks on a board."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence

import onnx
import onnxruntime as ort
import torch
from torch import nn

from edgepeft.backbones.base import Role
from edgepeft.backbones.source import Backbone
from edgepeft.backbones.tokens import Text
from edgepeft.bundle.bundle import TEMPLATES_FOLDER, Bundle
from edgepeft.bundle.delta import Delta, new_delta
from edgepeft.bundle.manifest import TemplateEntry
from edgepeft.bundle.versions import put
from edgepeft.common.errors import UsageError
from edgepeft.common.task_name import named_after
from edgepeft.deploy.install import prepare_task
from edgepeft.graph.names import adapted
from edgepeft.graph.splice import splice
from edgepeft.graph.template import OPEN
from edgepeft.heads.base import head_named
from edgepeft.methods.base import Method
from edgepeft.runtime.session import open_session
from edgepeft.training.exporting.check import check_content
from edgepeft.training.exporting.delta import export_delta
from edgepeft.training.settings import MAX_LENGTH


def write_template(
    bundle: Bundle, backbone: Backbone, model: nn.Module, method: Method, texts: Sequence[Text]
) -> TemplateEntry:
    """Write ``templates/<method>.onnx`` and its check rows, and list them in the manifest."""
    name = named_after(method.name)
    if name in bundle.manifest.templates:
        raise UsageError(f"--template {method.name} is given twice; a bundle holds one template of a method.")
    delta, axes = _open_delta(backbone, method, name)
    graph = export_delta(delta, backbone)
    _open_edges(graph.graph)
    graph.metadata_props.add(key=OPEN, value=json.dumps(axes))
    check = check_content(delta, backbone, model, texts)
    where = bundle.folder / TEMPLATES_FOLDER / name
    # An untrained head decides nothing that 8-bit weights could be held to: that the graph is right shows over float32.
    exact = None if bundle.manifest.backbone.weights_dtype == "fp32" else _over_float32(backbone, graph)
    prepared = prepare_task(bundle, graph.SerializeToString(deterministic=True), check, where, exact=exact)
    for suffix, content in prepared.content.items():
        put(where.with_name(f"{name}{suffix}"), content)
    entry = TemplateEntry.model_validate(prepared.entry.model_dump())
    templates = {**bundle.manifest.templates, name: entry}
    bundle.manifest = bundle.manifest.model_copy(update={"templates": templates})
    bundle.manifest.write(bundle.folder)
    return entry


def _over_float32(backbone: Backbone, delta: onnx.ModelProto) -> ort.InferenceSession:
    family, architecture, file = backbone.family, backbone.architecture, backbone.weights.resolve()
    checkpoint = family.open_checkpoint(architecture, file)
    whole = family.build_graph(architecture, checkpoint)
    return open_session(splice(whole, delta, family.bindings(architecture), checkpoint), file.parent)


def _open_delta(backbone: Backbone, method: Method, name: str) -> tuple[Delta, dict[str, int]]:
    """A fresh delta, and which axis of which of its tensors counts the labels; none does where they are scored."""

    def fresh(labels: tuple[str, ...]) -> Delta:
        longest = backbone.architecture.max_length - method.positions(backbone.architecture)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return new_delta(backbone, method, name, labels, max_length=min(MAX_LENGTH, longest))

    if head_named(backbone.head).decodes:
        return fresh(("yes", "no")), {}
    probe = fresh(_numbered(2))
    shapes = [*probe.tensors().values(), *probe.frozen_reads.values()]
    taken = {extent for tensor in shapes for extent in tensor.shape}
    taken |= {extent for shape in backbone.architecture.tensors.values() for extent in shape}
    n = next(size for size in itertools.count(3) if size not in taken)
    delta, few = fresh(_numbered(n)), probe.tensors()
    axes = {
        name: axis
        for name, tensor in delta.tensors().items()
        for axis, extent in enumerate(tensor.shape)
        if few[name].shape[axis] != extent
    }
    return delta, axes


def _numbered(n: int) -> tuple[str, ...]:
    return tuple(f"label {i}" for i in range(n))


def _open_edges(graph: onnx.GraphProto) -> None:
    """Leave open how many edges the labels have, of how many nodes."""
    for value in (*graph.input, *graph.output):
        if value.name in (Role.POOLED_LABELS, adapted(Role.POOLED_LABELS)):
            for dim, name in zip(value.type.tensor_type.shape.dim[1:], ("nodes", "edges"), strict=True):
                dim.dim_param = name
