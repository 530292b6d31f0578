"""Training text that keeps to a JSON schema: targets are checked, scores are of texts that keep to it, the card has it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from spelling import write_speller
from verbs import verb

from edgepeft.backbones.source import open_backbone
from edgepeft.bundle.delta import Delta
from edgepeft.common.errors import DataError, UsageError
from edgepeft.data.parts import TaskData
from edgepeft.data.rows import Row
from edgepeft.options.verbs import TrainOptions, TrainSettings
from edgepeft.training.loop import train, train_delta

pytest.importorskip("llguidance")

SCHEMA = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}


def rows(*targets: str) -> tuple[Row, ...]:
    return tuple(Row(f"{i}:", None, target, "rows.jsonl", i) for i, target in enumerate(targets, start=1))


def trained(speller: Path, out: Path, schema: Any, *targets: str) -> Any:
    good = rows(' {"n": 1}', ' {"n":2}')
    data = TaskData(rows(*targets), good, good, None, "by hand", source="{t}", target=" {a}", json_schema=schema)
    options = TrainSettings(task="t", steps=2, max_length=8, max_target_length=16)
    return train_delta(str(speller), "lora", data, options, out)


def test_scores_are_of_texts_that_keep_to_the_schema(tmp_path: Path):
    speller = write_speller(tmp_path / "model")
    result = trained(speller, tmp_path / "out", SCHEMA, ' {"n": 1}', '{"n": 2}')
    assert all(json.loads(row["answer"]) in ({"n": 1}, {"n": 2}) for row in result.errors["worst"])
    assert Delta.load(tmp_path / "out", open_backbone(str(speller))).card.json_schema == SCHEMA
    free = trained(speller, tmp_path / "free", None, ' {"n": 1}', '{"n": 2}')  # or the schema would prove nothing
    assert not any("n" in row["answer"] and "}" in row["answer"] for row in free.errors["worst"])


@pytest.mark.parametrize(
    ("target", "message"),
    [('{"n": 3}', r"from '3\}' on"), ('{"n": 1', "for it ends too early"), ("one", "from 'one' on")],
)
def test_a_target_that_breaks_the_schema_is_named(tmp_path: Path, target: str, message: str):
    with pytest.raises(DataError, match=rf"rows\.jsonl:2: the target .* does not keep to the JSON schema, {message}"):
        trained(write_speller(tmp_path / "model"), tmp_path / "out", SCHEMA, '{"n": 1}', target)


def test_the_command_line_reads_a_file_and_refuses_what_is_none(tmp_path: Path):
    speller, data = write_speller(tmp_path / "model"), tmp_path / "rows.jsonl"
    data.write_text(
        "".join(json.dumps({"text": f"{i}", "json": json.dumps({"n": 1 + i % 2})}) + "\n" for i in range(30))
    )
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    asked = ["--backbone", speller, "--data", data, "--task", "t", "--kind", "text", "--source", "{text}:"]
    asked += ["--target", " {json}", "--json-schema", tmp_path / "schema.json", "--steps", 1, "--out", tmp_path / "out"]
    verb("train", *asked)
    assert json.loads((tmp_path / "out" / "delta.json").read_text())["json_schema"] == SCHEMA
    given: dict[str, Any] = {"backbone": str(speller), "data": str(data), "task": "t", "out": str(tmp_path / "o")}
    for schema, kind, message in [
        (str(tmp_path / "none.json"), "text", "cannot be read"),
        (str(data), "text", "is no JSON"),
        (SCHEMA, "classification", "of text that is written"),
    ]:
        text = {"source": "{text}:", "target": " {json}"} if kind == "text" else {}
        with pytest.raises(UsageError, match=message):
            train(TrainOptions(**given, kind=kind, json_schema=schema, **text))
