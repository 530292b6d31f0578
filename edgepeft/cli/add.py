"""Add tasks to a bundle; the backbone is untouched. Exported tasks and a page's need no PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from edgepeft.cli._options import BundleFolder, note_trainable
from edgepeft.cli._output import print_json
from edgepeft.common.errors import MissingPackage, UsageError
from edgepeft.common.progress import say, stages
from edgepeft.data.columns import verify_columns
from edgepeft.options import base

if TYPE_CHECKING:
    from edgepeft.bundle.manifest import Manifest

PANEL = "Deploy"


def command(
    bundle: BundleFolder,
    delta: Annotated[list[Path], Argument(help="Trained deltas, exported <task>.onnx, or a page's tuned tasks.")],
    verify_data: Annotated[Path | None, base.VERIFY_DATA] = None,
    text_column: base.TextColumn = None,
    pair_column: base.PairColumn = None,
    label_column: base.LabelColumn = None,
    backbone: Annotated[str | None, Option(help="The float32 checkpoint of a bundle of smaller weights.")] = None,
    delta_weights: base.DeltaWeights = "fp32",
    accept_error: base.AcceptError = False,
    trainable: base.Trainable = False,
    coverage: base.Coverage = None,
    risk: base.Risk = None,
    force: Annotated[bool, Option("--force", help="Replace tasks of the same name.")] = False,
    as_json: Annotated[bool, Option("--json", help="Print the manifest as JSON.")] = False,
) -> None:
    from edgepeft.backbones.source import open_backbone
    from edgepeft.tasks._conformal import guarantee_of

    note_trainable(trainable)
    guarantee = guarantee_of(coverage, risk)
    columns = verify_columns(verify_data, text_column, pair_column, label_column)
    tuned = [path for path in delta if path.suffix == ".safetensors"]  # browsers put a (1) before it
    exported = [path for path in delta if path.suffix == ".onnx"]
    if tuned and (guarantee or len(tuned) + len(exported) < len(delta)):
        raise UsageError(
            f"{tuned[0]} is of a page; add trained folders, and promises (--coverage, --risk), in a call of their own."
        )
    if not guarantee and len(tuned) + len(exported) == len(delta):
        manifest = _without_torch(bundle, exported, tuned, replace=force, accept_error=accept_error)
    else:
        try:
            from edgepeft.training.exporting.bundle import add_deltas
        except ImportError as error:
            raise MissingPackage(
                f"adding a trained folder needs PyTorch ({error.name}): pip install 'edgepeft[train]'. "
                "Without it, add an exported <task>.onnx."
            ) from error
        with stages(len(delta)) as stage:
            manifest = add_deltas(
                bundle,
                delta,
                replace=force,
                stage=stage,
                backbone=None if backbone is None else open_backbone(backbone),
                delta_weights=delta_weights,
                data=verify_data,
                columns=columns,
                guarantee=guarantee,
                accept_error=accept_error,
            )
    if as_json:
        print_json(manifest.model_dump(mode="json"))
    else:
        say(f"{bundle} now holds: {', '.join(manifest.tasks)}")


def _without_torch(
    folder: Path, exported: list[Path], tuned: list[Path], *, replace: bool, accept_error: bool
) -> Manifest:
    """Add delta graphs, and the tensors that a page tuned."""
    from edgepeft.bundle.bundle import Bundle
    from edgepeft.deploy.install import commit_tasks, prepare_exported, require_addable
    from edgepeft.tuning.from_page import prepare_tuned

    bundle = Bundle(folder)
    require_addable([path.stem for path in exported], bundle.manifest.tasks, replace=replace)
    prepared = [prepare_exported(bundle, path, accept_error=accept_error) for path in exported]
    prepared += [prepare_tuned(bundle, path, replace=replace) for path in tuned]
    return commit_tasks(bundle, prepared, replace=replace)
