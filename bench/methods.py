"""The methods as data, from their own files: ``edgepeft/_data/methods.json`` and the table of docs/methods.md.

A board has no torch to import the methods with, so `edgepeft methods` reads the file, which `make generated` writes.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import typing
from pathlib import Path
from typing import Any

from edgepeft.backbones.base import Architecture, family_of
from edgepeft.backbones.config import config_of
from edgepeft.common.errors import UsageError
from edgepeft.common.resources import package_data
from edgepeft.methods.base import Method, methods

COUNTED_ON = ("roberta-base", "bert-base-uncased")


def _markdown_table(document: dict[str, Any]) -> str:
    """A markdown table, one row a method."""
    name = COUNTED_ON[0]
    lines = [f"| method | what it computes | trained on {name} | learning rate | paper |", "|---|---|---|---|---|"]
    for entry in document["methods"]:
        count, share = entry["parameters"][name], entry["percent"][name]
        trained = f"{count:,} ({share:.3g} %)"
        equation = entry["equation"].replace("|", "\\|")
        cells = (f"`{entry['name']}`", f"`{equation}`", trained, f"{entry['learning_rate']:g}", entry["paper"])
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def with_block(text: str, name: str, table: str, where: str) -> str:
    """``text`` with what stands between the markers of that name replaced."""
    first, last = f"<!-- {name}:begin", f"<!-- {name}:end -->"
    head, begin, rest = text.partition(first)
    comment, newline, rest = rest.partition("\n")
    _, end, tail = rest.partition(last)
    if not (begin and newline and end):
        raise UsageError(f"{where} has no lines '{first} -->' and '{last}' for the table to stand between.")
    return f"{head}{begin}{comment}{newline}{table}\n{end}{tail}"


def generated_files(page: Path) -> dict[Path, str]:
    """What ``methods.json``, as `edgepeft methods --json` prints it, and, where there is one, the page should hold."""
    configs = {name: config_of(name) for name in COUNTED_ON}
    architectures = {name: family_of(config).architecture(config) for name, config in configs.items()}
    document = {"methods": [_entry(method, architectures) for method in methods().values()]}
    files = {package_data("methods.json"): json.dumps(document, indent=2, ensure_ascii=False) + "\n"}
    if page.is_file():
        files[page] = with_block(page.read_text(encoding="utf-8"), "methods", _markdown_table(document), str(page))
    return files


def _entry(method: type[Method], architectures: dict[str, Architecture]) -> dict[str, Any]:
    default = method()
    counts = {name: default.n_parameters(architecture) for name, architecture in architectures.items()}
    return {
        "name": method.name,
        "title": method.title,
        "about": (inspect.getdoc(inspect.getmodule(method)) or "").strip(),
        "paper": method.paper,
        "equation": method.equation,
        "near_identity": method.near_identity,
        "trains_everything": method.trains_everything,
        "learning_rate": method.learning_rate,
        "learning_rate_source": method.learning_rate_source,
        "fields": [_field(method, field) for field in dataclasses.fields(method)],
        "parameters": counts,
        "percent": {name: round(100 * n / architectures[name].n_parameters, 4) for name, n in counts.items()},
    }


def _field(method: type[Method], field: dataclasses.Field[Any]) -> dict[str, Any]:
    hint = typing.get_type_hints(method)[field.name]
    default = list(field.default) if isinstance(field.default, tuple) else field.default
    return {"name": field.name, "type": _type_name(hint), "default": default, "doc": field.metadata["doc"]}


def _type_name(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return " | ".join(map(str, typing.get_args(hint)))
    if typing.get_origin(hint) is tuple:
        return f"list of {_type_name(typing.get_args(hint)[0])}"
    return getattr(hint, "__name__", str(hint))
