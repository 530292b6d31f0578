"""PEFT's VeRA (``VERA``): two vectors a linear layer around one pair of random matrices.

Those are our own: see ``edgepeft.common.frozen_random``.  A file that holds them too must hold what its seed gives.

Source: peft 0.21.2, ``tuners/vera/model.py``.
"""

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from edgepeft.backbones.base import Site
from edgepeft.bundle.delta import Delta
from edgepeft.common.errors import BundleError
from edgepeft.common.frozen_random import SEEDS, frozen_matrices
from edgepeft.methods.vera import VeRA
from edgepeft.training.interop.base import ConversionPlan, StateDict
from edgepeft.training.interop.classifier import Classifier
from edgepeft.training.interop.peft_methods.base import LayeredConfig, PeftConfig

_PARTS = {"d": "vera_lambda_d", "b": "vera_lambda_b"}
_MATRICES = {"A": "base_model.vera_A", "B": "base_model.vera_B"}
_ROUNDING = 1e-6  # of the matrices, which are less than 1 but for a rank or width below 6


class VeraConfig(LayeredConfig):
    """Vectors, and the seed of the rest."""

    kind: ClassVar[str] = "VERA"
    ours: ClassVar[tuple[str, ...]] = (VeRA.name,)
    unprefixed: ClassVar[Collection[str]] = tuple(_MATRICES.values())
    ignored: ClassVar[frozenset[str]] = PeftConfig.ignored | {
        "d_initial",
        "fan_in_fan_out",  # of GPT-2's Conv1D; PEFT itself turns it off on a linear layer
        "init_weights",
        "vera_dropout",
    }

    r: int = Field(ge=1, strict=True)
    projection_prng_key: int = Field(0, ge=0, lt=SEEDS)
    save_projection: bool = True
    bias: Literal["none"] = "none"

    def plan(self, classifier: Classifier, folder: Path) -> ConversionPlan:
        """b is zero where a layer that has modules lacks one of the chosen roles."""
        sites = self.adapted_sites(classifier, folder)
        method = VeRA(rank=self.r, seed=self.projection_prng_key, **self.places(sites.values(), classifier))
        matrices = _shapes(sites.values(), self.r) if self.save_projection else {}
        shapes: dict[str, tuple[int, ...]] = {_MATRICES[name]: shape for name, shape in matrices.items()}
        for module, site in sites.items():
            shapes |= {f"{module}.{_PARTS['d']}": (self.r,), f"{module}.{_PARTS['b']}": (site.out_features,)}

        def convert(state: StateDict) -> dict[str, Tensor]:
            for name, matrix in frozen_matrices(self.projection_prng_key, matrices).items():
                if not torch.allclose(state[_MATRICES[name]], torch.from_numpy(matrix), rtol=0, atol=_ROUNDING):
                    raise BundleError(
                        f"{folder}: {_MATRICES[name]} is not what projection_prng_key = {self.projection_prng_key} "
                        "gives in PEFT, and a delta keeps the key alone. Save it in float32, as PEFT drew it; or "
                        "merge it into its model there and use that as the backbone."
                    )
            values: dict[str, Tensor] = {}
            for site in method.sites(classifier.architecture):
                values |= {f"{site.name}/d": torch.zeros(self.r), f"{site.name}/b": torch.zeros(site.out_features)}
            for module, site in sites.items():
                values |= {f"{site.name}/{ours}": state[f"{module}.{theirs}"] for ours, theirs in _PARTS.items()}
            return values

        return ConversionPlan(method, shapes, convert)

    @classmethod
    def written(cls, delta: Delta, method: Any, classifier: Classifier) -> tuple[dict[str, Any], dict[str, Tensor]]:
        modules, ours = classifier.modules_of(delta.site_modules), delta.tensors()
        shapes = _shapes(map(delta.architecture.site, modules), method.rank)
        tensors = {_MATRICES[name]: torch.from_numpy(m) for name, m in frozen_matrices(method.seed, shapes).items()}
        for site, module in modules.items():
            tensors |= {f"{module}.{theirs}": ours[f"{site}/{part}"] for part, theirs in _PARTS.items()}
        settings = {
            "r": method.rank,
            "projection_prng_key": method.seed,
            "save_projection": True,
            "target_modules": list(modules.values()),
            "bias": "none",
            "d_initial": method.initial,
            "vera_dropout": 0.0,
            "fan_in_fan_out": False,
            "init_weights": True,
        }
        return settings, tensors


def _shapes(sites: Iterable[Site], rank: int) -> dict[str, tuple[int, int]]:
    """Of the matrices, as the widest of the sites ask for."""
    widths = [(site.in_features, site.out_features) for site in sites]
    return {"A": (rank, max(inputs for inputs, _ in widths)), "B": (max(outputs for _, outputs in widths), rank)}
