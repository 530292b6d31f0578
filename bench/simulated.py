"""A federation of many boards that Flower simulates by Ray, in the processes of one machine.

    python -m bench.simulated BUNDLE --task mood --data train.jsonl --server server.jsonl --test test.jsonl \\
        --flower VENV/bin [--boards 100] [--a-round 10] [--skew 0.5] [--actors 2]

``--flower`` is an environment with flwr[simulation].  A round asks ``--a-round`` of the boards, drawn anew each time.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

from bench.averaging import Boards, parser_of, print_measured
from bench.flower import SuperLink, prepared
from edgepeft import Bundle, LocalTuner, TuneSettings


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """One run."""
    with tempfile.TemporaryDirectory(prefix="simulated-") as name:
        paths, app, config = prepared(args, work := Path(name))
        fractions = {"fraction_train": args.a_round / args.boards, "fraction_evaluate": args.a_round / args.boards}
        config |= {"simulated-data": f"{work}/rows-{{}}.jsonl"}
        config |= {"boards": args.a_round, "strategy-options": json.dumps(fractions)}
        config |= tomllib.loads("\n".join(args.config))
        many = f"num-supernodes={args.boards} init-args-num-cpus={args.actors} client-resources-num-cpus=1"
        begun = time.monotonic()
        with SuperLink(work, args.flower, ["--insecure", "--simulation"], "insecure = true") as superlink:
            printed = superlink.run(app, config, "--federation-config", many)
            seconds = time.monotonic() - begun
            if "[ROUND " not in printed:
                raise superlink.problem(printed)
        judge = Boards(args.bundle, args.task, paths[:1], test=args.test, rounds=1, options=TuneSettings(steps=1))
        return {
            "boards": args.boards, "rows": [len(path.read_text().splitlines()) for path in paths],
            "seconds": round(seconds), "config": config,
            "answers": re.findall(r"aggregate_train: Received (\d+) results and (\d+) failures", printed),
            "before": judge.score({}),
            "after": judge.score(LocalTuner(work / "bundle", args.task, args.server).tensors),
            "account": Bundle(work / "bundle").entry(args.task).training.get("federated"),
        }  # fmt: skip


def main() -> None:
    """Print the result as JSON."""
    numbers = {"boards": 100, "a-round": 10, "rows": 3000, "rounds": 3, "steps": 10, "seed": 0, "actors": 2}
    parser = parser_of(__doc__, ("data", "server", "test", "flower"), numbers)
    parser.add_argument("--config", action="append", default=[], help="a line of the run's configuration")
    print_measured(parser, measure)


if __name__ == "__main__":
    main()
