"""PEFT's LoHa (``LOHA``) and LoKr (``LOKR``): matrices, or pairs of factors, that are of a rank.

Where ranks differ, zeros fill factors up to the largest, and a matrix that has factors there alone takes their product;
where scales differ, the first tensor takes the difference.

Source: peft 0.21.2, ``tuners/lycoris_utils.py``, ``tuners/loha/layer.py``, ``tuners/lokr/layer.py``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from pydantic import Field, FiniteFloat
from torch import Tensor
from torch.nn import functional

from edgepeft.backbones.base import Site
from edgepeft.bundle.delta import Delta
from edgepeft.methods.base import method_named
from edgepeft.methods.loha import LoHa
from edgepeft.methods.lokr import LoKr
from edgepeft.methods.lora import RankedUpdates
from edgepeft.training.interop.base import ConversionPlan, StateDict
from edgepeft.training.interop.classifier import Classifier
from edgepeft.training.interop.peft_methods.base import PeftConfig, RankedConfig


class LycorisConfig(RankedConfig):
    """Tensors that are named as ours are, with ``stem`` in front."""

    stem: ClassVar[str]
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

    @abstractmethod
    def method(self, **settings: Any) -> RankedUpdates:
        """Ours, of a rank, an alpha and places."""

    @classmethod
    def more_settings(cls, method: RankedUpdates) -> dict[str, Any]:
        """What the config of a method of ours has besides rank, alpha and places."""
        return {}

    def plan(self, classifier: Classifier, folder: Path) -> ConversionPlan:
        """As ``PeftConfig.plan``; zeros where a layer that has modules lacks one of the chosen roles."""
        targets = self.adapted(classifier, classifier.linear_sites, "linear layer with a site", folder)
        sites = {module: classifier.linear_sites[module] for module in targets}
        rank, alpha = max(map(self.rank_at, sites)), max(map(self.alpha_at, sites), key=abs) or 1.0
        method = self.method(rank=rank, alpha=alpha, **self.places(sites.values(), classifier))
        theirs = {at: _shapes(replace(method, rank=self.rank_at(at)), site) for at, site in sites.items()}

        def convert(state: StateDict) -> dict[str, Tensor]:
            values: dict[str, Tensor] = {}
            for site in method.sites(classifier.architecture):
                values |= {f"{site.name}/{part}": torch.zeros(shape) for part, shape in _shapes(method, site).items()}
            for module, site in sites.items():
                found = {part: state[f"{module}.{self.stem}{part}"] for part in theirs[module]}
                first = next(iter(found))
                found[first] = found[first] * (self.scale_at(module) / method.scale)
                ours = _shapes(method, site).items()
                values |= {f"{site.name}/{part}": _fitted(found, part, shape) for part, shape in ours}
            return values

        shapes = {f"{at}.{self.stem}{part}": shape for at, parts in theirs.items() for part, shape in parts.items()}
        return ConversionPlan(method, shapes, convert)

    @classmethod
    def written(cls, delta: Delta, classifier: Classifier) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """As ``PeftConfig.written``."""
        method = method_named(delta.card.method).from_settings(delta.card.hyperparameters)
        assert isinstance(method, RankedUpdates)
        modules = classifier.modules_of(delta.site_modules)
        parts = ((at, *part) for site, at in modules.items() for part in delta.site_modules[site].named_parameters())
        settings = {
            "r": method.rank,
            "alpha": int(method.alpha) if method.alpha.is_integer() else method.alpha,
            "target_modules": list(modules.values()),
            "rank_dropout": 0.0,
            "module_dropout": 0.0,
            "use_effective_conv2d": False,
            "init_weights": True,
            **cls.more_settings(method),
        }
        return settings, {f"{module}.{cls.stem}{part}": tensor for module, part, tensor in parts}


def _shapes(method: RankedUpdates, site: Site) -> dict[str, tuple[int, ...]]:
    """Of the module that a method has at a site."""
    with torch.device("meta"):
        module = method.build_at(site)
    return {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}


def _fitted(found: Mapping[str, Tensor], part: str, shape: tuple[int, ...]) -> Tensor:
    """Ours, of a rank that is theirs or larger."""
    if part not in found:
        return found[f"{part}_a"] @ found[f"{part}_b"]
    rows, columns = found[part].shape
    return functional.pad(found[part], (0, shape[1] - columns, 0, shape[0] - rows))


class LohaConfig(LycorisConfig):
    """Four factors."""

    kind: ClassVar[str] = "LOHA"
    ours: ClassVar[tuple[str, ...]] = (LoHa.name,)
    stem: ClassVar[str] = "hada_"

    def method(self, **settings: Any) -> LoHa:
        """Ours."""
        return LoHa(**settings)


class LokrConfig(LycorisConfig):
    """Which matrices are products is not said, but follows from ranks and widths."""

    kind: ClassVar[str] = "LOKR"
    ours: ClassVar[tuple[str, ...]] = (LoKr.name,)
    stem: ClassVar[str] = "lokr_"
    ignored: ClassVar[frozenset[str]] = LycorisConfig.ignored | {"rank_dropout_scale"}

    decompose_both: bool = False
    decompose_factor: int = Field(-1, ge=-1, strict=True)

    def method(self, **settings: Any) -> LoKr:
        """Ours."""
        return LoKr(both=self.decompose_both, factor=self.decompose_factor, **settings)

    @classmethod
    def more_settings(cls, method: RankedUpdates) -> dict[str, Any]:
        """What says how widths are parted."""
        assert isinstance(method, LoKr)
        return {"decompose_both": method.both, "decompose_factor": method.factor, "rank_dropout_scale": False}
