"""``edgepeft.export``: the backbone once, then each task, verified against PyTorch; or another library's folder.

A template is an untrained delta with an open number of labels, to start tasks on a board.
"""

import itertools
import json
import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file
from torch import nn

from edgepeft.backbones.base import Role
from edgepeft.backbones.checkpoint import check_header
from edgepeft.backbones.config import read_config
from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.source import Backbone, open_backbone
from edgepeft.backbones.tokens import Text
from edgepeft.bundle.bundle import TEMPLATES_FOLDER, Bundle
from edgepeft.bundle.card import EVALUATION_FILE, DeltaCard, read_card
from edgepeft.bundle.delta import MAX_LENGTH, Delta, new_delta
from edgepeft.bundle.manifest import DeltaDtype, Manifest, TemplateEntry, WeightsDtype
from edgepeft.bundle.versions import write_task_file
from edgepeft.common.atomic import new_folder
from edgepeft.common.errors import BundleError, UsageError
from edgepeft.common.progress import Stage, messages, stages
from edgepeft.common.task_name import WEIGHTS, named_after
from edgepeft.data.columns import SENTENCES, Columns, verify_columns
from edgepeft.data.readers import Source, source_of
from edgepeft.deploy.install import PreparedTask, commit_tasks, prepare_exported, prepare_task, require_addable
from edgepeft.device import machine
from edgepeft.device.profiles import load_profile
from edgepeft.graph.names import adapted_name
from edgepeft.graph.splice import splice
from edgepeft.graph.template import OPEN
from edgepeft.heads.base import head_named
from edgepeft.methods.base import Method, method_of
from edgepeft.options.base import Folder, Rows, function_of, listed
from edgepeft.options.verbs import NO_BUNDLE, ExportOptions
from edgepeft.runtime.session import open_session
from edgepeft.tasks._conformal import Guarantee, guarantee_of
from edgepeft.training.exporting.backbone import write_backbone
from edgepeft.training.exporting.check import CheckTexts, check_content, data_check
from edgepeft.training.exporting.delta import export_delta
from edgepeft.training.interop.base import importers


def export_bundle(
    backbone: Backbone | Folder,
    deltas: Sequence[Folder],
    out: Folder,
    *,
    texts: Sequence[Text] | None = None,
    force: bool = False,
    templates: Sequence[Method | str] = (),
    stage: Stage = nullcontext,
    weights: WeightsDtype | None = None,
    delta_weights: DeltaDtype = "fp32",
    data: Rows | None = None,
    columns: Columns = SENTENCES,
    guarantee: Guarantee = MappingProxyType({}),
    accept_error: bool = False,
) -> Manifest:
    """Write a bundle that appears whole or not at all.

    ``backbone`` may be a folder or a Hub name, a template a text such as ``lora:rank=8``.  ``texts`` are what each task
    is verified on; by default 64 of ``data``, or those that come with edgepeft.  ``templates`` are methods to start
    tasks from on a board; ``stage`` is entered around each step by name; ``weights`` is how the backbone is stored
    (None: as its architecture says), ``delta_weights`` how the tasks are (templates are float32).  With 8-bit weights,
    every row of ``data``, whose columns may have other names, is compared too, and its metric where its labels are the
    task's; with ``accept_error`` tasks are taken however far such weights move them.  ``guarantee`` is a ``coverage``
    or a ``risk`` of every task's answers, by the evaluation rows that its delta keeps.
    """
    rows, paths = None if data is None else source_of(data), [*map(Path, deltas)]
    checks = CheckTexts(texts, rows, columns)
    plain = checks.of(None) if templates else ()
    methods = [method_of(template) for template in templates]
    own = [Path(backbone)] if isinstance(backbone, str | os.PathLike) else []
    with new_folder(Path(out), force=force, read=[*paths, *own]) as new:
        backbone = open_backbone(backbone)
        cards = _checked(paths, (), checks, guarantee)
        with stage("backbone"):
            write_backbone(backbone, new, weights or backbone.architecture.weights_dtype)
        exporter = _Exporter(Bundle(new), backbone, checks, delta_weights, cards, accept_error)
        exporter.put(paths, stage)
        for method in methods:
            with stage(method.name):
                write_template(exporter.bundle, backbone, exporter.model, method, plain)
        return exporter.bundle.manifest


