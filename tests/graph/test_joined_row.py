"""Queries, keys and values of one row as one product: what it gives by its equations in NumPy, and what stays as it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import suite
from method_examples import examples
from onnx import numpy_helper
from safetensors.numpy import load_file
from tiny import ragged, with_outliers
from tolerance import error_of_sums

from edgepeft.backbones.emit import INT8_WEIGHTS_FILE
from edgepeft.backbones.source import open_backbone
from edgepeft.bundle.bundle import Bundle
from edgepeft.device.machine import saturates_in_8_bits
from edgepeft.graph.joined_row import join_attention
from edgepeft.graph.one_row import for_one_row
from edgepeft.graph.protos import attributes, copied, floats, place_of
from edgepeft.graph.splice import splice
from edgepeft.methods.base import methods
from edgepeft.runtime.session import open_session
from edgepeft.training.exporting.backbone import write_backbone

ATTENTION = "encoder.layer.0.attention.self."


@pytest.fixture(scope="module")
def bundles(tiny, tmp_path_factory: pytest.TempPathFactory):
    def bundle(family: str, weights: str = "int8") -> Bundle:
        if (family, weights) not in made:
            folder = tmp_path_factory.mktemp(family)
            write_backbone(open_backbone(str(with_outliers(tiny(family, vocab_size=1100), folder))), folder, weights)
            made[family, weights] = Bundle(folder)
        return made[family, weights]

    made: dict[tuple[str, str], Bundle] = {}
    return bundle


def side_by_side(folder: Path):
    """Tensors of the bundle's file as one."""

    def made(parts, axis, name):
        (file,) = {place_of(part)["location"] for part in parts}
        stored = load_file(folder / file)
        return numpy_helper.from_array(np.concatenate([stored[part.name] for part in parts], axis=axis), name)

    return made


def joined(bundle: Bundle, model: onnx.ModelProto) -> tuple[int, int]:
    """In how many layers the pass takes attention together, and in how many the products alone."""
    assert for_one_row(model)
    before = [node.op_type for node in model.graph.node]
    join_attention(model, side_by_side(bundle.folder))
    after = [node.op_type for node in model.graph.node]
    products = sum(node.op_type == "Split" and attributes(node)["axis"] == 1 for node in model.graph.node)
    counts = after.count("QAttention"), products
    assert sum(counts) or after == before
    return counts


@pytest.mark.skipif(saturates_in_8_bits(), reason="products of uint8 and int8 overflow on this processor")
@pytest.mark.parametrize("length", [1, 2, 9])
def test_it_is_softmax_of_the_integer_products(bundles, length):
    bundle = bundles("bert")
    model = bundle.graph(None)
    assert joined(bundle, model) == (bundle.architecture.n_layers, 0)
    model.graph.output.extend(floats(name, None) for name in ("embeddings", "layer.0.context"))
    inputs = ragged(1, length, {"vocab_size": 1100, "pad_token_id": 0}, seed=length)
    x, context = open_session(model, bundle.folder, 1).run(["embeddings", "layer.0.context"], inputs)
    stored, h = load_file(bundle.folder / INT8_WEIGHTS_FILE), bundle.architecture.n_heads
    plain = load_file(bundle.folder / "outliers" / "model.safetensors")
    parts, error = [], 0.0
    for name in (f"{ATTENTION}{part}" for part in ("query", "key", "value")):
        x8 = np.rint(x * stored[f"{name}.weight:columns"]).astype(np.int64)
        rows = (
            x8
            @ stored[f"{name}.weight:int8:transposed"].astype(np.int64)
            * stored[f"{name}.weight:scale"].astype(float)
        )
        parts.append((rows + plain[f"{name}.bias"]).reshape(length, h, -1).swapaxes(0, 1))  # (h, T, e)
        error = max(error, error_of_sums(4, np.abs(rows) + np.abs(plain[f"{name}.bias"])))
    query, key, value = parts
    e = query.shape[-1]
    scores = query @ key.swapaxes(1, 2) / np.sqrt(e)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    # A score's error is one of its share, whatever the softmax: of products, and of the operands' own errors.
    off = error_of_sums(e + 2, np.abs(query) @ np.abs(key).swapaxes(1, 2) / np.sqrt(e))
    off += error * float((np.abs(query).sum(-1).max() + np.abs(key).sum(-1).max()) / np.sqrt(e))
    bound = 2 * off * np.abs(value).max() + error_of_sums(length + 8, np.abs(value)) + error
    np.testing.assert_allclose(context, (shares @ value).swapaxes(0, 1).reshape(length, -1), rtol=0, atol=bound)
    assert bound < 0.01 * np.abs(context).max()


