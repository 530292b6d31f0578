"""What the manifest says of a task is what its graph says: opened, verified, added, tuned, signed, published and pulled."""

import json
import shutil

import pytest
from verbs import edgepeft

from edgepeft.bundle.bundle import Bundle
from edgepeft.common.errors import BundleError
from edgepeft.runtime.runtime import Runtime


def altered(bundle, change, task="mood"):
    path = bundle / "edgepeft.json"
    document = json.loads(path.read_bytes())
    change(document["tasks"][task])
    path.write_text(json.dumps(document))


CHANGES = {
    "labels": lambda entry: entry["labels"].reverse(),
    "chosen": lambda entry: entry["chosen"].update(temperature=9.0),
    "pairs": lambda entry: entry.update(pairs=True),
    "max_length": lambda entry: entry.update(max_length=7),
    "metrics": lambda entry: entry.update(metrics={"metric": "accuracy", "test": 1.0}),
    "method": lambda entry: entry.update(method="houlsby"),
}


@pytest.mark.parametrize("field", CHANGES)
def test_an_entry_that_says_something_else_than_the_graph_is_refused(field, bundle):
    altered(bundle, CHANGES[field])
    with pytest.raises(BundleError, match=rf"mood\.onnx: its entry says {field} .*, and the graph itself "):
        Bundle(bundle).graph("mood")
    with Runtime(bundle, cache=False, threads=1) as runtime:
        with pytest.raises(BundleError, match=f"its entry says {field}"):
            runtime.predict("mood", ["w5"])
        assert len(runtime.predict("score", ["w5"])) == 1  # which nobody altered


def test_every_verb_refuses_labels_that_changed_places(bundle, tmp_path):
    altered(bundle, CHANGES["labels"])
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        "".join(json.dumps({"sentence1": f"w{5 + i}", "label": ("no", "yes")[i % 2]}) + "\n" for i in range(20))
    )
    for words in (
        ["run", bundle, "--task", "mood", "w5"],
        ["verify", bundle],
        ["tune", bundle, "--task", "mood", "--data", rows],
    ):
        done = edgepeft(*words)
        assert done.returncode not in (0, 2) and "its entry says labels" in done.stderr + done.stdout, (words, done)
    assert "problem" in edgepeft("info", bundle, "--json").stdout


def test_what_the_entry_alone_has_may_differ_between_machines(bundle):
    def elsewhere(entry):
        entry["verification"]["isa"] = "riscv64"
        entry["n_bytes"] += 1

    altered(bundle, elsewhere)
    Bundle(bundle).graph("mood")


def test_an_entry_from_before_kinds_had_names_is_read(bundle):
    altered(bundle, lambda entry: entry.pop("kind"))
    Bundle(bundle).graph("mood")
    altered(bundle, lambda entry: entry.pop("kind"), "score")
    Bundle(bundle).graph("score")


def test_an_added_task_is_listed_as_its_graph_says_whatever_the_bundle_said_that_it_came_from(bundle, exported):
    from edgepeft.deploy.install import remove_task

    other = shutil.copytree(exported, bundle.with_name("other"))
    altered(other, CHANGES["labels"])
    remove_task(bundle, "mood")
    assert edgepeft("add", bundle, other / "tasks" / "mood.onnx").returncode == 0
    assert Bundle(bundle).entry("mood").labels == Bundle(exported).entry("mood").labels


def test_tasks_whose_names_changed_places_are_refused(bundle):
    """One entry of the manifest answers for the other, each whole and with its own hashes."""
    path = bundle / "edgepeft.json"
    document = json.loads(path.read_bytes())
    tasks = document["tasks"]
    tasks["mood"], tasks["pair"] = tasks["pair"], tasks["mood"]
    path.write_text(json.dumps(document))
    for suffix in (".onnx", ".check.safetensors"):
        one, other, aside = (bundle / "tasks" / f"{name}{suffix}" for name in ("mood", "pair", "aside"))
        one.rename(aside), other.rename(one), aside.rename(other)
    with pytest.raises(BundleError, match=r"mood\.onnx is the task pair, and the manifest calls it mood"):
        Bundle(bundle).graph("mood")
    assert edgepeft("verify", bundle).returncode == 3
