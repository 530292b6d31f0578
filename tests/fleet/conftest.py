"""A bundle that is published, its repository served over loopback, and a board that has pulled it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.static_server import Served, serving


@dataclass
class Fleet:
    """A publisher's folders; ``served`` is the repository as boards reach it."""

    bundle: Path
    repository: Path
    keys: Path
    served: Served

    @property
    def root(self) -> Path:
        return self.repository / "metadata" / "1.root.json"

    def publish(self, bundle=None, **options):
        from edgepeft.fleet.publish import publish

        return publish(bundle or self.bundle, self.repository, self.keys, **options)

    def pull(self, board: Path, **options):
        from edgepeft.fleet.pull import pull

        return pull(self.served.address, board, root=self.root, **options)


@pytest.fixture(scope="session")
def retrained(exported, tiny, tmp_path_factory):
    """``newer``, the same bundle with another delta as ``mood``, and ``other``, of another backbone. Not to be written to."""
    from deltas import TEXTS, random_delta, saved
    from once import made_once

    from edgepeft.backbones.source import open_backbone
    from edgepeft.training.exporting.bundle import add_deltas, export_bundle

    def make(folder: Path) -> None:
        same = open_backbone(str(tiny("bert", mean=True)))
        shutil.copytree(exported, folder / "newer")
        delta = saved(random_delta(same, "lora", "mood", seed=1), folder / "mood")
        add_deltas(folder / "newer", [delta], replace=True, backbone=same)
        other = open_backbone(str(tiny("bert", mean=True, hidden_size=16)))
        deltas = [saved(random_delta(other, "lora", task), folder / f"other-{task}") for task in ("mood", "news")]
        export_bundle(other, deltas, folder / "other", texts=TEXTS)

    return made_once(tmp_path_factory, "retrained", make)


@pytest.fixture(scope="session")
def published(exported, tmp_path_factory) -> Path:
    """``repository`` and ``keys`` of that bundle, and ``board``, which has pulled it. Not to be written to."""
    from once import made_once

    def make(folder: Path) -> None:
        from edgepeft.fleet.publish import publish
        from edgepeft.fleet.pull import pull

        publish(exported, folder / "repository", folder / "keys")
        pull(str(folder / "repository"), folder / "board", root=folder / "repository" / "metadata" / "1.root.json")

    return made_once(tmp_path_factory, "published", make)


@pytest.fixture
def fleet(published, exported, tmp_path):
    """Copies of them, to be changed at will, and served."""
    for name in ("repository", "keys"):
        shutil.copytree(published / name, tmp_path / name)
    with serving(tmp_path / "repository") as served:
        yield Fleet(exported, tmp_path / "repository", tmp_path / "keys", served)


@pytest.fixture
def board(published, tmp_path) -> Path:
    """A copy of the board, which trusts what that one does."""
    from edgepeft.fleet.remote import pin

    pin(tmp_path / "board", (published / "repository" / "metadata" / "1.root.json").read_bytes())
    return Path(shutil.copytree(published / "board", tmp_path / "board", symlinks=True))
