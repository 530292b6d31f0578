"""A task's check file: 64 rows of mixed length with the logits that PyTorch gives under hooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle, islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from edgepeft.backbones.source import Backbone
from edgepeft.backbones.tokens import Text
from edgepeft.data.rows import SENTENCES, Columns, label_number, read_rows
from edgepeft.delta import Delta
from edgepeft.errors import DataError
from edgepeft.resources import package_data
from edgepeft.runtime.verify import DataCheck, pack_check, run_in_groups

__all__ = ["ROWS", "check_content", "check_texts", "data_check", "fitted", "shipped_texts"]

ROWS = 64


def shipped_texts() -> list[Text]:
    """The texts that come with edgepeft, one a line."""
    lines = package_data("verify_texts.txt").read_text(encoding="utf-8").splitlines()
    return [Text(line) for line in lines if line]


def check_texts(path: Path | None, columns: Columns = SENTENCES) -> list[Text]:
    """64 texts of mixed length from a data file, or the shipped ones.

    Raises:
        DataError: the file's content.
    """
    if path is None:
        return shipped_texts()
    found = read_rows(path, labels=columns.label is not None, columns=columns)
    rows = [Text(row.sentence1, row.sentence2) for row in found]
    # Spread over all lengths: the shortest and the longest are where padding goes wrong.
    rows.sort(key=lambda text: len(text.first) + len(text.second or ""))
    chosen = np.linspace(0, len(rows) - 1, min(ROWS, len(rows))).round().astype(int)
    return [rows[i] for i in chosen]


def data_check(
    delta: Delta, backbone: Backbone, model: nn.Module, path: Path, columns: Columns = SENTENCES
) -> DataCheck:
    """PyTorch's logits for every row of a file, and its labels where all of them are the task's.

    Raises:
        UsageError, DataError: the file is missing, or its texts cannot be read.
    """
    rows = list(read_rows(path, labels=False, columns=columns))
    texts = fitted([Text(row.sentence1, row.sentence2) for row in rows], delta.card.pairs)
    inputs = backbone.encoder().encode(texts, delta.card.max_length).inputs
    labels = _labels(path, columns, delta.card.labels)
    return DataCheck(inputs, _logits(delta, model, inputs), labels, delta.card.labels)


def _labels(path: Path, columns: Columns, names: Sequence[str] | None) -> list[str | float] | None:
    """A file of texts alone, or one of another task's, gives no metric."""
    try:
        rows = list(read_rows(path, labels=True, columns=columns))
        if names is None:
            return [label_number(row) for row in rows]
    except DataError:
        return None
    labels: list[str | float] = [row.label or "" for row in rows]
    return labels if set(labels) <= set(names) else None


def check_content(delta: Delta, backbone: Backbone, model: nn.Module, texts: Sequence[Text]) -> bytes:
    """The bytes of a check file for this delta; fewer texts than 64 are repeated in other company."""
    rows = list(islice(cycle(fitted(texts, delta.card.pairs)), ROWS))
    inputs = backbone.encoder().encode(rows, delta.card.max_length).inputs
    return pack_check(inputs, _logits(delta, model, inputs))


def _logits(delta: Delta, model: nn.Module, inputs: Mapping[str, NDArray[np.int64]]) -> NDArray[np.float32]:
    def run(group: Mapping[str, NDArray[np.int64]]) -> NDArray[np.float32]:
        with torch.no_grad():
            logits: NDArray[np.float32] = delta.logits(
                model, {name: torch.from_numpy(values) for name, values in group.items()}
            ).numpy()
        return logits

    return run_in_groups(run, inputs)


def fitted(texts: Sequence[Text], pairs: bool) -> list[Text]:
    """Texts of the task's kind: a pair task reads each text with its successor."""
    if not pairs:
        return [Text(text.first) for text in texts]
    others = (*texts[1:], texts[0])
    return [
        text if text.second is not None else Text(text.first, o.first) for text, o in zip(texts, others, strict=True)
    ]
