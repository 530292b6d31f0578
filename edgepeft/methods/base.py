"""What a PE method is: frozen hyperparameters, a builder of modules for sites, stated facts; what its tasks cost."""

import dataclasses
import math
import typing
from abc import ABC, ABCMeta, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from edgepeft.backbones.base import NO_HEAD, Architecture, Role, Site
from edgepeft.common.errors import UnknownName, UsageError, look_up
from edgepeft.common.registry import class_named, classes_of
from edgepeft.heads.base import head_named

ReadTensor = Callable[[str], Tensor]  # a pretrained tensor by its name


def option(default: Any, doc: str, *, least: int | None = None, positive: bool = False) -> Any:
    """A hyperparameter with its default, one line of documentation, and the values that it may have."""
    return dataclasses.field(default=default, metadata={"doc": doc, "least": least, "positive": positive})


def require(condition: bool, message: str) -> None:
    """Check a hyperparameter."""
    if not condition:
        raise UsageError(message)


class Folding(nn.Module, ABC):
    """A module that is trained in another form than the one that answers, and that is tuned on a board."""

    @abstractmethod
    def folded(self, weight: Callable[[], Tensor]) -> nn.Module:
        """What gives the same values with less; ``weight`` reads that of the site's linear layer, [out, in]."""


class Generator(nn.Module, ABC):
    """Makes a task's own version of backbone tensors from the pretrained ones and parameters of its own.

    A board makes them again, without torch, from what ``recipe`` says: see ``edgepeft.graph.external_data``.
    """

    names: tuple[str, ...]  # of the tensors that it makes
    recipe: dict[str, Any]  # which generator with which parameters, as plain values

    @abstractmethod
    def forward(self, pretrained: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors by name."""


class Drawn(nn.Module):
    """Frozen random matrices, buffers by name, which are not stored: a board draws them by ``recipe``."""

    shapes: dict[str, tuple[int, int]]
    recipe: dict[str, Any]


class _IsADataclass(ABCMeta):
    """Refuses a decorator on a class that is a dataclass already: its own message names none of that."""

    def __setattr__(cls, name: str, value: Any) -> None:
        if name == "__dataclass_params__" and name in vars(cls):  # the first thing that ``dataclass`` sets
            raise UsageError(f"{cls.__name__}, a method, is a dataclass by its base: leave @dataclass out.")
        super().__setattr__(name, value)


@typing.dataclass_transform(frozen_default=True, kw_only_default=True)
@dataclasses.dataclass(frozen=True, kw_only=True)
class Method(metaclass=_IsADataclass):
    """Base of all PE methods, found by their ``name``: frozen dataclasses of hyperparameters, without a decorator."""

    name: ClassVar[str]
    title: ClassVar[str]
    paper: ClassVar[str]
    equation: ClassVar[str]
    near_identity: ClassVar[bool] = True  # a fresh delta of the defaults leaves the output (almost) unchanged
    places_adapters: ClassVar[bool] = False  # whether modules stand between the backbone's own layers
    trains_everything: ClassVar[bool] = False  # the encoder itself: what the others' steps are compared with
    learning_rate: ClassVar[float]
    learning_rate_source: ClassVar[str]

    def __init_subclass__(cls) -> None:
        dataclasses.dataclass(frozen=True, kw_only=True)(cls)

    def __post_init__(self) -> None:
        """Check each hyperparameter for itself; a subclass adds how they fit each other."""
        for field in dataclasses.fields(self):
            value, least, what = getattr(self, field.name), field.metadata.get("least"), f"{self.name}'s {field.name}"
            require(least is None or value >= least, f"{what} must be at least {least}; found {value}.")
            require(not field.metadata.get("positive") or value > 0, f"{what} must be positive; found {value}.")

    def sites(self, architecture: Architecture) -> tuple[Site, ...]:
        """Where it attaches; by default nowhere."""
        return ()

    def build(self, sites: Sequence[Site]) -> dict[str, nn.Module]:
        """Fresh modules by site name; their ``forward(y, ...)`` names what it reads: y, x, residual, norm, position.

        All tensors are (..., d) and the result has y's shape; ``position`` (...) is each token's place in its row.
        ``weight`` [out, in] (where the module is ``Folding``) and ``bias`` [out], or None, are its linear layer's.
        What a decoder gives the labels' edges is (batch, nodes, edges), and ``token`` (edges) their tokens.
        """
        return {site.name: self.build_at(site) for site in sites}

    def build_at(self, site: Site) -> nn.Module:
        """A fresh module, of methods whose modules share nothing."""
        raise NotImplementedError(f"{self.name} attaches to {site.name} and builds nothing there")

    def start(self, modules: Mapping[str, nn.Module], architecture: Architecture, read: ReadTensor) -> None:
        """Give fresh modules what they take from pretrained tensors, which ``read`` gives; by default nothing."""

    def prompt_length(self, architecture: Architecture) -> int:
        """Tokens that it puts in front of every text."""
        return 0

    def positions(self, architecture: Architecture) -> int:
        """How many of the backbone's positions it takes from texts."""
        return self.prompt_length(architecture)

    def overrides(self, architecture: Architecture) -> tuple[str, ...]:
        """The backbone tensors that a task has of its own: trained copies, unless there is a generator."""
        return ()

    def generator(self, shapes: Mapping[str, tuple[int, ...]]) -> Generator | None:
        """What makes the overrides, whose shapes are given; None where they are trained copies."""
        return None

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """An instance from ``--set name=value`` texts or from values of a delta.json."""
        fields = {field.name for field in dataclasses.fields(cls)}
        hints = typing.get_type_hints(cls)
        values = {}
        for name, value in settings.items():
            if name not in fields:
                raise UnknownName(f"hyperparameter of {cls.name}", name, fields)
            values[name] = _converted(f"{cls.name}'s {name}", value, hints[name])
        return cls(**values)

    def n_parameters(self, architecture: Architecture, reads: Iterable[str] = ()) -> int:
        """Count trained parameters, a pooler's where the head ``reads`` it; the head's own are left out."""
        own = self.own_tensors(architecture, reads)
        with torch.device("meta"):  # sizes alone
            modules = [*self.build(self.sites(architecture)).values()]
            generator = self.generator(own)
        copies = map(math.prod, own.values() if generator is None else ())
        made = nn.ModuleList(modules if generator is None else [*modules, generator])
        return sum(copies) + sum(parameter.numel() for parameter in made.parameters())

    def own_tensors(self, architecture: Architecture, reads: Iterable[str]) -> dict[str, tuple[int, ...]]:
        """Shapes of the ``overrides`` that take part: all of the encoder's, and what the head reads besides."""
        readable = {*architecture.tensors, *reads}
        return {name: architecture.shape_of(name) for name in self.overrides(architecture) if name in readable}

    def settings(self) -> dict[str, Any]:
        """The hyperparameters as plain values."""
        return dataclasses.asdict(self)


class PerLayer(Method):
    """Base of methods that put modules into each layer, but for those that two settings leave out.

    ``skip_layers`` is AdapterDrop's idea (Rücklé et al., 2021, arXiv:2010.11918) for all of them.  In an
    encoder-decoder the lowest layers of both stacks are left.  LayerNorms are not modules: those that a
    method trains are trained in every layer, so only with frozen ones is what lies below the same for all tasks.
    """

    skip_layers: int = option(0, "lowest layers (of each stack) that get no module")
    leave_out: tuple[int, ...] = option((), "other layers (of each stack) that get no module, the lowest being 0")

    @abstractmethod
    def attaches_to(self) -> tuple[Role, ...]:
        """The roles that it has a module for, in each layer."""

    def attaches_across(self) -> tuple[Role, ...]:
        """The roles in a decoder's attention to an encoder that it has a module for too, where there is one."""
        return ()

    def sites(self, architecture: Architecture) -> tuple[Site, ...]:
        """Its roles' sites in the layers that are not skipped."""
        sites = architecture.sites_of(*self.attaches_to(), *self.attaches_across())
        in_layers = [(site, site.layer) for site in sites if site.layer is not None]
        roles = ", ".join(self.attaches_to())
        require(bool(in_layers), f"{self.name} attaches to {roles}; {architecture.model_type} has no such site.")
        last = max(layer for _, layer in in_layers)
        require(
            0 <= self.skip_layers <= last,
            f"{self.name}'s skip_layers must be between 0 and {last}, for this {architecture.model_type} has "
            f"{last + 1} layers; found {self.skip_layers}.",
        )
        odd = [layer for layer in self.leave_out if not 0 <= layer <= last]
        require(not odd, f"{self.name}'s leave_out names layers from 0 to {last}; found {', '.join(map(str, odd))}.")
        left = tuple(site for site, layer in in_layers if layer >= self.skip_layers and layer not in self.leave_out)
        require(bool(left), f"{self.name}'s skip_layers and leave_out leave no layer of {last + 1} with a module.")
        return left


class ChoosesRoles(PerLayer):
    """Base of methods whose ``roles``, of ``known_roles``, say what of a layer they attach to."""

    known_roles: ClassVar[tuple[Role, ...]]
    roles: tuple[str, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        known = self.known_roles
        require(bool(self.roles), f"{self.name} needs at least one of {', '.join(known)} as roles; found none.")
        for role in self.roles:
            require(self.roles.count(role) == 1, f"{self.name}'s roles names {role!r} twice.")
            if role not in known:
                raise UnknownName(f"role that {self.name} can attach to", role, map(str, known))

    def attaches_to(self) -> tuple[Role, ...]:
        return tuple(Role(role) for role in self.roles)


class TrainsNorms(PerLayer):
    """Base of adapters: those that train every LayerNorm of the backbone too, where their ``norms`` says so."""

    places_adapters: ClassVar[bool] = True

    norms: bool

    def overrides(self, architecture: Architecture) -> tuple[str, ...]:
        return norm_tensors(architecture) if self.norms else ()


class CrossAttention(PerLayer):
    """Base of methods that may adapt a decoder's attention to its encoder too."""

    cross_attention: bool = option(False, "a decoder's attention to its encoder too (AdapterHub's cross_adapter)")

    def attaches_across(self) -> tuple[Role, ...]:
        return (Role.CROSS_ATTENTION_OUTPUT,) if self.cross_attention else ()

    def sites(self, architecture: Architecture) -> tuple[Site, ...]:
        require(
            not self.cross_attention or bool(architecture.sites_of(Role.CROSS_ATTENTION_OUTPUT)),
            f"{self.name}'s cross_attention is a decoder's to its encoder; this {architecture.model_type} has none.",
        )
        return super().sites(architecture)


def methods() -> dict[str, type[Method]]:
    """Every method by name."""
    return classes_of("edgepeft.methods", Method, "name")


def method_named(name: str) -> type[Method]:
    """The method of that name."""
    found = class_named("edgepeft.methods", Method, name)
    return look_up("PE method", name, methods()) if found is None else found


def method_of(method: Method | str) -> Method:
    """A method as it is, or that of a text: ``lora``, or ``spartan:parents=8,top_k=2``; a value may have commas."""
    if isinstance(method, Method):
        return method
    name, _, settings = method.partition(":")
    values: dict[str, str] = {}
    for part in filter(None, settings.split(",")):
        key, equals, value = part.partition("=")
        if equals:
            last, values[key] = key, value
        elif not values:
            raise UsageError(f"{method!r}: METHOD:NAME=VALUE,... is needed, for example lora:rank=8.")
        else:
            values[last] += f",{part}"
    return method_named(name).from_settings(values)


def weight_at(site: Site, read: ReadTensor) -> Tensor:
    """[out, in]: the weight of the linear layer whose output a site is."""
    whole = read(f"{site.reads}.weight")
    return whole if site.columns is None else whole[slice(*site.columns)]


def norm_tensors(architecture: Architecture) -> tuple[str, ...]:
    """Weight of every LayerNorm, and its bias where it has one (T5's and ModernBERT's have none)."""
    named = (f"{norm}.{part}" for norm in architecture.norms for part in ("weight", "bias"))
    return tuple(name for name in named if name in architecture.tensors)


def crossed(roles: Iterable[Role]) -> tuple[Role, ...]:
    """The roles in a decoder's attention to its encoder that are these in self-attention; others are left out."""
    return tuple(Role(f"cross_{role}") for role in roles if f"cross_{role}" in set(Role))


_LARGEST = 2**53  # what JSON readers keep exact; far more than any extent or seed


def _converted(what: str, value: Any, hint: Any) -> Any:
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        choices = typing.get_args(hint)
        if value not in choices:
            raise UsageError(f"{what} is one of {', '.join(map(str, choices))}; found {value!r}.")
        return value
    if origin is tuple:
        items = value.split(",") if isinstance(value, str) else value if isinstance(value, Iterable) else [value]
        return tuple(_converted(what, item, typing.get_args(hint)[0]) for item in items)
    if hint is bool:
        truths = {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}
        if str(value).lower() in truths:
            return truths[str(value).lower()]
        raise UsageError(f"{what} is true or false; found {value!r}.")
    try:
        converted = hint(value)
        lossy = isinstance(value, bool) or (isinstance(value, float) and converted != value)  # int() would round it
        if lossy or (hint is float and not math.isfinite(converted)):
            raise ValueError
        if hint is int and abs(converted) > _LARGEST:
            raise UsageError(f"{what} is at most {_LARGEST:,}; found {value!r}.")
        return converted
    except (TypeError, ValueError, OverflowError):
        raise UsageError(f"{what} needs a value of type {hint.__name__}; found {value!r}.") from None


BYTES = 4  # of a float32


def count(architecture: Architecture, method: Method, head: str, *, tasks: int = 1, labels: int = 2) -> dict[str, Any]:
    """Count ``tasks`` tasks of one method, each with a head of that kind, or without one (``NO_HEAD``).

    As `edgepeft count --json` prints it; bytes are of the float32 tensors on disk, ``private`` those of the backbone
    tensors that a loaded task replaces.  Where a task brings every tensor itself, nothing is left to share.
    """
    kind = None if head == NO_HEAD else head_named(head)
    reads = kind.reads if kind else ()
    if kind:
        kind.check_reads(architecture)
    pooler = sum(math.prod(architecture.shape_of(name)) for name in reads if name in architecture.pooler)
    backbone, delta = architecture.n_parameters + pooler, method.n_parameters(architecture, reads)
    of_head = kind.n_parameters(architecture, labels) if kind else 0
    # A method that makes every tensor from a few numbers needs the pretrained ones for it.
    all_replaced = set(method.overrides(architecture)).issuperset(architecture.tensors)
    shares = not all_replaced or delta < architecture.n_parameters
    total, full_models = tasks * (delta + of_head) + backbone * shares, tasks * (backbone + of_head)
    return {
        "tasks": tasks,
        "labels": labels,
        "head": head,
        "backbone_parameters": backbone,
        "trained_parameters": {"delta": delta, "head": of_head, "total": delta + of_head},
        "percent_of_backbone": round(100 * delta / backbone, 4),
        "shares_backbone": shares,
        "total_parameters": total,
        "full_models_parameters": full_models,
        "times_the_backbone": round(total / backbone, 4),
        "bytes": {
            "backbone": BYTES * backbone,
            "task": BYTES * (delta + of_head),
            "private": BYTES * sum(map(math.prod, method.own_tensors(architecture, reads).values())),
            "total": BYTES * total,
            "full_models": BYTES * full_models,
        },
    }
