"""A delta as an ONNX graph: PE modules and head by ``torch.onnx.export``, overrides by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn
from torch.nn import functional

from edgepeft.backbones.base import Architecture, Helper, Pooling, Role, Site
from edgepeft.backbones.checkpoint import StoredTensor
from edgepeft.backbones.emit import OPSET, external_tensor
from edgepeft.backbones.hooks import needs
from edgepeft.backbones.source import Backbone
from edgepeft.backbones.trie import EDGES
from edgepeft.bundle.card import ERRORS
from edgepeft.bundle.delta import Delta
from edgepeft.common.task_name import WEIGHTS
from edgepeft.graph import names
from edgepeft.graph.cut import rename_values
from edgepeft.graph.external_data import DRAWN, RECIPE
from edgepeft.graph.gradient.training import DROPPED
from edgepeft.graph.half import store_in_half
from edgepeft.graph.protos import replace
from edgepeft.graph.validate import check_standard
from edgepeft.methods.base import Generator
from edgepeft.methods.vera import FrozenMatrices
from edgepeft.training.exporting.tracing import external_matrices, mark, number_nodes, traced, write_external

# Two odd sizes, so that neither dimension is taken for a constant or for the other.
_TOKENS, _BATCH = 7, 3
_SIZES: Mapping[str, Any] = {"tokens": _TOKENS, "batch": _BATCH, "places": 5, "queries": 9}


def export_delta(
    delta: Delta, backbone: Backbone, weights: Path | None = None, *, half: bool = False
) -> onnx.ModelProto:
    """The self-contained delta graph, opset 20, IR 10; the same delta gives the same bytes.

    Where its tensors are more than a graph can hold, the matrices that replace the backbone's are written to
    ``weights``, and the graph refers to ``<task>.weights.safetensors`` beside it.  ``half`` stores matrices in half
    precision.

    Inputs: ``<site>``, ``<site>.input``, ``<site>.residual`` [tokens, d], ``pooled.*`` [batch, d],
    ``Helper``, ``weight:<tensor>``, ``generated:<tensor>``, ``drawn:<matrix>``.  Outputs:
    ``<site>:adapted``, ``override:<tensor>``, ``logits`` [batch, outputs], or [tokens, outputs], but not where text is
    written: there they are the backbone's own.  Labels that a decoder scores are adapted values too, int64 constants.
    """
    own, beside = external_matrices(delta, weights), f"{delta.card.task}{WEIGHTS}"
    delta = delta.eval().folded(backbone)
    parts = _Parts(delta)
    stored = {name: backbone.checkpoint.stored_name(name) for name in (*parts.borrowed, *_own(delta))}
    if parts.outputs:
        model = traced(parts, list(parts.inputs.values()), _dims(parts), len(parts.outputs))
    else:  # of overrides alone
        model = helper.make_model(
            helper.make_graph([], "delta", [], []), opset_imports=[helper.make_opsetid("", OPSET)]
        )
    rename_values(model.graph, _renamer(parts, stored))
    _name_dims(model.graph, delta.architecture, per_token=delta.head.per_token)
    number_nodes(model.graph)
    for name, tensor in delta.override_tensors.items():
        source = f"override/{stored[name]}"
        if name in own:
            place = StoredTensor(source, "F32", tuple(tensor.shape), 0, tensor.nbytes, beside)
            model.graph.initializer.append(external_tensor(place))
        else:
            model.graph.initializer.append(numpy_helper.from_array(tensor.detach().numpy(), source))
        _give(model.graph, source, names.override(stored[name]), tensor.shape)
    for name, values in (parts.trie.values if parts.trie else {}).items():
        if names.of_labels(name) not in {tensor.name for tensor in model.graph.initializer}:
            model.graph.initializer.append(numpy_helper.from_array(values, names.of_labels(name)))
        _give(model.graph, names.of_labels(name), names.adapted(name), values.shape, TensorProto.INT64)
    properties = _properties(delta)
    if delta.generator is not None:
        _leave_to_the_loader(model.graph, delta.generator, delta.architecture, stored)
        tensors = [stored[name] for name in delta.generator.names]
        properties[RECIPE] = json.dumps({**delta.generator.recipe, "tensors": tensors})
    mark(model, properties | _leave_drawn_to_the_loader(model.graph, delta))
    if half:
        store_in_half(model.graph)
    if own and weights is not None:
        named = {f"override/{stored[name]}": tensor.detach().numpy() for name, tensor in own.items()}
        write_external(model, named, weights, beside)
    check_standard(model)
    return model


class _Parts(nn.Module):
    """All PE modules and the head side by side: a flat list of values in, a flat list out."""

    def __init__(self, delta: Delta) -> None:
        super().__init__()
        self.delta = delta
        self.inputs: dict[str, Tensor] = {}
        self.outputs: list[str] = []
        self.borrowed: list[str] = []
        self.owners: dict[str, str] = {}  # input -> the site whose rows it has
        # Where text is written, or the steps that write it score labels, of every word.
        self.trie = None if delta.card.writes else delta.trie
        self.tokens: Any = ... if self.trie is None else delta.edge_tokens()
        for name, module in delta.site_modules.items():
            self._declare(delta.architecture.site(name), module)
            self.outputs.append(names.adapted(name))
        if delta.card.writes:
            return
        self._declare_pooled()
        for tensor in delta.head.reads:
            self._borrow(tensor, delta.architecture.shape_of(tensor))
        self.outputs.append(names.LOGITS)

    def _declare_pooled(self) -> None:
        """The backbone's pooled value, or what makes one that leaves a prompt out."""
        hidden = self.delta.architecture.hidden_size
        if self.delta.card.pooling is Pooling.TOKENS:
            self._read(self.last, torch.zeros(_TOKENS, hidden), self.owners.get(self.last))
            return
        if self.delta.card.unpooled == 0:
            trie = self.trie
            width = self.delta.architecture.vocab_size if self.delta.card.writes else hidden
            shape = (width,) if trie is None else trie.siblings.shape
            self._read(self.delta.card.pooling.site, torch.zeros(_BATCH, *shape))
            return
        self._read(self.last, torch.zeros(_TOKENS, hidden))
        self._read(Helper.FIRST_TOKEN, torch.zeros(_BATCH, dtype=torch.int64))
        if self.delta.card.pooling is Pooling.MEAN:
            self._read(Helper.ROW, torch.zeros(_TOKENS, dtype=torch.int64), self.last)

    def _read(self, name: str, example: Tensor, owner: str | None = None) -> None:
        """Declare an input with as many rows as ``owner`` has."""
        self.inputs[name] = example
        self.owners[name] = owner or name

    @property
    def last(self) -> str:
        """The site that the backbone pools."""
        of = self.delta.architecture.sites_of
        return (of(Role.STACK_OUTPUT) or of(Role.LAYER_OUTPUT))[-1].name

    def _declare(self, site: Site, module: nn.Module) -> None:
        if site.shape:
            kind = torch.int64 if site.role is Role.POSITION_IDS else torch.float32
            self._read(site.name, torch.zeros([_SIZES.get(str(extent), extent) for extent in site.shape], dtype=kind))
            return
        rows = _TOKENS if site.module else _BATCH
        widths = {
            "y": ("", site.out_features),
            "x": (".input", site.in_features),
            "residual": (".residual", site.out_features),
        }
        # Modules that read the positions have their row count in common; such sites are declared from below.
        owner = Helper.POSITION if "position" in needs(module) else site.name
        for wanted in needs(module):
            if wanted == "norm":
                for part in ("weight", "bias") if site.norm else ():
                    self._borrow(f"{site.norm}.{part}", (site.out_features,))
            elif wanted == "bias":
                bias = f"{site.reads}.bias"
                if bias in self.delta.architecture.tensors:
                    self._borrow(bias, self.delta.architecture.shape_of(bias))
            elif site.role is Role.POOLED_LABELS:
                self._declare_pooled()
            elif wanted == "position":
                self._read(Helper.POSITION, torch.zeros(rows, dtype=torch.int64), owner)
            else:
                suffix, width = widths[wanted]
                self._read(site.name + suffix, torch.zeros(rows, width), owner)

    def _borrow(self, tensor: str, shape: tuple[int, ...]) -> None:
        self.borrowed.append(tensor)
        self.inputs[names.weight(tensor)] = torch.zeros(shape)

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        """Values in the order of ``inputs`` -> values in the order of ``outputs``."""
        given = dict(zip(self.inputs, values, strict=True))
        adapted = {name: self._adapt(name, module, given) for name, module in self.delta.site_modules.items()}
        if self.delta.card.writes:
            return tuple(adapted.values())
        site = self.delta.card.pooling.site
        pooled = adapted[site] if site in adapted else self._pooled({**given, **adapted})
        weights = (given[names.weight(tensor)] for tensor in self.delta.head.reads)
        return (*adapted.values(), self.delta.head(pooled, *weights))

    def _pooled(self, given: dict[str, Tensor]) -> Tensor:
        """[batch, d]; of packed tokens, where the prompt's are to be left out.  Or [tokens, d] of them all."""
        card, skip = self.delta.card, self.delta.card.unpooled
        if card.pooling is Pooling.TOKENS:
            return given[self.last]
        if skip == 0:
            return given[card.pooling.site]
        hidden, first = given[self.last], given[Helper.FIRST_TOKEN]
        if card.pooling is Pooling.FIRST:
            return hidden[first + skip]
        row = given[Helper.ROW]
        text = torch.arange(hidden.shape[0]) - first[row] >= skip
        rows = torch.arange(first.shape[0]).unsqueeze(1)
        members = ((row == rows) & text).to(hidden.dtype)  # (batch, tokens)
        return members @ hidden / members.sum(1, keepdim=True)

    def _adapt(self, name: str, module: nn.Module, given: dict[str, Tensor]) -> Tensor:
        site = self.delta.architecture.site(name)
        sources: dict[str, Callable[[], Any]] = {
            "y": lambda: given[name],
            "x": lambda: given[f"{name}.input"],
            "residual": lambda: given[f"{name}.residual"],
            "norm": lambda: self._norm(site, given),
            "bias": lambda: self._bias(site, given),
            "position": lambda: given[Helper.POSITION],
            "token": lambda: self.tokens,
        }
        adapted: Tensor = module(*(sources[wanted]() for wanted in needs(module)))
        return adapted

    def _bias(self, site: Site, given: dict[str, Tensor]) -> Tensor | None:
        bias = given.get(names.weight(f"{site.reads}.bias"))
        return bias if bias is None or site.columns is None else bias[slice(*site.columns)]

    def _norm(self, site: Site, given: dict[str, Tensor]) -> Callable[[Tensor], Tensor]:
        if site.norm is None:
            return lambda z: z
        weight, bias = (given[names.weight(f"{site.norm}.{part}")] for part in ("weight", "bias"))
        epsilon = self.delta.architecture.layer_norm_eps
        return lambda z: functional.layer_norm(z, weight.shape, weight, bias, epsilon)


