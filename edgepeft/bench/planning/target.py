"""What is benchmarked: a bundle from disk, or one made of random weights of a named architecture.

Throughput does not depend on what the weights are, so a benchmark needs no download.  Matrices are N(0, 0.02) as the
models themselves start (Devlin et al. 2018), norms are the identity, biases zero.  The tokenizer is byte-pair encoding
with random merges: reading 50,000 of them is part of a cold start.
"""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from edgepeft.backbones.base import Architecture, family_of
from edgepeft.backbones.config import config_of, read_config
from edgepeft.backbones.source import Backbone, open_backbone
from edgepeft.bundle.bundle import BACKBONE_FILE, TASKS_FOLDER, Bundle
from edgepeft.bundle.manifest import BackboneEntry, Hashes, Manifest, TaskEntry
from edgepeft.common.atomic import write_atomically, write_json
from edgepeft.common.errors import MissingPackage, UnknownName, UsageError
from edgepeft.common.resources import package_data, sha256_of
from edgepeft.common.task_name import GRAPH, WEIGHTS, named_after
from edgepeft.tasks.base import kind_from_card

if TYPE_CHECKING:
    from edgepeft.bundle.delta import Delta

_NO_CHECK = "0" * 64  # a benchmark's random task has no check file, and is never shipped
_DIGITS = "0123456789"  # of a decoder, which writes the labels: they are numbers
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_FIRST, _LAST, _PAD = "<s>", "</s>", "<pad>"
_SPECIAL = 2  # tokens of a text that are not its words
_LONGEST = 12  # letters of an entry


@dataclass(frozen=True)
class BenchedTask:
    """A task as its manifest describes it."""

    name: str
    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)  # the method's
    n_labels: int = 2
    prompt_length: int = 0  # tokens put before a text
    kind: str | None = None  # None where its outputs say it (``Job.task_kind``), as other versions know it
    trains_everything: bool = False  # so it is itself what other tasks are compared with
    untunable: str = ""  # why a board cannot tune it


@dataclass(frozen=True)
class BenchSubject:
    """The bundle under measurement, opened once for the whole benchmark, and its facts for the result."""

    name: str
    bundle: Bundle
    tasks: tuple[BenchedTask, ...]
    random_weights: bool
    left_out: tuple[str, ...] = ()  # tasks that write, beside others that do not

    @property
    def writes(self) -> bool:
        """Whether its tasks write text, all of them."""
        return any(self.bundle.entry(task.name).task_kind.writes for task in self.tasks)

    @property
    def architecture(self) -> Architecture:
        """Its backbone's sizes."""
        return self.bundle.architecture


def torch_installed() -> bool:
    """Whether PyTorch and transformers are installed; neither is imported."""
    return all(importlib.util.find_spec(name) for name in ("torch", "transformers"))


def open_subject(folder: Path, *, tasks: Sequence[str] = (), methods: Sequence[str] = ()) -> BenchSubject:
    """Open a bundle on disk with the named tasks or methods; unnamed tasks that write are left out beside others."""
    bundle = Bundle(folder)
    chosen = {name: bundle.entry(name) for name in (tasks or bundle.manifest.tasks)}
    known = {entry.method for entry in chosen.values()}
    for method in methods:
        if method not in known:
            raise UnknownName("method of this bundle's chosen tasks", method, known)
    chosen = {name: entry for name, entry in chosen.items() if not methods or entry.method in methods}
    writing = [name for name, entry in chosen.items() if entry.task_kind.writes]
    others = [name for name in chosen if name not in writing]
    if tasks and writing and others:
        raise UsageError(
            f"--task: text is written by {', '.join(writing)}, and not by {', '.join(others)}; a text takes many "
            "passes, so they are not compared. Ask for either."
        )
    left_out = tuple(writing if others else ())
    return _subject(folder.name or str(folder), bundle, others or writing, random_weights=False, left_out=left_out)


def random_subject(
    name: str,
    folder: Path,
    *,
    methods: Sequence[str] = (),
    settings: Mapping[str, str] | None = None,
    seed: int = 0,
    trainable: bool = False,  # asked for other versions, which need files for that; here every task can be tuned
) -> BenchSubject:
    """Make a bundle in ``folder`` (which exists and is empty): random backbone, one fresh task per method."""
    if settings and not methods:
        raise UsageError("--set sets a method's hyperparameters; name the method with --method.")
    write_random_checkpoint(config_of(name), folder, seed=seed)
    backbone = open_backbone(str(folder))
    if backbone.architecture.decoder is not None:
        write_random_tokenizer(backbone.architecture, folder, seed=seed)  # its tasks are labels as tokens
    graph = backbone.architecture.graph(backbone.checkpoint)
    write_atomically(folder / BACKBONE_FILE, graph.SerializeToString(deterministic=True))
    deltas = [fresh_delta(backbone, method, settings or {}, seed) for method in dict.fromkeys(methods)]
    entries = {delta.card.task: write_task(backbone, delta) for delta in deltas}
    manifest_of(backbone, name, entries).write(folder)
    return _subject(name, Bundle(folder), entries, random_weights=True)


