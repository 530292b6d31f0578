"""PEFT's (IA)^3 (``IA3``): ``ia3_l`` scales a linear layer's output, or the input of a ``feedforward`` module.

Its default for BERT, ``output.dense``, means two modules a layer: the feed-forward's second product, whose input is our
``ffn_activation``, and attention's output projection.  The latter's input is a mean of values, channel by channel, so a
scale on it is one on the values.

LayerNorm tuning (``LN_TUNING``) stands here too.  Source: peft 0.21.2, ``tuners/ia3/layer.py`` and ``model.py``.
"""

from collections import defaultdict
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from edgepeft.backbones.base import Role
from edgepeft.bundle.delta import Delta
from edgepeft.common.errors import BundleError, UsageError
from edgepeft.methods.base import crossed
from edgepeft.methods.ia3 import IA3, ROLES
from edgepeft.methods.layernorm import LayerNormTuning
from edgepeft.training.interop.base import ConversionPlan, StateDict
from edgepeft.training.interop.classifier import Classifier
from edgepeft.training.interop.peft_methods.base import PeftConfig, WrapConfig

# A linear layer's role -> ours, where its input is scaled.
_INPUTS = {
    Role.FFN_OUTPUT: Role.FFN_ACTIVATION,
    Role.ATTENTION_OUTPUT: Role.VALUE,
    Role.CROSS_ATTENTION_OUTPUT: Role.CROSS_VALUE,
}


class Ia3Config(WrapConfig):
    """Vectors that scale."""

    kind: ClassVar[str] = "IA3"
    ours: ClassVar[tuple[str, ...]] = (IA3.name,)
    ignored: ClassVar[frozenset[str]] = PeftConfig.ignored | {"init_ia3_weights"}

    feedforward_modules: str | list[str]

    def plan(self, classifier: Classifier, folder: Path) -> ConversionPlan:
        """Ones where a layer that has modules lacks one of the chosen roles."""
        wanted = self.feedforward_modules
        factors: dict[str, list[str]] = defaultdict(list)  # by site
        shapes: dict[str, tuple[int, ...]] = {}
        for module, site in self.adapted_sites(classifier, folder).items():
            name = f"{module}.ia3_l"
            # As theirs: a text is a pattern for the whole name, a list has ends of names, with or without a dot.
            if not (self._matches(wanted, module) if isinstance(wanted, str) else module.endswith(tuple(wanted))):
                factors[site.name].append(name)
                shapes[name] = (site.out_features, 1)
            elif site.role in _INPUTS:
                factors[site.name.removesuffix(site.role) + _INPUTS[site.role]].append(name)
                shapes[name] = (1, site.in_features)
            else:
                raise BundleError(
                    f"{folder} scales the input of {module}, which no delta can represent. Train it without this one "
                    "in feedforward_modules."
                )
        sites = [classifier.architecture.site(name) for name in factors]
        scaled = {site.role for site in sites}
        roles = tuple(str(role) for role in ROLES if not scaled.isdisjoint((role, *crossed((role,)))))
        method = IA3(roles=roles, **self.without_modules(sites, classifier))

        def convert(state: StateDict) -> dict[str, Tensor]:
            values = {}
            for site in method.sites(classifier.architecture):
                vectors = [state[name].flatten() for name in factors[site.name]]
                values[f"{site.name}/scale"] = torch.stack([torch.ones(site.out_features), *vectors]).prod(0)
            return values

        return ConversionPlan(method, shapes, convert)

    @classmethod
    def written(cls, delta: Delta, method: Any, classifier: Classifier) -> tuple[dict[str, Any], dict[str, Tensor]]:
        site_of = delta.architecture.site
        activations = [name for name in delta.site_modules if site_of(name).role is Role.FFN_ACTIVATION]
        readers = {name: name.replace(Role.FFN_ACTIVATION, Role.FFN_OUTPUT) for name in activations}
        twice = [reader for reader in readers.values() if reader in delta.site_modules]
        if twice:
            raise UsageError(
                f"the task {delta.card.task!r} scales {twice[0]} and what its linear layer reads; PEFT has one vector "
                "for a linear layer. Train it with other roles: --set roles=key,value,ffn_activation."
            )
        modules = classifier.modules_of(readers.get(name, name) for name in delta.site_modules)
        tensors = {}
        for name, module in delta.site_modules.items():
            (scale,) = module.parameters()
            shape = (1, -1) if name in readers else (-1, 1)
            tensors[f"{modules[readers.get(name, name)]}.ia3_l"] = scale.reshape(shape)
        settings = {
            "target_modules": list(modules.values()),
            "feedforward_modules": [modules[reader] for reader in readers.values()],
            "fan_in_fan_out": False,
            "init_ia3_weights": True,
        }
        return settings, tensors


class NormConfig(WrapConfig):
    """The norms that it names; the others stay as they are."""

    kind: ClassVar[str] = "LN_TUNING"
    ours: ClassVar[tuple[str, ...]] = (LayerNormTuning.name,)

    def plan(self, classifier: Classifier, folder: Path) -> ConversionPlan:
        norms = [classifier.prefix + norm for norm in classifier.architecture.norms]
        targets = self.adapted(classifier, norms, "LayerNorm", folder)
        tensors = [f"{module}.{part}" for module in targets for part in ("weight", "bias")]
        held = [tensor for tensor in tensors if tensor in classifier.tensors]  # T5's have no bias
        return ConversionPlan.renaming(LayerNormTuning(), classifier.overrides(held))

    @classmethod
    def written(cls, delta: Delta, method: Any, classifier: Classifier) -> tuple[dict[str, Any], dict[str, Tensor]]:
        own = delta.override_tensors
        held = [theirs.rpartition(".") for theirs, ours in classifier.tensors.items() if ours in own]
        tensors = {
            f"{module}.ln_tuning_layers.{part}": own[classifier.tensors[f"{module}.{part}"]] for module, _, part in held
        }
        return {"target_modules": list(dict.fromkeys(module for module, _, _ in held))}, tensors
