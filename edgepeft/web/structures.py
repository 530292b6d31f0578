"""A bundle's tasks as a browser takes them: one graph for each structure, and each task's values beside it.

A graph refers to the weights by name, offset and length, as in the bundle, so the site has them once.  A task that
changes matrices of the backbone has a graph of its own, with these in it.

ONNX Runtime Web gives each session its own copy of the weights that its graph names.  What tasks share below therefore
stands in graphs that follow each other, embeddings first, and a structure begins where its tasks begin to differ.

A page has nothing that makes training graphs: those of a site that tunes are the ones that a board makes when a run
starts (``edgepeft/tuning/``).  Tasks of one structure with as many labels have one.
"""

import hashlib
import itertools
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import onnx
from safetensors.numpy import save

from edgepeft.backbones.base import Role
from edgepeft.bundle.bundle import TASKS_FOLDER, Bundle
from edgepeft.common.atomic import write_atomically
from edgepeft.common.errors import BundleError, UsageError
from edgepeft.common.task_name import CHECK
from edgepeft.graph.cut import above, below
from edgepeft.graph.gradient.training import training_facts
from edgepeft.graph.half import is_half
from edgepeft.graph.parameters import feeds_graph
from edgepeft.runtime.session_pool import structure_and_values
from edgepeft.tuning.activation_cache import training_graph
from edgepeft.tuning.target import deployed_graph, rates_of

STRUCTURES_FOLDER = "structures"
_EMBEDDINGS = 2  # the first two values: what comes before the first layer takes no time to run
Axes = dict[str, tuple[str, int]]


def require_answerable(bundle: Bundle, tasks: Sequence[str], *, places: bool) -> None:
    """See that a page can answer these tasks; ``places``: its tokenizer knows where in a text each token stands."""
    refused = {task: reason for task in tasks if (reason := _reason(bundle, task, places))}
    if refused:
        listed = "; ".join(f"{task} {reason}" for task, reason in refused.items())
        rest = [task for task in tasks if task not in refused]
        others = " ".join(f"--task {task}" for task in rest)
        then = f"Make a site of the others: {others}." if rest else "No other task is left."
        raise UsageError(f"a page cannot answer every task of {bundle.folder}: {listed}. {then}")


def _reason(bundle: Bundle, task: str, places: bool) -> str:
    entry = bundle.entry(task)
    kind = entry.task_kind
    if kind.writes:
        return "writes text, which takes a decoder's loop"
    if bundle.architecture.decoder_only or entry.source is not None:
        cut = "is read by a decoder, whose long texts lose their beginnings, and in a page their ends"
        return cut if bundle.architecture.decoder_only else "is posed as text of a row's columns"
    if entry.weights_sha256 is not None:
        return "has more tensors of its own than a graph can hold"
    if bundle.manifest.backbone.weights_dtype == "int4":
        return "stands on 4-bit weights, which a page would unpack for each text; export it with --weights int8"
    if kind.per_token and not places:
        return "answers with places in the text, which in a page only BERT's tokenizer gives"
    return ""


def write_task(bundle: Bundle, task: str, out: Path, *, tunable: bool = False) -> dict[str, Any]:
    """Write a task's graph, values and check file, and what tunes it; returns its entry in ``site.json``."""
    entry = bundle.entry(task)
    model = bundle.graph(task)
    graph, values = structure_and_values(model) or (model, {})
    structure = _write_graph(graph, out)
    value_file = f"{TASKS_FOLDER}/{task}.safetensors" if values else None
    if value_file is not None:
        write_atomically(out / value_file, save(values))
    tuning: dict[str, Any] = {}
    if tunable:
        reason = _untunable(bundle, task, values)
        tuning = {"untunable": reason} if reason else {"tuning": _write_tuning(bundle, task, model, values, out)}
    check_file = f"{TASKS_FOLDER}/{task}{CHECK}"
    write_atomically(out / check_file, bundle.check(task)[0])
    allowed = bundle.allowed(task)
    kind = entry.task_kind
    return {
        "method": entry.method,
        "head": entry.head,
        "kind": kind.name,
        "labels": entry.labels,
        "chosen": entry.chosen,
        "step": entry.step,
        "pairs": entry.pairs,
        "trained": bool(entry.training),
        "outputs": entry.n_outputs,
        "maxLength": entry.max_length,
        "promptLength": entry.prompt_length,
        "structure": structure,
        "values": value_file,
        "check": check_file,
        "tolerance": {"difference": allowed.difference, "changed": allowed.changed},
        **tuning,
    }


