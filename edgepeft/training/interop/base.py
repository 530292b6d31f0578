"""Base of importers: one recognises its library's folders, turns a checkpoint into a delta, and writes one for it.

By its config a checkpoint becomes one of our methods, with the tensors that it must hold and their conversion.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from edgepeft import __version__
from edgepeft.backbones.checkpoint import check_header
from edgepeft.backbones.config import read_config
from edgepeft.backbones.convert import read_pickled
from edgepeft.backbones.pooling import HeadReads
from edgepeft.backbones.source import Backbone
from edgepeft.bundle.delta import Delta, new_delta
from edgepeft.common.errors import BundleError, UsageError
from edgepeft.common.messages import mistakes_text
from edgepeft.common.registry import classes_of
from edgepeft.heads.base import head_named
from edgepeft.methods.base import Method
from edgepeft.tasks.base import TaskType, kind_named, kinds
from edgepeft.training.interop.classifier import SEQUENCES

Config = Mapping[str, Any]
StateDict = Mapping[str, Tensor]


@dataclass(frozen=True)
class ConversionPlan:
    """``shapes`` by their names; ``convert`` gives our tensors by our names.

    Where it gives theirs as they are, ``names`` are their names with ours; one tensor may have several on both sides.
    ``joined`` are those of theirs that are several of ours, side by side.
    """

    method: Method
    shapes: Mapping[str, tuple[int, ...]]
    convert: Callable[[StateDict], dict[str, Tensor]]
    names: tuple[tuple[str, str], ...] = ()
    joined: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def back(self, ours: StateDict) -> dict[str, Tensor]:
        """Theirs, as far as ours are there and held as they are."""
        found = {theirs: ours[own] for theirs, own in self.names if own in ours}
        for theirs, parts in self.joined.items():
            if ours.keys() >= set(parts):
                found[theirs] = torch.cat([ours[own] for own in parts], dim=1).reshape(self.shapes[theirs])
        return found

    @classmethod
    def renaming(cls, method: Method, names: Mapping[str, tuple[str, tuple[int, ...]]]) -> ConversionPlan:
        """Tensors that differ in their ``names`` alone: theirs -> (ours, its shape)."""

        def convert(state: StateDict) -> dict[str, Tensor]:
            return {ours: state[theirs] for theirs, (ours, _) in names.items()}

        pairs = tuple((theirs, ours) for theirs, (ours, _) in names.items())
        return cls(method, {theirs: shape for theirs, (_, shape) in names.items()}, convert, pairs)


class ForeignFile(BaseModel):
    """What another library's file says, as far as it is read."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    @classmethod
    def of(cls, document: Mapping[str, Any], path: Path) -> Self:
        try:
            return cls.model_validate(document)
        except ValidationError as error:
            raise BundleError(f"{path}: {mistakes_text(error)}.") from error


class ForeignConfig(BaseModel):
    """The config of a method in another library; a ``Literal`` field has the values that a delta can represent."""

    model_config = ConfigDict(frozen=True, extra="allow")
    ignored: ClassVar[frozenset[str]]  # fields that say nothing of a trained checkpoint

    @classmethod
    def read(cls, document: Mapping[str, Any], path: Path) -> Self:
        try:
            config = cls.model_validate(document)
            extra = (config.model_extra or {}).items()
            odd = [name for name, fine in config.checks().items() if not fine]
            odd += [name for name, value in extra if value and name not in cls.ignored]
        except ValidationError as error:
            if not {each["type"] for each in error.errors()} <= {"literal_error", "none_required"}:
                raise BundleError(f"{path}: {mistakes_text(error)}.") from error
            odd = [str(each["loc"][0]) for each in error.errors()]
        if odd:
            values = {name: known.default for name, known in cls.model_fields.items()} | dict(document)
            said = ", ".join(f"{name} = {values[name]!r}" for name in dict.fromkeys(odd))
            raise BundleError(
                f"{path}: no delta can represent {said}. Train it without, or merge it into its model there and use "
                "that as the backbone."
            )
        return config

    def checks(self) -> dict[str, bool]:
        """Field -> whether a delta can represent its value, where that depends on more."""
        return {}


