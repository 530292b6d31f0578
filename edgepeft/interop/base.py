"""What an importer is: it recognises its library's folders and turns one into a delta."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from edgepeft.backbones.source import Backbone
from edgepeft.delta import Delta, new_delta
from edgepeft.errors import BundleError, UsageError
from edgepeft.methods.base import Method
from edgepeft.registry import modules_of

__all__ = ["ImportRequest", "ImportedHead", "Importer", "importer_of", "importers"]


class ImportedHead(NamedTuple):
    """Our kind of head, its tensors by our names, and the labels in order where the checkpoint names them.

    ``outputs`` is None where a decoder scores labels, of which a checkpoint says nothing.
    """

    kind: str
    outputs: int | None
    values: Mapping[str, Tensor]
    labels: tuple[str, ...] | None = None


@dataclass(frozen=True)
class ImportRequest:
    """What such checkpoints do not say: the task's name, its labels, how long its texts may be."""

    task: str
    labels: tuple[str, ...] | None = None
    max_length: int | None = None  # None: as long as the backbone takes

    def delta(
        self,
        backbone: Backbone,
        method: Method,
        head: ImportedHead,
        values: Mapping[str, Tensor],
        *,
        folder: Path,
        origin: Mapping[str, Any],
    ) -> Delta:
        """A delta of ``values``, by our names, and the head; LayerNorms that were not tuned stay the backbone's.

        A head reads the first position, as transformers' does, be it a prompt's.  ``origin`` goes into the card.

        Raises:
            UsageError: the request's labels or its length do not fit, or labels to be scored are missing.
        """
        prompt, labels = method.prompt_length, self._labels_for(head, backbone)
        longest = self._length_for(backbone, prompt)
        delta = new_delta(backbone, method, self.task, labels, head=head.kind, max_length=longest)
        own, values = delta.tensors(), {**values, **head.values}
        kept = {name: tensor.detach() for name, tensor in own.items() if name.startswith("override/")}
        # What is shared stands in the delta once, under its first name.
        delta.read({**kept, **{name: values[name] for name in own if name in values}}, str(folder))
        reads = {} if head.outputs is None else {"head_reads": "first_position" if prompt else "first_token"}
        delta.card = delta.card.model_copy(update={**reads, **origin})
        return delta.eval()

    def _labels_for(self, head: ImportedHead, backbone: Backbone) -> tuple[str, ...] | None:
        """One name an output, of the request, the head, the backbone's config, or LABEL_0, ...; None for one number."""
        outputs = head.outputs
        if outputs is None:
            if not self.labels:
                raise UsageError(
                    f"{backbone.source} scores labels with its decoder, and checkpoints do not say which: give them as "
                    "the words that it was trained to write, --labels a,b,c."
                )
            return self.labels
        if not self.labels:
            named = head.labels if head.labels and len(head.labels) == outputs else None
            return None if outputs == 1 else named or _known_labels(outputs, backbone)
        if outputs == 1 or len(self.labels) != outputs or len(set(self.labels)) != outputs:
            wanted = "no labels, for one output is a number" if outputs == 1 else f"{outputs} different labels"
            raise UsageError(f"the checkpoint's head needs {wanted}; found {', '.join(self.labels)}.")
        return self.labels

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
    """Base of all importers; a module of this package has one as ``IMPORTER``."""

    library: ClassVar[str]
    needs: ClassVar[str]  # what a folder of it has, in words

    @abstractmethod
    def recognises(self, folder: Path) -> bool:
        """Whether the folder is one of this library's."""

    @abstractmethod
    def read(self, folder: Path, backbone: Backbone, request: ImportRequest) -> Delta:
        """The checkpoint as a delta of that backbone.

        Raises:
            BundleError: damaged, of another architecture, or with something that no delta can represent.
            UsageError: the request does not fit the checkpoint.
        """


def importers() -> tuple[Importer, ...]:
    """Every importer."""
    return tuple(module.IMPORTER for module in modules_of("edgepeft.interop") if hasattr(module, "IMPORTER"))


def importer_of(folder: Path) -> Importer:
    """The importer that recognises this folder.

    Raises:
        UsageError: there is no such folder.
        BundleError: none recognises it.
    """
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}; import reads a checkpoint's folder.")
    known = importers()
    for importer in known:
        if importer.recognises(folder):
            return importer
    kinds = "; ".join(f"{importer.library}: {importer.needs}" for importer in known)
    raise BundleError(f"{folder} is no checkpoint of a known library ({kinds}).")


def _known_labels(outputs: int, backbone: Backbone) -> tuple[str, ...]:
    known = backbone.config.get("id2label")
    if isinstance(known, Mapping) and set(known) == {str(i) for i in range(outputs)}:
        names = tuple(str(known[str(i)]) for i in range(outputs))
        if len(set(names)) == outputs:
            return names
    return tuple(f"LABEL_{i}" for i in range(outputs))
