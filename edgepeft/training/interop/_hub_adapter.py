"""AdapterHub's ``adapter_config.json``, and its bottleneck adapters as one of our methods with its tensors.

With ``sub`` a sub-layer's output, ``res`` its residual and LN the layer's own norm, theirs compute

    z, k = sub, sub          original_ln_before=False
           LN(sub + res), sub          original_ln_before=True
           LN(sub + res), LN(sub + res)          and residual_before_ln=False
           LN(sub + res), sub + res          and residual_before_ln="post_add"
           res, sub          is_parallel=True
    LN(k + scaling A(z) + res)          the outer LN(... + res) if original_ln_after

In T5, whose norms stand first, LN is the identity.

A constant, learned or per-channel scaling is linear after A's last layer and goes into its weights.  Weights of
products (``phm_layer``) stay factors where Compacter or PHM adapters have the form, and are
multiplied out elsewhere: such a layer computes x H + b, H = sum_i kron(rule_i, W_i), n terms; rule [n, n, n];
W [n, in/n, out/n].  Source: adapters 1.3.0, ``methods/modeling.py``,
``configuration/adapter_config.py`` and ``loading.py``.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field, FiniteFloat
from torch import Tensor
from torch.nn import functional

from edgepeft.backbones.base import Architecture, Role, Site
from edgepeft.common.errors import BundleError
from edgepeft.methods._adapters import Activation, kronecker_sum
from edgepeft.methods.base import PerLayer
from edgepeft.methods.bottleneck import BottleneckAdapter
from edgepeft.methods.compacter import Compacter
from edgepeft.methods.compacter_plus_plus import CompacterPlusPlus
from edgepeft.methods.houlsby import Houlsby
from edgepeft.methods.pfeiffer import Pfeiffer
from edgepeft.methods.phm import PHM
from edgepeft.training.interop.base import ConversionPlan, ForeignConfig, ForeignFile, StateDict, left_out
from edgepeft.training.interop.classifier import Classifier

# Theirs (transformers' names, and one more) -> ours.
ACTIVATION_NAMES: dict[str, Activation] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "tanh-gelu",
    "gelu_fast": "tanh-gelu",
    "gelu_accurate": "tanh-gelu",
    "gelu_pytorch_tanh": "tanh-gelu",
    "gelu_python_tanh": "tanh-gelu",
    "quick_gelu": "quick-gelu",
    "silu": "silu",
    "swish": "silu",
    "mish": "mish",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
    "relu6": "relu6",
    "leakyrelu": "leaky-relu",
    "leaky_relu": "leaky-relu",
    "linear": "linear",
}
_RENAMED = {"gelu": "gelu_new", "gelu_orig": "gelu"}  # in files without a version
_FIXED_LORA = (1, 1, 0)  # the first version that scales by alpha / r

_Factor = Annotated[FiniteFloat, Field(ge=1e-3)]  # a bottleneck wider than 1000 times the layer is a mistake


class HubFile(ForeignFile):
    """The file around a method's config, or around a head's."""

    config: dict[str, Any] | None = None
    model_type: str
    model_class: str = "unknown"
    hidden_size: int | None = None
    name: str | None = None
    version: str | None = None
    label2id: dict[str, int] | None = None

    def check_architecture(self, architecture: Architecture, path: Path) -> None:
        ours = (architecture.model_type, architecture.hidden_size)
        theirs = (self.model_type, self.hidden_size or ours[1])
        if theirs != ours:
            raise BundleError(
                f"{path} belongs to another architecture: {theirs[0]} of width {theirs[1]}; the backbone is "
                f"{ours[0]} of width {ours[1]}. Use the backbone that it was trained on."
            )

    def method_settings(self) -> dict[str, Any]:
        """The method's settings, as today's version reads an older one's file."""
        settings = dict(self.config or {})
        activation = settings.get("non_linearity")
        if self.version is None and isinstance(activation, str):
            settings["non_linearity"] = _RENAMED.get(activation, activation)
        digits = re.match(r"adapters\.(\d+)\.(\d+)\.(\d+)", self.version or "")
        if settings.get("architecture") == "lora" and digits and tuple(map(int, digits.groups())) < _FIXED_LORA:
            settings["alpha"] = settings.get("r")
        return settings


class MethodConfig(ForeignConfig):
    """What the configs of all their methods have."""

    ignored: ClassVar[frozenset[str]] = frozenset(
        {"architecture", "dropout", "init_weights", "init_weights_seed", "stochastic_depth"}
    )

    leave_out: list[int] | None = None

    @abstractmethod
    def plan(self, places: Places) -> ConversionPlan:
        """Our method, and its tensors of theirs."""


