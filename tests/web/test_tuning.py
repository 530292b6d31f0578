"""What a tunable site has, and what a bundle takes back: graphs with the board's gradients, values of tensors, files."""

import json

import numpy as np
import onnxruntime as ort
import pytest
import torch
from deltas import bundled, random_delta, saved
from safetensors.numpy import load_file, save_file

from edgepeft.backbones.source import open_backbone
from edgepeft.bundle.bundle import Bundle
from edgepeft.cli import _main
from edgepeft.common.errors import BundleError, DataError, UnknownName, UsageError
from edgepeft.deploy.install import roll_back
from edgepeft.runtime.runtime import Runtime
from edgepeft.training.exporting.bundle import add_deltas
from edgepeft.tuning.from_page import prepare_tuned
from edgepeft.web.site import write_site

ACCOUNT = {
    "metrics": {"metric": "accuracy", "eval": 1, "test": 0.75, "before": 0.5, "n_train": 12, "n_eval": 4, "n_test": 4},
    "training": {
        "steps": 100,
        "best_step": 30,
        "learning_rate": 1e-3,
        "head_learning_rate": 1e-2,
        "batch_size": 12,
        "seed": 0,
        "engine": "onnxruntime-web 1.30.0, edgepeft 0.1.0",
    },
}


@pytest.fixture
def site(exported, modules, tmp_path):
    written = write_site(Bundle(exported), tmp_path / "site", libraries=modules, tunable=True)
    assert written.untunable == {"score": "a regression, and a page tunes classifications"}
    return tmp_path / "site"


def run(site, graph, given, outputs=None):
    options = ort.SessionOptions()
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(site))
    session = ort.InferenceSession((site / graph).read_bytes(), options, providers=["CPUExecutionProvider"])
    taken, outputs = {each.name for each in session.get_inputs()}, outputs or [o.name for o in session.get_outputs()]
    return dict(zip(outputs, session.run(outputs, {n: given[n] for n in taken}), strict=True))


def test_the_graphs_give_torchs_gradients_and_the_values_that_tasks_answer_by(site, exported):
    tasks = json.loads((site / "site.json").read_text())["tasks"]
    assert "tuning" not in tasks["score"]
    assert {*tasks["mood"]["tuning"]} >= {"rates", "chosen", "task", "backbone"}
    for task in ("mood", "pair"):
        entry, tuning = tasks[task], tasks[task]["tuning"]
        tensors, check = load_file(site / tuning["tensors"]), load_file(site / entry["check"])
        values = run(site, tuning["values"], tensors)
        expected = load_file(site / entry["values"])
        assert {*values} == {*expected}
        for name, value in expected.items():
            np.testing.assert_allclose(values[name], value, atol=1e-6)
        inputs = {name: values[:6] for name, values in check.items() if name != "logits"}
        states = {} if tuning["below"] is None else run(site, tuning["below"], inputs)
        assert {*states} == {state["name"] for state in tuning["states"]}
        n, labels = len(inputs["input_ids"]), np.arange(6) % len(entry["labels"])
        given = {**inputs, **states, **tensors, "labels": labels, "shares": np.full(n, 1 / n, np.float32)}
        width = tensors["head/classifier.weight"].shape[1]
        given["dropout:0"] = np.ones((n, width), np.float32)
        found = run(site, tuning["graph"], given)
        np.testing.assert_allclose(found["logits"], check["logits"][:6], atol=1e-4)
        shares = torch.tensor(check["logits"][:6]).log_softmax(-1)
        assert abs(found["loss"] + shares[torch.arange(6), torch.tensor(labels)].mean().item()) < 1e-4
        # d loss / d bias of the last layer is the mean of softmax - onehot.
        slope = (shares.exp() - torch.nn.functional.one_hot(torch.tensor(labels), shares.shape[1])).mean(0)
        np.testing.assert_allclose(found["gradient:head/classifier.bias"], slope, atol=1e-4)
        assert all(np.abs(found[f"gradient:{name}"]).max() > 0 for name in tensors)


def test_a_site_that_can_tune_nothing_is_refused_and_others_have_nothing_of_it(exported, modules, tmp_path):
    with pytest.raises(UsageError, match=r"can tune no task .*score: a regression.*Leave --tunable out"):
        write_site(Bundle(exported), tmp_path / "site", tasks=["score"], libraries=modules, tunable=True)
    assert not (tmp_path / "site").exists()
    write_site(Bundle(exported), tmp_path / "site", tasks=["mood"], libraries=modules)
    files = {path.name for path in (tmp_path / "site").rglob("*")}
    assert (
        not files & {"tune.html", "tune.js", "mood.tensors.safetensors"}
        and len([*(tmp_path / "site" / "structures").iterdir()]) == 1
    )


@pytest.fixture(scope="module")
def other(tiny, tmp_path_factory):
    """A bundle of the same backbone whose mood has other tensors."""
    backbone = open_backbone(str(tiny("bert", mean=True)))
    folder = tmp_path_factory.mktemp("other")
    return bundled({"mood": random_delta(backbone, "lora", "mood", seed=5)}, backbone, folder, "fp32")