@pytest.mark.parametrize("weights", ["int8", "fp32"])
@pytest.mark.parametrize(
    ("method", "attention", "products"),
    [("pfeiffer", 2, 0), ("houlsby", 2, 0), ("lora", 0, 2), ("prefix", 0, 2), ("ia3", 0, 0), ("bitfit", 0, 0)],
)
def test_tasks_that_leave_attention_alone_or_add_updates_have_it(bundles, method, attention, products, weights):
    bundle = bundles("bert", weights)
    case = suite.Case(examples(methods()[method])[0], open_backbone(str(bundle.folder / "outliers")))
    model = splice(bundle.backbone_graph, case.graph, bundle.manifest.backbone.sites, bundle.checkpoint)
    plain = copied(model)
    assert for_one_row(plain)
    assert joined(bundle, model) == ((attention, products) if weights == "int8" else (0, attention + products))
    inputs = ragged(1, 7, {"vocab_size": 1100, "pad_token_id": 0})
    found, expected = (
        open_session(each, bundle.folder, 1).run(None, {i.name: inputs[i.name] for i in each.graph.input})[0]
        for each in (model, plain)
    )
    close = 0.05 if weights == "int8" else 1e-5  # a byte may turn
    np.testing.assert_allclose(found, expected, rtol=0, atol=close * max(1, np.abs(expected).max()))


@pytest.mark.parametrize(
    ("family", "weights", "attention", "products", "matrices"),
    [
        *((family, "int8", 2, 0, 2) for family in ("roberta", "distilbert")),
        *((family, "fp32", 0, 2, 2) for family in ("roberta", "distilbert", "mpnet")),
        ("albert", "int8", 1, 0, 1),  # two of its layers are one, whose steps are its rows' own
        ("albert", "fp32", 0, 3, 2),
        ("mpnet", "int8", 0, 2, 2),
        ("roformer", "int8", 0, 0, 0),
        ("roformer", "fp32", 0, 0, 0),
    ],
)
def test_families_that_share_their_layers_too_answer_as_before(bundles, family, weights, attention, products, matrices):
    """Layers of ALBERT have one copy; attention by distance is no ``QAttention``; turned queries and keys stay."""
    bundle = bundles(family, weights)
    model, plain = bundle.graph(None), bundle.graph(None)
    assert for_one_row(plain)
    assert joined(bundle, model) == (attention, products)
    assert sum("+" in each.name and len(each.dims) == 2 for each in model.graph.initializer) == matrices
    inputs = ragged(1, 9, {"vocab_size": 1100, "pad_token_id": 0})
    found, expected = (
        open_session(each, bundle.folder, 1).run(
            ["last_hidden_state"], {i.name: inputs[i.name] for i in each.graph.input}
        )
        for each in (model, plain)
    )
    close = 0.05 if weights == "int8" else 1e-5  # a byte may turn
    np.testing.assert_allclose(found[0], expected[0], rtol=0, atol=close * np.abs(expected[0]).max())


@pytest.mark.parametrize("part", ["weight", "bias"])
def test_what_a_large_task_has_in_a_file_of_its_own_is_not_joined(bundles, part):
    bundle = bundles("bert", "fp32")
    model = bundle.graph(None)
    (own,) = (each for each in model.graph.initializer if each.name == f"{ATTENTION}query.{part}")
    for node in model.graph.node:
        node.input[:] = ["override:query" if name == own.name else name for name in node.input]
    own.name = "override:query"
    assert joined(bundle, model) == (0, bundle.architecture.n_layers - 1)
