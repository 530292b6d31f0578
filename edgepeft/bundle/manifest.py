"""``edgepeft.json``: what a bundle holds, checked when it is read.

Paths are never taken from the manifest: a task's files follow from its name, which cannot leave the folder.  What may
lie there is regular files of bounded sizes, and links that stay in it; this is looked at before anything is opened: a
FIFO keeps its reader waiting, a device has no end, and a file that is larger than its kind can be would be read whole.

The README.md beside it, a model card with the Hub's front matter, is written from the manifest alone.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from edgepeft.backbones.emit import BUNDLE_MANIFEST, WEIGHTS_FILES
from edgepeft.backbones.pooling import READS, HeadReads, Pooling
from edgepeft.common.atomic import write_json
from edgepeft.common.errors import BundleError, UsageError, look_up
from edgepeft.common.messages import markdown_cell, mistakes_text
from edgepeft.common.resources import bytes_at
from edgepeft.common.task_name import WEIGHTS, check_task_names
from edgepeft.tasks.base import TaskType, kind_from_card

MANIFEST_FILE = BUNDLE_MANIFEST
_MIB = 1 << 20
_TEXT_BYTES = 16 * _MIB  # of a manifest with ten thousand tasks; configs and cards are kilobytes
_TOKENIZER_BYTES = 128 * _MIB  # the largest vocabularies of today take 35 MB
_CHECK_BYTES = 64 * _MIB  # of 64 rows' token ids and logits
_GRAPH_BYTES = 64 * _MIB  # of a graph without weights: a thousand layers
# A delta replaces each float32 weight at most once; weights of 4 bits and their scales take 5 of its 32 bits.
_OF_WEIGHTS = 8


WeightsDtype = Literal["fp32", "int8", "int4"]
DeltaDtype = Literal["fp32", "fp16"]
CheckReference = Literal["pytorch", "training graph"]
FileHash = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]

_NAME = "[A-Za-z0-9_-][A-Za-z0-9._-]*"
FileName = Annotated[str, Field(pattern=rf"^{_NAME}(/{_NAME})*$")]  # in the folder, or in one in it


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")  # a later minor version may add keys


class Hashes(_Model):
    """SHA-256 of the backbone's two files."""

    graph: FileHash
    weights: FileHash


class TextHashes(_Model):
    """SHA-256 of the two graphs that write text."""

    encoder: FileHash
    decoder: FileHash


class BackboneEntry(_Model):
    """The backbone and its files."""

    family: str
    model_type: str
    source: str
    sha256: Hashes
    weights_dtype: WeightsDtype = "fp32"
    checkpoint_sha256: FileHash | None = None  # of the float32 checkpoint that smaller weights were made of
    sites: dict[str, str]  # every site, and what stands around it -> a value of ``backbone.onnx`` and ``text``'s graphs
    text: TextHashes | None = None  # none without a decoder, or where the bundle is older than text that is written

    @property
    def identity(self) -> str:
        """SHA-256 of the float32 checkpoint, by which a delta names its backbone."""
        return self.checkpoint_sha256 or self.sha256.weights

    @property
    def weights_file(self) -> str:
        """The file that ``sha256.weights`` is of."""
        return WEIGHTS_FILES[self.weights_dtype]


class OnData(_Model):
    """ONNX Runtime against PyTorch on every row of a data file; ``metric`` where its labels are the task's."""

    rows: int
    agreement: float
    undecided: int = 0
    metric: str | None = None
    pytorch: float | None = None
    onnxruntime: float | None = None


class OnText(_Model):
    """ONNX Runtime against PyTorch on the texts that PyTorch generates greedily, up to their ends."""

    tokens: int
    kl: float  # Kullback-Leibler divergence from PyTorch's distribution, nats a token
    perplexity: float  # of these texts
    reference_perplexity: float  # PyTorch's own
    agreement: float  # share of tokens that greedy decoding would write too

    @property
    def description(self) -> str:
        """In a sentence's part."""
        return (
            f"{self.kl:.2g} nats a token (Kullback-Leibler), perplexity {self.perplexity:.4g} beside "
            f"{self.reference_perplexity:.4g}, {self.agreement:.1%} of {self.tokens} greedy tokens equal"
        )


