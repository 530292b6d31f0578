"""Fixtures for every test: small random backbones, one thread, no cache of the user's, no network."""

from __future__ import annotations

import os

os.environ["ORT_DISABLE_TELEMETRY"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["EDGEPEFT_CHECK_CONTRACTS"] = "1"  # around every graph pass, in worker processes too
# Before torch and NumPy are imported: each of pytest's workers would start a thread for every core, and on models as small
# as these the threads wait for each other (half of the tests' time).  tests/isas.py sets two in one of its surroundings.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest_plugins = ["kernels"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Conversions go to a folder of the test run, never to the user's cache."""
    monkeypatch.setenv("EDGEPEFT_CACHE", str(tmp_path_factory.getbasetemp() / "edgepeft-cache"))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", place]
    mounted = subprocess.run(mount, check=False, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"needs the right to mount: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", place], check=True)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``tiny("roberta", hidden_size=16)`` -> a folder with that random model, written once a run."""
    from once import made_once
    from tiny import write_model

    def folder(model_type: str, **options: object) -> Path:
        key = "-".join([model_type, *(f"{name}={value}" for name, value in sorted(options.items()))])
        return made_once(tmp_path_factory, key, lambda folder: write_model(folder, model_type, **options))  # type: ignore[arg-type]

    return folder


@pytest.fixture(scope="session")
def exported(tiny: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a tiny BERT with three random tasks: ``mood`` (LoRA, 2 labels), ``pair`` (Houlsby with
    its LayerNorms, 3 labels, pairs) and ``score`` (regression).  Its deltas lie beside it.  Not to be written to.
    """
    from deltas import TEXTS, random_delta, saved
    from once import made_once

    from edgepeft.backbones.source import open_backbone
    from edgepeft.training.exporting.bundle import export_bundle

    def make(folder: Path) -> None:
        backbone = open_backbone(str(tiny("bert", mean=True)))
        deltas = [
            random_delta(backbone, "lora", "mood"),
            random_delta(backbone, "houlsby", "pair", ("a", "b", "c"), pairs=True, settings={"bottleneck": 4}),
            random_delta(backbone, "bitfit", "score", None),
        ]
        paths = [saved(delta, folder / f"delta-{delta.card.task}") for delta in deltas]
        export_bundle(backbone, paths, folder / "bundle", texts=TEXTS)

    return made_once(tmp_path_factory, "exported", make) / "bundle"


@pytest.fixture(scope="session")
def trainable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of fresh deltas to be tuned: ``mood`` (Pfeiffer, 2 labels), ``score`` (LayerNorms, a
    regression) and the template ``lora``.  Its deltas and its backbone lie beside it.  Not to be written to.
    """
    import torch
    from deltas import TEXTS
    from once import made_once
    from tiny import write_model

    from edgepeft.backbones.source import open_backbone
    from edgepeft.bundle.delta import new_delta
    from edgepeft.methods.base import method_named
    from edgepeft.training.exporting.bundle import export_bundle

    def make(folder: Path) -> None:
        backbone = open_backbone(str(write_model(folder / "bert", "bert", mean=True)))
        pfeiffer = method_named("pfeiffer").from_settings({"bottleneck": 4})
        asked = {"mood": (pfeiffer, ("bad", "good")), "score": (method_named("layernorm").from_settings({}), None)}
        for task, (method, labels) in asked.items():
            torch.manual_seed(0)
            new_delta(backbone, method, task, labels, max_length=40).save(folder / task)
        templates = [method_named("lora").from_settings({"rank": "2"})]
        paths = [folder / task for task in asked]
        export_bundle(backbone, paths, folder / "bundle", texts=TEXTS, templates=templates)

    return made_once(tmp_path_factory, "trainable", make) / "bundle"


@pytest.fixture
def bundle(exported: Path, tmp_path: Path) -> Path:
    """A copy of that bundle, to be changed at will."""
    import shutil

    return Path(shutil.copytree(exported, tmp_path / "bundle"))


@pytest.fixture
def given_away(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], int]:
    """Makes a folder another user's: root gives it away, anybody else becomes another. The owner's number."""
    import os

    def give(folder: Path) -> int:
        if os.getuid() == 0:
            os.chown(folder, 4242, 4242)
        else:
            monkeypatch.setattr("os.geteuid", lambda: 4242)
        return folder.stat().st_uid

    return give


@pytest.fixture(scope="session")
def several_texts(tiny: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a tiny T5 with ``writing.TASKS``, which write text, and ``mood``, which has labels.  Not to be
    written to.
    """
    from once import made_once
    from writing import END, export_several

    backbone = tiny("t5", eos_token_id=END)
    return made_once(tmp_path_factory, "several-texts", lambda folder: export_several(backbone, folder)) / "bundle"
