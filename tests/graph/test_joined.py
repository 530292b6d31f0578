"""Products and updates that are joined: the numbers of those apart, by NumPy and by the graph that has them apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from deltas import random_delta, small_settings
from graphs import session
from onnx import TensorProto, helper, numpy_helper
from tiny import write_model

from edgepeft.backbones.source import Backbone, open_backbone
from edgepeft.bundle.bundle import Bundle
from edgepeft.graph.cut import below
from edgepeft.graph.in_place import in_place
from edgepeft.graph.joined import attention_matrices, join_updates
from edgepeft.graph.names import TEXTS
from edgepeft.graph.splice import splice_text
from edgepeft.runtime.generation import OneStack, TextSession
from edgepeft.runtime.session import open_session
from edgepeft.runtime.session_pool import SessionPool, TaskSession
from edgepeft.training.exporting.backbone import write_backbone
from edgepeft.training.exporting.delta import export_delta

K, WIDTHS, RANKS, FACTORS = 4, {"q": 6, "k": 2, "v": 2}, {"q": 2, "k": 1, "v": 3}, {"q": 0.5, "k": 3.0, "v": 1.0}
N, S = 3, 2


def node(operator: str, inputs: Sequence[str], output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(operator, inputs, [output], **attributes)


def structure(updated: str, changes: Callable[[list[onnx.NodeProto]], object] = lambda _: None) -> onnx.ModelProto:
    """One attention of q, k and v, of which some have LoRA: at q scaled between its products, at k by the second's alpha."""
    nodes, constants = [node("Shape", ["place"], TEXTS)], {"half": np.float32(FACTORS["q"])}
    for part, width in WIDTHS.items():
        constants |= {f"W{part}": drawn(f"W{part}", width, K), f"width_{part}": np.array([-1, width])}
        adapted = [
            node("Gemm", ["x", f"A{part}"], f"{part}/u", transB=1),
            node("Mul", ["half", f"{part}/u"], f"{part}/s")
            if part == "q"
            else node("Mul", [f"{part}/u", "one"], f"{part}/s"),
            node("Gemm", [f"{part}/s", f"B{part}"], f"{part}/w", transB=1, alpha=3.0 if part == "k" else 1.0),
            node("Add", [part, f"{part}/w"], f"{part}/adapted"),
        ]
        rows = [
            node("Concat", [TEXTS, f"width_{part}"], f"{part}/shape", axis=0),
            node("Reshape", [f"{part}/adapted" if part in updated else part, f"{part}/shape"], f"{part}/rows"),
        ]
        nodes += [node("Gemm", ["x", f"W{part}"], part, transB=1), *(adapted if part in updated else []), *rows]
    constants["one"] = np.float32(1)
    nodes.append(node("GroupQueryAttention", ["q/rows", "k/rows", "v/rows"], "out", domain="com.microsoft"))
    changes(nodes)
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x", *feeds(updated))]
    inputs.append(helper.make_tensor_value_info("place", TensorProto.INT32, ["n"]))
    outputs = [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)]
    used = {name for each in nodes for name in each.input}
    stored = [numpy_helper.from_array(value, name) for name, value in constants.items() if name in used]
    return helper.make_model(
        helper.make_graph(nodes, "g", inputs, outputs, stored),
        opset_imports=[helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)],
        ir_version=10,
    )


def drawn(name: str, *shape: int) -> np.ndarray:
    return np.random.default_rng([*name.encode()]).normal(size=shape).astype(np.float32)


def feeds(updated: str) -> dict[str, np.ndarray]:
    shapes = {f"A{part}": (RANKS[part], K) for part in updated} | {f"B{p}": (WIDTHS[p], RANKS[p]) for p in updated}
    return {name: drawn(name, *shape) for name, shape in shapes.items()}


@pytest.mark.parametrize("updated", ["qkv", "qv", "k"])
def test_attention_reads_queries_keys_and_values_with_their_updates_side_by_side(updated: str, tmp_path: Path):
    found = join_updates(structure(updated), feeds(updated))
    (attention,) = [each for each in found.structure.graph.node if each.op_type == "GroupQueryAttention"]
    assert list(attention.input[1:]) == ["", ""] and len(found.feeds) == 2
    assert {each.name for each in found.structure.graph.input} == {"x", "place", *found.feeds}
    x = drawn("x", N * S, K)
    given = {"x": x, "place": np.zeros(N, np.int32), **found.feeds}
    (side_by_side,) = session(below(found.structure, attention.input[0]), tmp_path).run(None, given)
    parts = []
    for part, width in WIDTHS.items():
        own, values = x @ drawn(f"W{part}", width, K).T, feeds(updated)
        if part in updated:
            own = own + FACTORS[part] * x @ values[f"A{part}"].T @ values[f"B{part}"].T
        parts.append(own)
    np.testing.assert_allclose(side_by_side, np.hstack(parts).reshape(N, S, -1), rtol=1e-5, atol=1e-5)


def other_x(nodes: list[onnx.NodeProto]) -> None:
    nodes.insert(0, node("Neg", ["x"], "y"))
    next(each for each in nodes if each.output[0] == "v").input[0] = "y"


def other_a(nodes: list[onnx.NodeProto]) -> None:
    nodes.insert(0, node("Neg", ["x"], "y"))
    next(each for each in nodes if each.output[0] == "v/u").input[0] = "y"


def between(nodes: list[onnx.NodeProto]) -> None:
    place = next(i for i, each in enumerate(nodes) if each.output[0] == "k/rows")
    nodes[place].input[0] = "k/normed"
    nodes.insert(place, node("Neg", ["k/adapted"], "k/normed"))


