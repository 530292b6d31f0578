"""Tasks whose tensors are more than a protobuf can hold: their file beside the graph, through every verb that meets it.

The limit is lowered; ``tests/training/exporting/test_larger.py`` has a real one.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from deltas import TEXTS, random_delta, saved
from safetensors.numpy import load_file
from tolerance import exact_logits
from verbs import edgepeft

from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.source import Backbone, open_backbone
from edgepeft.bundle.bundle import Bundle
from edgepeft.bundle.delta import Delta
from edgepeft.bundle.manifest import Manifest
from edgepeft.common.errors import BundleError, UsageError
from edgepeft.deploy.install import remove_task, roll_back
from edgepeft.deploy.merge import merge_task
from edgepeft.deploy.signature import unsigned_files
from edgepeft.deploy.verify import audit
from edgepeft.device.profiles import load_profile
from edgepeft.fleet.publish import publish, withdraw
from edgepeft.fleet.pull import pull
from edgepeft.runtime.runtime import Runtime
from edgepeft.training.exporting.bundle import add_deltas, export_bundle
from edgepeft.tuning.fit import bundle_fit

LIMIT = 20_000  # bytes; the tiny model has 200 kB


@pytest.fixture(autouse=True)
def low_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgepeft.backbones.emit.MAX_INLINE_BYTES", LIMIT)


@pytest.fixture(scope="module")
def made(tiny: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of ``full`` and ``intrinsic-said``, their deltas beside it.  Not to be written to."""
    folder = tmp_path_factory.mktemp("large")
    backbone = open_backbone(str(tiny("roberta")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("edgepeft.backbones.emit.MAX_INLINE_BYTES", LIMIT)
        deltas = [
            saved(random_delta(backbone, "full", "whole"), folder / "whole"),
            saved(
                random_delta(backbone, "intrinsic-said", "said", settings={"dimension": 120, "seed": 9}),
                folder / "said",
            ),
        ]
        export_bundle(backbone, deltas, folder / "bundle", texts=TEXTS[:8])
    return folder / "bundle"


@pytest.fixture
def bundle(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "bundle"))


def weights_of(bundle: Path) -> Path:
    return bundle / "tasks" / "whole.weights.safetensors"


def logits_of(bundle: Path, task: str) -> np.ndarray:
    with Runtime(bundle) as runtime:
        return runtime.logits(task, rows_of(bundle))


def rows_of(bundle: Path) -> dict[str, np.ndarray]:
    return dict(Bundle(bundle).encoder().encode(TEXTS[:9], 40).inputs)


def require_pytorchs(logits: np.ndarray, bundle: Path, made: Path, task: str) -> None:
    backbone = open_backbone(str(made))
    delta = Delta.load(made.parent / task, backbone)
    exact_logits(delta, load_model(backbone, "eager"), rows_of(bundle)).require(logits)


@pytest.mark.parametrize("task", ["whole", "said"])
def test_the_logits_are_pytorchs(made: Path, task: str):
    require_pytorchs(logits_of(made, task), made, made, task)


def test_the_graph_is_small_and_onnx_finds_its_tensors_in_the_file_beside_it(made: Path):
    path = made / "tasks" / "whole.onnx"
    assert path.stat().st_size < weights_of(made).stat().st_size
    trained, stored = load_file(made.parent / "whole" / "delta.safetensors"), load_file(weights_of(made))
    matrices = {name for name, tensor in trained.items() if tensor.ndim > 1 and name.startswith("override/")}
    assert set(stored) == matrices
    whole = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}
    for name in matrices:
        np.testing.assert_array_equal(whole[name], trained[name])


def test_nothing_is_left_of_the_export_but_the_tasks_own_files(made: Path):
    assert {p.name for p in (made / "tasks").iterdir()} == {
        "said.check.safetensors",
        "said.onnx",
        "whole.check.safetensors",
        "whole.onnx",
        "whole.weights.safetensors",
    }
    assert not list(made.rglob(".*"))
    entry = Manifest.read(made).tasks["whole"]
    assert entry.n_bytes == weights_of(made).stat().st_size + (made / "tasks" / "whole.onnx").stat().st_size
    assert Manifest.read(made).tasks["said"].weights_sha256 is None