def _dims(parts: _Parts) -> tuple[tuple[dict[int, Any] | None, ...]]:
    """Each site has a row count of its own while tracing.

    With one for all, a reshape in an early layer would take it from a late layer's input, and the spliced graph would
    be a circle.
    """
    dims = {site: {0: torch.export.Dim(f"rows_{i}")} for i, site in enumerate(parts.owners.values())}
    for i, site in enumerate(parts.delta.architecture.sites):
        if site.shape and site.name in dims:
            open_axes = (axis for axis, extent in enumerate(site.shape) if isinstance(extent, str))
            dims[site.name] = {axis: torch.export.Dim(f"{site.shape[axis]}_{i}") for axis in open_axes}
    return (tuple(dims[parts.owners[name]] if name in parts.owners else None for name in parts.inputs),)


def _name_dims(graph: onnx.GraphProto, architecture: Architecture, *, per_token: bool) -> None:
    by_row = {Helper.FIRST_TOKEN} if per_token else {Helper.FIRST_TOKEN, names.LOGITS}
    shapes = {site.name: site.shape for site in architecture.sites if site.shape}
    for value in (*graph.input, *graph.output):
        if shape := shapes.get(names.without_prefix(value.name)[1]):
            given = value.name in shapes  # what a delta gives in its place may have more places
            for dim, extent in zip(value.type.tensor_type.shape.dim, shape, strict=True):
                if isinstance(extent, str):
                    dim.dim_param = extent if given or extent != "places" else "keys"
            continue
        of_rows = value.name in by_row or value.name.startswith("pooled.")
        rows = "batch" if of_rows else "tokens"
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_param = rows