def _untunable(bundle: Bundle, task: str, fed: Collection[str]) -> str:
    """Why a page cannot tune this task, which feeds these values to its structure; empty where it can."""
    entry, delta = bundle.entry(task), bundle.delta_graph(task)
    trained = training_facts(delta).trained
    against = {
        f"{entry.task_kind.title}, and a page tunes classifications": not entry.task_kind.one_label,
        f"{entry.method} changes matrices of the backbone": not fed,
        "it reads long texts in windows": "stride" in entry.chosen,
        "it stands on 8-bit weights": bundle.manifest.backbone.weights_dtype != "fp32",
        "it is stored in half precision": is_half(delta.graph),
        f"{entry.method} trains a scalar, which its structure has as a constant": any(
            tensor.name in trained and not tensor.dims for tensor in delta.graph.initializer
        ),
    }
    return next((reason for reason, holds in against.items() if holds), "")


def _write_tuning(bundle: Bundle, task: str, model: onnx.ModelProto, fed: Collection[str], out: Path) -> dict[str, Any]:
    """Write what tunes a task, of spliced graph ``model``, into the site; returns what ``site.json`` says of it."""
    entry, delta = bundle.entry(task), bundle.delta_graph(task)
    facts = training_facts(delta)
    deployed = deployed_graph(delta, facts, bundle)
    training, split = training_graph(deployed, facts, bundle.checkpoint, prefix_cache=True)
    tensors = f"{TASKS_FOLDER}/{task}.tensors.safetensors"
    write_atomically(out / tensors, save(facts.tensors(delta)))
    states = () if split is None else split.states
    return {
        "graph": _write_graph(training, out),
        "below": None if split is None else _write_graph(split.below, out),
        "states": [{"name": state.name, "byRow": state.by_row, "width": state.width} for state in states],
        "values": _write_graph(feeds_graph(model, fed, facts.trained), out),
        "tensors": tensors,
        "rates": rates_of(entry.method, entry.training, entry.head_reads),
        "chosen": {},
        "task": entry.sha256,
        "backbone": bundle.manifest.backbone.identity,
    }


def share_layers(bundle: Bundle, out: Path, entries: dict[str, dict[str, Any]]) -> None:
    """Divide structures that share layers, to be in memory once; an entry's ``lower`` names the graphs to run first."""
    backbone, sites = bundle.backbone_graph, bundle.manifest.backbone.sites
    # The widths of the words' rows, of what the first layer reads, and of each layer's output.
    roles = (Role.WORD_EMBEDDINGS, Role.EMBEDDINGS, Role.LAYER_OUTPUT)
    named = itertools.chain.from_iterable(bundle.architecture.sites_of(role) for role in roles)
    values = {sites[site.name]: site.out_features for site in named}
    structures = {entry["structure"] for entry in entries.values() if entry["values"]}
    graphs = {name: onnx.load(out / name, load_external_data=False) for name in sorted(structures)}
    depths = {name: _depth(graph, backbone, list(values)) for name, graph in graphs.items()}
    tasks, cuts = Counter(entry["structure"] for entry in entries.values()), []
    for cut in sorted({*depths.values()} - {0}):  # where layers below would be in memory twice, or run twice for a text
        sharing = [name for name, depth in depths.items() if depth >= cut]
        if len(sharing) > 1 or (cut > _EMBEDDINGS and sum(tasks[name] for name in sharing) > 1):
            cuts.append(cut)
    axes: list[Axes] = [{}, *({value: ("tokens", width)} for value, width in values.items())]
    parts = [
        _write_graph(below(above(backbone, axes[low]), *axes[high]), out)
        for low, high in itertools.pairwise([0, *cuts])
    ]
    upper = {}
    for name, graph in graphs.items():
        own = [cut for cut in cuts if cut <= depths[name]]
        if own:
            (out / name).unlink()
            upper[name] = _write_graph(above(graph, axes[own[-1]]), out), parts[: len(own)]
    for entry in entries.values():
        entry["structure"], entry["lower"] = upper.get(entry["structure"], (entry["structure"], []))


def _depth(graph: onnx.ModelProto, backbone: onnx.ModelProto, values: list[str]) -> int:
    """How many of ``values``, from below, the same nodes compute from the same tensors as in the backbone."""
    for depth, value in enumerate(values):
        try:
            same = _content(below(graph, value)) == _content(below(backbone, value))
        except BundleError:  # there is no such value where rows that no head reads were left out
            return depth
        if not same:
            return depth
    return len(values)


def _content(model: onnx.ModelProto) -> set[bytes]:
    parts = (*model.graph.node, *model.graph.initializer)
    return {part.SerializeToString(deterministic=True) for part in parts}


def _write_graph(graph: onnx.ModelProto, out: Path) -> str:
    """Write a graph under the hash of its bytes, so that tasks whose graphs are alike have one; its name there."""
    content = graph.SerializeToString(deterministic=True)
    name = f"{STRUCTURES_FOLDER}/{hashlib.sha256(content).hexdigest()[:16]}.onnx"
    write_atomically(out / name, content)
    return name
