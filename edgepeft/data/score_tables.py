"""Scores and errors as people read them: heads and rows of tables, numbers of three places, texts of one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = [
    "Rows",
    "certainty_figures",
    "class_rows",
    "figure_rows",
    "headline_rows",
    "in_words",
    "p_value",
    "rounded",
    "row_lines",
    "titled",
    "unseen",
]

Rows = tuple[list[str], list[list[str]]]
"""Head and rows of a table."""

_LEAST = 0.001


def rounded(value: float | None) -> str:
    """Of a score, or a dash."""
    return "-" if value is None else f"{value:.3f}"


def p_value(p: float) -> str:
    """``0.031``, or ``< 0.001``."""
    return f"< {_LEAST}" if p < _LEAST else rounded(p)


def titled(metric: str) -> str:
    """A metric in words."""
    return metric.replace("_", " ").replace("f1", "F1")


def headline_rows(found: Sequence[Mapping[str, Any]], baselines: Mapping[str, Mapping[str, Any]]) -> Rows:
    """Each figure with its interval, beside it the baselines', and the p of those that were compared."""
    rows = []
    for each in found:
        between = "-" if each["low"] is None else f"{rounded(each['low'])} to {rounded(each['high'])}"
        beside = (rounded(of["scores"].get(each["metric"])) for of in baselines.values())
        rows.append([titled(each["metric"]), rounded(each["score"]), between, *beside])
    if any("p" in of for of in baselines.values()):
        rows.append(["McNemar's p", "", "", *(p_value(of["p"]) for of in baselines.values())])
    return ["figure", "score", "95 % interval", *baselines], rows


def class_rows(errors: Mapping[str, Any]) -> Rows:
    """The classes that rows have, lowest F1, then most rows, first; or the residuals, or scores of texts."""
    if "texts" in errors:
        return figure_rows(errors["texts"])
    if "residuals" in errors:
        return figure_rows(errors["residuals"], "residual")
    if not errors.get("by_class"):  # a kind of task without labels
        return figure_rows(errors["figures"])
    rows = [
        [name, *(rounded(of[key]) for key in ("precision", "recall", "f1")), f"{of['support']:,}"]
        for name, of in sorted(errors["by_class"].items(), key=lambda item: (item[1]["f1"], -item[1]["support"]))
        if of["support"]
    ]
    return ["label", "precision", "recall", "F1", "rows"], rows


def unseen(errors: Mapping[str, Any]) -> list[str]:
    """The labels that no row has."""
    return [name for name, of in (errors.get("by_class") or {}).items() if not of["support"]]


def figure_rows(figures: Mapping[str, float], head: str = "score") -> Rows:
    """Figures that are not of classes."""
    return [head, ""], [[titled(name), rounded(value)] for name, value in figures.items()]


def certainty_figures(calibration: Mapping[str, Any]) -> Rows:
    """How far probabilities can be believed, and what is guaranteed of the answers that are sure."""
    error, kept = calibration["ece"], dict(calibration.get("promise") or {})
    figures = {"temperature": calibration["temperature"], "calibration error without it": error["before"]}
    figures |= {"calibration error with it": error["after"]}
    return figure_rows(figures | {name: value for name, value in kept.items() if value is not None}, "certainty")


def row_lines(found: Sequence[Mapping[str, Any]], other: str = "answer") -> list[tuple[str, str]]:
    """Of rows that are shown one by one: where each stands with its label and ``other``, each with its probability
    where that is known, else with the loss; and its text, where that is known."""
    lines = []
    for each in found:
        sides = ", ".join(f"{name} {_with_probability(each, name)}" for name in ("label", other))
        loss = "" if each.get("label_probability") is not None else f", loss {rounded(each['loss'])}"
        lines.append((f"{each['row']}: {sides}{loss}", each.get("text", "")))
    return lines


def _with_probability(each: Mapping[str, Any], name: str) -> str:
    p = each.get(f"{name}_probability")
    return in_words(each[name]) + ("" if p is None else f" (p {p_value(p)})")


def in_words(value: Any) -> str:
    """An answer or a label in a cell: several are told one by one."""
    return (", ".join(map(str, value)) or "-") if isinstance(value, list) else str(value)
