"""Whether a bundle fits a device: memory for answering and for fine-tuning, disk, how many tasks, how large a batch.

Nothing is run.  Memory is what ``Runtime`` with its cache of packed weights takes: the process, the weights as they are
packed (mapped, but resident once read), every row of the embeddings, sessions, the values alive in a pass, the
tokenizer.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from edgepeft.bundle.bundle import Bundle
from edgepeft.bundle.versions import hashes
from edgepeft.common.errors import BundleError, UsageError
from edgepeft.common.task_name import GRAPH, WEIGHTS
from edgepeft.data.parts import TaskData
from edgepeft.data.rows import Row
from edgepeft.deploy.cost import ARENA, checked_length, example_inputs, read_as, written_bytes
from edgepeft.device.profiles import Profile
from edgepeft.graph.cost import matrices_read, packed_bytes, peak_bytes, stored_bytes
from edgepeft.graph.joined_row import joined_bytes
from edgepeft.graph.one_row import for_one_row
from edgepeft.graph.shapes import Walked
from edgepeft.options.verbs import TuneSettings
from edgepeft.runtime.decoding import GREEDY, Decoding
from edgepeft.runtime.generation import row_bytes, rows_at_once
from edgepeft.runtime.inputs import PASS_TOKENS
from edgepeft.runtime.label_words import decoding_in
from edgepeft.tasks.base import TaskType
from edgepeft.tuning.memory import SESSION, Demand, most_within
from edgepeft.tuning.target import Files, TuningTarget, from_task, from_template

# Measured on MiniLM and roberta-base, 1 x 16 to 8 x 128 and 2 x 512 tokens.
_COPIES = 3  # of a delta: its file, its tensors, its packed matrices
_TOKENIZER = 20  # of tokenizer.json's bytes: hash tables of every token and merge
_INPUTS = 6 * 8  # ids, mask and types of a token, and a copy of each
_LOGITS = 4 * 8  # of each: as they come, in their rows, and in float64 while answers are made of them
_MAX_ROWS = 1 << 20
_MAX_TUNED = 1024  # rows of a step


@dataclass(frozen=True)
class Need:
    """Memory that work takes."""

    peak_bytes: int
    parts: dict[str, int]  # by what takes it
    fits: bool
    largest_batch: int  # that stays within what is allowed; 0: none
    at_most: bool = False  # the search ended there; a larger batch is computed in passes and takes hardly more


@dataclass(frozen=True)
class Inference(Need):
    """``tasks``: how many of this task's structure fit at once; ``task_bytes``: what each further one takes."""

    tasks: int = 0
    task_bytes: int = 0
    first_start_bytes: int = 0


@dataclass(frozen=True)
class Fit:
    """``finetune`` is None where the task cannot be tuned; ``untunable`` says why."""

    task: str | None
    batch_size: int
    length: int
    allowed_bytes: int
    disk: dict[str, int]
    inference: Inference
    finetune: Need | None
    untunable: str | None
    decoding: Decoding | None = None  # of a task that writes text
    read_as: tuple[int, int] = (1, 0)  # token rows that each text is when it is answered, and their tokens
    taught_as: tuple[int, int] | None = None  # the same when it is learnt from


def bundle_fit(
    bundle: Bundle,
    profile: Profile,
    task: str | None,
    *,
    base: int,
    batch_size: int = 32,
    length: int | None = None,
    reserve: int = 0,
    template: str | None = None,
    finetune: bool = True,
    decoding: Decoding = GREEDY,
) -> Fit:
    """The memory and disk that a task, or for None the bare backbone, takes, and the batches that fit a device.

    ``base`` are bytes that the process takes before it opens the bundle, ``reserve`` those of the device that others
    keep; ``batch_size`` are texts of a request and rows of a step, of ``length`` tokens each: None takes 128, or what
    the task takes.  With ``finetune`` that is predicted too, of a new task where there is a ``template``.
    """
    allowed = profile.memory_bytes - reserve
    if reserve < 0 or allowed <= 0:
        raise UsageError(f"--reserve leaves nothing of {profile.name}'s {profile.memory_bytes / 1e6:.0f} MB.")
    entry = None if task is None else bundle.entry(task)
    length = checked_length(bundle.architecture, entry, batch_size, length, None if entry is None else entry.max_length)
    written = decoding_in(bundle, task, decoding) if task is not None and entry and entry.writes else None
    each, tokens = read_as(bundle, task, length)
    sizes = {"base": base, "batch_size": batch_size, "each": each, "length": tokens, "allowed": allowed}
    inference = _inference(bundle, task, written, **sizes)
    target, why = _target(bundle, task, template) if finetune else (None, "it was not asked for")
    tuning = taught = None
    if target is not None:  # as `edgepeft tune` predicts it; hidden states are left out: they go to a file if need be
        taught = target.facts.kind.read_as(length, target.max_length, taught=True)
        demand = Demand(bundle, target, taught[1], TuneSettings(), each=taught[0])
        most = most_within(lambda rows: demand.n_bytes(rows, 0), allowed, _MAX_TUNED * taught[0]) // taught[0]
        peak = demand.n_bytes(batch_size * taught[0], 0)
        tuning = Need(peak, {}, peak <= allowed, most, most == _MAX_TUNED)
    disk = _disk(bundle)
    return Fit(task, batch_size, length, allowed, disk, inference, tuning, why, written, (each, tokens), taught)


