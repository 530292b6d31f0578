"""A bundle's folder: its files, each checked against the manifest before use, and how exactly its tasks must answer."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from edgepeft.backbones.base import Architecture, family_of
from edgepeft.backbones.checkpoint import Checkpoint
from edgepeft.backbones.config import read_config
from edgepeft.backbones.emit import BUNDLE_FILES
from edgepeft.backbones.tokens import TextEncoder, text_encoder
from edgepeft.bundle.card import card_of, require_agreement
from edgepeft.bundle.manifest import Manifest, TaskEntry, Verification
from edgepeft.bundle.versions import hashes, locate
from edgepeft.common.errors import BundleError, EdgepeftError, UsageError
from edgepeft.common.resources import file_identity, pointer_note, sha256_of
from edgepeft.common.task_name import CHECK, GRAPH, WEIGHTS
from edgepeft.graph.external_data import external_values, point_at
from edgepeft.graph.names import GENERATED
from edgepeft.graph.protos import copied, external_tensors, place_of, properties
from edgepeft.graph.prune_last_layer import drop_unread_rows
from edgepeft.graph.splice import splice, splice_text
from edgepeft.graph.validate import MAX_PARTS, check_sound, more_parts_than

if TYPE_CHECKING:
    from edgepeft.backbones.text import TextGraphs

BACKBONE_FILE = "backbone.onnx"
ENCODER_FILE, DECODER_FILE = "encoder.onnx", "decoder.onnx"
TASKS_FOLDER = "tasks"
TEMPLATES_FOLDER = "templates"


class Bundle:
    """An opened bundle; its parts are read when they are first used."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(os.path.expanduser(folder))  # noqa: PTH111, as it leaves an unknown user as it is
        self.manifest = Manifest.read(self.folder)
        try:
            str(self.folder.absolute()).encode()
        except UnicodeEncodeError:
            raise UsageError(
                f"{folder}: its path has bytes that are no UTF-8 here, and neither ONNX Runtime nor tokenizers open "
                "such; rename what has them, or take a locale of UTF-8."
            ) from None
        self.sound_weights: frozenset[tuple[str, str]] = frozenset()  # identity and SHA-256 of what was hashed
        # Identities of weights that an earlier process hashed: enough for what lies where, not for reading it.
        self.known_weights: frozenset[str] = frozenset()

    @property
    def weights(self) -> Path:
        """The backbone's ``model.safetensors``, or ``model.int8.safetensors``."""
        return self.folder / self.manifest.backbone.weights_file

    def current(self, task: str, suffix: str) -> Path:
        """The file of the task's version in force; after an interrupted replacement it lies beside its usual place."""
        return locate(self.folder / TASKS_FOLDER, task, self.entry(task), suffix)

    def check(self, task: str) -> tuple[bytes, str]:
        """The content of the task's check file, with its place, where it is the one that the manifest names."""
        where = self.current(task, CHECK)
        expect_hash(where, self.entry(task).check_sha256)
        return where.read_bytes(), str(where)

    @cached_property
    def architecture(self) -> Architecture:
        """The backbone's sizes and sites, from its config."""
        config = read_config(self._sound("config.json"))
        return family_of(config).architecture(config)

    def _sound(self, name: str) -> Path:
        """A file with the hash that the manifest gives; older bundles give none."""
        if name in self.manifest.files:
            self._expect_hash(self.folder / name, self.manifest.files[name])
        return self.folder / name

    @property
    def checkpoint(self) -> Checkpoint:
        """The index of the weights, after a check that the file still is the one that the manifest names."""
        if file_identity(self.weights) not in self.known_weights:
            self.hash_weights()
        return self._index

    def hash_weights(self) -> None:
        """See that this process has hashed the weights, before it reads of them: times show no bit that a disk lost."""
        self._require_sound(self.weights, self.manifest.backbone.sha256.weights)

    def _require_sound(self, path: Path, sha256: str) -> None:
        """As ``_expect_hash``, for a large file: hashed once by a process while it stays as it is."""
        before = file_identity(path)
        if not before or (before, sha256) not in self.sound_weights:
            self._expect_hash(path, sha256)
            if not before or file_identity(path) != before:
                raise BundleError(f"{path} was changed while it was read; repeat when nothing writes to it.")
            self.sound_weights |= {(before, sha256)}

    @cached_property
    def _index(self) -> Checkpoint:
        return self.architecture.open_checkpoint(self.weights)

    def _expect_hash(self, path: Path, expected: str) -> None:
        """As ``expect_hash``; the error distinguishes a damaged bundle from one that was exported anew meanwhile."""
        try:
            expect_hash(path, expected)
        except BundleError:
            now = self.manifest
            with contextlib.suppress(EdgepeftError):
                now = Manifest.read(self.folder)
            if now != self.manifest:
                raise BundleError(f"{path} changed after {self.folder} was opened; open the bundle again.") from None
            raise

    @cached_property
    def backbone_graph(self) -> onnx.ModelProto:
        """``backbone.onnx`` without the weights."""
        return self._graph(BACKBONE_FILE, self.manifest.backbone.sha256.graph)

    @cached_property
    def text_graphs(self) -> TextGraphs:
        """``encoder.onnx`` and ``decoder.onnx`` without the weights."""
        if (text := self.manifest.backbone.text) is None:
            raise BundleError(
                f"{self.folder} cannot write text: it has no {ENCODER_FILE} and {DECODER_FILE}. A bundle that was made "
                "before edgepeft wrote text must be exported again; a backbone without a decoder writes none."
            )
        from edgepeft.backbones.text import TextGraphs

        graphs = TextGraphs(self._graph(ENCODER_FILE, text.encoder), self._graph(DECODER_FILE, text.decoder))
        if (cache := graphs.unequal()) is not None:
            raise BundleError(
                f"{self.folder}: {ENCODER_FILE} and {DECODER_FILE} are of different models, for {cache} is not of the "
                "same sizes in both. Export the bundle again."
            )
        return graphs

    def _graph(self, name: str, sha256: str) -> onnx.ModelProto:
        self._expect_hash(self.folder / name, sha256)
        return read_graph(self.folder / name, self.manifest.backbone.weights_file)

    def entry(self, task: str) -> TaskEntry:
        """The manifest's entry."""
        return self.manifest.task(task)

    def scored(self, task: str) -> TaskEntry:
        """The entry of a task that gives logits of its own."""
        entry = self.entry(task)
        if entry.writes:
            raise UsageError(f"task {task} writes text; this is for tasks with labels or a number.")
        return entry

    def allowed(self, task: str) -> Tolerance:
        """How far the task may be from PyTorch, by how its weights and the backbone's are stored."""
        entry = self.entry(task)
        decoder_only = self.architecture.decoder_only
        allowed = allowed_for(self.manifest.backbone.weights_dtype, entry.weights_dtype, decoder_only=decoder_only)
        return allowed if entry.verification is None else allowed.at_least(entry.verification)

    def delta_graph(self, task: str) -> onnx.ModelProto:
        """The task's delta graph."""
        path, entry = self.current(task, GRAPH), self.entry(task)
        self._expect_hash(path, entry.sha256)
        weights = None if entry.weights_sha256 is None else self.current(task, WEIGHTS)
        if weights is not None and entry.weights_sha256 is not None:
            self._require_sound(weights, entry.weights_sha256)
        graph = parse_delta(_content_at(path), path, weights)
        facts = check_owner(graph, self.manifest, path)
        if (name := facts.get("edgepeft.task")) != task:
            raise BundleError(
                f"{path} is the task {name}, and the manifest calls it {task}; add it under its own name."
            )
        require_agreement(card_of(facts, path), entry, path)
        return graph

    def template(self, name: str) -> tuple[onnx.ModelProto, tuple[bytes, str]]:
        """The graph of a template, and the content of its check file, with its place."""
        entry, folder = self.manifest.template(name), self.folder / TEMPLATES_FOLDER
        path, check = folder / f"{name}{GRAPH}", folder / f"{name}{CHECK}"
        expect_hash(path, entry.sha256)
        expect_hash(check, entry.check_sha256)
        graph = read_graph(path)
        check_owner(graph, self.manifest, path)
        return graph, (check.read_bytes(), str(check))

    def external_data(self, model: onnx.ModelProto) -> Iterator[tuple[str, NDArray[Any]]]:
        """The names and values of what a model of this bundle reads from elsewhere than its weights file."""
        tensors = self.external_tensors(model)
        if any(place_of(tensor).get("location") == GENERATED for tensor in tensors):
            self.hash_weights()
        return external_values(model, tensors, self.checkpoint)

    def external_tensors(self, model: onnx.ModelProto) -> list[onnx.TensorProto]:
        """What a model of this bundle reads from elsewhere than its weights file."""
        own = self.manifest.backbone.weights_file
        return [tensor for tensor in external_tensors(model.graph) if place_of(tensor).get("location") != own]

    def graph(self, task: str | None) -> onnx.ModelProto:
        """The model of a task, or for None of the bare backbone; it computes the rows that its head reads."""
        model = self.spliced(task)
        drop_unread_rows(model)
        return model

    def spliced(self, task: str | None) -> onnx.ModelProto:
        """As ``graph``, with every row of every value."""
        if task is not None:
            self.scored(task)
        checkpoint = self.checkpoint  # first: a damaged weights file is the clearer message
        if task is None:
            return copied(self.backbone_graph)
        delta = self.delta_graph(task)
        return splice(self.backbone_graph, delta, self.manifest.backbone.sites, checkpoint)

    def text_graphs_of(self, task: str | None) -> TextGraphs:
        """The graphs that write a task's text, or the bare backbone's for None; weights stay in their file."""
        _, graphs = self.checkpoint, self.text_graphs  # first, as above
        if task is None:
            return graphs._replace(encoder=copied(graphs.encoder), decoder=copied(graphs.decoder))
        return self.text_graphs_with(self.delta_graph(task))

    def text_graphs_with(self, delta: onnx.ModelProto) -> TextGraphs:
        """The same of a delta graph."""
        graphs = self.text_graphs
        encoder, decoder = splice_text(*graphs, delta, self.manifest.backbone.sites, self.checkpoint)
        return graphs._replace(encoder=encoder, decoder=decoder)

    def prompt_length(self, task: str | None) -> int:
        """Tokens that a task puts in front of each row; 0 of the bare backbone."""
        return 0 if task is None else self.entry(task).prompt_length

    def encoder(self) -> TextEncoder:
        """The bundle's tokenizer."""
        return text_encoder(self._sound("tokenizer.json"), self.architecture)


