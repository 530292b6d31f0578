"""T5's two graphs that write text, step by step, against transformers' own eager model, teacher-forced."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from graphs import session
from onnx import TensorProto
from tiny import SIZES, ragged
from tolerance import exactly

from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.source import open_backbone
from edgepeft.backbones.text import CROSS, CROSS_BIAS, IDS, LOGITS, ORDER, PAST, PRESENT, TextGraphs, caches
from edgepeft.graph.validate import check_standard

VARIANTS: dict[str, dict[str, Any]] = {
    "relu, tied": {},
    "gated, untied": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "one decoder layer": {"num_layers": 3, "num_decoder_layers": 1, "d_kv": 9},
    "exact gelu": {"feed_forward_proj": "gelu", "num_heads": 2, "d_kv": 16},
}
RELATIVE = 1e-5
STEPS = 24  # past the furthest distance that the model tells from others


class Stepped:
    """Both graphs under ONNX Runtime."""

    def __init__(self, folder: Path) -> None:
        self.backbone = open_backbone(str(folder))
        graphs = self.backbone.architecture.text_graphs(self.backbone.checkpoint)
        assert graphs is not None
        self.graphs: TextGraphs = graphs
        self.encoder, self.decoder = (session(graph, self.backbone.folder) for graph in graphs)
        self.layers = range(sum(value.name.startswith("past.key") for value in self.decoder.get_inputs()))

    def logits(self, rows: dict[str, np.ndarray], tokens: np.ndarray, orders: list[np.ndarray]) -> list[np.ndarray]:
        """Of each step; ``tokens`` [steps, texts] are fed."""
        cross = [CROSS_BIAS, *(name for i in self.layers for name in caches(CROSS, i))]
        given = self.encoder.run(cross, {name: rows[name] for name in ("input_ids", "attention_mask")})
        known = dict(zip(cross, given, strict=True))
        _, heads, _, width = known[cross[1]].shape
        past = [np.zeros((len(rows["input_ids"]), heads, 0, width), np.float32)] * 2 * len(self.layers)
        names = [name for i in self.layers for name in caches(PAST, i)]
        made = [name for i in self.layers for name in caches(PRESENT, i)]
        found = []
        for ids, order in zip(tokens, orders, strict=True):
            feed = known | dict(zip(names, past, strict=True)) | {IDS: ids, ORDER: order}
            logits, *past = self.decoder.run([LOGITS, *made], feed)
            found.append(logits)
        return found


@pytest.mark.numerical
@pytest.mark.parametrize("sizes", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("beams", [1, 3])
def test_each_step_of_texts_that_part_and_change_places_equals_transformers(
    tiny: Callable[..., Path], sizes: dict[str, Any], beams: int
):
    stepped, source = Stepped(tiny("t5", **sizes)), np.random.default_rng(0)
    rows = ragged(3, 7, SIZES["t5"])
    n = 3 * beams
    first = np.arange(3)
    written = [np.zeros((3, 1), np.int64)]
    orders = [first]
    for step in range(1, STEPS):
        before = 1 if step == 1 else beams
        chosen = source.integers(0, before, n) + np.repeat(first, beams) * before
        tokens = source.integers(0, SIZES["t5"]["vocab_size"], (n, 1))
        written.append(np.concatenate([written[-1][chosen], tokens], 1))
        orders.append(chosen)
    found = stepped.logits(rows, [each[:, -1] for each in written], orders)
    model = load_model(stepped.backbone, "eager").double()
    inputs = {name: torch.from_numpy(rows[name]) for name in ("input_ids", "attention_mask")}
    many = {name: values.repeat_interleave(beams, 0) for name, values in inputs.items()}

    def compute() -> dict[str, torch.Tensor]:
        given = {}
        for step in (0, 1, 2, STEPS - 1):
            read = inputs if step == 0 else many
            tokens = torch.from_numpy(written[step])
            given[str(step)] = model(**read, decoder_input_ids=tokens, use_cache=False).logits[:, -1]
        return given

    with torch.no_grad():
        exact = exactly(compute)
    for step, expected in exact.items():
        expected.require(found[int(step)], f"step {step}")
        assert np.abs(found[int(step)] - expected.value).max() <= RELATIVE * np.abs(expected.value).max()


@pytest.mark.parametrize("sizes", list(VARIANTS.values())[:2], ids=list(VARIANTS)[:2])
def test_both_graphs_read_the_unchanged_file_and_name_the_values_that_sites_are_bound_to(
    tiny: Callable[..., Path], sizes: Any
):
    stepped = Stepped(tiny("t5", **sizes))
    backbone = stepped.backbone
    read: set[str] = set()
    values: set[str] = set()
    for graph in stepped.graphs:
        check_standard(graph)
        read |= {t.name for t in graph.graph.initializer if t.data_location == TensorProto.EXTERNAL}
        values |= {name for node in graph.graph.node for name in node.output}
    assert read == set(backbone.architecture.tensors)
    bindings = backbone.architecture.bindings
    sites = [site.name for site in backbone.architecture.sites if site.module] + ["pooled.labels"]
    around = [f"{site}.{suffix}" for site in sites for suffix in ("input", "residual")]
    assert {bindings[name] for name in (*sites, *around) if name in bindings} <= values
