"""Tasks into and out of a bundle; the backbone's files are only read.

The manifest is written last when a task is added and first when one is removed, so a power cut leaves at worst an
unlisted file.
"""

import contextlib
import hashlib
import math
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import onnx
import onnxruntime as ort

from edgepeft.bundle.bundle import TASKS_FOLDER, Bundle, Tolerance, allowed_for, check_owner, parse_delta
from edgepeft.bundle.card import card_of, entry_of, kind_of, require_agreement
from edgepeft.bundle.manifest import (
    MANIFEST_FILE,
    CheckReference,
    Manifest,
    TaskEntry,
    Verification,
    check_file,
    model_card,
)
from edgepeft.bundle.versions import VERSIONS, Content, content_of, drop_versions, hashes, keep, settle, write_task_file
from edgepeft.common.atomic import drop_unfinished, write_atomically
from edgepeft.common.errors import BundleError, EdgepeftError, UsageError
from edgepeft.common.own_folder import locked
from edgepeft.common.resources import sha256_of
from edgepeft.common.task_name import CHECK, GRAPH, SUFFIXES, WEIGHTS, check_new_name, check_task_name
from edgepeft.deploy.verify import DataCheck, TextCheck, read_check, replay, require_passed, widen_tolerance
from edgepeft.graph.half import is_half
from edgepeft.graph.names import LOGITS, without_prefix
from edgepeft.graph.prune_last_layer import drop_unread_rows
from edgepeft.graph.splice import splice
from edgepeft.runtime.session import open_session, run_session
from edgepeft.tasks.base import TaskType

_FLOAT_BYTES = 4  # an override is float32, whatever it replaces


@dataclass(frozen=True)
class PreparedTask:
    """A verified task, ready to be written: its files, by suffix."""

    name: str
    content: Mapping[str, Content]
    entry: TaskEntry


def prepare_task(
    bundle: Bundle,
    graph: bytes,
    check: bytes,
    where: Path,
    weights: Path | None = None,
    *,
    data: DataCheck | None = None,
    reference: CheckReference = "pytorch",
    exact: ort.InferenceSession | None = None,
    stated: TaskEntry | None = None,
    accept_error: bool = False,
) -> PreparedTask:
    """Splice a delta graph, replay its check file, and state the result; writes nothing.

    ``weights`` is the file with what is more than the graph can hold, which must stay until the task is written.
    ``exact`` is the task over float32 weights, to be compared in place of what the bundle gives with its own.
    ``stated`` is the entry of whoever made the task, whose reference and allowance for 8-bit weights hold here too.
    With ``accept_error`` the task is taken however far 8-bit or 4-bit weights move it, and that is stated.
    """
    delta = parse_delta(graph, where, weights)
    facts = check_owner(delta, bundle.manifest, where)
    name = check_task_name(facts.get("edgepeft.task", ""))
    dtype = "fp16" if is_half(delta.graph) else "fp32"
    backbone_dtype = "fp32" if exact else bundle.manifest.backbone.weights_dtype
    allowed = allowed_for(backbone_dtype, dtype, decoder_only=bundle.architecture.decoder_only)
    if stated is not None and stated.verification is not None:
        allowed, reference = allowed.at_least(stated.verification), stated.verification.reference
    card = card_of(facts, where)
    if stated is not None:
        require_agreement(card, stated, where)
    if card.get("head_reads") != "text":
        kind = kind_of(card, where)
        result, depth = _replay_answers(bundle, delta, check, where, allowed, kind=kind, data=data, exact=exact)
    else:
        result, depth = _replay_text(bundle, delta, check, where, allowed), 0
    result = result.model_copy(update={"reference": reference})
    if accept_error:
        result = widen_tolerance(result)
    require_passed(name, result)
    checkpoint, outputs = bundle.checkpoint, (without_prefix(output.name) for output in delta.graph.output)
    replaced = [checkpoint.parts(tensor)[0] for what, tensor in outputs if what == "override"]
    of_files = {
        "n_bytes": len(graph) + (0 if weights is None else weights.stat().st_size),
        "weights_dtype": dtype,
        "private_bytes": _FLOAT_BYTES * sum(math.prod(checkpoint.tensors[tensor].shape) for tensor in replaced),
        "shared_layers": depth,
        "sha256": hashlib.sha256(graph).hexdigest(),
        "check_sha256": hashlib.sha256(check).hexdigest(),
        "weights_sha256": None if weights is None else sha256_of(weights),
        "verification": result.model_dump(),
    }
    own: dict[str, Content] = {} if weights is None else {WEIGHTS: weights}
    return PreparedTask(name, {GRAPH: graph, CHECK: check, **own}, entry_of(card, where, of_files))


