"""The target of a tuning run: a task of the bundle, or a new one from a template, with its data and options."""

import dataclasses
import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from edgepeft.backbones.config import read_config
from edgepeft.backbones.pooling import READS, Pooling
from edgepeft.backbones.trie import trie_of
from edgepeft.bundle.bundle import Bundle
from edgepeft.common.errors import DataError, UsageError
from edgepeft.common.resources import package_data
from edgepeft.common.task_name import check_new_name
from edgepeft.data.batches import Writing
from edgepeft.data.columns import SENTENCES, Columns
from edgepeft.data.parts import RowsOrShare, TaskData, load_data
from edgepeft.data.readers import Source
from edgepeft.data.text_template import of_source
from edgepeft.data.training_loop.engine import MEAN_HEAD_RATE, Arrays
from edgepeft.deploy.verify import TextCheck, read_check
from edgepeft.graph.cut import rename_values
from edgepeft.graph.gradient.training import TrainingFacts, training_facts
from edgepeft.graph.half import half_initializers, round_to_half, store_in_half, widen
from edgepeft.graph.protos import copied, properties, replace
from edgepeft.graph.prune_last_layer import drop_unread_rows
from edgepeft.graph.quantise import quantise
from edgepeft.graph.splice import splice
from edgepeft.graph.template import with_labels
from edgepeft.options.verbs import TuneSettings
from edgepeft.runtime.decoding import GREEDY
from edgepeft.tasks._conformal import Guarantee, guarantee_of
from edgepeft.tasks.base import TaskType, requested_kind

_RATE = 1e-3  # of a method that this version does not know


@dataclass(frozen=True)
class TuningTarget:
    """A task that is tuned, with its data."""

    task: str
    delta: onnx.ModelProto  # the graph that the tuned tensors go into
    facts: TrainingFacts
    check: dict[str, NDArray[np.int64]]  # token ids [64, length] to check it on
    data: TaskData
    max_length: int
    prompt_length: int
    template: str | None = None
    half: frozenset[str] = frozenset()  # tensors that the task's file holds in half precision; here they are float32
    writing: Writing | None = None  # the form of the targets, where text is written

    @property
    def method(self) -> str:
        """The PE method's name."""
        return properties(self.delta).get("edgepeft.method", "the method")

    @property
    def card(self) -> dict[str, Any]:
        """The task's card in the delta graph: its method, its scores and more."""
        return {"metrics": {}, **json.loads(properties(self.delta).get("edgepeft.card", "{}"))}

    @property
    def pooling(self) -> Pooling:
        """The pooling that a linear head in place of the task's would read."""
        read = READS.get(self.card.get("head_reads", ""), Pooling.FIRST)
        return Pooling.FIRST if read is Pooling.LABELS else read

    @property
    def rates(self) -> tuple[float, float]:
        """Learning rates of delta and head to start from."""
        return rates_of(self.method, self.card.get("training", {}), self.card.get("head_reads", ""))

    def tensors(self) -> Arrays:
        """The trained tensors as the delta graph has them, to be written to."""
        return self.facts.tensors(self.delta)

    def as_stored(self, tensors: Arrays) -> Arrays:
        """The values that the task's file will have of these tensors."""
        return {n: round_to_half(n, t).astype(np.float32) if n in self.half else t for n, t in tensors.items()}


def with_values(delta: onnx.ModelProto, tensors: Arrays, half: Collection[str] = (), **account: Any) -> onnx.ModelProto:
    """The delta graph with these values and this account of how they came about: what its card says anew."""
    model = copied(delta)
    for initializer in model.graph.initializer:
        if initializer.name in tensors:
            initializer.CopyFrom(numpy_helper.from_array(tensors[initializer.name], initializer.name))
    whole = training_facts(delta).trained  # frozen ones of this run too
    count = sum(math.prod(tensor.dims) for tensor in model.graph.initializer if tensor.name in whole)
    update = {**account, "trainable_parameters": count}
    for entry in model.metadata_props:
        if entry.key == "edgepeft.card":
            entry.value = json.dumps({**json.loads(entry.value), **update})
    if half:
        store_in_half(model.graph)
    return model


def rates_of(method: str, training: Mapping[str, Any], head_reads: str) -> tuple[float, float]:
    """Learning rates of delta and head to start from: those of the ``training`` so far, else the method's."""
    known = {entry["name"]: entry["learning_rate"] for entry in read_config(package_data("methods.json"))["methods"]}
    usual = known.get(method, _RATE)
    head = MEAN_HEAD_RATE if head_reads == "mean" else usual
    return float(training.get("learning_rate") or usual), float(training.get("head_learning_rate") or head)


