"""A bundle that several of these files read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def all_methods(tiny: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a tiny BERT with a random task of each method, by its name with ``p`` for ``+``; not to be written to."""
    from deltas import TEXTS, random_delta, saved, small_settings
    from once import made_once

    from edgepeft.backbones.source import open_backbone
    from edgepeft.methods.base import methods
    from edgepeft.training.exporting.bundle import export_bundle

    def make(folder: Path) -> None:
        backbone = open_backbone(str(tiny("bert")))
        deltas = [
            random_delta(backbone, name, name.replace("+", "p"), settings=small_settings(name)) for name in methods()
        ]
        paths = [saved(delta, folder / delta.card.task) for delta in deltas]
        export_bundle(backbone, paths, folder / "bundle", texts=TEXTS[:20])

    return made_once(tmp_path_factory, "all-methods", make) / "bundle"