def _replay_answers(
    bundle: Bundle,
    delta: onnx.ModelProto,
    check: bytes,
    where: Path,
    allowed: Tolerance,
    *,
    kind: TaskType,
    data: DataCheck | None,
    exact: ort.InferenceSession | None,
) -> tuple[Verification, int]:
    """Compare a task that answers each row at once; also the number of lowest layers that it shares with others."""
    from edgepeft.runtime.mixed import shared_layers

    sites = bundle.manifest.backbone.sites
    model = splice(bundle.backbone_graph, delta, sites, bundle.checkpoint)
    depth = shared_layers(model, bundle.architecture, sites)
    drop_unread_rows(model)
    run = partial(run_session, exact or _opened(bundle, model), LOGITS)
    result = replay(run, *read_check(check, f"the check file of {where}"), allowed, kind.agreement)
    if data is not None:
        found = data.compare(run, allowed)
        result = result.model_copy(update={"data": found})
        if 1 - found.agreement <= result.changed_tolerance:  # then the check's few rows may change as far as they do
            most = max(result.changed_tolerance, 1 - result.agreement)
            result = result.model_copy(update={"changed_tolerance": most})
    return result, depth


def _opened(bundle: Bundle, model: onnx.ModelProto) -> ort.InferenceSession:
    return open_session(model, bundle.folder, external_data=bundle.external_data(model))


def _replay_text(bundle: Bundle, delta: onnx.ModelProto, check: bytes, where: Path, allowed: Tolerance) -> Verification:
    from edgepeft.runtime.generation import TextSession, TextState
    from edgepeft.runtime.session_pool import TaskSession

    architecture = bundle.architecture
    read = TextCheck.read(check, f"the check file of {where}", architecture.vocab_size)
    graphs = bundle.text_graphs_with(delta)
    session = TextSession.of(graphs, lambda graph: TaskSession(_opened(bundle, graph), {}, None))
    assert architecture.decoder is not None, "there are graphs that write text"
    return read.replay(lambda inputs: TextState(session, inputs).step, architecture.decoder, allowed)


def prepare_exported(bundle: Bundle, path: Path, *, accept_error: bool = False) -> PreparedTask:
    """A ``<task>.onnx`` that another bundle holds, with its other files beside it; ``accept_error`` as above."""
    check = path.with_name(f"{path.stem}{CHECK}")
    if lacking := [file for file in (path, check) if not file.is_file()]:
        raise UsageError(
            f"{lacking[0]} is not there; a task comes as <task>.onnx with <task>.check.safetensors beside it."
        )
    own = path.with_name(f"{path.stem}{WEIGHTS}")
    weights = own if own.is_file() else None
    for file in filter(None, (path, check, weights)):
        check_file(file, bundle.weights)
    return prepare_task(bundle, path.read_bytes(), check.read_bytes(), path, weights, accept_error=accept_error)


def commit_tasks(bundle: Bundle, tasks: Sequence[PreparedTask], *, replace: bool = False) -> Manifest:
    """Write verified tasks and then the manifest that lists them; what is replaced stays as the previous version."""
    with _held(bundle):
        return _commit(bundle, tasks, replace)