def _inference(
    bundle: Bundle,
    task: str | None,
    decoding: Decoding | None,
    *,
    base: int,
    batch_size: int,
    each: int,
    length: int,
    allowed: int,
) -> Inference:
    """``each`` are the token rows of a text, of ``length`` tokens."""
    entry = None if task is None else bundle.entry(task)
    graphs = [bundle.graph(task)] if decoding is None else list(bundle.text_graphs_of(task))
    stored = {name: size for graph in graphs for name, size in stored_bytes(graph.graph).items()}
    packed = sum(packed_bytes(graph.graph) for graph in graphs)
    read = {name for graph in graphs for name in matrices_read(graph.graph)}
    # A table of words that is the output's too lies there in both forms.
    read -= {node.input[0] for graph in graphs for node in graph.graph.node if node.op_type == "Gather"}
    delta = private = 0
    if task is not None and entry is not None:
        # What its graph holds itself, in float32: what lies beside it is mapped, as the backbone's weights are.
        inline = entry.n_bytes if entry.weights_sha256 is None else bundle.current(task, GRAPH).stat().st_size
        delta, private = inline * (2 if entry.weights_dtype == "fp16" else 1), entry.private_bytes
    tokenizer = bundle.folder / "tokenizer.json"
    fixed = {
        "process": base,
        "packed weights": packed,
        "embeddings and vectors": sum(size for name, size in stored.items() if name not in read),
        "session": len(graphs) * SESSION + _COPIES * delta + private,
        "tokenizer": _TOKENIZER * tokenizer.stat().st_size if tokenizer.is_file() else 0,
    }

    alone = SESSION + (joined_bytes(graphs[0]) if decoding is None and for_one_row(graphs[0]) else 0)
    working = _working(bundle, task, length, decoding, allowed)

    def parts(rows: int) -> dict[str, int]:
        shape = entry.task_kind.logits_shape(rows * each, length) if entry and decoding is None else (0,)
        second = {"session for a text alone": alone} if rows > 1 and decoding is None else {}
        more = {"inputs": _INPUTS * rows * each * length, "logits": _LOGITS * prod(shape)}
        return {**fixed, **second, **working(rows * each), **more}

    def peak(rows: int) -> int:
        return int(max(sum(parts(rows).values()), first, least))

    # A runtime refuses what takes more than half of the memory.
    least = 0 if decoding is None else 2 * row_bytes(bundle.architecture, length, decoding)
    # Packing reads every weight once and writes its packed copy to the cache's file.
    first = base + bundle.weights.stat().st_size + SESSION
    most = most_within(peak, allowed, _MAX_ROWS)
    needed = peak(batch_size)
    further = delta + (private + SESSION + (_COPIES - 1) * delta if private else 0)
    tasks = 0 if needed > allowed or task is None else 1 + (allowed - needed) // max(1, further)
    return Inference(needed, parts(batch_size), needed <= allowed, most, most == _MAX_ROWS, tasks, further, first)


def _working(
    bundle: Bundle, task: str | None, length: int, decoding: Decoding | None, allowed: int
) -> Callable[[int], dict[str, int]]:
    """Rows -> what those that are computed at once take: in a pass, or while a text is written."""
    if decoding is None:
        graph = bundle.graph(task)

        @functools.cache
        def alive(rows: int) -> int:
            specs = Walked(graph, example_inputs(bundle, rows, length)).specs
            return int(ARENA * peak_bytes(graph.graph, specs, in_place=False))

        return lambda rows: {"a pass": alive(-(-rows // max(1, round(rows * length / PASS_TOKENS))))}
    graphs, prompt = bundle.text_graphs_of(task), bundle.prompt_length(task)

    @functools.cache
    def taken(rows: int) -> dict[str, int]:
        return written_bytes(graphs, example_inputs(bundle, rows, length), prompt, decoding)

    return lambda rows: taken(rows_at_once(bundle, rows, length + prompt, decoding, allowed))


@dataclass(frozen=True)
class _AnyRows(Files):
    """Synthetic rows, for estimating memory, which does not depend on what they say."""

    pairs: bool = False

    def load(self, labels: tuple[str, ...] | None, options: TuneSettings, kind: type[TaskType], *_: Any) -> TaskData:
        label, own = kind.example(labels)
        pairs = self.pairs or kind.passages or kind.gives_vectors
        row = Row("a", "b" if pairs else None, label, "", 1, candidates=("a", "b"))
        return TaskData((row,), (row,), (row,), own, "none", kind=kind.name)


def _target(bundle: Bundle, task: str | None, template: str | None) -> tuple[TuningTarget | None, str | None]:
    options = TuneSettings()
    if template is not None:
        bundle.manifest.template(template)
        return from_template(bundle, "new", template, _AnyRows(Path()), options, new=False), None
    if task is None:
        return None, "the bare backbone is not tuned; name a task or a template"
    if why := bundle.entry(task).untunable:
        return None, why
    return from_task(bundle, task, _AnyRows(Path(), pairs=bundle.entry(task).pairs), options), None


def _disk(bundle: Bundle) -> dict[str, int]:
    """Bytes of the bundle's folder, and of the packed copy that the cache will hold."""
    own = sum(path.stat().st_size for path in bundle.folder.rglob("*") if path.is_file())
    graph, entries = bundle.backbone_graph.graph, bundle.manifest.tasks.items()
    files = [bundle.current(name, each) for name, entry in entries for each in {GRAPH, WEIGHTS} & hashes(entry).keys()]
    try:
        tasks = sum(path.stat().st_size for path in files)
    except OSError as error:
        raise BundleError(f"{error.filename} cannot be read ({error.strerror}); the bundle is incomplete.") from error
    packed = sum(stored_bytes(graph).values()) + packed_bytes(graph)
    return {"bundle": own, "of it, tasks": tasks, "packed weights": packed}
