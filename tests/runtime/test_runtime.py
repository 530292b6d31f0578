"""A bundle's answers against PyTorch with hooks, and what it does with damaged files and odd input."""

import json
import subprocess
import sys
import threading
import warnings

import numpy as np
import onnx
import pytest
import torch
from cards import restated
from deltas import TEXTS, random_delta, saved
from tolerance import require_alike
from verbs import edgepeft

from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.source import open_backbone
from edgepeft.backbones.tokens import Text
from edgepeft.bundle.bundle import Bundle
from edgepeft.bundle.delta import Delta
from edgepeft.common.errors import BundleError, DataError, UnknownName, UsageError, VerificationFailed
from edgepeft.common.own_folder import locked
from edgepeft.deploy.install import commit_tasks, prepare_exported, remove_task, roll_back
from edgepeft.deploy.verify import audit
from edgepeft.runtime.inputs import in_batches
from edgepeft.runtime.runtime import Runtime
from edgepeft.training.exporting.bundle import export_bundle


@pytest.mark.parametrize("task", ["mood", "pair", "score"])
def test_answers_are_pytorchs(exported, tiny, task):
    backbone = open_backbone(str(tiny("bert", mean=True)))
    delta = Delta.load(exported.parent / f"delta-{task}", backbone)
    texts = [Text(t.first, TEXTS[i + 1].first if task == "pair" else None) for i, t in enumerate(TEXTS[:33])]
    inputs = backbone.encoder().encode(texts, 40).inputs
    with torch.no_grad():
        logits = delta.logits(load_model(backbone, "eager"), {n: torch.from_numpy(v) for n, v in inputs.items()})
    answers = Runtime(exported).predict(task, texts)
    if task == "score":
        require_alike([a.score for a in answers], logits[:, 0].numpy(), exported)
        assert all(a.as_json() == {"task": "score", "value": a.score} for a in answers)
    else:
        expected = torch.softmax(logits, 1).numpy()
        found = np.array([list(a.scores.values()) for a in answers])
        require_alike(found, expected, exported)
        assert [list(a.scores).index(a.label) for a in answers] == expected.argmax(1).tolist()
        assert np.ptp(found, axis=0).max() > 0.05  # rows are told apart


def test_a_row_does_not_depend_on_its_company(exported):
    runtime = Runtime(exported)
    together = runtime.predict("mood", TEXTS[:9])
    alone = [runtime.predict("mood", [text])[0] for text in TEXTS[:9]]
    require_alike([a.score for a in together], [a.score for a in alone], exported)


def test_less_than_one_thread_is_refused(exported):
    with pytest.raises(UsageError, match="threads is 0; 1 is the least"):
        Runtime(exported, threads=0)


@pytest.mark.parametrize("threads", [1.5, "2"])
def test_what_is_no_number_of_threads_and_no_folder_is_refused(exported, threads):
    with pytest.raises(UsageError, match="whole number"):
        Runtime(exported, threads=threads)
    with pytest.raises(UsageError, match="None is no folder"):
        Runtime(None)


def test_several_tasks_answer_one_input(exported):
    runtime = Runtime(exported)
    answers = runtime.predict_all(["mood", "score"], TEXTS[:2])
    assert answers["mood"] == runtime.predict("mood", TEXTS[:2])
    assert [len(rows) for rows in answers.values()] == [2, 2]


def test_a_row_that_is_masked_throughout_is_refused_before_the_run(exported):
    mask = np.array([[1, 1], [0, 0]])
    inputs = {name: np.ones((2, 2), np.int64) for name in ("input_ids", "token_type_ids")}
    with pytest.raises(DataError, match="row 1"):
        Runtime(exported).logits("mood", {**inputs, "attention_mask": mask})


def test_long_texts_are_cut_and_counted(exported):
    runtime = Runtime(exported)
    long = Text("w7 " * 5000)
    assert runtime.predict("mood", [long]) == runtime.predict("mood", [Text("w7 " * 100)])
    assert runtime.truncation.rows == 2
    runtime.predict("mood", [Text("w7")])
    assert runtime.truncation.rows == 2


@pytest.mark.parametrize("text", ["", "   ", "😀😀", "\ud800", "\x00", "w5\n\tw6"])
def test_odd_texts_have_answers(exported, text):
    assert Runtime(exported).predict("mood", [Text(text)])[0].label in ("no", "yes")


def test_no_text_gives_no_answer(exported):
    assert Runtime(exported).predict("mood", []) == []


