"""``edgepeft export``: a bundle of one backbone and any number of verified tasks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from edgepeft.cli._options import (
    Coverage,
    DeltaWeights,
    LabelColumn,
    PairColumn,
    Replace,
    Risk,
    TextColumn,
    Trainable,
    VerifyRows,
    columns_of,
    note_trainable,
)
from edgepeft.cli._output import messages, print_json, stages
from edgepeft.common.errors import UsageError, requiring

if TYPE_CHECKING:
    from edgepeft.bundle.manifest import Manifest, Verification

__all__ = ["Elsewhere", "command", "document", "run"]

PANEL = "Deploy"


class Elsewhere(NamedTuple):
    """The folder that is written for another library, and the option that asked for it."""

    option: str
    folder: Path


def command(
    backbone: Annotated[str, typer.Option(help="Folder in Hugging Face layout, or a Hub name.")],
    delta: Annotated[list[Path] | None, typer.Option(help="Folder that `edgepeft train` wrote; may repeat.")] = None,
    out: Annotated[Path | None, typer.Option(help="The bundle's folder.")] = None,
    more: Annotated[list[Path] | None, typer.Argument(metavar="[DELTA]...", help="Further deltas.")] = None,
    verify_data: VerifyRows = None,
    text_column: TextColumn = None,
    pair_column: PairColumn = None,
    label_column: LabelColumn = None,
    trainable: Trainable = False,
    template: Annotated[
        list[str] | None,
        typer.Option(metavar="METHOD[:NAME=VALUE,...]", help="An untrained delta to start tasks from; may repeat."),
    ] = None,
    to_peft: Annotated[
        Path | None, typer.Option(help="Instead of a bundle, one delta of a method that PEFT has as its folder.")
    ] = None,
    to_adapterhub: Annotated[
        Path | None,
        typer.Option(help="Instead of a bundle, one delta of adapters, LoRA or a prompt as AdapterHub's folder."),
    ] = None,
    weights: Annotated[
        Literal["fp32", "int8"], typer.Option(help="How the backbone is stored and multiplied.")
    ] = "fp32",
    delta_weights: DeltaWeights = "fp32",
    coverage: Coverage = None,
    risk: Risk = None,
    profile: Annotated[
        str | None, typer.Option(help="A device that the bundle is for: what int8 or fp16 costs there is said.")
    ] = None,
    force: Replace = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the manifest as JSON.")] = False,
) -> None:
    """Export the backbone once and each task as a delta graph, verified against PyTorch."""
    options = {**locals()}
    if (to_peft or to_adapterhub) is not None and as_json:
        raise _no_bundle()
    result = run(options)
    if as_json:
        print_json(document(result))
    elif isinstance(result, Elsewhere):
        typer.echo(result.folder)
    else:
        _show(result)
        typer.echo(out)


def document(result: Manifest | Elsewhere) -> dict[str, Any]:
    """The manifest, or the folder for another library, as plain values."""
    return {result.option: str(result.folder)} if isinstance(result, Elsewhere) else result.model_dump(mode="json")


def run(options: Mapping[str, Any]) -> Manifest | Elsewhere:
    """Export as the command's options say, with progress and notes on standard error."""
    with requiring("train", "export"):
        from edgepeft.tasks._certainty import promise_of
        from edgepeft.training.exporting.bundle import export_bundle

    backbone, out, templates = options["backbone"], options["out"], options["template"] or []
    deltas = [*(options["delta"] or []), *(options["more"] or [])]
    kinds = {name: options[name] for name in ("weights", "delta_weights")}
    verified = options["verify_data"]
    columns = columns_of(verified, *(options[f"{name}_column"] for name in ("text", "pair", "label")))
    promise = promise_of(options["coverage"], options["risk"])
    elsewhere = [name for name in _LIBRARIES if options[name] is not None]
    if elsewhere:
        stored = (kinds["weights"], kinds["delta_weights"]) != ("fp32", "fp32")
        if (
            out
            or len(deltas) != 1
            or verified
            or options["trainable"]
            or templates
            or stored
            or promise
            or elsewhere[1:]
        ):
            raise _no_bundle()
        (to,) = elsewhere
        _LIBRARIES[to](backbone, deltas[0], options[to], options["force"])
        return Elsewhere(to, Path(options[to]))
    if out is None:
        raise UsageError("give --out, the bundle's folder, or --to-peft or --to-adapterhub, a folder for these.")
    if not deltas and not templates:
        raise UsageError("give --delta, a folder that `edgepeft train` wrote, or --template, a method to start from.")
    note_trainable(options["trainable"])
    _say_costs(options["profile"], kinds["weights"], kinds["delta_weights"])
    more = {"templates": templates, "data": verified, "columns": columns, "force": options["force"], **kinds}
    more |= {"promise": promise}
    with stages(1 + len(deltas) + len(templates)) as stage:
        return export_bundle(backbone, deltas, out, stage=stage, **more)


