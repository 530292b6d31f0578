"""What a run of ``edgepeft train`` is asked for, checked before anything is loaded; then every default filled in."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgepeft.backbones.pooling import Pooling
from edgepeft.backbones.source import Backbone
from edgepeft.bundle.delta import MAX_LENGTH
from edgepeft.common.errors import UsageError
from edgepeft.common.resources import json_at
from edgepeft.data.columns import Columns
from edgepeft.data.parts import PARTS, TaskData, load_data, rows_or_share
from edgepeft.data.readers import source_of
from edgepeft.data.text_template import TextTemplate, text_template
from edgepeft.data.training_loop.engine import MEAN_HEAD_RATE
from edgepeft.methods.base import Method, method_named
from edgepeft.options.verbs import METHOD, TrainRequest, TrainSettings
from edgepeft.runtime.decoding import schema_text
from edgepeft.tasks._reading import WINDOWS
from edgepeft.tasks.base import TaskType, requested_kind
from edgepeft.training.devices import device_of


@dataclass(frozen=True)
class ResolvedRequest:
    """A request that was checked, with its method, its text template and what that says of the run."""

    request: TrainRequest
    method: Method
    template: TextTemplate
    kind: str | None  # of task, where something says it

    def rows(self) -> TaskData:
        """Read the rows, in parts."""
        asked, template = self.request, self.template
        held_out = rows_or_share("--eval", asked.eval), rows_or_share("--test", asked.test)
        columns, schema = Columns.of(asked), asked.json_schema
        if schema is not None and not isinstance(schema, Mapping):
            try:
                schema = json_at(Path(schema))
            except OSError as error:
                raise UsageError(f"--json-schema {schema} cannot be read ({error.strerror}).") from None
            except ValueError as error:
                raise UsageError(f"--json-schema {schema} is no JSON ({error}).") from None
        if asked.json_schema is not None:
            schema_text(schema)
        data = load_data(
            source_of(asked.data),
            *held_out,
            template.columns(columns),
            kind=self.kind,
            regression=asked.regression,
            few_shot=asked.few_shot,
            seed=asked.seed,
            labels=template.format.names if template.format is not None and template.format.step else None,
            skip_bad=asked.skip_bad,
        )
        return replace(template.applied(data, columns.names[2]), json_schema=schema and dict(schema))


def resolve_request(request: TrainRequest) -> ResolvedRequest:
    """Look up a request's names and check its numbers; no file is read."""
    method = method_named(request.method or METHOD).from_settings(request.set)
    template = text_template(
        format=request.format,
        source=request.source,
        target=request.target,
        kind="regression" if request.regression else request.kind,
        fields=request.field,
        adapters=method.places_adapters,
    )
    said_kind = template.kind(request.kind)
    kind = requested_kind(said_kind, regression=request.regression, writes=template.target is not None)
    found = template.format
    said = {} if found is None else {"metric": found.metric, "max_length": found.max_length}
    said = {name: value for name, value in said.items() if getattr(request, name) is None}
    if request.balanced:
        kind.require_classes()
    if request.json_schema is not None and not kind.writes:
        raise UsageError(f"--json-schema is of text that is written, and {kind.title} writes none; leave it out.")
    device_of(request.device)
    return ResolvedRequest(request.model_copy(update={**said, "kind": kind.name}), method, template, said_kind)


def with_data_defaults(
    backbone: Backbone, method: Method, data: TaskData, options: TrainSettings
) -> tuple[TaskData, TrainSettings]:
    """Fill in every default of rows and options, with those that depend on the rows."""
    longest_target = 0  # tokens of the longest text to write, its end included
    if data.task_kind.writes:
        encoder = backbone.encoder()
        written = (row.label or "" for part in PARTS for row in getattr(data, part))
        longest_target = 1 + max(len(encoder.plain_ids(text)) for text in written)
    options = with_defaults(options, backbone, method, data.task_kind, longest_target)
    return replace(data, stride=options.stride), options