@pytest.fixture
def tuned(other, exported, tmp_path):
    """What a page would have made of the exported mood, had its loop ended where the other's tensors are."""
    from edgepeft.graph.gradient.training import training_facts

    delta = Bundle(other).delta_graph("mood")
    tensors = training_facts(delta).tensors(delta)

    def write(name="mood.tuned.safetensors", account=ACCOUNT, change=lambda tensors: None, **facts):
        manifest, given = Bundle(exported).manifest, dict(tensors)
        change(given)
        told = {"format": "edgepeft.tuned/1", "task": "mood", "task_sha256": manifest.tasks["mood"].sha256}
        told |= {"backbone_sha256": manifest.backbone.identity, "account": json.dumps(account), **facts}
        save_file(given, tmp_path / name, metadata=told)
        return tmp_path / name

    return write


def test_a_bundle_answers_as_a_task_with_these_tensors_and_can_go_back(bundle, other, tuned, monkeypatch, capsys):
    texts = ["w7 w9", "w12 w30 w31 w8", "w5"]
    with Runtime(other, cache=False) as runtime:
        expected = [answer.logits for answer in runtime.predict("mood", texts)]
    with Runtime(bundle, cache=False) as runtime:
        before = [answer.logits for answer in runtime.predict("mood", texts)]
    path = tuned()
    monkeypatch.setattr("sys.argv", ["edgepeft", "add", str(bundle), str(path), "--force"])
    with pytest.raises(SystemExit) as ended:
        _main.main()
    assert ended.value.code == 0, capsys.readouterr().err
    with Runtime(bundle, cache=False) as runtime:
        found = [answer.logits for answer in runtime.predict("mood", texts)]
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert np.abs(np.subtract(found, before)).max() > 1e-2
    entry = Bundle(bundle).entry("mood")
    assert entry.metrics["test"] == 0.75 and entry.metrics["split"].startswith("train: 12 rows typed in a page")
    assert entry.training["engine"].startswith("onnxruntime-web") and entry.verification.reference == "training graph"
    again = Bundle(bundle)
    assert prepare_tuned(again, path, replace=True).entry.sha256 == entry.sha256, "of the version before, too"
    roll_back(bundle, "mood")
    with Runtime(bundle, cache=False) as runtime:
        np.testing.assert_array_equal([answer.logits for answer in runtime.predict("mood", texts)], before)


def test_a_file_of_the_version_before_is_refused_where_more_than_tensors_changed(bundle, tuned, tiny, tmp_path):
    backbone = open_backbone(str(tiny("bert", mean=True)))
    changed = random_delta(backbone, "lora", "mood", seed=6, settings={"alpha": 3.0})
    add_deltas(bundle, [saved(changed, tmp_path / "changed")], replace=True)
    with pytest.raises(DataError, match="another version of task mood"):
        prepare_tuned(Bundle(bundle), tuned(), replace=True)


def test_a_file_that_does_not_fit_is_refused_in_a_line(bundle, tuned, tmp_path):
    opened = Bundle(bundle)

    def lose(tensors):
        del tensors["head/classifier.bias"]

    def spoil(tensors):
        tensors["head/classifier.bias"] = np.array([np.nan, 0], np.float32)

    def widened(tensors):
        tensors["head/classifier.bias"] = np.zeros(3, np.float32)

    def halved(tensors):
        tensors["head/classifier.bias"] = np.zeros(2, np.float16)

    def swollen(tensors):
        tensors["more"] = np.zeros(1_000_000, np.float32)

    odd = {**ACCOUNT, "metrics": {**ACCOUNT["metrics"], "test": 7}}
    shouted = {**ACCOUNT, "training": {**ACCOUNT["training"], "engine": "<script>"}}
    for error, words, given in (
        (BundleError, "another backbone", {"backbone_sha256": "0" * 64}),
        (DataError, "another version of task mood", {"task_sha256": "0" * 64}),
        (UnknownName, "moods", {"task": "moods"}),
        (BundleError, "edgepeft.tuned/9", {"format": "edgepeft.tuned/9"}),
        (BundleError, "no file of a page", {"account": odd}),
        (BundleError, "no file of a page", {"account": shouted}),
        (DataError, "lack head/classifier.bias", {"change": lose}),
        (DataError, "not finite", {"change": spoil}),
        (DataError, r"\[3\]", {"change": widened}),
        (DataError, "of type F16", {"change": halved}),
        (DataError, r"has 4,\d+,\d+ bytes", {"change": swollen}),
    ):
        with pytest.raises(error, match=words):
            prepare_tuned(opened, tuned(**given), replace=True)
    with pytest.raises(UsageError, match="--force"):
        prepare_tuned(opened, tuned())
    path = tuned()
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(BundleError, match="damaged"):
        prepare_tuned(opened, path, replace=True)
    with pytest.raises(UsageError, match="is not there"):
        prepare_tuned(opened, tmp_path / "no.tuned.safetensors")
    before = opened.manifest
    assert Bundle(bundle).manifest == before, "nothing was written"