@contextlib.contextmanager
def _held(bundle: Bundle) -> Iterator[None]:
    """Lock the bundle against other writers, read its manifest anew, and drop what a killed writer left."""
    with locked(bundle.folder):
        before, bundle.manifest = bundle.manifest, Manifest.read(bundle.folder)
        if bundle.manifest.backbone != before.backbone:
            raise BundleError(f"{bundle.folder} was replaced by one of another backbone meanwhile; repeat with that.")
        drop_unfinished(bundle.folder, "README.md", MANIFEST_FILE)
        drop_unfinished(bundle.folder / TASKS_FOLDER)
        drop_unfinished(bundle.folder / TASKS_FOLDER / VERSIONS)
        yield


def require_addable(names: Sequence[str], present: Collection[str], *, replace: bool = False) -> None:
    """See that tasks of these names may stand beside those that are ``present``, before the work that makes them."""
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"two of the deltas are called {name!r}; a task's name must be its own.")
        if name in present and not replace:
            raise UsageError(f"the bundle has a task {name!r} already; remove it first, or give --force.")
        if name not in present:
            check_new_name(name, [*present, *names])


def _warn_of_lost_promise(name: str, before: TaskEntry, now: TaskEntry) -> None:
    if (lost := before.task_kind.guarantee) and not now.task_kind.guarantee:
        ((what, share),) = lost.items()
        warnings.warn(
            f"the task {name} promised a {what} of {share:g}, and what replaces it promises nothing: its answers are "
            f"never unsure. `edgepeft add --force --{what} {share:g}` of a trained delta promises it again.",
            stacklevel=4,
        )


def _commit(bundle: Bundle, tasks: Sequence[PreparedTask], replace: bool) -> Manifest:
    folder, entries = bundle.folder / TASKS_FOLDER, dict(bundle.manifest.tasks)
    require_addable([task.name for task in tasks], entries, replace=replace)
    for task in tasks:
        before = entries.get(task.name)
        entries[task.name] = task.entry
        if before is not None:
            _warn_of_lost_promise(task.name, before, task.entry)
        if before is None:
            for suffix, content in task.content.items():
                write_task_file(folder / f"{task.name}{suffix}", content)
        elif hashes(before) == hashes(task.entry):
            entries[task.name] = task.entry.model_copy(update={"previous": before.previous})
        else:
            keep(folder, task.name, task.entry, task.content)
            with contextlib.suppress(BundleError):  # a damaged version cannot be kept to go back to
                keep(folder, task.name, before, content_of(folder, task.name, before))
                previous = before.model_copy(update={"previous": None})
                entries[task.name] = task.entry.model_copy(update={"previous": previous})
    bundle.manifest = _write(bundle, entries)
    for task in tasks:
        # In force already: where the disk is full, the files stay under their version's name, and are found there.
        with contextlib.suppress(EdgepeftError):
            settle(folder, task.name, entries[task.name])
    return bundle.manifest


def roll_back(folder: Path, name: str) -> Manifest:
    """Put a task's previous version in force; the one that was becomes the previous."""
    bundle = Bundle(folder)
    with _held(bundle):
        if (before := bundle.entry(name).previous) is None:
            raise UsageError(
                f"task {name} has no previous version; `edgepeft tune` and `edgepeft add --force` leave one."
            )
        task = PreparedTask(name, content_of(folder / TASKS_FOLDER, name, before), before)
        return _commit(bundle, [task], replace=True)


def remove_task(folder: Path, name: str) -> Manifest:
    """Take a task out of a bundle."""
    bundle = Bundle(folder)
    with _held(bundle):
        bundle.entry(name)
        manifest = _write(bundle, {task: each for task, each in bundle.manifest.tasks.items() if task != name})
        for suffix in SUFFIXES:
            (folder / TASKS_FOLDER / f"{name}{suffix}").unlink(missing_ok=True)
        drop_versions(folder / TASKS_FOLDER, name)
    return manifest


def _write(bundle: Bundle, entries: dict[str, TaskEntry]) -> Manifest:
    manifest = bundle.manifest.model_copy(update={"tasks": entries})
    write_atomically(bundle.folder / "README.md", model_card(manifest).encode())
    manifest.write(bundle.folder)
    return manifest