class Verification(_Model):
    """ONNX Runtime against PyTorch on the task's check file.

    What was tuned on a board has no PyTorch to compare with: there the reference is what a training step computes
    in ONNX Runtime, or of older versions PyTorch's own trace, padded and unpacked.
    """

    rows: int
    max_abs_difference: float
    tolerance: float | None  # of that difference; None where decisions count and not logits, as with 8-bit weights
    changed_tolerance: float = 0.0  # largest share of decided rows that may change
    agreement: float  # share of rows with PyTorch's decision, of those where its margin decides
    reference: CheckReference = "pytorch"  # whose logits the check file holds
    undecided: int = 0  # rows whose two best logits PyTorch holds closer than twice the tolerance
    isa: str = ""
    onnxruntime: str = ""
    data: OnData | None = None
    text: OnText | None = None
    kl_tolerance: float | None = None  # of text.kl; None where decisions or logits are held to a tolerance


class TaskCard(_Model):
    """What a delta's card and a manifest's entry say of a task alike."""

    method: str
    hyperparameters: dict[str, Any] = {}
    kind: str | None = None  # None in what is older than the names of kinds
    labels: tuple[str, ...] | None  # None where the kind of task has none
    chosen: dict[str, Any] = {}  # on the evaluation rows, such as thresholds
    pairs: bool = False
    level: Literal["sentence"] = "sentence"
    head: str
    head_reads: HeadReads
    max_length: int = Field(gt=0)
    source: str | None = None  # the pattern that a row's columns fill in, where the task is posed as text
    target: str | None = None  # the pattern of text that is written freely
    targets: tuple[str, ...] | None = None  # what is written of each label; None its name
    step: float | None = Field(default=None, gt=0)  # between labels that are numbers
    max_target_length: int | None = None  # tokens of text that is written freely, in training
    json_schema: dict[str, Any] | None = None  # what such a text keeps to
    prompt_length: int = Field(default=0, ge=0)
    metrics: dict[str, Any] = {}
    training: dict[str, Any] = {}

    @property
    def pooling(self) -> Pooling:
        """The pooled value that the head reads."""
        return READS[self.head_reads]

    @property
    def writes(self) -> bool:
        """Whether the graphs that write text run."""
        return self.head_reads == "text"

    @property
    def scores_words(self) -> bool:
        """Whether these graphs score labels, as words behind the prompt, and no text is written."""
        return self.writes and not self.task_kind.writes

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """As pydantic's; the kind of task is that of the copy."""
        copied = super().model_copy(update=update, deep=deep)
        copied.__dict__.pop("task_kind", None)
        return copied

    @cached_property
    def task_kind(self) -> TaskType:
        """The kind of task, with these labels and what was chosen."""
        return kind_from_card(self.kind, self.labels, self.head_reads, step=self.step, chosen=self.chosen)

    @property
    def n_outputs(self) -> int:
        """Logits of a row; a text has others."""
        return self.task_kind.n_outputs

    @model_validator(mode="after")
    def _is_of_a_kind(self) -> Self:
        _ = self.task_kind
        return self