def _subject(name: str, bundle: Bundle, tasks: Iterable[str], **facts: Any) -> BenchSubject:
    # Of the catalogue: a board has no torch, and cannot import the methods.
    methods = read_config(package_data("methods.json"))["methods"]
    everything = {one["name"] for one in methods if one["trains_everything"]}
    found = []
    for task in tasks:
        entry = bundle.entry(task)
        kind, told = entry.task_kind.name, kind_from_card(None, entry.labels, "").name  # by its outputs alone
        known = task, entry.method, entry.hyperparameters, entry.n_outputs, entry.prompt_length
        found.append(BenchedTask(*known, None if kind == told else kind, entry.method in everything, entry.untunable))
    return BenchSubject(name, bundle, tuple(found), **facts)


def fresh_delta(
    backbone: Backbone,
    name: str,
    settings: Mapping[str, str],
    seed: int,
    *,
    task: str | None = None,
    head: str | None = None,
    labels: tuple[str, ...] | None = ("0", "1"),
    kind: str | None = None,
) -> Delta:
    """Make an untrained delta; ``task`` is named after its method if None, ``head`` is the backbone's."""
    if not torch_installed():
        raise MissingPackage(
            f"a fresh delta of {name} needs PyTorch, which builds its modules: pip install 'edgepeft[train]'. "
            "On a board, give a bundle."
        )
    import torch

    from edgepeft.bundle.delta import new_delta
    from edgepeft.methods.base import method_named

    method = method_named(name).from_settings(settings)
    torch.manual_seed(seed)
    return new_delta(backbone, method, task or named_after(name), labels, head=head, kind=kind)


def write_task(backbone: Backbone, delta: Delta) -> TaskEntry:
    """Export the delta as ``tasks/<task>.onnx``; return its manifest entry."""
    from edgepeft.training.exporting.delta import export_delta

    path = backbone.folder / TASKS_FOLDER / f"{delta.card.task}{GRAPH}"
    path.parent.mkdir(exist_ok=True)
    weights = path.with_name(f"{delta.card.task}{WEIGHTS}")
    write_atomically(path, export_delta(delta, backbone, weights).SerializeToString(deterministic=True))
    own: dict[str, Any] = {"n_bytes": path.stat().st_size, "sha256": sha256_of(path), "check_sha256": _NO_CHECK}
    if weights.is_file():
        own |= {"n_bytes": own["n_bytes"] + weights.stat().st_size, "weights_sha256": sha256_of(weights)}
    return TaskEntry.model_validate({**delta.card.model_dump(), **own})


def manifest_of(backbone: Backbone, name: str, tasks: dict[str, TaskEntry]) -> Manifest:
    """The manifest of random weights of the architecture ``name`` in ``backbone.folder``."""
    return Manifest(
        backbone=BackboneEntry(
            family=backbone.architecture.family,
            model_type=backbone.architecture.model_type,
            source=f"random weights of {name}",
            sha256=Hashes(graph=sha256_of(backbone.folder / BACKBONE_FILE), weights=backbone.sha256),
            sites=backbone.architecture.bindings,
        ),
        tasks=tasks,
    )


def write_random_checkpoint(config: dict[str, Any], folder: Path, *, seed: int = 0) -> Architecture:
    """Write ``config.json`` and a random ``model.safetensors`` in HF layout; same seed, same bytes."""
    from safetensors.numpy import save_file

    architecture = family_of(config).architecture(config)
    source = np.random.default_rng(seed)
    tensors = {}
    for name, shape in {**architecture.tensors, **architecture.pooler}.items():
        if len(shape) == 2:
            tensors[name] = 0.02 * source.standard_normal(shape, np.float32)
        else:
            tensors[name] = (np.ones if name.endswith("weight") else np.zeros)(shape, np.float32)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    write_json(folder / "config.json", config)
    return architecture


def write_random_tokenizer(architecture: Architecture, folder: Path, *, seed: int = 0) -> None:
    """Write ``tokenizer.json`` and its config with as many entries as ``architecture`` has embeddings."""
    source, pad, names = random.Random(seed), architecture.pad_token_id, [_FIRST, _LAST]
    names.insert(pad, _PAD) if pad <= len(names) else names.append(_PAD)
    words, merges = list(_LETTERS + (_DIGITS if architecture.decoder else "")), []
    known = set(words)
    while len(names) + len(words) < architecture.vocab_size:
        pair = (source.choice(words), source.choice(_LETTERS))
        if "".join(pair) not in known and len(pair[0]) < _LONGEST:
            merges.append(pair)
            words.append("".join(pair))
            known.add(words[-1])
    vocabulary = {entry: index for index, entry in enumerate([*names, *words])}
    tokenizer = Tokenizer(BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = Whitespace()
    ends = [(name, vocabulary[name]) for name in (_FIRST, _LAST)]
    tokenizer.post_processor = TemplateProcessing(single=f"{_FIRST} $A {_LAST}", special_tokens=ends)
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", {"model_max_length": architecture.max_length})


def texts_of(lengths: Sequence[int], *, seed: int = 0) -> list[str]:
    """Make a text for each number of tokens, special ones included, for tokenizers of ``write_random_tokenizer``."""
    if min(lengths) <= _SPECIAL:
        raise ValueError(f"a text has at least {_SPECIAL + 1} tokens, {min(lengths)} were asked for")
    # Single letters: what merges make of a longer word depends on all of them.
    source = random.Random(seed)
    return [" ".join(source.choice(_LETTERS) for _ in range(length - _SPECIAL)) for length in lengths]
