"""Houlsby's figure 6: scores without spans of layers, against transformers and against zeroed modules."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from looked import LABELS, ROWS, delta_of, inspection_target, look
from safetensors.numpy import load_file

from edgepeft.backbones.source import open_backbone
from edgepeft.training.engine import torch_batch
from edgepeft.training.inspection.ablation import Ablation

LAYERS = 4


@pytest.fixture(params=["first", "mean"])
def backbone(request, tiny):
    return open_backbone(str(tiny("bert", num_hidden_layers=LAYERS, mean=request.param == "mean")))


def logits(delta, backbone):
    looked_at = inspection_target(delta, backbone, [0.0] * len(ROWS))
    with torch.inference_mode():
        inputs, _ = torch_batch(looked_at.rows, range(len(ROWS)))
        return delta.logits(looked_at.model, inputs).clone()


def answers(delta, backbone):
    """What the delta answers to each row: used as labels, so that every module matters for the score."""
    return logits(delta, backbone).argmax(-1).tolist()


def balanced(delta, backbone):
    """The head's bias shifted, so that no label is the answer to every row."""
    delta.head.classifier.bias.data -= logits(delta, backbone).mean(0)
    assert len(set(answers(delta, backbone))) == len(LABELS)
    return delta


def spans_of(found):
    return {(span["first"], span["last"]): span["score"] for span in found["spans"]}


@pytest.mark.parametrize("norms", [True, False])
def test_without_any_module_the_score_is_that_of_transformers_backbone_with_the_trained_norms_and_head(
    backbone, tmp_path: Path, norms: bool
):
    """transformers and NumPy alone, each row without padding; trained LayerNorms stay, as in Houlsby's study."""
    delta = balanced(delta_of(backbone, "houlsby", bottleneck=4, norms=norms), backbone)
    delta.save(tmp_path / "delta")
    truth = answers(delta, backbone)
    found = look(Ablation(), inspection_target(delta, backbone, truth))

    tensors = load_file(tmp_path / "delta" / "delta.safetensors")
    model = transformers.AutoModel.from_pretrained(backbone.folder, attn_implementation="eager").eval()
    own = {name.removeprefix("override/"): t for name, t in tensors.items() if name.startswith("override/")}
    assert bool(own) == norms
    model.load_state_dict({name: torch.from_numpy(t) for name, t in own.items()}, strict=False)
    right = 0
    for text, label in zip(ROWS, truth, strict=True):
        ids = [2, *[int(word[1:]) for word in text.split()][: delta.card.max_length - 2], 3]
        with torch.inference_mode():
            hidden = model(torch.tensor([ids])).last_hidden_state[0].numpy()
        pooled = hidden.mean(0)
        if delta.card.head == "bert-pooler":
            dense = model.pooler.dense
            pooled = np.tanh(dense.weight.numpy(force=True) @ hidden[0] + dense.bias.numpy(force=True))
        scores = tensors["head/classifier.weight"] @ pooled + tensors["head/classifier.bias"]
        right += int(scores.argmax()) == label
    assert spans_of(found)[0, LAYERS - 1] == pytest.approx(right / len(ROWS))
    assert found["whole"] == 1.0
    assert right < len(ROWS)


@pytest.mark.parametrize(
    ("method", "settings", "zeroed"),
    [
        ("houlsby", {"bottleneck": 4}, ("up.weight", "up.bias")),
        ("pfeiffer", {"bottleneck": 4}, ("up.weight", "up.bias")),
        ("lora", {"rank": 3, "bias": "all"}, ("B",)),
        ("spartan", {"parents": 5, "children": 2, "top_k": 2}, ("values",)),
        ("compacter", {"bottleneck": 8}, ("up.s", "up.bias")),
    ],
)
def test_a_span_scores_as_if_its_modules_were_zero(backbone, method, settings, zeroed):
    """Every span; the modules that are left, the norms and the biases go on as they are."""
    delta = balanced(delta_of(backbone, method, **settings), backbone)
    truth = answers(delta, backbone)
    found = spans_of(look(Ablation(), inspection_target(delta, backbone, truth)))
    assert set(found) == {(i, j) for i in range(LAYERS) for j in range(i, LAYERS)}
    assert len(set(found.values())) > 3  # else every span might be the same one
    for (first, last), score in found.items():
        broken = delta_of(backbone, method, **settings)
        broken.head.classifier.bias.data.copy_(delta.head.classifier.bias.data)
        hit = 0
        for site, module in broken.site_modules.items():
            if first <= int(site.split(".")[1]) <= last:
                for name, parameter in module.named_parameters():
                    if name.endswith(zeroed) and not name.startswith("down"):
                        parameter.data.zero_()
                        hit += 1
        assert hit
        assert score == pytest.approx(np.mean(np.equal(answers(broken, backbone), truth))), (first, last)


def test_the_delta_is_as_before_afterwards(backbone):
    delta = delta_of(backbone, "houlsby", bottleneck=4)
    before = answers(delta, backbone), list(delta.tensors()), list(delta.state_dict())
    look(Ablation(), inspection_target(delta, backbone, [0.0] * len(ROWS)))
    assert (answers(delta, backbone), list(delta.tensors()), list(delta.state_dict())) == before


def test_only_layers_that_have_modules_are_removed(backbone):
    delta = delta_of(backbone, "adapterdrop", skip_layers=2, bottleneck=4)
    found = look(Ablation(), inspection_target(delta, backbone, answers(delta, backbone)))
    assert found["layers"] == [2, 3]
    assert [(span["first"], span["last"]) for span in found["spans"]] == [(2, 2), (2, 3), (3, 3)]


def test_the_passes_are_the_rows_that_are_run(backbone):
    delta, seen = delta_of(backbone, "pfeiffer", bottleneck=4), []
    Ablation().look(inspection_target(delta, backbone, [0.0] * len(ROWS)), seen.append)
    assert sum(seen) == Ablation().passes(delta) * len(ROWS) == 11 * len(ROWS)


def test_the_majority_is_the_commonest_label_of_these_rows(backbone):
    delta = delta_of(backbone, "lora")
    truth = [2] * 40 + [0] * 29 + [1]
    assert look(Ablation(), inspection_target(delta, backbone, truth))["majority"] == pytest.approx(40 / 70)
    # Of 29 + 40 + 1 rows all answered LABELS[2]: precision 40/70, recall 1.
    of_positive = look(Ablation(), inspection_target(delta, backbone, truth, f"f1:{LABELS[2]}"))["majority"]
    assert of_positive == pytest.approx(2 * (40 / 70) / (40 / 70 + 1))


def test_a_regression_is_scored_by_its_metric_and_has_no_majority(backbone):
    delta = delta_of(backbone, "houlsby", None, bottleneck=4)
    looked_at = inspection_target(delta, backbone, [float(i) for i in range(len(ROWS))], "pearson")
    found = look(Ablation(), looked_at)
    with torch.inference_mode():
        inputs, _ = torch_batch(looked_at.rows, range(len(ROWS)))
        values = delta.logits(looked_at.model, inputs)[:, 0].numpy()
    assert found["whole"] == pytest.approx(np.corrcoef(values, np.arange(len(ROWS)))[0, 1], abs=1e-5)
    assert found["majority"] is None
