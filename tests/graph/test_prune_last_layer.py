"""The last layer runs the rows that a head reads: how many, through which operators, and that the answers stay."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import suite
from method_examples import examples
from onnx import helper
from onnx.reference import ReferenceEvaluator
from tiny import ROTARY, known

from edgepeft.backbones.packing import MERGE, SPLIT
from edgepeft.backbones.source import Backbone, open_backbone
from edgepeft.common.operators import product_flops
from edgepeft.graph.cost import count_run
from edgepeft.graph.cut import rename_values
from edgepeft.graph.gradient.rule import specs_of
from edgepeft.graph.protos import copied
from edgepeft.graph.prune_last_layer import drop_unread_rows, picked_rows_name
from edgepeft.graph.quantise import integer_products
from edgepeft.graph.splice import splice
from edgepeft.methods.base import method_named, methods
from edgepeft.runtime.session import open_session
from edgepeft.training.exporting.backbone import write_backbone

RELATIVES: dict[str, dict[str, Any]] = {
    **{name: {} for name in ("bert", "roberta", "xlm-roberta", "distilbert")},
    "electra": {"embedding_size": 20},
    "albert": {"num_hidden_layers": 2, "num_hidden_groups": 1},
    **{name: {} for name in ("roformer", "xlm-roberta-xl", *known(*ROTARY))},
}
LENGTHS = (11, 7, 3, 8, 1, 9, 6)
BY_TOKEN = {"layer.1.key", "layer.1.value"}  # of the last layer


def backbone_graph(backbone: Backbone) -> onnx.ModelProto:
    return backbone.architecture.graph(backbone.checkpoint)


def spliced(
    backbone: Backbone, method: str, below: onnx.ModelProto | None = None, weights: str = ""
) -> onnx.ModelProto:
    sites = backbone.architecture.bindings
    stored = backbone.architecture.open_checkpoint(Path(weights)) if weights else backbone.checkpoint
    delta = suite.Case(examples(method_named(method))[0], backbone).graph
    return splice(below or backbone_graph(backbone), delta, sites, stored)


def moved(model: onnx.ModelProto) -> onnx.ModelProto:
    found = copied(model)
    drop_unread_rows(found)
    return found


def rows_of(backbone: Backbone, lengths: tuple[int, ...] = LENGTHS) -> dict[str, np.ndarray]:
    mask = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int64)
    words = np.random.default_rng(0).integers(5, backbone.architecture.vocab_size, mask.shape)
    tokens = np.where(mask == 1, words, backbone.architecture.pad_token_id)
    given = {"input_ids": tokens, "attention_mask": mask, "token_type_ids": 0 * mask}
    return {name: given[name] for name in backbone.architecture.inputs}


def by_token(model: onnx.ModelProto) -> set[str]:
    """The last layer's values that have a row for each token, adapted or not."""
    specs = specs_of(model, LENGTHS)
    found = {
        name for name in specs if name.startswith("layer.1.") and specs[name].shape[:1] == specs["token.index"].shape
    }
    return {name.removesuffix(":adapted") for name in found}


def logits(model: onnx.ModelProto, folder: Path, rows: dict[str, np.ndarray]) -> np.ndarray:
    given = {value.name: rows[value.name] for value in model.graph.input}
    return np.asarray(open_session(model, folder, 1).run(["logits"], given)[0])


@pytest.mark.parametrize("model_type", RELATIVES)
def test_a_text_has_one_query_and_passes_the_feed_forward_once(tiny: Callable[..., Path], model_type: str):
    """By formula: T - B rows' query, output and feed-forward go, and of each text's S queries all but one."""
    backbone = open_backbone(str(tiny(model_type, **RELATIVES[model_type])))
    d, f = backbone.architecture.hidden_size, backbone.architecture.intermediate_size
    model, rows = spliced(backbone, "linear"), rows_of(backbone)
    whole, part = (product_flops(count_run(graph, rows).works) for graph in (model, moved(model)))
    texts, longest, tokens = len(LENGTHS), max(LENGTHS), sum(LENGTHS)
    products = 3 if model_type in ROTARY else 2  # of the feed-forward, a gate's too
    projections = 2 * (tokens - texts) * (2 * d * d + products * d * f)
    scores_and_contexts = 2 * 2 * texts * (longest - 1) * longest * d
    assert whole - part == projections + scores_and_contexts


@pytest.mark.parametrize("model_type", ["mpnet", "deberta-v2"])
def test_where_each_query_has_a_bias_of_its_own_it_ends_at_the_attention(tiny: Callable[..., Path], model_type: str):
    backbone = open_backbone(str(tiny(model_type)))
    d, f = backbone.architecture.hidden_size, backbone.architecture.intermediate_size
    model, rows = spliced(backbone, "linear"), rows_of(backbone)
    whole, part = (product_flops(count_run(graph, rows).works) for graph in (model, moved(model)))
    assert whole - part == 2 * (sum(LENGTHS) - len(LENGTHS)) * (d * d + 2 * d * f)


