"""Export the backbone once and each task as a delta graph, verified against PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from edgepeft.cli._options import command_of, note_trainable
from edgepeft.cli._output import print_json
from edgepeft.common.errors import UsageError, requiring
from edgepeft.common.messages import counted
from edgepeft.common.progress import say
from edgepeft.data.by_class import score_text
from edgepeft.options.base import listed
from edgepeft.options.verbs import NO_BUNDLE, ExportOptions

if TYPE_CHECKING:
    from edgepeft.bundle.manifest import Verification

PANEL = "Deploy"


@command_of(ExportOptions, "export")
def command(
    options: ExportOptions,
    more: Annotated[list[Path] | None, Argument(metavar="[DELTA]...", help="Further deltas.")] = None,
    as_json: Annotated[bool, Option("--json", help="Print the manifest as JSON.")] = False,
) -> None:
    if as_json and (options.to_peft or options.to_adapterhub):
        raise UsageError(NO_BUNDLE)
    note_trainable(options.trainable)
    options = options.model_copy(update={"delta": [*listed(options.delta), *(more or [])]})
    if options.to_peft is None and options.to_adapterhub is None:
        options.require_bundle()  # before imports that take seconds
    with requiring("train", "export"):
        from edgepeft.training.exporting.bundle import export

    result = export(options)
    manifest = result.manifest
    if manifest is None:  # another library's folder
        typer.echo(result.folder)
        return
    if as_json:
        print_json(manifest.model_dump(mode="json"))
        return
    for name, entry in manifest.tasks.items():
        assert entry.verification is not None
        own, verified = entry.private_bytes, _verified(entry.verification, entry.task_kind.compared)
        shared = "it changes the first layer or what lies below, so that tasks on one input share no layer with it"
        if layers := entry.shared_layers:
            shared = f"tasks on one input run the lowest {layers} layer{'s' * (layers > 1)} once with it"
        say(
            f"{name}: {entry.method}, {entry.n_bytes:,} bytes, {verified}"
            + (f"; while open it holds {own / 1e6:,.2f} MB of backbone tensors of its own" if own else "")
            + f"; {shared}"
        )
    for name, made in manifest.templates.items():
        say(f"{name}: a template of {made.method}; on the board: edgepeft tune --template {name}")
    if (weights := manifest.backbone.weights_dtype) != "fp32":
        say(f"backbone: {weights}, {(result.folder / manifest.backbone.weights_file).stat().st_size:,} bytes")
    typer.echo(result.folder)


def _verified(result: Verification, compared: str) -> str:
    parity = f"largest logit difference to PyTorch {result.max_abs_difference:.1e} on {counted(result.rows, 'row')}"
    if (text := result.text) is not None and result.kl_tolerance is not None:
        return f"{parity}; text beside PyTorch's: {text.description}"
    if result.tolerance is not None:
        return parity
    on = result.data or result
    decided = on.rows - on.undecided
    parts = [parity, f"{round((1 - on.agreement) * decided)} of {decided} {compared} changed"]
    if result.data is not None and result.data.metric is not None:
        parts.append(
            f"{result.data.metric} {score_text(result.data.onnxruntime)}, PyTorch's {score_text(result.data.pytorch)}"
        )
    return "; ".join(parts)
