"""Named architectures whose config is package data, and random weights for them.

Throughput does not depend on what the weights are, so a benchmark needs no download.  Matrices are
N(0, 0.02) as the models themselves start (Devlin et al. 2018), norms are the identity, biases zero.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from edgepeft.backbones.base import Architecture, family_of
from edgepeft.errors import UnknownName
from edgepeft.resources import package_data, write_json

__all__ = ["architecture_names", "config_of", "write_random_checkpoint"]


def architecture_names() -> list[str]:
    """The names that ``config_of`` knows."""
    return sorted(path.stem for path in package_data("architectures").glob("*.json"))


def config_of(name: str) -> dict[str, Any]:
    """The Hugging Face config of a named architecture; an organisation before a slash may be left out.

    Raises:
        UnknownName: no such architecture is shipped.
    """
    known = {known.lower(): known for known in architecture_names()}
    key = name.rsplit("/", 1)[-1].lower()
    if key not in known:
        raise UnknownName("architecture", name, known.values())
    path = package_data("architectures") / f"{known[key]}.json"
    config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return config


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
