"""VeRA against its equation in NumPy and its paper's counts, and its matrices against PyTorch's own generator."""

from __future__ import annotations

import json
import math

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from deltas import random_delta
from onnx import numpy_helper
from tolerance import error_of

from edgepeft.backbones.base import family_of
from edgepeft.backbones.config import config_of
from edgepeft.backbones.source import open_backbone
from edgepeft.common.errors import BundleError, UsageError
from edgepeft.common.frozen_random import frozen_matrices
from edgepeft.graph.external_data import DRAWN
from edgepeft.graph.gradient.training import training_facts
from edgepeft.graph.mix import mix
from edgepeft.graph.parameters import computed_values, make_inputs
from edgepeft.graph.splice import splice
from edgepeft.methods.vera import FrozenMatrices, VectorBased, VeRA
from edgepeft.training.exporting.delta import export_delta

LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}


@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1])
def test_its_matrices_are_those_that_pytorchs_generator_gives(seed):
    """peft 0.21.2, ``tuners/vera/model.py``: one generator for both, each Kaiming-uniform by its own columns."""
    shapes = {"A": (37, 130), "B": (201, 37)}
    generator = torch.Generator("cpu").manual_seed(seed)
    found = frozen_matrices(seed, shapes)
    for name, shape in shapes.items():
        bound = math.sqrt(3.0) * (math.sqrt(2.0) / math.sqrt(shape[1]))
        expected = torch.empty(shape).uniform_(-bound, bound, generator=generator).numpy()
        # A PyTorch that does not fuse the product with the sum rounds twice.
        np.testing.assert_allclose(found[name], expected, rtol=0, atol=bound * 2.0**-23)


def test_it_is_the_papers_sum_and_narrow_layers_read_the_first_columns_and_rows():
    source, (tokens, inputs, outputs, rank) = np.random.default_rng(0), (5, 6, 4, 3)
    module = VectorBased(inputs, outputs, FrozenMatrices(3, {"A": (rank, 9), "B": (7, rank)}), 0.1)
    d, b = source.normal(size=rank), source.normal(size=outputs)
    module.d.data, module.b.data = (torch.from_numpy(v).float() for v in (d, b))
    y, x = source.normal(size=(tokens, outputs)), source.normal(size=(tokens, inputs))
    matrices = frozen_matrices(3, {"A": (rank, 9), "B": (7, rank)})
    w = np.diag(b) @ matrices["B"][:outputs] @ np.diag(d) @ matrices["A"][:, :inputs]
    given = torch.from_numpy(y).float(), torch.from_numpy(x).float()
    found, error = module(*given).detach().numpy(), error_of(module, *given)
    np.testing.assert_allclose(found, y + x @ w.T, rtol=0, atol=error)


# L (d + r) for L layers that are tuned (section 3.2), as table 1 has them: query and value, in thousands.
@pytest.mark.parametrize(
    ("sizes", "rank", "published"),
    [({}, 1, 18.4), ({}, 16, 18.8), ({}, 256, 24.5), (LARGE, 1, 49.2), (LARGE, 256, 61.4)],
)
def test_the_count_is_the_papers(sizes, rank, published):
    config = config_of("roberta-base") | sizes
    count = VeRA(rank=rank).n_parameters(family_of(config).architecture(config))
    assert int(count / 100) / 10 == published  # cut, not rounded, there


@pytest.fixture(scope="module")
def exported(tiny):
    backbone = open_backbone(str(tiny("bert")))
    settings = {"rank": 6, "seed": 3, "roles": ("query", "ffn_output")}
    return backbone, export_delta(random_delta(backbone, "vera", "task", settings=settings), backbone)


def spliced(backbone, graph):
    whole = backbone.architecture.graph(backbone.checkpoint)
    return splice(whole, graph, backbone.architecture.bindings, backbone.checkpoint)


def test_a_file_holds_the_vectors_alone_and_a_board_trains_no_matrix(exported):
    backbone, graph = exported
    trained = set(training_facts(graph).trained)
    parts = {f"layer.{i}.{role}/{part}" for i in range(2) for role in ("query", "ffn_output") for part in "db"}
    assert {name for name in trained if not name.startswith("head/")} == parts
    stored = {t.name: tuple(t.dims) for t in graph.graph.initializer}
    assert all(len(stored[name]) == 1 for name in parts)
    matrices = {
        t.name: numpy_helper.to_array(t) for t in spliced(backbone, graph).graph.initializer if "drawn:" in t.name
    }
    expected = frozen_matrices(3, {"A": (6, 48), "B": (32, 6)})
    assert set(matrices) == {"delta/drawn:A", "delta/drawn:B"}
    for name, matrix in expected.items():
        np.testing.assert_array_equal(matrices[f"delta/drawn:{name}"], matrix)


def test_tasks_share_a_session_and_its_passes(exported):
    backbone, graph = exported
    model = spliced(backbone, graph)
    once = computed_values(model)
    values = ort.InferenceSession(once.SerializeToString()).run(None, {})
    structured = make_inputs(model, dict(zip((output.name for output in once.graph.output), values, strict=True)))
    assert structured is not None
    assert mix(structured.structure, structured.feeds, backbone.architecture.bindings, 2) is not None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"generator": "mt19937/2"}, "generator must be 'mt19937/1', found 'mt19937/2'"),
        ({"seed": 2**32}, "seed must be a number under"),
        (
            {"shapes": {"A": [6, 48], "B": [32, 7]}},
            r"reads B \[32, 6\], and its edgepeft.drawn says otherwise",
        ),
        ({"shapes": {"A": [6, 48], "B": [32, 6], "C": [2**14, 2**15]}}, "268,435,456 numbers at most"),
        ({"shapes": {"A": [6, 48]}}, "reads B "),
    ],
)
def test_a_recipe_that_cannot_be_followed_is_refused_before_anything_is_drawn(exported, changes, message):
    backbone, graph = exported
    copy = onnx.ModelProto()
    copy.CopyFrom(graph)
    entry = next(entry for entry in copy.metadata_props if entry.key == DRAWN)
    entry.value = json.dumps(json.loads(entry.value) | changes)
    with pytest.raises(BundleError, match=message):
        spliced(backbone, copy)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rank": 0}, "rank must be at least 1"),
        ({"seed": 2**32}, r"seed must be from 0 to 2\^32 - 1; found 4294967296"),
        ({"rank": 10**7}, "rank must be at most 4,194,304 on this backbone; found 10,000,000"),
    ],
)
def test_settings_that_cannot_be_are_refused(tiny, settings, message):
    with pytest.raises(UsageError, match=message):
        random_delta(open_backbone(str(tiny("bert"))), "vera", "task", settings=settings)
