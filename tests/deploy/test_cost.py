from __future__ import annotations

import json

import pytest
from verbs import edgepeft

from edgepeft.bench.result.rows import flops_per_instance
from edgepeft.bundle.bundle import Bundle
from edgepeft.common.errors import UnknownName, UsageError
from edgepeft.deploy.cost import bundle_cost


def test_a_backbones_products_are_its_architectures_beside_the_mean_that_is_pooled(exported):
    bundle = Bundle(exported)
    cost = bundle_cost(bundle, None, batch_size=4, length=9)
    expected = 4 * flops_per_instance(bundle.architecture, [9])
    pooled = 2 * 4 * (4 * 9) * bundle.architecture.hidden_size  # [batch, tokens] times [tokens, d]
    assert cost.product_flops == expected + pooled
    assert cost.unknown == () and cost.precision == "fp32"


def test_a_task_costs_what_its_modules_and_head_add(exported):
    bundle = Bundle(exported)
    lora, bitfit = (bundle_cost(bundle, task, 1, 8).product_flops for task in ("mood", "score"))
    assert lora > bitfit


def test_the_rows_by_operator_add_up_to_the_whole(exported):
    cost = bundle_cost(Bundle(exported), "pair", 2, 11)
    rows = cost.by_operator()
    assert sum(row["flops"] for row in rows) == cost.flops == cost.totals()["flops"]
    assert rows[0]["op"] == "Gemm" and all(row["flops"] or row["read_bytes"] for row in rows)


def test_the_verb_prints_a_table_or_one_document(exported):
    shown = edgepeft("cost", exported, "--task", "mood", "--length", 16, "--batch", 2)
    assert shown.returncode == 0 and "LayerNormalization" in shown.stdout and "2 x 16 tokens" in shown.stdout
    document = json.loads(edgepeft("cost", exported, "--length", 16, "--batch", 2, "--json").stdout)
    assert document["flops_per_instance"] == document["flops"] / 2
    assert sum(node["flops"] for node in document["nodes"]) == document["flops"]
    by_node = edgepeft("cost", exported, "--nodes")
    assert by_node.returncode == 0 and "layer.0.layer_output" in by_node.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--length", "0"], "takes 1 to 64 tokens"),
        (["--length", "65"], "takes 1 to 64 tokens"),
        (["--batch", "0"], "--batch must be at least 1"),
        (["--batch", "1000000000"], "at most 2,048 texts"),
        (["--task", "moods"], "Did you mean 'mood'"),
    ],
)
def test_sizes_and_tasks_that_there_are_not_are_usage_errors(exported, arguments, said):
    done = edgepeft("cost", exported, *arguments)
    assert done.returncode == 2 and said in done.stderr


def test_what_is_no_bundle_is_refused(tmp_path):
    done = edgepeft("cost", tmp_path)
    assert done.returncode == 2 and "is not a bundle" in done.stderr


def test_a_task_that_is_not_there_raises(exported):
    with pytest.raises(UnknownName):
        bundle_cost(Bundle(exported), "nothing")
    with pytest.raises(UsageError):
        bundle_cost(Bundle(exported), None, length=10**6)