def places(manifest: Manifest) -> dict[str, str]:
    """Place in a bundle's folder -> SHA-256, of all files that a manifest names, but for versions before."""
    backbone = manifest.backbone
    found = {backbone.weights_file: backbone.sha256.weights, BACKBONE_FILE: backbone.sha256.graph}
    if backbone.text is not None:
        found |= {ENCODER_FILE: backbone.text.encoder, DECODER_FILE: backbone.text.decoder}
    # Never a name that the manifest makes up.
    found |= {name: manifest.files[name] for name in BUNDLE_FILES if name in manifest.files}
    for folder, entries in ((TASKS_FOLDER, manifest.tasks), (TEMPLATES_FOLDER, manifest.templates)):
        for name, entry in entries.items():
            found |= {f"{folder}/{name}{suffix}": sha256 for suffix, sha256 in hashes(entry).items()}
    return found


def expect_hash(path: Path, expected: str) -> None:
    """See that a file is the one that the manifest names."""
    try:
        actual = sha256_of(path)
    except OSError as error:
        raise BundleError(f"{path} cannot be read ({error.strerror}); the bundle is incomplete.") from error
    if actual != expected:
        raise BundleError(
            f"{path} is not the file that the bundle was made with: its SHA-256 is {actual[:12]}, the manifest says "
            f"{expected[:12]}. It is truncated or altered; export or copy the bundle again.{pointer_note(path)}"
        )