@pytest.mark.parametrize("task", ["whole", "said"])
def test_a_merged_model_has_its_tensors_beside_it_and_needs_no_bundle(made: Path, tmp_path: Path, task: str):
    merge_task(Bundle(made), task, tmp_path / "out")
    out = tmp_path / "out"
    inline = onnx.load(out / "model.onnx", load_external_data=False).graph.initializer
    assert sum(len(tensor.raw_data) for tensor in inline) < LIMIT < (out / "model.onnx_data").stat().st_size
    session, rows = ort.InferenceSession(out / "model.onnx"), rows_of(made)
    logits = session.run(["logits"], {value.name: rows[value.name] for value in session.get_inputs()})[0]
    require_pytorchs(logits, made, made, task)


def test_a_copied_bundle_is_audited_and_answers(made: Path, bundle: Path):
    assert not [finding for finding in audit(bundle) if finding.problem]
    np.testing.assert_array_equal(logits_of(bundle, "whole"), logits_of(made, "whole"))


def test_an_altered_file_is_refused(bundle: Path):
    content = bytearray(weights_of(bundle).read_bytes())
    content[-1] ^= 1
    weights_of(bundle).write_bytes(content)
    with pytest.raises(BundleError, match=r"whole\.weights\.safetensors is not the file that the bundle was made with"):
        Bundle(bundle).graph("whole")
    assert [finding.subject for finding in audit(bundle) if finding.problem] == ["whole"]


def test_a_file_that_is_gone_is_refused(bundle: Path):
    weights_of(bundle).unlink()
    with pytest.raises(BundleError, match=r"whole\.weights\.safetensors cannot be read.*incomplete"):
        Bundle(bundle).graph("whole")


def test_a_file_of_other_tensors_is_refused_whatever_its_hash_says(bundle: Path):
    shutil.copyfile(bundle / "model.safetensors", weights_of(bundle))
    manifest = json.loads((bundle / "edgepeft.json").read_text())
    manifest["tasks"]["whole"]["weights_sha256"] = manifest["backbone"]["sha256"]["weights"]
    (bundle / "edgepeft.json").write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match="does not hold the tensor 'override/"):
        Bundle(bundle).graph("whole")


def test_an_exported_task_goes_into_another_bundle_with_its_file_or_not_at_all(
    made: Path, bundle: Path, tmp_path: Path
):
    expected = logits_of(bundle, "whole")
    remove_task(bundle, "whole")
    assert not weights_of(bundle).exists() and not list((bundle / "tasks").glob("whole*"))
    for suffix in (".onnx", ".check.safetensors"):
        shutil.copyfile(made / "tasks" / f"whole{suffix}", tmp_path / f"whole{suffix}")
    with pytest.raises(BundleError, match=r"tensors in whole\.weights\.safetensors, which must come beside it"):
        add_deltas(bundle, [tmp_path / "whole.onnx"])
    shutil.copyfile(weights_of(made), tmp_path / "whole.weights.safetensors")
    add_deltas(bundle, [tmp_path / "whole.onnx"])
    np.testing.assert_array_equal(logits_of(bundle, "whole"), expected)
    assert weights_of(bundle).read_bytes() == weights_of(made).read_bytes()


def test_a_replaced_task_can_be_had_back_with_its_file(bundle: Path, tmp_path: Path):
    before, first = logits_of(bundle, "whole"), weights_of(bundle).read_bytes()
    backbone = open_backbone(str(bundle))
    delta = saved(random_delta(backbone, "full", "whole", seed=1), tmp_path / "again")
    add_deltas(bundle, [delta], replace=True)
    second = weights_of(bundle).read_bytes()
    assert second != first and np.abs(logits_of(bundle, "whole") - before).max() > 1e-3
    roll_back(bundle, "whole")
    np.testing.assert_array_equal(logits_of(bundle, "whole"), before)
    assert weights_of(bundle).read_bytes() == first
    roll_back(bundle, "whole")
    assert weights_of(bundle).read_bytes() == second
    lora = saved(random_delta(backbone, "lora", "whole"), tmp_path / "lora")
    add_deltas(bundle, [lora], replace=True)
    assert not weights_of(bundle).exists()
    roll_back(bundle, "whole")
    assert weights_of(bundle).read_bytes() == second
    assert not list(bundle.rglob(".*"))


