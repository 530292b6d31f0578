"""Random weights for a config.

Throughput does not depend on what the weights are, so a benchmark needs no download.  Matrices are
N(0, 0.02) as the models themselves start (Devlin et al. 2018), norms are the identity, biases zero.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from edgepeft.backbones.base import Architecture, family_of
from edgepeft.resources import write_json

__all__ = ["write_random_checkpoint"]


def write_random_checkpoint(config: dict[str, Any], folder: Path, *, seed: int = 0) -> Architecture:
    """Write ``config.json`` and a random ``model.safetensors`` in HF layout; same seed, same bytes."""
    from safetensors.numpy import save_file

    architecture = family_of(config).architecture(config)
    source = np.random.default_rng(seed)
    shapes = {**architecture.tensors, **architecture.pooler}
    save_file(
        {name: _random(name, shape, source) for name, shape in shapes.items()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    write_json(folder / "config.json", config)
    return architecture


def _random(name: str, shape: tuple[int, ...], source: np.random.Generator) -> np.ndarray:
    if len(shape) == 2:
        return 0.02 * source.standard_normal(shape, np.float32)
    return (np.ones if name.endswith("weight") else np.zeros)(shape, np.float32)
