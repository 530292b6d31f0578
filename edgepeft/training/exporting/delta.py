"""A delta as an ONNX graph: PE modules and head by ``torch.onnx.export``, overrides by name.

Tensors that one graph cannot hold, for a protobuf ends at 2 GiB, lie beside it.
"""

import contextlib
import functools
import json
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn
from torch.nn import functional

from edgepeft.backbones import emit
from edgepeft.backbones.base import Architecture, PackedIndex, Role, Site
from edgepeft.backbones.checkpoint import StoredTensor
from edgepeft.backbones.emit import IR_VERSION, OPSET, external_tensor
from edgepeft.backbones.hooks import needs
from edgepeft.backbones.pooling import Pooling
from edgepeft.backbones.source import Backbone
from edgepeft.backbones.trie import EDGES
from edgepeft.bundle.card import ERRORS
from edgepeft.bundle.delta import Delta
from edgepeft.common.errors import UsageError
from edgepeft.common.task_name import WEIGHTS
from edgepeft.graph import names
from edgepeft.graph.cut import rename_values, strip
from edgepeft.graph.external_data import DRAWN, RECIPE, store_external
from edgepeft.graph.gradient.training import DROPPED
from edgepeft.graph.half import STORED, round_to_half, store_in_half
from edgepeft.graph.protos import external_tensors, floats, replace
from edgepeft.graph.validate import check_standard
from edgepeft.methods.base import Drawn

# Two odd sizes, so that neither dimension is taken for a constant or for the other.
_TOKENS, _BATCH = 7, 3
_Source = Callable[[Mapping[str, Tensor]], Any]  # how an argument of a module is taken from a graph's inputs
_SIZES: Mapping[str, Any] = {"tokens": _TOKENS, "batch": _BATCH, "places": 5, "queries": 9}