def deployed_graph(delta: onnx.ModelProto, facts: TrainingFacts, bundle: Bundle) -> onnx.ModelProto:
    """The task's spliced graph, with the trained tensors as inputs, by the names that they have in its delta graph, or
    what a recipe makes of them.

    The backbone is built anew: a bundle may be older than the names that gradients go by.
    """
    architecture, checkpoint = bundle.architecture, bundle.checkpoint
    build = architecture.teaching_graph if facts.kind.writes else architecture.graph
    backbone = build(checkpoint.as_published)
    if checkpoint.is_quantised:
        quantise(backbone, checkpoint)
    model = splice(backbone, delta, architecture.bindings, checkpoint, generate=False)
    drop_unread_rows(model)
    own = {f"delta/{name}": name for name in facts.leaves}
    rename_values(model.graph, lambda name: own.get(name, name))
    trained = [tensor for tensor in model.graph.initializer if tensor.name in own.values()]
    model.graph.input.extend(helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in trained)
    replace(model.graph.initializer, [t for t in model.graph.initializer if t.name not in own.values()])
    return model


@dataclass(frozen=True)
class Files:
    """Rows to train on, to choose by and to report."""

    train: Source
    eval: RowsOrShare = None  # of these and the last, a share is held out where no file is given
    test: RowsOrShare = None
    columns: Columns = SENTENCES
    partial: bool = False  # they may have one of the task's labels alone
    skip_bad: bool = False

    def load(
        self,
        labels: tuple[str, ...] | None,
        options: TuneSettings,
        kind: type[TaskType],
        guarantee: Guarantee | None = None,
    ) -> TaskData:
        """Read them; ``labels`` are the head's, None takes the data's, ``guarantee`` is what answers keep already."""
        asked = guarantee_of(options.coverage, options.risk)
        if options.balanced:
            kind.require_classes()
        data = load_data(
            self.train,
            self.eval,
            self.test,
            self.columns,
            kind=kind.name,
            few_shot=options.few_shot,
            seed=options.seed,
            labels=labels,
            partial=self.partial,
            skip_bad=self.skip_bad,
        )
        data = dataclasses.replace(data, guarantee=asked or guarantee or {})
        try:
            _ = data.task_kind  # which keeps it, or says why not
        except UsageError as error:
            if asked or not guarantee:
                raise
            ((name, value),) = guarantee.items()
            raise UsageError(f"the task promises a {name} of {value:g}, which tuning has to keep: {error}") from error
        return data


def from_task(bundle: Bundle, task: str, files: Files, options: TuneSettings) -> TuningTarget:
    """Go on from a task of the bundle."""
    entry = bundle.entry(task)
    entry.require_tunable(task)
    delta = bundle.delta_graph(task)
    if entry.source is not None:
        columns = of_source(files.columns, entry.source, entry.step, entry.target)
        files = dataclasses.replace(files, columns=columns)
    data = files.load(entry.labels, options, type(entry.task_kind), entry.task_kind.guarantee)
    data = dataclasses.replace(data, stride=entry.task_kind.chosen.get("stride"))
    if data.pairs != entry.pairs:
        kinds = ("pairs", "single texts") if entry.pairs else ("single texts", "pairs")
        raise DataError(f"task {task} reads {kinds[0]}; {files.train} holds {kinds[1]}.")
    given = bundle.check(task)
    if entry.writes:
        check = TextCheck.read(*given, bundle.architecture.vocab_size).inputs
    else:
        check, _ = read_check(*given)
    longest = entry.max_target_length or GREEDY.max_new_tokens
    widen(delta.graph)
    return TuningTarget(
        task=task,
        delta=delta,
        facts=training_facts(delta),
        check=check,
        data=data,
        max_length=entry.max_length,
        prompt_length=entry.prompt_length,
        writing=Writing.by(bundle.architecture, longest) if entry.writes else None,
        half=half_initializers(delta.graph) if entry.weights_dtype == "fp16" else frozenset(),
    )


def from_template(
    bundle: Bundle,
    task: str,
    template: str,
    files: Files,
    options: TuneSettings,
    *,
    kind: str | None = None,
    new: bool = True,
) -> TuningTarget:
    """Start a task with the data's labels and a head drawn from the seed; ``new``: it must not be there."""
    check_new_name(task, bundle.manifest.tasks)
    entry = bundle.manifest.template(template)
    if new and task in bundle.manifest.tasks:
        raise UsageError(
            f"the bundle has a task {task!r} already; without --template it is tuned further, or take another name."
        )
    graph, check = bundle.template(template)
    asked, decoder = requested_kind(kind), None if bundle.architecture.decoder_only else bundle.architecture.decoder
    if asked.head is not None or (decoder is not None and not asked.one_label):
        raise UsageError(f"template {template} makes no {asked.name} task; train one with: edgepeft train.")
    data = files.load(None, options, asked)
    trie = None if decoder is None else trie_of(data.labels or (), bundle.encoder(), decoder)
    delta = with_labels(graph, task, data.task_kind, pairs=data.pairs, seed=options.seed, trie=trie)
    return TuningTarget(
        task=task,
        delta=delta,
        facts=training_facts(delta),
        check=read_check(*check)[0],
        data=data,
        max_length=entry.max_length,
        prompt_length=entry.prompt_length,
        template=template,
    )
