"""Rows in a JSON document: a list, SQuAD's paragraphs, columns as pandas writes them, texts as spaCy trains on them."""

from __future__ import annotations

from typing import Any

__all__ = ["rows_of"]


def rows_of(document: Any) -> list[Any]:
    """Its rows: a list, the list under ``data``, SQuAD's paragraphs, or columns as pandas writes them."""
    if not isinstance(document, dict):
        return [_of_spacy(row) for row in document] if isinstance(document, list) else [document]
    rows = document.get("data")
    if isinstance(rows, list) and rows and all(isinstance(each, dict) and "paragraphs" in each for each in rows):
        return [
            {"context": paragraph.get("context"), **question}
            for each in rows
            for paragraph in each["paragraphs"]
            for question in paragraph.get("qas", ())
        ]
    if isinstance(rows, list):
        names = document.get("columns")  # pandas' "split"
        return rows if names is None else [dict(zip(names, cells, strict=True)) for cells in rows]
    if isinstance(document.get("annotations"), list) and "classes" in document:
        return [_of_spacy(row) for row in document["annotations"] if row]
    # One row of words and tags looks like columns too.
    columns = {name: list(of.values()) if isinstance(of, dict) else of for name, of in document.items()}
    if (
        columns
        and "tokens" not in columns
        and all(isinstance(of, list) for of in columns.values())
        and len({*map(len, columns.values())}) == 1
    ):
        return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    return [document]


def _of_spacy(row: Any) -> Any:
    """A text and a mapping of its entities, in a list of two as spaCy trains on them; anything else as it is."""
    if isinstance(row, list) and len(row) == 2 and isinstance(row[0], str) and isinstance(row[1], dict):
        return {"text": row[0], **row[1]}
    return row
