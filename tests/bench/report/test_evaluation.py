"""A report of a delta's card, as `edgepeft train` writes it."""

import json

import pytest
from moods import write_texts
from verbs import edgepeft


@pytest.fixture(scope="module")
def delta(tmp_path_factory):
    pytest.importorskip("torch", reason="pip install edgepeft[train]")
    from tiny import write_model

    folder = tmp_path_factory.mktemp("trained")
    write_model(folder / "bert", "bert", mean=True)
    data = write_texts(folder / "rows.jsonl")
    asked = ("--backbone", folder / "bert", "--data", data, "--task", "mood", "--method", "bitfit")
    done = edgepeft("train", *asked, "--steps", 2, "--curve", "--out", folder / "mood", "--threads", 1)
    assert done.returncode == 0, done.stderr
    return folder / "mood"


@pytest.mark.parametrize("name", ["", "delta.json"])
def test_a_folder_or_its_card_becomes_scores_a_curve_and_errors_by_class(delta, tmp_path, name):
    done = edgepeft("report", delta / name, "--out", tmp_path / "report")
    assert done.returncode == 0, done.stderr
    card = json.loads((delta / "delta.json").read_text())["metrics"]
    page = (tmp_path / "report" / "index.html").read_text()
    for title in ("mood: scores", "mood: learning curve", "mood: errors by class", "mood: worst rows"):
        assert f"{title}</h2>" in page
    written = (tmp_path / "report" / "report.md").read_text()
    assert f"| this delta, 6 test rows | {card['test']:,}" in written
    assert f"| majority, the same rows | {card['baselines']['majority']['test']:,} |" in written
    assert "not better than the majority beyond chance" in written
    for point in card["curve"]:
        assert f"| {point['rows']} | {point['test']:,} |" in written
    assert card["errors"]["worst"][0]["row"] in written
    assert b"training rows" in (tmp_path / "report" / "pictures" / "curve-0.svg").read_bytes()


def test_what_a_card_does_not_hold_is_said(delta, tmp_path):
    card = json.loads((delta / "delta.json").read_text())
    for name, metrics in (("imported", {}), ("damaged", {**card["metrics"], "test": "high"})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "delta.json").write_text(json.dumps({**card, "metrics": metrics}))
    imported = edgepeft("report", tmp_path / "imported", "--out", tmp_path / "report")
    assert (imported.returncode, imported.stderr.count("\n")) == (1, 1) and "nothing was measured in" in imported.stderr
    damaged = edgepeft("report", tmp_path / "damaged", "--out", tmp_path / "report")
    assert damaged.returncode == 1 and "metrics.test must be a number, found 'high'" in damaged.stderr
    empty = edgepeft("report", tmp_path, "--out", tmp_path / "report")
    assert empty.returncode == 2 and "delta.json" in empty.stderr
