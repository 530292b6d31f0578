"""Parity replayed without torch: a task's check file against what ONNX Runtime gives here; whole bundles checked.

What may differ depends on how the weights are stored.  In float32 nothing but the last digits; a delta rounded
to half precision keeps every clear decision; 8-bit weights move logits by what the processor's instructions and
the batch make of them, so that decisions are counted, of which a few may change.

The check of a task that writes text is what it goes on with, as PyTorch wrote it greedily: log-probabilities of the
likeliest tokens at each step, where the tokens before were PyTorch's (teacher forcing), so that a difference at one
step is none at the next.  They are of all tokens: one that is missing here shows too.

Letters, where text is written: R rows, T steps, k candidates, n tokens of all texts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from platform import machine
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from edgepeft.backbones.base import Decoder
from edgepeft.backbones.checkpoint import check_header
from edgepeft.bundle.bundle import EXACT, TEMPLATES_FOLDER, Tolerance, expect_hash, places
from edgepeft.bundle.manifest import OnData, OnText, Verification
from edgepeft.common.errors import BundleError, EdgepeftError, VerificationFailed
from edgepeft.common.progress import Stage
from edgepeft.common.task_name import TRAINING
from edgepeft.data.row_grouping import RowGrouping
from edgepeft.device.machine import isa_flags
from edgepeft.graph.validate import check_standard
from edgepeft.runtime.decoding import log_probabilities
from edgepeft.runtime.inputs import write_rows
from edgepeft.tasks._losses import Agreement, same_best
from edgepeft.tasks.base import TaskType

if TYPE_CHECKING:
    from edgepeft.runtime.inputs import Inputs
    from edgepeft.runtime.runtime import Runtime  # loaded where a whole bundle is checked

    RunRows = Callable[[Inputs], NDArray[np.float32]]

GROUP_ROWS = 8  # attention of 64 rows of 512 tokens would need 800 MB
STEPS, CANDIDATES = 8, 16
# SmolLM2's (30 layers), of 21 at most, float32 leaves up to 1.1e-4 from float64's, and two computations twice that.
_RELATIVE = 2e-5
_MAX = 1 - 1e-6  # of the candidates' probabilities in sum, beyond which float32 tells nothing of the others
_ELSEWHERE = 1.25  # processors round activations in ways of their own
_FORMAT = "edgepeft.check/1"
_TOKENS, _CANDIDATES, _LOGITS = "tokens", "candidates", "logits"

Compare = Callable[[NDArray[Any], NDArray[Any], float | None], Agreement]
# The next step of a batch of texts: (each one's last token, which of the step before it goes on) -> logits [N, v].
Step = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.float32]]

REFERENCES = {"pytorch": "PyTorch", "training graph": "its training graph"}


def run_in_groups(run: RunRows, inputs: Inputs) -> NDArray[np.float32]:
    """Logits [rows, outputs] in the rows' own order; of tokens [rows, length, outputs], 0 where there is none."""
    parts = [(rows, run(part)) for rows, part in in_groups(inputs)]
    mask, of_first = inputs["attention_mask"], parts[0][1].shape
    logits = np.zeros((*mask.shape[: len(of_first) - 1], of_first[-1]), np.float32)
    for rows, part in parts:
        write_rows(logits, rows, part)
    return logits if logits.ndim == 2 else logits * (mask != 0)[..., None]


def in_groups(inputs: Inputs) -> Iterator[tuple[NDArray[np.intp], Inputs]]:
    """Rows of like length, cut to their longest, with the places that they have in all."""
    lengths = inputs["attention_mask"].sum(axis=1)
    order = np.argsort(lengths, kind="stable")
    for start in range(0, len(order), GROUP_ROWS):
        rows = order[start : start + GROUP_ROWS]
        longest = int(lengths[rows].max())
        yield rows, {name: np.ascontiguousarray(values[rows, :longest]) for name, values in inputs.items()}


def pack_check(inputs: Inputs, logits: NDArray[np.float32]) -> bytes:
    """The content of a check file: int64 [rows, length] by input name, float32 ``logits`` [rows, (length,) outputs]."""
    return save({**inputs, _LOGITS: np.ascontiguousarray(logits, np.float32)}, metadata={"format": _FORMAT})


def _tensors(content: bytes, where: str, what: str) -> dict[str, Any]:
    try:
        check_header(content, where)
        return load(content)
    except (SafetensorError, ValueError, TypeError, KeyError) as error:  # the last two: a type that NumPy lacks
        raise BundleError(f"{where} is not {what} ({error}).") from error


