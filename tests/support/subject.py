"""The bundles that are put to the test: a tiny random BERT with three tasks, a tiny decoder with two that write text."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]


def subject(folder: Path) -> Path:
    """The bundle's folder below ``folder``, made if it is not there; deltas of its tasks lie beside it."""
    if (folder / "bundle" / "edgepeft.json").is_file():
        return folder / "bundle"
    import torch
    from deltas import TEXTS, random_delta, saved
    from tiny import write_model

    from edgepeft.backbones.source import open_backbone
    from edgepeft.training.exporting.bundle import export_bundle

    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    backbone = open_backbone(str(write_model(folder / "bert", "bert", mean=True)))
    deltas = [
        random_delta(backbone, "lora", "mood"),
        random_delta(backbone, "houlsby", "pair", ("a", "b", "c"), pairs=True, settings={"bottleneck": 4}),
        random_delta(backbone, "bitfit", "score", None),
    ]
    paths = [saved(delta, folder / f"delta-{delta.card.task}") for delta in deltas]
    export_bundle(backbone, paths, folder / "bundle", texts=TEXTS)
    return folder / "bundle"


def writer(folder: Path) -> Path:
    """The same of a decoder: ``free`` writes what it likes, ``own`` what a JSON schema allows."""
    if (folder / "bundle" / "edgepeft.json").is_file():
        return folder / "bundle"
    from spelling import export_schemas, write_speller

    return export_schemas(write_speller(folder / "model"), {"free": None, "own": {"type": "boolean"}}, folder)
