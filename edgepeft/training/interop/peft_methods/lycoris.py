"""PEFT's LoHa (``LOHA``) and LoKr (``LOKR``): matrices, or pairs of factors, that are of a rank.

Where ranks differ, zeros fill factors up to the largest, and a matrix that has factors there alone takes their product;
where scales differ, the first tensor takes the difference.

Source: peft 0.21.2, ``tuners/lycoris_utils.py``, ``tuners/loha/layer.py``, ``tuners/lokr/layer.py``.
"""

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
from edgepeft.methods.loha import LoHa
from edgepeft.methods.lokr import LoKr
from edgepeft.methods.lora import RankedUpdates
from edgepeft.training.interop.base import ConversionPlan, StateDict
from edgepeft.training.interop.classifier import Classifier
from edgepeft.training.interop.peft_methods.base import PeftConfig, RankedConfig


class LycorisConfig(RankedConfig):
    """Tensors that are named as ours are, with ``stem`` in front."""

    stem: ClassVar[str]
    method: ClassVar[type[RankedUpdates]]
    more: ClassVar[Mapping[str, str]] = {}  # what it has besides rank, alpha and places -> PEFT's name
    unused: ClassVar[Mapping[str, Any]] = {}  # further fields of PEFT's, as they are written
    ignored: ClassVar[frozenset[str]] = PeftConfig.ignored | {
        "init_weights",
        "module_dropout",
        "rank_dropout",
        "use_effective_conv2d",  # of convolutions
    }

    alpha: FiniteFloat = 8

    def plan(self, classifier: Classifier, folder: Path) -> ConversionPlan:
        """Zeros where a layer that has modules lacks one of the chosen roles."""
        sites = self.adapted_sites(classifier, folder)
        rank, alpha = max(map(self.rank_at, sites)), max(map(self.alpha_at, sites), key=abs) or 1.0
        more = {ours: getattr(self, theirs) for ours, theirs in self.more.items()}
        method = self.method(rank=rank, alpha=alpha, **more, **self.places(sites.values(), classifier))
        theirs = {at: _shapes(replace(method, rank=self.rank_at(at)), site) for at, site in sites.items()}

        def convert(state: StateDict) -> dict[str, Tensor]:
            values: dict[str, Tensor] = {}
            for site in method.sites(classifier.architecture):
                values |= {f"{site.name}/{part}": torch.zeros(shape) for part, shape in _shapes(method, site).items()}
            for module, site in sites.items():
                found = {part: state[f"{module}.{self.stem}{part}"] for part in theirs[module]}
                first = next(iter(found))
                found[first] = found[first] * (self.scale_at(module) / method.scale)
                for part, (rows, columns) in _shapes(method, site).items():  # of a rank that is theirs or larger
                    own = found[part] if part in found else found[f"{part}_a"] @ found[f"{part}_b"]
                    more = (0, columns - own.shape[1], 0, rows - own.shape[0])
                    values[f"{site.name}/{part}"] = functional.pad(own, more)
            return values

        shapes = {f"{at}.{self.stem}{part}": shape for at, parts in theirs.items() for part, shape in parts.items()}
        return ConversionPlan(method, shapes, convert)

    @classmethod
    def written(cls, delta: Delta, method: Any, classifier: Classifier) -> tuple[dict[str, Any], dict[str, Tensor]]:
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
            **{theirs: getattr(method, ours) for ours, theirs in cls.more.items()},
            **cls.unused,
        }
        return settings, {f"{module}.{cls.stem}{part}": tensor for module, part, tensor in parts}


def _shapes(method: RankedUpdates, site: Site) -> dict[str, tuple[int, ...]]:
    """Of the module that a method has at a site."""
    with torch.device("meta"):
        module = method.build_at(site)
    return {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}


class LohaConfig(LycorisConfig):
    """Four factors."""

    kind: ClassVar[str] = "LOHA"
    ours: ClassVar[tuple[str, ...]] = (LoHa.name,)
    stem: ClassVar[str] = "hada_"
    method: ClassVar[type[RankedUpdates]] = LoHa


class LokrConfig(LycorisConfig):
    """Which matrices are products is not said, but follows from ranks and widths."""

    kind: ClassVar[str] = "LOKR"
    ours: ClassVar[tuple[str, ...]] = (LoKr.name,)
    stem: ClassVar[str] = "lokr_"
    method: ClassVar[type[RankedUpdates]] = LoKr
    more: ClassVar[Mapping[str, str]] = {"both": "decompose_both", "factor": "decompose_factor"}
    unused: ClassVar[Mapping[str, Any]] = {"rank_dropout_scale": False}
    ignored: ClassVar[frozenset[str]] = LycorisConfig.ignored | {"rank_dropout_scale"}

    decompose_both: bool = False
    decompose_factor: int = Field(-1, ge=-1, strict=True)