def left_out(layers: Iterable[int]) -> dict[str, Any]:
    """Layers that get no module, as the settings that our methods have for them."""
    left = sorted(set(layers))
    skipped = next((i for i, layer in enumerate(left) if i != layer), len(left))
    return {"skip_layers": skipped, "leave_out": tuple(left[skipped:])}


def check_tensors(state: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], folder: Path) -> None:
    """Check that exactly these tensors are there, in these shapes."""
    problems = {
        "missing": [name for name in shapes if name not in state],
        "not known": [name for name in state if name not in shapes],
        "of another shape": [
            f"{name} {list(state[name].shape)} instead of {list(shape)}"
            for name, shape in shapes.items()
            if name in state and tuple(state[name].shape) != shape
        ],
    }
    differences = [f"{kind}: {', '.join(names)}" for kind, names in problems.items() if names]
    if differences:
        raise BundleError(
            f"{folder} does not hold the tensors that its config and this backbone ask for; {'; '.join(differences)}. "
            "Use the backbone and the config that it was trained with."
        )


def read_state_dict(folder: Path, *names: str) -> dict[str, Tensor]:
    """The tensors, float32, of the first of these files that is there; of a pickle no code runs."""
    path = next((folder / name for name in names if (folder / name).is_file()), None)
    if path is None:
        raise BundleError(f"{folder} has neither {' nor '.join(names)}; it is not complete: fetch it again.")
    if path.suffix == ".safetensors":
        check_header(path, path)
        try:
            state = load_file(path)
        except (SafetensorError, OSError) as error:
            raise BundleError(f"{path} is damaged ({error}); fetch it again.") from error
    else:
        state = read_pickled(path)
    odd = [name for name, tensor in state.items() if not tensor.is_floating_point()]
    if odd:
        raise BundleError(f"{path} holds what is no floating-point tensor: {', '.join(odd)}. Save it without these.")
    made = {id(tensor): tensor for tensor in state.values()}  # those that are one stay one
    made = {key: tensor.float().contiguous() for key, tensor in made.items()}
    return {name: made[id(tensor)] for name, tensor in state.items()}


class ImportedHead(NamedTuple):
    """Our kind of head, its tensors by our names, and the labels in order where the checkpoint names them.

    ``outputs`` is None where a decoder scores labels, of which a checkpoint says nothing.  ``model`` is how the name of
    transformers' class for it ends, ``problem`` its ``problem_type`` where the checkpoint says it.
    """

    kind: str
    outputs: int | None
    values: Mapping[str, Tensor]
    labels: tuple[str, ...] | None = None
    model: str = SEQUENCES
    problem: str | None = None
    reads: HeadReads | None = None  # what pools the states of a model without a head; None: as the backbone's own does

    def fits(self, kind: type[TaskType]) -> bool:
        """Whether tasks of that kind have such heads."""
        if kind.model != self.model or kind.writes or self.problem not in (None, kind.problem_type):
            return False
        if not kind.has_labels and not kind.gives_vectors:
            return kind().n_outputs == self.outputs
        return kind.gives_vectors or self.outputs != 1 or not kind.one_label  # of two or more, one is right


