"""All tasks on one input: the same answers as one by one, with the layers below their first change run once."""

from __future__ import annotations

import dataclasses
import shutil

import numpy as np
import pytest
import suite
from cards import restated
from deltas import TEXTS, random_delta, saved
from method_examples import examples
from tolerance import require_alike

from edgepeft.backbones.source import open_backbone
from edgepeft.common.errors import BundleError
from edgepeft.graph.splice import splice
from edgepeft.methods.base import PerLayer, methods
from edgepeft.runtime import mixed
from edgepeft.runtime.mixed import LowerLayersPlan, plan_lower_layers, shared_layers
from edgepeft.runtime.runtime import Runtime
from edgepeft.training.exporting.bundle import export_bundle
from edgepeft.training.inspection.base import untouched_stages

EXAMPLES = [(name, example) for name, method in methods().items() for example in examples(method)]
LABELS = (("no", "yes"), ("bad", "good", "so-so"))
HIGHER = {"norms": False, "skip_layers": 2}
TASKS = {
    "a": ("pfeiffer", {"bottleneck": 4, **HIGHER, "norms": False}),
    "b": ("houlsby", {"bottleneck": 3, **HIGHER}),
    "c": ("lora", {"rank": 2, "skip_layers": 3}),
    "d": ("spartan", {"parents": 3, "top_k": 2}),  # its norms leave nothing to share
    "e": ("top-k", {"layers": 1}),
    "f": ("prompt-r", {"length": 3}),
}


@pytest.fixture(scope="module")
def bundle(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("prefix")
    backbone = open_backbone(str(tiny("roberta", num_hidden_layers=4)))
    deltas = [random_delta(backbone, m, task, settings=s, seed=i) for i, (task, (m, s)) in enumerate(TASKS.items())]
    paths = [saved(delta, folder / delta.card.task) for delta in deltas]
    export_bundle(backbone, paths, folder / "bundle", texts=TEXTS)
    return folder / "bundle"


def scores(predictions):
    return np.array([list(prediction.scores.values()) for prediction in predictions])


@pytest.mark.parametrize("rows", [1, 33])
def test_the_answers_are_those_of_one_task_at_a_time(bundle, rows):
    together = Runtime(bundle).predict_all(list(TASKS), TEXTS[:rows])
    alone = Runtime(bundle)
    for task in TASKS:
        require_alike(scores(together[task]), scores(alone.predict(task, TEXTS[:rows])), bundle)
    assert list(together) == list(TASKS)


def test_the_lower_layers_run_once_for_all_tasks_that_leave_them_alone(bundle, monkeypatch):
    ran = []

    def counting(session, output, inputs):
        ran.append(output)
        return run_session(session, output, inputs)

    run_session = mixed.run_session
    monkeypatch.setattr(mixed, "run_session", counting)
    Runtime(bundle).predict_all(list(TASKS), TEXTS[:5])
    assert sorted(ran) == ["layer.1.layer_output", "logits", "logits", "logits", "logits"]  # a, b, c and e


def test_labels_that_do_not_fit_the_graph_are_refused_not_spread_over_it(bundle, tmp_path):
    folder = shutil.copytree(bundle, tmp_path / "bundle")
    restated(folder, "b", labels=["x", "y", "z", "w"])
    with pytest.raises(BundleError, match="task b gives 2 logits; its manifest entry names 4"):
        Runtime(folder).predict_all(["a", "b"], TEXTS[:3])


def test_hidden_states_that_the_config_has_otherwise_are_refused_as_the_backbones(bundle, monkeypatch):
    narrow = np.zeros((1, 5, 31), np.float32)
    monkeypatch.setattr("edgepeft.runtime.runtime.run_session", lambda *_: narrow)
    runtime, ids = Runtime(bundle), np.ones((1, 5), np.int64)
    with pytest.raises(BundleError, match="the backbone gives hidden states of 31 numbers; its config names 32"):
        runtime.last_hidden_state({"input_ids": ids, "attention_mask": ids, "token_type_ids": 0 * ids})


def test_a_task_asked_for_twice_answers_twice_the_same_and_no_text_gets_no_answer(bundle):
    runtime = Runtime(bundle)
    assert runtime.predict_all(["a", "a", "b"], TEXTS[:2])["a"] == runtime.predict_all(["b", "a"], TEXTS[:2])["a"]
    assert runtime.predict_all(["a", "b"], []) == {"a": [], "b": []}


@pytest.mark.parametrize("number", suite.first_quick(EXAMPLES), ids=lambda i: f"{EXAMPLES[i][0]}-{i}")
def test_the_graph_leaves_alone_what_the_delta_does(tiny, number):
    """Two sides that know nothing of each other: the spliced graph, and the modules with the table of sites."""
    require_alike_untouched(suite.Case(EXAMPLES[number][1], open_backbone(str(tiny("bert")))))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in {"compacter", "lora", "pfeiffer", "spartan"} else [pytest.mark.slow])
        for name, method in methods().items()
        if issubclass(method, PerLayer)
    ],
)
def test_the_graph_leaves_a_skipped_layer_alone(tiny, name):
    """Those of one structure each; the others are slow."""
    skipping = dataclasses.replace(examples(methods()[name])[0], skip_layers=1, leave_out=())
    require_alike_untouched(suite.Case(skipping, open_backbone(str(tiny("bert")))))


