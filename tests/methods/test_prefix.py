"""Prefix tuning against its equation in NumPy, and what its parts cost, fold into and refuse."""

import numpy as np
import onnxruntime as ort
import pytest
import suite
import torch
from deltas import random_delta
from tiny import PRE_NORM, SAME_BUT_FOR_NAMES
from tolerance import exactly

from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.source import open_backbone
from edgepeft.bundle.delta import new_delta
from edgepeft.common.errors import BundleError, UsageError
from edgepeft.graph.cut import rename_values
from edgepeft.graph.mix import mix
from edgepeft.graph.parameters import computed_values, make_inputs
from edgepeft.graph.splice import splice
from edgepeft.methods.mam import MAM
from edgepeft.methods.prefix import PrefixTuning
from edgepeft.training.exporting.delta import export_delta

LENGTH = 3


def softmax(z):
    z = np.exp(z - z.max(-1, keepdims=True))
    return z / z.sum(-1, keepdims=True)


# The first layer's attention in transformers' model, and its projections there; the last one's result is what it gives.
PROJECTIONS = {
    "bert": ("encoder.layer.0.attention.self", ("query", "key", "value")),
    "distilbert": ("transformer.layer.0.attention", ("q_lin", "k_lin", "v_lin", "out_lin")),
    "mpnet": ("encoder.layer.0.attention.attn", ("q", "k", "v", "o")),
}


@pytest.mark.parametrize(
    ("model_type", "attention"), [("bert", "eager"), ("bert", "sdpa"), ("distilbert", "sdpa"), ("mpnet", "eager")]
)
def test_tokens_attend_to_the_layers_own_pairs_and_to_no_padding(tiny, model_type, attention):
    """What the first layer's attention gives, from its weights: softmax(Q [P_k; K]^T / sqrt(e)) [P_v; V].

    MPNet adds a bias for the distance of two tokens (transformers' own), and none for the prefix.
    """
    backbone, (path, projections) = open_backbone(str(tiny(model_type))), PROJECTIONS[model_type]
    delta = random_delta(backbone, "prefix", "task", settings={"length": LENGTH})
    model = load_model(backbone, attention)
    mask = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    inputs = {name: torch.full((2, 5), 1) for name in backbone.architecture.inputs}
    inputs |= {"input_ids": torch.arange(5, 15).view(2, 5), "attention_mask": torch.from_numpy(mask)}
    seen = {}
    layer = model.get_submodule(path)
    layer.get_submodule(projections[0]).register_forward_hook(lambda _, args, __: seen.update(x=args[0]))
    layer.register_forward_hook(lambda _, __, output: seen.update(y=output[0]))

    def run():
        with torch.no_grad():
            delta.double().logits(model.double(), inputs)
        return seen

    found = exactly(run)
    x, weights = found["x"].value, {name: p.detach().numpy() for name, p in layer.named_parameters()}
    q, k, v = (x @ weights[f"{part}.weight"].T + weights[f"{part}.bias"] for part in projections[:3])
    bias = np.zeros((1, 4, 5, 5))
    if model_type == "mpnet":
        bias = model.encoder.compute_position_bias(torch.zeros(1, 5, 32)).detach().numpy()
    own = {part: delta.tensors()[f"layer.0.{part}_heads/vectors"].detach().numpy() for part in ("key", "value")}
    expected = np.zeros_like(q)
    for row in range(2):
        keys, values = (np.concatenate([own[part], z[row][mask[row] == 1]]) for part, z in (("key", k), ("value", v)))
        for head in range(4):
            part = slice(8 * head, 8 * head + 8)
            scores = q[row, :, part] @ keys[:, part].T / np.sqrt(8)
            scores[:, LENGTH:] += bias[0, head][:, mask[row] == 1]
            expected[row, :, part] = softmax(scores) @ values[:, part]
    for out in projections[3:]:
        expected = expected @ weights[f"{out}.weight"].T + weights[f"{out}.bias"]
    np.testing.assert_allclose(found["y"].value[mask == 1], expected[mask == 1], rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model_type", "attention"),
    [
        *((name, "eager") for name in (*SAME_BUT_FOR_NAMES, *PRE_NORM, "albert")),
        ("xlm-roberta-xl", "sdpa"),
        ("albert", "sdpa"),
    ],
)
def test_a_relatives_own_attention_takes_as_many_keys_as_the_graphs(tiny, model_type, attention):
    case = suite.Case(MAM(length=LENGTH, bottleneck=4, text="follows"), open_backbone(str(tiny(model_type))))
    case.model = load_model(case.backbone, attention)
    suite.torch_equals_onnxruntime(case)


