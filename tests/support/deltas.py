"""Random deltas that move the logits: a fresh one is nearly the identity and would hide an unspliced graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from method_examples import examples

from edgepeft.backbones.source import Backbone
from edgepeft.backbones.tokens import Text
from edgepeft.bundle.delta import Delta, new_delta
from edgepeft.methods.base import method_named, methods
from edgepeft.training.exporting.bundle import export_bundle

TEXTS = [Text(" ".join(f"w{5 + (i * 7 + j) % 50}" for j in range(1 + (i * 7) % 41))) for i in range(70)]


_SMALL = {
    "adapterdrop": {"skip_layers": 1},
    "top-k": {"layers": 1},
    "prompt-t": {"length": 3},
    "prompt-r": {"length": 3},
}


def small_settings(method: str) -> dict[str, Any]:
    """Those of a method's first example, on a model of two layers."""
    return dataclasses.asdict(examples(methods()[method])[0]) | _SMALL.get(method, {})


def random_delta(
    backbone: Backbone,
    method: str,
    task: str,
    labels: tuple[str, ...] | None = ("no", "yes"),
    *,
    seed: int = 0,
    **more: Any,
) -> Delta:
    settings, longest = more.pop("settings", {}), more.pop("max_length", 40)
    torch.manual_seed(seed)
    delta = new_delta(
        backbone, method_named(method).from_settings(settings), task, labels, max_length=longest, **more
    ).eval()
    for parameter in delta.parameters():
        parameter.data.add_(0.3 * torch.randn_like(parameter))
    return delta


def saved(delta: Delta, folder: Path) -> Path:
    delta.save(folder, force=True)
    return folder


def bundled(deltas: Mapping[str, Delta], backbone: Backbone, folder: Path, weights: str) -> Path:
    """A bundle of these tasks, with the backbone's weights as ``fp32`` or ``int8``."""
    paths = [saved(delta, folder / f"delta-{name}") for name, delta in deltas.items()]
    export_bundle(backbone, paths, folder / "bundle", texts=TEXTS[:16], weights=weights)
    return folder / "bundle"