def export_delta(
    delta: Delta, backbone: Backbone, weights: Path | None = None, *, half: bool = False
) -> onnx.ModelProto:
    """The self-contained delta graph, opset 20, IR 10; the same delta gives the same bytes.

    Where its tensors are more than a graph can hold, the matrices that replace the backbone's are written to
    ``weights``, and the graph refers to ``<task>.weights.safetensors`` beside it.  ``half`` stores matrices in half
    precision.

    Inputs: ``<site>``, ``<site>.input``, ``<site>.residual`` [tokens, d], ``pooled.*`` [batch, d],
    ``PackedIndex``, ``weight:<tensor>``, ``generated:<tensor>``, ``drawn:<matrix>``.  Outputs:
    ``<site>:adapted``, ``override:<tensor>``, ``logits`` [batch, outputs], or [tokens, outputs], but not where text is
    written: there they are the backbone's own.  Labels that a decoder scores are adapted values too, int64 constants.
    """
    own, beside = _external_matrices(delta, weights), f"{delta.card.task}{WEIGHTS}"
    delta = delta.eval().folded(backbone)
    parts = _Parts(delta)
    replaced = delta.override_tensors if delta.generator is None else delta.generator.names
    stored = {name: backbone.checkpoint.stored_name(name) for name in (*parts.borrowed, *replaced)}
    if parts.outputs:
        model = export_module(parts, list(parts.inputs.values()), _dims(parts), len(parts.outputs))
    else:  # of overrides alone
        model = helper.make_model(
            helper.make_graph([], "delta", [], []), opset_imports=[helper.make_opsetid("", OPSET)]
        )
    rename_values(model.graph, _renamer(parts, stored))
    _name_dims(model.graph, delta.architecture, per_token=delta.head.per_token)
    for index, node in enumerate(model.graph.node):
        node.name = f"{node.op_type.lower()}_{index}"  # the exporter's names are long
    for name, tensor in delta.override_tensors.items():
        source = f"override/{stored[name]}"
        if name in own:
            place = StoredTensor(source, "F32", tuple(tensor.shape), 0, tensor.nbytes, beside)
            model.graph.initializer.append(external_tensor(place))
        else:
            model.graph.initializer.append(numpy_helper.from_array(tensor.detach().numpy(), source))
        _add_output(model.graph, source, names.with_prefix("override", stored[name]), tensor.shape)
    for name, values in (parts.trie.values if parts.trie else {}).items():
        if names.labels_name(name) not in {tensor.name for tensor in model.graph.initializer}:
            model.graph.initializer.append(numpy_helper.from_array(values, names.labels_name(name)))
        _add_output(model.graph, names.labels_name(name), names.adapted_name(name), values.shape, TensorProto.INT64)
    _mark(model, delta, _declare_loader_inputs(model.graph, delta, stored))
    if half:
        store_in_half(model.graph)
    if own and weights is not None:
        named = {f"override/{stored[name]}": tensor.detach().numpy() for name, tensor in own.items()}
        outside = [*external_tensors(model.graph)]
        whole = {tensor.name: tensor.name.removesuffix(STORED) for tensor in outside}
        content = ((at, named[name] if at == name else round_to_half(name, named[name])) for at, name in whole.items())
        store_external(outside, content, weights, beside)
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
        self.sources: dict[str, list[_Source]] = {}  # of a site's module, in the order of its arguments
        for name, module in delta.site_modules.items():
            # Modules that read the positions have their row count in common; such sites are declared from below.
            owner = PackedIndex.POSITION if "position" in needs(module) else name
            site = delta.architecture.site(name)
            self.sources[name] = [self._source(site, wanted, owner) for wanted in needs(module)]
            self.outputs.append(names.adapted_name(name))
        if delta.card.writes:
            return
        self.pooled = self._pooled()
        for tensor in delta.head.reads:
            self._borrow(tensor, delta.architecture.shape_of(tensor))
        self.outputs.append(names.LOGITS)

    def _pooled(self) -> _Source:
        """Declare the pooled value [batch, d], or each token's [tokens, d], a prompt left out; say how it is taken."""
        card, last, hidden = self.delta.card, self.last, self.delta.architecture.hidden_size
        skip = card.skipped_tokens
        if card.pooling is Pooling.TOKENS:
            self._read(last, torch.zeros(_TOKENS, hidden), self.owners.get(last))
            return lambda given: given[last]
        if skip == 0:
            width = self.delta.architecture.vocab_size if card.writes else hidden
            shape = (width,) if self.trie is None else self.trie.siblings.shape
            self._read(card.pooling.site, torch.zeros(_BATCH, *shape))
            return lambda given: given[card.pooling.site]
        self._read(last, torch.zeros(_TOKENS, hidden))
        self._read(PackedIndex.FIRST_TOKEN, torch.zeros(_BATCH, dtype=torch.int64))
        if card.pooling.needs_rows:
            self._read(PackedIndex.ROW, torch.zeros(_TOKENS, dtype=torch.int64), last)
        read = (last, PackedIndex.FIRST_TOKEN, *([PackedIndex.ROW] if card.pooling.needs_rows else []))
        return lambda given: card.pooling.behind_prompt(torch.arange, skip, *(given[name] for name in read))

    def _read(self, name: str, example: Tensor, owner: str | None = None) -> None:
        """Declare an input with as many rows as ``owner`` has."""
        self.inputs[name] = example
        self.owners[name] = owner or name

    @property
    def last(self) -> str:
        """The site that the backbone pools."""
        of = self.delta.architecture.sites_of
        return (of(Role.STACK_OUTPUT) or of(Role.LAYER_OUTPUT))[-1].name

    def _source(self, site: Site, wanted: str, owner: str) -> _Source:
        """Declare what a module at the site reads by that name, and say how it is taken from the given values."""
        architecture, rows = self.delta.architecture, _TOKENS if site.module else _BATCH
        width = site.in_features if wanted == "x" else site.out_features
        name = site.name + {"x": ".input", "residual": ".residual"}.get(wanted, "")
        if wanted == "norm" and site.norm:
            weight, bias = (self._borrow(f"{site.norm}.{part}", (width,)) for part in ("weight", "bias"))
            epsilon = architecture.layer_norm_eps
            return lambda given: lambda z: functional.layer_norm(z, (width,), given[weight], given[bias], epsilon)
        if wanted == "norm":
            return lambda _: lambda z: z
        if wanted == "bias":
            if (tensor := f"{site.reads}.bias") not in architecture.tensors:
                return lambda _: None
            name, columns = self._borrow(tensor, architecture.shape_of(tensor)), site.columns
            return lambda given: given[name][slice(*columns)] if columns else given[name]
        if site.shape:
            kind = torch.int64 if site.role is Role.POSITION_IDS else torch.float32
            self._read(name, torch.zeros([_SIZES.get(str(extent), extent) for extent in site.shape], dtype=kind))
        elif site.role is Role.POOLED_LABELS:
            self._pooled()
        elif wanted == "position":
            name = PackedIndex.POSITION
            self._read(name, torch.zeros(rows, dtype=torch.int64), owner)
        else:
            self._read(name, torch.zeros(rows, width), owner)
        return (lambda _: self.tokens) if wanted == "token" else lambda given: given[name]

    def _borrow(self, tensor: str, shape: tuple[int, ...]) -> str:
        self.borrowed.append(tensor)
        self.inputs[names.with_prefix("weight", tensor)] = torch.zeros(shape)
        return names.with_prefix("weight", tensor)

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        """Values in the order of ``inputs`` -> values in the order of ``outputs``."""
        given = dict(zip(self.inputs, values, strict=True))
        modules = self.delta.site_modules.items()
        adapted = {name: module(*(read(given) for read in self.sources[name])) for name, module in modules}
        if self.delta.card.writes:
            return tuple(adapted.values())
        site = self.delta.card.pooling.site
        pooled = adapted[site] if site in adapted else self.pooled({**given, **adapted})
        weights = (given[names.with_prefix("weight", tensor)] for tensor in self.delta.head.reads)
        return (*adapted.values(), self.delta.head(pooled, *weights))


