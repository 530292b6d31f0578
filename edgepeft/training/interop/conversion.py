"""How a foreign checkpoint comes in: its config, our method, the tensors that it must hold, and what they become."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from edgepeft.backbones.checkpoint import check_header
from edgepeft.backbones.pickled import read_pickled
from edgepeft.common.errors import BundleError
from edgepeft.common.messages import in_words
from edgepeft.methods.base import Method

__all__ = [
    "ConversionPlan",
    "ForeignConfig",
    "Renaming",
    "StateDict",
    "TensorShapes",
    "check_tensors",
    "left_out",
    "parsed",
    "read_state_dict",
]

_Model = TypeVar("_Model", bound=BaseModel)

StateDict = Mapping[str, Tensor]
TensorShapes = Mapping[str, tuple[int, ...]]
Renaming = Mapping[str, tuple[str, tuple[int, ...]]]  # their tensor -> (ours, its shape)


@dataclass(frozen=True)
class ConversionPlan:
    """``shapes`` by their names; ``convert`` gives our tensors by our names.

    Where it gives theirs as they are, ``names`` are their names with ours; one tensor may have several on both sides.
    ``joined`` are those of theirs that are several of ours, side by side.
    """

    method: Method
    shapes: TensorShapes
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

    @property
    def held(self) -> set[str]:
        """What of ours goes ``back``."""
        return {own for _, own in self.names}.union(*self.joined.values())

    @classmethod
    def renaming(cls, method: Method, names: Renaming) -> ConversionPlan:
        """Tensors that differ in their names alone."""

        def convert(state: StateDict) -> dict[str, Tensor]:
            return {ours: state[theirs] for theirs, (ours, _) in names.items()}

        pairs = tuple((theirs, ours) for theirs, (ours, _) in names.items())
        return cls(method, {theirs: shape for theirs, (_, shape) in names.items()}, convert, pairs)


class ForeignConfig(BaseModel):
    """The config of a method in another library; what a subclass does not name is kept as extra."""

    model_config = ConfigDict(frozen=True, extra="allow")
    ignored: ClassVar[frozenset[str]]  # fields that say nothing of a trained checkpoint

    @classmethod
    def read(cls, document: Mapping[str, Any], path: Path) -> Self:
        """The document as such a config."""
        config = parsed(cls, document, path)
        extra = (config.model_extra or {}).items()
        odd = [f"{name} = {getattr(config, name)!r}" for name, fine in config.checks().items() if not fine]
        odd += [f"{name} = {value!r}" for name, value in extra if value and name not in cls.ignored]
        if odd:
            raise BundleError(
                f"{path}: no delta can represent {', '.join(odd)}. Train it without, or merge it into its model there "
                "and use that as the backbone."
            )
        return config

    def checks(self) -> dict[str, bool]:
        """Field -> whether a delta can represent its value."""
        return {}


def left_out(layers: Iterable[int]) -> dict[str, Any]:
    """Layers that get no module, as the settings that our methods have for them."""
    left = sorted(set(layers))
    skipped = next((i for i, layer in enumerate(left) if i != layer), len(left))
    return {"skip_layers": skipped, "leave_out": tuple(left[skipped:])}


def parsed(kind: type[_Model], document: Mapping[str, Any], path: Path) -> _Model:
    """The document as that kind."""
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        raise BundleError(f"{path}: {in_words(error)}.") from error


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
    """The tensors, float32, of the first of these files that is there, safetensors or a torch pickle.

    A pickle is read through torch's restricted unpickler alone, which runs no code.
    """
    path = next((folder / name for name in names if (folder / name).is_file()), None)
    if path is None:
        raise BundleError(f"{folder} has neither {' nor '.join(names)}; it is not complete: fetch it again.")
    state = _stored(path) if path.suffix == ".safetensors" else read_pickled(path)
    odd = [name for name, tensor in state.items() if not tensor.is_floating_point()]
    if odd:
        raise BundleError(f"{path} holds what is no floating-point tensor: {', '.join(odd)}. Save it without these.")
    made = {id(tensor): tensor for tensor in state.values()}  # those that are one stay one
    made = {key: tensor.float().contiguous() for key, tensor in made.items()}
    return {name: made[id(tensor)] for name, tensor in state.items()}


def _stored(path: Path) -> dict[str, Tensor]:
    check_header(path, path)
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise BundleError(f"{path} is damaged ({error}); fetch it again.") from error
