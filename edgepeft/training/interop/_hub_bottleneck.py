"""AdapterHub's bottleneck adapters: which of our methods holds a config, and its tensors as that method's.

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
W [n, in/n, out/n].  Source: adapters 1.3.0, ``methods/modeling.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from edgepeft.backbones.base import Role, Site
from edgepeft.common.errors import BundleError
from edgepeft.methods._adapters import kronecker_sum
from edgepeft.methods.base import PerLayer
from edgepeft.methods.bottleneck import BottleneckAdapter
from edgepeft.methods.compacter import Compacter
from edgepeft.methods.compacter_plus_plus import CompacterPlusPlus
from edgepeft.methods.houlsby import Houlsby
from edgepeft.methods.pfeiffer import Pfeiffer
from edgepeft.methods.phm import PHM
from edgepeft.training.interop._hub_config import ACTIVATION_NAMES, BnConfig, counted_layers, leading_layers
from edgepeft.training.interop.base import ConversionPlan, StateDict
from edgepeft.training.interop.classifier import Classifier

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


def bottleneck_plan(config: BnConfig, places: Places) -> ConversionPlan:
    """The method that holds the config, and how its tensors come to be."""
    architecture, form = places.classifier.architecture, _form(config)
    layers = leading_layers(config, architecture)
    layers["cross_attention"] = config.cross_adapter and architecture.decoder is not None
    every = BottleneckAdapter(roles=form["roles"], reads="sublayer", **layers).sites(architecture)
    number = {layer: i for i, layer in enumerate(counted_layers(architecture))}
    widths = {s: config.width(architecture.hidden_size, number[s.name.removesuffix(s.role)]) for s in every}
    settings = {
        "bottleneck": max(widths.values()),
        "activation": ACTIVATION_NAMES[config.non_linearity.lower()],
        **layers,
    }
    shared = f"{places.classifier.prefix}{SHARED}{places.adapter}."
    readers = [_Reader(config, places.of_adapter(site), shared, site, widths[site]) for site in every]
    shapes = {name: shape for reader in readers for name, shape in reader.shapes().items()}
    even, placed = len(set(widths.values())) == 1, form["reads"] != "residual" and config.original_ln_after
    # It adds to the sub-layer's output, without norms of its own.
    plain = form["keeps"] == "sublayer" and not form["norm_before"] and form["norm_after"] == "none"
    factored = config.phm_layer and plain and placed and config.scaling != "channel" and even
    low_rank = factored and config.shared_phm_rule and config.factorized_phm_W
    if factored:
        more = {"n": config.phm_dim, "roles": form["roles"], "reads": form["reads"], "norms": False}
        more |= {"rank": config.phm_rank} if low_rank else {}
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

    as_they_are = config.scaling == 1.0 and even and (factored or not config.phm_layer)
    names = (pair for reader in readers for pair in reader.names(low_rank=low_rank))
    return ConversionPlan(method, shapes, convert, tuple(names) if as_they_are else ())


def _form(config: BnConfig) -> dict[str, Any]:
    """A config in the words of ``BottleneckAdapter``: roles, reads, keeps, norm_before, norm_after."""
    wanted = {Role.ATTENTION_OUTPUT: config.mh_adapter, Role.FFN_OUTPUT: config.output_adapter}
    roles = tuple(str(role) for role, chosen in wanted.items() if chosen)
    reads, keeps = "sublayer", "sublayer"
    after = "sum" if config.adapter_residual_before_ln and not config.is_parallel else "change"
    if config.is_parallel:
        reads = "residual"
    elif not config.original_ln_after:  # z = k = LN(sub + res), which is the layer's output
        roles = (str(Role.LAYER_OUTPUT),)
    elif config.original_ln_before:
        reads, keeps = "norm", {True: "sublayer", False: "norm", "post_add": "sum"}[config.residual_before_ln]
    form = {"roles": roles, "reads": reads, "keeps": keeps, "norm_before": config.ln_before}
    return {**form, "norm_after": after if config.ln_after else "none"}


@dataclass(frozen=True)
class _Reader:
    """One adapter of theirs: ``start`` opens its tensors' names, ``shared`` those of what all share.

    ``width`` is its bottleneck; ``part`` is down or up.
    """

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

    def shapes(self) -> Shapes:
        shapes: Shapes = {}
        for part in ("down", "up"):
            start, inputs, outputs = self._linear(part)
            if self.config.phm_layer:
                shapes |= self._rule(part) | self._terms(part)
                shapes |= {f"{start}b": (outputs,)} if self.config.phm_bias else {}
            else:
                shapes |= {f"{start}weight": (outputs, inputs), f"{start}bias": (outputs,)}
        d = self.site.out_features
        shapes |= {f"{self.start}{norm}{of}": (d,) for norm, _ in self._norms() for of in ("weight", "bias")}
        if isinstance(self.config.scaling, str):
            shapes[f"{self.start}scaling"] = (d,) if self.config.scaling == "channel" else (1,)
        return shapes

    def names(self, *, low_rank: bool) -> Iterator[tuple[str, str]]:
        """Their names and ours of what is held as it is, factors too."""
        for part in ("down", "up"):
            start = self._linear(part)[0]
            held = {f"{start}weight": "weight", f"{start}bias": "bias"}
            if self.config.phm_layer:
                held = dict(zip(self._terms(part), ("s", "t") if low_rank else ("B",), strict=False))
                held |= {f"{start}b": "bias", next(iter(self._rule(part))): "A"}
            yield from ((theirs, f"{self.site.name}/{part}.{ours}") for theirs, ours in held.items())
        for theirs, ours in self._norms():
            yield from ((f"{self.start}{theirs}{of}", f"{self.site.name}/{ours}.{of}") for of in ("weight", "bias"))

    def _norms(self) -> list[tuple[str, str]]:
        """Their names and ours; the one before the first linear layer has two."""
        before = [("adapter_down.0.", "norm_before"), ("adapter_norm_before.", "norm_before")] * self.config.ln_before
        return before + [("adapter_norm_after.", "norm_after")] * self.config.ln_after

    def tensors(self, state: StateDict, width: int, *, factored: bool, low_rank: bool) -> dict[str, Tensor]:
        """As a module of factors, or of whole weights; zeros fill up to the widest layer's bottleneck.

        The scale goes into the last tensors of ``up``.
        """
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
            if low_rank:
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
