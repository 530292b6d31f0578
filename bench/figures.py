"""README's table of speed and those of docs/figures.md and docs/tuning.md, from raw results of suites.

python -m bench.figures RUN RESULT.json...     # keeps them in docs/benchmarks, a line each: {peers,suites}/RUN.jsonl
python -m bench.generated                      # writes the tables
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from textwrap import shorten

from bench.methods import with_block
from bench.suites._engines import ENGINES, OWN_INT8
from bench.suites._result import SuiteResult, SuiteRow, SuiteVerdict
from bench.suites._suite_run import SETS
from bench.suites._table import figure_of
from edgepeft.bench.report.tables import limits_in_force
from edgepeft.common.atomic import write_atomically
from edgepeft.common.errors import UsageError

RESULTS = Path("docs", "benchmarks", "peers")
SUITES = Path("docs", "benchmarks", "suites")
_FORMS_OF_REQUEST = ("single", "batches", "stream")  # suites whose rows are forms of request, by engine
_OF_PEERS = (*_FORMS_OF_REQUEST, "speed")  # what README's table reads
_REPOSITORY = Path(__file__).resolve().parents[1]
_PAGES = ((Path("README.md"), "speed"), (Path("docs", "figures.md"), "figures"))
# A block named suite-SUITE, in the page that stands here, has the suite's rows.
_SUITE_PAGES = {"tuning": Path("docs", "tuning.md")}
_MEAN, _OF_ONE_SET = ", geometric mean of ", ", lengths of "
_Forms = dict[str, dict[str, SuiteRow]]  # by form of request, then by peer


def generated_files(root: Path) -> dict[Path, str]:
    """What README and the pages should hold, where they are."""
    runs, others = (
        {file.stem: _read(file) for file in sorted((root / folder).glob("*.jsonl"), key=lambda file: file.stem)}
        for folder in (RESULTS, SUITES)
    )
    newest = {(one.host.cpu, _model(one), one.suite): name for name, results in runs.items() for one in results}
    shown = {
        name: [one for one in results if newest[one.host.cpu, _model(one), one.suite] == name]
        for name, results in runs.items()
    }
    whole = [_details(name, shown[name]) for name in reversed(runs) if shown[name]]
    tables = {"speed": _summary(runs), "figures": "\n\n".join([*whole, *_differences(runs)])}
    blocks = [(root / page, block, tables[block]) for page, block in _PAGES if runs]
    every = [result for results in (*others.values(), *runs.values()) for result in results]
    for suite in dict.fromkeys(result.suite for result in every if result.suite not in _FORMS_OF_REQUEST):
        page = root / _SUITE_PAGES.get(suite, Path("docs", "figures.md"))
        blocks.append((page, f"suite-{suite}", _suite([result for result in every if result.suite == suite])))
    pages = {page: page.read_text(encoding="utf-8") for page, *_ in blocks if page.is_file()}
    for page, block, table in blocks:
        if page in pages:
            pages[page] = with_block(pages[page], block, table, str(page))
    return pages


def _read(file: Path) -> list[SuiteResult]:
    try:
        return [SuiteResult.model_validate_json(line) for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} has no results of suites, a line each: {str(error).splitlines()[0]}.") from error


def _model(result: SuiteResult) -> str:
    name = result.model.name.rpartition("__")[2]
    return name if result.model.random_weights else f"{name}, its own weights"


def _forms(results: Iterable[SuiteResult], *, int8: bool) -> _Forms:
    """Rows beside peers of one width of weights; of batches the mean over the sets of lengths, named if not all."""
    forms: _Forms = {}
    for row in (row for result in results for row in result.rows):
        side, _, form = row.what.partition(", ")
        engine = ENGINES.get(row.peer or "")
        if engine and engine.int8 == int8 and side == engine.own_side and row.value and _OF_ONE_SET not in row.what:
            form, _, sets = form.partition(_MEAN)
            some = _OF_ONE_SET + sets if sets not in ("", ", ".join(SETS)) else ""
            forms.setdefault(form + some, {})[row.peer or ""] = row
    return forms


def _summary(runs: dict[str, list[SuiteResult]]) -> str:
    """Ours over the quickest peer of each form: a column a model and width, of the latest run of each suite on it."""
    latest = {(_model(result), result.suite): result for results in runs.values() for result in results}
    models = dict.fromkeys(name for name, _ in latest)
    columns = {
        f"{name}{', 8 bits' * int8}": _forms(
            (result for (model, _), result in latest.items() if model == name), int8=int8
        )
        for name in models
        for int8 in (False, True)
    }
    columns = {head: forms for head, forms in columns.items() if forms}
    rows = dict.fromkeys(form for forms in columns.values() for form in forms)
    return _table(
        ["", *columns], [[form, *(_quickest(forms.get(form, {})) for forms in columns.values())] for form in rows]
    )


def _quickest(peers: dict[str, SuiteRow]) -> str:
    if not peers:
        return "-"
    peer, row = min(peers.items(), key=lambda each: each[1].value or 0.0)
    return f"{_cell(row)} {peer}"


def _details(name: str, results: Sequence[SuiteResult]) -> str:
    """One run: its conditions, then a table for each model and width."""
    parts = [f"### Run {name}"]
    for model in dict.fromkeys(map(_model, results)):
        own = [result for result in results if _model(result) == model]
        parts += [f"#### {model}", "\n".join(f"- {_conditions(result)}" for result in own)]
        for int8 in (False, True):
            forms = _forms(own, int8=int8)
            peers = [peer for peer in ENGINES if any(peer in row for row in forms.values())]
            lines = [[form, *(_cell(row.get(peer), interval=True) for peer in peers)] for form, row in forms.items()]
            if peers:
                parts.append(_table([f"{OWN_INT8 if int8 else 'edgepeft'} over", *peers], lines))
        peers_of: dict[str, dict[str, None]] = {}  # by note; an error's text may be long
        for row in (row for result in own for row in result.rows if row.note):
            peers_of.setdefault(shorten(row.note, 160, placeholder=" ..."), {})[row.peer or ""] = None
        notes = [f"- {', '.join(peers)}: {note}" for note, peers in peers_of.items()]
        parts += ["\n".join(notes)] * bool(notes)
    return "\n\n".join(parts)


def _differences(runs: dict[str, list[SuiteResult]]) -> list[str]:
    """Of forms that two runs have, a later day's or another host's: who is ahead in one and not in the other."""
    found: dict[str, list[tuple[str, SuiteRow]]] = {}
    for name, results in runs.items():
        for model, int8 in product(dict.fromkeys(map(_model, results)), (False, True)):
            for form, peers in _forms([one for one in results if _model(one) == model], int8=int8).items():
                for peer, row in peers.items():
                    found.setdefault(f"{model}, {form}, over {peer}", []).append((name, row))
    twice = {what: rows for what, rows in found.items() if len(rows) > 1}
    if not twice:
        return []
    apart = {what: rows for what, rows in twice.items() if len({(row.value or 0) < 1 for _, row in rows}) > 1}
    clear = {
        what: rows
        for what, rows in apart.items()
        if any(row.interval and row.interval[1] < 1 for _, row in rows)
        and any(row.interval and row.interval[0] > 1 for _, row in rows)
    }
    said = (
        f"Of {len(twice)} figures that were measured in more than one run, who is ahead differs in {len(apart)}; in "
        f"{len(clear)} of them beyond both intervals{': the clearest run of either side and the newest' * bool(clear)}."
    )
    lines = [f"- {what}, {len(rows)} runs: {_clearest(rows)}" for what, rows in clear.items()]
    return ["### Where runs differ", said, *["\n".join(lines)] * bool(lines)]


def _clearest(rows: Sequence[tuple[str, SuiteRow]]) -> str:
    """Of one figure's runs the clearest below 1, the clearest above and the newest, in the runs' order."""
    below = min(rows, key=lambda each: (each[1].interval or (1.0, 1.0))[1])
    above = max(rows, key=lambda each: (each[1].interval or (1.0, 1.0))[0])
    named = {below[0], above[0], rows[-1][0]}
    return ", ".join(f"{_cell(row, interval=True)} ({name})" for name, row in rows if name in named)


def _suite(results: Sequence[SuiteResult]) -> str:
    """A suite's rows with what is promised, a table a model: a column for the latest run on each processor."""
    parts = []
    for model in dict.fromkeys(map(_model, results)):
        own = sorted((result for result in results if _model(result) == model), key=lambda result: result.date or "")
        newest = [*{result.host.cpu: result for result in own}.values()][::-1]
        found = [{(row.what, row.peer): row for row in result.rows if row.value is not None} for result in newest]
        every = dict.fromkeys(key for rows in found for key in rows if _OF_ONE_SET not in key[0])
        lines = []
        for key in every:
            target = next((each.target for rows in found if (each := rows.get(key)) and each.target), None)
            lines.append([key[0], key[1] or "-", str(target or "-"), *(_judged(rows.get(key)) for rows in found)])
        heads = [f"{result.host.cpu}, {result.date}" for result in newest]
        parts.append("\n".join(f"- {model}: {_conditions(result)}" for result in newest))
        parts.append(_table(["", "beside", "promised", *heads], lines))
    return "\n\n".join(parts)


