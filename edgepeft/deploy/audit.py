"""A whole bundle checked without torch: hashes, the ONNX checker, and parity replayed task by task."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import onnx

from edgepeft.backbones.emit import BUNDLE_FILES
from edgepeft.bundle.bundle import BACKBONE_FILE, TEMPLATES_FOLDER, expect_hash, read_graph
from edgepeft.bundle.manifest import Verification
from edgepeft.bundle.versions import CHECK, GRAPH, TRAINING
from edgepeft.common.errors import EdgepeftError, VerificationFailed
from edgepeft.deploy.verify import TextCheck, read_check, replay, require_passed
from edgepeft.graph.validate import check_standard
from edgepeft.runtime.prepacked import check_prepacked
from edgepeft.runtime.runtime import Runtime

__all__ = ["AuditFinding", "audit"]


@dataclass(frozen=True)
class AuditFinding:
    """What was checked, and what is wrong with it (empty when nothing is)."""

    subject: str
    problem: str = ""
    verification: Verification | None = None


def audit(folder: Path, stage: Callable[[str], AbstractContextManager[object]] = nullcontext) -> list[AuditFinding]:
    """Check everything that the bundle claims; ``stage`` is entered around each check with its subject."""
    runtime = Runtime(folder, cache=False)  # parity is of the bundle itself, not of what this machine keeps of it
    templates = runtime.bundle.manifest.templates
    checks: dict[str, Callable[[], Verification | None]] = {"backbone": partial(_check_backbone, runtime)}
    checks |= {task: partial(_check_task, runtime, task) for task in runtime.tasks}
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
    bundle = runtime.bundle
    expect_hash(bundle.weights, bundle.manifest.backbone.sha256.weights)
    expect_hash(bundle.folder / BACKBONE_FILE, bundle.manifest.backbone.sha256.graph)
    for name in BUNDLE_FILES:  # never a name that the manifest makes up
        if name in bundle.manifest.files:
            expect_hash(bundle.folder / name, bundle.manifest.files[name])
    graphs = [bundle.backbone_graph, *(bundle.text_graphs if bundle.manifest.backbone.text else ())]
    for graph in graphs:
        check_standard(graph)
    values = {name for node in bundle.backbone_graph.graph.node for name in node.output}
    missing = [site for site, value in bundle.manifest.backbone.sites.items() if value not in values]
    if missing:
        raise VerificationFailed(f"the graph has no value for the site {missing[0]} that the manifest names.")
    check_prepacked(bundle)


def _check_template(runtime: Runtime, name: str) -> None:
    bundle = runtime.bundle
    entry, folder = bundle.manifest.template(name), bundle.folder / TEMPLATES_FOLDER
    for suffix, expected in ((GRAPH, entry.sha256), (CHECK, entry.check_sha256), (TRAINING, entry.train_sha256)):
        if expected is not None:
            expect_hash(folder / f"{name}{suffix}", expected)
    check_standard(read_graph(folder / f"{name}{GRAPH}"))
    read_check((folder / f"{name}{CHECK}").read_bytes(), str(folder / f"{name}{CHECK}"))


def _check_task(runtime: Runtime, task: str) -> Verification:
    bundle = runtime.bundle
    path = bundle.current(task, CHECK)
    expect_hash(path, bundle.entry(task).check_sha256)
    check_standard(bundle.delta_graph(task))
    if (trained := bundle.entry(task).train_sha256) is not None:
        expect_hash(bundle.current(task, TRAINING), trained)
    result = (_replay_text if bundle.entry(task).writes else _replay)(runtime, task, path)
    stated = bundle.entry(task).verification
    if stated is not None:
        result = result.model_copy(update={"reference": stated.reference})
    require_passed(task, result)
    return result


def _replay(runtime: Runtime, task: str, path: Path) -> Verification:
    inputs, reference = read_check(path.read_bytes(), str(path))
    compare = runtime.bundle.entry(task).task_kind.agreement
    return replay(lambda group: runtime.logits(task, group), inputs, reference, runtime.bundle.allowed(task), compare)


def _replay_text(runtime: Runtime, task: str, path: Path) -> Verification:
    check = TextCheck.read(path.read_bytes(), str(path), runtime.bundle.architecture.vocab_size)
    runtime.prepare(task)
    generator = runtime.generator
    return check.replay(generator.session(task), generator.decoder.start_token_id, runtime.bundle.allowed(task))
