"""The bundle's README.md: a model card with the Hub's front matter, written from the manifest alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from edgepeft.bundle.manifest import Manifest, TaskEntry
from edgepeft.common.messages import markdown_cell

__all__ = ["hub_name_of", "model_card", "stated_score", "task_table"]


def model_card(manifest: Manifest) -> str:
    """Markdown: what the bundle holds and how it is run."""
    hub_name = hub_name_of(manifest)
    front = ["---", "library_name: edgepeft", "tags: [edgepeft, onnx, peft, text-classification]"]
    front += [f"base_model: {hub_name}"] if hub_name else []
    lines = [*front, "---", "", "# An edgepeft bundle", ""]
    what = hub_name or markdown_cell(manifest.backbone.model_type)
    lines.append(f"One frozen backbone ({what}), {len(manifest.tasks)} task(s).")
    lines += ["", *task_table(manifest)]
    first = next(iter(manifest.tasks), "TASK")
    lines += ["", "```", f"edgepeft run . --task {first} 'some text'", "edgepeft verify .", "```", ""]
    lines.append(
        "Made with "
        + ", ".join(markdown_cell(f"{name} {version}") for name, version in manifest.versions.items())
        + "."
    )
    return "\n".join(lines) + "\n"


def hub_name_of(manifest: Manifest) -> str | None:
    """The backbone's name on the Hub, where its source is one."""
    source = manifest.backbone.source
    return source if re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", source, re.ASCII) else None


def task_table(manifest: Manifest) -> list[str]:
    """Markdown's lines: each task with its method, score and size."""
    lines = ["| task | method | kind | score | trained parameters | bytes | largest logit difference to PyTorch |"]
    lines.append("|---|---|---|---|---|---|---|")
    lines += [_row(name, entry) for name, entry in manifest.tasks.items()]
    return [*lines, "", "Scores are of test rows, which neither trained nor chose a checkpoint."]


def stated_score(metrics: Mapping[str, Any]) -> str:
    """The score on the test rows, beside it those before tuning and of the baselines; a dash where none is stated."""
    score, metric, others = metrics.get("test"), metrics.get("metric"), metrics.get("baselines")
    if not isinstance(score, (int, float)) or not isinstance(metric, str):
        return "-"
    beside = {"before": metrics.get("before")}
    for name, each in others.items() if isinstance(others, dict) else ():
        beside[name] = each.get("test") if isinstance(each, dict) else None
    known = [f"{name} {value:.4f}" for name, value in beside.items() if isinstance(value, (int, float))]
    return f"{metric} {score:.4f}" + (f" ({', '.join(known)})" if known else "")


def _row(name: str, entry: TaskEntry) -> str:
    parity = "-" if entry.verification is None else f"{entry.verification.max_abs_difference:.1e}"
    if entry.verification is not None and entry.verification.reference != "pytorch":
        parity += f" (to its {entry.verification.reference})"
    told = (markdown_cell(entry.method), entry.task_kind.described, markdown_cell(stated_score(entry.metrics)))
    cells = (name, *told, f"{entry.trainable_parameters:,}", f"{entry.n_bytes:,}", parity)
    return f"| {' | '.join(cells)} |"
