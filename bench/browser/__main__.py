"""A site of `edgepeft web` beside Transformers.js: the same weights in the same Chromium, in turns.

    npm install --prefix FOLDER --ignore-scripts @huggingface/transformers playwright-core
    python -m bench.browser prepare WORK --backbone FOLDER --modules FOLDER/node_modules
    python -m bench.browser measure WORK --case full --threads 1 --json result.json

`prepare` makes a bundle of 14 tasks with random values (ten of LoRA, four of other methods), its sites, and the first
task as a merged model for Transformers.js, exported by optimum.  `measure` compares scores before it times anything; a
case that is measured again takes the place of its own rows in the file.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from bench.browser.cases import CASES, Asked
from bench.browser.chromium import chromium, versions
from bench.browser.prepare import pages, prepare
from bench.suites._result import SuiteRow
from bench.suites._table import figure_of
from edgepeft.backbones.config import read_config
from edgepeft.common.atomic import write_json
from edgepeft.common.errors import DataError, EdgepeftError, UsageError
from edgepeft.device.machine import host_facts
from edgepeft.web.site import SITE_FILE

_SCHEMA = "edgepeft.browser/1"
_ROWS = TypeAdapter(list[SuiteRow])


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """The document with this run's rows in it."""
    kept = _kept(options.json)
    with chromium(options.work) as browser:
        asked = Asked(options.work, browser, options.threads, options.rounds)
        (opened,) = browser.steps(["open", "bench/index.html"])
        if options.threads > 1 and not opened["isolated"]:
            raise EdgepeftError("Chromium did not isolate the page, so it has one thread only.")
        facts = {"host": host_facts(), "browser": opened["agent"], "versions": versions(browser.modules)}
        facts["site"] = read_config(pages(options.work) / "nine" / SITE_FILE)["libraries"]
        for case in options.case or CASES:
            rows = list(CASES[case](asked))
            for row in rows:
                print(f"{row.what}: {figure_of(row)} {row.verdict} {row.note}", flush=True)
            key = {"case": case, "threads": options.threads}
            others = [run for run in kept if {name: run[name] for name in key} != key]
            kept = [*others, {**key, "rounds": options.rounds, **facts, "rows": _ROWS.dump_python(rows, mode="json")}]
            document = {"schema": _SCHEMA, "runs": kept}
            if options.json is not None:
                write_json(options.json, document)
    return document


def _kept(path: Path | None) -> list[dict[str, Any]]:
    """The runs that a result holds so far."""
    if path is None or not path.exists():
        return []
    try:
        document = json.loads(path.read_bytes())
        if document["schema"] == _SCHEMA:
            return list(document["runs"])
    except (ValueError, KeyError, TypeError):
        pass
    raise DataError(f"{path} is no result of this program, and is left as it is; name another file.")


def main(arguments: list[str] | None = None) -> int:
    """Prepare, or measure and print; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.browser", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    make = verbs.add_parser("prepare", help="write what both sides load")
    make.add_argument("work", type=Path)
    make.add_argument("--backbone", required=True, help="a folder in Hugging Face's layout, with BERT's pooler")
    make.add_argument("--modules", type=Path, required=True, help="a node_modules")
    time = verbs.add_parser("measure", help="compare")
    time.add_argument("work", type=Path)
    time.add_argument("--case", action="append", choices=sorted(CASES), help="may repeat; left out: all")
    time.add_argument("--threads", type=int, default=1, choices=(1, 2))
    time.add_argument("--rounds", type=int, default=15)
    time.add_argument("--json", type=Path, help="the result, which keeps the runs that it has of other cases")
    options = parser.parse_args(arguments)
    try:
        if options.verb == "prepare":
            versions(options.modules)
            prepare(options.work, options.backbone, options.modules)
        elif options.rounds < 1:
            raise UsageError("--rounds must be at least 1.")
        else:
            measure(options)
    except EdgepeftError as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
