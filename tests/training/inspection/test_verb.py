"""`edgepeft inspect` as it is called: pictures that open, one document, refusals that leave nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from inspect import signature
from pathlib import Path
from xml.etree import ElementTree

import pytest
from deltas import saved
from looked import LABELS, ROWS, delta_of, write_rows
from PIL import Image
from typer.testing import CliRunner
from verbs import ENTRY

from edgepeft.backbones.source import open_backbone
from edgepeft.cli._main import app
from edgepeft.cli.inspect import command
from edgepeft.common.errors import BundleError, DataError, UnknownName, UsageError
from edgepeft.training.inspection.base import LIMIT

SPARTAN = {"parents": 4, "children": 2, "top_k": 2}


@pytest.fixture
def backbone(tiny):
    return open_backbone(str(tiny("bert")))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "rows.jsonl", ROWS, [LABELS[i % 3] for i in range(len(ROWS))])


@pytest.fixture
def call(backbone, data, tmp_path):
    def call(delta, *more, out="out", data=data, backbone=backbone.folder):
        folder = delta if isinstance(delta, Path) else saved(delta, tmp_path / f"delta-{delta.card.method}")
        named = ["--backbone", backbone] if backbone else []
        arguments = [folder, *named, "--data", data, "--out", tmp_path / out, "--threads", "1", *more]
        return CliRunner().invoke(app, ["inspect", *map(str, arguments)], env={"COLUMNS": "200"})

    return call


def test_json_is_the_written_document_and_it_names_every_file(call, backbone, tmp_path):
    result = call(delta_of(backbone, "spartan", **SPARTAN), "--json")
    assert result.exit_code == 0, result.output
    written = json.loads((tmp_path / "out" / "inspect.json").read_text(), parse_constant=pytest.fail)
    assert json.loads(result.stdout) == written
    assert written["schema"] == "edgepeft.inspect/1"
    assert set(written["inspections"]) == {"ablation", "parent_cells"}
    stems = {"ablation", "ablation_single", "parent_cells", "parent_cells_last_layer", "parent_weights"}
    assert set(written["pictures"]) == {f"{stem}.{suffix}" for stem in stems for suffix in ("png", "svg")}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {*written["pictures"], "inspect.json"}
    assert written["data"] == {
        "file": "rows.jsonl",
        "rows": 70,
        "of": 70,
        "sample": "all",
        "max_length": 40,
        "truncated": written["data"]["truncated"],
    }


HOSTILE = ("$x_{1$ \\frac", "<script>&amp;]]>", "体育\u0001\u0085\u202e news", "a very long label " * 20 + "at last")


@pytest.mark.filterwarnings("error")
def test_pictures_open_whatever_labels_are_called_and_show_numbers_and_names(call, backbone, tmp_path):
    delta = delta_of(backbone, "spartan", HOSTILE, **SPARTAN)
    data = write_rows(tmp_path / "hostile.jsonl", ROWS, [HOSTILE[i % 4].strip() for i in range(len(ROWS))])
    delta.card = delta.card.model_copy(update={"labels": tuple(label.strip() for label in HOSTILE)})
    result = call(delta, data=data)
    assert result.exit_code == 0, (result.output, result.exception)
    for path in (tmp_path / "out").glob("*.png"):
        with Image.open(path) as image:
            image.load()
            assert image.width > 400
            assert len(image.convert("RGB").getcolors(1 << 20) or []) > 10
    drawn = {path.stem: ElementTree.parse(path).getroot() for path in (tmp_path / "out").glob("*.svg")}
    words = {stem: "\n".join(root.itertext()) for stem, root in drawn.items()}
    for stem in ("parent_cells", "parent_cells_last_layer", "parent_weights"):
        for label in ("$x_{1$ \\frac", "<script>&amp;]]>", "体育", "a very long label…l at last"):
            assert label in words[stem], (stem, label)
    scores = json.loads((tmp_path / "out" / "inspect.json").read_text())["inspections"]["ablation"]["spans"]
    for span in scores:
        assert f"{100 * span['score']:.1f}" in words["ablation"]
    assert "first layer removed" in words["ablation"]


def test_the_same_call_writes_the_same_bytes(call, backbone, tmp_path):
    delta = delta_of(backbone, "spartan", **SPARTAN)
    for out in ("one", "two"):
        assert call(delta, out=out).exit_code == 0
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes(), path.name


def test_a_person_reads_scores_rows_sharing_and_what_was_left_out(call, backbone):
    result = call(delta_of(backbone, "houlsby", norms="false", bottleneck=4, skip_layers=1), "--limit", "30")
    said = " ".join(result.stdout.split())
    assert "accuracy on 30 rows, whole delta 0." in said
    assert "rows: 30 of rows.jsonl, of 70 (stratified by label; --limit takes more)" in said
    assert "sharing: the embeddings and 1 of 2 layers can be computed once" in said
    assert "no parent_cells: it has no memory with parent cells" in said
    assert "ablation.png" in said


def test_columns_of_other_names_give_the_same_figures(call, backbone, data, tmp_path):
    delta = delta_of(backbone, "lora", rank=2)
    rows = [json.loads(line) for line in data.read_text().splitlines()]
    lines = ["text,kind", *(f"{row['sentence1']},{row['label']}" for row in rows)]
    (tmp_path / "rows.csv").write_text("\n".join(lines))
    named = ("--text-column", "text", "--label-column", "kind")
    assert call(delta, *named, data=tmp_path / "rows.csv", out="csv").exit_code == 0
    assert call(delta, out="jsonl").exit_code == 0
    documents = [json.loads((tmp_path / out / "inspect.json").read_text()) for out in ("csv", "jsonl")]
    for document in documents:
        document["data"].pop("file"), document["data"].pop("sha256", None)
    assert documents[0] == documents[1]


def test_rows_are_limited_from_every_label_in_proportion(call, backbone, tmp_path):
    call(delta_of(backbone, "spartan", **SPARTAN), "--limit", "30")
    found = json.loads((tmp_path / "out" / "inspect.json").read_text())
    assert found["inspections"]["parent_cells"]["rows_of_label"] == [10, 10, 10]  # of 24, 23, 23


def test_the_limit_that_help_shows_is_the_librarys():
    assert signature(command).parameters["limit"].default == LIMIT


def test_a_regression_is_inspected_but_for_labels(call, backbone, tmp_path):
    data = write_rows(tmp_path / "scores.jsonl", ROWS, [i / 7 for i in range(len(ROWS))])
    delta = delta_of(backbone, "spartan", None, **SPARTAN)
    assert call(delta, data=data).exit_code == 0
    found = json.loads((tmp_path / "out" / "inspect.json").read_text())
    assert found["metric"] == "pearson_spearman"
    assert set(found["inspections"]) == {"ablation"}
    assert "regression" in found["skipped"]["parent_cells"]


@pytest.mark.parametrize("method", ["bitfit", "full", "top-k", "layernorm"])
def test_a_delta_without_modules_in_layers_is_refused_saying_what_can_be_inspected(call, backbone, tmp_path, method):
    settings = {"layers": 1} if method == "top-k" else {}
    result = call(delta_of(backbone, method, **settings))
    assert isinstance(result.exception, UsageError)
    assert result.exception.exit_code == 2
    said = str(result.exception)
    assert "which label picks which parent cell" in said
    assert "removing the modules of every span" in said
    assert "compacter" in said
    assert "spartan" in said
    assert "sharing" in said
    assert not (tmp_path / "out").exists()


def test_wrong_calls_are_refused_with_their_reason_and_leave_nothing(call, backbone, tiny, tmp_path):
    delta = saved(delta_of(backbone, "lora"), tmp_path / "delta")
    odd = write_rows(tmp_path / "odd.jsonl", ROWS[:3], ["a", "b", "d"])
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text(json.dumps({"sentence1": "w5", "sentence2": "w6", "label": "a"}) + "\n")
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    wrong = (
        (call(delta, data=odd), DataError, "odd.jsonl:3: task t has no label 'd'. Known: c, a, b."),
        (call(delta, data=pairs), DataError, "was trained on single texts; these rows are pairs"),
        (call(delta, data=empty), DataError, "has no rows"),
        (call(delta, data=tmp_path / "none.jsonl"), UsageError, "does not exist"),
        (call(delta, "--metric", "pearson"), UsageError, "no metric of a classification"),
        (call(delta, "--metric", "f1:z"), UnknownName, "no label is called 'z'"),
        (call(delta, backbone=tiny("bert", seed=3)), BundleError, "Use the backbone that it was trained on"),
        (call(tmp_path / "nothing"), UsageError, "is not a delta: it is not there"),
        (call(delta, backbone=None), UsageError, "there is no folder"),
        (call(delta, out="rows.jsonl"), UsageError, "is a file"),
        (call(delta, out="delta", data=odd), UsageError, "no part of an inspection"),
        (call(delta, "--force", out="delta"), UsageError, "no part of an inspection"),
    )
    for result, kind, message in wrong:
        assert type(result.exception) is kind, (message, result.exception)
        assert message in str(result.exception)
    assert call(delta, "--limit", "0").exit_code == 2
    assert not (tmp_path / "out").exists()
    assert {path.name for path in delta.iterdir()} == {"delta.json", "delta.safetensors"}
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_an_earlier_inspection_is_replaced_with_force_only(call, backbone, tmp_path):
    delta = delta_of(backbone, "spartan", **SPARTAN)
    assert call(delta).exit_code == 0
    refused = call(delta_of(backbone, "lora"))
    assert "Give --force" in str(refused.exception)
    assert (tmp_path / "out" / "parent_cells.png").exists()
    assert call(delta_of(backbone, "lora"), "--force").exit_code == 0
    assert not (tmp_path / "out" / "parent_cells.png").exists()


def test_without_matplotlib_the_package_to_install_is_named(tmp_path):
    code = f"import sys; sys.modules['matplotlib'] = None; {ENTRY}"
    arguments = ["inspect", tmp_path, "--data", "rows.jsonl", "--out", tmp_path / "out"]
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.strip() == "error: inspecting needs matplotlib: pip install 'edgepeft[train]'."
