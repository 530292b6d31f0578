"""How long rows take to be read, and how much memory: a csv of texts of 12 words in two columns.

    python -m bench.reading [--rows 1000000] [--json FILE]

Each is a process of its own, with its imports.  Processor time stands beside wall time, for the latter is also of what
else the machine does.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from edgepeft.cli._main import main
from edgepeft.cli._output import plain_table, table_console
from edgepeft.common.atomic import check_target, write_json
from edgepeft.common.errors import EdgepeftError
from edgepeft.device.machine import cpu_model, thread_count

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

_READ = """
import sys
from pathlib import Path
from edgepeft.data.rows import read_rows
assert sum(1 for _ in read_rows(Path(sys.argv[1]), labels=True)) == int(sys.argv[2])
"""
_LOOKED_AT = 10_000  # rows
_GOALS = {"reading": "10 s, 500 MB", "look": "2 s"}
_FIGURES = ("seconds", "processor_seconds", "MB")


@app.command()
def measure(
    rows: Annotated[int, typer.Option(min=1, help="Of the file that is read.")] = 1_000_000,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures there.")] = None,
) -> None:
    """Read a csv, and look at one of 10,000 rows."""
    if json_file is not None:
        check_target(json_file)
    with tempfile.TemporaryDirectory() as folder:
        read, looked_at = Path(folder) / "read.csv", Path(folder) / "look.csv"
        _write(read, rows)
        _write(looked_at, _LOOKED_AT)
        found = {
            "reading": {"rows": rows, **_timed("-c", _READ, str(read), str(rows))},
            "look": {"rows": _LOOKED_AT, **_timed("-m", "edgepeft", "look", str(looked_at))},
        }
    table = plain_table("", "goal of 1,000,000 and 10,000", numbers=("rows", *(n.replace("_", " ") for n in _FIGURES)))
    for name, figures in found.items():
        table.add_row(name, _GOALS[name], f"{figures['rows']:,}", *(f"{figures[each]:,.1f}" for each in _FIGURES))
    table_console().print(table)
    load = os.getloadavg()[0]  # what else the machine does
    print(f"host: {cpu_model()}, {thread_count()} cores, load {load:.1f}; one thread each, no limits, a first run")
    if json_file is not None:
        write_json(json_file, found)


def _write(path: Path, rows: int) -> None:
    draw = random.Random(0)
    words = [f"word{number}" for number in range(5000)]
    with path.open("w") as file:
        file.write("text,label\n")
        file.writelines(f"{' '.join(draw.choices(words, k=12))},{('bad', 'good')[i % 2]}\n" for i in range(rows))


def _timed(*arguments: str) -> dict[str, Any]:
    """Of a process: how long it took, how long it computed, and the most memory that was resident."""
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    said = process.stderr.read().decode()
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise EdgepeftError(f"{' '.join(arguments[-3:])} failed: {said.strip()[-300:]}")
    figures = time.perf_counter() - began, used.ru_utime + used.ru_stime, used.ru_maxrss / 1000
    return dict(zip(_FIGURES, figures, strict=True))


if __name__ == "__main__":
    main(app)