class TaskEntry(TaskCard):
    """One task: what its delta is, and how it was verified."""

    regression: bool = False  # as versions that know no kinds read
    trainable_parameters: int = Field(ge=0)
    n_bytes: int = Field(ge=0)
    weights_dtype: DeltaDtype = "fp32"  # as stored; they are computed with in float32
    private_bytes: int = Field(default=0, ge=0)  # of backbone tensors that the loaded task replaces
    shared_layers: int = Field(default=0, ge=0)  # lowest layers that it leaves as they are: several tasks run them once
    sha256: FileHash
    check_sha256: FileHash
    weights_sha256: FileHash | None = None  # of the file beside its graph, where it has more than a graph can hold
    verification: Verification | None = None
    train_sha256: FileHash | None = None  # of a file that versions before this one read, where it is there
    previous: TaskEntry | None = None  # what `edgepeft rollback` goes back to

    @property
    def untunable(self) -> str:
        """Why a board cannot tune it; empty where it can."""
        if self.scores_words:
            return "a board's training graph does not score label words"
        return "" if self.weights_sha256 is None else "its tensors are more than a graph can hold"

    def require_tunable(self, task: str) -> None:
        """See that a board can tune the task, which has that name."""
        if self.untunable:
            raise UsageError(
                f"task {task} ({self.method}) cannot be tuned here: {self.untunable}. Train it anew with: "
                f"edgepeft train{'' if self.scores_words else '; or tune a task of fewer parameters, as by lora'}."
            )


class TemplateEntry(_Model):
    """An untrained delta; its head takes any number of labels."""

    method: str
    hyperparameters: dict[str, Any] = {}
    regression: bool = False
    head: str
    max_length: int = Field(gt=0)
    prompt_length: int = Field(default=0, ge=0)
    sha256: FileHash
    check_sha256: FileHash
    train_sha256: FileHash | None = None  # of a file that versions before this one read


class Manifest(_Model):
    """The whole of ``edgepeft.json``."""

    format: Literal["edgepeft.bundle/1"] = "edgepeft.bundle/1"
    backbone: BackboneEntry
    tasks: dict[str, TaskEntry] = {}
    templates: dict[str, TemplateEntry] = {}
    files: dict[FileName, FileHash] = {}  # of config and tokenizer; older bundles have none
    versions: dict[str, str] = {}

    def task(self, name: str) -> TaskEntry:
        """The task of that name."""
        return look_up("task of this bundle", name, self.tasks)

    def template(self, name: str) -> TemplateEntry:
        """The template of that name."""
        return look_up("template of this bundle", name, self.templates)

    def write(self, folder: Path) -> None:
        """Replace the folder's manifest atomically."""
        write_json(folder / MANIFEST_FILE, self.model_dump(mode="json"))

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read and check a folder's manifest."""
        path = folder / MANIFEST_FILE
        try:
            if not path.is_file():
                other = "is a file, and a bundle is a folder" if folder.exists() else "is not there"
                lack = f"has no {MANIFEST_FILE}" if folder.is_dir() else other
                raise UsageError(f"{folder} is not a bundle: it {lack}. Make one with: edgepeft export.")
            check_folder(folder)
            content = bytes_at(path)
        except OSError as error:
            raise BundleError(
                f"{path} cannot be read ({error.strerror}); give a whole bundle that may be read (chmod -R a+rX)."
            ) from error
        try:
            manifest = cls.model_validate_json(content)
            check_task_names(manifest.tasks)
            check_task_names(manifest.templates)
        except ValidationError as error:
            raise BundleError(f"{path} is not a manifest that this version knows: {mistakes_text(error)}.") from error
        except UsageError as error:
            raise BundleError(f"{path}: {error}") from error
        return manifest


def check_folder(folder: Path) -> None:
    """See that all of a bundle's folder can be read without surprise; nothing is opened."""
    inside = folder.resolve()
    weights_bytes = sum(path.stat().st_size for name in WEIGHTS_FILES.values() if (path := inside / name).is_file())
    for path in (Path(parent, name) for parent, folders, files in os.walk(inside) for name in (*folders, *files)):
        shown = folder / path.relative_to(inside)
        if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(inside):
            raise BundleError(
                f"{shown} is a link that leads out of the bundle. A bundle holds its own files; copy it with its links "
                "followed: cp -rL."
            )
        try:
            _check(path.stat(), shown, _most_bytes(path.name, weights_bytes))
        except OSError as error:
            # Removed meanwhile, or a link to nothing or to itself: whoever reads it gets this error.
            if error.errno not in (errno.ENOENT, errno.ELOOP):
                raise