def read_graph(path: Path, weights: str | None = None) -> onnx.ModelProto:
    """An ONNX file without its external weights, which may only lie in ``weights``, a file beside it."""
    model = _parsed(_content_at(path), path)
    check_sound(model, path, weights)
    return model


def _content_at(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BundleError(f"{path} is missing or cannot be read ({error.strerror}).") from error


def parse_delta(content: bytes, where: Path, weights: Path | None) -> onnx.ModelProto:
    """The delta graph of an ONNX file's bytes; what it has outside of itself is that of ``weights``."""
    model = _parsed(content, where)
    named = f"{properties(model).get('edgepeft.task', '')}{WEIGHTS}"
    if weights is None and any(place_of(tensor).get("location") == named for tensor in external_tensors(model.graph)):
        raise BundleError(f"{where} has tensors in {named}, which must come beside it; bring all of the task's files.")
    check_sound(model, where, None if weights is None else named)
    if weights is not None:
        point_at(model, weights)
    return model


def _parsed(content: bytes, where: Path) -> onnx.ModelProto:
    if more_parts_than(MAX_PARTS, content, onnx.ModelProto.DESCRIPTOR):
        raise BundleError(
            f"{where} has more than {MAX_PARTS:,} nodes, names, numbers and other parts, which no model needs. Do not "
            "use it."
        )
    try:
        return onnx.load_model_from_string(content)
    except (DecodeError, ValueError) as error:
        raise BundleError(f"{where} is truncated or not an ONNX model.{pointer_note(content)}") from error


def check_owner(graph: onnx.ModelProto, manifest: Manifest, path: Path) -> dict[str, str]:
    """The delta graph's metadata, after a check that it belongs to this backbone."""
    facts = properties(graph)
    if facts.get("edgepeft.format") != "edgepeft.task/1":
        version = facts.get("edgepeft.format", "none")
        raise BundleError(f"{path} is not a delta graph that this version knows; its edgepeft.format is {version}.")
    wanted, theirs = manifest.backbone.identity, facts.get("edgepeft.backbone_sha256", "")
    if theirs != wanted:
        raise BundleError(
            f"{path} belongs to the backbone {facts.get('edgepeft.backbone', 'unknown')} (weights {theirs[:12]}), this "
            f"bundle holds {manifest.backbone.source} (weights {wanted[:12]}). Export the task again for this backbone."
        )
    return facts


@dataclass(frozen=True)
class Tolerance:
    """What may differ between a task and PyTorch."""

    difference: float | None  # of a logit; None: any
    changed: float = 0.0  # share of decided rows whose decision may change
    kl: float | None = None  # nats a token, to which text is held, and not to decisions

    def at_least(self, stated: Verification) -> Tolerance:
        """This, or what a task's manifest entry states where that is more: one taken with ``--accept-error``."""
        kl = None if self.kl is None else max(self.kl, stated.kl_tolerance or 0.0)
        return replace(self, changed=max(self.changed, stated.changed_tolerance), kl=kl)


EXACT = Tolerance(1e-4)
_ROUNDED = Tolerance(2e-2)  # half precision keeps 11 bits of a weight: each product is off by up to 5e-4 of itself
_QUANTISED = {"int8": Tolerance(None, 0.02), "int4": Tolerance(None, 0.05)}
_MAX_KL = 0.05  # two tasks of SmolLM2-135M have 0.005 and 0.012 in 8 bits, 0.58 and 0.87 in 4 (docs/decoders.md)


def allowed_for(backbone: str, delta: str, *, decoder_only: bool = False) -> Tolerance:
    """What a bundle's ``weights_dtype`` and a task's allow; ``decoder_only`` is of a backbone that is a decoder alone.

    About a tenth of a decoder's tokens are near ties, which rounding turns without making the text worse: so it is held
    to its divergence, not to decisions.
    """
    if backbone in _QUANTISED:
        return replace(_QUANTISED[backbone], kl=_MAX_KL) if decoder_only else _QUANTISED[backbone]
    return _ROUNDED if delta == "fp16" else EXACT