def test_where_query_key_and_value_are_one_product_it_stays_whole_and_the_rest_has_a_row_a_text(
    tiny: Callable[..., Path],
):
    """What positions turn of the queries is theirs alone too."""
    backbone = open_backbone(str(tiny("modernbert")))
    d, f = backbone.architecture.hidden_size, backbone.architecture.intermediate_size
    model, rows = spliced(backbone, "linear"), rows_of(backbone)
    whole, part = (product_flops(count_run(graph, rows).works) for graph in (model, moved(model)))
    texts, longest, tokens = len(LENGTHS), max(LENGTHS), sum(LENGTHS)
    projections = 2 * (tokens - texts) * (d * d + 3 * d * f)
    assert whole - part == projections + 2 * 2 * texts * (longest - 1) * longest * d
    turned = [node for node in moved(model).graph.node if node.op_type == "Gather" and node.name.endswith("/read")]
    assert len(turned) == 1  # the queries' halves


def test_where_the_last_layer_is_local_it_ends_at_the_attention(tiny: Callable[..., Path]):
    backbone = open_backbone(str(tiny("modernbert", num_hidden_layers=2)))
    d, f = backbone.architecture.hidden_size, backbone.architecture.intermediate_size
    model, rows = spliced(backbone, "linear"), rows_of(backbone)
    whole, part = (product_flops(count_run(graph, rows).works) for graph in (model, moved(model)))
    assert whole - part == 2 * (sum(LENGTHS) - len(LENGTHS)) * (d * d + 3 * d * f)
    difference = logits(moved(model), backbone.folder, rows) - logits(model, backbone.folder, rows)
    assert np.abs(difference).max() <= 1e-5


@pytest.mark.parametrize("method", sorted(methods()))
def test_of_the_last_layer_all_tokens_have_keys_and_values_alone(tiny: Callable[..., Path], method: str):
    """Whatever is attached to it.  That the answers stay, the conformance suite sees on every method and family."""
    model = moved(spliced(open_backbone(str(tiny("bert"))), method))
    assert by_token(model) == BY_TOKEN
    specs = specs_of(model, LENGTHS)
    assert specs[picked_rows_name("layer.1.ffn_activation")].shape == (len(LENGTHS), 48)


def test_a_wrong_row_is_caught(tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch):
    """The planted one reads the last token of the text before."""

    def wrong(model: onnx.ModelProto) -> None:
        drop_unread_rows(model)
        (pick,) = (node for node in model.graph.node if node.output[0] == picked_rows_name("layer.0.layer_output"))
        wrong_row = helper.make_node("Sub", ["row.start", "one"], ["wrong"])
        model.graph.node.insert(list(model.graph.node).index(pick), wrong_row)
        pick.input[1] = "wrong"

    case = suite.Case(examples(method_named("lora"))[0], open_backbone(str(tiny("bert"))))
    monkeypatch.setattr(suite, "drop_unread_rows", wrong)
    with pytest.raises(AssertionError, match="ONNX Runtime"):
        suite.torch_equals_onnxruntime(case)


@pytest.mark.parametrize("method", ["lora", "prompt-t"])
def test_eight_bits_are_rounded_row_by_row(tiny: Callable[..., Path], tmp_path: Path, method: str):
    backbone = open_backbone(str(tiny("bert", vocab_size=1100)))
    write_backbone(backbone, tmp_path, "int8")
    below = onnx.load(tmp_path / "backbone.onnx", load_external_data=False)
    model = spliced(backbone, method, below, str(tmp_path / "model.int8.safetensors"))
    found = moved(model)
    assert {name for name in by_token(found) if ":" not in name} == BY_TOKEN
    # What gradients take for the operands: the rounding of rows, not rows of what was rounded.
    assert {product.x for product in integer_products(found.graph) if product.y.startswith("read/")} == {
        picked_rows_name(f"layer.{value}")
        for value in ("0.layer_output", "1.context", "1.attention_norm", "1.ffn_activation")
    }
    differences = np.abs(logits(found, tmp_path, rows_of(backbone)) - logits(model, tmp_path, rows_of(backbone)))
    assert np.median(differences) <= 1e-5  # a byte that lies between two values may become the other one


def test_in_an_older_bundle_it_ends_at_the_attention(tiny: Callable[..., Path]):
    """Its graph does not say which lookups are the packing's."""
    backbone = open_backbone(str(tiny("bert")))
    older = backbone_graph(backbone)
    rename_values(older.graph, lambda name: {SPLIT: "add_24", MERGE: "add_30"}.get(name, name))
    model = spliced(backbone, "lora", older)
    assert by_token(moved(model)) == {*BY_TOKEN, "layer.1.query"}
    rows, folder = rows_of(backbone), backbone.folder
    np.testing.assert_allclose(logits(moved(model), folder, rows), logits(model, folder, rows), rtol=0, atol=1e-5)


