"""Tuned by ONNX Runtime Web and by Python from equal rows: the same losses, the same answers; and the page in Chromium."""

import json

import numpy as np
import pytest
from node import run_node

from edgepeft.bench.compare import ResultFile
from edgepeft.bundle.bundle import Bundle
from edgepeft.common.atomic import write_json
from edgepeft.deploy.install import commit_tasks
from edgepeft.options.verbs import TuneSettings
from edgepeft.runtime.runtime import Runtime
from edgepeft.tuning.federated import LocalTuner
from edgepeft.tuning.from_page import prepare_tuned
from edgepeft.tuning.target import Files
from edgepeft.web.site import write_service_worker, write_site

from .test_browser import MODULES, pytestmark, served, worded  # noqa: F401

TUNE = """
const { createRequire } = await import("node:module");
const { writeFileSync } = await import("node:fs");
const ort = await import(createRequire(given.modules + "/").resolve("onnxruntime-web"));
const [{ Bundle }, tuning] = await Promise.all(["bundle.js", "tuning.js"].map((name) => import(MODULE + name)));
const bundle = await Bundle.open(given.site, { ort });
const found = await tuning.tune(bundle, given.task, given.examples, { steps: given.steps, patience: null });
const start = await bundle.predict(given.task, given.rows);
await tuning.putInForce(bundle, found);
writeFileSync(given.out, tuning.packed(bundle, found));
const after = await bundle.predict(given.task, given.rows);
tuning.putBack(bundle, given.task);
const back = await bundle.predict(given.task, given.rows);
await bundle.close();
return { losses: found.losses, account: found.account, start, after, back };
"""
STEPS = 8


def examples_of(labels, *, pairs=False, n=18):
    texts = [" ".join(f"w{5 + (i * 7 + j * (1 + i % 3)) % 50}" for j in range(2 + (i * 5) % 9)) for i in range(n)]
    second = [f"w{6 + i} w9" if pairs else None for i in range(n)]
    return [
        {"text": text, "second": other, "label": labels[i % len(labels)]}
        for i, (text, other) in enumerate(zip(texts, second, strict=True))
    ]


def pasted(labels):
    return "\n".join(f"{one['label']}\t{one['text']}" for one in examples_of(labels))


@pytest.mark.parametrize("task", ["mood", "pair"])
def test_a_loop_in_wasm_is_pythons_and_its_file_answers_as_the_page(worded, tmp_path, task):  # noqa: F811
    write_site(Bundle(worded), tmp_path / "site", tasks=[task], libraries=MODULES, tunable=True)
    entry = Bundle(worded).entry(task)
    examples = examples_of(entry.labels, pairs=entry.pairs)
    rows = [one["text"] if one["second"] is None else [one["text"], one["second"]] for one in examples[:4]]
    given = {"modules": str(MODULES), "site": f"{(tmp_path / 'site').as_uri()}/", "task": task, "steps": STEPS}
    out = tmp_path / f"{task}.tuned.safetensors"
    found = run_node(TUNE, {**given, "examples": examples, "rows": rows, "out": str(out)})
    data = tmp_path / "rows.jsonl"
    named = [{"sentence1": one["text"], "sentence2": one["second"], "label": one["label"]} for one in examples]
    lines = [json.dumps({name: value for name, value in row.items() if value is not None}) for row in named]
    data.write_text("\n".join(lines))
    tuner = LocalTuner(worded, task, Files(data, 0.2, 0.2), TuneSettings(steps=STEPS, dropout=False))
    expected = tuner.steps(tuner.tensors, STEPS)
    np.testing.assert_allclose(found["losses"], expected.losses, rtol=1e-4)
    assert abs(expected.losses[0] - expected.losses[-1]) > 1e-2, "it learns"
    assert found["back"] == found["start"]
    bundle = Bundle(worded)
    commit_tasks(bundle, [prepare_tuned(bundle, out, replace=True)], replace=True)
    with Runtime(worded, cache=False) as runtime:
        answers = runtime.predict(task, [row if isinstance(row, str) else tuple(row) for row in rows])
    for answer, page in zip(answers, found["after"], strict=True):
        for label, share in answer.scores.items():
            assert abs(page["scores"][label] - share) < 1e-4


