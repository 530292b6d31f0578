"""A task as a page of `edgepeft web --tunable` tuned it: ``<task>.tuned.safetensors``, the trained tensors alone.

They go into the task's own delta graph, whose every other value stays; the check file is made anew, by the training
graph, as after `edgepeft tune`.  The file says which version of the task it is of: this one or, where only tensors have
changed since, the one before.  Any other refuses it.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError, safe_open

from edgepeft.backbones.checkpoint import check_header
from edgepeft.bundle.bundle import Bundle
from edgepeft.common.errors import BundleError, DataError, UsageError
from edgepeft.common.messages import mistakes_text
from edgepeft.deploy.install import PreparedTask, prepare_task
from edgepeft.deploy.verify import pack_check, read_check
from edgepeft.graph.gradient.training import training_facts
from edgepeft.graph.half import half_initializers, round_to_half, widen
from edgepeft.tuning.federated import checked_tensors
from edgepeft.tuning.step import TrainingStep
from edgepeft.tuning.target import deployed_graph, with_values

FORMAT = "edgepeft.tuned/1"
_ROWS = 16  # of the check, at once
_HEADER_BYTES = 1 << 20
# What says how tensors are read: versions that agree in it differ by tensors alone.
_SAME = (
    *("method", "hyperparameters", "kind", "labels", "pairs", "head", "head_reads"),
    *("max_length", "source", "prompt_length", "weights_dtype"),
)
_Share = Annotated[float, Field(ge=0, le=1)]
_Rate = Annotated[float, Field(gt=0)]
_Count = Annotated[int, Field(ge=0, le=10**9)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class _Metrics(_Section):
    metric: Literal["accuracy"]
    eval: _Share
    test: _Share
    before: _Share
    n_train: _Count
    n_eval: _Count
    n_test: _Count


class _Training(_Section):
    steps: _Count
    best_step: _Count
    learning_rate: _Rate
    head_learning_rate: _Rate
    batch_size: _Count
    seed: _Count
    engine: Annotated[str, Field(pattern=r"^[\w ,.+-]{1,100}$")]


class _Account(_Section):
    metrics: _Metrics
    training: _Training


class _Facts(_Section):
    format: str = ""
    task: str
    task_sha256: str
    backbone_sha256: str
    account: str


def prepare_tuned(bundle: Bundle, path: Path, *, replace: bool = False) -> PreparedTask:
    """The task's next version, verified and ready to be committed; writes nothing."""
    if not path.is_file():
        raise UsageError(f"{path} is not there; give the file that the page offered, <task>.tuned.safetensors.")
    facts, account = _read(path)
    if facts.backbone_sha256 != bundle.manifest.backbone.identity:
        raise BundleError(
            f"{path} was tuned on another backbone (weights {facts.backbone_sha256:.12}), and this bundle holds "
            f"{bundle.manifest.backbone.source} (weights {bundle.manifest.backbone.identity:.12}). Add it to the "
            "bundle that the page was made of."
        )
    entry, task = bundle.entry(facts.task), facts.task
    before = entry.previous
    same = before is not None and all(getattr(entry, name) == getattr(before, name) for name in _SAME)
    if facts.task_sha256 not in (entry.sha256, before.sha256 if same and before else None):
        raise DataError(
            f"{path} was tuned from another version of task {task} than this bundle holds; make the site anew with: "
            "edgepeft web --tunable; and tune there."
        )
    if not replace:
        raise UsageError(
            f"{path} is a new version of task {task}, which the bundle has: give --force to put it in force. "
            "`edgepeft rollback` goes back."
        )
    entry.require_tunable(task)
    if not entry.task_kind.one_label or "stride" in entry.chosen:
        raise DataError(f"{path} is of task {task}, and a page tunes classifications of one label without windows.")
    delta = bundle.delta_graph(task)
    widen(delta.graph)
    half = half_initializers(delta.graph) if entry.weights_dtype == "fp16" else frozenset()
    trained = training_facts(delta)
    expected = trained.tensors(delta)
    tensors = _tensors(path, sum(tensor.nbytes for tensor in expected.values()))
    given = checked_tensors(tensors, expected, f"the tensors of {path}")
    stored = {n: round_to_half(n, t).astype(np.float32) if n in half else t for n, t in given.items()}
    parts = {"train": account.metrics.n_train, "eval": account.metrics.n_eval, "test": account.metrics.n_test}
    split = "; ".join(f"{part}: {n} rows typed in a page" for part, n in parts.items())
    told: dict[str, Any] = {"metrics": {**account.metrics.model_dump(), "split": split}}
    told["training"] = {**account.training.model_dump(), "dropout": False}
    # Temperature and guarantee were those of the version before.
    graph = with_values(delta, stored, half, **told, chosen={})
    deployed = deployed_graph(delta, trained, bundle)
    inputs, _ = read_check(*bundle.check(task))
    logits = TrainingStep(deployed, trained, bundle.folder).logits(stored, inputs, _ROWS)
    content = graph.SerializeToString(deterministic=True)
    return prepare_task(bundle, content, pack_check(inputs, logits), path, reference="training graph")


def _read(path: Path) -> tuple[_Facts, _Account]:
    """Read what the file says of its tensors, which are not looked at."""
    try:
        check_header(path, path)
        with safe_open(path, "np") as file:
            facts = _Facts.model_validate(file.metadata() or {})
        if facts.format != FORMAT:
            raise BundleError(f"{path} is of format {facts.format:.40}; this version reads {FORMAT}.")
        return facts, _Account.model_validate_json(facts.account)
    except SafetensorError as error:
        raise BundleError(f"{path} is damaged ({error}); download it from the page again.") from error
    except ValidationError as error:
        raise BundleError(
            f"{path} is no file of a page: {mistakes_text(error)}. Download it from the page again."
        ) from error


def _tensors(path: Path, n_bytes: int) -> dict[str, NDArray[np.float32]]:
    """All of them, where they take about so many bytes."""
    if path.stat().st_size > n_bytes + _HEADER_BYTES:
        raise DataError(f"{path} has {path.stat().st_size:,} bytes, and the task's tensors have {n_bytes:,}.")
    with safe_open(path, "np") as file:
        names = list(file.keys())
        odd = next((name for name in names if file.get_slice(name).get_dtype() != "F32"), None)
        if odd is not None:
            raise DataError(f"{path}: {odd:.40} is of type {file.get_slice(odd).get_dtype()}; a page writes F32.")
        return {name: file.get_tensor(name) for name in names}