def _no_bundle() -> UsageError:
    return UsageError(
        "--to-peft and --to-adapterhub write one delta for these, no bundle: with --backbone, one --delta and --force."
    )


def _show(manifest: Manifest) -> None:
    for name, entry in manifest.tasks.items():
        assert entry.verification is not None
        own, verified = entry.private_bytes, _verified(entry.verification, entry.task_kind.compared)
        messages().print(
            f"{name}: {entry.method}, {entry.n_bytes:,} bytes, {verified}"
            + (f"; while open it holds {own / 1e6:,.2f} MB of backbone tensors of its own" if own else "")
            + _shared(entry.shared_layers)
        )
    for name, made in manifest.templates.items():
        messages().print(f"{name}: a template of {made.method}; on the board: edgepeft tune --template {name}")


def _say_costs(name: str | None, weights: str, delta_weights: str) -> None:
    """What the asked kinds of weights cost on the device, or on this host where it is the device."""
    from edgepeft.device import arithmetic
    from edgepeft.device.profiles import load_profile

    processor = arithmetic.of_host() if name is None else arithmetic.of_profile(load_profile(name))
    for cost in arithmetic.missing_arithmetic(processor, int8=weights == "int8", fp16=delta_weights == "fp16"):
        messages().print(f"note: {cost}", markup=False)


def _to_peft(backbone: str, delta: Path, folder: Path, force: bool) -> None:
    from edgepeft.backbones.source import open_backbone
    from edgepeft.bundle.delta import Delta
    from edgepeft.training.interop.peft import write_peft

    source = open_backbone(backbone)
    loaded = Delta.load(delta, source)
    write_peft(loaded, source, folder, force=force)
    kind = loaded.card.task_kind
    problem = f" and problem_type={kind.problem_type}" if kind.problem_type else ""
    of = f"AutoModel{kind.model} of {source.source} with num_labels={loaded.card.n_outputs}{problem}"
    if loaded.trie is not None:
        of = f"model of {source.source} for conditional generation, which writes {', '.join(loaded.card.labels or ())}"
    messages().print(f"{loaded.card.task}: for peft's PeftModel.from_pretrained, over transformers' {of}", markup=False)


def _to_adapterhub(backbone: str, delta: Path, folder: Path, force: bool) -> None:
    from edgepeft.backbones.source import open_backbone
    from edgepeft.bundle.delta import Delta
    from edgepeft.training.interop._hub_write import write_adapterhub

    source = open_backbone(backbone)
    loaded = Delta.load(delta, source)
    model = write_adapterhub(loaded, source, folder, force=force)
    messages().print(
        f"{loaded.card.task}: for adapters' load_adapter(FOLDER, use_safetensors=True) of a {model} of {source.source}",
        markup=False,
    )


_LIBRARIES = {"to_peft": _to_peft, "to_adapterhub": _to_adapterhub}


def _shared(layers: int) -> str:
    if layers == 0:
        return "; it changes the first layer or what lies below, so that tasks on one input share no layer with it"
    return f"; tasks on one input run the lowest {layers} layer{'s' * (layers > 1)} once with it"


def _verified(result: Verification, compared: str) -> str:
    parity = f"largest logit difference to PyTorch {result.max_abs_difference:.1e} on {result.rows} rows"
    if result.tolerance is not None:
        return parity
    on = result.data or result
    decided = on.rows - on.undecided
    parts = [parity, f"{round((1 - on.agreement) * decided)} of {decided} {compared} changed"]
    if result.data is not None and result.data.metric is not None:
        parts.append(f"{result.data.metric} {result.data.onnxruntime:.4f}, PyTorch's {result.data.pytorch:.4f}")
    return "; ".join(parts)
