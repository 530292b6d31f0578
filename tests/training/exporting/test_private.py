"""What a task holds of its own while it is open: in the manifest, and said by `edgepeft export`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from deltas import TEXTS, random_delta, saved
from typer.testing import CliRunner

from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.source import open_backbone
from edgepeft.cli._main import app
from edgepeft.runtime.runtime import Runtime


@pytest.mark.parametrize(
    ("method", "settings"),
    [("full", {}), ("intrinsic-said", {"dimension": 90}), ("top-k", {"layers": 1}), ("lora", {})],
)
def test_export_says_how_much_of_the_backbone_a_task_has_for_itself(
    tiny: Callable[..., Path], tmp_path: Path, method: str, settings: dict
):
    """Counted in transformers' model: everything but the pooler (the head pools the mean), one layer, nothing."""
    backbone = open_backbone(str(tiny("bert", mean=True)))
    sizes = {name: p.numel() for name, p in load_model(backbone).named_parameters() if "pooler" not in name}
    layer = sum(size for name, size in sizes.items() if name.startswith("encoder.layer.1."))
    parameters = {"full": sum(sizes.values()), "intrinsic-said": sum(sizes.values()), "top-k": layer, "lora": 0}[method]
    delta = random_delta(backbone, method, "t", settings=settings)
    data = tmp_path / "texts.jsonl"
    data.write_text("".join(json.dumps({"sentence1": text.first}) + "\n" for text in TEXTS))
    out = tmp_path / "bundle"
    arguments = ["--backbone", str(backbone.folder), "--delta", str(saved(delta, tmp_path / "delta"))]
    done = CliRunner().invoke(app, ["export", *arguments, "--out", str(out), "--verify-data", str(data)])
    assert done.exit_code == 0, done.output
    assert json.loads((out / "edgepeft.json").read_text())["tasks"]["t"]["private_bytes"] == 4 * parameters
    said = " ".join(done.output.split())
    assert (f"it holds {4 * parameters / 1e6:,.2f} MB of backbone tensors of its own" in said) == (parameters > 0)
    answers = Runtime(out, threads=1).predict("t", TEXTS[:3])
    assert len(answers) == 3
    assert np.isfinite(Runtime(out, threads=1).logits("t", backbone.encoder().encode(TEXTS[:3], 40).inputs)).all()