def test_a_page_learns_keeps_gives_back_and_says_what_is_wrong(worded, tmp_path, served):  # noqa: F811
    write_site(Bundle(worded), tmp_path / "site", tasks=["mood", "score"], libraries=MODULES, tunable=True)
    labels = Bundle(worded).entry("mood").labels
    row = {"text": "w7 w9 w12"}
    sizes = [["look", *size, scheme] for size in ((1280, 900), (390, 844)) for scheme in ("light", "dark")]
    steps = [["open", "tune.html"], ["add", "w3 w4", labels[0]], ["tune"], ["add", "w3 w4", labels[1]]]
    steps += [["add", " ", labels[1]], ["paste", pasted(labels)], ["cancel"], ["tune"], *sizes, ["open", "tune.html"]]
    steps += [["told"], ["open"], ["ask", row], ["errors"]]
    _, first, alone, twice, empty, many, cancelled, done, *looks = served.steps(*steps)
    *looks, _, kept, _, answers, errors = looks
    assert errors == [] and [look[0] for look in looks] == [True] * 4
    assert first["mistake"] == "" and "two labels at least" in alone["error"]
    assert f"there already, as {labels[0]}" in twice["mistake"] and "empty" in empty["mistake"]
    assert many["count"].startswith("19:") and "Cancelled" in cancelled["took"] and cancelled["result"] == ""
    assert "In force" in done["result"] and "steps in" in done["took"] and done["error"] == ""
    assert kept["result"] == done["result"] and kept["count"] == many["count"]
    assert "tuned here" in answers[0]
    _, _, _, back = served.steps(["open", "tune.html"], ["back"], ["open"], ["ask", row])
    assert "tuned here" not in back[0]
    with Runtime(worded, cache=False) as runtime:
        expected = runtime.predict("mood", row["text"])[0]
    assert all(f"{label}\n{100 * share:.1f} %" in back[0] for label, share in expected.scores.items())


def test_a_closed_tab_a_full_disk_and_another_version_change_nothing(worded, tmp_path, served):  # noqa: F811
    write_site(Bundle(worded), tmp_path / "site", tasks=["mood"], libraries=MODULES, tunable=True)
    labels = Bundle(worded).entry("mood").labels
    page = ["open", "tune.html"]
    *_, left = served.steps(page, ["paste", pasted(labels)], ["close"], page, ["told"])
    assert left["count"].startswith("18:") and left["result"] == "" and left["error"] == ""
    # In a browser that has not written yet: Chromium remembers for a while how much room there was.
    *_, full = served.steps(["quota", 1], page, ["tune"])
    assert "could not be kept" in full["error"] and "In force" in full["result"]
    _, kept = served.steps(page, ["tune"])
    assert "In force" in kept["result"] and kept["error"] == ""
    site = tmp_path / "site" / "site.json"
    manifest = json.loads(site.read_text())
    manifest["tasks"]["mood"]["tuning"]["task"] = "0" * 64
    write_json(site, manifest)
    write_service_worker(tmp_path / "site", "site.json")
    *_, stale = served.steps(["open"], ["updated"], page, ["told"])
    assert (
        "another version of the task" in stale["error"] and stale["result"] == "" and stale["count"].startswith("18:")
    )


def test_a_page_measures_itself(worded, tmp_path, served):  # noqa: F811
    write_site(Bundle(worded), tmp_path / "site", libraries=MODULES)
    steps = [["open"], ["bench"], ["errors"], ["look", 390, 844, "dark"], ["look", 1280, 900, "light"]]
    _, found, errors, *looks = served.steps(*steps)
    assert errors == [] and [look[0] for look in looks] == [True, True]
    (tmp_path / found["name"]).write_text(found["text"])
    result = ResultFile.open(tmp_path / found["name"]).document
    assert {row.task for row in result.results} == {"mood", "pair"} and "Chrom" in result.host.system
    assert any("memory of the page" in note for note in result.profile.notes) and "WASM SIMD" in found["shown"]