def _dims(parts: _Parts) -> tuple[tuple[dict[int, Any] | None, ...]]:
    """Give each site a row count of its own: with one for all, a reshape in an early layer would take it from a late
    layer's input, and the spliced graph would be a circle."""
    dims = {site: {0: torch.export.Dim(f"rows_{i}")} for i, site in enumerate(parts.owners.values())}
    for i, site in enumerate(parts.delta.architecture.sites):
        if site.shape and site.name in dims:
            open_axes = (axis for axis, extent in enumerate(site.shape) if isinstance(extent, str))
            dims[site.name] = {axis: torch.export.Dim(f"{site.shape[axis]}_{i}") for axis in open_axes}
    return (tuple(dims[parts.owners[name]] if name in parts.owners else None for name in parts.inputs),)


def _name_dims(graph: onnx.GraphProto, architecture: Architecture, *, per_token: bool) -> None:
    by_row = {PackedIndex.FIRST_TOKEN} if per_token else {PackedIndex.FIRST_TOKEN, names.LOGITS}
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
    split = [(name, *names.without_prefix(name)) for name in parts.inputs]
    on_file = {
        name: names.with_prefix("weight", stored[rest]) if kind == "weight" else name for name, kind, rest in split
    }
    new = {f"in_{i}": name for i, name in enumerate(on_file.values())}
    new |= {f"out_{i}": name for i, name in enumerate(parts.outputs)}
    on_disk = {id(tensor): name for name, tensor in parts.delta.tensors().items()}
    # A shared parameter has several paths, and the exporter takes one of them.
    new |= {path: on_disk[id(p)] for path, p in parts.named_parameters(remove_duplicate=False)}
    modules = parts.named_modules(remove_duplicate=False)
    drawn = ((path, name) for path, module in modules if isinstance(module, Drawn) for name in module.shapes)
    new |= {f"{path}.{name}": names.with_prefix("drawn", name) for path, name in drawn}
    if parts.trie is not None:
        new |= {f"delta.head.{table}": names.labels_name(table) for table in parts.trie.tables}
        new["tokens"] = names.labels_name(EDGES)
    return lambda name: new.get(name, name)


def _declare_loader_inputs(graph: onnx.GraphProto, delta: Delta, stored: Mapping[str, str]) -> dict[str, str]:
    """Declare inputs for what a loader makes: tensors of a generator, whose parameters are added, and frozen random
    matrices; return what says how."""
    recipes: dict[str, str] = {}
    if (generator := delta.generator) is not None:
        for name, tensor in generator.named_parameters():
            graph.initializer.append(numpy_helper.from_array(tensor.detach().numpy(), names.loader_name(name)))
        for name in generator.names:
            made, shape = names.with_prefix("generated", stored[name]), delta.architecture.shape_of(name)
            graph.input.append(floats(made, shape))
            _add_output(graph, made, names.with_prefix("override", stored[name]), shape)
        recipes[RECIPE] = json.dumps({**generator.recipe, "tensors": [stored[name] for name in generator.names]})
    if found := next((module for module in delta.modules() if isinstance(module, Drawn)), None):
        replace(graph.initializer, [t for t in graph.initializer if names.without_prefix(t.name)[0] != "drawn"])
        read = {name for node in graph.node for name in node.input}
        for name, shape in found.shapes.items():
            if names.with_prefix("drawn", name) in read:
                graph.input.append(floats(names.with_prefix("drawn", name), shape))
        recipes[DRAWN] = json.dumps(found.recipe)
    return recipes