def add_deltas(
    folder: Path,
    deltas: Sequence[Path],
    *,
    texts: Sequence[Text] | None = None,
    replace: bool = False,
    stage: Stage = nullcontext,
    backbone: Backbone | None = None,
    delta_weights: DeltaDtype = "fp32",
    data: Source | None = None,
    columns: Columns = SENTENCES,
    guarantee: Guarantee = MappingProxyType({}),
    accept_error: bool = False,
) -> Manifest:
    """Put tasks into an existing bundle: all of them or none; no byte of the backbone changes.

    A delta is a folder that ``edgepeft train`` wrote, or an exported ``<task>.onnx``.  ``backbone`` is the float32
    checkpoint, which a bundle of 8-bit weights does not hold.  ``guarantee`` and ``accept_error`` are as in
    ``export_bundle``.
    """
    bundle = Bundle(folder)
    checks = CheckTexts(texts, data, columns)
    cards = _checked(deltas, bundle.manifest.tasks, checks, guarantee, replace=replace)
    known = bundle.manifest.backbone
    if cards and backbone is None and known.weights_dtype != "fp32":
        raise UsageError(
            f"{bundle.folder} holds its backbone in {known.weights_dtype}; PyTorch, which a trained delta is verified "
            f"against, needs the float32 checkpoint: --backbone, folder or Hub name of {known.source}. "
            "An exported <task>.onnx needs none."
        )
    if cards and backbone is not None and backbone.sha256 != known.identity:
        raise UsageError(
            f"{backbone.source} (weights {backbone.sha256[:12]}) is not the backbone of {bundle.folder}, which is "
            f"{known.source} (weights {known.identity[:12]})."
        )
    if backbone is None:
        backbone = Backbone(known.source, bundle.folder, read_config(bundle.folder / "config.json"))
    exporter = _Exporter(bundle, backbone, checks, delta_weights, cards, accept_error)
    return exporter.put(deltas, stage, replace=replace)


def _checked(
    deltas: Sequence[Path], there: Collection[str], checks: CheckTexts, guarantee: Guarantee, *, replace: bool = False
) -> dict[Path, DeltaCard]:
    """Refuse before the work what could not be exported; the cards of trained deltas, with what is guaranteed."""
    cards = {path: read_card(path) for path in deltas if path.suffix != ".onnx"}
    tasks = [cards[path].task if path in cards else path.stem for path in deltas]
    require_addable(tasks, there, replace=replace)
    for card in {(card.source, card.kind): card for card in cards.values()}.values():
        checks.of(card.source, card.task_kind)
    if not cards:
        checks.of(None)
    return {path: _with_guarantee(path, cards.get(path), guarantee) for path in deltas} if guarantee else cards


@dataclass(frozen=True)
class _Exporter:
    """Turns deltas into verified tasks; PyTorch's model is loaded once for all of them."""

    bundle: Bundle
    backbone: Backbone
    checks: CheckTexts
    delta_weights: DeltaDtype
    cards: Mapping[Path, DeltaCard]  # of trained deltas
    accept_error: bool

    @cached_property
    def model(self) -> nn.Module:
        return load_model(self.backbone, self.backbone.architecture.reference)

    def put(self, deltas: Sequence[Path], stage: Stage, *, replace: bool = False) -> Manifest:
        """Verify each, then write all of them into the bundle."""
        prepared = []
        with ExitStack() as staged:  # removes what is kept in files, for its size, until the tasks are written
            for path in deltas:
                with stage(path.name):
                    prepared.append(self._one(path, staged))
            return commit_tasks(self.bundle, prepared, replace=replace)

    def _one(self, path: Path, staged: ExitStack) -> PreparedTask:
        if path not in self.cards:
            return prepare_exported(self.bundle, path, accept_error=self.accept_error)
        delta = Delta.load(path, self.backbone)
        delta.card = self.cards[path]
        weights = self.bundle.folder / f".{os.getpid()}.{delta.card.task}{WEIGHTS}"
        staged.callback(weights.unlink, missing_ok=True)
        exported = export_delta(delta, self.backbone, weights, half=self.delta_weights == "fp16")
        graph = exported.SerializeToString(deterministic=True)
        check = check_content(delta, self.backbone, self.model, self.checks.of(delta.card.source, delta.card.task_kind))
        quantised = self.bundle.manifest.backbone.weights_dtype != "fp32"
        data = None
        if self.checks.data and quantised and not delta.card.writes:  # of a text, the steps of its check
            data = data_check(delta, self.backbone, self.model, self.checks.data, self.checks.columns)
        del delta  # it may be as large as the backbone
        own = weights if weights.is_file() else None
        return prepare_task(self.bundle, graph, check, path, own, data=data, accept_error=self.accept_error)