@pytest.mark.parametrize(
    ("settings", "count"),
    # 2 L p d, as PEFT counts; by way of an MLP, Li and Liang's E, W1, b1, W2, b2.
    [({"length": 20}, 368_640), ({"length": 5, "projection": 10}, 5 * 768 + 768 * 10 + 10 + 24 * 768 * 11)],
)
def test_the_count_on_bert_base(named, settings, count):
    assert PrefixTuning(**settings).n_parameters(named("bert-base-uncased")) == count


def test_mam_has_what_its_parts_have(named):
    """He et al., section 4.6: l = 30 and r = 512; a = 2 r d + r + d of an adapter, one a layer."""
    count = MAM().n_parameters(named("bert-base-uncased"))
    assert count == 2 * 12 * 30 * 768 + 12 * (2 * 512 * 768 + 512 + 768)


def test_a_board_has_the_vectors_that_the_mlp_made(tiny):
    backbone = open_backbone(str(tiny("roberta")))
    delta = random_delta(backbone, "prefix", "task", settings={"length": LENGTH, "projection": 6})
    w = {name: tensor.detach().numpy().astype(np.float64) for name, tensor in delta.tensors().items()}
    first = next(name.removesuffix("/table") for name in w if name.endswith("/table"))
    hidden = np.tanh(w[f"{first}/table"] @ w[f"{first}/down.weight"].T + w[f"{first}/down.bias"])
    folded = delta.folded(backbone).tensors()
    assert not any("table" in name or "down" in name for name in folded)
    for site in ("layer.0.key_heads", "layer.1.value_heads"):
        expected = hidden @ w[f"{site}/up.weight"].T + w[f"{site}/up.bias"]
        np.testing.assert_allclose(folded[f"{site}/vectors"].detach().numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("model_type", ["bert", "mpnet"])
def test_tasks_share_a_session_and_its_passes(tiny, model_type):
    backbone = open_backbone(str(tiny(model_type)))
    graph = export_delta(random_delta(backbone, "prefix", "task", settings={"length": LENGTH}), backbone)
    bindings = backbone.architecture.bindings
    whole = backbone.architecture.graph(backbone.checkpoint)
    model = splice(whole, graph, bindings, backbone.checkpoint)
    once = computed_values(model)
    values = ort.InferenceSession(once.SerializeToString()).run(None, {})
    structured = make_inputs(model, dict(zip((output.name for output in once.graph.output), values, strict=True)))
    assert structured is not None
    assert mix(structured.structure, structured.feeds, bindings, 2) is not None


def test_a_bundle_from_before_its_sites_says_that_it_must_be_exported_again(tiny):
    backbone = open_backbone(str(tiny("bert")))
    graph = export_delta(random_delta(backbone, "prefix", "task", settings={"length": LENGTH}), backbone)
    older = backbone.architecture.graph(backbone.checkpoint)
    rename_values(older.graph, lambda name: name.replace("_heads", "_split"))
    bindings = backbone.architecture.bindings
    with pytest.raises(BundleError, match=r"layer\.0\.key_heads.* must be exported again"):
        splice(older, graph, bindings, backbone.checkpoint)


@pytest.mark.parametrize("model_type", ["roformer", "modernbert", "deberta-v2", "t5"])
def test_a_backbone_whose_attention_cannot_be_lengthened_refuses_it_by_name(tiny, model_type):
    backbone = open_backbone(str(tiny(model_type)))
    for method in (PrefixTuning(length=2), MAM(length=2)):
        said = rf"{method.name} .* a {model_type} cannot here: its attention tells keys apart by .* prompt-r"
        with pytest.raises(UsageError, match=said):
            new_delta(backbone, method, "task", ("no", "yes"))