def with_defaults(
    options: TrainSettings, backbone: Backbone, method: Method, kind: TaskType, longest_target: int = MAX_LENGTH
) -> TrainSettings:
    """Fill in every default of the options for this backbone, this method and this kind of task."""
    named = requested_kind(options.kind, regression=options.regression).name
    if (options.kind or options.regression) and named != kind.name:
        raise UsageError(f"--kind {named} is asked for, and the data is of {kind.title} (kind {kind.name}).")
    if kind.head is not None and options.head not in (None, kind.head):
        raise UsageError(f"{kind.title} needs the head {kind.head!r}, and --head {options.head} is another.")
    if options.balanced:
        kind.require_classes()
    if not kind.writes and options.max_target_length is not None:
        raise UsageError("--max-target-length is of text that is written, and here none is: --target, or --format.")
    method.sites(backbone.architecture)  # a prompt that leaves no room is named by its own length
    prompt = method.prompt_length(backbone.architecture)
    longest = backbone.architecture.max_length - prompt
    if options.max_length is not None and options.max_length > longest:
        rest = f" beside a prompt of {prompt}" if prompt else ""
        raise UsageError(
            f"--max-length {options.max_length}: {backbone.source} has positions for {longest} tokens{rest}."
        )
    rate = options.lr or method.learning_rate
    # What a head on a mean needs depends on the scale of that mean and hardly on the delta. Measured on MiniLM,
    # 600 rows, one epoch, test accuracy: BBC, houlsby at 3e-4, heads at 3e-4 / 6e-3 / 2e-2: 60.3 / 93.0 / 94.2 %;
    # SMS, pfeiffer at 1e-4, 2e-3 / 2e-2: 87.7 (the majority) / 90.2 %; full at 2e-5, 4e-4 / 2e-2: 87.7 / 90.1 %.
    # Heads on the first token follow the papers, which have one rate for all.
    head_rate = MEAN_HEAD_RATE if backbone.pooling is Pooling.MEAN else rate
    of_target = (options.max_target_length or min(MAX_LENGTH, longest_target)) if kind.writes else None
    shared = (of_target or 0) if backbone.architecture.decoder_only else 0  # positions of a text that goes on
    of_text = options.max_length or min(MAX_LENGTH, longest - shared)
    if of_text + shared > longest or of_text < 1:
        raise UsageError(
            f"{longest - shared} of the {longest} positions of {backbone.source} are left to read with, beside "
            f"{shared} tokens that are written; lower --max-length or --max-target-length."
        )
    long = kind.resolve_long(options.long, options.stride)
    found = {
        "max_length": of_text,
        "long": long,
        "stride": _window_overlap(backbone, kind, of_text, options.stride) if long == WINDOWS else None,
        "lr": rate,
        "head_lr": options.head_lr or head_rate,
        "kind": kind.name,
        "metric": kind.metric_or_default(options.metric),
        "head": options.head or kind.head or backbone.head,
        "max_target_length": of_target,
    }
    return options.model_copy(update=found)


def run_identity(backbone: Backbone, method: Method, data: TaskData, options: TrainSettings) -> dict[str, Any]:
    """Return as plain values what a run must have in common with the one that it resumes."""
    trained = {"backbone": backbone.sha256, "method": method.name, "hyperparameters": method.settings()}
    return {**trained, "data": data.sha256, **options.plain()}


def _window_overlap(backbone: Backbone, kind: TaskType, max_length: int, asked: int | None) -> int | None:
    """Return how many tokens two windows share; None for the usual number of a passage's."""
    room = backbone.encoder().room(max_length, pairs=kind.passages)
    stride = kind.overlap(max_length) if asked is None else asked
    if stride >= room or not stride:
        beside = f"--max-length {max_length}: a window has room for {max(0, room)} tokens of a text beside special ones"
        if asked is not None and room > 1:
            raise UsageError(f"--stride {asked} must be less than what a window reads; {beside}.")
        raise UsageError(f"{beside}, and must read more than it shares with the next; give a greater --max-length.")
    return asked if kind.passages else stride