class BnConfig(MethodConfig):
    """Their bottleneck adapters, whose weights may be sums of Kronecker products (``phm_layer``)."""

    ignored: ClassVar[frozenset[str]] = MethodConfig.ignored | {
        "hypercomplex_nonlinearity",  # despite its name, how the weights start
        "inv_adapter_reduction_factor",  # with inv_adapter only
        "learn_phm",
        "phm_c_init",
        "phm_init_range",
    }

    mh_adapter: bool
    output_adapter: bool
    cross_adapter: bool = False  # an encoder has no cross-attention
    reduction_factor: _Factor | dict[str, _Factor]
    non_linearity: str
    original_ln_before: bool = False
    original_ln_after: bool = True  # without it the adapter stands past the layer's last norm
    ln_before: bool = False
    ln_after: bool = False
    is_parallel: bool = False
    scaling: FiniteFloat | str = 1.0
    residual_before_ln: bool | str = True
    adapter_residual_before_ln: bool = False
    phm_layer: bool = False
    phm_dim: int = Field(default=4, ge=1)
    phm_rank: int = Field(default=1, ge=1)
    phm_bias: bool = True
    factorized_phm_W: bool = True
    shared_W_phm: bool = False
    shared_phm_rule: bool = True
    factorized_phm_rule: bool = False

    def width(self, hidden: int, layer: int) -> int:
        factor = self.reduction_factor
        if isinstance(factor, dict):
            found = factor.get(str(layer), factor.get("default"))
            if found is None:
                raise BundleError(
                    f"reduction_factor = {factor} says nothing of layer {layer} and has no default; add either."
                )
            factor = found
        return max(1, int(hidden // factor))

    def checks(self) -> dict[str, bool]:
        past_norm = self.original_ln_before and self.residual_before_ln is False and not self.is_parallel
        return {
            "non_linearity": self.non_linearity.lower() in ACTIVATION_NAMES,
            "scaling": not isinstance(self.scaling, str) or self.scaling in ("learned", "channel"),
            "residual_before_ln": isinstance(self.residual_before_ln, bool)
            or (self.residual_before_ln == "post_add" and self.original_ln_before)
            or self.is_parallel,
            # Without a residual and a norm behind it, an adapter can only stand past the layer's last norm.
            "original_ln_after": self.original_ln_after or (past_norm and not self.mh_adapter),
            "output_adapter": self.mh_adapter or self.output_adapter,
            "cross_adapter": self.original_ln_after or not self.cross_adapter,
            # Their code fails there, so that no checkpoint can have both.
            "shared_W_phm": not (self.phm_layer and self.shared_W_phm) or self.factorized_phm_W,
        }

    def plan(self, places: Places) -> ConversionPlan:
        architecture, form = places.classifier.architecture, self._form()
        layers = leading_layers(self, architecture)
        layers["cross_attention"] = self.cross_adapter and architecture.decoder is not None
        every = BottleneckAdapter(roles=form["roles"], reads="sublayer", **layers).sites(architecture)
        number = {layer: i for i, layer in enumerate(counted_layers(architecture))}
        widths = {s: self.width(architecture.hidden_size, number[s.name.removesuffix(s.role)]) for s in every}
        settings = {
            "bottleneck": max(widths.values()),
            "activation": ACTIVATION_NAMES[self.non_linearity.lower()],
            **layers,
        }
        shared = f"{places.classifier.prefix}{SHARED}{places.adapter}."
        readers = [_Reader(self, places.of_adapter(site), shared, site, widths[site]) for site in every]
        even, placed = len(set(widths.values())) == 1, form["reads"] != "residual" and self.original_ln_after
        # It adds to the sub-layer's output, without norms of its own.
        plain = form["keeps"] == "sublayer" and not form["norm_before"] and form["norm_after"] == "none"
        factored = self.phm_layer and plain and placed and self.scaling != "channel" and even
        low_rank = factored and self.shared_phm_rule and self.factorized_phm_W
        held = [(reader.site.name, *each) for reader in readers for each in reader.held(low_rank=low_rank)]
        if factored:
            more = {"n": self.phm_dim, "roles": form["roles"], "reads": form["reads"], "norms": False}
            more |= {"rank": self.phm_rank} if low_rank else {}
            compacter = CompacterPlusPlus if form["roles"] == (Role.FFN_OUTPUT,) else Compacter
            method: PerLayer = (compacter if low_rank else PHM).from_settings({**settings, **more})
        elif named := _NAMED.get((form["roles"], form["reads"])) if plain else None:
            method = named(**settings)
        else:
            method = BottleneckAdapter.from_settings({**settings, **form})

        def convert(state: StateDict) -> dict[str, Tensor]:
            tensors: dict[str, Tensor] = {}
            for reader in readers:
                values = reader.tensors(state, settings["bottleneck"], factored=factored, low_rank=low_rank)
                tensors |= {f"{reader.site.name}/{name}": value for name, value in values.items()}
            return tensors

        shapes = {theirs: shape for _, theirs, _, shape in held}
        as_they_are = self.scaling == 1.0 and even and (factored or not self.phm_layer)
        names = tuple((theirs, f"{site}/{ours}") for site, theirs, ours, _ in held) if as_they_are else ()
        return ConversionPlan(method, shapes, convert, names)

    def _form(self) -> dict[str, Any]:
        """In the words of ``BottleneckAdapter``: roles, reads, keeps, norm_before, norm_after."""
        wanted = {Role.ATTENTION_OUTPUT: self.mh_adapter, Role.FFN_OUTPUT: self.output_adapter}
        roles = tuple(str(role) for role, chosen in wanted.items() if chosen)
        reads, keeps = "sublayer", "sublayer"
        after = "sum" if self.adapter_residual_before_ln and not self.is_parallel else "change"
        if self.is_parallel:
            reads = "residual"
        elif not self.original_ln_after:  # z = k = LN(sub + res), which is the layer's output
            roles = (str(Role.LAYER_OUTPUT),)
        elif self.original_ln_before:
            reads, keeps = "norm", {True: "sublayer", False: "norm", "post_add": "sum"}[self.residual_before_ln]
        form = {"roles": roles, "reads": reads, "keeps": keeps, "norm_before": self.ln_before}
        return {**form, "norm_after": after if self.ln_after else "none"}


def counted_layers(architecture: Architecture) -> dict[str, Site]:
    """How a layer's sites are called before their role -> its output, in their order: a decoder's past an encoder's."""
    return {site.name.removesuffix(site.role): site for site in architecture.sites_of(Role.LAYER_OUTPUT)}


def leading_layers(config: MethodConfig, architecture: Architecture) -> dict[str, Any]:
    """``leave_out`` as the settings that our methods have for it."""
    theirs = {i: site.layer or 0 for i, site in enumerate(counted_layers(architecture).values())}
    without = theirs.keys() & set(config.leave_out or ())
    left = {theirs[i] for i in without}
    if odd := [i for i, layer in theirs.items() if layer in left and i not in without]:
        raise BundleError(
            f"leave_out = {sorted(without)} names a layer of one stack and not {odd[0]}, the same of the other, which "
            "no delta can represent. Train it with both left out, or none."
        )
    return left_out(left)


Shapes = dict[str, tuple[int, ...]]
SHARED = "shared_parameters."
_BOTH = (Role.ATTENTION_OUTPUT, Role.FFN_OUTPUT)
# Model type -> the modules of a layer that hold adapters, past attention and at its end; BERT's unless named.
_HOLDERS = {"distilbert": ("attention_adapters", "output_adapters")}


@dataclass(frozen=True)
class Places:
    """Where a checkpoint keeps the tensors of the adapter of that name."""

    classifier: Classifier
    adapter: str

    def of_adapter(self, site: Site) -> str:
        """The start of a bottleneck adapter's names."""
        if self.classifier.has_decoder:  # a T5's sub-layers hold them themselves
            return f"{site.residual or site.reads}.adapters.{self.adapter}."
        architecture = self.classifier.architecture
        attention, output = _HOLDERS.get(architecture.model_type, ("attention.output", "output"))
        holder = attention if site.role is Role.ATTENTION_OUTPUT else output
        return f"{self.classifier.prefix}{architecture.layer_path(site.layer or 0)}{holder}.adapters.{self.adapter}."


# Plain forms with names of their own: (roles, reads) -> the method.
_NAMED: Mapping[tuple[tuple[str, ...], str], Callable[..., PerLayer]] = {
    (_BOTH, "sublayer"): partial(Houlsby, norms=False),
    ((Role.FFN_OUTPUT,), "norm"): Pfeiffer,
    ((Role.ATTENTION_OUTPUT,), "sublayer"): partial(Pfeiffer, placement="attention"),
}


@dataclass(frozen=True)
class _Reader:
    """One adapter of theirs: ``start`` opens its tensors' names, ``shared`` those all share; parts are down, up."""

    config: BnConfig
    start: str
    shared: str
    site: Site
    width: int

    def _linear(self, part: str) -> tuple[str, int, int]:
        """Where a linear layer's names start, in, out; a norm before the first one is counted."""
        d, m, start = self.site.out_features, self.width, f"{self.start}adapter_{part}."
        return (f"{start}{int(self.config.ln_before)}.", d, m) if part == "down" else (start, m, d)

    def _rule(self, part: str) -> Shapes:
        n, where = self.config.phm_dim, self.shared if self.config.shared_phm_rule else self._linear(part)[0]
        if self.config.factorized_phm_rule:
            return {f"{where}phm_rule_left": (n, n, 1), f"{where}phm_rule_right": (n, 1, n)}
        return {f"{where}phm_rule": (n, n, n)}

    def _terms(self, part: str) -> Shapes:
        n, r, (start, inputs, outputs) = self.config.phm_dim, self.config.phm_rank, self._linear(part)
        if inputs % n or outputs % n:
            raise BundleError(
                f"phm_dim = {n} does not divide {inputs} and {outputs}, the widths of a layer; fetch the config again."
            )
        name = f"{self.shared}W_{part}" if self.config.shared_W_phm else f"{start}W"
        if self.config.factorized_phm_W:
            return {f"{name}_left": (n, inputs // n, r), f"{name}_right": (n, r, outputs // n)}
        return {name: (n, inputs // n, outputs // n)}

    def held(self, *, low_rank: bool) -> Iterator[tuple[str, str, tuple[int, ...]]]:
        """Their name, ours and the shape of each tensor; what is made of factors has the one name of ours."""
        config, d, terms = self.config, self.site.out_features, ("s", "t") if low_rank else ("B", "B")
        for part in ("down", "up"):
            start, inputs, outputs = self._linear(part)
            if not config.phm_layer:
                yield f"{start}weight", f"{part}.weight", (outputs, inputs)
                yield f"{start}bias", f"{part}.bias", (outputs,)
                continue
            yield from ((theirs, f"{part}.A", shape) for theirs, shape in self._rule(part).items())
            for (theirs, shape), ours in zip(self._terms(part).items(), terms, strict=False):
                yield theirs, f"{part}.{ours}", shape
            if config.phm_bias:
                yield f"{start}b", f"{part}.bias", (outputs,)
        for theirs, ours in self._norms():
            yield from ((f"{self.start}{theirs}{of}", f"{ours}.{of}", (d,)) for of in ("weight", "bias"))
        if isinstance(config.scaling, str):
            yield f"{self.start}scaling", "scaling", (d,) if config.scaling == "channel" else (1,)

    def _norms(self) -> list[tuple[str, str]]:
        """Their names and ours; the one before the first linear layer has two."""
        before = [("adapter_down.0.", "norm_before"), ("adapter_norm_before.", "norm_before")] * self.config.ln_before
        return before + [("adapter_norm_after.", "norm_after")] * self.config.ln_after

    def tensors(self, state: StateDict, width: int, *, factored: bool, low_rank: bool) -> dict[str, Tensor]:
        """As a module of factors, or of whole weights; zeros fill up to the widest layer's bottleneck."""
        given, tensors = self.config.scaling, dict[str, Tensor]()
        scaled = state[f"{self.start}scaling"] if isinstance(given, str) else torch.tensor([given])
        for part, scale in (("down", torch.ones(1)), ("up", scaled)):
            start, _, outputs = self._linear(part)
            rows, columns = (width - self.width, 0) if part == "down" else (0, width - self.width)
            if self.config.phm_layer:
                rule, terms = _product(state, self._rule(part)), _product(state, self._terms(part))
                weight = kronecker_sum(rule, terms)  # H^T, [out, in]
                bias = state[f"{start}b"] if self.config.phm_bias else torch.zeros(outputs)
            else:
                weight, bias = state[f"{start}weight"], state[f"{start}bias"]
            tensors[f"{part}.bias"] = functional.pad(bias, (0, rows)) * scale
            if not factored:
                tensors[f"{part}.weight"] = functional.pad(weight * scale.view(-1, 1), (0, columns, 0, rows))
                continue
            tensors[f"{part}.A"] = rule
            if low_rank:  # the scale goes into the last tensors of ``up``
                left, right = (state[name] for name in self._terms(part))
                tensors |= {f"{part}.s": left, f"{part}.t": right * scale}
            else:
                tensors[f"{part}.B"] = terms * scale
        for theirs, ours in self._norms():
            tensors |= {f"{ours}.{of}": state[f"{self.start}{theirs}{of}"] for of in ("weight", "bias")}
        return tensors


def _product(state: StateDict, names: Iterable[str]) -> Tensor:
    """Of a tensor's factors, or the one that it is."""
    return reduce(torch.matmul, (state[name] for name in names))
