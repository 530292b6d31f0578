"""The program that times training steps by oneDNN beside steps by MKL: what it writes, and where it does not apply."""

import json

import pytest
from typer.testing import CliRunner

from bench.products import app
from edgepeft.common.errors import UsageError
from edgepeft.training import devices


def measured(tiny, tmp_path, *more):
    rows = [{"sentence1": f"w{5 + n % 20} w{6 + n % 7}", "label": "ab"[n % 2]} for n in range(60)]
    (data := tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = [
        "--backbone",
        str(tiny("bert")),
        "--data",
        str(data),
        "--rounds",
        "3",
        "--json",
        str(tmp_path / "out.json"),
        *more,
    ]
    return CliRunner().invoke(app, words, catch_exceptions=False)


def test_both_sides_do_the_same_steps_and_every_sample_is_kept(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "_slow_mkl", lambda: True)
    monkeypatch.setattr(devices, "is_float32", lambda: True)
    said = measured(tiny, tmp_path).output
    document = json.loads((tmp_path / "out.json").read_text())
    assert {name: len(samples) for name, samples in document["seconds"].items()} == {"onednn": 3, "mkl": 3}
    assert f"{document['ratio']:.2f} times the throughput" in said and "cpu" in document["host"]
    assert document["largest_loss_difference"] < 0.05  # two labels: the loss is about 0.7, where AMX rounds it too


def test_another_processor_is_told_that_nothing_changes_there(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "_slow_mkl", lambda: False)
    with pytest.raises(UsageError, match="stay MKL's"):
        measured(tiny, tmp_path)


def test_more_tokens_than_there_are_positions_are_refused(tiny, tmp_path):
    with pytest.raises(UsageError, match="--length 100000"):
        measured(tiny, tmp_path, "--length", "100000")
    assert measured(tiny, tmp_path, "--batch-size", "0").exit_code == 2