def _renamer(parts: _Parts, stored: dict[str, str]) -> Callable[[str], str]:
    """Exporter's names -> ours: sites and tensors for inputs and outputs, delta.safetensors' for weights."""
    split = {name: names.without_prefix(name) for name in parts.inputs}
    on_file = {name: names.weight(stored[rest]) if kind == "weight" else name for name, (kind, rest) in split.items()}
    new = {f"in_{i}": name for i, name in enumerate(on_file.values())}
    new |= {f"out_{i}": name for i, name in enumerate(parts.outputs)}
    on_disk = {id(tensor): name for name, tensor in parts.delta.tensors().items()}
    # A shared parameter has several paths, and the exporter takes one of them.
    new |= {path: on_disk[id(p)] for path, p in parts.named_parameters(remove_duplicate=False)}
    modules = parts.named_modules(remove_duplicate=False)
    drawn = ((path, name) for path, module in modules if isinstance(module, FrozenMatrices) for name in module.shapes)
    new |= {f"{path}.{name}": names.frozen_random(name) for path, name in drawn}
    if parts.trie is not None:
        new |= {f"delta.head.{table}": names.of_labels(table) for table in parts.trie.tables}
        new["tokens"] = names.of_labels(EDGES)
    return lambda name: new.get(name, name)


