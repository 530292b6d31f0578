"""Write ``seqeval.json``: what seqeval 1.2.2 says of drawn tags, many of which are no sound entities.

pip install --no-deps --target FOLDER seqeval==1.2.2; PYTHONPATH=FOLDER python tests/tasks/golden/make_seqeval.py
"""

from __future__ import annotations

import json
import random
import warnings
from pathlib import Path
from typing import Any

from seqeval import metrics
from seqeval.metrics.sequence_labeling import get_entities

SCHEMES = {
    "BIO": [f"{letter}-{label}" for letter in "BI" for label in ("LOC", "PER", "a-b")] + ["O"] * 3,
    "BIOES": [f"{letter}-{label}" for letter in "BIES" for label in ("LOC", "PER")] + ["O"] * 3,
    "IO": [f"I-{label}" for label in ("LOC", "PER")] + ["O"] * 2,
    "no types": ["B", "I", "O"],
    "nothing": ["O"],
}


def drawn(tags: list[str], source: random.Random) -> tuple[list[str], list[str]]:
    """Right tags of a row, and others that are often the same."""
    right = [source.choice(tags) for _ in range(source.randrange(1, 12))]
    return right, [tag if source.random() < 0.7 else source.choice(tags) for tag in right]


def of(scheme: str) -> dict[str, Any]:
    """Rows and what seqeval makes of them."""
    rows = [drawn(SCHEMES[scheme], random.Random(f"{scheme}/{i}")) for i in range(40)]
    right, given = map(list, zip(*rows, strict=True))
    known = {"average": "micro", "zero_division": 0}
    report = (
        metrics.classification_report(right, given, output_dict=True, zero_division=0) if scheme != "nothing" else {}
    )
    by_class = {
        name: {
            "precision": each["precision"],
            "recall": each["recall"],
            "f1": each["f1-score"],
            "support": each["support"],
        }
        for name, each in report.items()
        if not name.endswith(" avg")
    }
    return {
        "right": right,
        "given": given,
        "entities": [get_entities(tags) for tags in right],
        "scores": {
            "entity_f1": metrics.f1_score(right, given, **known),
            "entity_precision": metrics.precision_score(right, given, **known),
            "entity_recall": metrics.recall_score(right, given, **known),
            "entity_macro_f1": report.get("macro avg", {}).get("f1-score", 0.0),
            "tag_accuracy": metrics.accuracy_score(right, given),
        },
        "by_class": by_class,
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # a class without an entity, tags without types
    found = {scheme: of(scheme) for scheme in SCHEMES}
    content = json.dumps(found, default=lambda number: number.item(), separators=(",", ":"))
    Path(__file__).with_name("seqeval.json").write_text(content + "\n")
