"""Writes what is generated: methods.json, the tables of methods and of speed, JSON Schemas of results, pictures.

    python -m bench.generated [--check] [--root FOLDER]

``--check`` writes nothing and exits 1 when a file is not what would be written.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from bench import figures, methods
from bench.pictures import fleet_picture, floors_picture
from bench.suites._result import SuiteResult
from edgepeft.bench.report.tables import QuickstartSummary
from edgepeft.bench.result.parts import DocumentPart
from edgepeft.bench.result.schema import BenchResult
from edgepeft.common.atomic import write_atomically
from edgepeft.fleet.repository import DAYS

_DOCUMENTS: dict[str, type[DocumentPart]] = {
    "edgepeft.bench-1": BenchResult,
    "edgepeft.quickstart-1": QuickstartSummary,
    "edgepeft.suite-1": SuiteResult,
}
_REPOSITORY = Path(__file__).resolve().parents[1]
_DRAFT = "https://json-schema.org/draft/2020-12/schema"  # the draft that pydantic writes


def generated_files(root: Path) -> dict[Path, str]:
    """What each file should hold; ``root`` has docs."""
    schemas = {root / "docs" / "schemas" / f"{name}.json": _json_schema(part) for name, part in _DOCUMENTS.items()}
    pictures = {root / "docs" / "floors.svg": floors_picture(_REPOSITORY / "pyproject.toml")}
    pictures[root / "docs" / "fleet.svg"] = fleet_picture(DAYS)
    tables = methods.generated_files(root / "docs" / "methods.md") | figures.generated_files(root)
    return {**tables, **schemas, **pictures}


def _json_schema(document: type[DocumentPart]) -> str:
    schema = document.model_json_schema(by_alias=True)
    schema["required"] = ["schema", *schema["required"]]
    return json.dumps({"$schema": _DRAFT, **schema}, indent=2, ensure_ascii=False) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Write or check the files; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.generated", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a file is stale")
    parser.add_argument("--root", type=Path, default=_REPOSITORY, help="the repository")
    options = parser.parse_args(arguments)
    stale = False
    for path, text in generated_files(options.root).items():
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale = True
        print(f"{path} is {'stale; run: make generated' if options.check else 'written'}", file=sys.stderr)
        if not options.check:
            write_atomically(path, text.encode())
    return int(options.check and stale)


if __name__ == "__main__":
    sys.exit(main())