def _leave_to_the_loader(
    graph: onnx.GraphProto, generator: Generator, architecture: Architecture, stored: dict[str, str]
) -> None:
    """Add the generator's parameters, and an input for each tensor that the loader makes of them."""
    for name, tensor in generator.named_parameters():
        graph.initializer.append(numpy_helper.from_array(tensor.detach().numpy(), names.of_loader(name)))
    for name in generator.names:
        made, shape = names.generated(stored[name]), architecture.shape_of(name)
        graph.input.append(helper.make_tensor_value_info(made, TensorProto.FLOAT, shape))
        _give(graph, made, names.override(stored[name]), shape)


def _leave_drawn_to_the_loader(graph: onnx.GraphProto, delta: Delta) -> dict[str, str]:
    """Have inputs in the place of frozen random matrices; what says how to draw these."""
    found = next((module for module in delta.modules() if isinstance(module, FrozenMatrices)), None)
    if found is None:
        return {}
    replace(graph.initializer, [t for t in graph.initializer if names.without_prefix(t.name)[0] != "drawn"])
    read = {name for node in graph.node for name in node.input}
    for name, shape in found.shapes.items():
        if names.frozen_random(name) in read:
            graph.input.append(helper.make_tensor_value_info(names.frozen_random(name), TensorProto.FLOAT, shape))
    return {DRAWN: json.dumps(found.recipe)}


def _give(
    graph: onnx.GraphProto, source: str, output: str, shape: Sequence[int], kind: int = TensorProto.FLOAT
) -> None:
    """Add a value as an output; the exporter would rename an output that is a parameter."""
    graph.node.append(helper.make_node("Identity", [source], [output], name=output))
    graph.output.append(helper.make_tensor_value_info(output, kind, list(shape)))


def _own(delta: Delta) -> tuple[str, ...]:
    return tuple(delta.override_tensors) if delta.generator is None else delta.generator.names


def _properties(delta: Delta) -> dict[str, str]:
    card = delta.card
    prompt = {
        names.PROMPT_LENGTH: str(card.prompt_length),
        names.PLACEHOLDER_ID: str(delta.architecture.placeholder_token_id),
    }
    metrics = {name: value for name, value in card.metrics.items() if name != ERRORS}
    return {
        "edgepeft.format": "edgepeft.task/1",
        "edgepeft.task": card.task,
        "edgepeft.method": card.method,
        "edgepeft.backbone": card.backbone.source,
        "edgepeft.backbone_sha256": card.backbone.sha256,
        DROPPED: json.dumps([f"head/{name}" for name in type(delta.head).dropped()]),
        "edgepeft.card": card.model_copy(update={"metrics": metrics}).model_dump_json(),
        **(prompt if card.prompt_length else {}),
    }