def write_template(bundle: Bundle, backbone: Backbone, model: nn.Module, method: Method, texts: Sequence[Text]) -> None:
    """Write ``templates/<method>.onnx`` and its check rows, and list them in the manifest."""
    name = named_after(method.name)
    if name in bundle.manifest.templates:
        raise UsageError(f"--template {method.name} is given twice; a bundle holds one template of a method.")
    delta, axes = _open_delta(backbone, method, name)
    graph = export_delta(delta, backbone)
    of_labels = (Role.POOLED_LABELS, adapted_name(Role.POOLED_LABELS))  # how many edges of how many nodes is open
    for value in (each for each in (*graph.graph.input, *graph.graph.output) if each.name in of_labels):
        for dim, of in zip(value.type.tensor_type.shape.dim[1:], ("nodes", "edges"), strict=True):
            dim.dim_param = of
    graph.metadata_props.add(key=OPEN, value=json.dumps(axes))
    check = check_content(delta, backbone, model, texts)
    where = bundle.folder / TEMPLATES_FOLDER / name
    # An untrained head decides nothing that 8-bit weights could be held to: that the graph is right shows over float32.
    exact = None
    if bundle.manifest.backbone.weights_dtype != "fp32":
        architecture, file = backbone.architecture, backbone.weights.resolve()
        stored = architecture.open_checkpoint(file)
        whole = splice(architecture.graph(stored), graph, architecture.bindings, stored)
        exact = open_session(whole, file.parent)
    prepared = prepare_task(bundle, graph.SerializeToString(deterministic=True), check, where, exact=exact)
    for suffix, content in prepared.content.items():
        write_task_file(where.with_name(f"{name}{suffix}"), content)
    templates = {**bundle.manifest.templates, name: TemplateEntry.model_validate(prepared.entry.model_dump())}
    bundle.manifest = bundle.manifest.model_copy(update={"templates": templates})
    bundle.manifest.write(bundle.folder)


def _open_delta(backbone: Backbone, method: Method, name: str) -> tuple[Delta, dict[str, int]]:
    """A fresh delta, and which axis of which of its tensors counts the labels; none does where they are scored."""

    def fresh(*labels: str) -> Delta:
        longest = backbone.architecture.max_length - method.positions(backbone.architecture)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return new_delta(backbone, method, name, labels, max_length=min(MAX_LENGTH, longest))

    if head_named(backbone.head).decodes:
        return fresh("yes", "no"), {}
    probe = fresh("label 0", "label 1")
    shapes = [*probe.tensors().values(), *probe.frozen_reads.values()]
    taken = {extent for tensor in shapes for extent in tensor.shape}
    taken |= {extent for shape in backbone.architecture.tensors.values() for extent in shape}
    n = next(size for size in itertools.count(3) if size not in taken)
    delta, few = fresh(*(f"label {i}" for i in range(n))), probe.tensors()
    axes = {
        name: axis
        for name, tensor in delta.tensors().items()
        for axis, extent in enumerate(tensor.shape)
        if few[name].shape[axis] != extent
    }
    return delta, axes