@dataclass(frozen=True)
class ImportRequest:
    """What such checkpoints do not say: the task's name, its labels, how long its texts may be, its kind by name."""

    task: str
    labels: tuple[str, ...] | None = None
    max_length: int | None = None  # None: as long as the backbone takes
    kind: str | None = None  # None: as the checkpoint or a config has it, or the usual one of such a head

    @property
    def model(self) -> str | None:
        """How the name of transformers' class ends for the kind that is asked for."""
        return None if self.kind is None else kind_named(self.kind).model

    def delta(
        self,
        backbone: Backbone,
        method: Method,
        head: ImportedHead,
        values: Mapping[str, Tensor],
        *,
        folder: Path,
        library: str,
        versions: Mapping[str, str],
        training: Mapping[str, Any],
    ) -> Delta:
        """A delta of ``values``, by our names, and the head; LayerNorms that were not tuned stay the backbone's.

        A head of a text reads the first position, as transformers' does, be it a prompt's; a decoder's the last one.
        Where it is from goes into the card: ``library``, ``versions`` and what is known of its ``training``.  What the
        checkpoint does not say of its labels is read from a config beside it, or from the backbone's.
        """
        beside = folder / "config.json"
        configs: list[Config] = [*([read_config(beside)] if beside.is_file() else ()), backbone.config]
        kind = self._kind_of(head, configs, folder)
        labels = self._labels_for(head, kind, configs, backbone)
        longest = self._length_for(backbone, method.positions(backbone.architecture))
        of_task: dict[str, Any] = {"kind": kind and kind.name, "pairs": kind is not None and kind.passages}
        delta = new_delta(backbone, method, self.task, labels, head=head.kind, max_length=longest, **of_task)
        own, values = delta.tensors(), {**values, **head.values}
        kept = {name: tensor.detach() for name, tensor in own.items() if name.startswith("override/")}
        # What is shared stands in the delta once, under its first name; nothing else may be without a place there.
        placed = [values[name] for name in own if name in values]
        lost = {name for name in values if name not in own and not any(torch.equal(values[name], t) for t in placed)}
        assert not lost, f"{method.name} has no place for {', '.join(sorted(lost))}"
        delta.read({**kept, **{name: values[name] for name in own if name in values}}, str(folder))
        origin: dict[str, Any] = {"versions": {"edgepeft": __version__, **versions}}
        origin["training"] = {"imported_from": library, "folder": folder.resolve().name, **training}
        form = head_named(head.kind)
        if head.outputs is not None and not form.per_token and not form.bare:  # of a text
            first = "first_position" if method.prompt_length(backbone.architecture) else "first_token"
            origin["head_reads"] = "last_token" if backbone.architecture.decoder_only else first
        elif head.reads is not None:
            origin["head_reads"] = head.reads
        delta.card = delta.card.model_copy(update=origin)
        return delta.eval()

    def _kind_of(self, head: ImportedHead, configs: Sequence[Config], folder: Path) -> type[TaskType] | None:
        """What is asked for, or what the checkpoint or a config says; None for labels that a decoder scores."""
        if head.outputs is None:
            writes, wanted = head_named(head.kind).writes, None if self.kind is None else kind_named(self.kind)
            if wanted is not None and wanted.writes != writes:
                found = "text that it writes, --kind text" if writes else "labels that its decoder scores, --labels a,b"
                raise UsageError(
                    f"--kind {wanted.name} is {wanted.title}; of {folder}, ...{head.model}, what can be imported "
                    f"answers by {found}. Import it as that, or train the task here."
                )
            return kind_named("text") if writes else wanted
        fitting = {kind.problem_type: kind for kind in kinds().values() if head.fits(kind)}
        if not fitting:
            raise BundleError(
                f"{folder}: no kind of task has a head of ...{head.model} with {head.outputs} outputs; import it with "
                "the config that it was trained with."
            )
        if self.kind is not None:
            asked = kind_named(self.kind)
            if asked not in fitting.values():
                found = " or ".join(kind.title for kind in fitting.values())
                raise UsageError(
                    f"--kind {asked.name} is {asked.title}; the checkpoint's head, ...{head.model} with {head.outputs} "
                    f"outputs, is of {found}: --kind {' or --kind '.join(kind.name for kind in fitting.values())}."
                )
            return asked
        said = next((config["problem_type"] for config in configs if config.get("problem_type")), None)
        known = (said, usual_problem(head.outputs), *fitting)
        return next(fitting[problem] for problem in known if isinstance(problem, str | None) and problem in fitting)

    def _labels_for(
        self, head: ImportedHead, kind: type[TaskType] | None, configs: Sequence[Config], backbone: Backbone
    ) -> tuple[str, ...] | None:
        """One name an output, of the request, the head, a config, or LABEL_0, ...; None where they have none."""
        given = self.labels or ()
        if kind is not None and not kind.has_labels:
            if given:
                raise UsageError(
                    f"the checkpoint's head needs no labels, for {kind.title} has none; found {', '.join(given)}. "
                    "Leave --labels out."
                )
            return None
        if head.outputs is None or kind is None:
            if not given:
                raise UsageError(
                    f"{backbone.source} scores labels with its decoder, and checkpoints do not say which: give them as "
                    "the words that it was trained to write, --labels a,b,c."
                )
            return given
        outputs = head.outputs
        if given and (len(given) != outputs or len(set(given)) != outputs or not all(given)):
            raise UsageError(
                f"the checkpoint's head needs {outputs} different labels, in the order of its outputs; found "
                f"{', '.join(given)}."
            )
        numbered = tuple(f"LABEL_{i}" for i in range(outputs))
        named = (head.labels, *(_names_in(config) for config in configs))
        labels = given or next((names for names in named if names and len(names) == outputs and all(names)), numbered)
        if kind.needs_names and not given and labels == numbered:
            raise UsageError(
                f"neither the checkpoint nor a config.json names the {outputs} outputs of its head, and {kind.title} "
                "answers by names; give them in their order: --labels a,b,c."
            )
        kind.check_labels(labels)
        return labels

    def _length_for(self, backbone: Backbone, prompt: int) -> int:
        longest = backbone.architecture.max_length - prompt
        wanted = longest if self.max_length is None else self.max_length
        if not 2 < wanted <= longest:
            beside = f" beside a prompt of {prompt}" if prompt else ""
            raise UsageError(
                f"the maximal length must be 3 to {longest}, the backbone's positions{beside}; found {wanted}."
            )
        return wanted


