"""What an inspection is: it says which deltas it can look at, computes plain values, and draws them.

One inspection, one file of this package, found by its ``name``.  None asks for a method's name: what a
delta's modules are decides.  ``inspect_delta`` has every one that fits a delta look at it, on labelled rows, and writes
a folder with values and pictures: ``inspect.json``, schema ``edgepeft.inspect/1``, is described in docs/methods.md.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from matplotlib.figure import Figure
from rich.console import RenderableType
from torch import nn

from edgepeft.backbones.base import Architecture, Role
from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.source import Backbone
from edgepeft.bundle.delta import Delta
from edgepeft.common.atomic import new_folder, write_json
from edgepeft.common.errors import DataError, UsageError
from edgepeft.common.plotting import plot_style, save
from edgepeft.common.registry import classes_of
from edgepeft.data.batches import Encoded, encode
from edgepeft.data.columns import SENTENCES, Columns
from edgepeft.data.parts import split_rows
from edgepeft.data.rows import read_rows
from edgepeft.data.text_template import of_source
from edgepeft.methods.base import PerLayer, methods

Advance = Callable[[int], None]  # told the number of rows after each batch


@dataclass(frozen=True)
class InspectionTarget:
    """A delta in eval mode, the frozen model that it belongs to, and the rows to look at it with."""

    delta: Delta
    model: nn.Module
    rows: Encoded
    metric: str


class Inspection(ABC):
    """Base of all inspections; ``name`` is its key in ``inspect.json``, ``shows`` what one learns from it."""

    name: ClassVar[str]
    shows: ClassVar[str]

    @abstractmethod
    def why_not(self, delta: Delta) -> str | None:
        """Why this delta has nothing for it; None where it has."""

    @abstractmethod
    def passes(self, delta: Delta) -> int:
        """How many times it runs over the rows."""

    @abstractmethod
    def look(self, target: InspectionTarget, advance: Advance) -> dict[str, Any]:
        """What it measured, as plain values; ``advance`` is called for every pass over the rows."""

    @abstractmethod
    def draw(self, measured: Mapping[str, Any], task: str) -> dict[str, Figure]:
        """Pictures of what ``look`` returned, by the stem of their files."""

    @abstractmethod
    def table(self, measured: Mapping[str, Any]) -> RenderableType:
        """The same for a terminal, in short."""


INSPECTION_SCHEMA = "edgepeft.inspect/1"
DOCUMENT = "inspect.json"
LIMIT = 256  # rows; 12 layers have 78 spans, so all rows of a large file would take hours

WatchInspection = Callable[[str, int, int], None]  # told its name, and how many of how many rows it has run


@dataclass(frozen=True)
class Inspected:
    """What was written to ``inspect.json``, and the same in short for a terminal."""

    document: dict[str, Any]
    tables: tuple[RenderableType, ...]


def inspect_delta(
    folder: Path,
    backbone: Backbone,
    data: Path,
    out: Path,
    *,
    columns: Columns = SENTENCES,
    metric: str | None = None,
    limit: int = LIMIT,
    force: bool = False,
    watch: WatchInspection = lambda *_: None,
) -> Inspected:
    """Look at a delta with labelled rows; every fitting inspection writes what it measured, with pictures, to ``out``.

    ``metric``: None takes the one that the delta was trained by.  ``limit``: at most so many rows, in every label's
    proportion.  ``watch`` gets the inspection's name, and how many of how many rows it has run.
    """
    names = sorted(path.name for path in out.iterdir()) if out.is_dir() else []
    if names and DOCUMENT not in names:  # only what an earlier inspection wrote is ever replaced
        raise UsageError(f"{out} holds {names[0]}, which is no part of an inspection; choose another folder.")
    delta = Delta.load(folder, backbone)
    if (kind := delta.card.task_kind).writes:
        raise UsageError(f"{delta.card.task} writes text; what inspect measures is of labels and numbers.")
    fitting, skipped = _fitting(delta)
    metric = kind.metric_or_default(metric or delta.card.metrics.get("metric"))
    columns = of_source(columns, delta.card.source, delta.card.step)
    every = tuple(read_rows(data, labels=True, columns=kind.columns(columns), label_of=kind.label_text))
    if not kind.several_texts and (every[0].sentence2 is not None) != delta.card.pairs:
        kinds = ("pairs", "single texts") if delta.card.pairs else ("single texts", "pairs")
        raise DataError(
            f"{every[0].file}: task {delta.card.task} was trained on {kinds[0]}; these rows are {kinds[1]}."
        )
    every = (*kind.as_known(every),)
    for row in every:
        if (odd := kind.unknown_label(row)) is not None:
            raise DataError(f"{row.where}: task {delta.card.task} has no label {odd!r}. Known: {kind.listed}.")
    rows, _ = split_rows(every, limit, "inspect", strata=kind.strata(every))
    with new_folder(out, force=force) as new:  # entered first: a wrong folder is refused before the work
        pad = backbone.architecture.pad_token_id
        encoded = encode(rows, kind, backbone.encoder(), delta.card.max_length, pad)
        target = InspectionTarget(delta, load_model(backbone), encoded, metric)
        document = _about(delta, data, rows=len(rows), every=len(every), truncated=encoded.truncated)
        document |= {"metric": metric, "inspections": {}, "skipped": skipped, "pictures": []}
        for inspection in fitting:
            measured = inspection.look(target, _counter(inspection, target, watch))
            document["inspections"][inspection.name] = measured
            with plot_style():
                for stem, figure in inspection.draw(measured, delta.card.task).items():
                    document["pictures"] += save(figure, new, stem)
        write_json(new / DOCUMENT, document)
    return Inspected(document, tuple(i.table(document["inspections"][i.name]) for i in fitting))


def _fitting(delta: Delta) -> tuple[tuple[Inspection, ...], dict[str, str]]:
    kinds = classes_of("edgepeft.training.inspection", Inspection, "name")  # type: ignore[type-abstract]
    reasons = {inspection: inspection.why_not(delta) for inspection in (kinds[name]() for name in sorted(kinds))}
    fitting = tuple(inspection for inspection, why_not in reasons.items() if why_not is None)
    if not fitting:
        shown = "; ".join(f"{inspection.name}: {inspection.shows}" for inspection in reasons)
        known = ", ".join(name for name, method in sorted(methods().items()) if issubclass(method, PerLayer))
        raise UsageError(
            f"{delta.card.task} is a delta of {delta.card.method}, which has no module in a layer, so there is nothing "
            f"to look at. What inspect shows: {shown}. Methods with modules in layers: {known}. "
            f"As to sharing, {untouched_stages(delta).sentence(delta.architecture.n_layers)}."
        )
    return fitting, {inspection.name: why for inspection, why in reasons.items() if why is not None}


def _about(delta: Delta, data: Path, *, rows: int, every: int, truncated: int) -> dict[str, Any]:
    card, architecture = delta.card, delta.architecture
    shared = untouched_stages(delta)
    return {
        "schema": INSPECTION_SCHEMA,
        "task": card.task,
        "method": card.method,
        "hyperparameters": card.hyperparameters,
        "backbone": card.backbone.model_dump(mode="json"),
        "data": {
            "file": data.name,
            "rows": rows,
            "of": every,
            "sample": "all" if rows == every else "stratified by label" if card.task_kind.has_labels else "random",
            "max_length": card.max_length,
            "truncated": truncated,
        },
        "shareable": {
            "embeddings": shared.embeddings,
            "layers": shared.layers,
            "of": architecture.n_layers,
            "lowest_change": shared.lowest,
            "sentence": shared.sentence(architecture.n_layers),
        },
    }


def _counter(inspection: Inspection, target: InspectionTarget, watch: WatchInspection) -> Callable[[int], None]:
    done, total = 0, inspection.passes(target.delta) * len(target.rows.targets)

    def advance(n: int) -> None:
        nonlocal done
        done += n
        watch(inspection.name, done, total)

    watch(inspection.name, 0, total)
    return advance


class Untouched(NamedTuple):
    """What of a backbone a delta leaves as it is."""

    layers: int  # the lowest ones
    embeddings: bool
    lowest: str | None  # what the delta changes first, a site or a tensor; None where that follows the last layer

    def sentence(self, n_layers: int) -> str:
        if not self.embeddings:
            return f"nothing below the first layer can be shared with other tasks: the delta has its own {self.lowest}"
        why = "it changes no layer" if self.lowest is None else f"its first change is {self.lowest}"
        return f"the embeddings and {self.layers} of {n_layers} layers can be computed once for all tasks: {why}"


def untouched_stages(delta: Delta) -> Untouched:
    """How far up a delta leaves the backbone as it is: the embeddings (stage 0), then layer by layer."""
    architecture = delta.architecture
    own = delta.override_tensors if delta.generator is None else dict.fromkeys(delta.generator.names)
    stages = {name: _stage_of_tensor(architecture, name) for name in own}
    stages |= {site: _stage_of_site(architecture, site) for site in delta.site_modules}
    last = architecture.n_layers + 1
    lowest = min(stages, key=lambda name: stages[name], default=None)
    first = last if lowest is None else stages[lowest]
    return Untouched(max(first - 1, 0), first > 0, None if first == last else lowest)


def _stage_of_site(architecture: Architecture, name: str) -> int:
    """0 before the layers, 1 + layer within them, 1 + their number after them."""
    if architecture.site(name).layer is not None:  # which counts from 0 in each stack
        ends = [site.name for site in architecture.sites_of(Role.LAYER_OUTPUT)]
        return 1 + ends.index(f"{name.rpartition('.')[0]}.{Role.LAYER_OUTPUT}")
    if name in (Role.ATTENTION_BIAS, Role.DISTANCE_BIAS):  # which the first layer reads, past the embeddings
        return 1
    return 1 + architecture.n_layers if name.startswith(("pooled.", Role.STACK_OUTPUT)) else 0


def _stage_of_tensor(architecture: Architecture, name: str) -> int:
    ends = [f"{site.module}." for site in architecture.sites_of(Role.STACK_OUTPUT) if architecture.decoder is None]
    if name not in architecture.tensors or name.startswith(tuple(ends)):  # the pooler's, or the norm's after the layers
        return 1 + architecture.n_layers
    paths = (architecture.layer_path(layer) for layer in range(architecture.n_layers))
    return next((1 + layer for layer, path in enumerate(paths) if name.startswith(path)), 0)