def require_alike_untouched(case):
    sites, backbone = case.architecture.bindings, case.backbone
    graph = case.architecture.graph(backbone.checkpoint)
    spliced = splice(graph, case.graph, sites, backbone.checkpoint)
    found = untouched_stages(case.moved)
    # What stands past a layer leaves that layer itself alone.
    past = found.lowest is not None and found.lowest.endswith("layer_output")
    assert shared_layers(spliced, case.architecture, sites) == found.layers + past


@pytest.mark.parametrize(
    ("depths", "expected"),
    [
        ({"a": 6, "b": 6}, LowerLayersPlan(6, ("a", "b"), ())),  # 6 + 6 + 6 of 24
        ({"a": 0, "b": 0}, LowerLayersPlan(0, (), ("a", "b"))),
        ({"a": 6}, LowerLayersPlan(0, (), ("a",))),  # 12 either way
        ({"a": 6, "b": 0}, LowerLayersPlan(0, (), ("a", "b"))),
        ({"a": 2, "b": 10, "c": 10}, LowerLayersPlan(10, ("b", "c"), ("a",))),  # 10 + 2 + 2 + 12 = 26; at 2: 32
        ({"a": 8, "b": 10, "c": 10}, LowerLayersPlan(8, ("a", "b", "c"), ())),  # 8 + 4 + 4 + 4 = 20; at 10: 26
        ({"a": 12, "b": 12}, LowerLayersPlan(12, ("a", "b"), ())),
    ],
)
def test_the_cut_runs_the_fewest_layers(depths, expected):
    assert plan_lower_layers(depths, 12) == expected


def test_heads_alone_answer_from_one_run_of_the_backbone(tiny, tmp_path, monkeypatch):
    """However many there are, and with whatever labels."""
    backbone = open_backbone(str(tiny("roberta", num_hidden_layers=4)))
    tasks = [f"t{i}" for i in range(5)]
    paths = [
        saved(random_delta(backbone, "linear", task, LABELS[i % 2], seed=i), tmp_path / task)
        for i, task in enumerate(tasks)
    ]
    export_bundle(backbone, paths, tmp_path / "bundle", texts=TEXTS)
    runtime, runs = Runtime(tmp_path / "bundle"), []
    whole = mixed.run_session
    monkeypatch.setattr(mixed, "run_session", lambda *given: runs.append(given[1]) or whole(*given))
    together = runtime.predict_all(tasks, TEXTS[:2])
    assert len(runs) == 6 and runs.count("logits") == 5
    for task in tasks:
        assert runtime.bundle.entry(task).shared_layers == 4
        require_alike(
            scores(together[task]), scores(Runtime(tmp_path / "bundle").predict(task, TEXTS[:2])), tmp_path / "bundle"
        )