def _add_output(
    graph: onnx.GraphProto, source: str, output: str, shape: Sequence[int], kind: int = TensorProto.FLOAT
) -> None:
    """Add a value as an output; the exporter would rename an output that is a parameter."""
    graph.node.append(helper.make_node("Identity", [source], [output], name=output))
    graph.output.append(helper.make_tensor_value_info(output, kind, list(shape)))


def _mark(model: onnx.ModelProto, delta: Delta, recipes: Mapping[str, str]) -> None:
    """Replace what the exporter says of the graph and of itself by our versions, the card and these recipes."""
    card = delta.card
    prompt = {
        names.PROMPT_LENGTH: str(card.prompt_length),
        names.PLACEHOLDER_ID: str(delta.architecture.placeholder_token_id),
    }
    metrics = {name: value for name, value in card.metrics.items() if name != ERRORS}
    properties = {
        "edgepeft.format": "edgepeft.task/1",
        "edgepeft.task": card.task,
        "edgepeft.method": card.method,
        "edgepeft.backbone": card.backbone.source,
        "edgepeft.backbone_sha256": card.backbone.sha256,
        DROPPED: json.dumps([f"head/{name}" for name in type(delta.head).dropped()]),
        "edgepeft.card": card.model_copy(update={"metrics": metrics}).model_dump_json(),
        **(prompt if card.prompt_length else {}),
        **recipes,
    }
    del model.graph.value_info[:], model.metadata_props[:]
    strip(model)
    model.ir_version, model.producer_name, model.producer_version = IR_VERSION, "edgepeft", ""
    helper.set_model_props(model, properties)


def export_module(
    module: nn.Module, examples: Sequence[Tensor], dynamic_shapes: Any, n_outputs: int
) -> onnx.ModelProto:
    """Export a module as ONNX; inputs are called ``in_<i>``, outputs ``out_<i>``.

    PyTorch's exporter, which logs its own deprecations, reports errors only.  It makes its table of 500 operators once:
    that is nearly half of a small export.
    """
    with contextlib.ExitStack() as undo:
        for logger in map(logging.getLogger, ("torch.onnx", "torch.export", "onnxscript")):
            undo.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.ERROR)
        undo.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        with contextlib.suppress(ImportError, AttributeError, KeyError):  # of another PyTorch, which has that elsewhere
            from torch.onnx._internal.exporter._registration import ONNXRegistry

            registry: Any = ONNXRegistry
            undo.callback(setattr, registry, "from_torchlib", vars(registry)["from_torchlib"])
            registry.from_torchlib = staticmethod(functools.partial(_cached_operators, registry.from_torchlib))
        program = torch.onnx.export(
            module.eval(),
            tuple(examples),
            dynamo=True,
            optimize=False,  # its folding would copy weights, and lose the parameters' paths
            opset_version=OPSET,
            dynamic_shapes=dynamic_shapes,
            input_names=[f"in_{i}" for i in range(len(examples))],
            output_names=[f"out_{i}" for i in range(n_outputs)],
            verbose=False,
        )
    assert program is not None
    return program.model_proto


@functools.cache
def _cached_operators(of_exporter: Callable[..., Any], *given: Any, **named: Any) -> Any:
    return of_exporter(*given, **named)


def _external_matrices(delta: Delta, file: Path | None) -> dict[str, Tensor]:
    """The matrices that go into ``file``, by their name in the HF base model: none where one graph holds them all."""
    matrices = {name: tensor for name, tensor in delta.override_tensors.items() if tensor.ndim > 1}
    n_bytes = sum(tensor.nbytes for tensor in delta.tensors().values())
    if n_bytes < emit.MAX_INLINE_BYTES:
        return {}
    rest = n_bytes - sum(tensor.nbytes for tensor in matrices.values())
    if file is None or rest >= emit.MAX_INLINE_BYTES:
        raise UsageError(
            f"the task {delta.card.task} has {n_bytes / 1e9:.1f} GB of tensors of its own ({delta.card.method}), and "
            f"they must be in one graph here, of {emit.MAX_INLINE_BYTES / 1e9:.1f} GB at most: train fewer, by lora, "
            "an adapter, or top-k with fewer layers."
        )
    return matrices
