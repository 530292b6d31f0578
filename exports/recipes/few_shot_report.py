"""The few-shot table from its cells: mean and standard deviation over seeds, storage, throughput, parity."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

_NAMES = {
    "rte": "RTE",
    "mrpc": "MRPC",
    "cola": "CoLA",
    "stsb": "STS-B",
    "sst2": "SST-2",
    "bbc_news": "BBC",
}
_WITHIN = 0.5  # points, of the mean over seeds and sets

Cells = Sequence[Mapping[str, Any]]


def table(
    cells: Cells,
    bench: Mapping[str, Any],
    sizes: Mapping[str, Mapping[str, Any]],
    *,
    sets: Sequence[str],
    methods: Sequence[str],
    pytorch: Sequence[str],
) -> dict[str, Any]:
    """Rows and parity as plain data; ``sizes`` are the manifest's entries of an untrained task by method."""
    rows = [_row("onnxruntime", m, cells, sets) for m in methods] + [_row("pytorch", m, cells, sets) for m in pytorch]
    by_method = {row["method"]: row for row in bench["results"] if row["engine"] == "onnxruntime"}
    for row in rows:
        size, speed = sizes.get(row["method"], {}), by_method.get(row["method"], {})
        row |= {"trainable_parameters": size.get("trainable_parameters"), "n_bytes": size.get("n_bytes")}
        if row["engine"] == "onnxruntime":
            row |= {name: speed.get(name) for name in ("instances_per_minute", "peak_rss_bytes", "ratio_to")}
    return {
        "rows": rows,
        "parity": [parity for method in pytorch if (parity := _parity(method, rows)) is not None],
        "model_parameters": bench["model"]["n_parameters"],
        "bench": {name: bench[name] for name in ("host", "profile", "model")}
        | {name: bench["results"][0][name] for name in ("threads", "batch_size", "sequence_length")},
        "rows_reported": {cell["data"]: cell["metrics"]["n_test"] for cell in cells},
        "metrics": {cell["data"]: cell["metrics"]["metric"] for cell in cells},
    }


def _row(engine: str, method: str, cells: Cells, sets: Sequence[str]) -> dict[str, Any]:
    scores = {}
    for name in sets:
        by_seed = {
            cell["seed"]: 100 * cell["metrics"]["test"]
            for cell in cells
            if (cell["engine"], cell["method"], cell["data"]) == (engine, method, name)
        }
        if by_seed:
            scores[name] = {
                "by_seed": by_seed,
                "mean": statistics.mean(by_seed.values()),
                "stdev": statistics.stdev(by_seed.values()) if len(by_seed) > 1 else None,
            }
    return {"engine": engine, "method": method, "scores": scores}


def _parity(method: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """ONNX Runtime's score minus PyTorch's: by set, the mean over the seeds that both have; and over all of them."""
    ours, theirs = (
        next((row["scores"] for row in rows if (row["engine"], row["method"]) == (engine, method)), {})
        for engine in ("onnxruntime", "pytorch")
    )
    by_set = {}
    for name in ours.keys() & theirs.keys():
        own, other = ours[name]["by_seed"], theirs[name]["by_seed"]
        shared = own.keys() & other.keys()
        if shared:
            by_set[name] = statistics.mean(own[seed] - other[seed] for seed in shared)
    if not by_set:
        return None
    mean = statistics.mean(by_set.values())
    by_set = {name: by_set[name] for name in ours if name in by_set}
    return {"method": method, "by_set": by_set, "mean": mean, "within": _WITHIN, "holds": abs(mean) <= _WITHIN}


def markdown(document: Mapping[str, Any]) -> str:
    """The table, and beneath it everything that its figures depend on."""
    sets = list(dict.fromkeys(name for row in document["rows"] for name in row["scores"]))
    names = [f"{_NAMES.get(name, name)} ({document['metrics'][name]})" for name in sets]
    header = ["method", "tuned with", "trained parameters", "stored", "steps/s", *names]
    lines = [_line(header), _line(["---"] * len(header))]
    lines += [_line(_cells(row, document, sets)) for row in document["rows"]]
    return "\n".join([*lines, "", *_conditions(document), ""])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(row: Mapping[str, Any], document: Mapping[str, Any], sets: Sequence[str]) -> list[str]:
    parameters, stored = row["trainable_parameters"], row["n_bytes"]
    rate, batch = row.get("instances_per_minute"), document["bench"]["batch_size"]
    return [
        row["method"],
        {"onnxruntime": "ONNX Runtime", "pytorch": "PyTorch"}[row["engine"]],
        "-" if parameters is None else f"{parameters:,} ({parameters / document['model_parameters']:.2%})",
        "-" if stored is None else f"{stored / 1e3:,.0f} kB",
        "-" if rate is None else f"{rate / batch / 60:.2f}",
        *(_score(row["scores"].get(name)) for name in sets),
    ]


def _score(scores: Mapping[str, Any] | None) -> str:
    if scores is None:
        return "-"
    return f"{scores['mean']:.1f}" + ("" if scores["stdev"] is None else f" ± {scores['stdev']:.1f}")


def _conditions(document: Mapping[str, Any]) -> list[str]:
    settings, bench = document["settings"], document["bench"]
    host, limits = bench["host"], bench["profile"]["limits"]["in_force"] or {}
    reported = ", ".join(f"{_NAMES.get(n, n)} {count}" for n, count in document["rows_reported"].items())
    beside = [
        f"{row['method']} {ratio['ratio']:.2f} x PyTorch's same step"
        for row in document["rows"]
        if (ratio := (row.get("ratio_to") or {}).get("pytorch"))
    ]
    seeds, gigabytes = ", ".join(map(str, document["seeds"])), (limits.get("memory_bytes") or 0) / 1e9
    lines = [
        f"{settings['backbone']}, {settings['examples']} examples, {settings['steps']} steps of 16, seeds {seeds}; "
        "mean and standard deviation over seeds, times 100. "
        f"Each text is cut to its first {settings['words']} words, each row to 128 tokens. "
        f"{settings['eval_rows']} other rows chose the checkpoint; reported are rows of the validation set, the same "
        f"for all: {reported}. Not comparable with published scores.",
        "",
        "Trained parameters (and their part of the model's) and bytes: the delta with a head of one output. "
        "Steps per second: forward, backward and AdamW with ONNX Runtime, "
        f"batch {bench['batch_size']}, {bench['sequence_length']} tokens, {bench['threads']} threads, under "
        f"{bench['profile']['name']} ({limits.get('cores')} cores and {gigabytes:.1f} GB in force, "
        f"the speed is the host's), on {host['cpu']}{''.join(f'; {text}' for text in beside)}.",
    ]
    for parity in document["parity"]:
        each = ", ".join(f"{_NAMES.get(n, n)} {value:+.1f}" for n, value in parity["by_set"].items())
        lines += [
            "",
            f"ONNX Runtime minus PyTorch, {parity['method']}, from the same start on the same rows in the same order "
            f"with the same dropout: {parity['mean']:+.2f} points over all sets ({each}).",
        ]
    return lines