def _with_guarantee(folder: Path, card: DeltaCard | None, guarantee: Guarantee) -> DeltaCard:
    """The card with this guarantee and the threshold that keeps it on the delta's evaluation rows."""
    option, path = f"--{next(iter(guarantee))}", folder / EVALUATION_FILE
    if card is None:
        raise UsageError(
            f"{option} is chosen by evaluation rows, which {folder} does not keep; give the delta's folder."
        )
    kind = card.task_kind
    if not kind.calibrates:
        kind.with_guarantee(guarantee, 0)
    if not path.is_file():
        raise UsageError(
            f"{option} is chosen by evaluation rows, and {folder} keeps none: it has no {EVALUATION_FILE}, for it was "
            "imported, or trained by an earlier version. Train it with this one, or give the option to edgepeft tune."
        )
    try:
        check_header(path, path)
        kept = load_file(path)
        logits, targets = kept["logits"], kept["targets"]
        right, each = kind.right_of(targets, logits)
    except (SafetensorError, OSError, KeyError, IndexError) as error:
        raise BundleError(f"{path} is damaged ({error}); train the delta again.") from error
    sound = (right.ndim, each.ndim) == (1, 2) and len(right) == len(each) and logits.shape[-1] == kind.n_outputs
    sound = sound and np.isfinite(logits).all() and targets.dtype.kind == "i"
    if not sound or not ((right >= 0) & (right < each.shape[1])).all():
        raise BundleError(
            f"{path} does not hold logits of {kind.described} and which is right in each row; train it again."
        )
    found = kind.with_guarantee(guarantee, len(targets)).calibrated(targets, logits)
    return card.model_copy(update={"chosen": dict(found.chosen)})


_WITHOUT = {"temperature": 1.0, "threshold": 0.0, "thresholds": None}  # as answers are where nothing was chosen


@dataclass(frozen=True)
class ExportResult:
    """``folder`` is what was written; ``manifest`` is None where that is another library's."""

    folder: Path
    manifest: Manifest | None = None


@function_of(ExportOptions)
def export(options: ExportOptions) -> ExportResult:
    """Write the backbone once and each task as a delta graph, verified against PyTorch; the whole folder or none.

    Raises:
        UsageError: options that are wrong or exclude each other; a folder that is there already.
        BundleError: a delta that is damaged, or of another backbone.
        EdgepeftError: a task whose graph does not give PyTorch's logits.
    """
    deltas, templates = listed(options.delta), listed(options.template)
    columns = verify_columns(options.verify_data, options.text_column, options.pair_column, options.label_column)
    guarantee = guarantee_of(options.coverage, options.risk)
    elsewhere = {"PEFT": options.to_peft, "AdapterHub": options.to_adapterhub}
    if folders := {library: Path(folder) for library, folder in elsewhere.items() if folder is not None}:
        stored = (options.weights or "fp32", options.delta_weights) != ("fp32", "fp32")
        more = (options.out, templates, guarantee, len(folders) > 1, options.trainable, options.verify_data is not None)
        if stored or any(more) or len(deltas) != 1:
            raise UsageError(NO_BUNDLE)
        ((library, folder),), source = folders.items(), open_backbone(options.backbone)
        delta = Delta.load(Path(deltas[0]), source)
        said = importers()[library].write(delta, source, folder, force=options.force)
        messages().print(f"{delta.card.task}: for {said}", markup=False)
        if lost := [name for name, usual in _WITHOUT.items() if delta.card.chosen.get(name, usual) != usual]:
            told = f"note: {library} has no place for the task's {' and '.join(lost)} (chosen in its card): logits are"
            messages().print(f"{told} equal there, probabilities or decisions are not.", markup=False)
        return ExportResult(folder)
    out = options.require_bundle()
    device = None if options.profile is None else load_profile(options.profile)
    with stages(1 + len(deltas) + len(templates)) as stage:
        manifest = export_bundle(
            options.backbone,
            deltas,
            out,
            templates=templates,
            weights=options.weights,
            delta_weights=options.delta_weights,
            data=options.verify_data,
            columns=columns,
            guarantee=guarantee,
            force=options.force,
            stage=stage,
            accept_error=options.accept_error,
        )
    fp16 = options.delta_weights == "fp16"
    for cost in machine.missing_arithmetic(device, weights=manifest.backbone.weights_dtype, fp16=fp16):
        messages().print(f"note: {cost}", markup=False)
    return ExportResult(Path(out), manifest)
