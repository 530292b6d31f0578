"""SPARTAN's figure 2: which label picks which parent, recomputed in NumPy from the saved cells."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from looked import LABELS, ROWS, delta_of, inspection_target, look
from safetensors.numpy import load_file

from edgepeft.backbones.source import open_backbone
from edgepeft.training.inspection.parent_cells import ParentCells

PARENTS, KEPT, LAYERS = 5, 2, 3
TARGETS = [i % 5 % 3 for i in range(len(ROWS))]  # 28, 28, 14


def spartan(backbone, **settings):
    """Its values are zero: then the hidden states are transformers' own, and every layer can be recomputed."""
    delta = delta_of(backbone, "spartan", **{"parents": PARENTS, "children": 2, "top_k": KEPT} | settings)
    for module in delta.site_modules.values():
        module.values.data.zero_()
    return delta


def recomputed(delta, backbone, folder: Path, pooling: str):
    """[layer][2 (picked, weight)][label][parent] by eq. 1 and 3, each row alone and without padding."""
    delta.save(folder)
    tensors = load_file(folder / "delta.safetensors")
    model = transformers.AutoModel.from_pretrained(backbone.folder, attn_implementation="eager").eval()
    own = {n.removeprefix("override/"): torch.from_numpy(t) for n, t in tensors.items() if n.startswith("override/")}
    assert own
    model.load_state_dict(own, strict=False)
    sums = np.zeros((LAYERS, 2, len(LABELS), PARENTS))
    for text, target in zip(ROWS, TARGETS, strict=True):
        words = [int(word[1:]) for word in text.split()][: delta.card.max_length - 2]
        with torch.inference_mode():
            states = model(torch.tensor([[2, *words, 3]]), output_hidden_states=True).hidden_states
        for layer in range(LAYERS):
            hidden = states[layer + 1][0].numpy().astype(np.float64)
            hidden = hidden[:1] if pooling == "first" else hidden
            for token in hidden:
                scores = tensors[f"layer.{layer}.layer_output/parents"].astype(np.float64) @ token
                best = np.argsort(-scores)[:KEPT]
                g = np.exp(scores) / np.exp(scores).sum()
                sums[layer, 0, target, best] += 1 / len(hidden)
                sums[layer, 1, target, best] += g[best] / g[best].sum() / len(hidden)
    return sums


@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_picks_and_weights_equal_the_equations_at_the_position_that_the_head_reads(tiny, tmp_path: Path, pooling: str):
    backbone = open_backbone(str(tiny("bert", num_hidden_layers=LAYERS, mean=pooling == "mean")))
    delta = spartan(backbone)
    found = look(ParentCells(), inspection_target(delta, backbone, TARGETS))
    sums = recomputed(delta, backbone, tmp_path / "delta", pooling)
    n = np.bincount(TARGETS)[:, None]
    assert found["rows_of_label"] == [28, 28, 14]
    assert found["labels"] == list(LABELS)
    for layer, expected in zip(found["layers"], sums, strict=True):
        np.testing.assert_allclose(layer["picked"], expected[0] / n, atol=2e-5)
        np.testing.assert_allclose(layer["weight"], expected[1] / n, atol=2e-5)
        with np.errstate(invalid="ignore"):
            of_parent = expected[0] / expected[0].sum(0)
        np.testing.assert_allclose(np.array(layer["pickers"], dtype=float), of_parent, atol=2e-5)
        np.testing.assert_allclose(np.sum(layer["picked"], axis=1), KEPT, atol=1e-4)
    assert [layer["layer"] for layer in found["layers"]] == [0, 1, 2]
    assert np.ptp(found["layers"][0]["weight"], axis=0).max() > 0.01  # labels differ, so a mixed-up order would show


def test_memories_read_what_the_memories_below_them_made(tiny):
    """With values that are not zero, a higher layer picks otherwise; the lowest does not."""
    backbone = open_backbone(str(tiny("bert", num_hidden_layers=LAYERS)))
    settings = {"parents": PARENTS, "children": 2, "top_k": KEPT}
    quiet, loud = spartan(backbone), delta_of(backbone, "spartan", **settings)
    quiet, loud = (
        look(ParentCells(), inspection_target(delta, backbone, TARGETS))["layers"] for delta in (quiet, loud)
    )
    assert quiet[0] == loud[0]
    assert quiet[2]["weight"] != loud[2]["weight"]


def test_what_no_row_picks_and_labels_without_rows_are_null(tiny):
    backbone = open_backbone(str(tiny("bert", num_hidden_layers=LAYERS)))
    delta = spartan(backbone)
    for module in delta.site_modules.values():
        module.parents.data[3:] = 0
        module.parents.data[:3] = 0  # all tie: all are kept
    found = look(ParentCells(), inspection_target(delta, backbone, [0] * len(ROWS)))
    layer = found["layers"][0]
    assert layer["picked"] == [[1.0] * PARENTS, [None] * PARENTS, [None] * PARENTS]
    assert layer["pickers"] == [[1.0] * PARENTS, [0.0] * PARENTS, [0.0] * PARENTS]
    one = spartan(backbone, top_k=1)
    picks = np.array(
        look(ParentCells(), inspection_target(one, backbone, [0] * 2, texts=ROWS[:2]))["layers"][0]["picked"][0]
    )
    shares = look(ParentCells(), inspection_target(one, backbone, [0] * 2, texts=ROWS[:2]))["layers"][0]["pickers"][0]
    assert [share is None for share in shares] == list(picks == 0)
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_it_says_why_it_does_not_fit(tiny):
    backbone = open_backbone(str(tiny("bert", num_hidden_layers=LAYERS)))
    assert ParentCells().why_not(delta_of(backbone, "spartan", top_k=3, parents=4)) is None
    assert "no memory" in ParentCells().why_not(delta_of(backbone, "houlsby"))
    assert "a regression has none" in ParentCells().why_not(delta_of(backbone, "spartan", None))