def check_file(path: Path, weights: Path) -> None:
    """See that a task's file from elsewhere is a regular one of a possible size, for a backbone of ``weights``."""
    _check(path.stat(), path, _most_bytes(path.name, weights.stat().st_size))


def _check(status: os.stat_result, shown: Path, most: int | None) -> None:
    if stat.S_ISDIR(status.st_mode):
        return
    if not stat.S_ISREG(status.st_mode):
        raise BundleError(f"{shown} is no regular file. Do not use what it came with.")
    if most is not None and status.st_size > most:
        raise BundleError(
            f"{shown} has {status.st_size:,} bytes, and such a file has at most {most:,}. Do not use what it came with."
        )


def _most_bytes(name: str, weights_bytes: int) -> int | None:
    """How large a file of that name can be; None for what is not read whole."""
    if name.endswith(".check.safetensors"):
        return _CHECK_BYTES
    if name.endswith((WEIGHTS, ".onnx")):
        return _GRAPH_BYTES + (0 if name == "backbone.onnx" else _OF_WEIGHTS * weights_bytes)
    if name == "tokenizer.json":
        return _TOKENIZER_BYTES
    return _TEXT_BYTES if name.endswith((".json", ".sig")) else None


def model_card(manifest: Manifest) -> str:
    """Markdown: what the bundle holds and how it is run."""
    hub_name = hub_name_of(manifest)
    what, first = hub_name or markdown_cell(manifest.backbone.model_type), next(iter(manifest.tasks), "TASK")
    made_with = ", ".join(markdown_cell(f"{name} {version}") for name, version in manifest.versions.items())
    lines = ["---", "library_name: edgepeft", "tags: [edgepeft, onnx, peft, text-classification]"]
    lines += [f"base_model: {hub_name}"] if hub_name else []
    lines += ["---", "", "# An edgepeft bundle", ""]
    lines += [f"One frozen backbone ({what}), {len(manifest.tasks)} task(s).", "", *task_table(manifest), ""]
    lines += ["```", f"edgepeft run . --task {first} 'some text'", "edgepeft verify .", "```", ""]
    return "\n".join([*lines, f"Made with {made_with}.", ""])


def hub_name_of(manifest: Manifest) -> str | None:
    """The backbone's name on the Hub, where its source is one."""
    source = manifest.backbone.source
    return source if re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", source, re.ASCII) else None


def task_table(manifest: Manifest) -> list[str]:
    """Markdown's lines: each task with its method, score and size."""
    lines = ["| task | method | kind | score | trained parameters | bytes | largest logit difference to PyTorch |"]
    lines.append("|---|---|---|---|---|---|---|")
    for name, entry in manifest.tasks.items():
        parity = "-" if entry.verification is None else f"{entry.verification.max_abs_difference:.1e}"
        if entry.verification is not None and entry.verification.reference != "pytorch":
            parity += f" (to its {entry.verification.reference})"
        told = (markdown_cell(entry.method), entry.task_kind.described, markdown_cell(stated_score(entry.metrics)))
        cells = (name, *told, f"{entry.trainable_parameters:,}", f"{entry.n_bytes:,}", parity)
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, "", "Scores are of test rows, which neither trained nor chose a checkpoint."]


def stated_score(metrics: Mapping[str, Any]) -> str:
    """The score on the test rows, beside it those before tuning and of the baselines; a dash where none is stated."""
    score, metric, others = metrics.get("test"), metrics.get("metric"), metrics.get("baselines")
    if not isinstance(score, (int, float)) or not isinstance(metric, str):
        return "-"
    beside = {"before": metrics.get("before")}
    for name, each in others.items() if isinstance(others, dict) else ():
        beside[name] = each.get("test") if isinstance(each, dict) else None
    from edgepeft.data.by_class import score_text

    known = [f"{name} {score_text(value)}" for name, value in beside.items() if isinstance(value, (int, float))]
    return f"{metric} {score_text(score)}" + (f" ({', '.join(known)})" if known else "")
