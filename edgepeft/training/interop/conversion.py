"""How a foreign checkpoint comes in: its config, our method, the tensors that it must hold, and what they become.

Regular expressions of foreign files are matched by a child process with two seconds and 256 MB for all of them: whoever
writes a pattern decides how long it takes, to compile, by its size, and to match, by how it repeats.  PEFT takes all of
Python's syntax, lookaheads and backreferences among it, which engines of linear time lack.
"""

from __future__ import annotations

import json
import subprocess
import sys
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


_CORE_S = 2  # Python and the library take a tenth of it to start
_MEMORY_MB = 256
_MOST_CHARACTERS = 10_000  # the longest that were seen list a hundred modules
_CHILD = """
import contextlib, json, sys
import regex
with contextlib.suppress(ImportError):  # Windows has none: there a match has its own time limit alone
    import resource
    resource.setrlimit(resource.RLIMIT_CPU, (core_s, core_s))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
for line in sys.stdin:
    pattern, name = json.loads(line)
    try:
        found = regex.match(pattern, name, timeout=core_s)
        answer = None if found is None else [found[0], *found.groups()]
    except regex.error as error:
        answer = f"is no regular expression ({error})"
    except (TimeoutError, RecursionError, MemoryError):
        answer = "takes too long or too much memory"
    print(json.dumps(answer), flush=True)
"""


class Patterns:
    """The patterns of one file; the child starts with the first of them and ends with this object.

    ``where`` stands before what is wrong with a pattern.
    """

    def __init__(self, where: str = "", *, core_s: int = _CORE_S, memory_mb: int = _MEMORY_MB) -> None:
        self.where = where
        self._limits = f"core_s, memory = {core_s}, {memory_mb << 20}\n"
        self._child: subprocess.Popen[str] | None = None

    def match(self, pattern: str, name: str) -> tuple[str | None, ...] | None:
        """What a pattern finds at a name's start, and its groups; None where it finds nothing."""
        if len(pattern) > _MOST_CHARACTERS:
            raise BundleError(
                f"{self.where}the pattern {pattern!r:.80} has {len(pattern):,} characters; list names of modules "
                "instead."
            )
        child = self._child = self._child or subprocess.Popen(
            [sys.executable, "-P", "-c", self._limits + _CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            assert child.stdin and child.stdout
            child.stdin.write(f"{json.dumps([pattern, name])}\n")
            child.stdin.flush()
            answer = json.loads(child.stdout.readline())
        except (OSError, ValueError):  # it was ended by its limits
            answer = "takes too long or too much memory, alone or with those before it"
        if isinstance(answer, str):
            raise BundleError(f"{self.where}the pattern {pattern!r:.80} {answer}; list names of modules instead.")
        return None if answer is None else tuple(answer)

    def __del__(self) -> None:
        """The child reads to the end of its input; what still matches is ended."""
        if self._child is not None:
            self._child.kill()
            self._child.communicate()
