"""``edgepeft.export``: a bundle, or another library's folder, as its options ask for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgepeft.backbones.source import Backbone, open_backbone
from edgepeft.bundle.delta import Delta
from edgepeft.bundle.manifest import Manifest
from edgepeft.common.errors import UsageError
from edgepeft.common.progress import messages, stages
from edgepeft.data.rows import verify_columns
from edgepeft.device.host import machine
from edgepeft.device.profiles import load_profile
from edgepeft.options.base import function_of, listed
from edgepeft.options.verbs import NO_BUNDLE, ExportOptions
from edgepeft.tasks._conformal import guarantee_of
from edgepeft.training.exporting.bundle import export_bundle
from edgepeft.training.interop._hub_write import write_adapterhub
from edgepeft.training.interop.peft import write_peft


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
    elsewhere = [library for library in _LIBRARIES if getattr(options, library) is not None]
    if elsewhere:
        stored = (options.weights or "fp32", options.delta_weights) != ("fp32", "fp32")
        more = (options.out, templates, guarantee, elsewhere[1:], options.trainable, options.verify_data is not None)
        if stored or any(more) or len(deltas) != 1:
            raise UsageError(NO_BUNDLE)
        (library,) = elsewhere
        folder, source = Path(getattr(options, library)), open_backbone(options.backbone)
        _LIBRARIES[library](Delta.load(Path(deltas[0]), source), source, folder, options.force)
        return ExportResult(folder)
    if options.out is None:
        raise UsageError("give --out, the bundle's folder, or --to-peft or --to-adapterhub, a folder for these.")
    if not deltas and not templates:
        raise UsageError("give --delta, a folder that `edgepeft train` wrote, or --template, a method to start from.")
    profile = options.profile
    processor = machine.processor_of_host() if profile is None else machine.processor_of_profile(load_profile(profile))
    with stages(1 + len(deltas) + len(templates)) as stage:
        manifest = export_bundle(
            options.backbone,
            deltas,
            options.out,
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
    for cost in machine.missing_arithmetic(processor, weights=manifest.backbone.weights_dtype, fp16=fp16):
        messages().print(f"note: {cost}", markup=False)
    return ExportResult(Path(options.out), manifest)


def _to_peft(loaded: Delta, source: Backbone, folder: Path, force: bool) -> None:
    write_peft(loaded, source, folder, force=force)
    kind = loaded.card.task_kind
    problem = f" and problem_type={kind.problem_type}" if kind.problem_type else ""
    of = f"AutoModel{kind.model} of {source.source} with num_labels={loaded.card.n_outputs}{problem}"
    if loaded.trie is not None:
        of = f"model of {source.source} for conditional generation, which writes {', '.join(loaded.card.labels or ())}"
    messages().print(f"{loaded.card.task}: for peft's PeftModel.from_pretrained, over transformers' {of}", markup=False)


def _to_adapterhub(loaded: Delta, source: Backbone, folder: Path, force: bool) -> None:
    model = write_adapterhub(loaded, source, folder, force=force)
    messages().print(
        f"{loaded.card.task}: for adapters' load_adapter(FOLDER, use_safetensors=True) of a {model} of {source.source}",
        markup=False,
    )


_LIBRARIES = {"to_peft": _to_peft, "to_adapterhub": _to_adapterhub}