@pytest.mark.parametrize("name", ["model.safetensors", "backbone.onnx", "tasks/mood.onnx"])
@pytest.mark.parametrize("damage", ["truncated", "altered", "missing"])
def test_a_damaged_file_is_named_before_anything_runs(bundle, name, damage):
    path = bundle / name
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "truncated":
        path.write_bytes(content[: len(content) // 2])
    else:
        path.write_bytes(content[:-5] + bytes([content[-5] ^ 1]) + content[-4:])
    with pytest.raises(BundleError, match=name.rsplit("/", 1)[-1]):
        Runtime(bundle).predict("mood", TEXTS[:1])
    problems = {finding.subject: finding.problem for finding in audit(bundle)}
    assert problems["mood"] and bool(problems["backbone"]) == (name != "tasks/mood.onnx")


def test_a_damaged_check_file_is_found_by_verify_alone(bundle):
    path = bundle / "tasks" / "pair.check.safetensors"
    path.write_bytes(path.read_bytes()[:-4] + b"\0\0\0\0")
    problems = {finding.subject: finding.problem for finding in audit(bundle)}
    assert [subject for subject, problem in problems.items() if problem] == ["pair"]


def test_the_backbone_is_checked_beside_a_task_of_that_name(tiny, tmp_path):
    backbone = open_backbone(str(tiny("bert")))
    delta = saved(random_delta(backbone, "lora", "backbone"), tmp_path / "delta")
    export_bundle(backbone, [delta], tmp_path / "bundle", texts=TEXTS)
    assert [(f.subject, f.problem) for f in audit(tmp_path / "bundle")] == [("backbone", ""), ("task backbone", "")]
    with (tmp_path / "bundle" / "tokenizer.json").open("a") as file:
        file.write(" ")
    broken, task = audit(tmp_path / "bundle")
    assert "tokenizer.json is not the file that the bundle was made with" in broken.problem and not task.problem


def test_a_sound_bundle_has_no_findings_and_states_its_parity(exported):
    findings = audit(exported)
    assert [finding.subject for finding in findings] == ["backbone", "mood", "pair", "score"]
    assert not any(finding.problem for finding in findings)
    assert all(0 < f.verification.max_abs_difference < 1e-4 for f in findings[1:])


def test_an_unknown_task_is_named(exported):
    with pytest.raises(UnknownName, match="mood"):
        Runtime(exported).predict("moood", TEXTS[:1])


def test_an_encoders_task_writes_no_text(exported):
    with Runtime(exported) as runtime:
        for asked in (runtime.write, lambda *given: next(runtime.stream(*given))):
            with pytest.raises(
                UsageError, match=r"writes? no text; ask it with predict|no decoder, .* ask it with predict"
            ):
                asked(runtime.tasks[0], "w5")


def test_an_exported_task_moves_between_bundles_without_torch(bundle, exported):
    code = f"""
import sys
import threading
import warnings
from pathlib import Path
from edgepeft.bundle.bundle import Bundle
from edgepeft.deploy.install import commit_tasks, prepare_exported, remove_task, roll_back
remove_task(Path({str(bundle)!r}), "mood")
bundle = Bundle(Path({str(bundle)!r}))
commit_tasks(bundle, [prepare_exported(bundle, Path({str(exported)!r}) / "tasks" / "mood.onnx")])
assert not {{"torch", "transformers"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert (bundle / "tasks" / "mood.onnx").read_bytes() == (exported / "tasks" / "mood.onnx").read_bytes()
    moved, original = Bundle(bundle).entry("mood"), Bundle(exported).entry("mood")
    assert moved.model_copy(update={"verification": None}) == original.model_copy(update={"verification": None})
    assert Runtime(bundle).predict("mood", TEXTS[:3]) == Runtime(exported).predict("mood", TEXTS[:3])


def test_an_exported_task_of_another_backbone_is_refused(bundle, exported, tmp_path):
    model = onnx.load(exported / "tasks" / "mood.onnx")
    for entry in model.metadata_props:
        if entry.key == "edgepeft.backbone_sha256":
            entry.value = "0" * 64
        if entry.key == "edgepeft.backbone":
            entry.value = "somebody/else"
    onnx.save(model, tmp_path / "mood.onnx")
    (tmp_path / "mood.check.safetensors").write_bytes((exported / "tasks" / "mood.check.safetensors").read_bytes())
    with pytest.raises(BundleError, match="somebody/else"):
        prepare_exported(Bundle(bundle), tmp_path / "mood.onnx")


def test_an_exported_task_that_answers_otherwise_is_refused(bundle, exported, tmp_path):
    (tmp_path / "mood.onnx").write_bytes((exported / "tasks" / "mood.onnx").read_bytes())
    (tmp_path / "mood.check.safetensors").write_bytes((exported / "tasks" / "score.check.safetensors").read_bytes())
    with pytest.raises(VerificationFailed):
        prepare_exported(Bundle(bundle), tmp_path / "mood.onnx")
    with pytest.raises(UsageError, match="check"):
        prepare_exported(Bundle(bundle), exported / "tasks" / "nothing.onnx")


@pytest.mark.parametrize("content", [b"", b"\x08", b"not onnx at all", b"\0" * 100])
def test_what_is_no_onnx_file_is_refused(bundle, exported, tmp_path, content):
    (tmp_path / "mood.onnx").write_bytes(content)
    (tmp_path / "mood.check.safetensors").write_bytes((exported / "tasks" / "mood.check.safetensors").read_bytes())
    with pytest.raises(BundleError, match=r"mood\.onnx"):
        prepare_exported(Bundle(bundle), tmp_path / "mood.onnx")


def test_what_a_killed_writer_left_goes_with_the_next_change(bundle):
    (bundle / "tasks" / "versions").mkdir()
    places = ("", "tasks", "tasks", "tasks/versions")
    names = (".edgepeft.json.0123abcd", ".mood.onnx.0123abcd", ".mood.onnx.notes", f".mood.{'0' * 64}.onnx.0123abcd")
    for place, name in zip(places, names, strict=True):
        (bundle / place / name).touch()
    remove_task(bundle, "pair")
    assert [path.name for path in bundle.rglob(".*")] == [".mood.onnx.notes"]


def test_a_removed_task_is_gone_and_the_backbone_untouched(bundle):
    weights = (bundle / "model.safetensors").read_bytes()
    manifest = remove_task(bundle, "pair")
    assert list(manifest.tasks) == ["mood", "score"]
    assert not list((bundle / "tasks").glob("pair*"))
    assert (bundle / "model.safetensors").read_bytes() == weights
    with pytest.raises(UnknownName):
        remove_task(bundle, "pair")


def test_a_task_that_is_there_is_not_replaced_unasked(bundle, exported):
    opened = Bundle(bundle)
    prepared = prepare_exported(opened, exported / "tasks" / "mood.onnx")
    with pytest.raises(UsageError, match="already"):
        commit_tasks(opened, [prepared])
    assert commit_tasks(opened, [prepared], replace=True).tasks.keys() == opened.manifest.tasks.keys()


def mood_version(bundle, exported, folder, mark):
    """The task mood with ``mark`` in its graph: another version, with the same answers."""
    graph = onnx.load(exported / "tasks" / "mood.onnx")
    graph.doc_string = mark
    onnx.save(graph, folder / "mood.onnx")
    (folder / "mood.check.safetensors").write_bytes((exported / "tasks" / "mood.check.safetensors").read_bytes())
    return prepare_exported(Bundle(bundle), folder / "mood.onnx")


def committing_after_opening(monkeypatch, task):
    """Another process commits ``task`` as soon as an operation has opened the bundle."""

    def opened(folder):
        found = Bundle(folder)
        commit_tasks(Bundle(folder), [task], replace=True)
        return found

    monkeypatch.setattr("edgepeft.deploy.install.Bundle", opened)


def test_a_task_that_is_committed_while_another_is_removed_is_kept(bundle, exported, tmp_path, monkeypatch):
    newer = mood_version(bundle, exported, tmp_path, "newer")
    committing_after_opening(monkeypatch, newer)
    remove_task(bundle, "pair")
    assert Bundle(bundle).entry("mood").sha256 == newer.entry.sha256
    assert list(Bundle(bundle).manifest.tasks) == ["mood", "score"]
    assert not any(finding.problem for finding in audit(bundle))


def test_what_is_removed_waits_for_whoever_writes_to_the_bundle(bundle):
    removing = threading.Thread(target=remove_task, args=(bundle, "pair"))
    with locked(bundle):
        removing.start()
        removing.join(0.5)
        assert removing.is_alive() and "pair" in Bundle(bundle).manifest.tasks
    removing.join(30)
    assert "pair" not in Bundle(bundle).manifest.tasks


def test_a_rollback_goes_back_from_the_version_that_another_process_committed(bundle, exported, tmp_path, monkeypatch):
    first, second, third = (mood_version(bundle, exported, tmp_path, mark) for mark in ("first", "second", "third"))
    commit_tasks(Bundle(bundle), [first], replace=True)
    commit_tasks(Bundle(bundle), [second], replace=True)
    committing_after_opening(monkeypatch, third)
    roll_back(bundle, "mood")
    entry = Bundle(bundle).entry("mood")
    assert (entry.sha256, entry.previous.sha256) == (second.entry.sha256, third.entry.sha256)
    assert not any(finding.problem for finding in audit(bundle))


def test_the_fault_tests_notice_a_task_that_an_operation_lost_or_replaced_unasked(bundle, exported, tmp_path):
    from kills import check

    before = Bundle(bundle).manifest
    assert all(check(name, bundle, before) is None for name in ("add", "remove", "tune", "cache"))
    commit_tasks(Bundle(bundle), [mood_version(bundle, exported, tmp_path, "newer")], replace=True)
    found = {name: check(name, bundle, before) for name in ("add", "remove", "tune", "cache")}
    assert found == {"add": None, "remove": "mood changed", "tune": None, "cache": "mood changed"}
    remove_task(bundle, "mood")
    found = {name: check(name, bundle, before) for name in ("add", "remove", "tune", "cache")}
    assert found == {"add": "lost: ['mood']", "remove": None, "tune": "lost: ['mood']", "cache": "lost: ['mood']"}


def test_batches_keep_order_and_rest():
    assert list(in_batches(iter(range(5)), 2)) == [[0, 1], [2, 3], [4]]


def test_manifest_versions_name_what_made_the_bundle(exported):
    versions = json.loads((exported / "edgepeft.json").read_text())["versions"]
    assert versions["torch"].startswith(torch.__version__.split("+")[0]) and {"edgepeft", "onnx", "onnxruntime"} <= set(
        versions
    )


def trained(bundle, task):
    """The bundle where it is said that the task was trained here, so what it was trained on is known."""
    restated(bundle, task, training={"epochs": 1})
    return bundle


SINGLE, PAIR = "one text was given", "a pair was given"


def test_a_text_of_another_kind_than_the_task_was_trained_on_is_answered_with_a_note_and_one_warning(bundle):
    with Runtime(trained(bundle, "mood")) as runtime:
        with pytest.warns(UserWarning, match="task pair: .*pairs of texts, and one text was given") as warned:
            first, second = runtime.predict("pair", ["w5", ("w5", "w6")])
            runtime.predict("pair", ["w7"])
        assert len(warned) == 1
        assert SINGLE in first.note
        assert SINGLE in first.as_json()["note"]
        assert (second.note, "note" in second.as_json()) == ("", False)
        with pytest.warns(UserWarning, match="task mood: .*single texts, and a pair was given"):
            assert PAIR in runtime.predict("mood", [("w5", "w6")])[0].note
        with pytest.warns(UserWarning, match="task mood: the text is empty"):
            notes = [answer.note for answer in runtime.predict("mood", ["", "w5", " \n"])]
        assert notes == ["the text is empty", "", "the text is empty"]


def test_mixed_and_joint_answers_have_the_notes_of_their_rows(bundle):
    tasks, texts = ["mood", "pair", "score", "pair"], [("w5", "w6"), "w5", "", ("w5", "w6")]
    with Runtime(trained(bundle, "mood")) as runtime, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mixed = [answer.note for answer in runtime.predict_mixed(tasks, texts)]
        joint = runtime.predict_all(["mood", "pair"], ["w5", ("w5", "w6")])
    assert [PAIR in mixed[0], SINGLE in mixed[1], mixed[2], mixed[3]] == [True, True, "the text is empty", ""]
    assert [[bool(answer.note) for answer in joint[task]] for task in ("mood", "pair")] == [
        [False, True],
        [True, False],
    ]


def test_of_a_task_from_elsewhere_nobody_knows_that_it_was_trained_on_single_texts(exported):
    with Runtime(exported) as runtime, warnings.catch_warnings():
        warnings.simplefilter("error")
        assert runtime.predict("mood", [("w5", "w6")])[0].note == ""


def test_the_command_line_says_it_once_on_standard_error(bundle):
    done = edgepeft("run", bundle, "--task", "pair", "w5", "w6")
    assert done.stderr.count("note: task pair: the task was trained on pairs of texts, and one text was given.\n") == 1
    assert len(done.stdout.splitlines()) == 2
