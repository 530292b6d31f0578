"""Deltas to look at, the rows to do it with, and the way to look at them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from deltas import TEXTS, random_delta

from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.source import Backbone
from edgepeft.bundle.delta import Delta
from edgepeft.data.batches import encode
from edgepeft.data.rows import Row
from edgepeft.training.inspection.base import InspectionTarget

LABELS = ("c", "a", "b")  # not in the order of the alphabet
ROWS = [text.first for text in TEXTS]  # 70 texts of 1 to 41 words: two batches, ragged


def rows_of(texts: Sequence[str], labels: Sequence[str]) -> list[Row]:
    return [Row(text, None, label, "memory", i) for i, (text, label) in enumerate(zip(texts, labels, strict=True))]


def write_rows(path: Path, texts: Sequence[str], labels: Sequence[object]) -> Path:
    lines = ({"sentence1": text, "label": label} for text, label in zip(texts, labels, strict=True))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def inspection_target(
    delta: Delta, backbone: Backbone, targets: Sequence[float], metric: str = "accuracy", texts=ROWS
) -> InspectionTarget:
    labels = delta.card.labels
    rows = rows_of(texts, [str(target) if labels is None else labels[int(target)] for target in targets])
    encoded = encode(rows, delta.card.task_kind, backbone.encoder(), delta.card.max_length, 0)
    return InspectionTarget(delta, load_model(backbone), encoded, metric)


def look(inspection, looked_at: InspectionTarget):
    return inspection.look(looked_at, lambda _: None)


def delta_of(backbone: Backbone, method: str, labels=LABELS, **settings) -> Delta:
    return random_delta(backbone, method, "t", labels, settings=settings)