class Importer(ABC):
    """Base of all importers; one in a file of this package is found by its ``library``."""

    library: ClassVar[str]
    needs: ClassVar[str]  # what a folder of it has, in words

    @abstractmethod
    def recognises(self, folder: Path) -> bool:
        """Whether the folder is one of this library's."""

    @abstractmethod
    def read(self, folder: Path, backbone: Backbone, request: ImportRequest) -> Delta:
        """The checkpoint as a delta of that backbone."""

    @abstractmethod
    def write(self, delta: Delta, backbone: Backbone, folder: Path, *, force: bool = False) -> str:
        """Write a folder, whole or not at all, that the library loads with equal logits; gives what loads it there."""


def importers() -> dict[str, Importer]:
    """Every importer by its library."""
    found = classes_of("edgepeft.training.interop", Importer, "library")  # type: ignore[type-abstract]
    return {library: importer() for library, importer in found.items()}


def importer_of(folder: Path) -> Importer:
    """The importer that recognises this folder."""
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}; import reads a checkpoint's folder.")
    known = importers()
    for importer in known.values():
        if importer.recognises(folder):
            return importer
    kinds = "; ".join(f"{library}: {importer.needs}" for library, importer in known.items())
    inner = sorted(path for path in folder.iterdir() if any(importer.recognises(path) for importer in known.values()))
    instead = f" There is one in {', '.join(path.name for path in inner)}: give that folder." if inner else ""
    raise BundleError(f"{folder} is no checkpoint of a known library ({kinds}).{instead}")


def usual_problem(outputs: int) -> str:
    """What transformers takes a classifier of sequences for where its config does not say ``problem_type``."""
    return "regression" if outputs == 1 else "single_label_classification"


def _names_in(config: Config) -> tuple[str, ...] | None:
    """What a config calls the outputs, where it calls each otherwise."""
    known = config.get("id2label")
    if not isinstance(known, Mapping) or set(known) != {str(i) for i in range(len(known))}:
        return None
    names = tuple(str(known[str(i)]) for i in range(len(known)))
    return names if len(set(names)) == len(names) else None
