"""The table of rivals: what is counted once, what ten times, and whose speed is the unit."""

from __future__ import annotations

from bench.rivals import _table


def test_ten_tasks_share_a_backbone_or_are_ten_models(tmp_path):
    for name, size in (("model.safetensors", 30_000_000), ("backbone.onnx", 1_000_000), ("tokenizer.json", 2_000_000)):
        _file(tmp_path / "bundle" / name, size)
    for task, size in (("a-lora", 1_000_000), ("b-lora", 3_000_000), ("a-linear", 0), ("b-linear", 0)):
        _file(tmp_path / "bundle" / "tasks" / f"{task}.onnx", size)
    _file(tmp_path / "merged" / "model.onnx", 31_000_000)
    _file(tmp_path / "setfit" / "a" / "model.safetensors", 32_000_000)
    _file(tmp_path / "setfit" / "b" / "model.safetensors", 34_000_000)
    scores = {name: {"a": 0.5, "b": 0.25} for name in ("linear", "lora", "full", "SetFit")}
    rates = {"linear": [20.0, 10.0, 60.0], "lora": [10.0, 10.0, 20.0], "full": [30.0] * 3, "SetFit": [5.0] * 3}
    rows = [line.strip("| ").split(" | ") for line in _table(tmp_path, scores, rates).splitlines()]
    assert rows[0][:2] == ["a", "b"]
    assert [row[0] for row in rows[2:]] == ["linear", "lora", "full", "SetFit"]
    assert [row[3] for row in rows[2:]] == ["33 MB", "53 MB", "310 MB", "330 MB"]
    assert rows[2][1:3] == ["50.0 %", "25.0 %"]
    assert [row[5] for row in rows[2:]] == ["2.00x", "1.00x", "3.00x", "0.50x"]


def _file(path, size):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(size)
