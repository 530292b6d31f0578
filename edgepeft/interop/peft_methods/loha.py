"""PEFT's LoHa (``LOHA``): two pairs of factors a linear layer.

Where ranks differ, zeros fill up to the largest; where scales differ, the first factor takes the difference.

Source: peft 0.21.2, ``tuners/loha/layer.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import torch
from pydantic import FiniteFloat
from torch import Tensor
from torch.nn import functional

from edgepeft.delta import Delta
from edgepeft.interop.classifier import Classifier
from edgepeft.interop.conversion import ConversionPlan, StateDict
from edgepeft.interop.peft_methods._layered import RankedConfig
from edgepeft.interop.peft_methods.base import PeftConfig
from edgepeft.methods.base import method_named
from edgepeft.methods.loha import LoHa

__all__ = ["LohaConfig"]

_PARTS = ("w1_a", "w1_b", "w2_a", "w2_b")


class LohaConfig(RankedConfig):
    """Four factors."""

    kind: ClassVar[str] = "LOHA"
    ours: ClassVar[tuple[str, ...]] = (LoHa.name,)
    ignored: ClassVar[frozenset[str]] = PeftConfig.ignored | {
        "init_weights",
        "module_dropout",
        "rank_dropout",
        "use_effective_conv2d",  # of convolutions
    }

    alpha: FiniteFloat = 8

    @property
    def usual_alpha(self) -> float:
        """PEFT's ``alpha``."""
        return self.alpha

    def plan(self, classifier: Classifier, folder: Path) -> ConversionPlan:
        """As ``PeftConfig.plan``; zeros where a layer that has modules lacks one of the chosen roles."""
        targets = self.adapted(classifier, classifier.linear_sites, "linear layer with a site", folder)
        sites = {module: classifier.linear_sites[module] for module in targets}
        rank, alpha = max(map(self.rank_at, sites)), max(map(self.alpha_at, sites), key=abs) or 1.0
        method = LoHa(rank=rank, alpha=alpha, **self.places(sites.values(), classifier))
        shapes: dict[str, tuple[int, ...]] = {}
        for module, site in sites.items():
            up, down = (site.out_features, self.rank_at(module)), (self.rank_at(module), site.in_features)
            shapes |= {f"{module}.hada_{part}": up if part.endswith("a") else down for part in _PARTS}

        def convert(state: StateDict) -> dict[str, Tensor]:
            values: dict[str, Tensor] = {}
            for site in method.sites(classifier.architecture):
                ups, downs = torch.zeros(site.out_features, rank), torch.zeros(rank, site.in_features)
                values |= {f"{site.name}/{part}": ups if part.endswith("a") else downs for part in _PARTS}
            for module, site in sites.items():
                more, factor = rank - self.rank_at(module), self.scale_at(module) / method.scale
                for part in _PARTS:
                    found = state[f"{module}.hada_{part}"] * (factor if part == "w1_a" else 1)
                    padding = (0, more) if part.endswith("a") else (0, 0, 0, more)
                    values[f"{site.name}/{part}"] = functional.pad(found, padding)
            return values

        return ConversionPlan(method, shapes, convert)

    @classmethod
    def written(cls, delta: Delta, classifier: Classifier) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """As ``PeftConfig.written``."""
        method = method_named(delta.card.method).from_settings(delta.card.hyperparameters)
        assert isinstance(method, LoHa)
        modules, ours = classifier.modules_of(delta.site_modules), delta.tensors()
        pairs = ((site, module, part) for site, module in modules.items() for part in _PARTS)
        settings = {
            "r": method.rank,
            "alpha": int(method.alpha) if method.alpha.is_integer() else method.alpha,
            "target_modules": list(modules.values()),
            "rank_dropout": 0.0,
            "module_dropout": 0.0,
            "use_effective_conv2d": False,
            "init_weights": True,
        }
        return settings, {f"{module}.hada_{part}": ours[f"{site}/{part}"] for site, module, part in pairs}