def read_check(content: bytes, where: str) -> tuple[dict[str, NDArray[np.int64]], NDArray[np.float32]]:
    """Token ids and masks, and PyTorch's logits."""
    tensors = _tensors(content, where, "a check file")
    logits = tensors.pop(_LOGITS, None)
    shapes = {value.shape for value in tensors.values()}
    sound = logits is not None and logits.ndim in (2, 3) and "input_ids" in tensors and "attention_mask" in tensors
    leading = () if logits is None else logits.shape[:-1]  # those of the rows, or of their tokens
    if not sound or len(shapes) != 1 or leading != next(iter(shapes))[: len(leading)] or not len(tensors["input_ids"]):
        raise BundleError(f"{where} is not a check file: it needs input_ids, attention_mask and logits of equal rows.")
    return tensors, logits


def replay(
    run: RunRows, inputs: Inputs, reference: NDArray[np.float32], allowed: Tolerance, compare: Compare
) -> Verification:
    """Run the check's rows and compare with PyTorch's logits, decisions by the task's kind."""
    return compare_logits(reference, run_in_groups(run, inputs), allowed, compare)


def compare_logits(
    reference: NDArray[np.float32],
    logits: NDArray[np.float32],
    allowed: Tolerance = EXACT,
    compare: Compare = same_best,
) -> Verification:
    """Largest logit difference, and equal decisions wherever the reference's margin exceeds twice the tolerance."""
    _require_one_shape(reference, logits)
    agreement, undecided = compare(reference, logits, allowed.difference)
    return Verification(
        rows=len(reference),
        max_abs_difference=float(np.abs(reference.astype(np.float64) - logits).max()),
        tolerance=allowed.difference,
        changed_tolerance=allowed.changed,
        agreement=agreement,
        undecided=undecided,
        isa=" ".join((machine(), *isa_flags())),
        onnxruntime=metadata.version("onnxruntime"),
    )


def _require_one_shape(reference: NDArray[Any], logits: NDArray[Any]) -> None:
    if reference.shape != logits.shape:
        raise VerificationFailed(f"the check has logits {list(reference.shape)}, the model gives {list(logits.shape)}.")


def require_passed(task: str, result: Verification) -> None:
    """See that a comparison is within tolerance."""
    if not math.isfinite(result.max_abs_difference):
        raise VerificationFailed(
            f"task {task}: its check rows give NaN or infinite numbers, so the backbone's weights or the delta's are "
            "damaged; take a sound checkpoint."
        )
    bound = math.inf if result.tolerance is None else result.tolerance
    close = result.max_abs_difference <= bound
    agreement, text = (result.data or result).agreement, result.text
    if text is not None and result.kl_tolerance is not None:
        if close and text.kl <= result.kl_tolerance:
            return
        raise VerificationFailed(
            f"task {task}: with quantised weights its text is not {REFERENCES[result.reference]}'s: {text.description} "
            f"(allowed: {result.kl_tolerance:.2g} nats). Export it in more bits (--weights int8 or fp32), or have "
            "export, add or merge take it as it is (--accept-error)."
        )
    if close and 1 - agreement <= result.changed_tolerance + 1e-9:  # two of a hundred are not more than 2 %
        return
    where = f"its {result.rows} check rows" if result.data is None else f"{result.data.rows} rows of data"
    if result.tolerance is None:
        raise VerificationFailed(
            f"task {task}: with quantised weights {1 - agreement:.1%} of the decisions on {where} are not PyTorch's "
            f"(allowed: {result.changed_tolerance:.0%}; largest logit difference {result.max_abs_difference:.3g}). "
            "Verify on the task's own texts (--verify-data), export with --weights fp32, or have export, add or merge "
            "take it as it is (--accept-error)."
        )
    raise VerificationFailed(
        f"task {task}: ONNX Runtime differs from {REFERENCES[result.reference]} by {result.max_abs_difference:.3g} "
        f"on {where} (tolerance {bound:.0e}), with {agreement:.1%} of the decisions equal."
    )


def widen_tolerance(result: Verification) -> Verification:
    """Allow a result to be as far from its reference as it is; logits that are held to a tolerance stay so."""
    if result.tolerance is not None:
        return result
    changed = _ELSEWHERE * (1 - min(result.agreement, (result.data or result).agreement))
    changed = max(result.changed_tolerance, min(1.0, changed))
    kl = result.kl_tolerance
    if result.text is not None and kl is not None:
        kl = max(kl, _ELSEWHERE * result.text.kl)
    return result.model_copy(update={"changed_tolerance": changed, "kl_tolerance": kl})


