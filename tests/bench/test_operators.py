"""Counted figures against the architecture, and that they repeat; an operator's own are in tests/graph/test_cost.py."""

from __future__ import annotations

import onnx
import pytest

from edgepeft.bench.operators import count_metrics
from edgepeft.bench.planning.target import random_subject
from edgepeft.bench.result.rows import flops_per_instance


@pytest.fixture(scope="module")
def subject(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bundle")
    return random_subject("all-MiniLM-L6-v2", folder, methods=["lora"])


def values(entries, start):
    return next(entry.values for entry in entries if entry.of.startswith(start))


def test_the_graphs_products_are_those_that_the_architecture_says(subject):
    # flops.py counts matrices and attention from the config; the packed graph of the backbone must run just these.
    lengths = [7, 3, 5]
    found = values(count_metrics(subject, lengths), "backbone")
    padded = 4 * subject.architecture.hidden_size * subject.architecture.n_layers
    attention = padded * (3 * 7 * 7 - sum(n * n for n in lengths))  # attention alone sees the padding
    pooling = 2 * 3 * sum(lengths) * subject.architecture.hidden_size  # the mean of each row, as a product
    expected = flops_per_instance(subject.architecture, lengths) * 3 + attention + pooling
    assert found["flops"] == pytest.approx(expected, rel=1e-9)


def test_a_delta_adds_nodes_products_and_its_file(subject):
    entries = count_metrics(subject, [4, 4])
    bare, task = values(entries, "backbone"), values(entries, "task lora")
    graph = onnx.load(subject.bundle.folder / "backbone.onnx", load_external_data=False).graph
    assert bare["nodes"] == len(graph.node)
    assert task["nodes"] > bare["nodes"]
    d, wide, layers = 384, 1536, 6
    unread = 6 * 2 * (2 * d * d + 2 * d * wide)  # of 8 rows 2 pass the last layer's query, output and feed-forward
    lora = layers * 2 * 8 * 2 * (2 * d * 8)  # rank 8 on query and value
    assert task["flops"] == pytest.approx(bare["flops"] - unread + lora, rel=0.01)  # heads and norms are the rest
    assert task["delta_bytes"] == (subject.bundle.folder / "tasks" / "lora.onnx").stat().st_size


def test_counting_again_gives_the_same_figures(subject):
    assert count_metrics(subject, [4, 9]) == count_metrics(subject, [4, 9])


def test_longer_rows_take_more_of_everything_but_nodes(subject):
    short, long = (values(count_metrics(subject, [n] * 2), "backbone") for n in (8, 16))
    assert short["nodes"] == long["nodes"]
    assert all(long[name] > short[name] for name in ("flops", "bytes_moved", "peak_activation_bytes"))