def read_twice(nodes: list[onnx.NodeProto]) -> None:
    nodes.insert(-1, node("Neg", ["v/adapted"], "more"))
    nodes[-1].input.append("more")


@pytest.mark.parametrize("changes", [other_x, other_a, between, read_twice])
def test_what_stands_otherwise_is_left_as_it_was(changes: Callable[[list[onnx.NodeProto]], object]):
    model = structure("qkv", changes)
    found = join_updates(model, feeds("qkv"))
    assert found.structure == model and found.feeds.keys() == feeds("qkv").keys()


SIZES = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "num_key_value_heads": 2, "num_hidden_layers": 2}
SIZES |= {"tie_word_embeddings": True, "vocab_size": 1100}
PROMPTS = [[5, 6, 7], [9, 8, 7, 6, 5, 4, 3, 2, 1, 9, 8, 7, 6], [11]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Backbone, Bundle]]:
    """In 8 bits; Mistral in 4."""
    known: dict[str, tuple[Backbone, Bundle]] = {}

    def make(kind: str) -> tuple[Backbone, Bundle]:
        if kind not in known:
            folder = tmp_path_factory.mktemp(kind)
            backbone = open_backbone(str(write_model(folder / "model", kind, **SIZES)))
            (folder / "bundle").mkdir()
            write_backbone(backbone, folder / "bundle", "int4" if kind == "mistral" else "int8")
            known[kind] = backbone, Bundle(folder / "bundle")
        return known[kind]

    return make


def written(session: TextSession) -> np.ndarray:
    """Logits of prompts and of two steps."""
    cache = session.cache()
    assert cache is not None
    bound = lambda rows, tokens: session.decoder.bound()  # noqa: E731
    steps = [np.array([4, 5, 6]), np.array([7, 8, 9])]
    return np.stack([cache.begin(bound, PROMPTS), *(cache.step(bound, ids) for ids in steps)])


METHODS = [("llama", method) for method in (None, "lora", "dora", "vera", "ia3", "bitfit")]


@pytest.mark.parametrize(("kind", "method"), [*METHODS, *((kind, "lora") for kind in ("mistral", "qwen2", "qwen3"))])
def test_a_decoder_writes_by_joined_products_what_it_writes_by_those_apart(
    made: Callable[[str], tuple[Backbone, Bundle]], kind: str, method: str | None, monkeypatch: pytest.MonkeyPatch
):
    backbone, bundle = made(kind)
    monkeypatch.setattr("edgepeft.runtime.session.lacks_dot_product", lambda: True)  # activations stay as they are
    graphs = bundle.text_graphs_of(None)
    if method is not None:
        settings = {**small_settings(method), **({"roles": ("query", "key", "ffn_gate")} if method == "lora" else {})}
        delta = export_delta(random_delta(backbone, method, "t", None, settings=settings, head="text"), backbone)
        graphs = splice_text(*bundle.text_graphs, delta, bundle.manifest.backbone.sites, bundle.checkpoint)
    lowered, weights = in_place(graphs[1]), SessionPool(bundle, cache=True, threads=1)
    assert lowered is not None
    weights.prepare()
    stack = OneStack(lowered.frequencies, ())
    apart = open_session(lowered.model, bundle.folder, 1, external_data=bundle.external_data(lowered.model))
    expected = written(TextSession(None, TaskSession(apart, {}, None), stack))
    found = written(TextSession(None, weights.open(lowered.model), stack))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    assert np.ptp(found) > 1


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_products_are_joined_where_nothing_stands_before_attention(
    made: Callable[[str], tuple[Backbone, Bundle]], kind: str
):
    _, bundle = made(kind)
    lowered = in_place(bundle.text_graphs.decoder)
    assert lowered is not None
    joined = [*attention_matrices(lowered.model.graph)]
    names = [f"model.layers.{{i}}.self_attn.{part}_proj.weight:uint8" for part in "qkv"]
    plain = [tuple(name.format(i=i) for name in names) for i in range(2)]
    assert joined == (plain if kind == "llama" else [])  # the others have biases there, or norms


@pytest.mark.parametrize("roles", [("query", "key", "value"), ("query", "value")])
def test_a_layer_has_one_product_and_three_nodes_of_lora(
    made: Callable[[str], tuple[Backbone, Bundle]], roles: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
):
    (backbone, bundle), opened = made("llama"), list[onnx.GraphProto]()
    delta = export_delta(random_delta(backbone, "lora", "t", None, settings={"roles": roles}, head="text"), backbone)
    spliced = splice_text(*bundle.text_graphs, delta, bundle.manifest.backbone.sites, bundle.checkpoint)
    weights = SessionPool(bundle, cache=True, threads=1)
    weights.prepare()
    monkeypatch.setattr("edgepeft.graph.by_row.keep_texts", opened.append)
    counts = []
    for decoder in (bundle.text_graphs.decoder, spliced[1]):
        lowered = in_place(decoder)
        assert lowered is not None
        weights.open(lowered.model)
        counts.append(Counter(each.op_type for each in opened[-1].node))
    bare, adapted = counts
    assert bare["MatMulNBits"] == adapted["MatMulNBits"] == 2 * 5 + 1 and "Split" not in bare
    more = adapted - bare
    assert more["MatMul"] == 2 * 2 and more["Add"] == 2 and "Split" not in more
    assert sum(more.values()) - more["Reshape"] - more["Flatten"] - more["Concat"] == 3 * 2
