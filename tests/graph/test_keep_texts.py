"""Tokens that keep their axis of texts: the same numbers by fewer nodes, for each kind of decoder and for rows of tasks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from deltas import random_delta
from graphs import session
from tiny import write_model

from edgepeft.backbones.source import Backbone, open_backbone
from edgepeft.backbones.text import IDS, LOGITS, PAST, caches
from edgepeft.bundle.bundle import Bundle
from edgepeft.graph.by_row import by_row, keep_texts
from edgepeft.graph.grouped import lower_groups
from edgepeft.graph.in_place import InPlace, in_place, tables
from edgepeft.graph.names import LAST, PLACE
from edgepeft.graph.protos import copied
from edgepeft.graph.splice import splice_text
from edgepeft.runtime.session_pool import structure_and_values
from edgepeft.training.exporting.backbone import write_backbone
from edgepeft.training.exporting.delta import export_delta

SIZES = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "num_key_value_heads": 2, "num_hidden_layers": 3}
SIZES |= {"tie_word_embeddings": True, "vocab_size": 1100}  # a table of words is one of bytes from 1,000 rows on
KINDS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("qwen2", {}),
    ("qwen3", {}),
    ("gemma3_text", {"query_pre_attn_scalar": 16}),
]
N, S, PLACES = 3, 2, 8


def made(folder: Path, kind: str, sizes: dict[str, Any], weights: Any) -> tuple[Backbone, Bundle]:
    backbone = open_backbone(str(write_model(folder / "model", kind, **{**SIZES, **sizes})))
    (folder / "bundle").mkdir()
    write_backbone(backbone, folder / "bundle", weights)
    return backbone, Bundle(folder / "bundle")


def fed(lowered: InPlace, tokens: int) -> dict[str, Any]:
    """A prompt of S tokens a text, or the second of its steps."""
    source, first = np.random.default_rng(0), 0 if tokens > 1 else 1
    values = [each for each in lowered.model.graph.input if each.name.startswith(PAST)]
    shapes = {each.name: [d.dim_value for d in each.type.tensor_type.shape.dim] for each in values}
    given = {name: source.normal(size=(N, k, PLACES, e)).astype(np.float32) for name, (_, k, _, e) in shapes.items()}
    given |= {IDS: source.integers(5, 60, N * tokens), LAST: tokens * np.arange(1, N + 1) - 1}
    given[PLACE] = np.full(N, first + tokens - 1, np.int32)
    for kind, frequencies in enumerate(lowered.frequencies):
        angles = np.arange(PLACES, dtype=np.float32)[:, None] * frequencies
        given |= zip(tables(kind), (np.cos(angles), np.sin(angles)), strict=True)
    return given


def require_same(model: onnx.ModelProto, bundle: Bundle, lowered: InPlace, own: dict[str, Any]) -> Counter[str]:
    """Compare, by a session that has the pass besides and one that has groups alone; the rewritten graph's operators."""
    plain = copied(model)
    lower_groups(plain, 0)  # activations stay as they are
    kept = copied(plain)
    keep_texts(kept.graph)
    for tokens in (S, 1):
        given = {**fed(lowered, tokens), **own}
        outputs = [LOGITS, *caches("present", 0)]
        expected, found = (session(each, bundle.folder).run(outputs, given) for each in (plain, kept))
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    return Counter(node.op_type for node in kept.graph.node)


@pytest.mark.parametrize(("kind", "sizes"), KINDS, ids=[kind for kind, _ in KINDS])
def test_a_bare_decoder_gives_the_same_numbers(tmp_path: Path, kind: str, sizes: dict[str, Any]):
    _, bundle = made(tmp_path, kind, sizes, "int8")
    lowered = in_place(bundle.text_graphs.decoder)
    assert lowered is not None
    found = require_same(lowered.model, bundle, lowered, {})
    if kind in ("llama", "qwen2"):  # the others split heads to norm them
        assert found["Reshape"] + found["Flatten"] < 2 * SIZES["num_hidden_layers"] + 3


@pytest.mark.parametrize("method", ["lora", "pfeiffer", "ia3"])
def test_rows_of_several_tasks_give_the_same_numbers_and_nothing_is_reshaped_in_a_layer(tmp_path: Path, method: str):
    backbone, bundle = made(tmp_path, *KINDS[0], "int8")
    settings = {"roles": ("query", "key", "value", "ffn_output")} if method == "lora" else {}
    tasks = []
    for seed in range(N):
        trained = random_delta(backbone, method, "t", None, settings=settings, head="text", seed=seed)
        delta = export_delta(trained, backbone)
        graphs = splice_text(*bundle.text_graphs, delta, bundle.manifest.backbone.sites, bundle.checkpoint)
        lowered = in_place(graphs[1])
        assert lowered is not None
        own = structure_and_values(lowered.model)
        assert own is not None
        rows = by_row(*own)
        assert rows is not None
        tasks.append(rows)
    own = {name: np.concatenate([task.feeds[name] for task in tasks]) for name in tasks[0].feeds}
    found = require_same(tasks[0].structure, bundle, lowered, own)
    assert found["Reshape"] + found["Flatten"] < 15  # at the first layer and the last one, whatever lies between


def test_products_of_float32_take_rows_alone_and_stay(tmp_path: Path):
    _, bundle = made(tmp_path, "llama", {}, "fp32")
    lowered = in_place(bundle.text_graphs.decoder)
    assert lowered is not None
    before = copied(lowered.model)
    keep_texts(lowered.model.graph)
    assert lowered.model == before