@dataclass(frozen=True)
class DataCheck:
    """All rows of a data file, for weights whose logits are held to no tolerance: 64 rows cannot tell 2 % from 4 %."""

    inputs: Inputs  # token ids and masks [rows, length]
    reference: NDArray[np.float32]  # PyTorch's logits [rows, outputs]
    targets: NDArray[Any] | None  # as the kind has them, where the labels are the task's
    kind: TaskType
    grouping: RowGrouping = field(default_factory=RowGrouping)

    def compare(self, run: RunRows, allowed: Tolerance) -> OnData:
        """Run these rows, and compare decisions and scores."""
        logits = run_in_groups(run, self.inputs)
        _require_one_shape(self.reference, logits)
        reference, logits = (self.grouping.by_row(each, self.kind.pool) for each in (self.reference, logits))
        agreement, undecided = self.kind.agreement(reference, logits, allowed.difference)
        facts = OnData(rows=len(logits), agreement=agreement, undecided=undecided)
        if self.targets is None:
            return facts
        name, kind = self.kind.metric_or_default(None), self.kind
        theirs, ours = (kind.score(name, self.targets, kind.outputs(found)) for found in (reference, logits))
        return facts.model_copy(update={"metric": name, "pytorch": theirs, "onnxruntime": ours})


@dataclass(frozen=True)
class TextCheck:
    """The content of a check file of a task that writes text."""

    inputs: dict[str, NDArray[np.int64]]  # token ids and masks [R, length]
    tokens: NDArray[np.int64]  # PyTorch's [R, T]
    candidates: NDArray[np.int64]  # [R, T, k], the likeliest at each step, from the best
    logits: NDArray[np.float32]  # [R, T, k], their log-probabilities

    def pack(self) -> bytes:
        """The content of a check file."""
        integers = {**self.inputs, _TOKENS: self.tokens, _CANDIDATES: self.candidates}
        return pack_check({name: np.ascontiguousarray(values) for name, values in integers.items()}, self.logits)

    @classmethod
    def read(cls, content: bytes, where: str, vocabulary: int) -> TextCheck:
        """Read what ``pack`` made, for a backbone of so many tokens."""
        what = "the check file of a task that writes text"
        found = _tensors(content, where, what)
        own = [found.pop(name, np.empty(0)) for name in (_TOKENS, _CANDIDATES, _LOGITS)]
        check = cls(found, *own)
        if not check._is_sound(vocabulary):
            raise BundleError(
                f"{where} is not {what}: it needs input_ids and attention_mask of equal rows, tokens for each of "
                "these, and candidates and their logits for each token."
            )
        return check

    def _is_sound(self, vocabulary: int) -> bool:
        shapes = {values.shape for values in self.inputs.values()}
        if not {"input_ids", "attention_mask"} <= self.inputs.keys() or len(shapes) != 1 or self.tokens.ndim != 2:
            return False
        written = (*self.tokens.shape, self.candidates.shape[-1] if self.candidates.ndim else 0)
        alike = self.candidates.shape == self.logits.shape == written and self.logits.dtype == np.float32
        if not alike or not self.logits.size or len(self.tokens) != len(self.inputs["input_ids"]):
            return False
        numbers = (*self.inputs.values(), self.tokens, self.candidates)
        named = np.concatenate([self.tokens.ravel(), self.candidates.ravel(), self.inputs["input_ids"].ravel()])
        return all(values.dtype == np.int64 for values in numbers) and 0 <= named.min() <= named.max() < vocabulary

    def replay(self, begin: Callable[[Inputs], Step], decoder: Decoder, allowed: Tolerance = EXACT) -> Verification:
        """Run the check's rows, and compare with PyTorch's log-probabilities; a row of the result is a step of one.

        ``begin`` gives what takes a batch's steps, from its first on, as ``TextState.step`` does.  A large
        log-probability may differ by more than a small one: of ``_RELATIVE`` of the largest, where that is more than is
        allowed.
        """
        if allowed.difference is not None:
            largest = float(np.abs(self.logits).max())
            allowed = replace(allowed, difference=max(allowed.difference, _RELATIVE * largest))
        found = np.empty_like(self.logits)
        for rows, inputs in in_groups(self.inputs):
            logits_of = begin(inputs)
            ids, order = decoder.starts(inputs["input_ids"], inputs["attention_mask"]), np.arange(len(rows))
            for step in range(self.tokens.shape[1]):
                likely = log_probabilities(logits_of(ids, order))
                found[rows, step] = np.take_along_axis(likely, self.candidates[rows, step], axis=1)
                ids = self.tokens[rows, step]
        width = self.logits.shape[-1]
        result = compare_logits(self.logits.reshape(-1, width), found.reshape(-1, width), allowed)
        quality = text_quality(self.logits, found, self.tokens == decoder.end_token_id)
        changed = result.changed_tolerance if allowed.kl is None else 1.0
        return result.model_copy(update={"text": quality, "kl_tolerance": allowed.kl, "changed_tolerance": changed})