def test_matrices_in_half_precision_lie_there_too(bundle: Path, tmp_path: Path):
    delta = saved(random_delta(open_backbone(str(bundle)), "full", "half"), tmp_path / "half")
    add_deltas(bundle, [delta], delta_weights="fp16")
    stored = load_file(bundle / "tasks" / "half.weights.safetensors")
    trained = load_file(delta / "delta.safetensors")
    assert {array.dtype for array in stored.values() if array.size >= 128} == {np.dtype("float16")}
    name = "override/embeddings.word_embeddings.weight"
    np.testing.assert_array_equal(stored[f"{name}:fp16"], trained[name].astype(np.float16))
    assert np.isfinite(logits_of(bundle, "half")).all()


def test_what_cannot_lie_beside_a_graph_is_refused_by_name(made: Path, bundle: Path, tmp_path: Path):
    backbone = Backbone("tiny", bundle, json.loads((bundle / "config.json").read_text()))
    with pytest.raises(UsageError, match=r"has 0\.0 GB of tensors of its own \(full\).* train fewer, by lora"):
        export_bundle(backbone, [], tmp_path / "out", texts=TEXTS[:8], templates=["full"])
    from edgepeft.options.verbs import TuneSettings
    from edgepeft.tuning.target import Files, from_task

    with pytest.raises(
        UsageError, match=r"task whole \(full\) cannot be tuned here: its tensors are more than a graph"
    ):
        from_task(Bundle(made), "whole", Files(tmp_path / "rows.csv"), TuneSettings())


@pytest.mark.parametrize(("method", "settings"), [("full", {}), ("intrinsic-said", {"dimension": 400})])
def test_a_task_that_writes_text_lies_and_merges_so_too(
    tiny: Callable[..., Path], tmp_path: Path, method: str, settings: dict[str, int]
):
    """The export's comparison, and that of the merged files, are with PyTorch's own steps."""
    backbone = open_backbone(str(tiny("t5", eos_token_id=44)))
    delta = saved(random_delta(backbone, method, "text", None, head="text", settings=settings), tmp_path / "delta")
    export_bundle(backbone, [delta], tmp_path / "bundle", texts=TEXTS[:6])
    bundle, out = Bundle(tmp_path / "bundle"), tmp_path / "out"
    assert (bundle.folder / "tasks" / "text.weights.safetensors").exists() == (method == "full")
    assert merge_task(bundle, "text", out).agreement == 1
    stored, graphs = load_file(out / "text.weights.safetensors"), sorted(out.glob("*.onnx"))
    held = [tensor for path in graphs for tensor in onnx.load(path, load_external_data=False).graph.initializer]
    assert stored and all(len(tensor.raw_data) < LIMIT / 10 for tensor in held)


def test_info_fit_and_signatures_know_the_file(bundle: Path):
    told = json.loads(edgepeft("info", bundle, "--json").stdout)["tasks"]
    by_name = {task["task"]: task for task in told}
    assert by_name["said"]["tunable"] and not by_name["whole"]["tunable"]
    assert by_name["whole"]["untunable"] == "its tensors are more than a graph can hold"
    assert by_name["whole"]["bytes"] > weights_of(bundle).stat().st_size
    fit = bundle_fit(Bundle(bundle), load_profile("rpi4"), "whole", base=0)
    assert fit.finetune is None and fit.untunable == by_name["whole"]["untunable"]
    assert fit.disk["of it, tasks"] > weights_of(bundle).stat().st_size
    assert unsigned_files(bundle) == ["README.md"]


def test_a_board_pulls_the_file_too(made: Path, tmp_path: Path) -> None:
    publish(made, tmp_path / "repository", tmp_path / "keys")
    root = tmp_path / "repository" / "metadata" / "1.root.json"
    assert pull(str(tmp_path / "repository"), tmp_path / "board", root=root).taken == ("said", "whole")
    assert logits_of(tmp_path / "board", "whole").tobytes() == logits_of(made, "whole").tobytes()
    withdraw(tmp_path / "repository", tmp_path / "keys", ["whole"])
    assert pull(str(tmp_path / "repository"), tmp_path / "board").removed == ("whole",)
    assert not [*(tmp_path / "board" / "tasks").glob("whole.*")]