def _judged(row: SuiteRow | None) -> str:
    """The figure, in bold where what is promised is missed."""
    if row is None:
        return "-"
    shown = figure_of(row).removesuffix(" x")
    return f"**{shown}**" if row.verdict == SuiteVerdict.MISSED else shown


def _conditions(result: SuiteResult) -> str:
    host = result.host
    peers = ", ".join(dict.fromkeys(each for one in result.peers.values() for each in one.split(", ")))
    runtime = f"onnxruntime {host.versions.get('onnxruntime')}"
    rate = f", GEMM {host.gemm_gflops:.0f} GFLOP/s" if host.gemm_gflops else ""
    return (
        f"`{result.suite}`, {result.date or 'date not recorded'}: {host.cpu}{rate} "
        f"on {result.threads} threads; {result.rounds} rounds at most; {limits_in_force(result.profile)}; {runtime}, "
        f"{peers or 'other versions not recorded'}"
    )


def _cell(row: SuiteRow | None, *, interval: bool = False) -> str:
    """The figure, in bold where the peer is ahead; a single round has no interval."""
    if row is None or row.value is None:
        return "-"
    shown = f"**{row.value:.2f}x**" if row.value < 1 else f"{row.value:.2f}x"
    low, high = row.interval or (0.0, 0.0)
    return shown + (f" [{low:.2f}, {high:.2f}]" if interval and low < high else "")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def main(arguments: Sequence[str]) -> int:
    """Keep the results of a run; the exit code."""
    if len(arguments) < 2 or arguments[0].endswith(".json"):
        print(__doc__, file=sys.stderr)
        return 2
    run, *files = arguments
    lines: dict[Path, list[str]] = {}
    for file in files:
        try:
            text = Path(file).read_bytes()
            suite = SuiteResult.model_validate_json(text).suite
        except (OSError, ValueError) as error:
            print(f"{file} is no result of a suite: {str(error).splitlines()[0]}", file=sys.stderr)
            return 1
        lines.setdefault(RESULTS if suite in _OF_PEERS else SUITES, []).append(json.dumps(json.loads(text)))
    for folder, kept in lines.items():
        write_atomically(_REPOSITORY / folder / f"{run}.jsonl", ("\n".join(kept) + "\n").encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