def text_quality(reference: NDArray[np.float32], found: NDArray[np.float32], ends: NDArray[np.bool_]) -> OnText:
    """Compare log-probabilities [R, T, k] of the same candidates, the first of which is the token written.

        KL = mean over tokens of sum over c of p(c) log(p(c) / q(c))        perplexity = exp(-mean of log q(written))

    c are a token's known candidates and all others in one, so that this KL is at most that of the whole distributions.
    ``ends`` [R, T] says which tokens end a text; tokens past an end are left out.
    """
    written = ends.cumsum(axis=1) - ends == 0

    def with_others(likely: NDArray[np.float64]) -> NDArray[np.float64]:
        """(n, k) -> (n, k + 1): the logarithm of what is left for all other tokens."""
        known = np.exp(likely).sum(axis=1, keepdims=True).clip(max=_MAX)
        return np.concatenate([likely, np.log1p(-known)], axis=1)

    p, q = (with_others(values[written].astype(np.float64)) for values in (reference, found))
    return OnText(
        tokens=len(p),
        kl=float((np.exp(p) * (p - q)).sum(axis=1).mean()),
        perplexity=float(np.exp(-q[:, 0].mean())),
        reference_perplexity=float(np.exp(-p[:, 0].mean())),
        agreement=float((q[:, :-1].argmax(axis=1) == 0).mean()),
    )


_BACKBONE = "backbone"  # a task may be called so too


@dataclass(frozen=True)
class AuditFinding:
    """The subject of a check, and what is wrong with it (empty when nothing is)."""

    subject: str
    problem: str = ""
    verification: Verification | None = None


def audit(folder: Path, stage: Stage = nullcontext) -> list[AuditFinding]:
    """Check everything that the bundle claims; ``stage`` is entered around each check with its subject."""
    from edgepeft.runtime.runtime import Runtime

    runtime = Runtime(folder, cache=False)  # parity is of the bundle itself, not of what this machine keeps of it
    templates = runtime.bundle.manifest.templates
    checks: dict[str, Callable[[], Verification | None]] = {_BACKBONE: partial(_check_backbone, runtime)}
    for task in runtime.tasks:
        checks[f"task {task}" if task == _BACKBONE else task] = partial(_check_task, runtime, task)
    checks |= {f"template {name}": partial(_check_template, runtime, name) for name in templates}
    findings = []
    for subject, check in checks.items():
        with stage(subject):
            try:
                findings.append(AuditFinding(subject, verification=check()))
            except EdgepeftError as error:
                findings.append(AuditFinding(subject, str(error)))
            except onnx.checker.ValidationError as error:
                findings.append(AuditFinding(subject, f"the ONNX checker refuses it: {error}"))
    return findings


def _check_backbone(runtime: Runtime) -> None:
    from edgepeft.runtime.prepacked import check_prepacked

    bundle = runtime.bundle
    for name, sha256 in places(bundle.manifest.model_copy(update={"tasks": {}, "templates": {}})).items():
        expect_hash(bundle.folder / name, sha256)
    graphs = [bundle.backbone_graph, *(bundle.text_graphs if bundle.manifest.backbone.text else ())]
    for graph in graphs:
        check_standard(graph)
    values = {name for graph in graphs for node in graph.graph.node for name in node.output}
    if missing := [site for site, value in bundle.manifest.backbone.sites.items() if value not in values]:
        raise VerificationFailed(f"the graph has no value for the site {missing[0]} that the manifest names.")
    check_prepacked(bundle)


def _check_template(runtime: Runtime, name: str) -> None:
    graph, check = runtime.bundle.template(name)
    if (trained := runtime.bundle.manifest.template(name).train_sha256) is not None:
        expect_hash(runtime.bundle.folder / TEMPLATES_FOLDER / f"{name}{TRAINING}", trained)
    check_standard(graph)
    read_check(*check)


def _check_task(runtime: Runtime, task: str) -> Verification:
    bundle = runtime.bundle
    entry, (content, where), allowed = bundle.entry(task), bundle.check(task), bundle.allowed(task)
    check_standard(bundle.delta_graph(task))
    if (trained := entry.train_sha256) is not None:
        expect_hash(bundle.current(task, TRAINING), trained)
    if entry.writes:
        from edgepeft.runtime.generation import TextState

        check = TextCheck.read(content, where, bundle.architecture.vocab_size)
        runtime.prepare(task)
        generator, session = runtime.generator, runtime.generator.session(task)
        result = check.replay(lambda inputs: TextState(session, inputs).step, generator.decoder, allowed)
    else:
        run = partial(runtime.logits, task)
        result = replay(run, *read_check(content, where), allowed, entry.task_kind.agreement)
    if (stated := entry.verification) is not None:
        result = result.model_copy(update={"reference": stated.reference})
    require_passed(task, result)
    return result
