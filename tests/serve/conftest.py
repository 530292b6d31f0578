"""One service for the tests that only ask."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def served(exported, tmp_path_factory):
    """``edgepeft serve`` on the tiny bundle, with its defaults."""
    pytest.importorskip("uvicorn", reason="needs pip install edgepeft[serve]")
    from served import serving

    with serving(exported, tmp_path_factory.mktemp("serve"), "--no-cache") as running:
        yield running


@pytest.fixture(scope="session")
def picking(tiny, tmp_path_factory):
    """The same of a bundle of one task, ``pick``, which picks one of a row's candidates."""
    pytest.importorskip("uvicorn", reason="needs pip install edgepeft[serve]")
    from deltas import TEXTS, random_delta, saved
    from served import serving

    from edgepeft.backbones.source import open_backbone
    from edgepeft.training.exporting.bundle import export_bundle

    folder, backbone = tmp_path_factory.mktemp("picking"), open_backbone(str(tiny("bert", mean=True)))
    delta = saved(random_delta(backbone, "lora", "pick", None, kind="choice", pairs=True), folder / "delta")
    export_bundle(backbone, [delta], folder / "bundle", texts=TEXTS)
    with serving(folder / "bundle", folder) as running:  # with the cache: tasks are tried in a process of their own
        yield running
