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

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
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


@dataclass(frozen=True)
class PhmWeights:
    """The names, shapes and values of such layers; ``shared`` opens the names of what all of them share."""

    config: BnConfig
    shared: str

    def shapes(self, start: str, inputs: int, outputs: int) -> Shapes:
        """Of one layer's own tensors."""
        shapes: Shapes = {}
        if not self.config.shared_phm_rule:
            shapes |= self._rule_shapes(start)
        if not self.config.shared_W_phm:
            shapes |= self._w_shapes(f"{start}W", inputs, outputs)
        return shapes | ({f"{start}b": (outputs,)} if self.config.phm_bias else {})

    def shared_shapes(self, hidden: int, width: int) -> Shapes:
        """Of what all layers share."""
        shapes = self._rule_shapes(self.shared) if self.config.shared_phm_rule else {}
        if self.config.shared_W_phm:
            shapes |= self._w_shapes(f"{self.shared}W_down", hidden, width)
            shapes |= self._w_shapes(f"{self.shared}W_up", width, hidden)
        return shapes

    def rule(self, state: StateDict, start: str) -> Tensor:
        """[n, n, n]."""
        where = self.shared if self.config.shared_phm_rule else start
        if self.config.factorized_phm_rule:
            return state[f"{where}phm_rule_left"] @ state[f"{where}phm_rule_right"]
        return state[f"{where}phm_rule"]

    def pair(self, state: StateDict, start: str, part: str) -> tuple[Tensor, Tensor]:
        """W's factors, [n, in/n, r] and [n, r, out/n]; ``part`` is down or up."""
        where = f"{self.shared}W_{part}" if self.config.shared_W_phm else f"{start}W"
        return state[f"{where}_left"], state[f"{where}_right"]

    def terms(self, state: StateDict, start: str, part: str) -> Tensor:
        """W, [n, in/n, out/n]."""
        if self.config.factorized_phm_W:
            left, right = self.pair(state, start, part)
            return left @ right
        return state[f"{start}W"]

    def _rule_shapes(self, start: str) -> Shapes:
        n = self.config.phm_dim
        if self.config.factorized_phm_rule:
            return {f"{start}phm_rule_left": (n, n, 1), f"{start}phm_rule_right": (n, 1, n)}
        return {f"{start}phm_rule": (n, n, n)}

    def _w_shapes(self, name: str, inputs: int, outputs: int) -> Shapes:
        n, r = self.config.phm_dim, self.config.phm_rank
        if inputs % n or outputs % n:
            raise BundleError(
                f"phm_dim = {n} does not divide {inputs} and {outputs}, the widths of a layer; fetch the config again."
            )
        if self.config.factorized_phm_W:
            return {f"{name}_left": (n, inputs // n, r), f"{name}_right": (n, r, outputs // n)}
        return {name: (n, inputs // n, outputs // n)}


SHARED = "shared_parameters."
_BOTH = (Role.ATTENTION_OUTPUT, Role.FFN_OUTPUT)

# Model type -> the modules of a layer that hold adapters; BERT's and its relatives' unless named.
_HOLDERS = {
    "distilbert": {
        "attention": "transformer.layer.{i}.attention_adapters",
        "output": "transformer.layer.{i}.output_adapters",
    }
}
_BERT = {"attention": "encoder.layer.{i}.attention.output", "output": "encoder.layer.{i}.output"}


@dataclass(frozen=True)
class Places:
    """Where a checkpoint keeps the tensors of the adapter of that name."""

    classifier: Classifier
    adapter: str

    def of_adapter(self, site: Site) -> str:
        """The start of a bottleneck adapter's names."""
        if self.classifier.has_decoder:  # a T5's sub-layers hold them themselves
            return f"{site.residual[0] if site.residual else site.reads}.adapters.{self.adapter}."
        holders = _HOLDERS.get(self.classifier.architecture.model_type, _BERT)
        holder = holders["attention" if site.role is Role.ATTENTION_OUTPUT else "output"].format(i=site.layer)
        return f"{self.classifier.prefix}{holder}.adapters.{self.adapter}."

    def of_fusion(self, site: Site) -> str:
        """The start of the names of the attention over several adapters, whose name this is."""
        return self.of_adapter(site).replace(f"adapters.{self.adapter}.", f"adapter_fusion_layer.{self.adapter}.")

    def of_lora(self, site: Site) -> str:
        """The start of a LoRA's names."""
        return f"{self.classifier.prefix}{site.reads}.loras.{self.adapter}."

    @property
    def shared(self) -> str:
        """The start of the names of what all adapters share."""
        return f"{self.classifier.prefix}{SHARED}{self.adapter}."


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
    phm = PhmWeights(config, places.shared) if config.phm_layer else None
    readers = [_Reader(config, places.of_adapter(site), site, widths[site], phm) for site in every]
    shapes = dict(phm.shared_shapes(architecture.hidden_size, settings["bottleneck"])) if phm else {}
    for reader in readers:
        shapes |= reader.shapes()
    even, placed = len(set(widths.values())) == 1, form["reads"] != "residual" and not config.after_the_layer
    factored = config.phm_layer and _is_plain(form) and placed and config.scaling != "channel" and even
    if factored:
        method = _factored(config, form, settings)
    elif named := _NAMED.get((form["roles"], form["reads"])) if _is_plain(form) else None:
        method = named(**settings)
    else:
        method = BottleneckAdapter.from_settings({**settings, **form})

    def convert(state: StateDict) -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = {}
        for reader in readers:
            values = (
                reader.factors(state, low_rank=isinstance(method, Compacter))
                if factored
                else reader.dense(state, settings["bottleneck"])
            )
            tensors |= {f"{reader.site.name}/{name}": value for name, value in values.items()}
        return tensors

    as_they_are = config.scaling == 1.0 and even and (factored or phm is None)
    names = (pair for reader in readers for pair in reader.names(low_rank=isinstance(method, Compacter)))
    return ConversionPlan(method, shapes, convert, tuple(names) if as_they_are else ())


def _form(config: BnConfig) -> dict[str, Any]:
    """A config in the words of ``BottleneckAdapter``: roles, reads, keeps, norm_before, norm_after."""
    wanted = {Role.ATTENTION_OUTPUT: config.mh_adapter, Role.FFN_OUTPUT: config.output_adapter}
    roles = tuple(str(role) for role, chosen in wanted.items() if chosen)
    reads, keeps = "sublayer", "sublayer"
    after = "sum" if config.adapter_residual_before_ln and not config.is_parallel else "change"
    if config.is_parallel:
        reads = "residual"
    elif config.after_the_layer:  # z = k = LN(sub + res), which is the layer's output
        roles = (str(Role.LAYER_OUTPUT),)
    elif config.original_ln_before:
        reads, keeps = "norm", {True: "sublayer", False: "norm", "post_add": "sum"}[config.residual_before_ln]
    form = {"roles": roles, "reads": reads, "keeps": keeps, "norm_before": config.ln_before}
    return {**form, "norm_after": after if config.ln_after else "none"}


def _is_plain(form: Mapping[str, Any]) -> bool:
    """Whether it adds to the sub-layer's output, without norms of its own."""
    return form["keeps"] == "sublayer" and not form["norm_before"] and form["norm_after"] == "none"


def _factored(config: BnConfig, form: Mapping[str, Any], settings: Mapping[str, Any]) -> PerLayer:
    more = {"n": config.phm_dim, "roles": form["roles"], "reads": form["reads"], "norms": False}
    if not (config.shared_phm_rule and config.factorized_phm_W):
        return PHM.from_settings({**settings, **more})
    method = CompacterPlusPlus if form["roles"] == (Role.FFN_OUTPUT,) else Compacter
    return method.from_settings({**settings, **more, "rank": config.phm_rank})


@dataclass(frozen=True)
class _Reader:
    """One adapter of theirs: ``start`` opens its tensors' names, ``width`` is its bottleneck."""

    config: BnConfig
    start: str
    site: Site
    width: int
    phm: PhmWeights | None

    def _linear(self, part: str) -> str:
        """Where down's or up's names start; a norm before the first linear layer is counted."""
        return f"{self.start}adapter_{part}." + (f"{int(self.config.ln_before)}." if part == "down" else "")

    def shapes(self) -> Shapes:
        """Of the tensors that the file must hold."""
        d, m = self.site.out_features, self.width
        down, up = self._linear("down"), self._linear("up")
        shapes: Shapes = {}
        if self.phm:
            shapes |= self.phm.shapes(down, d, m) | self.phm.shapes(up, m, d)
        else:
            shapes |= {f"{down}weight": (m, d), f"{down}bias": (m,)}
            shapes |= {f"{up}weight": (d, m), f"{up}bias": (d,)}
        shapes |= {f"{self.start}{norm}{part}": (d,) for norm, _ in self._norms() for part in ("weight", "bias")}
        if isinstance(self.config.scaling, str):
            shapes[f"{self.start}scaling"] = (d,) if self.config.scaling == "channel" else (1,)
        return shapes

    def names(self, *, low_rank: bool) -> Iterator[tuple[str, str]]:
        """Their names and ours of what is held as it is, factors too."""
        for part in ("down", "up"):
            start = self._linear(part)
            whole, factors = {"weight": "weight", "bias": "bias"}, {"W": "B", "b": "bias"}
            if low_rank:
                factors = {"W_left": "s", "W_right": "t", "b": "bias"}
            for theirs, ours in (factors if self.phm else whole).items():
                yield f"{start}{theirs}", f"{self.site.name}/{part}.{ours}"
            if self.phm:
                where = self.phm.shared if self.config.shared_phm_rule else start
                yield f"{where}phm_rule", f"{self.site.name}/{part}.A"
        for theirs, ours in self._norms():
            for of in ("weight", "bias"):
                yield f"{self.start}{theirs}{of}", f"{self.site.name}/{ours}.{of}"

    def _norms(self) -> list[tuple[str, str]]:
        """Their names and ours; the one before the first linear layer has two."""
        before = [("adapter_down.0.", "norm_before"), ("adapter_norm_before.", "norm_before")] * self.config.ln_before
        return before + [("adapter_norm_after.", "norm_after")] * self.config.ln_after

    def dense(self, state: StateDict, width: int) -> dict[str, Tensor]:
        """As a module with whole weights; zeros fill up to the widest layer's bottleneck."""
        more, scale = width - self.width, self._scale(state)
        down, up = self._weight(state, "down"), self._weight(state, "up")
        tensors = {
            "down.weight": functional.pad(down, (0, 0, 0, more)),
            "down.bias": functional.pad(self._bias(state, "down"), (0, more)),
            "up.weight": functional.pad(up * scale.view(-1, 1), (0, more)),
            "up.bias": self._bias(state, "up") * scale,
        }
        for theirs, ours in self._norms():
            tensors |= {f"{ours}.{part}": state[f"{self.start}{theirs}{part}"] for part in ("weight", "bias")}
        return tensors

    def factors(self, state: StateDict, *, low_rank: bool) -> dict[str, Tensor]:
        """As a module of factors; the scale goes into the last one of ``up``."""
        assert self.phm is not None
        tensors: dict[str, Tensor] = {}
        for part, scale in (("down", torch.ones(1)), ("up", self._scale(state))):
            start = self._linear(part)
            tensors[f"{part}.A"] = self.phm.rule(state, start)
            if low_rank:
                left, right = self.phm.pair(state, start, part)
                tensors |= {f"{part}.s": left, f"{part}.t": right * scale}
            else:
                tensors[f"{part}.B"] = self.phm.terms(state, start, part) * scale
            tensors[f"{part}.bias"] = self._bias(state, part) * scale
        return tensors

    def _weight(self, state: StateDict, part: str) -> Tensor:
        start = self._linear(part)
        if self.phm is None:
            return state[f"{start}weight"]
        return kronecker_sum(self.phm.rule(state, start), self.phm.terms(state, start, part))  # H^T, [out, in]

    def _bias(self, state: StateDict, part: str) -> Tensor:
        start, size = self._linear(part), self.width if part == "down" else self.site.out_features
        if self.phm is None:
            return state[f"{start}bias"]
        return state[f"{start}b"] if self.config.phm_bias else torch.zeros(size)

    def _scale(self, state: StateDict) -> Tensor:
        given = self.config.scaling
        return state[f"{self.start}scaling"] if isinstance(given, str) else torch.tensor([given])