def test_a_backbone_alone_and_a_mean_of_all_rows_stay_as_they_are(tiny: Callable[..., Path]):
    backbone = open_backbone(str(tiny("bert", mean=True)))
    for model in (backbone_graph(backbone), spliced(backbone, "lora")):
        assert moved(model).SerializeToString(deterministic=True) == model.SerializeToString(deterministic=True)


HEADER = """<ir_version: 10, opset_import: ["" : 20]>
m (float[tokens, 4] x, int64[batch] start) => (float[batch, n] logits)
<float[4] w = {1, 2, -1, 3}, float[1, 4] row = {0, 1, 2, 3}, float[4, 4] m = {1,2,3,4,5,6,7,8,9,8,7,6,5,4,3,2},
 int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] last = {-1}, float c = {2}, int64 down = {0}, int64[1] many = {100},
 int64[3] pairs = {-1, 2, 2}, int64[2] halves = {-1, 2}, int64[2] flat = {-1, 4}>
"""


def text(body: str) -> onnx.ModelProto:
    """``body`` makes z of y; of z, the rows that start are read."""
    model = onnx.parser.parse_model(f"{HEADER} {{ y = Exp(x) {body} p = Gather(z, start) logits = Neg(p) }}")
    rename_values(model.graph, lambda name: {"start": "row.start"}.get(name, name))
    return model


def require_same(model: onnx.ModelProto) -> set[str]:
    """The same answers; what is read by rows."""
    found, source = moved(model), np.random.default_rng(0)
    onnx.checker.check_model(found, full_check=True)
    given = {"x": source.normal(size=(9, 4)).astype(np.float32), "row.start": np.array([0, 3, 4, 8])}
    (ours,), (theirs,) = (ReferenceEvaluator(each).run(None, given) for each in (found, model))
    np.testing.assert_array_equal(ours, theirs)
    return {node.output[0] for node in found.graph.node if node.op_type == "Gather"}


@pytest.mark.parametrize(
    "body",
    [
        *("z = Add(y, y)", "z = Mul(w, y)", "z = Sub(row, y)", "z = Clip(y, , c)", "z = Cast<to=1>(y)", "z = Gelu(y)"),
        *("g = Greater(y, w) z = Where(g, y, c)", "z = Max(y, x, w)", "z = Gemm(y, m)", "z = Gemm<transB=1>(y, m, w)"),
        *("z = Gemm(y, m, y)", "z = MatMul(y, m)", "z = LayerNormalization(y, w)", "z = Softmax<axis=1>(y)"),
        *(
            "s = ReduceMax<keepdims=1>(y, last) z = Sub(y, s)",
            "s = ReduceSum<keepdims=0>(y, one) z = Unsqueeze(s, one)",
        ),
        *("u = Unsqueeze(y, last) v = Tanh(u) z = Squeeze(v, two)", "z = Concat<axis=-1>(y, y)"),
        *(
            "z = Slice(y, one, two, last)",
            "z = Transpose<perm=[0, 1]>(y)",
            "u = Reshape(y, pairs) z = Reshape(u, flat)",
        ),
    ],
)
def test_the_pick_moves_up_through_what_is_made_row_by_row(body: str):
    assert require_same(text(body)) == {"read/x"}


@pytest.mark.parametrize(
    ("body", "picked"),
    [
        ("z = Softmax<axis=0>(y)", "p"),
        ("z = LayerNormalization<axis=0>(y, c)", "p"),
        ("z = CumSum(y, down)", "p"),
        ("z = Concat<axis=0>(y, y)", "p"),
        ("z = Slice(y, zero, many, zero)", "p"),
        ("z = Reshape(y, halves)", "p"),
        ("t = Transpose<perm=[1, 0]>(y) s = MatMul(y, t) z = MatMul(s, y)", "p"),
        ("z = Gemm<transB=1>(y, y)", "p"),
        ("t = Transpose<perm=[1, 0]>(y) z = Gemm<transA=1>(t, m)", "p"),
        ("s = ReduceMax<keepdims=1>(y, zero) z = Sub(y, s)", "read/y"),
        ("t = ReduceMax<keepdims=0>(y) z = Div(y, t)", "read/y"),
        ("s = ReduceSum<keepdims=1>(y, zero) a = Tanh(y) b = Mul(a, w) z = Add(b, s)", "read/y"),
    ],
)
def test_it_stays_behind_what_needs_other_rows(body: str, picked: str):
    assert require_same(text(body)) == {picked}


def test_it_stays_behind_what_is_read_whole_elsewhere():
    model = text("a = Tanh(y) z = Mul(a, w)")
    total = [helper.make_node("ReduceMax", ["a"], ["t"], keepdims=0), helper.make_node("Add", ["neg", "t"], ["logits"])]
    model.graph.node[-1].output[0] = "neg"
    model.graph.node.extend(total)
    assert require_same(model) == {"read/a"}
