"""Layers that a site's structures share: each once, cut no further than what no task of them changes."""

import json

import numpy as np
import onnx
import pytest
from deltas import bundled, random_delta
from safetensors.numpy import load_file

from edgepeft.backbones.source import open_backbone
from edgepeft.bundle.bundle import Bundle
from edgepeft.web.site import write_site

from .test_site import replayed

# Two layers: a task that skips one shares the first with the linear one.
TASKS = {
    "linear": ("linear", {}),
    "upper": ("lora", {"skip_layers": 1}),
    "lora": ("lora", {}),
    "biases": ("bitfit", {}),
    "prompt": ("prompt-t", {"length": 3}),
    "all": ("full", {}),
}


def written(tiny, modules, folder, family, weights, tasks):
    backbone = open_backbone(str(tiny(family)))
    deltas = {task: random_delta(backbone, TASKS[task][0], task, settings=TASKS[task][1]) for task in tasks}
    bundle = bundled(deltas, backbone, folder, weights)
    site = write_site(Bundle(bundle), folder / "site", libraries=modules)
    return site, json.loads((folder / "site" / "site.json").read_text())["tasks"]


def tables(site, entry):
    """The tensors of the weights' file that each graph of a task names."""
    return [
        {t.name for t in onnx.load(site / name, load_external_data=False).graph.initializer if t.external_data}
        for name in (*entry["lower"], entry["structure"])
    ]


def test_each_task_begins_where_it_differs(tiny, modules, tmp_path):
    _, tasks = written(tiny, modules, tmp_path, "bert", "fp32", TASKS)
    lower = {task: entry["lower"] for task, entry in tasks.items()}
    assert lower["linear"] == lower["upper"] and len(lower["linear"]) == 3  # words, embeddings, the first layer
    assert lower["lora"] == lower["linear"][:2]
    assert lower["biases"] == lower["linear"][:1]  # the embeddings' norm has one
    assert lower["prompt"] == lower["all"] == []
    for entry in tasks.values():
        *below, own = tables(tmp_path / "site", entry)
        for part in below:
            assert part and part.isdisjoint(own), "what is shared is in no structure"
    there = {path.relative_to(tmp_path / "site").as_posix() for path in (tmp_path / "site" / "structures").iterdir()}
    assert there == {name for entry in tasks.values() for name in (*entry["lower"], entry["structure"])}


OTHERS = ("roberta", "distilbert", "mpnet", "modernbert")


@pytest.mark.parametrize(
    ("family", "weights"),
    [
        ("bert", "fp32"),
        ("bert", "int8"),
        ("albert", "fp32"),  # its words are narrower, and its layers one
        *(pytest.param(family, "fp32", marks=pytest.mark.slow) for family in OTHERS),
    ],
)
def test_parts_one_after_the_other_give_the_tasks_own_logits(tiny, modules, tmp_path, family, weights):
    _, tasks = written(tiny, modules, tmp_path, family, weights, ["linear", "upper", "lora"])
    assert all(entry["lower"] for entry in tasks.values())
    for entry in tasks.values():
        check = load_file(tmp_path / "site" / entry["check"])
        known = {**load_file(tmp_path / "site" / entry["values"]), **check}
        known.setdefault("token_type_ids", np.zeros_like(check["input_ids"]))
        off = np.abs(replayed(tmp_path / "site", entry, known) - check["logits"]).max()
        assert off <= (entry["tolerance"]["difference"] or 0.5)


def test_one_structure_of_all_layers_stays_whole(tiny, modules, tmp_path):
    site, tasks = written(tiny, modules, tmp_path, "bert", "fp32", ["lora"])
    assert (tasks["lora"]["lower"], site.structures) == ([], 1)


def test_a_single_task_of_upper_layers_stays_whole(tiny, modules, tmp_path):
    _, tasks = written(tiny, modules, tmp_path, "bert", "fp32", ["upper"])
    assert tasks["upper"]["lower"] == []
