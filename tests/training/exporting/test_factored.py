"""Delta graphs of methods with factored weights: factors in the file, plain adapters once ONNX Runtime has opened it."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from deltas import random_delta

from edgepeft.backbones.base import family_of
from edgepeft.backbones.config import config_of
from edgepeft.backbones.source import Backbone, open_backbone
from edgepeft.bundle.card import BackboneCard, DeltaCard
from edgepeft.bundle.delta import Delta
from edgepeft.graph.splice import splice
from edgepeft.runtime import session
from edgepeft.training.exporting.delta import export_delta

LAYERS, D, M = 4, 32, 12  # of the tiny BERT; its other weights are 32 x 32 and 48 x 32
BOTH = ["adapter-lowrank", "phm", "compacter"]


@pytest.fixture(scope="module")
def backbone(tiny: Callable[..., Path]) -> Backbone:
    return open_backbone(str(tiny("bert", num_hidden_layers=LAYERS)))


@pytest.fixture(scope="module")
def opened(
    backbone: Backbone, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, int | None], tuple[onnx.ModelProto, onnx.ModelProto]]:
    """A method's delta graph, and what `open_session` makes of the graph that it is spliced into; each is made once."""
    plain, file = session.session_options, tmp_path_factory.mktemp("factored") / "optimised.onnx"

    def options(threads: int | None = None) -> object:
        found = plain(threads)
        found.optimized_model_filepath = str(file)
        return found

    @functools.cache
    def graphs(method: str, bottleneck: int | None = None) -> tuple[onnx.ModelProto, onnx.ModelProto]:
        settings = {} if bottleneck is None else {"bottleneck": bottleneck}
        delta = export_delta(random_delta(backbone, method, "task", settings=settings), backbone)
        bare = backbone.architecture.graph(backbone.checkpoint)
        whole = splice(bare, delta, backbone.architecture.bindings, backbone.checkpoint)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(session, "session_options", options)
            session.open_session(whole, backbone.folder, 1)
        return delta, onnx.load(file, load_external_data=False)

    return graphs


def operators(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


def widths(model: onnx.ModelProto) -> Counter[tuple[int, ...]]:
    return Counter(tuple(i.dims) for i in model.graph.initializer if sorted(i.dims) == [M, D])


@pytest.mark.parametrize("method", [*BOTH, "compacter++"])
def test_an_opened_graph_is_that_of_houlsbys_adapters(opened, method: str):
    """The operators that the adapters add are the same, so the speed is; the folded weights are constants."""
    nothing, houlsby = operators(opened("layernorm")[1]), operators(opened("houlsby", M)[1])
    delta, found = opened(method, M)
    adapters = 2 if method in BOTH else 1
    added, expected = operators(found) - nothing, houlsby - nothing
    assert sum(expected.values()) >= 2 * LAYERS * 3
    assert {name: 2 * count for name, count in added.items()} == {name: adapters * n for name, n in expected.items()}
    assert not widths(delta)
    assert sum(widths(found).values()) == 2 * LAYERS * adapters


def test_the_shared_rule_is_in_the_graph_once_by_its_name_on_disk(backbone: Backbone):
    delta = random_delta(backbone, "compacter", "task", settings={"n": 2, "bottleneck": M})
    graph = export_delta(delta, backbone).graph
    rules = [i.name for i in graph.initializer if tuple(i.dims) == (2, 2, 2)]
    assert (
        rules == [name for name in delta.tensors() if name.endswith("/down.A")] == ["layer.0.attention_output/down.A"]
    )
    stored = {name for name in delta.tensors() if not name.startswith("override/")}
    assert stored <= {initializer.name for initializer in graph.initializer}


def test_compacter_plus_plus_on_roberta_base_takes_less_than_400_kb_without_its_head():
    """The folded weights alone would take 1.8 MB."""
    config = config_of("roberta-base")
    roberta = family_of(config).architecture(config)
    card = BackboneCard(source="roberta-base", family="bert", model_type="roberta", sha256="0" * 64)
    common = {"task": "task", "labels": ("no", "yes"), "head": "linear", "head_reads": "first_token", "max_length": 128}
    checkpoint = SimpleNamespace(
        read=lambda name: np.random.default_rng(0).standard_normal(roberta.shape_of(name), np.float32),
        stored_name=lambda name: name,
    )
    backbone = SimpleNamespace(checkpoint=checkpoint, architecture=roberta)
    delta = Delta(DeltaCard(**common, method="compacter++", hyperparameters={}, backbone=card), roberta, backbone)
    graph = export_delta(delta, backbone)
    head = sum(i.ByteSize() for i in graph.graph.initializer if i.name.startswith("head/"))
    assert 4 * 66_976 < graph.ByteSize() - head < 400_000
